"""What is a tensor for? Answered by identity: who holds it.

A storage that a module holds as a parameter is a weight; what sits in `param.grad` when the optimizer begins
is a gradient; what sits in `optimizer.state` when it has finished is optimizer state. Nobody has to pass
models or optimizers around: torch calls us when a parameter is registered and when any optimizer steps.

Master copies (fp32 twins of bf16 weights, as in DeepSpeed) are parameters of an optimizer but of no module.
They are counted as optimizer state, as the ZeRO paper does (arXiv:1910.02054, section 3.1).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from workshop.measure.swap import swap

Label = Callable[[torch.UntypedStorage, str], None]


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages a tensor stands on: one for a plain tensor, those inside for a wrapper (DTensor,
    quantized).

    Tensors without bytes on this device (meta, and functional or sparse tensors without a storage) have none.
    """
    if isinstance(tensor, DTensor):
        return storages_of(tensor._local_tensor)
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        return [storage for name in inner for storage in storages_of(getattr(tensor, name))]
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        return []
    return [tensor.untyped_storage()]


class PartFinder:
    """Walks what modules and optimizers hold and calls `label(storage, part)` for each storage.

    Args:
        label: called with every storage found and its part.
        model: the model whose parameters are weights. Without it, every module that registers a parameter
            from now on is watched (see `watch_modules`), and an optimizer's parameters count as weights.
    """

    def __init__(self, label: Label, model: nn.Module | None = None) -> None:
        self._label = label
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet(
            model.modules() if model is not None else ()
        )

    def watch_modules(self) -> Callable[[], None]:
        """Learn of every module that gets a parameter or a buffer from now on. Returns what ends it."""
        from torch.nn.modules import module as registry

        def seen(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
            self._modules.add(module)

        handles = [
            registry.register_module_parameter_registration_hook(seen),
            registry.register_module_buffer_registration_hook(seen),
        ]

        inner = nn.Module.__setstate__

        def setstate(module: nn.Module, state: dict[str, Any]) -> None:
            inner(module, state)
            self._modules.add(module)

        put_back = swap(nn.Module, "__setstate__", setstate)  # a deep copy registers nothing

        def stop() -> None:
            put_back()
            for handle in handles:
                handle.remove()

        return stop

    def watch_fsdp(self) -> Callable[[], None]:
        """Label what FSDP2 gathers, each time it has gathered. Returns what ends it."""
        if not dist.is_available():
            return lambda: None
        from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

        inner = FSDPParam.init_unsharded_param

        @functools.wraps(inner)
        def init_unsharded_param(fsdp_param: Any) -> None:
            for tensor in fsdp_param.all_gather_outputs:
                self._mark(tensor, "gathered weights")
            inner(fsdp_param)

        return swap(FSDPParam, "init_unsharded_param", init_unsharded_param)

    def sweep_modules(self) -> None:
        """Label what modules hold at this moment: weights, their gradients and buffers."""
        for module in list(self._modules):
            for parameter in module._parameters.values():
                self._mark(parameter, "weights")
                if parameter is not None and parameter.grad is not None:
                    self._mark(parameter.grad, "gradients")
            for buffer in module._buffers.values():
                self._mark(buffer, "buffers")

    def before_optimizer(self, optimizer: Any) -> None:
        """The optimizer is about to step: gradients are complete."""
        own = "optimizer" if self._modules else "weights"
        for parameter in _parameters_of(optimizer):
            self._mark(parameter, own)
            if parameter.grad is not None:
                self._mark(parameter.grad, "gradients")
        self.sweep_modules()

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer has stepped: its state exists."""
        for tensor in tree_leaves(dict(optimizer.state)):
            if isinstance(tensor, torch.Tensor):
                self._mark(tensor, "optimizer")
        self.sweep_modules()  # a state may be a view of the weights; the weights win

    def _mark(self, tensor: torch.Tensor | None, part: str) -> None:
        if tensor is not None:
            for storage in storages_of(tensor):
                self._label(storage, part)


def _parameters_of(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
