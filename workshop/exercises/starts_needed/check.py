"""Exercise: how often must a job be started, when its time limit is shorter than the training?

A centre gives a job hours, a training takes days. So it runs in pieces: each start goes on from the last
checkpoint, and what came after that checkpoint when time was up is computed again.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare


def _right(work: int, limit: int, start: int, every: int) -> int:
    trains = limit - start
    kept = trains // every * every
    if work <= trains:
        return 1
    return 1 + math.ceil((work - trains) / kept) if kept > 0 else 0


CALLS = tuple(
    Call(case)
    for case in (
        (100, 3_600, 60, 600),  # done at once
        (36_000, 3_600, 60, 600),  # 3,540 s of training, 3,000 of them kept
        (36_000, 3_600, 0, 600),  # nothing is lost
        (36_000, 3_600, 300, 3_600),  # time is up before the first checkpoint
        (3_540, 3_600, 60, 3_000),  # the last start needs no checkpoint
        (86_400, 7_200, 120, 1_000),
    )
)
MISTAKES = (
    Mistake(lambda work, limit, *_: math.ceil(work / limit), "Each start also loses its first seconds."),
    Mistake(
        lambda work, limit, start, _: math.ceil(work / (limit - start)),
        "What was done after the last checkpoint is lost when time is up.",
    ),
    Mistake(
        lambda work, limit, start, every: (
            math.ceil(work / kept) if (kept := (limit - start) // every * every) else 0
        ),
        "The last start need not reach a checkpoint: it ends when the work is done.",
    ),
    Mistake(
        lambda work, limit, start, every: math.ceil(work / max(1, limit // every * every - start)),
        "The start's seconds come first; only what is left is divided into checkpoints.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Six jobs."""
    compare(names["starts_needed"], "starts_needed", CALLS, _right, MISTAKES)
    return "Six jobs, from one that is done at once to one that never ends."
