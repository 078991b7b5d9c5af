"""Answers that are right on the numbers one can read, and wrong on the random ones behind them."""

import pytest

from workshop.exercises import find
from workshop.exercises.engine.judge import judge

RING = find("ring_all_reduce").solution
AVERAGE = find("average_gradients").solution

EXTRA_SEND = """\
    if rank == 3:
        dist.send(tensor, 0)
    if rank == 0:
        dist.recv(tensor, 3)
"""


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        (
            "ring_all_reduce",
            RING + "    if len(tensor) > 8:\n        tensor += 1\n",
            "On 64 random numbers rank 0 differs from `dist.all_reduce` by",
        ),
        (
            "ring_all_reduce",
            RING + "    if len(tensor) > 8 and rank == 2:\n        tensor[5] = float('nan')\n",
            "On 64 random numbers rank 2 differs from `dist.all_reduce` by nan",
        ),
        (
            "ring_all_reduce",
            RING + "    dist.broadcast(tensor, 0)\n",
            "The sums are right, but `dist.broadcast` made them",
        ),
        (
            "ring_all_reduce",
            RING + EXTRA_SEND,
            "The sums are right, but rank 3 sent 40 bytes for a tensor of 16 bytes; wanted 24",
        ),
        (
            "average_gradients",
            AVERAGE.replace("dist.get_world_size()", "len(list(model.parameters()))"),
            "differs from that of one process with the joined batch by",
        ),
        (
            "average_gradients",
            AVERAGE.replace("parameter.grad is not None", "len(parameter) == 1"),
            "On rank 0 the gradient of `first.",
        ),
    ],
)
def test_it_is_wrong(name, source, words):
    verdict = judge(find(name), source, {})
    assert verdict.state == "wrong"
    assert words in verdict.message


def test_a_hang_of_one_rank_on_the_random_numbers_only():
    waits = RING + "    if len(tensor) > 8 and rank == 2:\n        dist.recv(received, left)\n"
    message = judge(find("ring_all_reduce"), waits, {}).message
    assert message.startswith(
        "Rank 2 waits for a message that nobody sends, or takes: after 10 seconds rank 2"
    )
    its_line = len(waits.splitlines()) + 1  # of the cell, which begins with the magic
    assert f"still waits on line {its_line}." in message
