"""Which layout of a vision model is fastest and fits: predicted from what its pieces cost alone.

A planner needs to know how long a piece takes, and has two ways to know. For transformers on GPUs this
workshop has a model of a layer's kernels (`time.layer`). For a CoAtNet's mixture of convolutions there is
none, so here the pieces are **profiled**: one rank runs each piece alone, for few images and for more, and
seconds are a line, fixed + images x each. From a few seconds of profile follows every layout, as in PipeDream
(Narayanan et al. 2019, section 3.1: profile layers on one machine, then plan). With N ranks, M micro-batches,
P parameters of 4 bytes (fp32, AdamW), and nothing hidden behind anything::

    data          all pieces for images / (N M), M times; all_reduce of 4 P; the optimizer over P
    ZeRO 1, 2     the same, reduce_scatter and all_gather of 4 P; the optimizer over P / N
    ZeRO 3        the same, and one all_gather more
    tensor        all images on every rank; of each, what the plan cuts takes 1/N; 4 all_reduces a cut piece
                  and micro-batch, of what the piece hands on
    pipeline      the schedule played with the stages' seconds (`simulate_pipeline`), one message a cut

Memory is the largest over backward's pieces of weights + moments + gradients so far + what is kept, and the
piece at work: the gradient of what it keeps most of, and under ZeRO its gathered weights and gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from workshop.facts.device import LinkSpec
from workshop.facts.layout import Layout
from workshop.predict.collectives import wire_bytes
from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.vision.layers import Piece, Spec, pieces

NUMBER = 4  # bytes: everything here is fp32


@dataclass(frozen=True)
class Profile:
    """Seconds of every piece: ``fixed + images * each``, a pair (forward, backward) for each piece.

    optimizer: seconds of an optimizer step for each parameter. cut: the same of the model that is already cut
    by a tensor plan, profiled by its ranks together, so with what they say to each other and what DTensor
    costs; where it is known, tensor parallelism is not calculated but looked up.
    """

    fixed: tuple[tuple[float, float], ...]
    each: tuple[tuple[float, float], ...]
    optimizer: float
    cut: Profile | None = None

    @classmethod
    def of_two(
        cls,
        few: tuple[int, Sequence[Sequence[float]]],
        many: tuple[int, Sequence[Sequence[float]]],
        optimizer: float,
    ) -> Profile:
        """From two measurements: (images, seconds forward and backward of every piece).

        Noise may make more images look cheaper: no slope and no start is below zero. ValueError where the
        second has not more images than the first.
        """
        if many[0] <= few[0]:
            raise ValueError(f"{many[0]} images are not more than {few[0]}: a line needs two places")
        each = [
            [max((b - a) / (many[0] - few[0]), 0.0) for a, b in zip(*pair, strict=True)]
            for pair in zip(few[1], many[1], strict=True)
        ]
        fixed = [
            [max(b - many[0] * slope, 0.0) for b, slope in zip(*pair, strict=True)]
            for pair in zip(many[1], each, strict=True)
        ]
        return cls(_pairs(fixed), _pairs(each), optimizer)

    @classmethod
    def of_rate(cls, spec: Spec, flops_per_second: float, optimizer: float = 0.0) -> Profile:
        """From FLOPs alone: what somebody has to do who cannot measure yet."""
        cost = [piece.flops / flops_per_second for piece in pieces(spec)]
        return cls(tuple((0.0, 0.0) for _ in cost), tuple((c, 2 * c) for c in cost), optimizer)

    def seconds(self, piece: int, images: float) -> tuple[float, float]:
        """Forward and backward of a piece."""
        fixed, each = self.fixed[piece], self.each[piece]
        return fixed[0] + images * each[0], fixed[1] + images * each[1]


def _pairs(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((row[0], row[1]) for row in rows)


@dataclass(frozen=True)
class Way:
    """A candidate: a layout, into how many micro-batches a rank takes its share, and a pipeline's cuts."""

    layout: Layout
    micro_batches: int = 1
    cuts: tuple[range, ...] = ()

    def __post_init__(self) -> None:
        x = self.layout
        axes = [size for size in (x.data_parallel, x.tensor, x.pipeline) if size > 1]
        if len(axes) > 1 or x.context > 1 or x.recompute != "none":
            raise ValueError(
                f"{x}: vision models are planned along one axis at a time, data, tensor or pipeline, without "
                "context and recomputation; predict_memory(run) knows more, for transformers"
            )
        if x.pipeline != max(len(self.cuts), 1):
            raise ValueError(f"pipeline {x.pipeline} needs as many cuts, and has {len(self.cuts)}")

    def __str__(self) -> str:
        x, m = self.layout, f" x {self.micro_batches}" if self.micro_batches > 1 else ""
        if x.pipeline > 1:
            return f"pipeline {x.pipeline}{m}, {x.schedule}"
        if x.tensor > 1:
            return f"tensor {x.tensor}{m}"
        return (f"ZeRO-{x.zero}" if x.zero else "data parallel") + m

    @property
    def kind(self) -> tuple[bool, int, int, bool]:
        """Ways of one kind differ in micro-batches, cuts, and the stage of ZeRO."""
        x = self.layout
        return x.zero > 0, x.tensor, x.pipeline, x.pipeline > 1 and x.schedule == "naive"


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step, and bytes of the fullest rank."""

    way: Way
    seconds: float
    memory_bytes: float
    causes: dict[str, float]


@dataclass(frozen=True)
class VisionSetting:
    """What stays the same while layouts vary. ``link`` is what a rank's collectives reach, ``global_batch``
    in images.

    others: collectives that were measured by themselves, by name. A library need not run all at one rate:
    gloo's reduce_scatter takes about as long as two all_reduces of the same tensor.
    """

    spec: Spec
    profile: Profile
    link: LinkSpec
    global_batch: int
    others: Mapping[str, LinkSpec] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> list[Piece]:
        """The model's pieces."""
        return pieces(self.spec)

    def images(self, way: Way) -> float:
        """Of one micro-batch."""
        return self.global_batch / (way.layout.data_parallel * way.micro_batches)

    def collective(self, name: str, num_bytes: float, ranks: int) -> float:
        """Seconds of a collective."""
        return (
            self.others.get(name, self.link).seconds(float(wire_bytes(name, num_bytes, ranks)))
            if ranks > 1
            else 0.0
        )

    def stage_seconds(self, way: Way) -> list[tuple[float, float]]:
        """Forward and backward of every stage for a micro-batch."""
        spent = [self.profile.seconds(number, self.images(way)) for number in range(len(self.pieces))]
        return [(sum(spent[i][0] for i in cut), sum(spent[i][1] for i in cut)) for cut in way.cuts]


