"""Choosing a layout: the fastest that fits, and why.

Given a model, a cluster and a global batch, `plan` times every candidate (`plan_candidates`, `search`), drops what
cannot fit, and proposes the fastest few. The proposals are checked by the full memory model, and each comes with

- what **limits** it: where its time goes besides matrix products;
- why each **choice** was made: for every axis, the best that could be had with another value, and what it would cost:
  slower by so much, or out of memory.

So the plan can be argued with, and an axis fixed to something else (`Limits`) to see what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workshop.facts import catalogue
from workshop.facts.checks import check_positive
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.units import format_bytes, format_seconds

from .flops import forward_flops
from .grid import RECOMPUTE, Grid
from .memory import predict_memory
from .plan_candidates import Limits, candidates, memory_guess
from .rates import Software, rates_for, software
from .search import search_seconds, search_steps
from .step import limit_of

AXES = ("tensor", "pipeline", "virtual_stages", "context", "expert", "micro_batch", "recompute", "zero")
MARGIN = 0.92  # share of the device's memory that the first look may fill
SLOWER = 1.6  # proposals are looked for among layouts at most so much slower than the fastest


@dataclass(frozen=True)
class Proposal:
    """One layout of a plan. `reasons` maps an axis to why it has its value."""

    run: Run
    seconds: float
    tokens_per_second: float
    mfu: float
    memory_bytes: int
    causes: dict[str, float]
    reasons: dict[str, str]

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
        return (
            f"{', '.join(parts)}: {format_seconds(self.seconds)} a step, MFU {self.mfu:.1%}, "
            f"{format_bytes(self.memory_bytes)} a device"
        )


@dataclass(frozen=True)
class Plan:
    """The best layouts found, fastest first, and how many were looked at."""

    proposals: tuple[Proposal, ...]
    looked_at: int
    fitted: int

    @property
    def best(self) -> Proposal:
        """The fastest layout that fits."""
        return self.proposals[0]

    def __str__(self) -> str:
        lines = [f"{self.looked_at:,} layouts timed, {self.fitted:,} fit"]
        for place, proposal in enumerate(self.proposals, 1):
            lines += [f"{place}. {proposal}", f"   limited by {proposal.limit}"]
            if place == 1:
                lines += [f"   {reason}" for reason in proposal.reasons.values()]
        return "\n".join(lines)


def plan(
    model: ModelSpec | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    *,
    seq_len: int = 2048,
    top: int = 5,
    recipe: str = "megatron-bf16",
    stack: str | Software = "megatron-core",
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """The best layouts for training `model` on `cluster` with `global_batch` sequences of `seq_len` tokens a step.

    recipe: a precision of the catalogue. stack: a training stack (`rates`). progress: called with (done, all).
    Raises ValueError if nothing fits, naming the least memory any layout would need.
    """
    model = catalogue.model(model) if isinstance(model, str) else model
    cluster = catalogue.cluster(cluster) if isinstance(cluster, str) else cluster
    for name, value in (("global_batch", global_batch), ("seq_len", seq_len), ("top", top)):
        check_positive(name, value)
    chosen = software(stack) if isinstance(stack, str) else stack
    kind, rates = precision(recipe), rates_for(cluster.device)
    grid = candidates(model, cluster, global_batch, seq_len, limits or default_limits(cluster, seq_len))
    if not len(grid):
        raise ValueError(
            f"no layout of {model.name} on {cluster.num_devices} devices divides a batch of {global_batch}; "
            f"the nearest that would do is {max(cluster.num_devices, 1)}"
        )
    memory = memory_guess(model, grid, seq_len, kind, chosen)
    seconds = np.full(len(grid), np.inf)
    fits = np.flatnonzero(memory <= MARGIN * cluster.device.memory_bytes)
    if not len(fits):
        raise ValueError(
            f"{model.name} fits no layout of {cluster.name}: the least any needs is "
            f"{format_bytes(int(memory.min()))} of {format_bytes(cluster.device.memory_bytes)} a device; "
            "use more devices, or offload"
        )
    seconds[fits] = search_seconds(model, cluster, grid.take(fits), seq_len, kind, rates, chosen)
    if progress:
        progress(len(grid), len(grid))
    picked = _pick(model, cluster, grid, seconds, seq_len, recipe, top)
    if not picked:
        raise ValueError(
            f"{model.name}: none of the {len(fits)} layouts that seemed to fit {cluster.name} passes the full "
            "memory model; use more devices or recompute more"
        )
    return Plan(
        tuple(
            _proposal(
                model,
                cluster,
                grid,
                seconds,
                i,
                run,
                bytes_,
                chosen,
                rates_name=rates.name,
                reasoned=place == 0,
            )
            for place, (i, run, bytes_) in enumerate(picked)
        ),
        len(grid),
        len(fits),
    )


def default_limits(cluster: ClusterSpec, seq_len: int) -> Limits:
    """Context parallelism for long sequences only; everything else open."""
    return Limits(context=tuple(c for c in (1, 2, 4, 8, 16, 32) if c == 1 or seq_len // c >= 4096))


def _pick(
    model: ModelSpec,
    cluster: ClusterSpec,
    grid: Grid,
    seconds: np.ndarray,
    seq_len: int,
    recipe: str,
    top: int,
) -> list[tuple[int, Run, int]]:
    """The fastest layouts that pass the full memory model, at most one for each way of cutting."""
    found: list[tuple[int, Run, int]] = []
    seen: set[tuple[int, ...]] = set()
    order = np.argsort(seconds)
    for i in order[: 400 * top]:
        if not np.isfinite(seconds[i]) or (seconds[i] > SLOWER * seconds[order[0]] and found):
            break
        cut = tuple(
            int(getattr(grid, a)[i]) for a in ("tensor", "pipeline", "context", "expert", "recompute", "zero")
        )
        if cut in seen:
            continue
        run = run_of(model, cluster, grid, int(i), seq_len, recipe)
        memory = predict_memory(run)
        if memory.fits:
            seen.add(cut)
            found.append((int(i), run, int(memory.device[memory.worst_stage])))
        if len(found) == top:
            break
    return found


def run_of(model: ModelSpec, cluster: ClusterSpec, grid: Grid, i: int, seq_len: int, recipe: str) -> Run:
    """Row `i` of a grid as a run, on as many of the cluster's devices as it uses."""
    at = {
        a: int(getattr(grid, a)[i])
        for a in (*AXES, "shard", "replicate", "sequence_parallel", "accumulation")
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
        precision=recipe,
    )
    used = replace(cluster, num_devices=layout.world_size)
    return Run(
        model,
        used,
        layout,
        at["micro_batch"],
        seq_len,
        accumulation=at["accumulation"],
        implementation=implementation("megatron"),
    )


