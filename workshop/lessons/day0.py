"""Exercises of day 0: who am I among the ranks?

Every rank runs the same program. What makes them differ is one number, and the first thing to do with it
is to take one's own share of the work. It is what `torch.utils.data.DistributedSampler` does with the
indices of a data set (it first repeats a few items, so that all shares have one length).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Every rank runs this same cell; only `rank` differs. Write `my_share(items, rank, world_size)` so that a
rank takes every `world_size`-th item, beginning with the item at its own rank. Together the ranks must
take each item once, also when the number of items does not divide by `world_size`."""

STUB = '''\
def my_share(items: list, rank: int, world_size: int) -> list:
    """The items that this rank works on."""
    return ...
'''

SOLUTION = '''\
def my_share(items: list, rank: int, world_size: int) -> list:
    """The items that this rank works on."""
    return items[rank::world_size]
'''

CONTIGUOUS = """\
def my_share(items: list, rank: int, world_size: int) -> list:
    size = len(items) // world_size
    return items[rank * size : (rank + 1) * size]
"""

OFF_BY_ONE = """\
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[rank + 1 :: world_size]
"""

SAME_FOR_ALL = """\
def my_share(items: list, rank: int, world_size: int) -> list:
    return items[::world_size]
"""

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.who_am_i import check_my_share
check_my_share(my_share)
"""


def _check(reports: list[dict[str, Any]]) -> str:
    """Each rank reports its share of several lists; compare with every world_size-th item."""
    world_size = len(reports)
    lists = [items for items, _ in reports[0]["shares"]]
    for which, items in enumerate(lists):
        shares = [report["shares"][which][1] for report in reports]
        wanted = [items[rank::world_size] for rank in range(world_size)]
        if shares != wanted:
            raise Wrong(_difference(items, shares, wanted))
    shares = [report["shares"][0][1] for report in reports]
    return f"Of {len(lists[0])} items, {_told(shares)}."


def _difference(items: list, shares: list, wanted: list) -> str:
    """What is wrong with the shares of one list, the plainest fault first."""
    for rank, share in enumerate(shares):
        if not isinstance(share, list):  # the ranks report what it is instead
            return f"On rank {rank} `my_share` gave {share}; wanted the list {wanted[rank]}."
    rank = next(rank for rank, (found, want) in enumerate(zip(shares, wanted, strict=True)) if found != want)
    if all(share == shares[0] for share in shares):
        why = "All ranks took the same items: `rank` plays no part yet."
    elif missing := [item for item in items if all(item not in share for share in shares)]:
        why = f"Nobody took {_listed(missing)}."
    elif twice := [item for item in items if sum(share.count(item) for share in shares) > 1]:
        why = f"More than one rank took {_listed(twice)}."
    else:
        why = "Each item is taken once, but not every `world_size`-th one."
    return (
        f"With {len(items)} items on {len(shares)} ranks, rank {rank} took {shares[rank]}; "
        f"wanted {wanted[rank]}. {why}"
    )


def _listed(items: list) -> str:
    return "item " + str(items[0]) if len(items) == 1 else "items " + ", ".join(map(str, items))


def _told(shares: list[list]) -> str:
    return "; ".join(f"rank {rank} took {' '.join(map(str, share))}" for rank, share in enumerate(shares))


WHO_AM_I = Exercise(
    name="who_am_i",
    day=0,
    question=QUESTION,
    stub=STUB,
    hints=(
        "With 4 ranks, rank 1 takes the items at 1, 5, 9, ... Where does it begin, and how far is each step?",
        "A slice has three parts, `items[start:stop:step]`, and `stop` may be left out.",
        "Begin at `rank`, step by `world_size`.",
    ),
    solution=SOLUTION,
    defines=("my_share",),
    check=_check,
    shows=(
        "One program, one number that differs: this is how every rank finds its own data, its own layers or "
        "its own part of a matrix in the lessons to come."
    ),
    wrong_answers=(
        WrongAnswer("slices in a row that drop the rest", CONTIGUOUS, "Nobody took items 8, 9"),
        WrongAnswer("off by one", OFF_BY_ONE, "Nobody took item 0"),
        WrongAnswer("the same share for all", SAME_FOR_ALL, "All ranks took the same items"),
    ),
    ranks=4,
    check_program=CHECK_PROGRAM,
)

EXERCISES = (WHO_AM_I,)
