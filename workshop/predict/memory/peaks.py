"""Memory of one training step, per rank, by part: allocated, reserved and device.

A step passes through five moments, and the peak is the largest of them:

1. **the loss**: every saved activation is there, and the logits on top (last stage only);
2. **backward of the last layer**: the logits are gone, but backward of a layer needs room, recomputes what
   was dropped, and gathers what was sharded;
3. **backward of the first layer**: that room again, when nearly all gradients are there;
4. **the end of backward**: activations are gone, all gradients are there;
5. **the optimizer's step**: gradients and, unless it is fused, temporaries.

Under `torch.autocast` there is one more, **the end of forward**: its casts of all weights are still held.

Weights, optimizer state and library workspaces are there at all of them; gradients in contiguous buffers too.
Then three numbers, because people mix them: *allocated* is the sum of live tensors; *reserved* is what the
caching allocator took for them, pieces that fit nothing included (:mod:`workshop.predict.memory.allocator`);
*device* adds what PyTorch does not see (:mod:`workshop.predict.memory.allocator`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from workshop.facts.layout import FOLDED
from workshop.facts.run import Run
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes
from workshop.predict.case import TrainingConfig, check_run, config_of
from workshop.predict.interval import Interval, memory_margins, model_doubts
from workshop.predict.layouts import Array, Layouts
from workshop.predict.memory.activations import boundary_bytes, saved_bytes, working_bytes
from workshop.predict.memory.allocator import RankHardware, outside_bytes, rank_hardware, reserved_bytes
from workshop.predict.memory.loss import ends_saved, head_gradients, loss_bytes
from workshop.predict.memory.states import (
    autocast_cache,
    gradients_leave,
    params_held,
    states,
    step_bytes,
    summed_gradients,
    sums_whole,
    unsharded,
)

NOWHERE = RankHardware()


@dataclass(frozen=True, repr=False)
class MemoryPrediction:
    """Predicted bytes of every pipeline stage (arrays are indexed by stage) and of the worst one.

    ``parts`` maps a part to bytes at the peak's moment; the parts sum to ``allocated``.  ``moment`` names
    when each stage peaks.  ``steady`` is what stays between steps.  How wide the intervals are follows from
    ``config`` and ``pipeline``, which says whether there are stages.
    """

    parts: dict[str, Array]
    moment: list[str]
    allocated: Array
    steady: Array
    reserved: Array
    device: Array
    capacity: int
    config: TrainingConfig
    pipeline: bool

    @cached_property
    def margins(self) -> tuple[Interval, Interval]:
        """Measured over predicted, p10 to p90, of allocated and of device bytes."""
        return margins_of(self.config, self.pipeline)

    @property
    def worst_stage(self) -> int:
        """The stage that needs most."""
        return int(np.argmax(self.device))

    @property
    def peak_bytes(self) -> int:
        """Allocated bytes of the worst stage."""
        return int(self.allocated[self.worst_stage])

    @property
    def interval(self) -> Interval:
        """Device bytes of the worst stage, p10 to p90."""
        lower, upper = self.margins[1].times(float(self.device[self.worst_stage]))
        return Interval(int(lower), int(upper))

    @property
    def allocated_interval(self) -> Interval:
        """Allocated bytes of the worst stage, p10 to p90."""
        lower, upper = self.margins[0].times(float(self.allocated[self.worst_stage]))
        return Interval(int(lower), int(upper))

    @property
    def fits(self) -> bool:
        """Whether the worst stage's device bytes stay within the device's memory."""
        return bool(self.device[self.worst_stage] <= self.capacity)

    @property
    def verdict(self) -> str:
        """One sentence: fits, does not, or too close to call."""
        low, high = self.interval
        need, have = format_bytes(int(self.device[self.worst_stage])), format_bytes(self.capacity)
        need += f" ({format_bytes(int(low))} to {format_bytes(int(high))} in 8 of 10 cases)"
        if high <= self.capacity:
            return f"fits: stage {self.worst_stage} needs {need} of {have}"
        if low > self.capacity:
            return f"does not fit: stage {self.worst_stage} needs {need}, the device has {have}"
        return f"too close to call: stage {self.worst_stage} needs about {need}, the device has {have}"

    def table(self) -> Table:
        """Bytes by part, a column for each pipeline stage (of many: the first, the worst and the last)."""
        last, worst = np.size(self.device) - 1, self.worst_stage
        stages = list(range(last + 1)) if last < 8 else sorted({0, worst, last})
        sums = {"allocated": self.allocated, "reserved": self.reserved, "device": self.device}
        rows = [
            [name, *(format_bytes(float(np.ravel(sizes)[stage])) for stage in stages)]
            for name, sizes in {**self.parts, **sums}.items()
            if name in sums or np.any(sizes)
        ]
        at = [f" ({self.moment[stage]})" if self.moment else "" for stage in stages]
        head = ["part", *(f"stage {stage}{when}" for stage, when in zip(stages, at, strict=True))]
        return Table(head, rows, "bytes at the peak", self.verdict if self.capacity else "")

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def predict_memory(run: Run, group: int = 0) -> MemoryPrediction:
    """Memory of a run on every pipeline stage.  ``group``: micro-batches per virtual stage's turn."""
    check_run(run)
    layouts = Layouts.of_stages(run, group)
    hardware = rank_hardware(run.cluster, run.implementation, int(layouts.world_size[0]))
    return memory_on(config_of(run), layouts, hardware)


