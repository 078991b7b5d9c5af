"""The bubble and the memory of each pipeline schedule, as formulas, for free links.

p ranks, m micro-batches, v chunks per rank. F, B and W are the durations of a **stage** (with v chunks per
rank a stage is 1/(p v) of the model): forward, whole backward, and the weight part of the backward. Bubble:

================  =======================  ==================================================================
schedule          bubble                   source
================  =======================  ==================================================================
naive             m (p-1)(F + B)           nothing ever overlaps
gpipe, 1f1b       (p-1)(F + B)             Narayanan et al., arXiv 2104.04473, section 2.2
interleaved,      (p-1)(F + B)             the same, of stages that are v times thinner
breadth-first
zb-h1             (p-1)(F + B - 2W)        Qi et al., arXiv 2401.10241, table 2
zb-h2, zbv        (p-1)(F + B - 3W)        none when forward = input gradient = weight gradient
dualpipe(v)       (p/2-1)(F&B + B - 3W)    DeepSeek-V3, arXiv 2412.19437; p counts *stages*
================  =======================  ==================================================================

All are one formula. While the pipeline fills and drains, the slowest rank waits once for what each other
rank must do first, x = a F + b B - c W (`WAITS`):

    bubble = (sum of x over all ranks - x of the slowest) / chunks per rank       naive: m times that
                                                                                  dualpipe: half the sum

which needs no equal stages. Activations at the fullest rank, in stage activations: 1 (naive), m (gpipe),
min(p, m) (1f1b, zb-h1), 2p - 1 (zb-h2), 2p half-size ones (zbv), p + 1 (dualpipe), p (v + 1) - 1 thin ones
(interleaved), m v (breadth-first).

For equal stages they hold exactly for the orders of this package when W <= F <= B - W (dualpipe: F = B - W;
zbv: F = W = B - W); `play` answers beyond that, and tests bound how far it is. The table of published
formulas writes ZB2P's and ZBV's bubble as 0 under that very assumption.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from workshop.facts.layout import SCHEDULES
from workshop.facts.model import ModelSpec
from workshop.predict.layouts import Layouts
from workshop.predict.pipeline.simulate import Durations

Numbers = Any  # a number or an array of them; all arguments broadcast

CHUNKED = ("interleaved", "breadth-first")


class Wait(NamedTuple):
    """What filling and draining waits for at every other rank: forward, backward and weight part, so often
    each.
    """

    forward: float = 1.0
    backward: float = 1.0
    weight: float = 0.0


WAITS = {
    "naive": Wait(),
    "gpipe": Wait(),
    "1f1b": Wait(),
    "interleaved": Wait(),
    "breadth-first": Wait(),
    "zb-h1": Wait(weight=2),
    "zb-h2": Wait(weight=3),
    "zbv": Wait(weight=3),
    "dualpipe": Wait(0, 1, 3),  # and the overlapped pair, F + B where nothing is gained
    "dualpipev": Wait(0, 1, 3),
}
PAIRED = ("dualpipe", "dualpipev")


def closed_bubble(schedule: str, ranks: Numbers, micro_batches: Numbers, durations: Durations) -> np.ndarray:
    """Seconds that the most patient rank waits; `durations` of one *stage* are numbers or arrays."""
    p, m = np.asarray(ranks), np.asarray(micro_batches)
    f, b = np.asarray(durations.forward, float), np.asarray(durations.backward, float)
    w = b / 2 if durations.weight is None else np.asarray(durations.weight, float)
    pair = f + b if durations.overlapped is None else np.asarray(durations.overlapped, float)
    wait = WAITS[schedule]
    each = wait.forward * f + wait.backward * b - wait.weight * w + (pair if schedule in PAIRED else 0.0)
    if schedule in ("zb-h2", "zbv"):
        each = np.maximum(each, 0.0)
    others = p / 2 - 1 if schedule == "dualpipe" else p - 1  # dualpipev: p ranks are 2p stages
    return np.asarray(others * each * (m if schedule == "naive" else 1), dtype=float)


_FORWARD, _BACKWARD, _WEIGHT = (
    np.array([WAITS[name][i] + (1 if name in PAIRED and i < 2 else 0) for name in SCHEDULES])
    for i in range(3)
)


def waited_for(
    schedule: np.ndarray, forward: np.ndarray, backward: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Seconds for which filling and draining waits, for a layer or a stage of these durations.

    Args:
        schedule: positions in `facts.layout.SCHEDULES`.
        forward, backward, weight: seconds; ``weight`` is the part of ``backward`` that nobody waits for.
    """
    kept = _WEIGHT[schedule]
    if not kept.any():
        return forward + backward
    return np.maximum(_FORWARD[schedule] * forward + _BACKWARD[schedule] * backward - kept * weight, 0.0)


