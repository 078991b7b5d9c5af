"""One hand-in graded: each exercise judged, beside the verdict that was stored with it; then all cells run
again.

The score is the number of exercises that are right, out of those of the lesson. It comes from the checks in
this process alone. What the rerun of the cells says (which fail now) is told, and counts for nothing: it is
the sandbox's own word.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workshop.classroom.grading.handins import Answered, HandIn, answers_in, read_notebook, stands_on
from workshop.classroom.grading.noticed import noticed
from workshop.classroom.grading.remote import Answer, Stopped, answering
from workshop.classroom.grading.sandbox import Bounds, Sandbox
from workshop.classroom.grading.wire import Damaged, Ended, decode, receive_message, send_message
from workshop.classroom.names import clean_text
from workshop.exercises import find
from workshop.exercises.engine.check import Wrong
from workshop.exercises.engine.exercise import Exercise
from workshop.exercises.engine.judge import Verdict, judge
from workshop.launch import Failure, RankFailed

_RANKS_START_SECONDS = 60.0  # the sandbox's engine imports torch first
_LONGEST_MESSAGE = 600


@dataclass(frozen=True)
class Graded:
    """One exercise: the verdict now, the stored one, whether the cell was there at all.

    ``noticed``: what to look at in a cell that runs on ranks.
    """

    exercise: str
    verdict: Verdict
    stored: str
    handed_in: bool
    seconds: float
    noticed: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the notebook claims another verdict than the grader's."""
        return bool(self.stored) and self.stored != self.verdict.state


@dataclass(frozen=True)
class FailingCell:
    """A cell that fails when the notebook is run again: its number, its first line, the error, and whether it
    failed when it was handed in.
    """

    number: int
    first_line: str
    error: str
    failed_before: bool


@dataclass
class Report:
    """A hand-in's grades; ``problem`` says why there are none."""

    hand_in: HandIn
    isolated: bool
    exercises: list[Graded] = field(default_factory=list)
    cells: list[FailingCell] = field(default_factory=list)
    rerun: str = "not asked for"
    problem: str = ""

    @property
    def score(self) -> float:
        """Exercises that are right."""
        return float(sum(one.verdict.state == "right" for one in self.exercises))

    @property
    def max_score(self) -> float:
        """Exercises of the lesson; 0 where it is none."""
        try:
            return float(len(self.hand_in.exercises))
        except ValueError:
            return 0.0


@dataclass(frozen=True)
class Grader:
    """How hand-ins are graded. ``cells``: run the whole notebook again too, in ``bounds.seconds`` for all."""

    bounds: Bounds = field(default_factory=Bounds)
    isolated: bool = True
    cells: bool = False

    def grade(self, hand_in: HandIn, on_exercise: Callable[[Graded], None] | None = None) -> Report:
        """Judge it; what is wrong with the hand-in itself is in the report's ``problem``."""
        report = Report(hand_in, self.isolated)
        try:
            exercises, notebook = hand_in.exercises, read_notebook(hand_in.path)
        except (ValueError, OSError) as error:
            report.problem = str(error)
            return report
        answers = answers_in(notebook)
        with contextlib.ExitStack() as open_boxes:
            ranks = _Ranks(self, open_boxes)
            for exercise in exercises:
                begun = time.monotonic()
                verdict = self.judged(exercise, answers, ranks)
                answer = answers.get(exercise.name)
                look_at = tuple(noticed(answer.source)) if answer and exercise.ranks else ()
                stored, seconds = answer.stored if answer else "", time.monotonic() - begun
                one = Graded(exercise.name, verdict, stored, answer is not None, seconds, look_at)
                report.exercises.append(one)
                if on_exercise:
                    on_exercise(one)
        if self.cells:
            self._rerun(report, notebook)
        return report

    def judged(self, exercise: Exercise, answers: dict[str, Answered], ranks: Any = None) -> Verdict:
        """The verdict on one exercise's cell."""
        if exercise.name not in answers:
            return Verdict("unsolved", "the notebook has no cell for it.")
        answer = answers[exercise.name]

        def run(wanted: Exercise, source: str, namespace: dict[str, Any]) -> None:
            before = [(f"{name} --solution", find(name).solution) for name in wanted.needs]
            before.append((f"{wanted.name} --above", stands_on(source, answer.above)))
            before += [(name, answers[name].source) for name in wanted.needs if _is_whole(answers.get(name))]
            namespace.update(Answer(box).define(wanted, source, before))

        if exercise.ranks:
            verdict = judge(exercise, answer.source, {}, launched=ranks.launched)
        else:
            with answering(self.bounds, self.isolated) as box:
                verdict = judge(exercise, answer.source, {}, run=run)
        return Verdict(verdict.state, clean_text(verdict.message, _LONGEST_MESSAGE), "")

    def _rerun(self, report: Report, notebook: Sequence[dict[str, Any]]) -> None:
        """Run every cell again, in a sandbox; what fails now is told."""
        files = {"notebook.ipynb": report.hand_in.path.read_text(encoding="utf-8", errors="replace")}
        program = "workshop.cli.grade_cells"
        with Sandbox(self.bounds, self.isolated, program, files=files, limits_cpu=False) as box:
            try:
                reply = receive_message(
                    box.end, time.monotonic() + self.bounds.seconds + _RANKS_START_SECONDS
                )
                failing = {int(number): str(words) for number, words in reply["failing"]}
                report.rerun = f"{reply['cells']:d} cells were run again"
            except (TimeoutError, Ended, Damaged, KeyError, ValueError, TypeError) as error:
                late = isinstance(error, TimeoutError)
                why = f"not done in {self.bounds.seconds:g} seconds" if late else box.reason()
                report.rerun = f"the cells were not run to the end: {why}"
                return
        for number, words in sorted(failing.items()):
            if 0 <= number < len(notebook):
                first = next(iter(notebook[number]["source"].strip().splitlines()), "")
                outputs = [one for one in notebook[number]["outputs"] if isinstance(one, dict)]
                before = any(one.get("output_type") == "error" for one in outputs)
                fails = FailingCell(number, clean_text(first, 80), clean_text(words, 200), before)
                report.cells.append(fails)