def saved_activations(run: Run) -> Array:
    """Bytes saved for backward by the layers of every pipeline stage, micro-batches in flight included."""
    return saved_bytes(config_of(run), Layouts.of_stages(run))


def memory_on(config: TrainingConfig, layouts: Layouts, hardware: RankHardware = NOWHERE) -> MemoryPrediction:
    """The same for any ``Layouts``: one entry of every array for each entry of ``layouts``."""
    by_moment = moments(config, layouts, hardware.workspace)
    names, shape = list(by_moment), layouts.shape
    sums = np.stack([np.broadcast_to(sum(parts.values()), shape) for parts in by_moment.values()])
    best = np.argmax(sums, axis=0)
    allocated, steady = sums.max(axis=0), sums[names.index("between steps")]
    reserved, device = taken(config, layouts, (allocated, steady), hardware)
    parts = {part: np.zeros(shape) for parts in by_moment.values() for part in parts}
    for index, name in enumerate(names):
        for part, size in by_moment[name].items():
            parts[part] = np.where(best == index, size, parts[part])
    at = [names[i] for i in np.atleast_1d(best)] if best.size <= 4096 else []
    piped = bool(np.any(layouts.pipeline > 1))
    return MemoryPrediction(parts, at, allocated, steady, reserved, device, hardware.capacity, config, piped)


def margins_of(config: TrainingConfig, pipeline: bool) -> tuple[Interval, Interval]:
    """How far allocated and device bytes of such a run may be from what is predicted."""
    of_model = model_doubts(config.model, config.numbers, config.adapter)
    return memory_margins(of_model, config.how.name, pipeline)


def taken(
    config: TrainingConfig, layouts: Layouts, tensors: tuple[Array, Array], hardware: RankHardware
) -> tuple[Array, Array]:
    """Reserved and device bytes for ``(allocated, steady)`` bytes of tensors.

    Before it gives up, the caching allocator returns to a full device what it holds idle.
    """
    allocated, steady = tensors
    if not hardware.is_gpu:
        return allocated, allocated
    outside = outside_bytes(layouts, config.how)
    reserved = reserved_bytes(allocated, steady, config.how)
    if hardware.capacity:
        reserved = np.maximum(allocated, np.minimum(reserved, hardware.capacity - outside))
    return reserved, reserved + outside


def device_bytes(config: TrainingConfig, layouts: Layouts, hardware: RankHardware = NOWHERE) -> Array:
    """Device bytes alone, for searches over many layouts: :func:`memory_on` without the parts."""
    by_moment = moments(config, layouts, hardware.workspace)
    sums = {name: np.asarray(sum(parts.values())) for name, parts in by_moment.items()}
    steady = sums.pop("between steps")
    allocated = steady
    for total in sums.values():
        allocated = np.maximum(allocated, total)
    return taken(config, layouts, (allocated, steady), hardware)[1]


Parts = dict[str, Array]


def moments(config: TrainingConfig, layouts: Layouts, workspace: int = 0) -> dict[str, Parts]:
    """Bytes by part at each moment of the step; see :mod:`workshop.predict.memory`."""
    if config.schedule in FOLDED:
        halves = [straight(*half, workspace) for half in _folded(config, layouts)]
        return {name: joined(halves[0][name], halves[1][name]) for name in halves[0]}
    return straight(config, layouts, workspace)