def predict_way(setting: VisionSetting, way: Way) -> Predicted:
    """Seconds and memory of one candidate."""
    layout = way.layout
    if layout.pipeline > 1:
        return _pipeline(setting, way)
    images, m, t = setting.images(way), way.micro_batches, layout.tensor
    compute = held = tensor = 0.0
    known = setting.profile.cut if t > 1 else None  # else seconds of a cut piece follow from the whole one's
    for number, piece in enumerate(setting.pieces):
        cut = piece.cut_flops / piece.flops if known is None else 0.0
        compute += m * sum((known or setting.profile).seconds(number, images * (1 - cut + cut / t)))
        held += piece.params - piece.cut_params + piece.cut_params / t
        if cut:
            tensor += 4 * m * setting.collective("all_reduce", NUMBER * images * piece.handed, t)
    n, size = layout.data_parallel, NUMBER * held
    times = {  # in a step; from stage 2 on, each micro-batch's gradients are reduced as they appear
        0: {"all_reduce": 1},
        1: {"reduce_scatter": 1, "all_gather": 1},
        2: {"reduce_scatter": m, "all_gather": 1},
        3: {"reduce_scatter": m, "all_gather": 2 * m},
    }[layout.zero]
    causes = {
        "compute": compute,
        "tensor": tensor,
        "data": sum(count * setting.collective(name, size, n) for name, count in times.items()),
        "optimizer": setting.profile.optimizer * held / (n if layout.zero else 1),
    }
    return Predicted(way, sum(causes.values()), _memory(setting, way, range(len(setting.pieces))), causes)


