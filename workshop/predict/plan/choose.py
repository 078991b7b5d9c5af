"""Choosing a layout: the fastest that fits, and why.

Given a model, a cluster and a global batch, `plan` times every candidate (`candidates`, `time.search`),
drops what does not surely fit (nine in ten, by the memory model's interval), and proposes the fastest few, in
an order that respects what is not known of them (`ranking`). Each comes with

- what **limits** it: where its time goes besides matrix products;
- why each **choice** was made: for every axis, the best that could be had with another value, and what it
  would cost: slower by so much, or out of memory.

So the plan can be argued with, and an axis fixed to something else (`SearchSpace`) to see what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from workshop.facts import catalogue
from workshop.facts.checks import check_not_huge, check_positive
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.facts.stack import Software, software
from workshop.facts.units import format_bytes
from workshop.predict.case import Setting
from workshop.predict.diloco import Islands
from workshop.predict.flops import forward_flops
from workshop.predict.interval import difference, time_interval
from workshop.predict.layouts import Layouts
from workshop.predict.memory.peaks import MemoryPrediction, predict_memory
from workshop.predict.plan.candidates import SearchSpace, candidates, fullest_bytes, upper_bytes
from workshop.predict.plan.proposal import LIBRARY, Plan, Proposal, reasons, run_of
from workshop.predict.plan.ranking import by_cause, ranked, uneven
from workshop.predict.time.rates import rates_for
from workshop.predict.time.search import search_seconds, search_steps

__all__ = ["Plan", "Proposal", "Search", "SearchSpace", "plan"]

CHECKED = 400  # layouts per proposal that the full memory model may be asked about


@dataclass(frozen=True)
class Search:
    """How to search.

    limits: what of each axis is searched. islands: the cluster is one of several islands joined by a slow
    link (`diloco`), and the batch is one island's. progress: called with (layouts timed, layouts to time).
    """

    top: int = 5
    recipe: str = "megatron-bf16"
    stack: str | Software = "megatron-core"
    limits: SearchSpace | None = None
    islands: Islands | None = None
    progress: Callable[[int, int], None] | None = None


def plan(
    model: ModelSpec | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    seq_len: int = 2048,
    search: Search | None = None,
) -> Plan:
    """The best layouts for training `model` on `cluster`, `global_batch` sequences of `seq_len` tokens a
    step.

    Raises ValueError if nothing fits, naming the least memory any layout would need.
    """
    search = search or Search()
    for name, value in (("top", search.top), ("global_batch", global_batch), ("seq_len", seq_len)):
        check_positive(name, value)
    check_not_huge("global_batch (in sequences)", global_batch)
    check_not_huge("seq_len", seq_len)
    setting = _setting(model, cluster, search)
    model, cluster = setting.model, setting.cluster
    limits = search.limits or default_space(seq_len)
    layouts = candidates(model, cluster, global_batch, seq_len, limits)
    if not len(layouts):
        if limits.tensor and all(seq_len % t for t in limits.tensor):
            raise ValueError(
                f"seq_len = {seq_len} does not divide by tensor = {', '.join(map(str, limits.tensor))}, and "
                f"sequence parallelism cuts it so; try {-(-seq_len // limits.tensor[0]) * limits.tensor[0]}"
            )
        raise ValueError(
            f"no layout of {model.name} on {cluster.num_devices} devices divides a batch of {global_batch}; "
            f"the nearest that would do is {cluster.num_devices}"
        )
    seconds = _timed(setting, layouts, search)
    looked = Looked(setting, layouts)
    picked = _pick(looked, seconds, search.top)
    if not picked:
        raise ValueError(
            f"{model.name}: no layout that seemed to fit {cluster.name} passes the full memory "
            "model; use more devices or recompute more"
        )
    why = [reasons(layouts, seconds, picked[0], _why_not_first(looked, picked[0]))] + [{}] * (len(picked) - 1)
    proposals = tuple(_proposal(looked, search.islands, i, why) for i, why in zip(picked, why, strict=True))
    return Plan(proposals, len(layouts), int(np.isfinite(seconds).sum()))


def _setting(model: ModelSpec | str, cluster: ClusterSpec | str, search: Search) -> Setting:
    model = model if isinstance(model, ModelSpec) else catalogue.model(model)
    cluster = cluster if isinstance(cluster, ClusterSpec) else catalogue.cluster(cluster)
    stack = software(search.stack) if isinstance(search.stack, str) else search.stack
    rates = rates_for(cluster.device)
    modules = ("core_attn",)  # what `run_of` proposes and the memory model counts
    return Setting(
        model,
        cluster,
        precision(search.recipe),
        rates,
        stack,
        recompute_modules=modules,
        vocab_multiple=implementation(LIBRARY).vocab_multiple,
    )


def default_space(seq_len: int) -> SearchSpace:
    """Context parallelism for long sequences only; everything else open."""
    return SearchSpace(context=tuple(c for c in (1, 2, 4, 8, 16, 32) if c == 1 or seq_len // c >= 4096))


def _timed(setting: Setting, layouts: Layouts, search: Search) -> np.ndarray:
    """Seconds of every layout that fits; infinity for the others."""
    how = implementation(LIBRARY)
    memory = fullest_bytes(setting, layouts, how) * upper_bytes(setting, layouts, how)
    room = setting.cluster.device.memory_bytes
    fits = np.flatnonzero(memory <= room)
    if not len(fits):
        raise ValueError(
            f"{setting.model.name} fits no layout of {setting.cluster.name}: the least any needs is "
            f"{format_bytes(int(memory.min()))}, to be sure, of {format_bytes(room)} a device; "
            "use more devices, or offload"
        )
    seconds = np.full(len(layouts), np.inf)
    pieces = np.array_split(fits, max(1, len(fits) // 200_000))
    done = 0
    for piece in pieces:
        seconds[piece] = search_seconds(setting, layouts.take(piece))
        done += len(piece)
        if search.progress:
            search.progress(done, len(fits))
    return seconds


@dataclass(frozen=True)
class Looked:
    """Candidates that the full memory model may be asked about, each once."""

    setting: Setting
    layouts: Layouts
    memories: dict[int, MemoryPrediction] = field(default_factory=dict)

    def run(self, i: int) -> Run:
        """Entry `i` as a run."""
        return run_of(self.setting, self.layouts, i)

    def memory(self, i: int) -> MemoryPrediction:
        """Its memory."""
        if i not in self.memories:
            self.memories[i] = predict_memory(self.run(i))
        return self.memories[i]

    def fits(self, i: int) -> bool:
        """Whether it passes the full memory model."""
        return self.memory(i).fits


def _pick(looked: Looked, seconds: np.ndarray, top: int) -> list[int]:
    """The first layouts in order that pass the full memory model, at most one for each way of cutting."""
    picked: list[int] = []
    seen: set[tuple[int, ...]] = set()
    order = ranked(looked.setting, looked.layouts, seconds, looked.run, looked.fits).order
    axes = ("tensor", "pipeline", "context", "expert", "recompute", "zero")
    for i in map(int, order[: CHECKED * top]):
        cut = tuple(int(getattr(looked.layouts, axis)[i]) for axis in axes)
        if cut not in seen and looked.fits(i):
            seen.add(cut)
            picked.append(i)
        if len(picked) == top:
            break
    return picked


def _why_not_first(looked: Looked, best: int) -> Callable[[int], str]:
    """What is to be said of a rival that is faster on paper."""
    setting, layouts = looked.setting, looked.layouts

    def why_not(rival: int) -> str:
        if not looked.fits(rival):
            return "but its memory does not fit"
        both = layouts.take(np.array([best, rival]))
        causes = by_cause(setting, both)
        why = [
            words
            for words, odd in (
                ("its stages are unequal", uneven(setting.model.num_layers, both)),
                ("devices idle", both.world_size < both.world_size.max()),
            )
            if odd[1]
        ]
        told_apart = abs(np.log(causes[0].sum() / causes[1].sum())) > difference().margin(*causes)
        known = "but its interval ends later" if told_apart else "less than is known of such a ratio"
        return "; ".join([known, " and ".join(why)]) if why else known

    return why_not


def _proposal(looked: Looked, islands: Islands | None, i: int, why: dict[str, str]) -> Proposal:
    """Entry `i` as a proposal."""
    setting, run, memory = looked.setting, looked.run(i), looked.memory(i)
    causes = search_steps(setting, looked.layouts.take(np.array([i]))).at(0)
    if islands:
        inner = sum(causes.values())
        causes["islands"] = islands.seconds_per_step(inner, setting.model.num_params) - inner
    seconds = sum(causes.values())
    rate = run.tokens_per_step / seconds
    flops = 3 * sum(forward_flops(run.model, run.seq_len).values())
    peak = setting.cluster.device.peak(setting.precision.dtype)
    return Proposal(
        run,
        seconds,
        rate,
        rate * flops / run.layout.world_size / peak,
        int(memory.device[memory.worst_stage]),
        causes,
        why,
        time_interval(run, setting.stack.name, seconds),
    )
