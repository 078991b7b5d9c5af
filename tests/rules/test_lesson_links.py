"""Each lesson links to the one before, the one after and the glossary; links and glossary lead somewhere."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from tools.lesson_links import (
    GLOSSARY,
    dead_links,
    glossary_entries,
    lessons_in_order,
    line_for,
    markdown_of,
    navigation_problem,
)
from workshop.cli.working_copies import lay_working_copies

LESSONS = Path(__file__).parents[2] / "notebooks"
ORDER = lessons_in_order(LESSONS)
# Lessons that have no such line yet. This list only ever shrinks.
NOT_YET: set[str] = set()


@pytest.mark.parametrize("lesson", ORDER, ids=lambda path: path.stem)
def test_a_lesson_links_on(lesson: Path) -> None:
    problem = navigation_problem(lesson, LESSONS)
    if lesson.stem in NOT_YET:
        assert problem, f"{lesson.stem} has its links: take it off NOT_YET"
    else:
        assert not problem


@pytest.mark.parametrize("page", [*ORDER, LESSONS / GLOSSARY], ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_links_lead_somewhere_in_the_lab(tmp_path: Path) -> None:
    lay_working_copies(LESSONS, tmp_path / "lab")
    pages = [*lessons_in_order(tmp_path / "lab"), tmp_path / "lab" / GLOSSARY]
    assert len(pages) == len(ORDER) + 1
    assert [link for page in pages for link in dead_links(page)] == []


@pytest.mark.parametrize("lesson", ORDER, ids=lambda path: path.stem)
def test_a_paper_is_one_click_away(lesson: Path) -> None:
    text = "\n".join(markdown_of(lesson))
    written = re.findall(r"arXiv[: ]\d{4}\.\d{4,5}", text)
    linked = re.findall(r"\[arXiv:(\d{4}\.\d{4,5})\]\(https://arxiv\.org/abs/\1\)", text)
    assert len(written) == len(linked)


def plain(text: str) -> str:
    return re.sub(r"[^\w]+", " ", text.lower().replace("_", " "))


def test_the_glossary_is_in_order_and_its_lessons_use_the_words() -> None:
    entries = glossary_entries(LESSONS / GLOSSARY)
    assert len(entries) > 50
    keys = [re.sub(r"[^a-z0-9]", "", entry.terms[0].lower()) for entry in entries]
    assert keys == sorted(set(keys))
    texts = {path.stem: plain(path.read_text(encoding="utf-8")) for path in ORDER}
    for entry in entries:
        assert 1 <= len(re.findall(r"[.!?](?: |$)", entry.text)) <= 3, entry
        for term in entry.terms:
            assert plain(term) in texts[entry.lesson], f"{entry.lesson} never says {term!r}"


def taught(lesson: Path) -> list[str]:
    """The words of the glossary that name this lesson as theirs."""
    return [
        term
        for entry in glossary_entries(LESSONS / GLOSSARY)
        if entry.lesson == lesson.stem
        for term in entry.terms
    ]


@pytest.mark.parametrize("lesson", ORDER, ids=lambda path: path.stem)
def test_a_lesson_finds_words_of_its_own_in_the_glossary(lesson: Path) -> None:
    assert len(taught(lesson)) >= 2, f"which words does {lesson.stem} teach? Each gets a line in {GLOSSARY}"


def lay(folder: Path, **texts: tuple[str, str]) -> list[Path]:
    for number, (name, (first, last)) in enumerate(texts.items()):
        path = folder / f"day{number}_x" / f"{name}.ipynb"
        path.parent.mkdir()
        nbformat.write(new_notebook(cells=[new_markdown_cell(first), new_markdown_cell(last)]), path)
    return lessons_in_order(folder)


def test_what_is_lacking_is_said(tmp_path: Path) -> None:
    first, last = lay(tmp_path, a=("# A", "Next: `b`"), b=("# B", "end"))
    line = line_for(first, tmp_path)
    assert line == "- **Links:** after it [b](../day1_x/b.ipynb), words in the [glossary](../glossary.md)."
    assert line in navigation_problem(first, tmp_path)
    nbformat.write(new_notebook(cells=[new_markdown_cell(line), new_markdown_cell("Next: `b`")]), first)
    assert "the last cell must hold this link: [b](../day1_x/b.ipynb)" in navigation_problem(first, tmp_path)
    assert dead_links(first) == ["../glossary.md"]
    assert "before this [a](../day0_x/a.ipynb)" in navigation_problem(last, tmp_path)
    assert markdown_of(last) == ["# B", "end"]


def test_a_glossary_line_of_another_form_is_told(tmp_path: Path) -> None:
    (tmp_path / GLOSSARY).write_text("- **rank** a process\n")
    with pytest.raises(ValueError, match="write it as"):
        glossary_entries(tmp_path / GLOSSARY)
