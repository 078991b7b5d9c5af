"""A proposed layout, why each of its numbers was chosen, and what limits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.tabular import preformatted
from workshop.facts.units import format_bytes, format_seconds
from workshop.predict.case import Setting
from workshop.predict.interval import Interval, difference
from workshop.predict.layouts import RECOMPUTE, Layouts
from workshop.predict.time.step import limit_of

LIBRARY = "megatron"
"""Whose kernels decide what a proposed run keeps."""
AXES = ("tensor", "pipeline", "virtual_stages", "context", "expert", "micro_batch", "recompute", "zero")


@dataclass(frozen=True, repr=False)
class Proposal:
    """One layout of a plan. `reasons` maps an axis to why it has its value; `interval` is p10 to p90 of
    `seconds`.
    """

    run: Run
    seconds: float
    tokens_per_second: float
    mfu: float
    memory_bytes: int
    causes: dict[str, float]
    reasons: dict[str, str]
    interval: Interval

    @property
    def limit(self) -> str:
        """What its time goes to besides matrix products."""
        return limit_of(self.causes)

    @property
    def devices(self) -> int:
        """Devices it uses."""
        return self.run.layout.world_size

    def __str__(self) -> str:
        x = self.run.layout
        parts = [
            f"tensor {x.tensor}",
            f"pipeline {x.pipeline}" + (f" x {x.virtual_stages}" if x.virtual_stages > 1 else ""),
        ]
        parts += [
            f"{name} {size}" for name, size in (("context", x.context), ("expert", x.expert)) if size > 1
        ]
        parts += [
            f"data {x.data_parallel}",
            f"ZeRO-{x.zero}",
            f"micro-batch {self.run.micro_batch}",
            f"recompute {x.recompute}",
        ]
        low, high = map(format_seconds, self.interval)
        return (
            f"{', '.join(parts)}: {format_seconds(self.seconds)} a step ({low} to {high}), "
            f"MFU {self.mfu:.1%}, {format_bytes(self.memory_bytes)} a device"
        )

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Plan:
    """The best layouts found, in the order of `ranking`, and how many were looked at."""

    proposals: tuple[Proposal, ...]
    looked_at: int
    fitted: int

    @property
    def best(self) -> Proposal:
        """The plainest of the layouts that cannot be told apart from the fastest that fits."""
        return self.proposals[0]

    @property
    def tied(self) -> tuple[int, ...]:
        """Places (from 1) of the proposals that cannot be told apart from the first."""
        known = difference()
        return tuple(
            place
            for place, other in enumerate(self.proposals, 1)
            if place == 1 or not known.tells_apart(self.best.causes, other.causes)
        )

    @property
    def ties(self) -> tuple[str, ...]:
        """The sentence that says which proposals cannot be told apart; none where the first stands alone."""
        if len(self.tied) == 1:
            return ()
        places = ", ".join(map(str, self.tied[:-1]))
        why = "the differences between their times are smaller than the error of the prediction"
        return (f"{places} and {self.tied[-1]} cannot be told apart: {why}",)

    def __str__(self) -> str:
        lines = [f"{self.looked_at:,} layouts timed, {self.fitted:,} fit"]
        for place, proposal in enumerate(self.proposals, 1):
            lines += [f"{place}. {proposal}", f"   limited by {proposal.limit}"]
            if place == 1:
                lines += [f"   {reason}" for reason in proposal.reasons.values()]
        return "\n".join([*lines, *self.ties])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def run_of(setting: Setting, layouts: Layouts, i: int) -> Run:
    """Entry `i` as a run, on as many of the cluster's devices as it uses."""
    at = {
        a: int(getattr(layouts, a)[i])
        for a in (*AXES, "shard", "replicate", "sequence_parallel", "accumulation", "first_layers")
    }
    virtual = at["virtual_stages"]
    layout = Layout(
        replicate=at["replicate"],
        shard=at["shard"],
        zero=at["zero"],
        tensor=at["tensor"],
        sequence_parallel=bool(at["sequence_parallel"]),
        pipeline=at["pipeline"],
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        context=at["context"],
        expert=at["expert"],
        expert_tensor=1 if at["expert"] > 1 else 0,
        recompute=RECOMPUTE[at["recompute"]],
        precision=setting.precision.name,
        embedding_in_stages=at["first_layers"] >= 0,
    )
    used = replace(setting.cluster, num_devices=layout.world_size)
    return Run(
        setting.model,
        used,
        layout,
        at["micro_batch"],
        int(layouts.seq_len[i]),
        accumulation=at["accumulation"],
        implementation=implementation(LIBRARY),
    )


def reasons(layouts: Layouts, seconds: np.ndarray, i: int, why_not: Callable[[int], str]) -> dict[str, str]:
    """For each axis, the best that another value of it could reach; told: why a faster one is not first."""
    sentences: dict[str, str] = {}
    for axis in AXES:
        column = getattr(layouts, axis)
        mine = column[i]
        others = [x for x in np.unique(column) if x != mine]
        if not others:
            continue
        best = {x: int(np.argmin(np.where(column == x, seconds, np.inf))) for x in others}
        rival = min(best, key=lambda x: float(seconds[best[x]]))
        name, label = axis.replace("_", " "), (lambda x: RECOMPUTE[x]) if axis == "recompute" else str
        if not np.isfinite(seconds[best[rival]]):
            sentences[axis] = f"{name} {label(mine)}: with any other value nothing fits"
            continue
        unfit = [label(x) for x in others if not np.isfinite(seconds[best[x]]) and x < mine]
        slower = float(seconds[best[rival]] / seconds[i] - 1)
        compared = f"is {slower:.1%} slower"
        if slower < 0:
            compared = f"would be {-slower:.1%} faster, {why_not(best[rival])}"
        sentences[axis] = f"{name} {label(mine)}: the best with {label(rival)} {compared}" + (
            f"; with {', '.join(unfit)} nothing fits" if unfit else ""
        )
    return sentences
