"""Exercise: the step of ring attention: hand the keys on, attend, merge.

Liu et al. 2023, arXiv 2310.01889; how two parts of a softmax add up: Milakov and Gimelshein 2018, arXiv
1805.02867.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SEND_FIRST = (
    "All do the same at the same time. Begin the send and the receive together, with "
    "`dist.batch_isend_irecv`, then wait for both."
)
TOLERANCE = 1e-5  # of the largest value
OF_LARGE = 1e-3  # the same where scores are large: 32 bits leave an lse of 200 an error of 1e-5
OVERFLOW = (
    "The result is right, but not if each `lse` is 200 larger, as with large scores: then e^lse overflows. "
    "Take exponentials of differences, e^(lse - lse of both), and `torch.logaddexp` for the lse of both."
)
WHY = {
    "added": (
        "That is the plain sum of the parts. Each part is an average over its own keys: it counts by its "
        "share of the sum of exponentials, e^(lse - lse of both)."
    ),
    "halved": (
        "That is the plain mean of the parts. But a part whose exponentials sum to more counts for more: by "
        "e^(lse - lse of both)."
    ),
    "lse_kept": (
        "The outputs are merged, but `lse` stayed as it was. After a merge it is the logarithm of both sums: "
        "the next merge needs that."
    ),
    "never_merged": "That is attention over the rank's own keys alone: the other parts are not merged yet.",
    "not_the_owner": (
        "`owner` is not the rank whose keys are here, so the wrong blocks are masked. Blocks go to "
        "`(rank + 1) % world_size` and come from `(rank - 1) % world_size`: in step s a rank has those of "
        "`(rank - s) % world_size`."
    ),
    "every_block": "That sees later keys too: of the other ranks' keys, only those of earlier ranks count.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits, attention over the whole sequence, nothing overflows, and what was sent."""
    nobody_waits([report["waited_at"] for report in reports], SEND_FIRST)
    for rank, report in enumerate(reports):
        answer, wanted = report["found"], report["wanted"]
        if answer is None or len(answer) != len(wanted):
            what = "nothing" if answer is None else f"{len(answer)} numbers"
            raise Wrong(f"rank {rank} returned {what}; wanted a tensor of {len(wanted)} numbers, as `query`.")
    right = [_same(report["found"], report["wanted"]) for report in reports]
    if not all(right):
        rank = right.index(False)
        raise Wrong(_difference(rank, reports[rank], _reason(reports)))
    if not all(report["off_if_large"] < OF_LARGE for report in reports):  # nan is not, either
        raise Wrong(OVERFLOW)
    for rank, report in enumerate(reports):
        if report["sent"] != report["allowed"]:
            raise Wrong(
                f"The result is right, but rank {rank} sent {shown(report['sent'])} bytes; wanted "
                f"{shown(report['allowed'])}: N - 1 times its keys and values."
            )
    return (
        f"Equal to attention over the whole sequence, on {len(reports)} ranks. Each sent "
        f"{shown(reports[0]['sent'])} bytes: N - 1 times its keys and values."
    )


def _reason(reports: list[dict[str, Any]]) -> str:
    """The mistake that explains every rank's numbers, if one does."""
    for name, sentence in WHY.items():
        if all(_same(report["found"], report["mistakes"][name]) for report in reports):
            return sentence
    return ""


def _difference(rank: int, report: dict[str, Any], reason: str) -> str:
    pairs = zip(report["found"], report["wanted"], strict=True)
    place = max(enumerate(pairs), key=lambda item: abs(item[1][0] - item[1][1]))[0]
    advice = f"On rank {rank} one number is {shown(report['found'][place])}; wanted"
    return f"{advice} {shown(report['wanted'][place])}. {reason}".rstrip()


def _same(answer: list[float], wanted: list[float]) -> bool:
    largest = max(abs(value) for value in wanted)
    return all(abs(one - two) <= TOLERANCE * largest for one, two in zip(answer, wanted, strict=True))
