"""How lessons hang together: each names the one before, the one after and the glossary; links resolve.

    python tools/lesson_links.py 22_ddp     the line for that lesson's first cell, to copy

The glossary is ``notebooks/glossary.md``: it lies beside the lessons on a web page, in a wheel and among the
working copies, so one relative link serves in all three.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = "glossary.md"
_LINK = re.compile(r"\[[^\]]+\]\((?!https?:|mailto:)([^)#\s]+)")
_ENTRY = re.compile(r"- \*\*(?P<terms>[^*]+)\*\*: (?P<text>.+) \[(?P<lesson>\w+)\]\((?P<path>\S+)\)")


class Entry(NamedTuple):
    """A line of the glossary: what it explains (one or more words), how, and where it is taught."""

    terms: tuple[str, ...]
    text: str
    lesson: str


def lessons_in_order(lessons: Path) -> list[Path]:
    """The notebooks, in the order of the days."""
    return sorted(lessons.glob("day*/*.ipynb"))


def line_for(lesson: Path, lessons: Path) -> str:
    """The line that a lesson's first cell holds."""
    order = lessons_in_order(lessons)
    place = order.index(lesson)
    before = [f"before this {_link(order[place - 1], lesson)}"] if place else []
    after = [f"after it {_link(order[place + 1], lesson)}"] if place + 1 < len(order) else []
    return f"- **Links:** {', '.join([*before, *after])}, words in the [glossary](../{GLOSSARY})."


def _link(to: Path, lesson: Path) -> str:
    there = to.name if to.parent == lesson.parent else f"../{to.parent.name}/{to.name}"
    return f"[{to.stem}]({there})"


def markdown_of(lesson: Path) -> list[str]:
    """The texts of a notebook's markdown cells."""
    return [cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "markdown"]


def navigation_problem(lesson: Path, lessons: Path) -> str:
    """What a lesson lacks: the line in its first cell, the next one's link in its last; empty if nothing."""
    texts = markdown_of(lesson)
    line = line_for(lesson, lessons)
    if line not in texts[0].splitlines():
        return f"{lesson.stem}: the first cell must hold this line: {line}"
    order = lessons_in_order(lessons)
    following = order[order.index(lesson) + 1 :]
    if following and _link(following[0], lesson) not in texts[-1]:
        return f"{lesson.stem}: the last cell must hold this link: {_link(following[0], lesson)}"
    return ""


def dead_links(page: Path) -> list[str]:
    """Relative links of a notebook or a markdown file that lead to no file."""
    texts = markdown_of(page) if page.suffix == ".ipynb" else [page.read_text(encoding="utf-8")]
    links = [link for text in texts for link in _LINK.findall(text)]
    return [link for link in links if not (page.parent / link).exists()]


def glossary_entries(glossary: Path) -> list[Entry]:
    """The glossary's entries.

    Raises:
        ValueError: a line of the list is not of the form ``- **term**: text [lesson](path)``.
    """
    entries = []
    for line in glossary.read_text(encoding="utf-8").splitlines():
        if line.startswith("- "):
            match = _ENTRY.fullmatch(line)
            if match is None:
                raise ValueError(f"write it as `- **term**: text [lesson](path)`: {line}")
            entries.append(Entry(tuple(match["terms"].split(", ")), match["text"], match["lesson"]))
    return entries


def main(names: list[str]) -> int:
    """Print the line of each lesson whose name contains one of ``names``."""
    lessons = ROOT / "notebooks"
    for lesson in lessons_in_order(lessons):
        if any(name in lesson.stem for name in names):
            print(line_for(lesson, lessons))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
