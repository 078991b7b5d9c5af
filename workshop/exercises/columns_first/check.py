"""Exercise: a block in parts that are only added up at its end.

relu(x A) B, with A cut in columns and B in rows, is a sum of parts. With A cut in rows it is not:
relu(u + v) is not relu(u) + relu(v) (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, shown


def check(names: dict[str, Any]) -> str:
    """A block one can compute in one's head, then random ones on two, three and four ranks."""
    import numpy as np

    numbers = np.random.default_rng(0)
    _one(names, np.array([[1.0, 1.0]]), np.array([[2.0, -3.0], [-1.0, 5.0]]), np.array([[1.0], [10.0]]), 2)
    for ranks in (2, 3, 4):
        x, a, b = (numbers.normal(size=shape) for shape in ((3, 12), (12, 2 * ranks), (2 * ranks, 5)))
        _one(names, x, a, b, ranks)
    return "The parts add up to the whole block on 2, 3 and 4 ranks, and nothing was sent before the sum."


def _one(names: dict[str, Any], x: Any, a: Any, b: Any, ranks: int) -> None:
    import numpy as np

    wanted = np.maximum(x @ a, 0) @ b
    parts = list(names["columns_first"](x, a, b, ranks))
    if len(parts) != ranks or any(np.shape(part) != wanted.shape for part in parts):
        shapes = [tuple(np.shape(part)) for part in parts]
        raise Wrong(f"{ranks} ranks gave parts of shapes {shapes}; wanted {ranks} of shape {wanted.shape}.")
    answer = np.sum(parts, axis=0)
    if np.allclose(answer, wanted, rtol=1e-9):
        return _fair(names, parts, (x, a, b), ranks)
    first, right = (shown(numbers.ravel().round(3).tolist()) for numbers in (answer, wanted))
    advice = f"The parts add up to {first}; wanted {right}. "
    raise Wrong((advice + _why(answer, wanted, (x, a, b), ranks)).rstrip())


def _fair(names: dict[str, Any], parts: list[Any], block: tuple[Any, Any, Any], ranks: int) -> None:
    """Where a column of a changes, the part of one rank may change; and each rank has as many columns."""
    import numpy as np

    x, a, b = block
    width = a.shape[1]
    held = [0] * ranks
    for column in reversed(range(width)):
        other = a.copy()
        other[:, column] = 7 * x[0]  # certainly above 0 in the first row, so the ReLU lets it through
        pairs = zip(parts, names["columns_first"](x, other, b, ranks), strict=True)
        users = [rank for rank, (before, after) in enumerate(pairs) if not np.allclose(before, after)]
        if len(users) != 1:
            which = "the last column" if column == width - 1 else f"column {column}"
            raise Wrong(f"The sum is right, but {len(users)} ranks used {which} of a: it belongs to one.")
        held[users[0]] += 1
    for rank, count in enumerate(held):
        if count != width // ranks:
            raise Wrong(
                f"The sum is right, but rank {rank} used {count} of the {width} columns of a; "
                f"wanted {width // ranks} on each of {ranks} ranks."
            )


def _why(answer: Any, wanted: Any, block: tuple[Any, Any, Any], ranks: int) -> str:
    """What was computed instead."""
    import numpy as np

    x, a, b = block
    if np.allclose(answer, ranks * wanted):
        return f"That is {ranks} times the whole: every rank did all of it."
    if np.allclose(answer, x @ a @ b):
        return "That is x @ a @ b: the ReLU plays no part."
    halves = zip(np.array_split(x, ranks, 1), np.array_split(a, ranks, 0), strict=True)
    if np.allclose(answer, sum(np.maximum(x_part @ a_part, 0) @ b for x_part, a_part in halves)):
        return "That is rows first: a sum of ReLUs, but you need the ReLU of a sum."
    return "Which rows of b belong to a rank's columns of a?"
