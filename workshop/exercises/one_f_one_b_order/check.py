"""Exercise: the order of a rank under 1F1B.

PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503; section 2.2.1 of arXiv:2104.04473): rank r of p
runs p - r - 1 forwards ahead, then one forward and one backward in turn, then the backwards that are left.
The check plays the orders of all ranks together, as `predict.pipeline.simulate` does, and looks at what is
kept and how long it takes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown
from workshop.predict.pipeline.orders import one_f_one_b
from workshop.predict.pipeline.simulate import Action, Durations, PipelineTimeline, play

CASES = ((4, 8), (2, 3), (4, 2), (1, 3), (8, 16))  # ranks, micro-batches
NAME = "one_f_one_b_order"
EACH = Durations(forward=1.0, backward=2.0)


def check(names: dict[str, Any]) -> str:
    """Five pipelines, one of one rank, one with fewer micro-batches than ranks."""
    for ranks, micro_batches in CASES:
        lists = [_asked(names[NAME], rank, ranks, micro_batches) for rank in range(ranks)]
        timeline = _played(lists, micro_batches)
        _as_good(timeline, ranks, micro_batches)
        for rank, right in enumerate(one_f_one_b(ranks, micro_batches)):
            wanted = [f"{action.kind}{action.micro_batch}" for action in right]  # type: ignore[union-attr]
            if lists[rank] != wanted:
                place = next(
                    p for p, pair in enumerate(zip(lists[rank], wanted, strict=True)) if len(set(pair)) > 1
                )
                raise Wrong(
                    f"`{_written(rank, ranks, micro_batches)}` has {lists[rank][place]!r} at place {place}; "
                    f"wanted {wanted[place]!r}. Forwards and backwards run in the order "
                    "of the micro-batches' numbers."
                )
    return (
        "4 ranks, 8 micro-batches: they keep 4, 3, 2 and 1, and take as long as GPipe, which keeps 8 on each."
    )


def _written(rank: int, ranks: int, micro_batches: int) -> str:
    return Call((rank, ranks, micro_batches)).written(NAME)


def _asked(function: Any, rank: int, ranks: int, micro_batches: int) -> list[str]:
    """The learner's list, if it has every F and every B once, each F before its B."""
    answer = call(function, NAME, Call((rank, ranks, micro_batches)))
    written = f"`{_written(rank, ranks, micro_batches)}`"
    if not isinstance(answer, (list, tuple)) or not all(isinstance(item, str) for item in answer):
        raise Wrong(f"{written} gave {shown(answer)}; wanted a list of strings such as 'F0' and 'B0'.")
    order = list(answer)
    wanted = [f"{kind}{micro}" for kind in "FB" for micro in range(micro_batches)]
    for item, times in Counter(order).items():
        if item not in wanted:
            raise Wrong(
                f"{written} has {item!r}; the actions are {wanted[0]} to {wanted[-1]}, for {micro_batches} "
                "micro-batches."
            )
        if times > 1:
            raise Wrong(f"{written} has {item!r} {times} times; each action comes once.")
    missing = [item for item in wanted if item not in order]
    if missing:
        raise Wrong(
            f"{written} never runs {', '.join(missing[:3])}. Every forward needs its backward: a step "
            "ends with an empty pipeline."
        )
    for micro in range(micro_batches):
        if order.index(f"B{micro}") < order.index(f"F{micro}"):
            raise Wrong(f"{written} runs B{micro} before F{micro}, of which it is the backward.")
    return order


def _played(lists: list[list[str]], micro_batches: int) -> PipelineTimeline:
    """All ranks together; Wrong where they wait for each other for ever."""
    orders: Any = [
        [Action(item[0], rank, int(item[1:])) for item in order] for rank, order in enumerate(lists)
    ]
    try:
        return play(orders, EACH)
    except ValueError as error:
        who = str(error).removeprefix("these orders never finish: ")
        raise Wrong(
            f"With {len(lists)} ranks and {micro_batches} micro-batches the ranks wait for each other. In "
            f"this report F0@1 is F0 on rank 1, and I is the gradient that B sends back: {who}."
        ) from error


def _as_good(timeline: PipelineTimeline, ranks: int, micro_batches: int) -> None:
    """Keeps no more than 1F1B, and takes no longer."""
    for rank, kept in enumerate(timeline.peak_in_flight.tolist()):
        if kept > ranks - rank:
            raise Wrong(
                f"With {ranks} ranks and {micro_batches} micro-batches rank {rank} keeps {kept} at once; "
                f"1F1B keeps at most {ranks - rank} there. Start a backward as soon as one can start."
            )
    best = play(one_f_one_b(ranks, micro_batches), EACH).seconds
    if timeline.seconds > best:
        raise Wrong(
            f"With {ranks} ranks and {micro_batches} micro-batches (F takes 1, B takes 2) your step "
            f"takes {timeline.seconds:g}, and 1F1B takes {best:g}. Some rank runs too few forwards "
            "ahead, or takes micro-batches in a different order, and the others wait."
        )