def _pipeline(setting: VisionSetting, way: Way) -> Predicted:
    stages = setting.stage_seconds(way)
    handed = [setting.images(way) * setting.pieces[cut[-1]].handed * NUMBER for cut in way.cuts[:-1]]
    durations = Durations([f for f, _ in stages], [b for _, b in stages])
    line = simulate_pipeline(
        way.layout.schedule, len(stages), way.micro_batches, durations,
        communication_seconds=setting.link.seconds(max(handed)),
    )  # fmt: skip
    params = [sum(setting.pieces[i].params for i in cut) for cut in way.cuts]
    memory = [
        _memory(setting, way, cut, int(kept))
        for cut, kept in zip(way.cuts, line.peak_in_flight.tolist(), strict=True)
    ]
    busiest = way.micro_batches * max(f + b for f, b in stages)
    causes = {
        "compute": busiest,
        "bubble": float(line.seconds) - busiest,
        "optimizer": setting.profile.optimizer * max(params),
    }
    return Predicted(way, sum(causes.values()), max(memory), causes)


def _memory(setting: VisionSetting, way: Way, numbers: range, in_flight: int = 1) -> float:
    """Bytes of a rank with these pieces: the largest moment of backward, or the optimizer's."""
    x, images = way.layout, setting.images(way)
    mine = [setting.pieces[number] for number in numbers]
    params = [piece.params - piece.cut_params * (1 - 1 / x.tensor) for piece in mine]
    kept = [images * (piece.kept - piece.cut_kept * (1 - 1 / x.tensor)) for piece in mine]
    share = [1 / x.data_parallel if x.zero >= stage else 1.0 for stage in (1, 2, 3)]
    steady = sum(params) * (2 * share[0] + share[2])
    # DDP's gradients live in its buckets. Those that `no_sync` has made stand beside them.
    buckets = sum(params) if x.zero == 0 and x.data_parallel > 1 else 0.0
    beside = buckets if way.micro_batches > 1 else 0.0
    borrowed = 4 * max(params) * (x.zero == 3) + 2 * max(params) * (x.zero == 2)
    most = grads = 0.0
    # The first backward of a step finds most in flight and makes the gradients; later ones find those there.
    for flying in (in_flight, min(in_flight, way.micro_batches - 1)):
        for piece in reversed(range(len(mine) if flying else 0)):
            live = flying * sum(kept) - sum(kept[piece + 1 :]) + kept[piece] / 4
            most = max(most, live + max(grads + beside, buckets))
            grads = max(grads, sum(params[piece:]) * share[1])
    return NUMBER * (steady + borrowed + max(most, grads, buckets))


def plan_vision(
    setting: VisionSetting, ways: Sequence[Way], cap: float = float("inf")
) -> tuple[list[Predicted], list[Predicted]]:
    """(what fits under the cap, what does not), each fastest first, the best of every kind only.

    Raises ValueError if nothing fits, naming the least memory any candidate needs.
    """
    fastest_first = sorted((predict_way(setting, way) for way in ways), key=lambda one: one.seconds)
    fits = _best_of_kind([one for one in fastest_first if one.memory_bytes <= cap])
    if not fits:
        least = min(fastest_first, key=lambda one: one.memory_bytes)
        raise ValueError(
            f"{setting.spec.name}: nothing fits {cap:,.0f} bytes; the least is {least.memory_bytes:,.0f}, "
            f"with {least.way}: more ranks, fewer images, or a smaller model"
        )
    could = {one.way.kind for one in fits}
    return fits, _best_of_kind([one for one in fastest_first if one.way.kind not in could])


def _best_of_kind(fastest_first: Sequence[Predicted]) -> list[Predicted]:
    """The first of every kind, in order."""
    first: dict[tuple[bool, int, int, bool], Predicted] = {}
    for one in fastest_first:
        first.setdefault(one.way.kind, one)
    return list(first.values())
