"""The state of ZeRO by hand, by parameter name, as DDP and FSDP2 save theirs: each can read the other's.

A rank of `parallel.zero` keeps its Nth of flat tensors, cut without a look at where a parameter ends: that
cut means nothing to another number of ranks. So a checkpoint is written from whole tensors. They exist on
every rank for a moment, one copy of everything: for a model that only fits cut, use FSDP2 or DeepSpeed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workshop.parallel.flat import Unit, all_gather


@torch.no_grad()
def whole_state(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """``model``: every weight; ``optimizer``: moments by name; ``master``: fp32 weights of a bf16 model."""
    names = _names(model)
    with optimizer.gathered():
        state: dict[str, Any] = {"model": {k: v.clone() for k, v in model.state_dict().items()}}
    state["optimizer"], state["master"] = {}, {}
    for unit, inner in zip(optimizer.units, optimizer.inner, strict=True):
        kept = _moments(unit, inner)
        flat = {key: _whole(unit, value) for key, value in kept.items() if value.ndim}
        pieces = {key: unit.pieces(value) for key, value in flat.items()}
        for index, parameter in enumerate(unit.parameters):
            own = {key: cut[index].clone() for key, cut in pieces.items()}
            scalars = {key: value.clone() for key, value in kept.items() if not value.ndim}
            state["optimizer"][names[parameter]] = {**own, **scalars}
        if unit.master.dtype != unit.weights.dtype:
            master = unit.pieces(_whole(unit, unit.master.detach()))
            state["master"] |= {names[p]: m.clone() for p, m in zip(unit.parameters, master, strict=True)}
    return state


@torch.no_grad()
def load_whole_state(model: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    """Every rank takes its part of what `whole_state` made, on any number of ranks."""
    names = _names(model)
    with optimizer.gathered():
        model.load_state_dict(state["model"])
        for unit in optimizer.units:  # stage 3 keeps its shard apart from the whole
            if unit.shard is not unit.weights:
                unit.shard.copy_(optimizer.part(unit.weights))
    for unit, inner in zip(optimizer.units, optimizer.inner, strict=True):
        if unit.master.dtype != unit.weights.dtype:
            unit.master.copy_(_part(unit, optimizer, [state["master"][names[p]] for p in unit.parameters]))
        saved = [state["optimizer"][names[p]] for p in unit.parameters]
        for key, value in _moments(unit, inner).items():
            entries = [entry[key] for entry in saved]
            value.copy_(_part(unit, optimizer, entries) if value.ndim else entries[0])


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _moments(unit: Unit, inner: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps for a unit; made now, by an empty step, if no step has been taken."""
    if not inner.state[unit.master]:
        group, kept = inner.param_groups[0], unit.master.detach().clone()
        rate, group["lr"] = group["lr"], 0.0
        unit.master.grad = torch.zeros_like(unit.master)
        inner.step()
        unit.master.grad, group["lr"] = None, rate
        unit.master.copy_(kept)
        for value in inner.state[unit.master].values():
            value.zero_()
    return {k: v for k, v in inner.state[unit.master].items() if isinstance(v, Tensor)}


def _whole(unit: Unit, part: Tensor) -> Tensor:
    """A flat tensor of the whole unit from this rank's part of it."""
    if part.numel() == unit.weights.numel():
        return part
    whole = part.new_empty(unit.weights.numel())
    all_gather(whole, part)
    return whole


def _part(unit: Unit, optimizer: Any, pieces: list[Tensor]) -> Tensor:
    """This rank's part of a unit's pieces, put end to end."""
    whole = pieces[0].new_zeros(unit.weights.numel())
    for target, piece in zip(unit.pieces(whole), pieces, strict=True):
        target.copy_(piece)
    return optimizer.part(whole)
