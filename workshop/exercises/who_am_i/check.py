"""Exercise: who am I among the ranks?

Every rank runs the same program. What makes them differ is one number, and the first thing to do with it
is to take one's own share of the work. It is what `torch.utils.data.DistributedSampler` does with the
indices of a data set (it first repeats a few items, so that all shares have one length).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong


def check(reports: list[dict[str, Any]]) -> str:
    """Each rank reports its share of several lists: any fair cut is right."""
    lists = [items for items, _ in reports[0]["shares"]]
    for which, items in enumerate(lists):
        shares = [report["shares"][which][1] for report in reports]
        if fault := _fault(items, shares):
            raise Wrong(fault)
    shares = [report["shares"][0][1] for report in reports]
    return f"Of {len(lists[0])} items, {_told(shares)}."


def _fault(items: list, shares: list) -> str:
    """What is wrong with the shares of one list, the plainest fault first; empty where nothing is."""
    for rank, share in enumerate(shares):
        if not isinstance(share, list):  # the ranks report what it is instead
            return f"On rank {rank} `my_share` gave {share}; wanted a list of items."
    why = _why(items, shares)
    return why and f"With {len(items)} items on {len(shares)} ranks, {_told(shares)}. {why}"


def _why(items: list, shares: list[list]) -> str:
    for rank, share in enumerate(shares):
        if strange := [item for item in share if item not in items]:
            return f"Rank {rank} took {strange[0]!r}, which is none of the items."
    if items and all(share == shares[0] for share in shares):
        return "All ranks took the same items: `rank` plays no part yet."
    if missing := [item for item in items if all(item not in share for share in shares)]:
        return f"Nobody took {_listed(missing)}."
    if twice := [item for item in items if sum(share.count(item) for share in shares) > 1]:
        return f"More than one rank took {_listed(twice)}, or one took it twice."
    lengths = [len(share) for share in shares]
    most, least = max(lengths), min(lengths)
    if most - least > 1:
        return (
            f"Rank {lengths.index(most)} took {most} items and rank {lengths.index(least)} took {least}: "
            "all wait for the one with most to do. Spread the rest over the ranks, one item each."
        )
    return ""


def _listed(items: list) -> str:
    return "item " + str(items[0]) if len(items) == 1 else "items " + ", ".join(map(str, items))


def _told(shares: list[list]) -> str:
    return "; ".join(
        f"rank {rank} took {' '.join(map(str, share)) or 'nothing'}" for rank, share in enumerate(shares)
    )
