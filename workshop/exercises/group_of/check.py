"""Exercise: which ranks are together on an axis of a box.

The numbering is that of figure 5 in Dubey et al. 2024 (arXiv:2407.21783): through the first axis first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Sizes = dict[str, int]
Group = tuple[int, ...]
FIGURE_5 = {"tensor": 2, "context": 2, "pipeline": 2, "data": 2}
UNEQUAL = {"tensor": 4, "data": 3, "pipeline": 2}
CASES: tuple[tuple[int, str, Sizes], ...] = (
    (5, "data", {"tensor": 2, "data": 2, "pipeline": 2}),
    *((rank, axis, UNEQUAL) for axis in UNEQUAL for rank in (0, 7, 17, 23)),
    *((9, axis, FIGURE_5) for axis in FIGURE_5),
    (3, "tensor", {"tensor": 8}),
    (3, "data", {"tensor": 4, "data": 1}),
)


def _group(rank: int, step: int, place: int, size: int) -> Group:
    return tuple(rank + (other - place) * step for other in range(size))


def _steps(sizes: Sizes, axis: str) -> tuple[int, int, int]:
    """Between neighbours on the axis: rightly, if the last axis ran first, and with the axis's own size."""
    names = list(sizes)
    where = names.index(axis)
    return (
        prod(sizes[name] for name in names[:where]),
        prod(sizes[name] for name in names[where + 1 :]),
        prod(sizes[name] for name in names[: where + 1]),
    )


def wanted(rank: int, axis: str, sizes: Sizes) -> Group:
    """The group, from the box."""
    step, size = _steps(sizes, axis)[0], sizes[axis]
    return _group(rank, step, rank // step % size, size)


def _last_first(rank: int, axis: str, sizes: Sizes) -> Group:
    step, size = _steps(sizes, axis)[1], sizes[axis]
    return _group(rank, step, rank // step % size, size)


def _own_size(rank: int, axis: str, sizes: Sizes) -> Group:
    step, size = _steps(sizes, axis)[2], sizes[axis]
    return _group(rank, step, rank // step % size, size)


def _neighbours(rank: int, axis: str, sizes: Sizes) -> Group:
    return _group(rank, 1, rank % sizes[axis], sizes[axis])


def _not_folded(rank: int, axis: str, sizes: Sizes) -> Group:
    step = _steps(sizes, axis)[0]
    return _group(rank, step, rank // step, sizes[axis])


def _wrong_place(rank: int, axis: str, sizes: Sizes) -> Group:
    return _group(rank, _steps(sizes, axis)[0], rank % sizes[axis], sizes[axis])


MISTAKES: tuple[tuple[Callable[[int, str, Sizes], Group], str], ...] = (
    (_neighbours, "Only on the first axis do neighbours have consecutive numbers."),
    (_last_first, "That numbers through the last axis first."),
    (
        _not_folded,
        "Your place goes on counting: on an axis of size two, the places are 0, 1, 0, 1 and so on.",
    ),
    (_own_size, "The step of an axis is the product of the sizes before it, without its own size."),
    (
        _wrong_place,
        "The step is right. Count `rank` in steps first: the smallest rank of a group is at place 0.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Boxes of two to four axes, also of unequal sizes, and one rank after another in them."""
    answers = [call(names["group_of"], "group_of", Call(case)) for case in CASES]
    for case, group in zip(CASES, answers, strict=True):
        if not isinstance(group, tuple):
            raise Wrong(
                f"`{Call(case).written('group_of')}` gave {shown(group)}; wanted a tuple of rank numbers."
            )
    advice = next(
        (words for formula, words in MISTAKES if answers == [formula(*case) for case in CASES]),
        "",
    )
    for case, group in zip(CASES, answers, strict=True):
        if group != wanted(*case):
            written = Call(case).written("group_of")
            raise Wrong(f"`{written}` gave {shown(group)}; wanted {wanted(*case)}. {advice}".rstrip())
    return (
        "Boxes of equal and unequal sides: each rank has one group on each axis, and all ranks of it agree."
    )
