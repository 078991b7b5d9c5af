"""Guesses: asked, kept, and laid beside what was predicted and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workshop.exercises.engine.guess import Guesses, Question, guesses_file, off_by, split_cell

BYTES = Question("wire_bytes", "B")
FALLS = Question("loss", choices=("falls", "rises"))
CURVE = Question("seconds", "ms", points=("1 MB", "25 MB"))


@pytest.fixture
def guesses(tmp_path: Path) -> Guesses:
    return Guesses(tmp_path / "guesses.json")


def test_a_number_stands_beside_the_formula_and_the_measurement(guesses: Guesses) -> None:
    assert guesses.ask(BYTES, 300) == 300.0
    text = str(guesses.beside("wire_bytes", measured=150, predicted=149.5))
    assert text.splitlines() == [
        "yours        300 B  2.0 times too much",
        "predicted  149.5 B",
        "measured     150 B",
    ]


def test_what_no_run_showed_is_called_calculated_and_compared_all_the_same(guesses: Guesses) -> None:
    guesses.ask(BYTES, 300)
    shown = guesses.beside("wire_bytes", calculated=150)
    assert str(shown).splitlines() == [
        "yours       300 B  2.0 times too much",
        "calculated  150 B",
    ]
    assert "calculated" in shown._repr_html_()
    assert guesses.rows() == [("wire_bytes", "300 B", "150 B (calculated)", "2.0 times too much")]
    guesses.beside("wire_bytes", measured=100)  # a run after all: its number counts
    assert Guesses(guesses.path).rows() == [("wire_bytes", "300 B", "100 B", "3.0 times too much")]


@pytest.mark.parametrize("known", [{}, {"measured": 1, "calculated": 1}, {"predicted": 1}])
def test_a_guess_is_compared_with_one_number(guesses: Guesses, known: dict[str, int]) -> None:
    guesses.ask(BYTES, ...)
    with pytest.raises(ValueError, match="wire_bytes: a guess is laid beside either measured"):
        guesses.beside("wire_bytes", **known)


def test_a_measured_zero_is_a_number(guesses: Guesses) -> None:
    guesses.ask(BYTES, ...)
    assert str(guesses.beside("wire_bytes", 0)) == "measured  0 B"


def test_an_unanswered_guess_stops_nothing_and_keeps_nothing(guesses: Guesses) -> None:
    assert guesses.ask(BYTES, ...) is None
    assert str(guesses.beside("wire_bytes", 150)) == "measured  150 B"
    assert guesses.rows() == []
    assert not guesses.path.exists()


def test_choices_and_curves(guesses: Guesses) -> None:
    guesses.ask(FALLS, "rises")
    assert "rises  not so" in str(guesses.beside("loss", "falls"))
    guesses.ask(CURVE, [3, 1])
    shown = str(guesses.beside("seconds", measured=[4, 1.5], predicted=[4.5, 1.5]))
    assert shown.splitlines()[0].split() == ["seconds", "1", "MB", "25", "MB"]
    assert shown.splitlines()[1].split() == ["yours", "3", "ms", "1", "ms"]
    assert "<td" in guesses.beside("seconds", [4, 1.5])._repr_html_()


@pytest.mark.parametrize(
    ("question", "value", "why"),
    [
        (BYTES, "many", "wire_bytes: the last line must be a number of B, or `...`; it is 'many'"),
        (BYTES, True, "it is True"),
        (BYTES, float("nan"), "it is nan"),
        (FALLS, "fals", "none of the choices. Did you mean 'falls'? Known: 'falls', 'rises'"),
        (CURVE, [1], "a number for each of 1 MB, 25 MB: 2 numbers, not 1"),
        (CURVE, 7, "2 numbers, not 1"),
    ],
)
def test_an_answer_of_another_kind_is_refused_with_what_is_wanted(
    guesses: Guesses, question: Question, value: Any, why: str
) -> None:
    with pytest.raises(ValueError, match="^" + question.name) as error:
        guesses.ask(question, value)
    assert why in str(error.value)


def test_a_comparison_with_a_question_nobody_asked_lists_those_that_were(guesses: Guesses) -> None:
    guesses.ask(FALLS, ...)
    with pytest.raises(ValueError, match="no %%guess is called 'los'; asked in this notebook: loss"):
        guesses.beside("los", 3)


def test_guesses_are_kept_for_the_table_of_progress_over_notebooks(guesses: Guesses) -> None:
    guesses.ask(BYTES, 100)
    guesses.beside("wire_bytes", 400)
    other = Guesses(guesses.path)  # tomorrow's
    other.ask(FALLS, "falls")
    other.beside("loss", "falls")
    assert guesses.rows() == [
        ("wire_bytes", "100 B", "400 B", "4.0 times too little"),
        ("loss", "falls", "falls", "right"),
    ]


def test_a_file_that_is_not_ours_costs_the_memory_and_not_the_lesson(tmp_path: Path) -> None:
    path = tmp_path / "guesses.json"
    path.write_text("[1, 2")
    broken = Guesses(path)
    broken.ask(BYTES, 3)
    assert "yours" in str(broken.beside("wire_bytes", 3))
    assert path.read_text() == "[1, 2"
    path.write_text(json.dumps({"x": {"guess": 1.0, "measured": 1.0}}))
    assert Guesses(path).rows() == [("x", "1", "1", "right")]


def test_the_cell_is_its_comments_and_one_expression() -> None:
    cell = "# How many bytes\n# does a rank send?\n2 * 3 / N * size\n"
    assert split_cell(cell, {"N": 4, "size": 8}) == ("How many bytes does a rank send?", 12.0)
    assert split_cell("...", {}) == ("", ...)
    with pytest.raises(ValueError, match="has no value: NameError: name 'n' is not defined"):
        split_cell("2 * n", {})
    for cell in ("# only a question", "1\n2"):
        with pytest.raises(ValueError, match="ends in one line with the guess"):
            split_cell(cell, {})


@pytest.mark.parametrize(
    ("guess", "measured", "words"),
    [
        (1.02, 1.0, "within 5 %"),
        (3, 0, "one of the two is zero"),
        (-1, 2, "off by the sign"),
        ((1, 4), (1, 1), "right, 4.0 times too much"),
    ],
)
def test_how_far_off(guess: Any, measured: Any, words: str) -> None:
    assert off_by(guess, measured) == words


def test_nothing_is_kept_where_progress_is_not() -> None:
    assert guesses_file({"CI": "1"}) is None
    assert guesses_file({"WORKSHOP_HOME": "/x"}) == Path("/x/guesses.json")


def test_one_of_the_choices_needs_no_quotes():
    assert split_cell("# Which?\nfirst", {}, ("first", "second")) == ("Which?", "first")
    with pytest.raises(ValueError, match="has no value"):
        split_cell("# Which?\nfirst", {})


def test_a_number_beyond_all_numbers_is_refused():
    with pytest.raises(ValueError, match="the last line must be a number"):
        Question("bytes").read(10**400)