def _proposal(
    model: ModelSpec,
    cluster: ClusterSpec,
    grid: Grid,
    seconds: np.ndarray,
    i: int,
    run: Run,
    memory: int,
    stack: Software,
    rates_name: str,
    reasoned: bool,
) -> Proposal:
    arrays = search_steps(
        model,
        cluster,
        grid.take(np.array([i])),
        run.seq_len,
        precision(run.layout.precision),
        rates_for(cluster.device),
        stack,
    )
    rate = run.tokens_per_step / seconds[i]
    flops = 3 * sum(forward_flops(model, run.seq_len).values())
    peak = cluster.device.peak(precision(run.layout.precision).dtype)
    return Proposal(
        run,
        float(seconds[i]),
        float(rate),
        float(rate * flops / run.layout.world_size / peak),
        memory,
        arrays.at(0),
        reasons(grid, seconds, i) if reasoned else {},
    )


def reasons(grid: Grid, seconds: np.ndarray, i: int) -> dict[str, str]:
    """For each axis, the best that another value of it could reach."""
    found: dict[str, str] = {}
    for axis in AXES:
        column = getattr(grid, axis)
        mine = column[i]
        others = [x for x in np.unique(column) if x != mine]
        if not others:
            continue
        best = {x: float(seconds[column == x].min()) for x in others}
        rival = min(best, key=lambda x: best[x])
        name, label = axis.replace("_", " "), (lambda x: RECOMPUTE[x]) if axis == "recompute" else str
        if not np.isfinite(best[rival]):
            found[axis] = f"{name} {label(mine)}: with any other value nothing fits"
            continue
        unfit = [label(x) for x in others if not np.isfinite(best[x]) and x < mine]
        found[axis] = (
            f"{name} {label(mine)}: the best with {label(rival)} is {best[rival] / seconds[i] - 1:.1%} slower"
            + (f"; with {', '.join(unfit)} nothing fits" if unfit else "")
        )
    return found
