"""Exercise: how islands that trained apart become one model again: DiLoCo's outer step.

Douillard et al. (arXiv:2311.08105, algorithm 1): the mean movement of all islands is taken as a gradient, and
SGD with Nesterov momentum makes a step with it.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Every island began a round at `anchor`, trained alone, and is now at `weights`. Write
`outer_step(anchor, weights, momentum, lr, beta)`. All three are updated in place: `moved` is the anchor less
the mean of all islands' weights; momentum becomes beta momentum + moved; the anchor goes down by
lr (moved + beta momentum); and the island goes on from the anchor."""

STUB = '''\
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    ...
    moved = anchor - mean
    ...
'''

SOLUTION = '''\
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands: anchor, weights and momentum, all 1-D tensors, are updated in place."""
    mean = weights.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    moved = anchor - mean
    momentum.mul_(beta).add_(moved)
    anchor -= lr * (moved + beta * momentum)
    weights.copy_(anchor)
'''

SUM = SOLUTION.replace("    mean /= dist.get_world_size()\n", "")
ALONE = SOLUTION.replace("    dist.all_reduce(mean)\n    mean /= dist.get_world_size()\n", "").replace(
    "import torch.distributed as dist\n\n\n", ""
)
PLAIN_MOMENTUM = SOLUTION.replace("lr * (moved + beta * momentum)", "lr * momentum")
NOT_BACK = SOLUTION.replace("    weights.copy_(anchor)\n", "")
UPHILL = SOLUTION.replace("anchor -= lr", "anchor += lr")

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.outer_step import check_outer_step
check_outer_step(outer_step)
"""

LR, BETA = 0.5, 0.5
ANCHOR, MOVES = 10.0, (-1.0, -3.0)  # each round rank 0's island trains down by 1, rank 1's by 3
ROUNDS = 3


def _right() -> list[dict[str, float]]:
    """Anchor, weights and momentum after each round."""
    anchor, momentum, rounds = ANCHOR, 0.0, []
    for _ in range(ROUNDS):
        moved = -sum(MOVES) / len(MOVES)
        momentum = BETA * momentum + moved
        anchor -= LR * (moved + BETA * momentum)
        rounds.append({"momentum": momentum, "anchor": anchor, "weights": anchor})
    return rounds


def _check(reports: list[dict[str, Any]]) -> str:
    """Nobody waits in vain; three rounds, each number on each rank."""
    nobody_waits(
        [report["waited_at"] for report in reports], "All ranks must make the same calls in the same order."
    )
    for number, right in enumerate(_right()):
        for rank, report in enumerate(reports):
            found = report["rounds"][number]
            for name, value in right.items():
                if abs(found[name] - value) > 1e-5:
                    raise Wrong(_told(number, rank, name, found[name], value))
    return f"{ROUNDS} rounds on {len(reports)} islands end at the anchor {shown(_right()[-1]['anchor'])}."


def _told(number: int, rank: int, name: str, found: float, wanted: float) -> str:
    before = _right()[number - 1] if number else {"anchor": ANCHOR, "momentum": 0.0}
    anchor, momentum = before["anchor"], before["momentum"]
    told = (
        f"Round {number + 1} began at the anchor {shown(anchor)} with momentum {shown(momentum)}; the "
        f"islands moved by {shown(MOVES[0])} and {shown(MOVES[1])}. On rank {rank} `{name}` is now "
        f"{shown(found)}; wanted {shown(wanted)}. "
    )
    total = 2 * anchor + sum(MOVES)
    reasons = {
        "momentum": {
            BETA * momentum + anchor - total: "That is with the sum of the weights: the mean is asked for.",
            BETA * momentum
            - MOVES[rank]: "That is this island's own movement: the mean of all is asked for.",
        },
        "anchor": {
            anchor - LR * _right()[number]["momentum"]: "That is plain momentum. Nesterov looks ahead: "
            "lr (moved + beta momentum).",
            2 * anchor - wanted: "It went the other way: against what the islands have moved.",
        },
        "weights": {anchor + MOVES[rank]: "The island goes on where it was: copy the anchor into weights."},
    }
    for value, reason in reasons[name].items():
        if abs(value - found) < 1e-5:
            return told + reason
    return told.rstrip()


OUTER_STEP = Exercise(
    name="outer_step",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "The mean is an all_reduce and a division, as with gradients. Only weights travel.",
        "In place: `momentum.mul_(beta).add_(moved)`, `anchor -= ...`, `weights.copy_(anchor)`.",
        "`dist.all_reduce(mean)`, `mean /= dist.get_world_size()`; then `lr * (moved + beta * momentum)`.",
    ),
    solution=SOLUTION,
    defines=("outer_step",),
    check=_check,
    shows="Islands that speak once in a hundred steps are one model whenever they meet.",
    wrong_answers=(
        WrongAnswer("the sum", SUM, "That is with the sum of the weights"),
        WrongAnswer("nobody asked", ALONE, "That is this island's own movement"),
        WrongAnswer("plain momentum", PLAIN_MOMENTUM, "Nesterov looks ahead"),
        WrongAnswer("not back to the anchor", NOT_BACK, "copy the anchor into weights"),
        WrongAnswer("uphill", UPHILL, "It went the other way"),
    ),
    ranks=2,
    check_program=CHECK_PROGRAM,
)
