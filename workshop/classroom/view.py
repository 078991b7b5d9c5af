"""What an instructor sees: who is stuck where, each exercise's tries, hints and time, and the room's guesses.

`look` reads a room once, learner by learner, and trusts none of the files: one that is another's, a link, too
long or no state is listed with the reason, under its folder's name, and the rest of the room is seen all the
same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.classroom.files import Refused, opened_folder, read_bytes, read_json
from workshop.classroom.folder import CODE, STATE, Room, find_room
from workshop.classroom.names import FOLDER_NAME, check_folder_name
from workshop.classroom.state import State, Work
from workshop.exercises import all_exercises
from workshop.exercises.engine.guess import Question
from workshop.exercises.engine.prose import paragraph, table

STUCK_TRIES = 3
STUCK_SECONDS = 600.0
_MOST_FOLDERS = 2000  # of a room; a thousand empty folders shall cost no minute
BINS = 8


@dataclass(frozen=True)
class Seen:
    """One learner as the instructor sees them: the state, the folder's name, and the user whose it is."""

    folder: str
    user: int
    state: State
    stamp: tuple[int, ...] = ()  # of the file it was read from; another file, or other content, has another

    @property
    def solved(self) -> int:
        """How many exercises."""
        return sum(work.solved for work in self.state.exercises.values())

    @property
    def at(self) -> tuple[str, Work] | None:
        """The exercise that was touched last."""
        touched = [(name, work) for name, work in self.state.exercises.items() if work.last_at is not None]
        return max(touched, key=lambda pair: pair[1].last_at or 0.0, default=None)

    def stuck(self, now: float) -> tuple[str, Work] | None:
        """The exercise at which they are, if it has resisted three tries or ten minutes."""
        if self.at is None or self.at[1].solved:
            return None
        work = self.at[1]
        long = work.first_at is not None and now - work.first_at >= STUCK_SECONDS
        return self.at if work.tries >= STUCK_TRIES or long else None


@dataclass(frozen=True)
class Statistics:
    """One exercise over the room: who tried, who solved, and medians (seconds: of those who were timed)."""

    exercise: str
    tried: int
    solved: int
    tries: float
    hints: float
    seconds: float | None
    slowest: tuple[str, float] | None  # (name, seconds)

    def row(self) -> tuple[str, ...]:
        """As texts, in the order of the fields."""
        slowest = f"{_minutes(self.slowest[1])} ({self.slowest[0]})" if self.slowest else ""
        counts = (str(self.tried), str(self.solved), f"{self.tries:g}", f"{self.hints:g}")
        return (self.exercise, *counts, _minutes(self.seconds), slowest)


@dataclass(frozen=True)
class GuessesOf:
    """All guesses at one question, and what was measured: one value for each who guessed, or fewer."""

    question: str
    unit: str
    guesses: tuple[Any, ...]
    measured: tuple[Any, ...]

    @property
    def truth(self) -> Any:
        """What was measured: the median of numbers, the most frequent of words; None where nobody has yet."""
        if not self.measured:
            return None
        if all(isinstance(value, float) for value in self.measured):
            return statistics.median(self.measured)
        return Counter(self.measured).most_common(1)[0][0]

    def histogram(self) -> list[tuple[str, int, bool]]:
        """(what, how many guessed it, whether the truth is there), from small to large or by name."""
        numbers = [value for value in self.guesses if isinstance(value, float)]
        truth = self.truth
        if numbers and (truth is None or isinstance(truth, float)):
            return self._bins(numbers, truth)
        counts = Counter(_in_words(self, value) for value in self.guesses)
        here = None if truth is None else _in_words(self, truth)
        if here is not None:
            counts.setdefault(here, 0)
        return [(what, counts[what], what == here) for what in sorted(counts)]

    def _bins(self, numbers: list[float], truth: float | None) -> list[tuple[str, int, bool]]:
        """Bins of one width; where the numbers span powers of ten, of one factor."""
        all_of_them = numbers if truth is None else [*numbers, truth]
        low, high = min(all_of_them), max(all_of_them)
        if low == high:
            return [(_in_words(self, low), len(numbers), truth is not None)]
        by_factor = low > 0 and high / low > 30
        step = (high / low) ** (1 / BINS) if by_factor else (high - low) / BINS
        edges = [low * step**place if by_factor else low + step * place for place in range(BINS)] + [high]

        def bin_of(value: float) -> int:
            return max(0, min(BINS, bisect_right(edges, value)) - 1)

        counts = Counter(map(bin_of, numbers))
        return [
            (
                f"{_in_words(self, edges[place])} to {_in_words(self, edges[place + 1])}",
                counts[place],
                truth is not None and bin_of(truth) == place,
            )
            for place in range(BINS)
        ]


