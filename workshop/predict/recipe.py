"""The choices of a run that are names rather than numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.facts.run import Adapter
from workshop.predict.activations import Policy


@dataclass(frozen=True)
class Recipe:
    """What :class:`workshop.predict.cuts.Cuts` leaves out; one recipe goes with many cuts."""

    model: ModelSpec
    how: Implementation
    numbers: Precision
    policy: Policy = field(default_factory=Policy)
    schedule: str = "1f1b"
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    recompute_every: int = 1
    recompute_layers: int = 0
    offload: str = "none"
    target_len: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers the model has."""
        return tuple(dict.fromkeys(self.model.layer_kinds()))
