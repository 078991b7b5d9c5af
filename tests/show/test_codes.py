"""How often each code of a format is used."""

import pytest

from workshop import show


def test_a_stem_for_each_code():
    picture = show.codes_used({"two": ([-1.0, 1.0], [1, 3]), "three": ([-1.0, 0.0, 1.0], [1, 2, 1])})
    left, right = picture.figure.axes
    assert [len(axis.collections[0].get_segments()) for axis in (left, right)] == [2, 3]
    assert left.collections[0].get_segments()[1][1].tolist() == [1.0, 0.75]
    assert "three: 3 numbers" in repr(picture)


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="odd: 2 numbers and 1 counts"):
        show.codes_used({"odd": ([0.0, 1.0], [1])})
