"""Exercise: how often must a job be started, when its time limit is shorter than the training?

A centre gives a job hours, a training takes days. So it runs in pieces: each start goes on from the last
checkpoint, and what came after that checkpoint when time was up is computed again.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A training takes `work` seconds in all. A job has `limit` seconds; the first `start` of them go by before it
trains (imports, loading). It saves a checkpoint after every `every` seconds of training, for nothing; what
was done since the last one is lost when time is up. Write `starts_needed(work, limit, start, every)`: how
many starts it takes until the training is done, or 0 if it never is."""

STUB = '''\
def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    """Starts until `work` seconds of training are done; 0 if they never are."""
    trains = limit - start  # seconds of training in one start
    return ...
'''

SOLUTION = '''\
def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    """Starts until `work` seconds of training are done; 0 if they never are."""
    trains = limit - start  # seconds of training in one start
    kept = trains // every * every  # of them, what the next start finds saved
    starts = 1
    while work > trains:
        if kept <= 0:
            return 0
        work -= kept
        starts += 1
    return starts
'''


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
    Mistake(lambda work, limit, *_: math.ceil(work / limit), "Each start loses its first seconds too."),
    Mistake(
        lambda work, limit, start, _: math.ceil(work / (limit - start)),
        "What was done after the last checkpoint is lost when time is up.",
    ),
    Mistake(
        lambda work, limit, start, every: (
            math.ceil(work / kept) if (kept := (limit - start) // every * every) else 0
        ),
        "The last start need not reach a checkpoint: it is done when the work is.",
    ),
    Mistake(
        lambda work, limit, start, every: math.ceil(work / max(1, limit // every * every - start)),
        "The start's seconds come first; only what is left is divided into checkpoints.",
    ),
)


def _check(names: dict[str, Any]) -> str:
    """Six jobs."""
    compare(names["starts_needed"], "starts_needed", CALLS, _right, MISTAKES)
    return "Six jobs, from one that is done at once to one that never ends."


STARTS_NEEDED = Exercise(
    name="starts_needed",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "How many seconds does one start train? How many of those does the next start find saved?",
        "`kept = trains // every * every`. Every start but the last brings you forward by that.",
        "If `work <= trains` one start is enough. Else take `kept` off and start again; and if `kept` is 0?",
    ),
    solution=SOLUTION,
    defines=("starts_needed",),
    check=_check,
    shows="a job makes way by whole checkpoints; where none fits into it, the training starts for ever.",
    wrong_answers=(
        WrongAnswer(
            "all of the limit is training",
            "import math\n\n\ndef starts_needed(work: int, limit: int, start: int, every: int) -> int:\n"
            "    return math.ceil(work / limit)\n",
            "Each start loses its first seconds too",
        ),
        WrongAnswer(
            "nothing is lost at the end",
            "import math\n\n\ndef starts_needed(work: int, limit: int, start: int, every: int) -> int:\n"
            "    return math.ceil(work / (limit - start))\n",
            "after the last checkpoint is lost",
        ),
        WrongAnswer(
            "the last start must save too",
            "import math\n\n\ndef starts_needed(work: int, limit: int, start: int, every: int) -> int:\n"
            "    kept = (limit - start) // every * every\n    return math.ceil(work / kept) if kept else 0\n",
            "The last start need not reach a checkpoint",
        ),
        WrongAnswer(
            "the start is taken off at the end",
            "import math\n\n\ndef starts_needed(work: int, limit: int, start: int, every: int) -> int:\n"
            "    return math.ceil(work / max(1, limit // every * every - start))\n",
            "only what is left is divided",
        ),
    ),
)
