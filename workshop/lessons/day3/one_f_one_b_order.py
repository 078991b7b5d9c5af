"""Exercise: the order of a rank under 1F1B.

PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503; section 2.2.1 of arXiv:2104.04473): rank r of p
runs p - r - 1 forwards ahead, then one forward and one backward in turn, then the backwards that are left.
The check plays the orders of all ranks together, as `predict.pipeline.simulate` does, and looks at what is
kept and how long it takes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer
from workshop.predict.pipeline.orders import one_f_one_b
from workshop.predict.pipeline.simulate import Action, Durations, PipelineTimeline, play

QUESTION = """\
Write `one_f_one_b_order(rank, ranks, micro_batches)`: what a rank does in one step under 1F1B, as a list
like `["F0", "F1", "B0", "B1"]`, F for forward and B for backward of a micro-batch. Each rank has one stage,
rank 0 the first. It keeps at most `ranks - rank` micro-batches at once, and the step takes no longer than
under GPipe. `micro_batches` may be smaller than `ranks`."""

STUB = '''\
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = ...  # forwards before the first pair of F and B
    order = [f"F{micro}" for micro in range(warm_up)]
    order += ...  # pairs
    order += ...  # what is left
    return order
'''

SOLUTION = '''\
def one_f_one_b_order(rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The actions of a rank: F0, F1, ..., and B0, B1, ..., in the order of 1F1B."""
    warm_up = min(ranks - rank - 1, micro_batches)
    order = [f"F{micro}" for micro in range(warm_up)]
    for micro in range(micro_batches - warm_up):
        order += [f"F{warm_up + micro}", f"B{micro}"]
    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]
    return order
