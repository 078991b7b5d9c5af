"""Exercise: a ring all-reduce from sends and receives.

Cut the tensor into N chunks. N - 1 times round the ring, each rank passes a chunk to the right and adds
the one that comes from the left: then each rank holds the full sum of one chunk (reduce-scatter). N - 1
times more, and the full chunks have reached everybody (all-gather). Patarasuk and Yuan, J. Parallel
Distrib. Comput. 69 (2009); for deep learning, Gibiansky, "Bringing HPC techniques to deep learning"
(2017).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

TOLERANCE = 1e-6  # of the largest value: the sums of a ring are added in another order than the library's

SEND_FIRST = (
    "All ranks do the same at the same time: if all wait to receive, none sends; if all wait in a send, "
    "none receives. Start the send with `dist.isend`, which returns at once, then receive, then wait for "
    "the send."
)


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, the readable sums, the random sums, the bytes."""
    nobody_waits([report["waited_at"] for report in reports], SEND_FIRST)
    wanted = [sum(column) for column in zip(*(report["began_with"] for report in reports), strict=True)]
    for rank, report in enumerate(reports):
        if report["held"] != wanted:
            raise Wrong(
                f"Rank r began with {_row(reports[0]['began_with'])} times 10^r. Afterwards rank {rank} "
                f"holds {_row(report['held'])}; wanted {_row(wanted)}. {_why(reports, wanted)}"
            )
    for cases in zip(*(report["random"] for report in reports), strict=True):
        _check_random(cases)
    case = reports[0]["random"][-1]
    share = case["sent_bytes"] / case["tensor_bytes"]
    return (
        f"Equal to `dist.all_reduce` on {len(reports[0]['random'])} random tensors. For the largest, of "
        f"{shown(case['tensor_bytes'])} bytes, each rank sent {shown(case['sent_bytes'])}: "
        f"{shown(share)} times that."
    )


def _check_random(cases: tuple[dict[str, Any], ...]) -> None:
    """One random tensor on all ranks: the sums, then how they came about."""
    world_size = len(cases)
    nobody_waits([case["waited_at"] for case in cases], SEND_FIRST)
    for rank, case in enumerate(cases):
        if not case["difference"] <= TOLERANCE:
            raise Wrong(
                f"On {shown(case['length'])} random numbers rank {rank} differs from `dist.all_reduce` by "
                f"{case['difference']:.1g} of the largest value; wanted at most {TOLERANCE:.1g}."
            )
        if case["collectives"]:
            raise Wrong(
                f"The sums are right, but `dist.{case['collectives'][0]}` made them. Here, write "
                "the sends and receives yourself, with `dist.isend` and `dist.irecv`."
            )
        wanted = 2 * (world_size - 1) * case["tensor_bytes"] // world_size
        if case["sent_bytes"] != wanted:
            raise Wrong(
                f"The sums are right, but rank {rank} sent {shown(case['sent_bytes'])} bytes for a tensor of "
                f"{shown(case['tensor_bytes'])} bytes; wanted {shown(wanted)}, which is 2 (N - 1) / N of it. "
                "A ring sends chunks, and adds them up on the way."
            )


def _why(reports: list[dict[str, Any]], wanted: list[float]) -> str:
    """The stage that was reached, read from the digits."""
    if all(report["held"] == report["began_with"] for report in reports):
        return "The tensor has not changed: write the sums into it, in place."
    size = len(wanted) // len(reports)
    full = [
        sum(_chunk(report["held"], c, size) == _chunk(wanted, c, size) for c in range(len(reports)))
        for report in reports
    ]
    if all(count == 1 for count in full):
        return (
            "Each rank has the full sum of one chunk: the reduce-scatter is right, but the all-gather "
            "has not handed the sums out."
        )
    return (
        "The digits tell whose numbers arrived: the ones are rank 0's, the tens rank 1's, and so on. "
        "Which chunk do you send in which step?"
    )


def _chunk(values: list[float], index: int, size: int) -> list[float]:
    return values[index * size : (index + 1) * size]


def _row(values: list[float]) -> str:
    return "[" + " ".join(f"{value:g}" for value in values) + "]"
