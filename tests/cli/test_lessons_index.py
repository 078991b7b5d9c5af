"""`lab/index.md` lists every lesson, with its minutes, its exercises, and what has been solved."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from workshop.cli.lab_here import find_lessons
from workshop.cli.lessons_index import index_text, lessons_in, write_index
from workshop.exercises import all_exercises
from workshop.exercises.engine.progress import Progress

LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.fixture
def lessons():
    return lessons_in(find_lessons())


def test_every_lesson_says_its_title_and_its_minutes(lessons):
    assert {lesson.name for lesson in lessons} >= {exercise.lesson for exercise in all_exercises()}
    assert not [lesson.name for lesson in lessons if not lesson.minutes], "'**It takes** 30 minutes to ...'"
    assert not [lesson.name for lesson in lessons if lesson.title == lesson.name]


def test_its_links_lead_to_lessons(lessons):
    text = index_text(lessons, Progress(None), glossary=True)
    links = LINK.findall(text)
    assert len(links) == len(lessons) + 1
    assert not [link for link in links if not (find_lessons() / link).is_file()]


def test_what_is_solved_is_marked(lessons):
    progress = Progress(None)
    progress.tried("average_gradients", solved=True)
    progress.tried("zero_bytes", solved=False)
    text = index_text(lessons, progress, glossary=False)
    assert f"solved 1 of {len(all_exercises())} exercises" in text
    assert "average_gradients ✓" in text
    assert "zero_bytes (tried)" in text
    assert "mfu ·" in text
    assert "glossary" not in text


def test_a_copy_that_a_learner_keeps_is_listed_once(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    folder = tmp_path / "day9_own"
    folder.mkdir()
    notebook = new_notebook(cells=[new_markdown_cell("# Mine\n- **It takes** ten minutes to read.")])
    for name in ("91_mine.ipynb", "91_mine.new.ipynb"):
        nbformat.write(notebook, folder / name)
    text = write_index(tmp_path).read_text()
    assert text.count("91 Mine") == 1
    assert "| [91 Mine](day9_own/91_mine.ipynb) | 10 |  |" in text
    assert "## Day 9: own (10 min)" in text
