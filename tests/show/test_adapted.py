"""Accuracy by what was trained."""

import pytest

from workshop import show


def test_a_point_for_each_method_and_a_line_for_none():
    picture = show.accuracy_by_trained(
        {"zero-shot": (0, 0.3), "lora": (1_000, 0.7), "full": (1_000_000, 0.8)}
    )
    (axis,) = picture.figure.axes
    assert {text.get_text() for text in axis.texts} == {"zero-shot", "lora", "full"}
    assert len(axis.lines) == 3
    assert axis.get_xscale() == "log"
    assert "lora 1,000 trained, 70%" in repr(picture)
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_nothing_trained_is_told():
    with pytest.raises(ValueError, match="nothing is trained"):
        show.accuracy_by_trained({"zero-shot": (0, 0.3)})
