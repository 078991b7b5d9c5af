"""The words of a check: calls as typed, values as people write them, mistakes known by their formula."""

import math

import numpy as np
import pytest

from workshop.exercises.engine.check import Call, Mistake, Wrong, call, compare, nobody_waits, number, shown

DOUBLE = (Call((1,)), Call((10,)))


def said_by(function, mistakes=()):
    with pytest.raises(Wrong) as caught:
        compare(function, "double", DOUBLE, lambda n: 2 * n, mistakes)
    return str(caught.value)


def test_a_right_function_passes():
    compare(lambda n: 2 * n + 1e-12, "double", DOUBLE, lambda n: 2 * n)
    compare(lambda n: np.float64(2 * n), "double", DOUBLE, lambda n: 2 * n)


def test_the_first_difference_is_shown():
    assert said_by(lambda n: 2 if n == 1 else 21) == "`double(10)` gave 21; wanted 20."


def test_a_mistake_is_named_only_where_it_explains_every_call():
    squares = Mistake(lambda n: n * n, "That is the square.")
    assert said_by(lambda n: n * n, [squares]) == "`double(1)` gave 1; wanted 2. That is the square."
    assert said_by(lambda n: 1, [squares]) == "`double(1)` gave 1; wanted 2."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "gave nothing (None). Is a `return` missing?"),
        ("2", "gave '2', of type str; wanted a number"),
        (True, "gave True, of type bool; wanted a number"),
        ([2], "gave [2], of type list"),
        (math.nan, "gave nan; wanted 2"),
        (math.inf, "gave inf; wanted 2"),
    ],
)
def test_what_is_no_number(value, words):
    assert words in said_by(lambda n: value)


def test_number_takes_scalars_and_arrays_of_one():
    assert number(np.array([3.0]), "f()") == 3.0
    assert number(np.int64(3), "f()") == 3.0


def test_not_a_function():
    with pytest.raises(Wrong, match="`double` is 3, not a function"):
        call(3, "double", Call((1,)))


def test_an_error_carries_the_call():
    with pytest.raises(ZeroDivisionError) as caught:
        call(lambda n: n / 0, "half", Call((1,), {}))
    assert caught.value.__notes__ == ["in the call `half(1)`"]


def test_calls_are_written_as_typed():
    assert Call((1_000_000, 0.5, "a"), {"view": False}).written("f") == "f(1_000_000, 0.5, 'a', view=False)"
    assert Call((len, np.zeros(3))).written("f") == "f(len, ...)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1500.0, "1,500"),
        (3_212_749_824, "3,212,749,824"),
        (5.02e-05, "5.02e-05"),
        (1500.25, "1500.25"),
        (None, "None"),
        ("x" * 100, "'" + "x" * 76 + "..."),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
    ],
)
def test_shown(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([7, 9], "The ranks wait for each other: after 10 seconds rank 0 still waits on line 7. Send first."),
        ([None, 7], "Rank 1 waits for a message that nobody sends, or takes: after 10 seconds rank 1 still"),
    ],
)
def test_nobody_waits(lines, words):
    nobody_waits([None, None], "Send first.")
    with pytest.raises(Wrong) as caught:
        nobody_waits(lines, "Send first.")
    assert str(caught.value).startswith(words)
    assert ("Send first." in str(caught.value)) == (None not in lines)


def test_a_number_too_large_for_a_float_is_a_number_and_can_be_shown():
    assert number(10**400, "f()") == math.inf
    assert number(-(10**400), "f()") == -math.inf
    assert "inf" in shown(10**400)
    assert "list" in shown([10**5000]) or len(shown([10**5000])) < 100
