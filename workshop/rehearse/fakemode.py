"""Fake tensors, remembered: the same operator on the same shapes gives the same shapes.

`FakeTensorMode` works out the shape of every result and keeps a cache of its own, but building that cache's
key takes longer than many real kernels: it must be right for symbolic shapes, sparse tensors and traced
graphs. A training step needs none of that. It calls a few hundred different operators some hundred thousand
times, layer after layer, micro-batch after micro-batch. So plain cases are remembered here with a small key
(operator, default dtype, and for each tensor its shape, strides, offset and dtype), and everything else goes
the usual way. The answers are the usual way's own: a result is remembered only after `FakeTensorMode` has
produced it once.

A result is one of three: a fresh tensor, a view of an argument (same storage), or an argument itself.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_DEVICE = torch.ops.prim.device.default
_MISSING = object()
_GROUPED = torch.ops.aten._grouped_mm.default
_CPU = torch.device("cpu")
_is_available = torch.cuda.is_available  # `workshop.rehearse.cuda` puts another answer in its place


@functools.cache
def _no_cuda() -> bool:
    """Asked when it is first wanted, not at import: no fork that is made after the question can use CUDA."""
    return not _is_available()


def told_to_cpp(tensor: FakeTensor) -> torch.device:
    """A tensor's device, if this build of torch has its guards and streams; see `workshop.rehearse.cuda`."""
    device = tensor.fake_device
    return _CPU if device.type == "cuda" and _no_cuda() else device


class _NotPlainError(Exception):
    """This call is not remembered."""


class RememberingFakeMode(FakeTensorMode):
    """A `FakeTensorMode` for concrete shapes that answers repeated calls from memory."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._memory: dict[Any, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """Values are kept by `workshop.rehearse.known`, for tensors of more than one element too."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return told_to_cpp(args[0])
        kwargs = _on_one_cpu(kwargs) if kwargs else {}
        if func.namespace != "aten":
            return self.dispatch(func, types, args, kwargs)
        if func is _GROUPED and args[0].dtype is not torch.bfloat16:
            return args[0].new_empty(
                _grouped_shape(args[0], args[1], kwargs.get("offs", args[2] if len(args) > 2 else None))
            )
        tensors = _Arguments()
        try:
            key = (func, torch.get_default_dtype(), _key(args, tensors), _key(tuple(kwargs.items()), tensors))
            remembered = self._memory.get(key, _MISSING)
        except (_NotPlainError, TypeError):  # TypeError: an argument that has no hash
            return self.dispatch(func, types, args, kwargs)
        if remembered is not _MISSING and remembered is not None:
            return _rebuild(self, remembered, tensors)
        before = [(tensor.shape, tensor.stride()) for tensor in tensors]
        out = self.dispatch(func, types, args, kwargs)
        if remembered is _MISSING:
            same = tensors and before == [(tensor.shape, tensor.stride()) for tensor in tensors]
            self._memory[key] = _recipe(out, tensors) if same else None
        return out


def _grouped_shape(first: Any, second: Any, offsets: Any) -> tuple[int, ...]:
    """What `grouped_mm` returns. torch's rule for shapes takes bf16 only; its kernel for CPUs takes all."""
    if first.dim() == second.dim():
        groups = offsets.shape[0] if first.dim() == 2 else first.shape[0]
        return (groups, first.shape[-2], second.shape[-1])
    return (first.shape[-2], second.shape[-1])


def _on_one_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """`cpu:0`, as HF's Trainer and Accelerate write it, is the `cpu` of every other tensor."""
    device = kwargs.get("device")
    if device is None or device.type != "cpu" or device.index is None:
        return kwargs
    return {**kwargs, "device": _CPU}


class _Arguments(list[FakeTensor]):
    """A call's tensors in order. An optimizer's call has a thousand: storages are looked up, not compared."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, int] = {}

    def place(self) -> int:
        """Whose storage the newest tensor shares, -1 for nobody's: results could alias either of the two."""
        newest = len(self) - 1
        first = self._first.setdefault(self[newest].untyped_storage()._cdata, newest)
        return first if first < newest else -1


def _key(value: Any, tensors: _Arguments) -> Any:
    """What an argument contributes to the key; its tensors are collected in order."""
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None or value.layout != torch.strided:
            raise _NotPlainError
        tensors.append(value)
        return (
            value.shape,
            value.stride(),
            value.storage_offset(),
            value.dtype,
            value.fake_device,
            tensors.place(),
        )
    if kind is tuple or kind is list:
        return tuple([_key(item, tensors) for item in value])
    if issubclass(kind, torch.Tensor):
        raise _NotPlainError
    return (kind, value)


def _recipe(out: Any, tensors: list[FakeTensor]) -> Any:
    """How to make `out` again from `tensors`, or None if it is not plain."""
    if out is None:
        return ("nothing",)
    if isinstance(out, (tuple, list)):
        parts = [_recipe(item, tensors) for item in out]
        return None if None in parts else ("several", list if type(out) is list else tuple, parts)
    if type(out) is not FakeTensor or out.constant is not None or out.layout != torch.strided:
        return None
    for number, tensor in enumerate(tensors):
        if out is tensor:
            return ("argument", number)
    shape, strides, storage = out.shape, out.stride(), out.untyped_storage()
    for number, tensor in enumerate(tensors):
        if tensor.untyped_storage()._cdata == storage._cdata:
            if out.dtype != tensor.dtype:
                return None
            return ("view", number, shape, strides, out.storage_offset())
    extent = (
        1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if out.numel()
        else 0
    )
    if out.storage_offset() or storage.nbytes() != extent * out.element_size():
        return None
    return ("fresh", shape, strides, out.dtype, out.fake_device)


def _rebuild(mode: FakeTensorMode, recipe: Any, tensors: list[FakeTensor]) -> Any:
    """A new result after the recipe."""
    kind = recipe[0]
    if kind == "fresh":
        _, shape, strides, dtype, device = recipe
        return FakeTensor(mode, torch.empty_strided(shape, strides, dtype=dtype, device="meta"), device)
    if kind == "view":
        _, number, shape, strides, offset = recipe
        source = tensors[number]
        elem = torch.empty(0, dtype=source.dtype, device="meta")
        with in_kernel_invocation_manager(mode):
            elem.set_(source.untyped_storage(), offset, shape, strides)
        return FakeTensor(mode, elem, source.fake_device)
    if kind == "argument":
        return tensors[recipe[1]]
    if kind == "several":
        return recipe[1](_rebuild(mode, part, tensors) for part in recipe[2])
    return None