class RoomView:
    """A room at one moment; shows itself as text and as HTML."""

    def __init__(self, room: Room, seen: Sequence[Seen], refused: Sequence[tuple[str, str]], now: float):
        self.room = room
        self.now = now
        self.refused = list(refused)
        self.learners = sorted(seen, key=self._place)

    def _place(self, one: Seen) -> tuple[bool, str, str]:
        """Who is stuck comes first."""
        return one.stuck(self.now) is None, one.state.name.lower(), one.folder

    def named(self, words: str) -> Seen:
        """The learner of that name or folder.

        Raises:
            ValueError: nobody is, or several are; lists them.
        """
        matching = [one for one in self.learners if words in (one.folder, one.state.name)]
        if len(matching) == 1:
            return matching[0]
        who = [f"{one.state.name} ({one.folder})" for one in (matching or self.learners)]
        why = f"{len(matching)} are called" if matching else "nobody here is called"
        raise ValueError(f"{why} {words!r}; there are: {', '.join(who) or 'none'}")

    def statistics(self) -> list[Statistics]:
        """Of each exercise that somebody has tried, in the order of the lessons."""
        return [one for exercise in all_exercises() if (one := self._of(exercise.name)) is not None]

    def _of(self, exercise: str) -> Statistics | None:
        works = [(one.state.name, one.state.exercises.get(exercise, Work())) for one in self.learners]
        tried = [work for _, work in works if work.tries or work.hints]
        if not tried:
            return None
        timed = [(work.seconds, name) for name, work in works if work.seconds is not None]
        slowest = max(timed, default=None)
        return Statistics(
            exercise,
            len(tried),
            sum(work.solved for work in tried),
            statistics.median(work.tries for work in tried),
            statistics.median(work.hints for work in tried),
            statistics.median(seconds for seconds, _ in timed) if timed else None,
            slowest and (slowest[1], slowest[0]),
        )

    def guesses(self) -> list[GuessesOf]:
        """Of each question that somebody has answered, by name."""
        by_question: dict[str, list[Any]] = {}
        for one in self.learners:
            for name, guess in one.state.guesses.items():
                if guess.guess is not None:
                    by_question.setdefault(name, []).append(guess)
        return [
            GuessesOf(
                name,
                next((guess.unit for guess in by_question[name] if guess.unit), ""),
                tuple(guess.guess for guess in by_question[name]),
                tuple(guess.measured for guess in by_question[name] if guess.measured is not None),
            )
            for name in sorted(by_question)
        ]

    @functools.cached_property
    def tables(self) -> list[tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]]:
        """(title, head, rows) of what is shown."""
        return list(self._tables())

    def _tables(self) -> Iterator[tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]]:
        stuck = sum(one.stuck(self.now) is not None for one in self.learners)
        title = f"{self.room.title}: {len(self.learners)} learners, {stuck} stuck"
        head = ("Learner", "Solved", "At", "Tries", "Hints", "Since", "Last seen", "Doctor", "Folder")
        yield title, head, [self._row(one) for one in self.learners]
        columns = ("Exercise", "Tried", "Solved", "Tries", "Hints", "Time", "Slowest")
        yield "Exercises (tries, hints and time: medians)", columns, [one.row() for one in self.statistics()]
        for question in self.guesses():
            bars = [
                (what, f"{'#' * min(count, 60)} {count}", "measured here" if here else "")
                for what, count, here in question.histogram()
            ]
            yield (
                f"Guess {question.question}: {len(question.guesses)} answers",
                ("Answer", "How many", ""),
                bars,
            )
        if self.refused:
            yield "Not read", ("Folder", "Why"), self.refused

    def _row(self, one: Seen) -> tuple[str, ...]:
        where, work = one.at or ("", Work())
        state = f"{where} STUCK" if one.stuck(self.now) else f"{where} solved" if work.solved else where
        since = None if work.first_at is None or work.solved else self.now - work.first_at
        doctor = one.state.doctor
        faults = [f"no {name}: {reason}" for name, reason in doctor.faults] if doctor else []
        machine = "; ".join(faults) or ("ok" if doctor else "")
        seen = f"{_minutes(self.now - one.state.written_at)} ago" if one.state.written_at else "never"
        counts = (str(work.tries), str(work.hints), _minutes(since))
        return (one.state.name, str(one.solved), state, *counts, seen, machine, one.folder)

    def __str__(self) -> str:
        from workshop.exercises.engine.feedback import in_columns

        parts = []
        for title, head, rows in self.tables:
            parts.append("\n".join([title, *in_columns([head, *rows])]))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(paragraph(title) + table(head, rows) for title, head, rows in self.tables if rows)