def straight(config: TrainingConfig, layouts: Layouts, workspace: int) -> dict[str, Parts]:
    """:func:`moments` where stages follow each other."""
    held = params_held(config.model, config.how, layouts)
    base = states(config, held, layouts)
    grads = base.pop("gradients")
    kept_grads = grads if config.how.buffers == "contiguous" else 0 * grads
    summed = summed_gradients(config, held, layouts, grads)
    early = grads if config.how.buffers == "contiguous" else np.where(layouts.accumulation > 1, summed, 0)
    if workspace:
        base["workspace"] = workspace + 0 * grads
    if config.how.bucket_bytes:
        base["buckets"] = np.where(layouts.state_shards * layouts.replicate > 1, config.how.bucket_bytes, 0)
    base["stage boundaries"] = boundary_bytes(config, layouts)
    gathered = unsharded(config, held, layouts)
    late_weights = {**base, "gathered weights": gathered.late}
    forward = {
        **base,
        "gathered weights": gathered.early,
        "gradients": early,
        "activations": activation_bytes(config, layouts),
    }
    backward = {"temporaries": working_bytes(config, layouts), "gathered gradients": gathered.gradients}
    late = grads - embedding_gradients(config, layouts) if config.how.buffers == "freed" else grads
    late = np.where(sums_whole(config, layouts), summed, late)
    step = {"temporaries": step_bytes(config, held, layouts)}
    by_moment = {
        "loss": {**forward, **loss_parts(config, layouts)},
        "backward": {**forward, **backward},
        "first layer": {**late_weights, "gradients": late, **backward},
        "end of backward": {**late_weights, "gradients": summed, "gathered gradients": gathered.gradients},
        "optimizer": {**base, "gradients": grads, **step},
        "between steps": {**base, "gradients": kept_grads},
    }
    cached = autocast_cache(config, held, layouts)
    if cached:
        by_moment["end of forward"] = {**forward, **loss_parts(config, layouts, forward=True)}
    for moment, casts in cached.items():
        by_moment[moment]["weight cache"] = casts
    return by_moment


def embedding_gradients(config: TrainingConfig, layouts: Layouts) -> Array:
    """The embedding's gradient, which comes after that of the first layer (a tied head's is there before)."""
    if config.adapter is not None or config.model.tied_embeddings:
        return np.zeros(())
    words = config.model.padded_vocab(config.how.vocab_multiple, layouts.tensor)
    matrix = words * config.model.hidden_size / layouts.tensor
    kept = config.numbers.grads / np.where(layouts.zero >= 2, layouts.state_shards, 1)
    kept = kept * ~gradients_leave(config, layouts)
    return layouts.is_first * matrix * (0 if config.offload == "params" else kept)


def joined(first: Parts, second: Parts) -> Parts:
    """Parts of a rank that holds two stages: it has one workspace, and works on one stage at a time."""
    names = {**first, **second}
    parts: Parts = {part: np.asarray(first.get(part, 0) + second.get(part, 0)) for part in names}
    for part in ("workspace", "buckets"):
        if part in first:
            parts[part] = first[part]
    if "temporaries" in first:
        parts["temporaries"] = np.maximum(first["temporaries"], second["temporaries"])
    return parts


def decoder_layouts(config: TrainingConfig, layouts: Layouts) -> Layouts:
    """The layouts with the sequence that the head reads: the decoder's, where there is one of its own."""
    return replace(layouts, seq_len=config.target_len + 0 * layouts.seq_len) if config.target_len else layouts


def activation_bytes(config: TrainingConfig, layouts: Layouts) -> Array:
    """Everything saved for backward on a rank, unless it is offloaded."""
    ends = ends_saved(config.model, config.how, config.numbers, decoder_layouts(config, layouts))
    return ends if config.offload == "activations" else saved_bytes(config, layouts) + ends


def loss_parts(config: TrainingConfig, layouts: Layouts, forward: bool = False) -> Parts:
    """What only the loss needs, at its worst moment or at the end of forward."""
    read = decoder_layouts(config, layouts)
    parts = {"logits and loss": loss_bytes(config.model, config.how, config.numbers, read, forward)}
    if config.adapter is None and config.how.loss == "chunked":
        parts["gathered gradients"] = head_gradients(config.model, config.how, config.numbers, layouts)
    return parts


def _folded(config: TrainingConfig, layouts: Layouts) -> list[tuple[TrainingConfig, Layouts]]:
    """The two halves of each rank, as recipes and layouts, with the micro-batches alive in each.

    These schedules fold the pipeline, so that a rank holds two stages that lie far apart.

    **ZB-V** (Qi et al. 2024, arXiv 2405.15362) cuts the model into ``2 p`` chunks and lays them out as a V:
    rank ``i`` holds chunks ``i`` and ``2 p - 1 - i``, so rank 0 has the embedding and the loss.  Every rank
    keeps as many activations as 1F1B's first rank does, ``p`` micro-batches of its two chunks.

    **DualPipe** (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) sends micro-batches from both ends at once:
    rank ``i`` holds stages ``i`` and ``p - 1 - i``, twice the weights, and ``p + 1`` micro-batches'
    activations of one stage.
    """
    p, m = layouts.pipeline, layouts.accumulation
    stages = 2 * p if config.schedule == "zbv" else p
    # DualPipe's p + 1 are shared between the two directions.
    alive = np.minimum(p, m) if config.schedule == "zbv" else np.minimum((p + 1) / 2, m)
    plain = replace(config, schedule="gpipe")
    one = 1 + 0 * p
    return [
        (plain, replace(layouts, pipeline=stages, virtual_stages=one, stage=stage, accumulation=alive))
        for stage in (layouts.stage, stages - 1 - layouts.stage)
    ]
