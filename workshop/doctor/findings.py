"""What a check of the doctor finds, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

VERDICTS = ("ok", "note", "no")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One verdict: ``ok``, ``note`` (works, but know this) or ``no`` (will not work), and what to ``do``."""

    verdict: str
    found: str
    do: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict
        assert self.do or self.verdict != "no", "a no says what to do"


@dataclasses.dataclass(frozen=True)
class Check:
    """A named check with its time limit in seconds."""

    name: str
    examine: Callable[[], Finding]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A finding under the name of its check."""

    name: str
    verdict: str
    found: str
    do: str


class Diagnosis(tuple[Line, ...]):
    """All lines; shows itself as text in a notebook and in a terminal."""

    __slots__ = ()

    @property
    def can_run(self) -> bool:
        """True when there is no ``no``."""
        return not any(line.verdict == "no" for line in self)

    def __repr__(self) -> str:
        return "\n".join([*map(render, self), summary(self)])


_COLOURS = {"ok": "32", "note": "33", "no": "1;31"}  # as terminals number them: green, yellow, bold red


def render(line: Line, colours: bool = False) -> str:
    """The line for a terminal; what to do stands below it. Colours go on the verdict's word alone."""
    verdict = f"{line.verdict:<4}"
    if colours:
        verdict = f"\x1b[{_COLOURS[line.verdict]}m{verdict}\x1b[0m"
    text = f"{verdict}  {line.name:<18}  {line.found}"
    return text + (f"\n{'':26}do: {line.do}" if line.do else "")


def summary(diagnosis: Diagnosis) -> str:
    """The last line."""
    counts = ", ".join(f"{sum(line.verdict == v for line in diagnosis)} {v}" for v in VERDICTS)
    can = "this machine can run the workshop" if diagnosis.can_run else "not yet: see each no above"
    return f"{counts}: {can}"
