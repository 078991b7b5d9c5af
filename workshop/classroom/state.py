"""What a learner shares with a room: counts, times and guesses, no code; and reading it from a file that may
lie.

`State.updated` makes it of a learner's own progress, `State.read` of JSON that anybody may have written: a
known exercise, a count, a finite number, a short text without control characters, or it is left out. A file
that is no state at all is `Refused`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from workshop.classroom.files import Refused
from workshop.classroom.names import clean_text

FORMAT = 1
MOST_COUNT = 1_000_000
MOST_GUESSES = 500
MOST_FAULTS = 40
_LONGEST_WORDS = 200
_LATEST = 4e9  # seconds since 1970: the year 2096; a clock that says later is wrong


@dataclass(frozen=True)
class Work:
    """One exercise of one learner. Times are seconds since 1970; None is: before they joined, or not yet."""

    tries: int = 0
    hints: int = 0
    solved: bool = False
    first_at: float | None = None  # first try or first hint
    last_at: float | None = None
    solved_at: float | None = None

    @property
    def seconds(self) -> float | None:
        """From the first try or hint to the answer that passed."""
        if self.first_at is None or self.solved_at is None or self.solved_at < self.first_at:
            return None
        return self.solved_at - self.first_at

    def now(self, tries: int, hints: int, solved: bool, at: float) -> Work:
        """The same work after it was looked at again: what has changed happened ``at`` this time."""
        if (tries, hints, solved) == (self.tries, self.hints, self.solved):
            return self
        if not (tries or hints or solved):
            return Work()
        first = at if not (self.tries or self.hints) else self.first_at
        done = at if solved and not self.solved else self.solved_at
        return Work(tries, hints, solved, first, at, done if solved else None)


@dataclass(frozen=True)
class Guess:
    """A guess and, once it is known, what was measured: numbers, words, or a number for each point."""

    guess: Any
    measured: Any = None
    unit: str = ""


@dataclass(frozen=True)
class DoctorSummary:
    """What the doctor said of a learner's machine: lines by verdict, and each ``no`` with its reason."""

    ok: int = 0
    note: int = 0
    no: int = 0
    faults: tuple[tuple[str, str], ...] = ()  # (check, what was found)

    @staticmethod
    def of(lines: Iterable[Any]) -> DoctorSummary:
        """Of a `workshop.doctor.Diagnosis`."""
        lines = list(lines)
        counts = {kind: sum(line.verdict == kind for line in lines) for kind in ("ok", "note", "no")}
        return DoctorSummary(
            **counts, faults=tuple((line.name, line.found) for line in lines if line.verdict == "no")
        )


@dataclass(frozen=True)
class State:
    """All that one learner shares."""

    name: str
    written_at: float = 0.0
    doctor: DoctorSummary | None = None
    exercises: Mapping[str, Work] = field(default_factory=dict)
    guesses: Mapping[str, Guess] = field(default_factory=dict)
    shares_code: bool = False

    def updated(
        self, attempts: Mapping[str, Any], guesses: Mapping[str, Mapping[str, Any]], at: float
    ) -> State:
        """The state after a look at the learner's progress and guesses (`exercises.engine`)."""
        works = {
            name: self.exercises.get(name, Work()).now(one.tries, one.hints, one.solved, at)
            for name, one in attempts.items()
        }
        kept = {
            name: Guess(row.get("guess"), row.get("measured"), row.get("unit", ""))
            for name, row in guesses.items()
        }
        return replace(self, exercises=works, guesses=kept)

    def as_json(self) -> dict[str, Any]:
        """What is written."""
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def read(stored: Any, known: Iterable[str]) -> State:
        """The state in JSON that is not trusted; ``known`` are the names of the exercises there are.

        Raises:
            Refused: it is no state.
        """
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise Refused("state.json is no learner's state, or another version's")
        known = set(known)
        name = _words(stored.get("name"), 60)
        if not name.strip():
            raise Refused("state.json has no name")
        works, guesses = _table(stored.get("exercises")), _table(stored.get("guesses"))
        return State(
            name=name,
            written_at=_time(stored.get("written_at")) or 0.0,
            doctor=_doctor_summary(stored.get("doctor")),
            exercises={key: _work(value) for key, value in works.items() if key in known},
            guesses={
                _words(key, 80): _guess(value) for key, value in list(guesses.items())[:MOST_GUESSES] if value
            },
            shares_code=stored.get("shares_code") is True,
        )


def _table(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        return {}
    return {key: each for key, each in value.items() if isinstance(each, dict)}


def _words(value: Any, most: int) -> str:
    return clean_text(value[: 4 * most], most) if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return min(max(value, 0), MOST_COUNT) if type(value) is int else 0


def _time(value: Any) -> float | None:
    fits = type(value) in (int, float) and math.isfinite(value) and 0 < value < _LATEST
    return float(value) if fits else None


def _work(value: Mapping[str, Any]) -> Work:
    times = {key: _time(value.get(key)) for key in ("first_at", "last_at", "solved_at")}
    return Work(_count(value.get("tries")), _count(value.get("hints")), value.get("solved") is True, **times)


def _doctor_summary(value: Any) -> DoctorSummary | None:
    if not isinstance(value, dict):
        return None
    faults = value.get("faults")
    pairs = (
        [pair for pair in faults if isinstance(pair, list) and len(pair) == 2]
        if isinstance(faults, list)
        else []
    )
    faults = tuple((_words(one, 60), _words(other, _LONGEST_WORDS)) for one, other in pairs[:MOST_FAULTS])
    ok, note, no = (_count(value.get(kind)) for kind in ("ok", "note", "no"))
    return DoctorSummary(ok, note, no, faults)


def _guess(value: Mapping[str, Any]) -> Guess:
    return Guess(_answer(value.get("guess")), _answer(value.get("measured")), _words(value.get("unit"), 40))


def _answer(value: Any) -> Any:
    """A number, some words, or a few numbers; None for what is none of these."""
    if isinstance(value, list):
        numbers = [_answer(each) for each in value[:100]]
        return tuple(numbers) if all(isinstance(each, float) for each in numbers) else None
    if isinstance(value, str):
        return _words(value, _LONGEST_WORDS)
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
