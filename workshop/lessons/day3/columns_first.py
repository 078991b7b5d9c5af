"""Exercise: a block in parts that are only added up at its end.

relu(x A) B, with A cut in columns and B in rows, is a sum of parts. With A cut in rows it is not:
relu(u + v) is not relu(u) + relu(v) (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `columns_first(x, a, b, ranks)`: the list of what each rank contributes to `relu(x @ a) @ b`, such
that the sum of the list is the whole result. x, a and b are numpy arrays. A rank may use all of x, but
only a `ranks`-th of a and of b. Nothing is exchanged before the last sum."""

STUB = '''\
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a: (inputs, width), b: (width, outputs); width divides."""
    parts = []
    for rank in range(ranks):
        a_part = ...
        b_part = ...
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts
'''

HEAD = """\
import numpy as np


def columns_first(x, a, b, ranks):
"""

SOLUTION = '''\
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a: (inputs, width), b: (width, outputs); width divides."""
    parts = []
    width = a.shape[1] // ranks
    for rank in range(ranks):
        a_part = a[:, rank * width : (rank + 1) * width]
        b_part = b[rank * width : (rank + 1) * width]
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts
'''

ROWS_FIRST = (
    HEAD
    + """\
    pieces = zip(np.split(x, ranks, 1), np.split(a, ranks, 0), strict=True)
    return [np.maximum(x_part @ a_part, 0) @ b for x_part, a_part in pieces]
"""
)

NO_RELU = (
    HEAD
    + """\
    pieces = zip(np.split(a, ranks, 1), np.split(b, ranks, 0), strict=True)
    return [x @ a_part @ b_part for a_part, b_part in pieces]
"""
)

MEANS = (
    HEAD
    + """\
    return [np.maximum(x @ a, 0) @ b / ranks for _ in range(ranks)]
"""
)

EVERYTHING = (
    HEAD
    + """\
    return [np.maximum(x @ a, 0) @ b for _ in range(ranks)]
"""
)

OTHER_ROWS = (
    HEAD
    + """\
    pieces = zip(np.split(a, ranks, 1), np.split(b, ranks, 0)[::-1], strict=True)
    return [np.maximum(x @ a_part, 0) @ b_part for a_part, b_part in pieces]
"""
)


def _check(names: dict[str, Any]) -> str:
    """A block one can compute in one's head, then random ones on two, three and four ranks."""
    import numpy as np

    numbers = np.random.default_rng(0)
    _one(names, np.array([[1.0, 1.0]]), np.array([[2.0, -3.0], [-1.0, 5.0]]), np.array([[1.0], [10.0]]), 2)
    for ranks in (2, 3, 4):
        x, a, b = (numbers.normal(size=shape) for shape in ((3, 12), (12, 2 * ranks), (2 * ranks, 5)))
        _one(names, x, a, b, ranks)
    return "The parts add up to the whole block on 2, 3 and 4 ranks, and nothing was said before the sum."


def _one(names: dict[str, Any], x: Any, a: Any, b: Any, ranks: int) -> None:
    import numpy as np

    wanted = np.maximum(x @ a, 0) @ b
    parts = list(names["columns_first"](x, a, b, ranks))
    if len(parts) != ranks or any(np.shape(part) != wanted.shape for part in parts):
        shapes = [tuple(np.shape(part)) for part in parts]
        raise Wrong(f"{ranks} ranks gave parts of shapes {shapes}; wanted {ranks} of shape {wanted.shape}.")
    found = np.sum(parts, axis=0)
    if np.allclose(found, wanted, rtol=1e-9):
        return _fair(names, parts, (x, a, b), ranks)
    said = f"The parts add up to {shown(found.ravel().tolist())}; wanted {shown(wanted.ravel().tolist())}. "
    raise Wrong((said + _why(found, wanted, (x, a, b), ranks)).rstrip())


def _fair(names: dict[str, Any], parts: list[Any], block: tuple[Any, Any, Any], ranks: int) -> None:
    """Where the last column of a changes, the part of one rank may change: the one that has it."""
    import numpy as np

    x, a, b = block
    other = a.copy()
    other[:, -1] = 7 * x[0]  # certainly above 0 in the first row, so the ReLU lets it through
    pairs = zip(parts, names["columns_first"](x, other, b, ranks), strict=True)
    changed = sum(not np.allclose(before, after) for before, after in pairs)
    if changed != 1:
        raise Wrong(f"The sum is right, but {changed} ranks used the last column of a: it belongs to one.")


def _why(found: Any, wanted: Any, block: tuple[Any, Any, Any], ranks: int) -> str:
    """What was computed instead."""
    import numpy as np

    x, a, b = block
    if np.allclose(found, ranks * wanted):
        return f"That is {ranks} times the whole: every rank did all of it."
    if np.allclose(found, x @ a @ b):
        return "That is x @ a @ b: the ReLU plays no part."
    halves = zip(np.array_split(x, ranks, 1), np.array_split(a, ranks, 0), strict=True)
    if np.allclose(found, sum(np.maximum(x_part @ a_part, 0) @ b for x_part, a_part in halves)):
        return "That is rows first: a sum of ReLUs, where the ReLU of a sum is wanted."
    return "Which rows of b meet a rank's columns of a?"


COLUMNS_FIRST = Exercise(
    name="columns_first",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        "ReLU looks at one number of `x @ a` at a time. So each rank needs some of these numbers, finished.",
        "A column of a makes a column of `x @ a`, and that meets the row of b with the same number.",
        "`a[:, rank * width : (rank + 1) * width]`, and the same range of rows of b.",
    ),
    solution=SOLUTION,
    defines=("columns_first",),
    check=_check,
    shows="Columns, then rows: one sum for two products, and the activation in between needs nobody.",
    wrong_answers=(
        WrongAnswer("rows first", ROWS_FIRST, "a sum of ReLUs"),
        WrongAnswer("no ReLU", NO_RELU, "the ReLU plays no part"),
        WrongAnswer("everybody does everything", EVERYTHING, "every rank did all of it"),
        WrongAnswer("everybody does all, and divides", MEANS, "2 ranks used the last column of a"),
        WrongAnswer("other rows", OTHER_ROWS, "Which rows of b"),
    ),
)
