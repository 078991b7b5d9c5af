"""A pipeline schedule as a Gantt chart: one line for each rank, a box for each action, white where it waits.

Forward is blue, backward orange; where the backward is split, its input half is pink and its weight half
green. The number in a box is the micro-batch. Of the stages
of one rank, those after the first are paler.

`pipeline_gantts` draws several on one axis of time: what was simulated, and below it what ranks have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.facts.units import format_seconds
from workshop.predict.pipeline import PipelineTimeline
from workshop.predict.pipeline.simulate import Event, parts
from workshop.show.style import Picture, new_figure

ACTION_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#CC79A7", "W": "#009E73"}
_MEANING = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}


def pipeline_gantt(timeline: PipelineTimeline, title: str = "") -> Picture:
    """Draw what `simulate_pipeline` found; the share of idle rank-seconds stands in the title.

    The title also says what the busiest rank holds at once: activations of one stage, in units of one
    micro-batch through ``1 / ranks`` of the model.

    ``title``: words before it, such as the schedule's name.
    """
    ranks = len(timeline.busy_seconds)
    figure, axis = new_figure(8.0, 0.9 + 0.32 * ranks)
    _draw_timeline(axis, timeline, timeline.seconds)
    _label(axis, [f"rank {rank}" for rank in range(ranks)], timeline.seconds)
    peak = float(timeline.peak_micro_batches.max())
    said = (
        f"{title + ': ' if title else ''}{format_seconds(timeline.seconds)}, idle {timeline.idle_share:.1%}, "
        f"a rank holds at most {peak:g} micro-batches"
    )
    axis.set_title(said, fontsize=9, loc="left")
    _legend(figure, _kinds(timeline))
    return Picture(figure, f"pipeline of {ranks} ranks, {said}")


def pipeline_gantts(timelines: Mapping[str, PipelineTimeline], title: str = "") -> Picture:
    """Draw timelines one below the other on one axis of time, such as a simulated and a measured one.

    timelines: by name; measured ones come from `predict.pipeline.measured.measured_timeline`. The title says
    how long each takes and what share of it is idle. ValueError where there is none.
    """
    if not timelines:
        raise ValueError("no timelines to draw; give at least one, by name")
    rows = [(name, rank) for name, found in timelines.items() for rank in range(len(found.busy_seconds))]
    longest = max(found.seconds for found in timelines.values())
    figure, axis = new_figure(8.0, 1.0 + 0.32 * len(rows))
    for name, found in timelines.items():
        _draw_timeline(axis, found, longest, rows.index((name, 0)))
    _label(axis, [f"{name}, rank {rank}" for name, rank in rows], longest)
    said = "; ".join(
        f"{name} {format_seconds(found.seconds)}, idle {found.idle_share:.1%}"
        for name, found in timelines.items()
    )
    axis.set_title(f"{title + ': ' if title else ''}{said}", fontsize=9, loc="left")
    _legend(figure, set().union(*map(_kinds, timelines.values())))
    return Picture(figure, f"pipelines, {title + ': ' if title else ''}{said}")


def _kinds(timeline: PipelineTimeline) -> set[str]:
    return {action.kind for event in timeline.events for action in parts(event.action)}


def _draw_timeline(axis: Any, timeline: PipelineTimeline, seconds: float, row: int = 0) -> None:
    """All events, rank 0 in line ``row``; ``seconds`` is the width of the axis."""
    first: dict[int, int] = {}
    for event in timeline.events:
        for action in parts(event.action):
            first[event.rank] = min(action.stage, first.get(event.rank, action.stage))
    for event in timeline.events:
        _draw(axis, event._replace(rank=event.rank + row), first[event.rank], seconds)


def _label(axis: Any, lines: Sequence[str], seconds: float) -> None:
    axis.set_xlim(0, seconds)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_yticks(range(len(lines)), lines, fontsize=8)
    axis.set_xlabel("seconds", fontsize=8)
    axis.tick_params(labelsize=8, length=2)


def _draw(axis: Any, event: Event, first_stage: int, seconds: float) -> None:
    """The one or two halves of an event, side by side; stages after the first of its rank are paler."""
    actions = parts(event.action)
    width = (event.end - event.start) / len(actions)
    for place, action in enumerate(actions):
        left = event.start + place * width
        pale = 1.0 if action.stage == first_stage else 0.55
        axis.barh(
            event.rank, width, 0.86, left=left, color=ACTION_COLOURS[action.kind], alpha=pale,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        if width > 0.018 * seconds:
            axis.text(
                left + width / 2, event.rank, str(action.micro_batch), ha="center", va="center", fontsize=7
            )


def _legend(figure: Any, kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=ACTION_COLOURS[kind], label=_MEANING[kind]) for kind in "FBIW" if kind in kinds]
    handles.append(Patch(facecolor="white", edgecolor="#888888", label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
