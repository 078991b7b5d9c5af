"""A pipeline schedule as a Gantt chart: one line for each rank, a box for each action, white where it waits.

Forward is blue, backward orange; where the backward is split, its input half is pink and its weight half
green. The number in a box is the micro-batch. Of the stages
of one rank, those after the first are paler.
"""

from __future__ import annotations

from typing import Any

from workshop.facts.units import format_seconds
from workshop.predict.pipeline import PipelineTimeline
from workshop.predict.pipeline_events import Event, parts
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
    first: dict[int, int] = {}
    for event in timeline.events:
        for action in parts(event.action):
            first[event.rank] = min(action.stage, first.get(event.rank, action.stage))
    for event in timeline.events:
        _draw(axis, event, first[event.rank], timeline.seconds)
    axis.set_xlim(0, timeline.seconds)
    axis.set_ylim(ranks - 0.5, -0.5)
    axis.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=8)
    axis.set_xlabel("seconds", fontsize=8)
    axis.tick_params(labelsize=8, length=2)
    peak = float(timeline.peak_micro_batches.max())
    said = (
        f"{title + ': ' if title else ''}{format_seconds(timeline.seconds)}, idle {timeline.idle_share:.1%}, "
        f"a rank holds at most {peak:g} micro-batches"
    )
    axis.set_title(said, fontsize=9, loc="left")
    _legend(figure, {action.kind for event in timeline.events for action in parts(event.action)})
    return Picture(figure, f"pipeline of {ranks} ranks, {said}")


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
