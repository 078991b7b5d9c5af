"""Fully sharded data parallelism: by hand, then PyTorch's own.  (Zhao et al. 2023, arXiv 2304.11277)

It is ZeRO's third stage, seen from the module and not from the optimizer. One idea carries it: **gathering is
a function, and its derivative is known.** A rank holds a shard; ``whole = gather(shard)`` is what the module
computes with. If the loss depends on ``whole``, what is its gradient with respect to this rank's shard? Every
rank used the whole, so every rank has a gradient of all of it; those that belong to this shard must be added
up over ranks. That is a reduce_scatter. (A gather copies a number to N places; the derivative of a copy is a
sum.) So::

    forward    all_gather the shards          backward    reduce_scatter the gradients

`Gather` is that function, `HandSharded` a module around a module, and the optimizer is any optimizer over the
shards. Memory is saved because ``whole`` is not kept for backward: it is gathered again.

`shard_model` does the same with ``torch.distributed.fsdp.fully_shard`` (FSDP2), which adds what is needed at
speed: each parameter a DTensor of its own, gathers on a stream beside the computation, prefetch. Its choices
are fields of `Sharding`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from workshop.facts.checks import check_choice, check_keys, check_not_negative
from workshop.parallel.flat import Unit, all_gather, reduce_scatter
from workshop.parallel.materialise import (
    HeldParameter,
    Initialise,
    begin_alike,
    held_by,
    local_device,
    materialise,
    not_trained,
)
from workshop.parallel.wrapping import Wrap, units

# ---------------------------------------------------------------------------------------------------- by hand


class Gather(torch.autograd.Function):
    """A shard to the whole; backward: gradients of the whole to the mean gradient of the shard."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, owner: HandSharded) -> Tensor:
        """All ranks' shards, (shard,) each, end to end: (ranks * shard,)."""
        ctx.owner = owner
        return owner.gather(shard)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """From (ranks * shard,): everybody's gradient of this rank's shard, averaged, (shard,)."""
        ctx.owner.again = None  # the last use in this backward
        ranks = dist.get_world_size()
        mine = gradient.new_empty(gradient.numel() // ranks)
        reduce_scatter(mine, gradient.contiguous())
        return mine / ranks, None


class HandSharded(nn.Module):
    """A module of whose parameters each rank holds an Nth, in one flat parameter ``shard``.

    module: its parameters, but for those below ``outside``, become plain tensors that exist during forward.
    dtype: what is gathered and computed with. A cast before the wire is all that mixed precision takes:
        half the bytes of every gather, while ``shard`` and the optimizer stay in fp32.
    """

    def __init__(
        self, module: nn.Module, outside: tuple[nn.Module, ...] = (), dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype
        self.held: list[HeldParameter] = held_by(module, outside)
        begin_alike([one.parameter for one in self.held])
        self.unit = Unit(module, [one.parameter for one in self.held])
        mine = self.unit.weights.chunk(dist.get_world_size())[dist.get_rank()]
        self.shard = nn.Parameter(mine.clone())
        self.again: Tensor | None = None
        for one in self.held:
            for holder, name in one.places:
                del holder._parameters[name]
        del self.unit.weights, self.unit.shard, self.unit.master, self.unit.parameters

    def gather(self, shard: Tensor) -> Tensor:
        """All ranks' shards, end to end: (n,) on each gives (ranks * n,)."""
        whole = shard.new_empty(shard.numel() * dist.get_world_size())
        all_gather(whole, shard)
        return whole

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with weights that are borrowed for it."""
        whole = Gather.apply(self._cast(self.shard), self)
        borrowed = whole.untyped_storage()._cdata

        def pack(tensor: Tensor) -> Any:  # autograd wants to keep something for backward
            if tensor.untyped_storage()._cdata != borrowed:
                return tensor
            return tensor.storage_offset(), tensor.shape, tensor.stride()  # of weights only where they were

        def unpack(kept: Any) -> Tensor:
            if isinstance(kept, Tensor):
                return kept
            if self.again is None:
                self.again = self.gather(self._cast(self.shard.detach()))
            offset, shape, stride = kept
            return self.again.as_strided(shape, stride, offset)

        places = [(place, piece) for one, piece in zip(self.held, self.unit.pieces(whole), strict=True)
                  for place in one.places]  # fmt: skip
        for (holder, name), piece in places:
            setattr(holder, name, piece)
        try:
            with saved_tensors_hooks(pack, unpack):
                return self.module(*args, **kwargs)
        finally:
            for (holder, name), _ in places:
                delattr(holder, name)

    def _cast(self, shard: Tensor) -> Tensor:
        return shard if self.dtype is None else shard.to(self.dtype)


def shard_by_hand(model: nn.Module, wrap: Wrap = "layers", dtype: torch.dtype | None = None) -> nn.Module:
    """Put a `HandSharded` around every unit of a model; returns what stands for the model."""
    modules = units(model, wrap)
    places = {child: (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    inner: tuple[nn.Module, ...] = ()
    for module in modules[:-1]:
        parent, name = places[module]
        sharded = HandSharded(module, inner, dtype)
        setattr(parent, name, sharded)
        inner = (*inner, sharded)
    if not held_by(model, inner):
        return model
    return HandSharded(model, inner, dtype)


# -------------------------------------------------------------------------------------------------- PyTorch's

POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "fsdp-bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bf16": MixedPrecisionPolicy(),
}
"""Precision recipes of `workshop.facts.precision` that FSDP has."""


@dataclass(frozen=True)
class Sharding:
    """How to shard; `shard_model` takes these by keyword.

    wrap: which modules are units: see `workshop.parallel.wrapping.units`.
    precision: ``"fp32"``; ``"fsdp-bf16"``: bf16 on the wire and in the layers, fp32 shards, gradients summed
        in fp32; ``"bf16"``: all in bf16, which the model must be; or a MixedPrecisionPolicy.
    reshard: free a unit's weights after its forward (True: ZeRO 3; the root's stay, backward begins with
        them), keep them for backward (False: more memory, a third less traffic), or shard them over so many
        neighbouring ranks in between (a number: all_gather in backward within a node).
    offload: shards, gradients and optimizer state live in the host's memory.
    prefetch: gather so many units ahead, forward and backward; 0: as torch does by itself, the next one
        while this one computes.
    initialise: for a model on the meta device, see `materialise`.
    """

    wrap: Wrap = "layers"
    precision: str | MixedPrecisionPolicy = "fp32"
    reshard: bool | int = True
    offload: bool = False
    prefetch: int = 0
    initialise: Initialise | None = None

    def __post_init__(self) -> None:
        if isinstance(self.precision, str):
            check_choice("precision", self.precision, POLICIES)
        check_not_negative("prefetch", self.prefetch)

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """The precision as torch takes it."""
        return POLICIES[self.precision] if isinstance(self.precision, str) else self.precision

    def reshard_of(self, is_root: bool) -> bool | int:
        """``reshard_after_forward`` of a unit."""
        return False if is_root else self.reshard


def shard_model(model: nn.Module, mesh: DeviceMesh | None = None, **choices: Any) -> nn.Module:
    """Shard a model in place with FSDP2, beginning alike on all ranks, and return it.

    model: real, or on the meta device: then it is born unit by unit, and never whole anywhere.
    mesh: one axis to shard over (default: all ranks), or two for hybrid sharding: replicas over the first,
        shards over the second (HSDP).
    choices: fields of `Sharding`.

    Unlike ``fully_shard`` alone, which takes from every rank its own numbers, all ranks take those of the
    mesh's first rank. Compile layers before (``layer.compile()``), and let them recompute as you like. Make
    the optimizer after: the parameters become DTensors.

    Raises:
        ValueError: An unknown choice; ``precision="bf16"`` for a model that is not; a mesh of more than two
            axes.
    """
    check_keys("shard_model()", choices, [field.name for field in fields(Sharding)])
    how = Sharding(**choices)
    device = local_device()
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    _check(model, mesh, how)
    offload_policy: OffloadPolicy = (
        CPUOffloadPolicy(pin_memory=device.type != "cpu") if how.offload else OffloadPolicy()
    )
    _begin_alike(not_trained(model), mesh)
    modules = units(model, how.wrap)
    for position, module in enumerate(modules):
        held = held_by(module, outside=modules[:position])
        materialise(held, how.initialise, device)
        _begin_alike([one.parameter for one in held], mesh)
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=how.policy,
            offload_policy=offload_policy,
            reshard_after_forward=how.reshard_of(module is model),
        )
    if how.prefetch:
        _prefetch(modules, how.prefetch)
    return model


def _check(model: nn.Module, mesh: DeviceMesh, how: Sharding) -> None:
    if mesh.ndim > 2:
        raise ValueError(
            f"a mesh of axes {mesh.mesh_dim_names}: FSDP shards over one axis, or replicates over a first "
            'and shards over a second. Take those of the mesh: mesh["replicate", "shard"]'
        )
    wide = [name for name, p in model.named_parameters() if p.dtype != torch.bfloat16]
    if how.precision == "bf16" and wide:
        raise ValueError(
            f"precision='bf16' is a model in bf16, and {wide[0]} is not: call model.to(torch.bfloat16) "
            "first, or use 'fsdp-bf16', which keeps fp32 shards"
        )


def _begin_alike(tensors: list[Tensor], mesh: DeviceMesh) -> None:
    """The numbers of the mesh's first rank; of a tensor that is cut by another axis, the local part."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    for axis in range(mesh.ndim):
        begin_alike(local, mesh.get_group(axis))


def _prefetch(modules: list[nn.Module], ahead: int) -> None:
    """Each unit gathers the next ``ahead`` ones with itself: those after it, in backward those before."""
    *forwards, root = modules
    for order, name in ((forwards, "forward"), (forwards[::-1], "backward")):
        for position, module in enumerate([root, *order]):
            getattr(module, f"set_modules_to_{name}_prefetch")(order[position : position + ahead])
