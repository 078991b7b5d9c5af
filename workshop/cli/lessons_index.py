"""The index page of the lab: every lesson by day, with its minutes and how many of its exercises are solved.

`workshop lab` writes it anew each time, so nothing that a learner writes belongs there. In JupyterLab its
links open the lessons; ``%progress`` in any of them says the same as of that moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from workshop.exercises import all_exercises
from workshop.exercises.engine.progress import Progress, progress_file

NAME = "index.md"
GLOSSARY = "glossary.md"
MINUTES = re.compile(r"\*\*It takes\*\* (\w+) minutes")
IN_WORDS = {"five": 5, "ten": 10, "fifteen": 15, "twenty": 20}


@dataclass(frozen=True)
class Lesson:
    """One lesson as the index shows it; ``minutes`` to read and try, None where it does not say."""

    path: Path  # relative to the folder of the lessons
    title: str
    minutes: int | None

    @property
    def name(self) -> str:
        """As in ``22_ddp``."""
        return self.path.stem


def lessons_in(folder: Path) -> list[Lesson]:
    """The lessons below a folder of published lessons, or of working copies, in their order."""
    notebooks = (path for path in folder.glob("day*/*.ipynb") if ".new" not in path.suffixes)
    return [_lesson(path, folder) for path in sorted(notebooks)]


def _lesson(path: Path, folder: Path) -> Lesson:
    cells = nbformat.read(path, as_version=4).cells
    text = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    heading = next((line for line in text.splitlines() if line.startswith("# ")), f"# {path.stem}")
    match = MINUTES.search(text)
    word = match[1] if match else ""
    minutes = int(word) if word.isdigit() else IN_WORDS.get(word)
    return Lesson(path.relative_to(folder), heading.removeprefix("# ").strip(), minutes)


def index_text(lessons: list[Lesson], progress: Progress, glossary: bool) -> str:
    """The index as Markdown."""
    lines = ["# The workshop", "", *_introduction(lessons, progress, glossary)]
    for day in sorted({lesson.path.parts[0] for lesson in lessons}):
        of_day = [lesson for lesson in lessons if lesson.path.parts[0] == day]
        number, _, topic = day.removeprefix("day").partition("_")
        lines += ["", f"## Day {number}: {topic.replace('_', ' ')}{_in_hours(of_day)}", ""]
        lines += ["| lesson | minutes | exercises |", "|---|---:|---|"]
        lines += [_row(lesson, progress) for lesson in of_day]
    return "\n".join(lines) + "\n"


def _introduction(lessons: list[Lesson], progress: Progress, glossary: bool) -> Iterator[str]:
    names = {lesson.name for lesson in lessons}
    mine = [exercise for exercise in all_exercises() if exercise.lesson in names]
    solved = sum(progress[exercise.name].solved for exercise in mine)
    yield f"{len(lessons)} lessons. You have solved {solved} of {len(mine)} exercises."
    yield "`workshop lab` writes this page when it starts; `%progress` in a lesson shows the same at once."
    if glossary:
        yield f"Words are explained in the [glossary]({GLOSSARY})."


def _in_hours(lessons: list[Lesson]) -> str:
    minutes = sum(lesson.minutes or 0 for lesson in lessons)
    return f" ({minutes // 60} h {minutes % 60:02} min)" if minutes >= 60 else f" ({minutes} min)"


def _row(lesson: Lesson, progress: Progress) -> str:
    exercises = [exercise for exercise in all_exercises() if exercise.lesson == lesson.name]
    states = ", ".join(f"{exercise.name} {_mark(progress, exercise.name)}" for exercise in exercises)
    link = f"[{lesson.name[:2]} {lesson.title}]({lesson.path.as_posix()})"
    return f"| {link} | {lesson.minutes or ''} | {states} |"


def _mark(progress: Progress, exercise: str) -> str:
    return {"solved": "✓", "tried": "(tried)", "not begun": "·"}[progress[exercise].state]


def write_index(folder: Path) -> Path:
    """Write the index of the working copies in ``folder``; returns its path."""
    path = folder / NAME
    text = index_text(lessons_in(folder), Progress(progress_file()), (folder / GLOSSARY).is_file())
    path.write_text(text, encoding="utf-8")
    return path
