"""Exercise: dispatch: tokens to the ranks that have their experts.

Lepikhin et al. 2020, arXiv 2006.16668, section 3; in uneven parts as in Gale et al. 2022, arXiv 2211.15841.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order."


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: the counts, the lists, nobody waits in vain, the rows, and what is said of them."""
    for rank, report in enumerate(reports):
        if report["num_counts"] is not None:
            raise Wrong(
                f"Rank {rank} sent {report['num_counts']} counts; wanted one for each of 8 experts, also for "
                "experts that nobody wants: `minlength`."
            )
        if report["lists"] is not None and report["lists"] != report["wanted"]["lists"]:
            raise Wrong(_of_lists(rank, report, len(reports)))
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for rank, report in enumerate(reports):
        if report["found"] is None:
            raise Wrong(f"Rank {rank} did not return two tensors: what came, and how much of it.")
        rows, came = report["found"]
        if rows != report["wanted"]["rows"]:
            raise Wrong(
                f"Rank {rank} did not get the right rows. Each rank sends its rows in the order of experts."
            )
        if came != report["wanted"]["came"]:
            raise Wrong(
                f"The rows are right, but rank {rank} says that {shown(came)} came; wanted "
                f"{shown(report['wanted']['came'])}."
            )
    numbers = [len(report["found"][0]) for report in reports]
    return f"Every row came to its expert: {', '.join(map(shown, numbers))} rows to the {len(reports)} ranks."


def _of_lists(rank: int, report: dict[str, Any], ranks: int) -> str:
    """What is wrong with the two lists by which rows would have left."""
    given, wanted = report["lists"], report["wanted"]["lists"]
    for name, one, right in zip(("to_ranks", "from_ranks"), given, wanted, strict=True):
        if not isinstance(one, list):
            return f"On rank {rank} `{name}` is {shown(one)}; wanted a list of whole numbers."
        if len(one) != ranks:
            return (
                f"On rank {rank} `{name}` has {len(one)} numbers; wanted one for each of {ranks} ranks. "
                "`view(ranks, here)` has a line for each rank: sum along it, over dim 1."
            )
        if one != right:
            reason = _reason(report)
            return f"On rank {rank} `{name}` is {shown(one)}; wanted {shown(right)}. {reason}".rstrip()
    raise AssertionError("the lists are right")


def _reason(report: dict[str, Any]) -> str:
    to_ranks, from_ranks = report["lists"]
    wanted = report["wanted"]["lists"]
    if [from_ranks, to_ranks] == wanted:
        return "The two lists are swapped."
    if to_ranks == report["in_turn"]:
        return "That deals out experts in turn. But expert e is on rank e // here."
    if to_ranks == wanted[0] and from_ranks == to_ranks:
        return (
            "That is what this rank sends. No rank knows what the others will send: they must say so, in an "
            "all_to_all of the counts."
        )
    if from_ranks == report["together"]:
        return (
            "That is what all ranks together send to each rank. You need what each rank sends to this one: "
            "an all_to_all of the counts."
        )
    return ""
