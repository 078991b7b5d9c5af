"""How a model is born that no rank could hold: on the meta device, then unit by unit.

``with torch.device("meta"): model = GPT(config)`` makes parameters that have a shape and no bytes. A rank
then gives bytes to one unit (a layer), initialises it, takes the numbers of rank 0 so that all ranks begin
alike, keeps its shard, and drops the rest before it turns to the next. The peak is all shards and one unit,
never the model. DeepSpeed's ``deepspeed.zero.Init`` and FSDP's deferred initialisation do the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from workshop.launch.device import SHARED_GPUS

Initialise = Callable[[nn.Module], None]
"""Sets the parameters and buffers that a module itself holds (not its children's)."""


@dataclass
class HeldParameter:
    """A parameter and every place that holds it: a tied weight has several."""

    parameter: nn.Parameter
    places: list[tuple[nn.Module, str]]

    def become(self, parameter: nn.Parameter) -> None:
        """Put another parameter in all its places."""
        for holder, name in self.places:
            holder._parameters[name] = parameter
        self.parameter = parameter


def held_by(module: nn.Module, outside: Iterable[nn.Module] = ()) -> list[HeldParameter]:
    """Trainable parameters of a module and its children, but for those below one of ``outside``."""
    not_ours = {id(parameter) for other in outside for parameter in other.parameters()}
    holders: dict[int, HeldParameter] = {}
    for holder in module.modules():
        for name, parameter in holder._parameters.items():
            if parameter is not None and parameter.requires_grad and id(parameter) not in not_ours:
                holders.setdefault(id(parameter), HeldParameter(parameter, [])).places.append((holder, name))
    return list(holders.values())


def not_trained(model: nn.Module) -> list[torch.Tensor]:
    """Frozen parameters and buffers: every rank keeps them whole.

    Raises:
        ValueError: One lies on the meta device: only trainable parameters are given first values here.
    """
    named = [*model.named_buffers(), *model.named_parameters()]
    frozen = {name: tensor for name, tensor in named if not tensor.requires_grad}
    for name, tensor in frozen.items():
        if tensor.is_meta:
            raise ValueError(
                f"{name} is not trained and lies on the meta device, without values: "
                "build the model on a real device, or give it its values first"
            )
    return list(frozen.values())


def local_device() -> torch.device:
    """Where this rank computes: its GPU, where there is one for each rank of the node or ranks share, else
    the CPU."""
    device = torch.accelerator.current_accelerator(check_available=True)
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device is None:
        return torch.device("cpu")
    if torch.accelerator.device_count() < local_ranks and not os.environ.get(SHARED_GPUS):
        return torch.device("cpu")
    return device


def materialise(
    held: Iterable[HeldParameter], initialise: Initialise | None = None, device: torch.device | None = None
) -> None:
    """Give bytes and first values to those of the parameters that lie on the meta device.

    ``initialise`` is called with every module that got some; without it, the module's ``reset_parameters``.

    Raises:
        ValueError: A module has neither.
    """
    holders: dict[nn.Module, None] = {}
    for one in held:
        if one.parameter.is_meta:
            empty = torch.empty_like(one.parameter, device=device or local_device())
            one.become(nn.Parameter(empty))
            holders |= dict.fromkeys(holder for holder, _ in one.places)
    for holder in holders:
        _first_values(holder, initialise)


def _first_values(holder: nn.Module, initialise: Initialise | None) -> None:
    fill = initialise if initialise is not None else getattr(type(holder), "reset_parameters", None)
    if fill is None:
        raise ValueError(
            f"{type(holder).__name__} lies on the meta device and has no reset_parameters(): "
            "give initialise=, a function that sets the parameters of one module"
        )
    with torch.no_grad():
        fill(holder)


def begin_alike(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Every rank takes the numbers of the group's first: seeded differently, they become one model."""
    for tensor in tensors:
        dist.broadcast(tensor.detach(), group=group, group_src=0)
