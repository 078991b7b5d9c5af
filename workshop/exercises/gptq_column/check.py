"""Exercise: one column of GPTQ. Round it, and let the later ones make up for it.

Frantar et al. 2022, arXiv 2210.17323, equation 2: the later weights of a row move by minus the column's
error, divided by [H^-1]_jj, times the row j of H^-1; H without the rows and columns before j. That is the
least of d H d^T over the later entries of d, and the check computes it so: another way than by solving.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, shown


def check(names: dict[str, Any]) -> str:
    """Two inputs that are always nearly alike, then a random problem, every column in turn."""
    import numpy as np

    _one(names, np.array([[1.4, 2.0], [-0.3, 1.0]]), np.array([[1.0, 0.9], [0.9, 1.0]]), 0)
    numbers = np.random.default_rng(0)
    inputs = numbers.normal(size=(40, 3)) @ numbers.normal(size=(3, 6)) + 0.5 * numbers.normal(size=(40, 6))
    hessian, weight = inputs.T @ inputs, 3 * numbers.normal(size=(4, 6))
    for j in (0, 2, 5):
        _one(names, weight, hessian, j)
    better = weight
    for j in range(weight.shape[1]):
        better = names["gptq_column"](better, hessian, j, np.round)
    before, after = (float(((inputs @ (each - weight).T) ** 2).sum()) for each in (np.round(weight), better))
    if after >= before:
        raise Wrong(
            f"All columns in turn: squared error {shown(after)}, rounding to nearest {shown(before)}."
        )
    return f"Column after column, the outputs' squared error is {after / before:.0%} of rounding to nearest."


def _one(names: dict[str, Any], weight: Any, hessian: Any, j: int) -> None:
    import numpy as np

    def nearest(column: Any) -> Any:
        if np.shape(column) != weight[:, j].shape:
            shape = weight[:, j].shape
            raise Wrong(f"`nearest` got an array of shape {np.shape(column)}; give it the column, {shape}.")
        return np.round(column)

    given = weight.copy()
    answer = names["gptq_column"](given, hessian.copy(), j, nearest)
    if not isinstance(answer, np.ndarray) or answer.shape != weight.shape:
        raise Wrong(f"`gptq_column` gave {shown(answer)}; wanted a numpy array of shape {weight.shape}.")
    if not np.array_equal(given, weight):
        raise Wrong("`gptq_column` has changed the array it was given: make a copy.")
    rounded, change = np.round(weight[:, j]), answer - weight
    if not np.allclose(answer[:, j], rounded):
        raise Wrong(
            f"Column {j} is {shown(answer[:, j].tolist())}; rounded it is {shown(rounded.tolist())}, "
            "and it must stay so."
        )
    if not np.allclose(change[:, :j], 0):
        raise Wrong("Columns before j have moved: they are rounded already, and must stay on the grid.")
    added, inverse = rounded - weight[:, j], np.linalg.inv(hessian[j:, j:])
    wanted = np.outer(added, inverse[0, 1:] / inverse[0, 0])
    if np.allclose(change[:, j + 1 :], wanted):
        return
    advice = f"The column after column {j} moved by {shown(change[:, j + 1].tolist())}; wanted "
    why = _why(change[:, j + 1 :], wanted, added, hessian, j)
    raise Wrong(f"{advice}{shown(wanted[:, 0].tolist())}. {why}".rstrip())


def _why(change: Any, wanted: Any, added: Any, hessian: Any, j: int) -> str:
    """What the move is instead."""
    import numpy as np

    later = slice(j + 1, None)
    inverse = np.linalg.inv(hessian)
    if np.allclose(change, 0):
        return "The later columns have not moved: that is rounding to nearest."
    if np.allclose(change, -wanted):
        return "The move goes the other way and makes the error larger: it must make up for the rounding."
    if np.allclose(change, np.outer(added, inverse[j, later] / inverse[j, j])):
        return "That would be right if the columns before j moved too: leave them out of the hessian."
    if np.allclose(change, -np.outer(added, hessian[j, later] / np.diag(hessian)[later])):
        return "Each column makes up for the error as if it were alone. Together they do too much."
    return ""
