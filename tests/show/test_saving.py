"""A save cannot be written before training goes on."""

import pytest

from workshop.show import saves_in_time


def test_an_impossible_save_is_refused():
    with pytest.raises(ValueError, match="plain: stands still for 2 s and is written after 1 s"):
        saves_in_time({"plain": (2, 1)})


def test_the_words_name_both_times():
    assert "stands still 30 ms of 400 ms" in repr(saves_in_time({"asynchronous": (0.03, 0.4)}))
