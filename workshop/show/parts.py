"""Parts of memory as pictures show them: each of a run's parts under one of nine names, each name one colour.

A picture has room for fewer parts than `workshop.facts.memory_parts` names. Here each of those becomes one of
the few `DRAWN`, so that a colour means one thing in every picture. The sum of a bar is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workshop.facts.checks import nearest
from workshop.facts.memory_parts import PARTS
from workshop.show.style import RANK_COLOURS

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

PART_COLOURS = dict(zip(DRAWN, (*RANK_COLOURS, "#DDDDDD"), strict=True))


def parts_of(source: Any) -> dict[str, float]:
    """Bytes by part of `DRAWN` at the peak, from whatever knows them; parts of no bytes are left out.

    ``source``: a mapping of part to bytes; a `MemoryPrediction` (its worst stage); a `Measurement`; or what
    `measure` and `rehearse` bring back. ValueError for anything else, and for a part
    of a mapping that no table here knows.
    """
    parts: dict[str, float] = {}
    for name, size in _named_bytes(source).items():
        part = _PART_OF[name]
        parts[part] = parts.get(part, 0.0) + float(size)
    return {part: parts[part] for part in DRAWN if parts.get(part)}


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
