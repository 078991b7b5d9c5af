"""The choices of a run that are names rather than numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision, precision
from workshop.facts.run import Adapter, Run


@dataclass(frozen=True)
class Policy:
    """What is recomputed (``name`` and ``modules`` as in ``Layout``) and what is trained.

    ``trained`` names the linear maps that get an adapter; ``None`` means that everything is trained.
    """

    name: str = "none"
    modules: tuple[str, ...] = ()
    trained: tuple[str, ...] | None = None
    adapter: str = ""
    quantized: bool = False


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


def recipe_of(run: Run) -> Recipe:
    """The choices of a run that are names rather than numbers."""
    layout = run.layout
    # A library that can drop out keeps masks only for a model that is trained so.
    how = replace(run.implementation, dropout=run.implementation.dropout and run.model.dropout)
    return Recipe(
        run.model,
        how,
        precision(layout.precision),
        policy_of(run),
        layout.schedule,
        run.optimizer,
        run.adapter,
        layout.recompute_every,
        layout.recompute_layers,
        layout.offload,
        run.target_len,
    )


def policy_of(run: Run) -> Policy:
    """What is recomputed, and which linear maps are trained (a frozen one need not keep its input)."""
    trained = None
    if run.adapter is not None:
        trained = tuple(
            linear.name
            for kind in set(run.model.layer_kinds())
            for linear in run.adapter.targeted(run.model, kind)
        )
    return Policy(
        run.layout.recompute,
        run.layout.recompute_modules,
        trained,
        run.adapter.method if run.adapter else "",
        bool(run.adapter and run.adapter.base_bits < 16),
    )
