"""What a reader wants of every picture: named axes, and legends that hide nothing. Bad figures are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.show.examples import PICTURES
from tools.figures import legends_over_data, numbers_without_a_name
from workshop import show
from workshop.jupyter import widgets
from workshop.show.style import Picture, legend, name_axes, new_figure

EXPLORERS = ("memory_explorer", "time_to_train", "pipeline_explorer", "number_explorer")
ALL: dict[str, Callable[[], Picture]] = PICTURES | {
    name: lambda name=name: getattr(widgets, name)(widgets=False) for name in EXPLORERS
}


@pytest.mark.parametrize("name", sorted(ALL))
def test_axes_are_named_and_legends_hide_nothing(name: str) -> None:
    figure = ALL[name]().figure
    assert numbers_without_a_name(figure) == []
    assert legends_over_data(figure) == []


def test_only_style_draws_legends() -> None:
    """There they lie outside the axes, so that no data, however they fall, can lie below them."""
    room = Path(show.__file__).parent
    paths = [*room.rglob("*.py"), *(room.parent / "jupyter").rglob("*.py")]
    assert [path.name for path in paths if re.search(r"\w\.legend\(", path.read_text("utf-8"))] == [
        "style.py"
    ]


def test_numbers_without_a_name_are_found() -> None:
    figure, axis = new_figure()
    axis.plot([1, 10], [1, 100])
    assert [found[:19] for found in numbers_without_a_name(figure)] == [
        "panel 0: no x label",
        "panel 0: no y label",
    ]
    name_axes(axis, "steps")
    axis.set_yscale("log")  # ticks are mathtext
    assert [found[:19] for found in numbers_without_a_name(figure)] == ["panel 0: no y label"]
    figure.supylabel("loss")
    assert numbers_without_a_name(figure) == []


def test_words_name_themselves_and_hidden_ticks_need_no_name() -> None:
    figure, axis = new_figure()
    axis.barh([0, 1], [1, 2])
    axis.set_yticks([0, 1], ["1 GPU", "ZeRO 3"])
    axis.tick_params(labelbottom=False)
    assert numbers_without_a_name(figure) == []
    axis.set_yticks([0, 1], ["1", "8"])
    assert numbers_without_a_name(figure) == ["panel 0: no y label at 1, 8"]


def line(axis: Any) -> None:
    axis.plot([0, 1], [0, 1], label="x")


@pytest.mark.parametrize(
    ("drawn", "what"),
    [
        (line, "Line2D"),
        (lambda axis: axis.bar([0, 1, 2], [1, 1, 1], label="x"), "Rectangle"),
        (lambda axis: axis.stackplot([0, 1], [[1, 1]], labels=["x"]), "PolyCollection|FillBetween"),
        (lambda axis: axis.vlines([0.5, 0.45, 0.55], 0, 1, label="x"), "LineCollection"),
        (lambda axis: axis.plot([0, 0.5, 1], [0, 0.5, 1], "o", label="x"), "Line2D"),
        (lambda axis: axis.plot([0, 1], [0, 0], label="x") and axis.text(0.5, 0.0, "word"), "Line2D|Text"),
    ],
)
def test_a_legend_over_what_is_drawn_is_found(drawn: Callable[[Any], Any], what: str) -> None:
    figure, axis = new_figure()
    drawn(axis)
    axis.legend(loc="center")
    found = legends_over_data(figure)
    assert found
    assert all(re.fullmatch(rf"panel 0: a legend over a ({what})\w*", each) for each in found)


def test_a_legend_beside_the_data_is_none() -> None:
    figure, axis = new_figure()
    line(axis)
    axis.legend(loc="upper left")  # the line goes from below to above on the other side
    assert legends_over_data(figure) == []
    axis.legend(loc="upper right")
    assert legends_over_data(figure) == ["panel 0: a legend over a Line2D"]


def test_a_legend_names_every_label_once_outside_the_axes() -> None:
    figure, axes = new_figure(columns=2)
    for axis in axes:
        line(axis)
    legend(figure, 2)
    (drawn,) = figure.legends
    assert [text.get_text() for text in drawn.get_texts()] == ["x"]
    assert legends_over_data(figure) == []