NAIVE, ZBV, DUALPIPE = (SCHEDULES.index(name) for name in ("naive", "zbv", "dualpipe"))


def filling_seconds(
    schedule: np.ndarray, total: np.ndarray, own: np.ndarray, micro_batches: np.ndarray, chunks: np.ndarray
) -> np.ndarray:
    """The bubble of uneven stages.

    Args:
        schedule: positions in `facts.layout.SCHEDULES`.
        total, own: `waited_for` of the whole model, and of what the slowest rank holds.
        chunks: of a rank; those of a folded schedule are counted here.
    """
    if (schedule == DUALPIPE).any():
        total = np.where(schedule == DUALPIPE, total / 2, total)
    bubble = np.maximum(total - own, 0.0) / np.where(schedule == ZBV, 2, chunks)
    if (schedule == NAIVE).any():
        bubble = np.where(schedule == NAIVE, micro_batches * bubble, bubble)
    return bubble


def impossible(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> list[str]:
    """Why a schedule cannot run with these numbers, each with what would do; empty when it can."""
    if ranks == 1:
        return []
    reasons = []
    if chunks > 1 and schedule not in CHUNKED:
        reasons.append(
            f"{schedule} has a fixed placement and takes no chunks, but there are {chunks} virtual stages; "
            f"use {' or '.join(CHUNKED)}"
        )
    if schedule == "interleaved" and micro_batches % ranks:
        near = -(-micro_batches // ranks) * ranks
        reasons.append(
            f"interleaved sends micro-batches round in groups of {ranks} (the stages), and {micro_batches} "
            f"is no multiple of it; try {near}"
        )
    if schedule == "dualpipe" and (ranks % 2 or micro_batches % 2):
        reasons.append(
            f"dualpipe feeds the pipeline from both ends and needs an even number of stages and "
            f"micro-batches, not {ranks} and {micro_batches}"
        )
    least = {"zb-h2": 2 * ranks - 1, "zbv": 2 * ranks, "dualpipe": 2 * ranks}.get(schedule, 1)
    if micro_batches < least:
        reasons.append(
            f"{schedule} on {ranks} stages needs at least {least} micro-batches, not {micro_batches}; "
            "accumulate more, or use zb-h1 or 1f1b"
        )
    return reasons


def closed_in_flight(
    schedule: str, ranks: Numbers, micro_batches: Numbers, chunks: Numbers = 1
) -> np.ndarray:
    """Stage activations alive at once on the fullest rank (a stage is 1/p, 1/(2p) or 1/(p v) of the
    model).
    """
    p, m, v = np.broadcast_arrays(np.asarray(ranks), np.asarray(micro_batches), np.asarray(chunks))
    formulas = {
        "naive": lambda: np.ones_like(p),
        "gpipe": lambda: m,
        "1f1b": lambda: np.minimum(p, m),
        "interleaved": lambda: np.minimum(p * (v + 1) - 1, m * v),
        "breadth-first": lambda: m * v,
        "zb-h1": lambda: np.minimum(p, m),
        "zb-h2": lambda: 2 * p - 1,
        "zbv": lambda: 2 * p,
        "dualpipe": lambda: p + 1,
        "dualpipev": lambda: 2 * p + 1,
    }
    return np.asarray(formulas[schedule]())


class Head(NamedTuple):
    """Seconds of the output head and the loss for one micro-batch: forward, backward, and of it the weight's
    gradient.
    """

    forward: np.ndarray
    backward: np.ndarray
    weight: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Forward and backward."""
        return self.forward + self.backward


class RankLayers(NamedTuple):
    """Layers of the first rank of a pipeline, of the fullest between, and of the last; and what part of the
    output head the first and the last have. Folded pipelines end where they begin.
    """

    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    head_first: Any = 0.0
    head_last: Any = 1.0


def rank_layers(model: ModelSpec, layouts: Layouts) -> RankLayers:
    """Layers by rank, cut as `facts.stages.chunks` does: what does not divide goes one each to the first.

    A rank of DualPipe works on two stages, each for half of the micro-batches: it counts half of both.
    """
    p, v = layouts.pipeline, layouts.virtual_stages
    zbv, dual = layouts.schedule == ZBV, layouts.schedule == DUALPIPE
    is_folded = bool((zbv | dual).any())
    total = np.where(zbv, 2 * p, p * v) if is_folded else p * v
    given, taken = layouts.first_layers >= 0, (layouts.last_layers >= 0) & (total > 1)
    if not (given.any() or taken.any()):
        size, extra = np.divmod(model.num_layers, total)
        before: Any = 0
        first_chunk, last_chunk = size + (extra > 0), size
    else:
        free = (
            model.num_layers
            - np.where(given, layouts.first_layers, 0)
            - np.where(taken, layouts.last_layers, 0)
        )
        size, extra = np.divmod(free, np.maximum(total - given - taken, 1))
        before = given.astype(int)
        first_chunk = np.where(given, layouts.first_layers, size + (extra > 0))
        last_chunk = np.where(taken, layouts.last_layers, size)
    # Longer chunks have the numbers before .. before + extra - 1; rank r has the numbers r, r + p, r + 2p ...
    first = first_chunk + (v - 1) * size + np.maximum(extra + before - 1, 0) // p
    last = last_chunk + (v - 1) * size + (extra + before) // p
    middle = np.where(p > 2, v * size + np.maximum(before + extra - 2, -1) // p + 1, 0)
    last = np.where(p > 1, last, first)
    if not is_folded:
        return RankLayers(first, middle, last)
    longer = before + extra
    folded = first_chunk + last_chunk
    inner = 2 * size + np.where(longer > total // 2, 2, np.where(longer > 1, 1, 0))
    half = np.where(dual, 0.5, 1.0)
    many = p > np.where(dual, 2, 1)
    return RankLayers(
        np.where(zbv | dual, folded * half, first),
        np.where(zbv | dual, np.where(many, inner * half, 0), middle),
        np.where(zbv | dual, 0, last),
        np.where(zbv | dual, half, 0.0),
        np.where(zbv | dual, 0.0, 1.0),
    )


def fullest_stage(model: ModelSpec, layouts: Layouts, *, balanced: bool = False) -> np.ndarray:
    """Layers on the fullest stage.

    `balanced`: as nanotron cuts a model (github huggingface/nanotron, src/nanotron/models/base.py). A layer
    and the output head count by their weights, and a stage ends with the block that reaches its share of the
    sum, so the last stage has fewer layers, to make up for the head.
    """
    p, v = layouts.pipeline, layouts.virtual_stages
    layers = np.ceil(model.num_layers / (p * v)) * v
    if not balanced:
        return layers
    head = model.hidden_size * model.vocab_size / layer_weights(model)
    share = np.ceil((model.num_layers + head) / p - 1e-9)
    return np.where((p > 1) & (v == 1), np.minimum(share, model.num_layers), layers)


@cache
def layer_weights(model: ModelSpec) -> float:
    """Weights of an average layer's linear maps that a token passes."""
    kinds = model.layer_kinds()
    return sum(
        kinds.count(kind) / len(kinds) * sum(x.weights * x.active for x in model.linears(kind))
        for kind in dict.fromkeys(kinds)
    )


class Filled(NamedTuple):
    """A pipeline: layers of the fullest rank, seconds of the slowest for one micro-batch, the bubble, and
    chunks on a rank.
    """

    layers: np.ndarray
    slowest: np.ndarray
    bubble: np.ndarray
    chunks: np.ndarray


def stages(model: ModelSpec, layouts: Layouts, layer: Head, head: Head, *, balanced: bool = False) -> Filled:
    """The slowest rank and the bubble, from seconds of a layer and of the head."""
    p = layouts.pipeline
    x = rank_layers(model, layouts)
    if balanced:
        full = fullest_stage(model, layouts, balanced=True)
        x = RankLayers(full, full, np.maximum(model.num_layers - (p - 1) * full, 0))
    first = x.first * layer.seconds + x.head_first * head.seconds
    middle = x.middle * layer.seconds
    last = x.last * layer.seconds + x.head_last * head.seconds
    slowest = np.maximum(np.maximum(first, middle), last)
    layer_wait = waited_for(layouts.schedule, *layer)
    head_wait = waited_for(layouts.schedule, *head)
    at = [slowest == last, slowest == first]
    own_layers = np.select(at, [x.last, x.first], x.middle)
    own_head = np.select(at, [x.head_last + 0.0 * p, x.head_first + 0.0 * p], 0.0)
    total = model.num_layers * layer_wait + head_wait
    own = np.where(p > 1, own_layers * layer_wait + own_head * head_wait, total)
    bubble = filling_seconds(layouts.schedule, total, own, layouts.accumulation, layouts.virtual_stages)
    layers = np.maximum(np.maximum(x.first, x.middle), x.last)
    chunks = layouts.virtual_stages * 1
    if (layouts.schedule == ZBV).any():
        chunks = np.where(layouts.schedule == ZBV, 2, chunks)
    if (layouts.schedule == NAIVE).any():  # one micro-batch at a time: each passes all ranks before the next
        chunks = np.where(layouts.schedule == NAIVE, chunks * np.maximum(p - 1, 1), chunks)
    return Filled(layers, slowest, np.where(p > 1, bubble, 0.0), chunks)
