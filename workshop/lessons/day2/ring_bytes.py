"""Exercise: the bytes a rank sends in a ring all-reduce.

Reduce-scatter: N - 1 steps, in each a rank sends one of N chunks. All-gather: the same again. Together
2 (N - 1) / N of the tensor. Where the ranks do the adding themselves, the busiest one cannot send less:
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A ring all-reduce cuts a tensor of `num_bytes` into `world_size` chunks and sends them round the ring
twice: once to add up, once to hand out. Write `ring_bytes(num_bytes, world_size)`: how many bytes does
each rank send?"""

STUB = '''\
def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of a tensor of num_bytes."""
    return ...
'''

SOLUTION = '''\
def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of a tensor of num_bytes."""
    chunk_bytes = num_bytes / world_size
    steps = world_size - 1
    return 2 * steps * chunk_bytes
'''


def _answer(formula: str) -> str:
    return f"def ring_bytes(num_bytes: float, world_size: int) -> float:\n    return {formula}\n"


CALLS = tuple(Call(args) for args in ((1000, 4), (4096, 2), (999, 3), (10**9, 8), (512, 1)))

MISTAKES = (
    Mistake(
        lambda n, _: 2 * n,
        "That is the limit for very many ranks; with few, a rank keeps a chunk to itself.",
    ),
    Mistake(
        lambda n, world: n * (world - 1),
        "That is what sending the whole tensor to every other rank costs; the ring sends chunks.",
    ),
    Mistake(
        lambda n, world: n * (world - 1) / world,
        "That is one trip round the ring (the reduce-scatter); there is a second, the all-gather.",
    ),
    Mistake(
        lambda n, world: 2 * n * (world - 1),
        "That sends the whole tensor in each step; the ring sends one chunk.",
    ),
    Mistake(
        lambda n, world: 2 * n / world, "That is one step of each trip; a trip has `world_size - 1` steps."
    ),
)


def _check(names: dict[str, Any]) -> str:
    """Five calls against 2 (N - 1) / N of the bytes."""
    compare(names["ring_bytes"], "ring_bytes", CALLS, lambda n, world: 2 * n * (world - 1) / world, MISTAKES)
    return "A rank sends 2 (N - 1) / N times the tensor's bytes: 1.5 times on 4 ranks, 1.998 times on 1,024."


RING_BYTES = Exercise(
    name="ring_bytes",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "How large is one chunk? How many chunks does a rank send until each has been everywhere?",
        "A chunk has `world_size - 1` other ranks to visit, and in each step every rank sends one chunk.",
        "Two trips, `world_size - 1` steps each, `num_bytes / world_size` bytes a step.",
    ),
    solution=SOLUTION,
    defines=("ring_bytes",),
    check=_check,
    shows=(
        "A rank's traffic stays below twice the tensor however many ranks there are; what grows with N is "
        "the number of steps, 2 (N - 1), and with it the waiting."
    ),
    wrong_answers=(
        WrongAnswer("2 n", _answer("2 * num_bytes"), "gave 2,000; wanted 1,500. That is the limit"),
        WrongAnswer(
            "n (N - 1)",
            _answer("num_bytes * (world_size - 1)"),
            "sending the whole tensor to every other rank",
        ),
        WrongAnswer(
            "one trip",
            _answer("num_bytes * (world_size - 1) / world_size"),
            "there is a second, the all-gather",
        ),
        WrongAnswer("no return", _answer("None"), "gave nothing (None). Is a `return` missing?"),
    ),
)