class _Ranks:
    """One sandbox with an engine for a hand-in's exercises on ranks; a new one when it came to an end."""

    def __init__(self, grader: Grader, boxes: contextlib.ExitStack):
        self.grader, self.boxes = grader, boxes
        self.box: Sandbox | None = None

    def launched(self, exercise: Exercise, source: str) -> Any:
        """What each rank reported, for `judge`."""
        assert exercise.ranks
        if self.box is None:
            program = "workshop.classroom.grading.trying"
            self.box = self.boxes.enter_context(Sandbox(self.grader.bounds, self.grader.isolated, program))
        seconds = self.grader.bounds.seconds
        try:
            send_message(self.box.end, {"exercise": exercise.name, "source": source, "seconds": seconds})
            reply = receive_message(self.box.end, time.monotonic() + seconds + _RANKS_START_SECONDS)
        except TimeoutError:
            self._drop()
            raise Stopped(f"The ranks did not come to an end in {seconds:g} seconds.") from None
        except Ended:
            reason = self._drop()
            raise Stopped(f"The ranks came to no end: {reason}.") from None
        except Damaged as error:
            self._drop()
            raise Stopped(f"What came back is no report: {error}.") from None
        return _reports(exercise, reply)

    def _drop(self) -> str:
        box, self.box = self.box, None
        assert box is not None
        box.kill()
        return box.reason()


class _Reports(dict[int, Any]):
    """Reports by rank, as a launch's result has them; what the ranks printed is left in the sandbox."""

    text = ""


def _reports(exercise: Exercise, reply: dict[str, Any]) -> _Reports:
    """The reports, or the failure, in a sandbox's message."""
    if "failed" in reply:
        raise RankFailed(str(reply["failed"])[:500], [_failure(one) for one in reply.get("failures") or []])
    reports, complete = reply.get("reports"), reply.get("complete")
    if not isinstance(reports, list) or not isinstance(complete, list) or len(reports) != exercise.ranks:
        raise Stopped("What came back is no report of each rank.")
    for rank, whole in enumerate(complete):
        if whole is not True:
            raise Wrong(
                f"Rank {rank} ended before the check was done, or reported a check of its own. "
                "Does the cell call `exit()` or `report(check=...)`?"
            )
    try:
        return _Reports((rank, {"check": decode(one)}) for rank, one in enumerate(reports))
    except Damaged as error:
        raise Stopped(f"What came back is no report: {error}.") from None


def _failure(one: Any) -> Failure:
    one = one if isinstance(one, dict) else {}
    line = one.get("line")
    return Failure(
        rank=one["rank"] if type(one.get("rank")) is int else 0,
        kind=str(one.get("kind", ""))[:40],
        error_type=str(one.get("error_type", ""))[:100],
        message=str(one.get("message", ""))[:2000],
        line=line if type(line) is int else None,
        function=None,
        traceback="",
    )


def _is_whole(answer: Answered | None) -> bool:
    """Whether an earlier answer may stand before one that calls it: it is Python, and holds no open place."""
    from workshop.exercises.engine import cell

    if answer is None:
        return False
    try:
        return not cell.open_places(cell.parse("earlier", answer.source))
    except SyntaxError:
        return False


def as_json(report: Report) -> dict[str, Any]:
    """A report as data."""
    return {
        "student_id": report.hand_in.learner,
        "assignment": report.hand_in.assignment,
        "file": str(report.hand_in.path),
        "isolated": report.isolated,
        "problem": report.problem,
        "score": report.score,
        "max_score": report.max_score,
        "exercises": [
            {
                "exercise": one.exercise,
                "state": one.verdict.state,
                "message": one.verdict.message,
                "stored": one.stored,
                "differs": one.differs,
                "handed_in": one.handed_in,
                "look_at": list(one.noticed),
                "seconds": round(one.seconds, 2),
            }
            for one in report.exercises
        ],
        "rerun": report.rerun,
        "cells_that_fail": [vars(one) for one in report.cells],
    }
