"""Exercise: the backward of a block whose two matrices are cut over ranks.

Forward, the ranks' parts are summed at the block's exit. Backward, the other end has the sum: x was used
by all ranks, so its gradients add up at the entrance (g and f of Shoeybi et al. 2019, arXiv 1909.08053,
section 3).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A block is `z = x @ A`, `h = relu(z)`, `y = h @ B`. Each rank holds columns of A and the same rows of B. So
it has its part of z and h, and y is the sum over ranks of `h @ B`, an all_reduce. x and y are whole on
every rank, and so is the gradient of y. Write both backwards: `row_parallel_backward(gradient_y, h, b)`
returns the gradients of this rank's h and b, `column_parallel_backward(gradient_z, x, a)` the gradient of
all of x, and that of this rank's a. One of the four needs `dist.all_reduce`. Which?"""

STUB = '''\
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = ...
    gradient_b = ...
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """From the gradient of this rank's z = x @ a: the gradients of x, which all ranks used, and of a."""
    gradient_x = ...
    gradient_a = ...
    return gradient_x, gradient_a
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = gradient_y @ b.T
    gradient_b = h.T @ gradient_y
    return gradient_h, gradient_b


def column_parallel_backward(gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor):
    """From the gradient of this rank's z = x @ a: the gradients of x, which all ranks used, and of a."""
    gradient_x = gradient_z @ a.T
    dist.all_reduce(gradient_x)
    gradient_a = x.T @ gradient_z
    return gradient_x, gradient_a
'''

FORGOTTEN = SOLUTION.replace("    dist.all_reduce(gradient_x)\n", "").replace(
    "import torch.distributed as dist\n", ""
)
MEAN = SOLUTION.replace(
    "    dist.all_reduce(gradient_x)\n",
    "    dist.all_reduce(gradient_x)\n    gradient_x /= dist.get_world_size()\n",
)
IN_BOTH = SOLUTION.replace("    gradient_b = h.T", "    dist.all_reduce(gradient_h)\n    gradient_b = h.T")
SUM_AGAIN = SOLUTION.replace(
    "    gradient_h = ",
    "    gradient_y = gradient_y.clone()\n    dist.all_reduce(gradient_y)\n    gradient_h = ",
)
WEIGHTS_TOO = SOLUTION.replace(
    "    return gradient_x", "    dist.all_reduce(gradient_a)\n    return gradient_x"
)

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.row_parallel_backward import check_row_parallel_backward
check_row_parallel_backward(row_parallel_backward, column_parallel_backward)
"""

SAME_CALLS = "All ranks must make the same calls in the same order."
TOLERANCE = 1e-5  # of the largest value


def _check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, whole numbers one can read, a random block against one process."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for case in ("readable", "random"):
        for name in ("h", "b", "x", "a"):
            for rank, report in enumerate(reports):
                _compare(name, rank, report[case][name], [other[case][name] for other in reports])
    return f"The four gradients on {len(reports)} ranks are those of one process. Only x's needed a sum."


def _compare(name: str, rank: int, mine: dict[str, Any], all_ranks: list[dict[str, Any]]) -> None:
    """One gradient on one rank."""
    found, wanted = mine["found"], mine["wanted"]
    if found is None or mine["shape"] != mine["wanted_shape"]:
        what = "nothing" if found is None else f"shape {tuple(mine['shape'])}"
        raise Wrong(
            f"The gradient of `{name}` on rank {rank} is {what}; wanted shape {tuple(mine['wanted_shape'])}."
        )
    if _same(found, wanted):
        return
    said = f"The gradient of `{name}` on rank {rank} is {shown(found)}; wanted {shown(wanted)}. "
    raise Wrong((said + _why(name, found, mine, all_ranks)).rstrip())


def _why(name: str, found: list[float], mine: dict[str, Any], all_ranks: list[dict[str, Any]]) -> str:
    """What the number is instead."""
    ranks, wanted = len(all_ranks), mine["wanted"]
    if name == "x" and _same(found, mine["alone"]):
        return "That is this rank's part alone: all ranks used x, so what they find for it adds up."
    if name == "x" and _same(found, [value / ranks for value in wanted]):
        return "That is the mean. The ranks hold parts of one block, not copies of it: the parts add up."
    if name != "x" and _same(found, [ranks * value for value in wanted]):
        return f"That is {ranks} times too much: the gradient of y is whole on every rank already."
    total = [sum(values) for values in zip(*(other["wanted"] for other in all_ranks), strict=True)]
    if name != "x" and _same(found, total):
        held = "activations" if name == "h" else "weights"
        return f"That is the sum over ranks. But these are different {held} on each: nothing is to be added."
    return ""


def _same(found: list[float], wanted: list[float]) -> bool:
    largest = max(abs(value) for value in wanted)
    return all(abs(one - two) <= TOLERANCE * largest for one, two in zip(found, wanted, strict=True))


ROW_PARALLEL_BACKWARD = Exercise(
    name="row_parallel_backward",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        "For `y = h @ b` on one process: `gradient_y @ b.T` for h, and `h.T @ gradient_y` for b.",
        "Moving one rank's part moves the sum y by as much. So each part has the gradient of y, as it is.",
        "x is used by every rank, for its own columns. A thing used twice gets both gradients, added.",
    ),
    solution=SOLUTION,
    defines=("row_parallel_backward", "column_parallel_backward"),
    check=_check,
    shows="Forward sums at the exit, backward sums at the entrance: g and f, each the other's mirror.",
    wrong_answers=(
        WrongAnswer("forgets the sum", FORGOTTEN, "this rank's part alone"),
        WrongAnswer("the mean", MEAN, "That is the mean"),
        WrongAnswer("sums in both", IN_BOTH, "different activations on each"),
        WrongAnswer("sums the gradient of y", SUM_AGAIN, "whole on every rank already"),
        WrongAnswer("sums the weights' gradients", WEIGHTS_TOO, "different weights on each"),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
