"""Lanes: time from left to right, a box for what was done, one line for each rank, thread or call.

`pipeline_gantt` draws a schedule, white where a rank waits; `trace_lanes` a profiler's trace, inner spans
below outer ones; `icicle` the calls of a program, each below the one that called it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workshop.facts.units import format_seconds
from workshop.predict.pipeline import PipelineTimeline
from workshop.predict.pipeline.simulate import Event, parts
from workshop.show.drawing import Drawing, box, sheet, text
from workshop.show.style import PHASE_COLOURS, Picture, headed, legend, new_figure

ACTION_COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#CC79A7", "W": "#009E73"}
_MEANING = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}

# Drawings: pixels at the left, of the whole width and of a row; pale colours, told apart by a name's hash.
_LANES_LEFT, _LANES_WIDTH, _LANES_ROW = 130, 830, 15
_OPERATORS = ("#d0d8e0", "#e0dcd0", "#d4e4d4", "#e4d8e4", "#dfe7ee", "#ece4d4")
_ICICLE_WIDTH, _ICICLE_ROW = 900, 18
_MODULES = ("#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fcbba1", "#d9d9d9", "#c7e9c0", "#fee391")


def pipeline_gantt(timeline: PipelineTimeline, title: str = "", unit: str = "seconds") -> Picture:
    """A Gantt chart of what `simulate_pipeline` found: one line for each rank, white where it waits.

    Forward is blue, backward orange; where the backward is split, its input half is pink and its weight half
    green. The number in a box is the micro-batch. Of the stages of one rank, those after the first are paler.
    The title says the share of idle rank-seconds, and what the busiest rank holds at once: activations of one
    stage, in units of one micro-batch through ``1 / ranks`` of the model.

    ``title``: words before it, such as the schedule's name. ``unit``: of the times, "forwards" where a
    forward takes 1.
    """
    ranks = len(timeline.busy_seconds)
    figure, axis = new_figure(8.0, 0.9 + 0.32 * ranks)
    _draw_timeline(axis, timeline, timeline.seconds)
    _label_lines(axis, [f"rank {rank}" for rank in range(ranks)], timeline.seconds, unit)
    peak = float(timeline.peak_micro_batches.max())
    words = headed(
        title,
        f"{_long(timeline, unit)}, idle {timeline.idle_share:.1%}, "
        f"a rank holds at most {peak:g} micro-batches",
    )
    axis.set_title(words, fontsize=9, loc="left")
    _legend(figure, _kinds(timeline))
    return Picture(figure, f"pipeline of {ranks} ranks, {words}")


def pipeline_gantts(
    timelines: Mapping[str, PipelineTimeline], title: str = "", unit: str = "seconds"
) -> Picture:
    """Draw timelines one below the other on one axis of time, such as a simulated and a measured one.

    timelines: by name; measured ones come from `predict.pipeline.measured.measured_timeline`. The title says
    how long each takes and what share of it is idle. ``unit`` as in `pipeline_gantt`. ValueError where there
    is none.
    """
    if not timelines:
        raise ValueError("no timelines to draw; give at least one, by name")
    rows = [
        (name, rank) for name, timeline in timelines.items() for rank in range(len(timeline.busy_seconds))
    ]
    longest = max(timeline.seconds for timeline in timelines.values())
    figure, axis = new_figure(8.0, 1.0 + 0.32 * len(rows))
    for name, timeline in timelines.items():
        _draw_timeline(axis, timeline, longest, rows.index((name, 0)))
    _label_lines(axis, [f"{name}, rank {rank}" for name, rank in rows], longest, unit)
    each = (
        f"{name} {_long(timeline, unit)}, idle {timeline.idle_share:.1%}"
        for name, timeline in timelines.items()
    )
    words = headed(title, "; ".join(each))
    axis.set_title(words, fontsize=9, loc="left")
    _legend(figure, set().union(*map(_kinds, timelines.values())))
    return Picture(figure, f"pipelines, {words}")


def _long(timeline: PipelineTimeline, unit: str) -> str:
    return format_seconds(timeline.seconds) if unit == "seconds" else f"{timeline.seconds:g} {unit}"


def _kinds(timeline: PipelineTimeline) -> set[str]:
    return {action.kind for event in timeline.events for action in parts(event.action)}


def _draw_timeline(axis: Any, timeline: PipelineTimeline, seconds: float, row: int = 0) -> None:
    """All events, rank 0 in line ``row``; ``seconds`` is the width of the axis."""
    first: dict[int, int] = {}
    for event in timeline.events:
        for action in parts(event.action):
            first[event.rank] = min(action.stage, first.get(event.rank, action.stage))
    for event in timeline.events:
        _draw_event(axis, event._replace(rank=event.rank + row), first[event.rank], seconds)


def _label_lines(axis: Any, lines: Sequence[str], longest: float, unit: str) -> None:
    axis.set_xlim(0, longest)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_yticks(range(len(lines)), lines, fontsize=8)
    axis.set_xlabel(unit, fontsize=8)
    axis.tick_params(labelsize=8, length=2)


def _draw_event(axis: Any, event: Event, first_stage: int, seconds: float) -> None:
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

    handles = {_MEANING[kind]: Patch(color=ACTION_COLOURS[kind]) for kind in "FBIW" if kind in kinds}
    handles["idle"] = Patch(facecolor="white", edgecolor="#888888")
    legend(figure, len(handles), handles=handles)


class TraceLanes(Drawing):
    """The drawing of a trace; `save_html` writes all of it as a page that zooms."""

    def __init__(self, svg: str, words: str, everything: str, seconds: float):
        super().__init__(svg, words)
        self._everything = everything
        self._seconds = seconds

    def save_html(self, path: str | Path) -> Path:
        """A page of its own, with every span: the wheel zooms, dragging moves, a double click resets."""
        page = _PAGE.replace("FROM", str(_LANES_LEFT)).replace("WIDE", str(_LANES_WIDTH))
        page = page.replace("SPAN", f"{self._seconds:.9f}").replace("DRAWING", self._everything)
        Path(path).write_text(page, "utf-8")
        return Path(path)


def trace_lanes(trace: Any, *, depth: int = 6, title: str = "") -> TraceLanes:
    """Draw what `measure.read_trace` gives, read by its fields: ``spans`` with lane, start, end and depth.

    Threads and streams one below the other. Ranges of your own (`span`) are strong in colour, operators pale.
    What would be narrower than half a pixel is left out, and the words say how many that are; `save_html`
    writes a page where the wheel zooms in on all.

    depth: rows of a lane. ValueError for a trace without spans.
    """
    if not trace.spans:
        raise ValueError("this trace has no spans to draw")
    begin, end = min(s.start for s in trace.spans), max(s.end for s in trace.spans)
    least = (end - begin) / _LANES_WIDTH * 0.5
    drawn = [span for span in trace.spans if span.depth < depth and span.seconds >= least]
    lanes = sorted({span.lane for span in drawn})
    words = headed(
        title,
        f"{format_seconds(end - begin)}, {len(lanes)} lane{'s' * (len(lanes) != 1)}, {len(drawn):,} of "
        f"{len(trace.spans):,} spans wide enough to draw",
    )
    svg = _lanes(drawn, lanes, begin, end, words)
    all_lanes = sorted({span.lane for span in trace.spans})
    of_all = headed(title, f"{format_seconds(end - begin)}, all {len(trace.spans):,} spans")
    everything = _lanes(trace.spans, all_lanes, begin, end, of_all)
    return TraceLanes(svg, words, everything, end - begin)


def _lanes(spans: Sequence[Any], lanes: Sequence[str], begin: float, end: float, words: str) -> str:
    parts, top = [text(0, 12, words, 11)], 20.0
    scale = _LANES_WIDTH / ((end - begin) or 1.0)
    for lane in lanes:
        inside = [span for span in spans if span.lane == lane]
        rows = 1 + max(span.depth for span in inside)
        parts.append(text(_LANES_LEFT - 6, top + 11, lane, 9.5, anchor="end"))
        for span in sorted(inside, key=lambda span: span.depth):
            place = (
                _LANES_LEFT + (span.start - begin) * scale,
                top + _LANES_ROW * span.depth,
                span.seconds * scale,
                _LANES_ROW - 1,
            )
            parts.append(box(place, _colour(span), f"{span.name}: {format_seconds(span.seconds)}", span.name))
        top += _LANES_ROW * rows + 6
    parts.append(text(_LANES_LEFT, top + 8, "0 s", 9))
    parts.append(text(_LANES_LEFT + _LANES_WIDTH, top + 8, format_seconds(end - begin), 9, anchor="end"))
    return sheet(_LANES_LEFT + _LANES_WIDTH + 4, top + 14, parts)


def _colour(span: Any) -> str:
    if span.name in PHASE_COLOURS:
        return PHASE_COLOURS[span.name]
    if span.kind in ("user_annotation", "gpu_user_annotation"):
        return "#F0E442"
    return _OPERATORS[zlib.crc32(span.name.encode()) % len(_OPERATORS)]


_PAGE = """<!doctype html><meta charset="utf-8"><title>trace</title>
<style>body{font:14px sans-serif;margin:8px}svg{cursor:grab;user-select:none}</style>
<p>The wheel zooms, dragging moves, a double click resets; the mouse on a box says what it is.</p>
DRAWING
<script>
const LEFT = FROM, WIDTH = WIDE, SECONDS = SPAN, svg = document.querySelector("svg");
svg.querySelectorAll("text").forEach(words => { if (words.querySelector("title")) words.remove(); });
const ends = [...svg.querySelectorAll("text")].slice(-2);
const boxes = [...svg.querySelectorAll("rect")].slice(1).map(box => ({
  box, x: +box.getAttribute("x") - LEFT, width: +box.getAttribute("width"), y: +box.getAttribute("y"),
  name: box.textContent.slice(0, box.textContent.lastIndexOf(": ")),
}));
const labels = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "g"));
let zoom = 1, first = 0, drag = null;
function draw() {
  first = Math.min(Math.max(first, 0), WIDTH - WIDTH / zoom);
  labels.replaceChildren();
  ends[0].textContent = (1e3 * SECONDS * first / WIDTH).toFixed(3) + " ms";
  ends[1].textContent = (1e3 * SECONDS * (first / WIDTH + 1 / zoom)).toFixed(3) + " ms";
  for (const {box, x, width, y, name} of boxes) {
    const left = Math.max((x - first) * zoom, 0), right = Math.min((x - first + width) * zoom, WIDTH);
    box.style.display = right > left ? "" : "none";
    if (right <= left) continue;
    box.setAttribute("x", LEFT + left);
    box.setAttribute("width", Math.max(right - left, 0.3));
    const room = Math.floor((right - left - 4) / 5.6);
    if (room < 3) continue;
    const words = document.createElementNS("http://www.w3.org/2000/svg", "text");
    words.setAttribute("x", LEFT + left + 3);
    words.setAttribute("y", y + 10.5);
    words.setAttribute("font-size", 9.5);
    words.setAttribute("pointer-events", "none");
    words.textContent = name.length <= room ? name : name.slice(0, room - 1) + "\u2026";
    labels.append(words);
  }
}
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const at = Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left - LEFT, 0), WIDTH);
  const under = first + at / zoom;
  zoom = Math.min(Math.max(zoom * (event.deltaY > 0 ? 0.8 : 1.25), 1), 1e5);
  first = under - at / zoom;
  draw();
}, {passive: false});
svg.addEventListener("mousedown", event => { drag = [event.clientX, first]; });
window.addEventListener("mouseup", () => { drag = null; });
window.addEventListener("mousemove", event => {
  if (drag) { first = drag[1] - (event.clientX - drag[0]) / zoom; draw(); }
});
svg.addEventListener("dblclick", () => { zoom = 1; first = 0; draw(); });
draw();
</script>
"""


def icicle(tree: Any, *, depth: int = 14, title: str = "") -> Drawing:
    """Draw a tree of calls, as `measure.profile_calls` gives it: nodes with ``seconds`` and ``children``.

    A box for each function, as wide as its time, below the one that called it: a flame graph upside down
    (Gregg, 2016). A wide box with nothing below it is where the time is spent; the sum of a row's widths
    never exceeds that of the row above.

    depth: rows drawn. Colours tell modules apart, and nothing else. ValueError for a tree without time.
    """
    if not tree.seconds > 0:
        raise ValueError("this tree of calls has no time to draw")
    parts: list[str] = [text(0, 12, headed(title, format_seconds(tree.seconds)), 11)]
    rows = _draw_call(tree, 0.0, 0, depth, tree.seconds, parts)
    widest = max(_flat(tree), key=lambda node: node.self_seconds)
    words = headed(
        title,
        f"calls, {format_seconds(tree.seconds)} in all; most time of its own: {widest.name}, "
        f"{widest.self_seconds / tree.seconds:.0%}",
    )
    return Drawing(sheet(_ICICLE_WIDTH, 20 + _ICICLE_ROW * rows, parts), words)


def _draw_call(node: Any, left: float, row: int, depth: int, whole: float, parts: list[str]) -> int:
    """The node and those below it; returns how many rows there are."""
    width = _ICICLE_WIDTH * node.seconds / whole
    if row >= depth or width < 1.0:
        return row
    words = f"{node.name} ({node.place}): {format_seconds(node.seconds)}, {node.seconds / whole:.1%}"
    own = f"; {format_seconds(node.self_seconds)} of its own"
    colour = _MODULES[zlib.crc32(node.name.split(".")[0].encode()) % len(_MODULES)]
    parts.append(
        box((left, 18 + _ICICLE_ROW * row, width - 0.6, _ICICLE_ROW - 1), colour, words + own, node.name)
    )
    rows = row + 1
    for child in node.children:
        rows = max(rows, _draw_call(child, left, row + 1, depth, whole, parts))
        left += _ICICLE_WIDTH * child.seconds / whole
    return rows


def _flat(node: Any) -> list[Any]:
    return [node, *(below for child in node.children for below in _flat(child))]
