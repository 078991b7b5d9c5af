"""Exercise: the bytes that one kernel for several operators moves.

Ideal fusion: an input from outside is read once, an output that somebody reads afterwards is written once,
and what is made and used inside stays in registers. A compiler's own count is compared with it in the lesson.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

Operators = Sequence[tuple[str, list[str]]]

CALLS = (
    Call(([("a", ["x"]), ("b", ["a"]), ("y", ["b"])], {"x": 1, "a": 20, "b": 300, "y": 4000}, {"y"})),
    Call(
        (
            [("squares", ["x", "x"]), ("scaled", ["squares", "x"]), ("y", ["scaled", "w"])],
            {"x": 2, "squares": 30, "scaled": 400, "y": 5000, "w": 60_000},
            {"y"},
        )
    ),
    Call(  # the first output is used inside and needed afterwards
        (
            [("h", ["x", "r"]), ("n", ["h"]), ("y", ["n", "h"])],
            {"x": 3, "r": 40, "h": 500, "n": 6000, "y": 70_000},
            {"h", "y"},
        )
    ),
    Call(([("y", ["a", "b"]), ("z", ["y", "a"])], {"a": 7, "b": 80, "y": 900, "z": 1000}, {"y"})),
)


def _outside(operators: Operators) -> list[str]:
    """Names that operators read and none of them makes, as often as each is read."""
    made = {output for output, _ in operators}
    return [name for _, inputs in operators for name in inputs if name not in made]


def fused(operators: Operators, size: Mapping[str, int], wanted: set[str]) -> int:
    """What is read from outside, once, and what is wanted."""
    return sum(size[name] for name in (*set(_outside(operators)), *wanted))


def _a_kernel_each(operators: Operators, size: Mapping[str, int], _: set[str]) -> int:
    return sum(size[name] for output, inputs in operators for name in (output, *inputs))


def _read_again(operators: Operators, size: Mapping[str, int], wanted: set[str]) -> int:
    return sum(size[name] for name in (*_outside(operators), *wanted))


def _all_written(operators: Operators, size: Mapping[str, int], _: set[str]) -> int:
    return fused(operators, size, {output for output, _ in operators})


def _last_written(operators: Operators, size: Mapping[str, int], _: set[str]) -> int:
    return fused(operators, size, {operators[-1][0]})


def _nothing_written(operators: Operators, size: Mapping[str, int], _: set[str]) -> int:
    return fused(operators, size, set())


def _made_and_read(operators: Operators, size: Mapping[str, int], wanted: set[str]) -> int:
    read = {name for _, inputs in operators for name in inputs}
    return sum(size[name] for name in (*read, *wanted))


MISTAKES = (
    Mistake(
        _a_kernel_each,
        "That is a kernel for each operator, as without a compiler. What one of them makes for the next need "
        "not pass through memory.",
    ),
    Mistake(
        _read_again,
        "You count a tensor each time an operator uses it. One kernel can read it once and keep it.",
    ),
    Mistake(
        _all_written,
        "You write every output. Nobody reads those that are not in `wanted` after the kernel.",
    ),
    Mistake(_last_written, "Not only the last output is needed, and not always: `wanted` lists them."),
    Mistake(_nothing_written, "Somebody reads what is in `wanted`: it has to be written."),
    Mistake(
        _made_and_read,
        "You read what the kernel itself has made. It is still in registers.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Four small programs, with inputs that are used twice and outputs that are needed inside and outside."""
    compare(names["fused_bytes"], "fused_bytes", CALLS, fused, MISTAKES)
    return "Four programs: read what comes from outside once, write what is wanted, and nothing else."
