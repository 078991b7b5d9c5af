"""Exercise: cut a model in two stages where the slower one is as fast as it can be.

The pace of a pipeline is that of its slowest stage. With two stages there are as many cuts to try as there
are gaps between pieces; for more stages `parallel.stages.split_by_cost` does the same with a table.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

CASES: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1),
    (7, 40, 24, 19, 11, 20, 11, 1),  # a CoAtNet's pieces: dear ones first
    (1, 1, 1, 1, 1, 1, 1, 9),  # a head dearer than all before
    (9, 1, 1),
    (4, 4, 9, 1),  # the piece in which half is reached is better left to the second
    (2, 3, 2),  # two cuts are equally good
    (5, 5),
    (1, 2, 3, 4, 9),  # half of the sum lies inside the last piece
)


def _right(costs: tuple[float, ...]) -> int:
    return min(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))


def _half_reached(costs: tuple[float, ...]) -> int:
    """The first cut at which the first stage has at least half."""
    sums = list(accumulate(costs))
    return next(number for number, total in enumerate(sums, 1) if 2 * total >= sums[-1])


def check(names: dict[str, Any]) -> str:
    """Eight models, against all cuts tried."""
    for costs in CASES:
        made = Call((list(costs),))
        written = made.written("place_cut")
        answer, wanted = number(call(names["place_cut"], "place_cut", made), written), _right(costs)
        if answer != wanted:
            raise Wrong(f"`{written}` gave {shown(answer)}; wanted {wanted}. {_why(answer, costs)}")
    return "Eight models, each cut where the slower stage is fastest."


def _why(answer: float, costs: tuple[float, ...]) -> str:
    if answer != int(answer) or not 1 <= answer < len(costs):
        return f"That leaves a stage without a piece: 1 to {len(costs) - 1} are possible."
    first, second = sum(costs[: int(answer)]), sum(costs[int(answer) :])
    slower = f"The stages then take {shown(first)} and {shown(second)}"
    if max(first, second) == max(sum(costs[: _right(costs)]), sum(costs[_right(costs) :])):
        return f"{slower}. An earlier cut is equally good: take that one."
    if answer == len(costs) // 2:
        return f"{slower}. That counts pieces, but pieces are not alike."
    if answer == _half_reached(costs):
        return (
            f"{slower}. One piece less may be nearer: minimize the slower stage instead of looking for the "
            "half."
        )
    return f"{slower}. With another cut, the slower one can be faster."
