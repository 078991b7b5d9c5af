"""Memory by part: what was predicted, rehearsed and measured, one stacked bar each, in the same colours.

A picture has room for fewer parts than `workshop.facts.memory_parts` names. Here each of those becomes one of
the few `DRAWN`, so that a colour means one thing in every bar. The sum of a bar is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workshop.facts.checks import nearest
from workshop.facts.memory_parts import PARTS
from workshop.facts.units import format_bytes
from workshop.show.style import LIMIT, RANK_COLOURS, Picture, byte_unit, new_figure

_JOINED = {
    "weight cache": "weights",
    "gathered gradients": "gradients",
    "stage boundaries": "activations",
    "buckets": "communication",
    "buffers": "other",
    "workspace": "other",
}
_PART_OF = {part: _JOINED.get(part, part) for part in PARTS}
DRAWN = tuple(part for part in PARTS if part not in _JOINED)
"""The parts that are drawn, in the order in which they are stacked."""

PART_COLOURS = dict(zip(DRAWN, (*RANK_COLOURS[:7], "#999999", "#DDDDDD"), strict=True))


def parts_of(source: Any) -> dict[str, float]:
    """Bytes by part of `DRAWN` at the peak, from whatever knows them; parts of no bytes are left out.

    ``source``: a mapping of part to bytes; a `MemoryPrediction` (its worst stage); a `Measurement`; or what
    `measure` and `rehearse` bring back. ValueError for anything else, and for a part
    of a mapping that no table here knows.
    """
    found: dict[str, float] = {}
    for name, size in _named_bytes(source).items():
        part = _PART_OF[name]
        found[part] = found.get(part, 0.0) + float(size)
    return {part: found[part] for part in DRAWN if found.get(part)}


def _named_bytes(source: Any) -> Mapping[str, float]:
    if isinstance(source, Mapping):
        for name in source:
            if name not in _PART_OF:
                raise ValueError(
                    f"unknown part {name!r}{nearest(name, _PART_OF)} (known: {', '.join(_PART_OF)})"
                )
        return source
    if hasattr(source, "worst_stage"):
        return {name: _at(sizes, source.worst_stage) for name, sizes in source.parts.items()}
    report = getattr(source, "memory", None) or source
    parts = getattr(report, "peak_parts", None) or getattr(report, "parts", None)
    if not parts:
        raise ValueError(
            f"a {type(source).__name__} has no memory by part: give a prediction, a rehearsal, a measurement "
            "that was asked for memory, or a mapping of part to bytes"
        )
    return parts


def _at(sizes: Any, stage: int) -> float:
    return float(np.atleast_1d(sizes)[stage if np.size(sizes) > 1 else 0])


def memory_by_part(
    cases: Mapping[str, Any], *, cap: float | None = None, title: str = "", compare: bool = True
) -> Picture:
    """One stacked bar for each case, for example ``{"predicted": expected, "measured": found}``.

    ``cases``: label -> anything that `parts_of` reads. ``cap``: bytes of the device, drawn as a line.
    ``title`` stands above. ``compare``: say at every bar how far the first was off it; False where the bars
    are different things. ValueError without a case.
    """
    if not cases:
        raise ValueError("no case to draw: give {'predicted': ..., 'measured': ...}")
    stacks = {name: parts_of(source) for name, source in cases.items()}
    totals = {name: sum(parts.values()) for name, parts in stacks.items()}
    unit, size = byte_unit(max([*totals.values(), cap or 0]))
    figure, axis = new_figure(7.0, 1.2 + 0.48 * len(stacks))
    _bars(axis, stacks, size)
    for place, (name, total) in enumerate(totals.items()):
        over = cap is not None and total > cap
        words = " " + format_bytes(total) + (_against_first(name, totals) if compare else "")
        axis.text(total / size, place, words, va="center", fontsize=8, color=LIMIT if over else "black")
    if cap is not None:
        axis.axvline(cap / size, color=LIMIT, linewidth=1.5, label=f"cap {format_bytes(cap)}")
    axis.set_yticks(range(len(stacks)), list(stacks))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.3 * max([*totals.values(), cap or 0]) / size or 1)
    axis.set_xlabel(unit)
    axis.set_title(title, fontsize=9, loc="left")
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return Picture(figure, "memory by part: " + "; ".join(_in_words(n, stacks[n], totals[n]) for n in stacks))


def _bars(axis: Any, stacks: Mapping[str, Mapping[str, float]], size: float) -> None:
    left = [0.0] * len(stacks)
    for part in PARTS:
        widths = [parts.get(part, 0.0) / size for parts in stacks.values()]
        if any(widths):
            axis.barh(range(len(stacks)), widths, 0.6, left=left, color=PART_COLOURS[part], label=part)
            left = [a + b for a, b in zip(left, widths, strict=True)]


def _against_first(name: str, totals: Mapping[str, float]) -> str:
    """How far the first case was off this one, if this is not the first itself."""
    first = next(iter(totals))
    if name == first or not totals[name]:
        return ""
    return f"  ({first} {totals[first] / totals[name] - 1:+.1%})"


def _in_words(name: str, parts: Mapping[str, float], total: float) -> str:
    each = ", ".join(f"{part} {format_bytes(size)}" for part, size in parts.items())
    return f"{name} {format_bytes(total)} ({each})"
