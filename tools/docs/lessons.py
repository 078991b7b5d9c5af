"""Lessons as pages: the stored notebooks with pictures that need no kernel, and a page for each day.

A stored picture has words beside it (its ``text/plain``); on the page they are its alternative text. A slider
can be moved to a few positions (`tools.docs.positions`); where what it draws was measured in the lesson, it
is the picture of its first values, and the caption says that it moves in the lab.
"""

from __future__ import annotations

import base64
import html
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.docs.positions import WIDGET, Position, drawn_positions, slider_html
from tools.lesson_links import lessons_in_order

PLACE = "../../_static/pictures"  # seen from a lesson's page
PICTURES = {"image/png": "png", "image/svg+xml": "svg"}
MOVES = "A slider: this is the picture of its first values. It moves in the lab."
_WORDS = {"fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
_TAKES = re.compile(r"(?m)^- \*\*It takes\*\* (\w+) minutes to read and try, (.+) to run\.$")
_NEEDS = re.compile(r"(?ms)^- \*\*You need\*\* (.+?)\n- \*\*")


@dataclass(frozen=True)
class Lesson:
    """What the first cell of a lesson says of it. minutes: to read and try, as the lesson states them."""

    path: Path
    question: str
    minutes: int
    to_run: str
    needs: str

    @property
    def name(self) -> str:
        """The name that other lessons use."""
        return self.path.stem

    @property
    def day(self) -> str:
        """The folder of its day."""
        return self.path.parent.name


def read_lesson(path: Path) -> Lesson:
    """A lesson from its notebook.

    Raises:
        ValueError: the first cell does not say how many minutes it takes.
    """
    text = nbformat.read(path, as_version=4).cells[0].source
    takes = _TAKES.search(text)
    if takes is None:
        raise ValueError(
            f"{path.stem}: the first cell must say `- **It takes** N minutes to read and try, ...`"
        )
    minutes = _WORDS.get(takes[1]) or int(takes[1])
    needs = _NEEDS.search(text)
    return Lesson(path, text.splitlines()[0].lstrip("# "), minutes, takes[2], needs[1] if needs else "")


def read_lessons(folder: Path) -> list[Lesson]:
    """Every lesson below ``notebooks``, in the order of the days."""
    return [read_lesson(path) for path in lessons_in_order(folder)]


def write_lessons(folder: Path, into: Path, pictures: Path) -> None:
    """Write each stored notebook as it will be a page, and its pictures as files."""
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = drawn_positions(lessons_in_order(folder), pictures)
    for path in lessons_in_order(folder):
        notebook = nbformat.read(path, as_version=4)
        page = into / path.parent.name / path.name
        page.parent.mkdir(parents=True, exist_ok=True)
        as_page(notebook, path.stem, pictures, drawn.get(path.stem, ()))
        page.write_text(nbformat.writes(notebook), encoding="utf-8")


def as_page(
    notebook: NotebookNode, name: str, pictures: Path, sliders: Sequence[Sequence[Position]] = ()
) -> None:
    """Replace, in place, every stored picture by an element that shows its file with its words.

    ``sliders``: positions of the lesson's sliders, in the order of the page; without them they stand still.
    """
    notebook.metadata.language_info.pygments_lexer = "cell"
    number, moved = 0, iter(sliders)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            kind = next((kind for kind in PICTURES if kind in data), None)
            if kind is None:
                continue
            number += 1
            positions = next(moved, None) if WIDGET in data else None
            if positions:
                shown = slider_html(positions, PLACE, f"slider{number}")
            else:
                file = pictures / f"{name}-{number}.{PICTURES[kind]}"
                content = data[kind]
                file.write_bytes(base64.b64decode(content) if kind == "image/png" else content.encode())
                shown = figure(f"{PLACE}/{file.name}", data["text/plain"], WIDGET in data)
            output["data"] = {"text/html": shown, "text/plain": data["text/plain"]}


def figure(source: str, plain: str, moves: bool) -> str:
    """The element of one picture. ``plain`` is ``[picture: words]``, as a terminal shows it."""
    words = re.sub(r"^\[(?:picture|drawing): (.*)\]$", r"\1", plain.strip(), flags=re.DOTALL)
    caption = f"<figcaption>{MOVES}</figcaption>" if moves else ""
    picture = f'<img src="{source}" alt="{html.escape(words, quote=True)}" loading="lazy">'
    return f'<figure class="stored">{picture}{caption}</figure>'


def days(lessons: list[Lesson]) -> Iterator[tuple[str, list[Lesson]]]:
    """The folders of the days, each with its lessons."""
    for day in dict.fromkeys(lesson.day for lesson in lessons):
        yield day, [lesson for lesson in lessons if lesson.day == day]


def read_days(file: Path) -> dict[str, dict[str, str]]:
    """Title and teaching of each day, as ``docs/days.toml`` says them."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def hours(minutes: int) -> str:
    """Minutes as a reader plans with them."""
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def day_page(day: dict[str, str], lessons: list[Lesson]) -> str:
    """The page of one day, in MyST."""
    total = sum(lesson.minutes for lesson in lessons)
    rows = [
        f"| [{lesson.name}]({lesson.name}.ipynb) | {lesson.question} | {lesson.minutes} | {lesson.to_run} |"
        for lesson in lessons
    ]
    needs = [f"- [{lesson.name}]({lesson.name}.ipynb): {lesson.needs}" for lesson in lessons if lesson.needs]
    return "\n".join(
        [
            f"# {day['title']}\n\n{day['teaches']}\n",
            f"{len(lessons)} lesson{'s' * (len(lessons) > 1)}, {hours(total)} to read and try: the sum of",
            "what each lesson states in its first cell. *To run* is what its cells take on two CPU cores.\n",
            "| lesson | question | minutes | to run |\n|---|---|---|---|",
            *rows,
            *(["\n## What to know before\n", *needs] if needs else []),
            "\n```{toctree}\n:hidden:\n",
            *(lesson.name for lesson in lessons),
            "```\n",
        ]
    )
