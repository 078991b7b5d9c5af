"""`compare(expected, measured)`: the last of the four lines. A picture and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workshop.facts.units import format_bytes
from workshop.predict.interval import Interval
from workshop.predict.memory import MemoryPrediction
from workshop.show.bars import memory_by_part
from workshop.show.parts import parts_of

TOLERANCE = 0.05
"""How far a prediction may be off before the verdict says so."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Bytes expected and measured, part by part; shows itself as a picture, and as a sentence elsewhere.

    interval: p10 to p90 of what was expected, where it was predicted; what was rehearsed has none.
    """

    expected_bytes: float
    measured_bytes: float
    picture: Any
    interval: Interval | None = None

    @property
    def ratio(self) -> float:
        """Expected over measured: above one, the prediction was too high."""
        return self.expected_bytes / self.measured_bytes

    @property
    def agrees(self) -> bool:
        """Whether the prediction is within `TOLERANCE`."""
        return abs(self.ratio - 1) <= TOLERANCE

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the prediction's interval; None where there is no interval."""
        return None if self.interval is None else self.interval.holds(self.measured_bytes)

    @property
    def verdict(self) -> str:
        """One sentence."""
        return _verdict(self.expected_bytes, self.measured_bytes, self.interval)

    def __repr__(self) -> str:
        return self.verdict

    def _repr_png_(self) -> bytes:
        return self.picture._repr_png_()


def compare(expected: Any, measured: Any, *, cap: float | None = None) -> Comparison:
    """Peak memory by part, expected beside measured.

    Args:
        expected: a `MemoryPrediction`, a rehearsal, or a mapping of part to bytes.
        measured: what `train` brought back (its worst rank), or one rank's `Measurement`.
        cap: bytes of the device, drawn as a line.

    Raises:
        ValueError: one of the two has no memory by part; nothing was measured.
    """
    before, after = (sum(parts_of(source).values()) for source in (expected, measured))
    interval = expected.allocated_interval if isinstance(expected, MemoryPrediction) else None
    verdict = _verdict(before, after, interval)
    picture = memory_by_part({"expected": expected, "measured": measured}, cap=cap, title=verdict)
    return Comparison(before, after, picture, interval)


def _verdict(expected: float, measured: float, interval: Interval | None) -> str:
    ratio = expected / measured
    verdict = "they agree" if abs(ratio - 1) <= TOLERANCE else f"off by more than {TOLERANCE:.0%}"
    if interval is not None:
        where = "inside" if interval.holds(measured) else "outside"
        low, high = (format_bytes(size) for size in interval)
        verdict += f"; {where} the interval of {low} to {high}"
    return (
        f"expected {format_bytes(expected)}, measured {format_bytes(measured)} ({ratio - 1:+.1%}): {verdict}"
    )
