"""Exercise: the mask of 2:4 sparsity, which a GPU's sparse tensor cores can use.

Mishra et al. 2021, arXiv 2104.08378, section 3.1: of every four neighbours along the inputs two may be
nonzero.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "two_of_four"


def _plain(score: Any) -> Any:
    """Group by group."""
    import numpy as np

    mask = np.zeros(score.shape, dtype=bool)
    for row in range(score.shape[0]):
        for first in range(0, score.shape[1], 4):
            order = np.argsort(score[row, first : first + 4])
            mask[row, first + order[2:]] = True
    return mask


def _sentence(score: Any, answer: Any) -> str:
    """What a wrong mask would have been right for."""
    import numpy as np

    if np.array_equal(answer, ~_plain(score)):
        return "The mask keeps the two lowest of each group: keep the two highest."
    if np.array_equal(answer, score > np.median(score, axis=1, keepdims=True)):
        return "Half of each row stays, but at any place: a kernel needs two in every group."
    down = _plain(score.T.copy()).T
    if np.array_equal(answer, down):
        return "The groups lie down the columns: neighbors are inputs of one output, along a row."
    per_group = answer.reshape(-1, 4).sum(1)
    if np.all(per_group == per_group[0]) and per_group[0] != 2:
        return f"Every group keeps {int(per_group[0])} of four; it should keep two."
    if np.any(per_group != 2):
        return f"Some group of four keeps {int(per_group[per_group != 2][0])}; each must keep two."
    return "Each group keeps two, but not its two highest."


def check(names: dict[str, Any]) -> str:
    """A row to read, and a random matrix whose sides are both multiples of four."""
    import numpy as np

    row = np.array([[0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.05, 0.4]])
    matrix = np.random.default_rng(0).random((8, 24))
    for score in (matrix, row):
        given = score.copy()
        answer = call(names[NAME], NAME, Call((given,)))
        if not isinstance(answer, np.ndarray) or answer.shape != score.shape or answer.dtype != bool:
            raise Wrong(f"It gave {shown(answer)}; wanted a boolean array of shape {score.shape}.")
        if not np.array_equal(given, score):
            raise Wrong("The scores were changed. Make a new array for the mask.")
        if not np.array_equal(answer, _plain(score)):
            raise Wrong(f"Of {score.shape[0]} rows of {score.shape[1]}: {_sentence(score, answer)}")
    return "Two of every four stay, so a kernel has to store only 2 values and 2 places of 2 bits."
