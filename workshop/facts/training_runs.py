"""Training runs that have happened: what was trained, on what, at which rate, and what it took.

A planner is tested by what already happened. `training_runs` gives the runs of ``data/training_runs.toml``,
each with its source. What a rate means must be said: BLOOM's 150 TFLOP/s count the layers that were computed
again (``counts="hardware"``), Llama 3's 400 do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from workshop.facts import catalogue
from workshop.facts.checks import check_choice
from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.tables import from_table, lookup, table

RATES = ("tflops", "tokens_per_second", "mfu", "rate_of")


@dataclass(frozen=True)
class TrainingRun:
    """One run as its authors told it; 0 or "" where they did not.

    ``tflops`` (10^12 FLOPs a second) and ``tokens_per_second`` are of one device, ``counts`` says whether
    they are "model" or "hardware" FLOPs, ``rate_of`` names a run whose share of the peak stands in for an
    untold one. ``params`` replaces ``model`` in an estimate that knows only a number of parameters. A cluster
    of one device: only device hours were told.

    Raises ValueError unless exactly one rate, and either a model or ``params``, is given.
    """

    name: str
    cluster: str
    tokens: float
    source: str
    model: str = ""
    params: float = 0.0
    seq_len: int = 0
    tflops: float = 0.0
    tokens_per_second: float = 0.0
    mfu: float = 0.0
    rate_of: str = ""
    counts: str = "model"
    days: float = 0.0
    device_hours: float = 0.0
    note: str = ""

    def __post_init__(self) -> None:
        check_choice(f"training run {self.name!r}: counts", self.counts, ("model", "hardware"))
        given = [rate for rate in RATES if getattr(self, rate)]
        if len(given) != 1:
            these = ", ".join(given) or "none"
            raise ValueError(
                f"training run {self.name!r} gives {these} as its rate; give one of {', '.join(RATES)}"
            )
        if bool(self.model) == bool(self.params):
            raise ValueError(f"training run {self.name!r}: give either model or params")
        if not (self.days or self.device_hours):
            raise ValueError(f"training run {self.name!r} tells neither days nor device_hours")

    @property
    def spec(self) -> ModelSpec | None:
        """The model's shape; None for an estimate of so many parameters."""
        return catalogue.model(self.model) if self.model else None

    @property
    def hardware(self) -> ClusterSpec:
        """The cluster it ran on."""
        return catalogue.cluster(self.cluster)


@cache
def training_runs() -> dict[str, TrainingRun]:
    """All known runs by name, in the order of the file."""
    return {
        name: from_table(TrainingRun, {"name": name, **entry}, f"training run {name!r}")
        for name, entry in table("training_runs").items()
    }


def training_run(name: str) -> TrainingRun:
    """A known run, e.g. ``training_run("bloom-176b")``; an unknown name gets its nearest."""
    return lookup(name, training_runs(), "training run")
