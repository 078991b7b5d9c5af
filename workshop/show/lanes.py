"""A trace as lanes: threads and streams one below the other, spans from left to right, inner ones below.

Ranges of your own (`span`) are strong in colour, operators pale. What would be narrower than half a pixel is
left out, and the words say how many that are; `save_html` writes a page where the wheel zooms in on all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from workshop.facts.units import format_seconds
from workshop.show.drawing import Drawing, box, sheet, text

_LEFT, _WIDTH, _ROW = 130, 830, 15
RANGES = {
    "data": "#D55E00",
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "communication": "#CC79A7",
    "optimizer": "#009E73",
}
_PALE = ("#d0d8e0", "#e0dcd0", "#d4e4d4", "#e4d8e4", "#dfe7ee", "#ece4d4")


class TraceLanes(Drawing):
    """The drawing of a trace; `save_html` writes all of it as a page that zooms."""

    def __init__(self, svg: str, words: str, everything: str):
        super().__init__(svg, words)
        self._everything = everything

    def save_html(self, path: str | Path) -> Path:
        """A page of its own, with every span: the wheel zooms, dragging moves, a double click resets."""
        page = _PAGE.replace("WORDS", escape(self.words)).replace("DRAWING", self._everything)
        Path(path).write_text(page, "utf-8")
        return Path(path)


def trace_lanes(trace: Any, *, depth: int = 6, title: str = "") -> TraceLanes:
    """Draw what `measure.read_trace` gives, read by its fields: ``spans`` with lane, start, end and depth.

    depth: rows of a lane. ValueError for a trace without spans.
    """
    if not trace.spans:
        raise ValueError("this trace has no spans to draw")
    begin, end = min(s.start for s in trace.spans), max(s.end for s in trace.spans)
    least = (end - begin) / _WIDTH * 0.5
    drawn = [span for span in trace.spans if span.depth < depth and span.seconds >= least]
    lanes = sorted({span.lane for span in drawn})
    words = (
        f"{title + ': ' if title else ''}{format_seconds(end - begin)}, {len(lanes)} "
        f"lane{'s' * (len(lanes) != 1)}, {len(drawn):,} of {len(trace.spans):,} spans wide enough to draw"
    )
    svg = _lanes(drawn, lanes, begin, end, words)
    everything = _lanes(trace.spans, sorted({s.lane for s in trace.spans}), begin, end, words)
    return TraceLanes(svg, words, everything)


def _lanes(spans: Sequence[Any], lanes: Sequence[str], begin: float, end: float, words: str) -> str:
    parts, top = [text(0, 12, words, 11)], 20.0
    scale = _WIDTH / ((end - begin) or 1.0)
    for lane in lanes:
        inside = [span for span in spans if span.lane == lane]
        rows = 1 + max(span.depth for span in inside)
        parts.append(text(_LEFT - 6, top + 11, lane, 9.5, anchor="end"))
        for span in sorted(inside, key=lambda span: span.depth):
            place = (
                _LEFT + (span.start - begin) * scale,
                top + _ROW * span.depth,
                span.seconds * scale,
                _ROW - 1,
            )
            parts.append(box(place, _colour(span), f"{span.name}: {format_seconds(span.seconds)}", span.name))
        top += _ROW * rows + 6
    parts.append(text(_LEFT, top + 8, "0 s", 9))
    parts.append(text(_LEFT + _WIDTH, top + 8, format_seconds(end - begin), 9, anchor="end"))
    return sheet(_LEFT + _WIDTH + 4, top + 14, parts)


def _colour(span: Any) -> str:
    if span.name in RANGES:
        return RANGES[span.name]
    if span.kind in ("user_annotation", "gpu_user_annotation"):
        return "#F0E442"
    return _PALE[zlib.crc32(span.name.encode()) % len(_PALE)]


_PAGE = """<!doctype html><meta charset="utf-8"><title>trace</title>
<style>body{font:14px sans-serif;margin:8px}svg{width:100%;height:90vh;cursor:grab}</style>
<p>WORDS. The wheel zooms, dragging moves, a double click resets.</p>
DRAWING
<script>
const svg = document.querySelector("svg");
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
let view = [...whole], from = null;
const draw = () => svg.setAttribute("viewBox", view.join(" "));
svg.removeAttribute("width"); svg.removeAttribute("height");
svg.setAttribute("preserveAspectRatio", "none");
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const box = svg.getBoundingClientRect(), at = view[0] + view[2] * (event.clientX - box.left) / box.width;
  const width = Math.min(whole[2], view[2] * (event.deltaY > 0 ? 1.25 : 0.8));
  view = [at - (at - view[0]) * width / view[2], view[1], width, view[3]];
  draw();
}, {passive: false});
svg.addEventListener("mousedown", event => { from = [event.clientX, view[0]]; });
window.addEventListener("mouseup", () => { from = null; });
window.addEventListener("mousemove", event => {
  if (!from) return;
  view[0] = from[1] - (event.clientX - from[0]) / svg.getBoundingClientRect().width * view[2];
  draw();
});
svg.addEventListener("dblclick", () => { view = [...whole]; draw(); });
</script>
"""
