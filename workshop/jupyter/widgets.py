"""Four things to turn knobs on: memory by stage, time to train, a pipeline's schedule, a number's bits.

Each is a plain function of values to a picture (`memory_picture`, `time_picture`, `pipeline_picture`,
`show.number_in_formats`), and an explorer that puts sliders on it. The explorers' arguments are the first
values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workshop.facts import catalogue
from workshop.facts.layout import RECOMPUTE, Layout
from workshop.facts.precision import RECIPES
from workshop.facts.run import Run
from workshop.jupyter.explorer import Control, Explorer, Still, explore
from workshop.predict.cost import training_cost_of_model
from workshop.predict.memory import predict_memory
from workshop.predict.pipeline import SCHEDULES, Durations, simulate_pipeline
from workshop.predict.pipeline.closed import CHUNKED
from workshop.show.bars import memory_by_part
from workshop.show.grids import number_in_formats
from workshop.show.lanes import pipeline_gantt
from workshop.show.style import LIMIT, MEASURED, Picture, new_figure

MODELS = (
    "gpt2",
    "llama-3.2-1b",
    "llama-3-8b",
    "mixtral-8x7b",
    "llama-3-70b",
    "gpt3-175b",
    "llama-3.1-405b",
    "deepseek-v3",
)
DEVICES = ("V100-32GB", "A100-40GB", "A100-80GB", "H100", "H200", "MI300X", "B200")
POWERS = tuple(2**power for power in range(15))
DRAWN_STAGES = 8


def memory_picture(run: Run, **changes: Any) -> Picture:
    """Bytes by part of every pipeline stage of a run (of many: the first few and the last), and the cap.

    changes: fields of `Run` or of its `Layout` to change first; ``model`` and ``device`` are names. What is
    left of the cluster's ranks after tensor, context and pipeline goes to ``shard``. ValueError where that
    does not divide.
    """
    expected = predict_memory(changed_run(run, changes))
    stages = list(range(len(expected.allocated)))
    if len(stages) > DRAWN_STAGES:
        stages = [*stages[: DRAWN_STAGES - 1], stages[-1]]
    alone = run.layout.world_size == 1
    cases = {
        f"peak, {expected.moment[stage]}" if alone else f"stage {stage}, {expected.moment[stage]}": {
            part: float(np.atleast_1d(sizes)[stage]) for part, sizes in expected.parts.items()
        }
        for stage in stages
    }
    verdict = expected.verdict.replace("stage 0 needs", "it needs") if alone else expected.verdict
    title = f"{verdict}\nThe bars are what is allocated; the allocator and the driver hold the rest."
    if len(stages) < len(expected.allocated):
        first, last = stages[-2] + 1, stages[-1] - 1
        title += (
            f" Stages {first} to {last} are not drawn." if first < last else f" Stage {first} is not drawn."
        )
    picture = memory_by_part(cases, cap=expected.capacity or None, compare=False, title=title)
    return Picture(picture.figure, f"{verdict}; {picture.words}")


def changed_run(run: Run, changes: dict[str, Any]) -> Run:
    """The run with some fields of it and of its layout changed, on as many ranks.

    A pipeline gets at least as many micro-batches as it has stages; a model whose position table ends gets
    sequences that end there.
    """
    fields = dict(changes)
    cluster, world = run.cluster, run.layout.world_size
    if "device" in fields:
        cluster = catalogue.cluster(f"{cluster.num_devices}x{fields.pop('device')}")
    names = [name for name in ("model", "micro_batch", "seq_len") if name in fields]
    own: dict[str, Any] = {name: fields.pop(name) for name in names}
    ends = catalogue.model(own.get("model", run.model.name)).max_positions if "model" in own else None
    own["seq_len"] = min(own.get("seq_len", run.seq_len), ends or sys.maxsize)
    layout = replace(run.layout, **{"replicate": 1, "shard": 1, **fields})
    taken = layout.tensor * layout.context * layout.pipeline
    if world % taken:
        cut = f"tensor {layout.tensor} x context {layout.context} x pipeline {layout.pipeline} = {taken}"
        raise ValueError(f"{cut} does not divide the {world} ranks of {cluster.name}")
    layout = replace(layout, shard=world // taken)
    own["accumulation"] = max(run.accumulation, layout.pipeline)
    return replace(run, cluster=cluster, layout=layout, global_batch=0, **own)


def memory_explorer(
    run: Run | None = None, *, only: Sequence[str] = (), widgets: bool | None = None
) -> Explorer | Still:
    """Sliders over `memory_picture`: model, device, cuts, micro-batch, sequence, recompute and precision.

    A run on one device has no cuts to turn. run: where to start (default: Llama 3 8B on 64 H100, fully
    sharded). only: the names of some of these sliders, where not all are wanted. Returns an `Explorer`, or
    the picture without ipywidgets (or with ``widgets=False``).
    """
    run = run or Run("llama-3-8b", "64xH100", Layout(shard=64, zero=3), seq_len=8192)
    x = run.layout
    controls = [
        Control("model", run.model.name, _with(MODELS, run.model.name)),
        Control("tensor", x.tensor, _with((1, 2, 4, 8), x.tensor)),
        Control("pipeline", x.pipeline, _with((1, 2, 4, 8, 16), x.pipeline)),
        Control("zero", x.zero, (0, 1, 2, 3)),
        Control("micro_batch", run.micro_batch, _with((1, 2, 4, 8, 16), run.micro_batch)),
        Control("seq_len", run.seq_len, _with(tuple(1024 * p for p in POWERS[:8]), run.seq_len)),
        Control("recompute", x.recompute, RECOMPUTE),
        Control("precision", x.precision, tuple(RECIPES)),
    ]
    if x.world_size == 1:
        controls = [control for control in controls if control.name not in ("tensor", "pipeline", "zero")]
    if run.cluster.device.name in DEVICES:
        controls.insert(1, Control("device", run.cluster.device.name, DEVICES))
    controls = [control for control in controls if not only or control.name in only]
    return explore(lambda **changes: memory_picture(run, **changes), controls, widgets)


def time_picture(
    model: str = "llama-3-70b",
    tokens: float = 15e12,
    device: str = "H100",
    devices: int = 1024,
    mfu: float = 0.4,
) -> Picture:
    """Days of training against the number of devices, with the chosen number marked.

    ``tokens`` of sequences of 8,192 (fewer where a model's position table ends earlier). ValueError as
    `workshop.predict.cost.training_cost` raises it.
    """
    spec = catalogue.model(model)
    seq_len = min(8192, spec.max_positions or 8192)
    cost = training_cost_of_model(spec, seq_len, tokens, catalogue.cluster(f"{devices}x{device}"), mfu)
    figure, axis = new_figure(6.6, 3.0)
    counts = [2**power for power in range(15)]
    axis.plot(counts, [cost.days * devices / count for count in counts], color="#888888", linewidth=1.5)
    axis.plot([devices], [cost.days], "o", color=MEASURED, markersize=8)
    for name, days in (("a day", 1), ("a month", 30), ("a year", 365)):
        axis.axhline(days, color=LIMIT, linewidth=0.6, linestyle=":")
        axis.text(counts[0], days, name, fontsize=8, color=LIMIT, va="bottom")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel(f"{device}, devices")
    axis.set_ylabel("days")
    label = f"{model}, {tokens:.3g} tokens, {devices:,} {device} at {mfu:.0%} MFU"
    axis.set_title(f"{label}:\n{cost}", fontsize=9, loc="left")
    return Picture(figure, f"{label}: {cost}, {cost.flops:.3g} FLOPs")


def time_to_train(
    model: str = "llama-3-70b", device: str = "H100", devices: int = 1024, *, tokens: float = 15e12,
    mfu: float = 0.4, widgets: bool | None = None,
) -> Explorer | Still:  # fmt: skip
    """Sliders over `time_picture`; the arguments are the first values."""
    amounts = tuple(m * 10.0**p for p in range(9, 14) for m in (1, 2, 5))
    controls = [
        Control("model", model, _with(MODELS, model)),
        Control("tokens", tokens, _with(amounts, tokens)),
        Control("device", device, _with(DEVICES, device)),
        Control("devices", devices, _with(POWERS, devices)),
        Control("mfu", mfu, _with(tuple(round(0.05 * step, 2) for step in range(1, 15)), mfu)),
    ]
    return explore(time_picture, controls, widgets)


V_SHAPED = ("zbv", "dualpipev", "v-half", "v-min")  # two stages to a rank, each half as long


def pipeline_picture(
    schedule: str = "1f1b", ranks: int = 4, micro_batches: int = 8, chunks: int = 2, backward: float = 2.0,
    communication: float = 0.0,
) -> Picture:  # fmt: skip
    """The Gantt chart of a schedule, in units of a forward through a rank's share of the model.

    ``chunks`` counts only for schedules with virtual stages; ``backward`` and ``communication`` are in
    units of a forward. Stages of schedules that fix two to a rank are half as long.
    """
    used = chunks if schedule in CHUNKED else 1
    share = 1 / (used if used > 1 else 2 if schedule in V_SHAPED else 1)
    played = simulate_pipeline(
        schedule,
        ranks,
        micro_batches,
        Durations(share, share * backward),
        chunks=used,
        communication_seconds=communication,
    )
    return pipeline_gantt(played, schedule, unit="forwards")


def pipeline_explorer(
    schedule: str = "1f1b", ranks: int = 4, micro_batches: int = 8, *, widgets: bool | None = None
) -> Explorer | Still:
    """Sliders over `pipeline_picture`; the arguments are the first values."""
    controls = [
        Control("schedule", schedule, SCHEDULES),
        Control("ranks", ranks, _with((2, 4, 6, 8), ranks)),
        Control("micro_batches", micro_batches, _with((1, 2, 4, 8, 12, 16, 24), micro_batches)),
        Control("chunks", 2, (1, 2, 3, 4)),
        Control("backward", 2.0, (1.0, 1.5, 2.0, 3.0)),
        Control("communication", 0.0, (0.0, 0.1, 0.2, 0.5, 1.0)),
    ]
    return explore(pipeline_picture, controls, widgets)


def number_explorer(
    value: float = 0.3952, times_two_to_the: int = 0, *, widgets: bool | None = None
) -> Explorer | Still:
    """`show.number_in_formats` of a typed number, with a slider for a power of two to multiply it by."""

    def draw(value: float, times_two_to_the: int) -> Picture:
        return number_in_formats(value * 2.0**times_two_to_the)

    powers = _with(range(-30, 31), times_two_to_the)
    controls = [Control("value", value), Control("times_two_to_the", times_two_to_the, powers)]
    return explore(draw, controls, widgets)


def _with(choices: Sequence, value: object) -> tuple:
    """The choices and the first value, if it is none of them; numbers in order."""
    if value in choices:
        return tuple(choices)
    return (value, *choices) if isinstance(value, str) else tuple(sorted((*choices, value)))
