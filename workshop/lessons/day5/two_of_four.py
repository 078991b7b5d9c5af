"""Exercise: the mask of 2:4 sparsity, which a GPU's sparse tensor cores can use.

Mishra et al. 2021, arXiv 2104.08378, section 3.1: of every four neighbours along the inputs two may be
nonzero.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `two_of_four(score)`: a boolean numpy array of the same shape as `score`, (outputs, inputs), with True
where a weight stays. Cut each row into groups of four neighbours, 0 to 3, 4 to 7 and so on; in each group the
two highest scores stay. The number of inputs is a multiple of four, and scores differ."""

STUB = '''\
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """True for the two highest scores of every four neighbours of a row."""
    groups = ...  # (number of groups, 4)
    mask = np.zeros_like(groups, dtype=bool)
    ...
    return mask.reshape(score.shape)
'''

SOLUTION = '''\
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """True for the two highest scores of every four neighbours of a row."""
    groups = score.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    best = np.argsort(groups, axis=1)[:, 2:]
    np.put_along_axis(mask, best, True, axis=1)
    return mask.reshape(score.shape)
'''

THRESHOLD = '''\
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Half of each row, wherever it lies."""
    return score > np.median(score, axis=1, keepdims=True)
'''

COLUMNS = '''\
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Groups of four down the columns."""
    groups = score.T.reshape(-1, 4)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.T.shape).T
'''

STRIDED = '''\
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """Four that lie a quarter of a row apart."""
    groups = score.reshape(len(score), 4, -1)
    mask = np.zeros_like(groups, dtype=bool)
    np.put_along_axis(mask, np.argsort(groups, axis=1)[:, 2:], True, axis=1)
    return mask.reshape(score.shape)
'''

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


def _sentence(score: Any, found: Any) -> str:
    """What a wrong mask would have been right for."""
    import numpy as np

    if np.array_equal(found, ~_plain(score)):
        return "These are the two lowest of each group: they stay, and should go."
    if np.array_equal(found, score > np.median(score, axis=1, keepdims=True)):
        return "Half of each row stays, but wherever it lies: a kernel needs two in every group."
    down = _plain(score.T.copy()).T
    if np.array_equal(found, down):
        return "The groups lie down the columns: neighbours are inputs of one output, along a row."
    per_group = found.reshape(-1, 4).sum(1)
    if np.all(per_group == per_group[0]) and per_group[0] != 2:
        return f"Every group keeps {int(per_group[0])} of four; wanted are two."
    if np.any(per_group != 2):
        return f"Some group of four keeps {int(per_group[per_group != 2][0])}; each must keep two."
    return "Each group keeps two, but not its two highest."


def _check(names: dict[str, Any]) -> str:
    """A row to read, and a random matrix whose sides are both multiples of four."""
    import numpy as np

    row = np.array([[0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.05, 0.4]])
    matrix = np.random.default_rng(0).random((8, 24))
    for score in (matrix, row):
        given = score.copy()
        found = call(names[NAME], NAME, Call((given,)))
        if not isinstance(found, np.ndarray) or found.shape != score.shape or found.dtype != bool:
            raise Wrong(f"It gave {shown(found)}; wanted a boolean array of shape {score.shape}.")
        if not np.array_equal(given, score):
            raise Wrong("The scores were changed. Make a new array for the mask.")
        if not np.array_equal(found, _plain(score)):
            raise Wrong(f"Of {score.shape[0]} rows of {score.shape[1]}: {_sentence(score, found)}")
    return "In every group of four two stay: 2 values and 2 places of 2 bits are all there is to keep."


TWO_OF_FOUR = Exercise(
    name=NAME,
    day=5,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`score.reshape(-1, 4)` makes a row of every group: neighbours stay neighbours.",
        "`np.argsort(groups, axis=1)` orders each from the lowest up. Which two columns of it do you want?",
        "`np.put_along_axis(mask, places, True, axis=1)` sets a place in each row.",
    ),
    solution=SOLUTION,
    defines=(NAME,),
    check=_check,
    shows="Half of the weights, and a kernel knows without looking where they can be.",
    wrong_answers=(
        WrongAnswer("half of a row", THRESHOLD, "wherever it lies"),
        WrongAnswer("the two lowest", SOLUTION.replace("[:, 2:]", "[:, :2]"), "two lowest of each group"),
        WrongAnswer("down the columns", COLUMNS, "lie down the columns"),
        WrongAnswer("a quarter apart", STRIDED, "each must keep two"),
        WrongAnswer("three of four", SOLUTION.replace("[:, 2:]", "[:, 1:]"), "keeps 3 of four"),
    ),
)
