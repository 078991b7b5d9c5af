"""Grades as tables: one row a hand-in in nbgrader's columns, one in otter's, and one row an exercise with the
reasons.

nbgrader's exporter (``nbgrader/plugins/export.py``, ``CsvExportPlugin``) writes eleven columns; what this
course does not know (due date, last and first name, email) stays empty. Otter's ``final_grades.csv`` (``otter
grade``) has the file, a column for each question, and the percentage and points of the whole.
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
    "message",
)


def write_all(reports: Sequence[Report], folder: Path) -> list[Path]:
    """Write ``grades.csv`` (nbgrader), ``final_grades.csv`` (otter), ``exercises.csv``, ``report.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("grades.csv", "final_grades.csv", "exercises.csv", "report.json")]
    _write(paths[0], NBGRADER, map(nbgrader_row, reports))
    questions = sorted({one.exercise for report in reports for one in report.exercises})
    _write(paths[1], otter_columns(questions), (otter_row(report) for report in reports))
    _write(paths[2], EXERCISES, (row for report in reports for row in exercise_rows(report)))
    paths[3].write_text(
        json.dumps([as_json(report) for report in reports], indent=1) + "\n", encoding="utf-8"
    )
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


def otter_columns(questions: Iterable[str]) -> tuple[str, ...]:
    """The columns of otter's table, for these questions."""
    return (*questions, "percent_correct", "file")


def otter_row(report: Report) -> dict[str, Any]:
    """A row of otter's table: a point for each exercise that is right; the share of the whole, 0 to 1."""
    points: dict[str, Any] = {one.exercise: float(one.verdict.state == "right") for one in report.exercises}
    share = report.score / report.max_score if report.max_score else 0.0
    return {**points, "percent_correct": round(share, 4), "file": str(report.hand_in.path)}


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
            "message": one.verdict.message,
        }


def _write(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value
