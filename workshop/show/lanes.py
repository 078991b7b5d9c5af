"""A trace as lanes: threads and streams one below the other, spans from left to right, inner ones below.

Ranges of your own (`span`) are strong in colour, operators pale. What would be narrower than half a pixel is
left out, and the words say how many that are; `save_html` writes a page where the wheel zooms in on all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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

    def __init__(self, svg: str, words: str, everything: str, seconds: float):
        super().__init__(svg, words)
        self._everything = everything
        self._seconds = seconds

    def save_html(self, path: str | Path) -> Path:
        """A page of its own, with every span: the wheel zooms, dragging moves, a double click resets."""
        page = _PAGE.replace("FROM", str(_LEFT)).replace("WIDE", str(_WIDTH))
        page = page.replace("SPAN", f"{self._seconds:.9f}").replace("DRAWING", self._everything)
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
    all_lanes = sorted({span.lane for span in trace.spans})
    said = f"{title + ': ' if title else ''}{format_seconds(end - begin)}, all {len(trace.spans):,} spans"
    everything = _lanes(trace.spans, all_lanes, begin, end, said)
    return TraceLanes(svg, words, everything, end - begin)


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
