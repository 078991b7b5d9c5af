"""Exercise: cut a model in two stages where the slower one is as fast as it can be.

The pace of a pipeline is that of its slowest stage. With two stages there are as many cuts to try as there
are gaps between pieces; for more stages `parallel.stages.split_by_cost` does the same with a table.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from workshop.lessons.check import Call, Wrong, call, number, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
`costs` are the seconds of a model's pieces, in order. Write `place_cut(costs)`: how many pieces the first of
two stages gets, so that the slower stage takes as little as possible. Each stage needs at least one piece; of
two equally good cuts take the earlier."""

STUB = '''\
def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages, such that the slower stage is as fast as possible."""
    return ...
'''

SOLUTION = '''\
def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages, such that the slower stage is as fast as possible."""
    return min(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))
'''

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


def _check(names: dict[str, Any]) -> str:
    """Eight models, against all cuts tried."""
    for costs in CASES:
        made = Call((list(costs),))
        written = made.written("place_cut")
        found, wanted = number(call(names["place_cut"], "place_cut", made), written), _right(costs)
        if found != wanted:
            raise Wrong(f"`{written}` gave {shown(found)}; wanted {wanted}. {_why(found, costs)}")
    return "Eight models, each cut where the slower stage is fastest."


def _why(found: float, costs: tuple[float, ...]) -> str:
    if found != int(found) or not 1 <= found < len(costs):
        return f"That leaves a stage without a piece: 1 to {len(costs) - 1} are possible."
    first, second = sum(costs[: int(found)]), sum(costs[int(found) :])
    slower = f"The stages then take {shown(first)} and {shown(second)}"
    if max(first, second) == max(sum(costs[: _right(costs)]), sum(costs[_right(costs) :])):
        return f"{slower}. An earlier cut is equally good: take that."
    if found == len(costs) // 2:
        return f"{slower}. That counts pieces; pieces are not alike."
    if found == _half_reached(costs):
        return f"{slower}. One piece less may be nearer: look at the slower stage, not at the half."
    return f"{slower}; the slower one can be faster."


PLACE_CUT = Exercise(
    name="place_cut",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        "For every possible cut, how long does the slower of the two stages take?",
        "A cut after n pieces gives `sum(costs[:n])` and `sum(costs[n:])`; n runs from 1 to len(costs) - 1.",
        "`min(range(1, len(costs)), key=...)` with the larger of the two sums as the key.",
    ),
    solution=SOLUTION,
    defines=("place_cut",),
    check=_check,
    shows="Where pieces are unequal, a pipeline is cut by cost: by seconds, not by layers or weights.",
    wrong_answers=(
        WrongAnswer(
            "by number",
            "def place_cut(costs):\n    return len(costs) // 2\n",
            "pieces are not alike",
        ),
        WrongAnswer(
            "where half is reached",
            "def place_cut(costs):\n    total, n = 0, 0\n    while 2 * total < sum(costs):\n"
            "        total += costs[n]\n        n += 1\n    return n\n",
            "leaves a stage without a piece",
        ),
        WrongAnswer(
            "where half is reached, but one piece left",
            "def place_cut(costs):\n    total, n = 0, 0\n    while 2 * total < sum(costs):\n"
            "        total += costs[n]\n        n += 1\n    return min(n, len(costs) - 1)\n",
            "One piece less may be nearer",
        ),
        WrongAnswer(
            "the later of two",
            SOLUTION.replace("range(1, len(costs))", "range(len(costs) - 1, 0, -1)"),
            "An earlier cut",
        ),
        WrongAnswer("the worst cut", SOLUTION.replace("min(", "max("), "can be faster"),
    ),
)
