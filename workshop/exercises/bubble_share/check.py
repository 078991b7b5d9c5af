"""Exercise: the share of a pipeline's time in which a rank waits.

p stages, m micro-batches, v chunks of layers on each rank: (p - 1) / (v m + p - 1) of the whole time
(Narayanan et al., arXiv:2104.04473, section 2.2, who give the bubble over the *ideal* time, (p - 1) / (v
m)).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

CALLS = (
    Call((4, 8)),
    Call((64, 512)),
    Call((8, 32), {"chunks": 4}),
    Call((1, 5)),
    Call((16, 16), {"chunks": 2}),
)

MISTAKES = (
    Mistake(
        lambda p, m, chunks=1: (p - 1) / chunks / m,
        "That is the bubble over the time of the work alone. The whole time is work and bubble.",
    ),
    Mistake(
        lambda p, m, **_: (p - 1) / (m + p - 1),
        "`chunks` plays no part yet, but thinner stages fill the pipeline sooner.",
    ),
    Mistake(
        lambda p, m, chunks=1: (p - 1) * chunks / (m + (p - 1) * chunks),
        "More chunks must make the bubble smaller, not larger.",
    ),
    Mistake(
        lambda p, m, chunks=1: p / chunks / (m + p / chunks),
        "A rank waits for the other stages: `stages - 1` of them.",
    ),
    Mistake(
        lambda p, m, chunks=1: m / (m + (p - 1) / chunks),
        "That is the share of time in which the rank works. The exercise asks for the rest.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Five pipelines, one of them of one stage, against the closed form."""
    compare(
        names["bubble_share"],
        "bubble_share",
        CALLS,
        lambda p, m, chunks=1: (p - 1) / (chunks * m + p - 1),
        MISTAKES,
    )
    return (
        "64 stages and 512 micro-batches: 11 % of the time. 8 stages, 32 micro-batches: 18 %, "
        "and 5 % with 4 chunks."
    )