'''

CASES = ((4, 8), (2, 3), (4, 2), (1, 3), (8, 16))  # ranks, micro-batches
NAME = "one_f_one_b_order"
EACH = Durations(forward=1.0, backward=2.0)


def _check(names: dict[str, Any]) -> str:
    """Five pipelines, one of one rank, one with fewer micro-batches than ranks."""
    for ranks, micro_batches in CASES:
        said = [_asked(names[NAME], rank, ranks, micro_batches) for rank in range(ranks)]
        timeline = _played(said, micro_batches)
        _as_good(timeline, ranks, micro_batches)
        for rank, right in enumerate(one_f_one_b(ranks, micro_batches)):
            wanted = [f"{action.kind}{action.micro_batch}" for action in right]  # type: ignore[union-attr]
            if said[rank] != wanted:
                place = next(
                    p for p, pair in enumerate(zip(said[rank], wanted, strict=True)) if len(set(pair)) > 1
                )
                raise Wrong(
                    f"`{_written(rank, ranks, micro_batches)}` has {said[rank][place]!r} at place {place}; "
                    f"wanted {wanted[place]!r}. Micro-batches go through in the order of "
                    "their numbers, both ways."
                )
    return (
        "4 ranks, 8 micro-batches: they keep 4, 3, 2 and 1, and take as long as GPipe, which keeps 8 on each."
    )


def _written(rank: int, ranks: int, micro_batches: int) -> str:
    return Call((rank, ranks, micro_batches)).written(NAME)


def _asked(function: Any, rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The learner's list, if it has every F and every B once, each F before its B."""
    found = call(function, NAME, Call((rank, ranks, micro_batches)))
    written = f"`{_written(rank, ranks, micro_batches)}`"
    if not isinstance(found, (list, tuple)) or not all(isinstance(item, str) for item in found):
        raise Wrong(f"{written} gave {shown(found)}; wanted a list of strings such as 'F0' and 'B0'.")
    order = list(found)
    wanted = [f"{kind}{micro}" for kind in "FB" for micro in range(micro_batches)]
    for item, times in Counter(order).items():
        if item not in wanted:
            raise Wrong(
                f"{written} has {item!r}; there are {wanted[0]} to {wanted[-1]}, {micro_batches} "
                "micro-batches."
            )
        if times > 1:
            raise Wrong(f"{written} has {item!r} {times} times; each comes once.")
    missing = [item for item in wanted if item not in order]
    if missing:
        raise Wrong(
            f"{written} never runs {', '.join(missing[:3])}. What went forward must come back: a step ends "
            "with an empty pipeline."
        )
    for micro in range(micro_batches):
        if order.index(f"B{micro}") < order.index(f"F{micro}"):
            raise Wrong(f"{written} runs B{micro} before F{micro}, of which it is the backward.")
    return order


def _played(said: list[list[str]], micro_batches: int) -> PipelineTimeline:
    """All ranks together; Wrong where they wait for each other for ever."""
    orders: Any = [
        [Action(item[0], rank, int(item[1:])) for item in order] for rank, order in enumerate(said)
    ]
    try:
        return play(orders, EACH)
    except ValueError as error:
        who = str(error).removeprefix("these orders never finish: ")
        raise Wrong(
            f"With {len(said)} ranks and {micro_batches} micro-batches the ranks wait for each other. In "
            f"these words F0@1 is F0 on rank 1, and I is what B hands back: {who}."
        ) from error


def _as_good(timeline: PipelineTimeline, ranks: int, micro_batches: int) -> None:
    """Keeps no more than 1F1B, and takes no longer."""
    for rank, kept in enumerate(timeline.peak_in_flight.tolist()):
        if kept > ranks - rank:
            raise Wrong(
                f"With {ranks} ranks and {micro_batches} micro-batches rank {rank} keeps {kept} at once; "
                f"1F1B keeps at most {ranks - rank} there. Go back as soon as something can go back."
            )
    best = play(one_f_one_b(ranks, micro_batches), EACH).seconds
    if timeline.seconds > best:
        raise Wrong(
            f"With {ranks} ranks and {micro_batches} micro-batches (F takes 1, B takes 2) your step "
            f"takes {timeline.seconds:g}, and 1F1B {best:g}. Some rank runs too few forwards "
            "ahead, and the ones after it wait."
        )


WARM_UP = "min(ranks - rank - 1, micro_batches)"
LAST_LINE = '    order += [f"B{micro}" for micro in range(micro_batches - warm_up, micro_batches)]\n'

ONE_F_ONE_B_ORDER = Exercise(
    name=NAME,
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        (
            "Begin with the last rank: it can go back at once, so F0 B0 F1 B1 ... How many forwards ahead is "
            "the one before it?"
        ),
        "`warm_up` is the number of ranks that follow. Then pairs: the next forward, the oldest backward.",
        (
            "After `warm_up` forwards, `micro_batches - warm_up` pairs: pair i is F of `warm_up + i` and B "
            "of i. Then the last `warm_up` backwards. `warm_up` is never more than `micro_batches`."
        ),
    ),
    solution=SOLUTION,
    defines=(NAME,),
    check=_check,
    shows="The bubble is that of GPipe. What a rank keeps no longer grows with the number of micro-batches.",
    wrong_answers=(
        WrongAnswer(
            "all forwards first", SOLUTION.replace(WARM_UP, "micro_batches"), "rank 0 keeps 8 at once"
        ),
        WrongAnswer(
            "one warm-up too few",
            SOLUTION.replace(WARM_UP, "min(max(ranks - rank - 2, 0), micro_batches)"),
            "too few forwards ahead",
        ),
        WrongAnswer("no cool-down", SOLUTION.replace(LAST_LINE, ""), "never runs B5, B6, B7"),
        WrongAnswer(
            "one warm-up too many",
            SOLUTION.replace(WARM_UP, "min(ranks - rank, micro_batches)"),
            "rank 0 keeps 5 at once",
        ),
        WrongAnswer(
            "counted from the wrong end",
            SOLUTION.replace(WARM_UP, "min(rank, micro_batches)"),
            "wait for each other",
        ),
        WrongAnswer(
            "few micro-batches forgotten",
            SOLUTION.replace(WARM_UP, "ranks - rank - 1"),
            "'F2'; there are F0 to B1",
        ),
    ),
)
