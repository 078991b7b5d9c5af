"""Grades as tables: one row a hand-in in nbgrader's columns, one in otter's, and one row an exercise with the
reasons.

nbgrader's exporter (``nbgrader/plugins/export.py``, ``CsvExportPlugin``) writes eleven columns; what this
course does not know (due date, last and first name, email) stays empty. Otter grades one assignment at a time
(``otter grade``; ``otter/grade/utils.py``, ``merge_scores_to_df``): its ``final_grades.csv`` has the file, a
column for each question, points, share and state, and a first row with the points that can be had. So there
is one for each assignment here. Compared with nbgrader 0.9.6 and otter-grader 7.0.0.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workshop.classroom.grading.graded import Report, as_json

NBGRADER = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)
EXERCISES = (
    "student_id",
    "assignment",
    "exercise",
    "state",
    "score",
    "max_score",
    "stored",
    "differs",
    "look_at",
    "message",
)


def write_all(reports: Sequence[Report], folder: Path) -> list[Path]:
    """Write ``grades.csv`` (nbgrader), ``exercises.csv``, ``report.json``; for otter, by assignment,
    ``LESSON/final_grades.csv``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("grades.csv", "exercises.csv", "report.json")]
    _write(paths[0], NBGRADER, map(nbgrader_row, reports))
    _write(paths[1], EXERCISES, (row for report in reports for row in exercise_rows(report)))
    paths[2].write_text(
        json.dumps([as_json(report) for report in reports], indent=1) + "\n", encoding="utf-8"
    )
    for assignment in sorted({report.hand_in.assignment for report in reports if report.max_score}):
        some = [report for report in reports if report.hand_in.assignment == assignment]
        questions = sorted(exercise.name for exercise in some[0].hand_in.exercises)
        paths.append(folder / assignment / "final_grades.csv")
        paths[-1].parent.mkdir(exist_ok=True)
        rows = sorted((otter_row(report, questions) for report in some), key=lambda row: str(row["file"]))
        _write(paths[-1], otter_columns(questions), [points_possible(questions), *rows])
    return paths


def nbgrader_row(report: Report) -> dict[str, Any]:
    """A row of nbgrader's export."""
    handed_in = datetime.datetime.fromtimestamp(report.hand_in.path.stat().st_mtime, datetime.UTC)
    row: dict[str, Any] = dict.fromkeys(NBGRADER, "")
    return row | {
        "assignment": report.hand_in.assignment,
        "timestamp": handed_in.strftime("%Y-%m-%d %H:%M:%S"),
        "student_id": report.hand_in.learner,
        "raw_score": report.score,
        "late_submission_penalty": 0.0,
        "score": report.score,
        "max_score": report.max_score,
    }


def otter_columns(questions: Sequence[str]) -> tuple[str, ...]:
    """The columns of otter's table, for these questions."""
    return ("file", *questions, "total_points_earned", "percent_correct", "grading_status")


def points_possible(questions: Sequence[str]) -> dict[str, Any]:
    """Otter's first row: what each question is worth."""
    row: dict[str, Any] = dict.fromkeys(questions, 1.0)
    row |= {"total_points_earned": float(len(questions)), "percent_correct": 1, "grading_status": "--"}
    return row | {"file": "points-per-question"}


def otter_row(report: Report, questions: Sequence[str]) -> dict[str, Any]:
    """A row of otter's table: a point for each exercise that is right; the share of the whole, 0 to 1."""
    points: dict[str, Any] = dict.fromkeys(questions, 0.0)
    points |= {one.exercise: float(one.verdict.state == "right") for one in report.exercises}
    return {
        **points,
        "file": str(report.hand_in.path),
        "total_points_earned": report.score,
        "percent_correct": round(report.score / report.max_score, 4),
        "grading_status": report.problem or "Completed",
    }


def exercise_rows(report: Report) -> Iterable[dict[str, Any]]:
    """A row for each exercise of a hand-in."""
    for one in report.exercises:
        yield {
            "student_id": report.hand_in.learner,
            "assignment": report.hand_in.assignment,
            "exercise": one.exercise,
            "state": one.verdict.state,
            "score": float(one.verdict.state == "right"),
            "max_score": 1.0,
            "stored": one.stored,
            "differs": one.differs,
            "look_at": "; ".join(one.noticed),
            "message": one.verdict.message,
        }


def _write(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with an apostrophe before it."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t"))
    return f"'{value}" if formula and value.strip("-") else value