def look(folder: Path | str | Room, now: float | None = None, before: RoomView | None = None) -> RoomView:
    """The room as it is at this moment.

    before: an earlier look; whose file has not changed since then is not read again.

    Raises:
        ValueError: there is no room in that folder, or its learners may not be listed by this user.
    """
    room = folder if isinstance(folder, Room) else find_room(folder)
    known = [exercise.name for exercise in all_exercises()]
    known_before = {one.folder: one for one in before.learners} if before else {}
    seen: list[Seen] = []
    refused: list[tuple[str, str]] = []
    with _learners(room) as inside:
        names = sorted(os.listdir(inside))
        for name in names[:_MOST_FOLDERS]:
            try:
                seen.append(_seen(inside, name, known, known_before.get(name)))
            except FileNotFoundError:
                refused.append((name[:80], "nothing has been written there yet"))
            except (OSError, Refused) as error:
                refused.append((name[:80], getattr(error, "strerror", "") or str(error)))
    if len(names) > _MOST_FOLDERS:
        refused.append(
            ("...", f"{len(names) - _MOST_FOLDERS} more folders: a room has at most {_MOST_FOLDERS}")
        )
    return RoomView(room, seen, refused, time.time() if now is None else now)


def code_of(room: Room, learner: str, exercise: str) -> str:
    """The answer that a learner has agreed to share.

    Raises:
        ValueError: they have not, or what is there may not be read.
    """
    with _learners(room) as learners, _own(learners, check_folder_name(learner)) as (own, user):
        try:
            with opened_folder(CODE, user, own) as code:
                return read_bytes(code, f"{exercise}.py", user).decode("utf-8", "replace")
        except FileNotFoundError:
            raise ValueError(f"{learner} shares no answer to {exercise}") from None


def _learners(room: Room) -> contextlib.AbstractContextManager[int]:
    if not os.access(room.learners, os.R_OK):
        raise ValueError(f"you may not list the learners of {room.folder}; who may: {room.readers}")
    return opened_folder(room.learners, room.owner)


@contextlib.contextmanager
def _own(learners: int, name: str) -> Iterator[tuple[int, int]]:
    """A learner's folder, opened within ``learners``, and its user."""
    with opened_folder(name, None, learners) as inside:
        yield inside, os.fstat(inside).st_uid


def _seen(learners: int, name: str, known: Sequence[str], before: Seen | None) -> Seen:
    if not FOLDER_NAME.fullmatch(name):
        raise Refused("it is called as no learner's folder is")
    with _own(learners, name) as (inside, user):
        status = os.stat(STATE, dir_fd=inside, follow_symlinks=False)
        plain = (status.st_uid, status.st_mode, status.st_nlink, status.st_dev, status.st_ino, status.st_size)
        # ctime, too, which no owner can set back.
        stamp = (user, *plain, status.st_mtime_ns, status.st_ctime_ns)
        if before is not None and before.stamp == stamp:
            return before
        return Seen(name, user, State.read(read_json(inside, STATE, user), known), stamp)


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{max(seconds, 0):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _in_words(question: GuessesOf, value: Any) -> str:
    return ", ".join(Question(question.question, question.unit).shown(value))
