"""Who sees no pictures reads what they show: on a live page, and of every picture that a lesson stores."""

from __future__ import annotations

from html import escape
from pathlib import Path

import nbformat
import pytest

from tests.show.examples import PICTURES
from workshop.facts.tree import ROOT
from workshop.show import page
from workshop.show.drawing import Drawing

PICTURE = ("image/png", "image/svg+xml", "image/jpeg")
DRAWN_BY_HAND = {
    "22_ddp"
}  # one plot is the lesson's own matplotlib; its words are the table printed above it
LESSONS = sorted((ROOT / "notebooks").glob("day*/*.ipynb"))


@pytest.mark.parametrize("name", sorted(PICTURES)[:1])
def test_on_a_page_a_picture_is_html_with_its_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = PICTURES[name]()
    assert picture._repr_html_() is None  # what is stored stays a PNG
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    assert f'alt="{escape(picture.words)}"' in picture._repr_html_()
    assert 'src="data:image/png;base64,' in picture._repr_html_()


def test_a_drawing_says_what_it_shows() -> None:
    drawing = Drawing("<svg xmlns='x'></svg>", 'two lanes, "a" & b')
    assert '<svg role="img" aria-label="two lanes, &quot;a&quot; &amp; b"' in drawing.svg
    assert page.described("no drawing", "x") == "no drawing"


def without_words(path: Path) -> list[str]:
    """The pictures of a notebook that have no words beside them: their cells' first lines."""
    cells = nbformat.read(path, as_version=4).cells
    return [
        cell.source.splitlines()[0]
        for cell in cells
        for output in cell.get("outputs", [])
        if any(kind in output.get("data", {}) for kind in PICTURE)
        and (len(words := output.data.get("text/plain", "")) < 20 or words.startswith("<"))
    ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_stored_picture_has_words(path: Path) -> None:
    assert without_words(path) == [] or path.stem in DRAWN_BY_HAND
