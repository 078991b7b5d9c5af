"""Values for the ranks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from workshop.launch.request import literal, pickled, select, unpickled


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    assert select("lr, n", {"lr": 0.1, "n": 2}) == {"lr": 0.1, "n": 2}
    with pytest.raises(ValueError, match=r"--pass learning_rat: .*Did you mean 'learning_rate'"):
        select("learning_rat", {"learning_rate": 0.1})
    with pytest.raises(ValueError, match="Define it in a cell before this one"):
        select("zzz", {"lr": 1})


def test_the_value_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(ValueError, match=r"--pass guard: a lock cannot be sent"):
        pickled({"lr": 0.1, "guard": threading.Lock()})


def test_round_trip_with_a_function_of_the_notebook(tmp_path: Path) -> None:
    factor = 3
    path = tmp_path / "p"
    path.write_bytes(pickled({"f": lambda x: factor * x, "n": 2}))
    back = unpickled(path)
    assert back["f"](4) == 12
    assert back["n"] == 2


@pytest.mark.parametrize("value", [1, 0.1, "a'b", None, True, [1, 2], {"a": (1, 2)}])
def test_values_with_a_literal(value: object) -> None:
    source = literal(value)
    assert source is not None
    assert eval(source) == value


@pytest.mark.parametrize("value", [float("nan"), object(), len, range(3)])
def test_values_without_a_literal(value: object) -> None:
    assert literal(value) is None
