"""Call `my_share` on every rank, on lists that do and do not divide by the number of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from workshop.launch.report import report

LENGTHS = (10, 8, 3, 0)  # the first is the one most wrong answers show on


def try_on_rank(my_share: Callable[[list, int, int], list]) -> None:
    """Report, for each length, the items and this rank's share of them."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lists = [list(range(length)) for length in LENGTHS]
    report(check={"shares": [(items, _plain(my_share(list(items), rank, world_size))) for items in lists]})


def _plain(share: object) -> list | str:
    """The share as a list, or what it is instead: not everything can be sent to the notebook."""
    if isinstance(share, (list, tuple, range)):
        return list(share)
    return (
        "nothing (None); is a `return` missing?"
        if share is None
        else f"a value of type {type(share).__name__}"
    )
