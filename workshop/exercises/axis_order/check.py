"""Exercise: which axis goes innermost? Bytes by axis over the speed of the links that its groups use.

Rank numbers run through the innermost axis first, and a node holds neighbours. So the order of the axes says
which groups stay inside (Narayanan et al. 2021, arXiv:2104.04473, section 3, takeaways 1 and 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import isclose
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

GPT3 = {"tensor": 33.8e9, "pipeline": 0.1e9, "data": 9.5e9}  # GPT-3 in 8 x 8 x 8, as lesson 37 computes it
CASES: tuple[tuple[dict[str, float], dict[str, int], int], ...] = (
    ({"tensor": 500.0, "shard": 350.0, "pipeline": 33.0}, {"tensor": 2, "shard": 2, "pipeline": 2}, 4),
    (GPT3, {"tensor": 8, "pipeline": 8, "data": 8}, 8),
    ({"tensor": 9e9, "data": 5e9}, {"tensor": 16, "data": 8}, 8),  # what talks most finds no room
    ({"tensor": 9e9, "shard": 6e9, "replicate": 6e9}, {"tensor": 8, "shard": 4, "replicate": 2}, 8),
    ({"data": 2e9, "tensor": 1e9}, {"data": 4, "tensor": 2}, 4),
)


def seconds(
    order: Iterable[str], sent: Mapping[str, float], sizes: Mapping[str, int], per_node: int
) -> float:
    """Time to send everything, one axis after another, in this order of the axes."""
    total, reach = 0.0, 1
    for axis in order:
        reach *= sizes[axis]
        total += sent[axis] / (450e9 if reach <= per_node else 50e9)
    return total


def check(names: dict[str, Any]) -> str:
    """Five boxes; in one of them the axis that talks most is larger than a node."""
    for case in CASES:
        made = Call(case)
        answer = call(names["axis_order"], "axis_order", made)
        written, sent = made.written("axis_order"), case[0]
        if not isinstance(answer, (tuple, list)) or sorted(map(str, answer)) != sorted(sent):
            raise Wrong(f"`{written}` gave {shown(answer)}; wanted all of {', '.join(sent)}, each once.")
        best = min(permutations(sent), key=lambda order, case=case: seconds(order, *case))  # type: ignore[misc]
        took, least = seconds(answer, *case), seconds(best, *case)
        if not isclose(took, least):
            raise Wrong(
                f"`{written}` gave {tuple(answer)}, which takes {took / least:.1f} times as long as {best}. "
                f"{_why(answer, best, case)}"
            )
    return (
        "Tensor inside, pipeline outside, for GPT-3; and a group larger than a node leaves room for others."
    )


def _why(answer: Sequence[str], best: Sequence[str], case: tuple[Any, Any, int]) -> str:
    sent, sizes, per_node = case
    most = max(sent, key=lambda axis: sent[axis])
    if sizes[most] > per_node and answer[0] == most:
        return (
            f"Groups of {most} are larger than a node, so they cross nodes anyway. Put another axis inside."
        )
    if list(answer) == sorted(sent, key=lambda axis: sizes[axis]):
        return "Smallest first is not the question: how many bytes are there, and what does each one cost?"
    slowest = max(seconds(order, *case) for order in permutations(sent))
    if isclose(seconds(answer, *case), slowest) and list(answer) != sorted(sent, key=lambda axis: sent[axis]):
        return "No order takes longer: are the two speeds the right way round?"
    return f"The fast links belong to the axis that gains most from them: here {best[0]} comes first."
