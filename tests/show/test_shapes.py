"""Pictures for many lessons, sorted by shape: bars, curves, lanes and grids say what they were given."""

from __future__ import annotations

import pytest

from tests.show.examples import PICTURES
from workshop import show
from workshop.measure.report import Timeline
from workshop.predict.pipeline import Durations, simulate_pipeline


def test_out_of_memory_is_said_in_words() -> None:
    words = repr(PICTURES["predicted_and_measured"]())
    assert "b, predicted 7.6 MiB, out of memory" in words


def test_rooflines_have_measured_points_where_seconds_are() -> None:
    one = {"norm": (1e6, 1e6), "product": (1e9, 1e6)}
    picture = show.rooflines(
        {"here": (1e12, 1e11, one, dict.fromkeys(one, 0.01)), "there": (1e12, 1e11, one, None)}
    )
    here, there = picture.figure.axes
    faces = [
        [line.get_markerfacecolor() for line in axis.lines if line.get_marker() == "o"]
        for axis in (here, there)
    ]
    assert "white" not in faces[0]
    assert set(faces[1]) == {"white"}
    assert [line.get_ydata()[0] for line in there.lines if line.get_marker() == "o"] == [0.1, 1.0]
    near = show.rooflines({"a": (1e12, 1e11, {**one, "residual": (1e6, 1.01e6)}, None)})
    assert [text.get_text() for text in near.figure.axes[0].texts[1:]] == ["1, 3", "2"]
    with pytest.raises(ValueError, match="2 different lists"):
        show.rooflines({"a": (1, 1, one, None), "b": (1, 1, {"norm": (1, 1)}, None)})


def test_timelines_side_by_side_share_their_height() -> None:
    sizes = {"plain": [1, 9], "full": [1, 4]}
    timelines = {n: Timeline(s, {"weights": s}, ["forward", "backward"]) for n, s in sizes.items()}
    picture = show.memory_timelines(timelines)
    assert len({axis.get_ylim() for axis in picture.figure.axes}) == 1
    assert picture.words == "peaks: plain 9 B, full 4 B"
    with pytest.raises(ValueError, match="no timeline to draw"):
        show.memory_timelines({})


def test_timelines_below_each_other_share_their_time() -> None:
    picture = PICTURES["pipeline_gantts"]()
    assert "two: gpipe 15 s, idle 20.0%; naive 24 s, idle 50.0%" in repr(picture)
    (axis,) = picture.figure.axes
    lines = [label.get_text() for label in axis.get_yticklabels()]
    assert lines == ["gpipe, rank 0", "gpipe, rank 1", "naive, rank 0", "naive, rank 1"]
    assert axis.get_xlim() == (0, 24)
    assert len(axis.patches) == 2 * 2 * 4 * 2  # timelines, ranks, micro-batches, F and B
    counted = simulate_pipeline("gpipe", 2, 4, Durations(1.0, 2.0))
    for picture in (
        show.pipeline_gantt(counted, "gpipe", unit="forwards"),
        show.pipeline_gantts({"gpipe": counted}, unit="forwards"),
    ):
        assert "15 forwards, idle 20.0%" in repr(picture)
        assert picture.figure.axes[0].get_xlabel() == "forwards"
    with pytest.raises(ValueError, match="no timelines to draw"):
        show.pipeline_gantts({})


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 names, 1 predictions, 2 measurements"):
        show.predicted_and_measured(["a", "b"], [1.0], [1.0, 2.0])


def test_a_number_is_said_in_every_format() -> None:
    words = repr(PICTURES["number_in_formats"]())
    assert (
        "0.3952 becomes fp32 0.3952, tf32 0.395264, bf16 0.394531, fp16 0.395264, e4m3 0.40625, e5m2 0.375"
        in words
    )
    with pytest.raises(ValueError, match="finite"):
        show.number_in_formats(float("inf"))


def test_curves_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="name the same runs"):
        show.loss_by_bytes({"x": [1.0]}, {"y": [1.0]})
