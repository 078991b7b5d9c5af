"""Exercise: how islands that trained apart become one model again: DiLoCo's outer step.

Douillard et al. (arXiv:2311.08105, algorithm 1): the mean movement of all islands is taken as a gradient, and
SGD with Nesterov momentum makes a step with it.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

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


def check(reports: list[dict[str, Any]]) -> str:
    """Nobody waits in vain; three rounds, each number on each rank."""
    nobody_waits(
        [report["waited_at"] for report in reports], "All ranks must make the same calls in the same order."
    )
    for number, right in enumerate(_right()):
        for rank, report in enumerate(reports):
            answer = report["rounds"][number]
            for name, value in right.items():
                if not abs(answer[name] - value) <= 1e-5:  # nan, too
                    raise Wrong(_told(number, rank, name, answer[name], value))
    return f"{ROUNDS} rounds on {len(reports)} islands end at the anchor {shown(_right()[-1]['anchor'])}."


def _told(number: int, rank: int, name: str, answer: float, wanted: float) -> str:
    before = _right()[number - 1] if number else {"anchor": ANCHOR, "momentum": 0.0}
    anchor, momentum = before["anchor"], before["momentum"]
    difference = (
        f"Round {number + 1} began at the anchor {shown(anchor)} with momentum {shown(momentum)}; the "
        f"islands moved by {shown(MOVES[0])} and {shown(MOVES[1])}. On rank {rank} `{name}` is now "
        f"{shown(answer)}; wanted {shown(wanted)}. "
    )
    total = 2 * anchor + sum(MOVES)
    reasons = {
        "momentum": {
            BETA * momentum + anchor - total: "That is with the sum of the weights: use their mean.",
            BETA * momentum - MOVES[rank]: "That is this island's own move: use the mean of all islands.",
        },
        "anchor": {
            anchor - LR * _right()[number]["momentum"]: "That is plain momentum. Nesterov looks ahead: "
            "lr (moved + beta momentum).",
            2 * anchor - wanted: "It went in the opposite direction of the islands' moves.",
        },
        "weights": {anchor + MOVES[rank]: "The island did not change: copy the anchor into weights."},
    }
    for value, reason in reasons[name].items():
        if abs(value - answer) < 1e-5:
            return difference + reason
    return difference.rstrip()
