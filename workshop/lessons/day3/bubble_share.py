"""Exercise: the share of a pipeline's time in which a rank waits.

p stages, m micro-batches, v chunks of layers on each rank: (p - 1) / (v m + p - 1) of the whole time
(Narayanan et al., arXiv:2104.04473, section 2.2, who give the bubble over the *ideal* time, (p - 1) / (v
m)).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `bubble_share(stages, micro_batches, chunks=1)`: the share of the whole time, 0 to 1, in which a
rank waits under 1F1B, or under the interleaved schedule with `chunks` chunks of layers on each rank. All
micro-batches take equal time in all stages, and sending is free."""

STUB = '''\
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    return ...
'''

SOLUTION = '''\
def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step in which a rank waits for the pipeline to fill and to drain."""
    waiting = (stages - 1) / chunks
    return waiting / (micro_batches + waiting)
'''

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
        "`chunks` plays no part yet: thinner stages fill the pipe sooner.",
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
        "That is the share in which it works. Asked for is the rest.",
    ),
)


def _check(names: dict[str, Any]) -> str:
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


def _answer(formula: str) -> str:
    return f"def bubble_share(stages, micro_batches, chunks=1):\n    return {formula}\n"


BUBBLE_SHARE = Exercise(
    name="bubble_share",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        (
            "Count in units of one micro-batch through one stage. How many does a rank work on, "
            "and how many does it wait?"
        ),
        (
            "It works for `micro_batches` and waits for `stages - 1`. With chunks, the wait is so "
            "many times shorter."
        ),
        "`waiting = (stages - 1) / chunks`; the share is `waiting / (micro_batches + waiting)`.",
    ),
    solution=SOLUTION,
    defines=("bubble_share",),
    check=_check,
    shows=(
        "More micro-batches make the bubble small. They come from the batch, which data "
        "parallelism wants as well."
    ),
    wrong_answers=(
        WrongAnswer(
            "over the work alone", _answer("(stages - 1) / (chunks * micro_batches)"), "work and bubble"
        ),
        WrongAnswer(
            "no chunks", _answer("(stages - 1) / (micro_batches + stages - 1)"), "`chunks` plays no part"
        ),
        WrongAnswer(
            "one stage too many",
            _answer("stages / (chunks * micro_batches + stages)"),
            "waits for the other stages",
        ),
        WrongAnswer(
            "chunks the wrong way",
            _answer("(stages - 1) * chunks / (micro_batches + (stages - 1) * chunks)"),
            "not larger",
        ),
    ),
)
