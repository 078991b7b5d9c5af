"""Exercise: the backward of a block whose two matrices are cut over ranks.

Forward, the ranks' parts are summed at the block's exit. Backward, the other end has the sum: x was used
by all ranks, so its gradients add up at the entrance (g and f of Shoeybi et al. 2019, arXiv 1909.08053,
section 3).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order."
TOLERANCE = 1e-5  # of the largest value


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, whole numbers one can read, a random block against one process."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for case in ("readable", "random"):
        for name in ("h", "b", "x", "a"):
            for rank, report in enumerate(reports):
                _compare(name, rank, report[case][name], [other[case][name] for other in reports])
    return f"The four gradients on {len(reports)} ranks are those of one process. Only x's needed a sum."


def _compare(name: str, rank: int, mine: dict[str, Any], all_ranks: list[dict[str, Any]]) -> None:
    """One gradient on one rank."""
    answer, wanted = mine["found"], mine["wanted"]
    if answer is None or mine["shape"] != mine["wanted_shape"]:
        what = "nothing" if answer is None else f"shape {tuple(mine['shape'])}"
        raise Wrong(
            f"The gradient of `{name}` on rank {rank} is {what}; wanted shape {tuple(mine['wanted_shape'])}."
        )
    if _same(answer, wanted):
        return
    advice = f"The gradient of `{name}` on rank {rank} is {shown(answer)}; wanted {shown(wanted)}. "
    raise Wrong((advice + _why(name, answer, mine, all_ranks)).rstrip())


def _why(name: str, answer: list[float], mine: dict[str, Any], all_ranks: list[dict[str, Any]]) -> str:
    """What the number is instead."""
    ranks, wanted = len(all_ranks), mine["wanted"]
    if name == "x" and _same(answer, mine["alone"]):
        return "That is this rank's part alone: all ranks used x, so their gradients for x add up."
    if name == "x" and _same(answer, [value / ranks for value in wanted]):
        return "That is the mean. The ranks hold parts of one block, not copies of it: the parts add up."
    if name != "x" and _same(answer, [ranks * value for value in wanted]):
        return f"That is {ranks} times too much: the gradient of y is already whole on every rank."
    total = [sum(values) for values in zip(*(other["wanted"] for other in all_ranks), strict=True)]
    if name != "x" and _same(answer, total):
        held = "activations" if name == "h" else "weights"
        return f"That is the sum over ranks. But each rank has different {held}: there is nothing to add."
    return ""


def _same(answer: list[float], wanted: list[float]) -> bool:
    largest = max(abs(value) for value in wanted)
    return all(abs(one - two) <= TOLERANCE * largest for one, two in zip(answer, wanted, strict=True))
