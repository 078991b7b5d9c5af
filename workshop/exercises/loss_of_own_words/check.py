"""Exercise: the loss, when each rank has the logits of some words.

Shoeybi et al. 2019, arXiv 1909.08053, section 3: the loss is computed where the logits are, and three numbers
for each position are sent in place of a vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order."
TOLERANCE = 1e-5  # of a gradient, whose largest numbers are near one over the positions
LOSS_TOLERANCE = 1e-4  # relative: around 500, neighboring float32 numbers are 3e-5 apart
NUMBERS = 3  # for each position
OF_LOSSES = {
    "own_largest": "Here each rank subtracts the largest of its own words. All must subtract the same one.",
    "own_total": "That divides by a sum over this rank's words alone: add up the sums of all ranks.",
    "no_target": "A rank without the right word does not know the logit of the target: add up the ranks.",
}
OF_GRADIENTS = {
    "no_minus": "That is softmax, divided by the number of positions. It lacks the minus 1 at the target.",
    "minus_everywhere": "You subtract 1 on every rank, also where the target is not one of its words.",
    "of_the_sum": "That is the gradient of the sum over positions. The loss is their mean.",
    "added_up": "That is the sum over ranks. But each rank has other words: there is nothing to add.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, three cases, the logits left alone, and what was sent."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for case in ("readable", "random", "large"):
        for rank, report in enumerate(reports):
            _loss(case, rank, report[case])
        for rank, report in enumerate(reports):
            _gradient(rank, report[case])
    for rank, report in enumerate(reports):
        for name in report["random"]["changed"]:
            raise Wrong(
                f"The numbers are right, but rank {rank} has changed `{name}`, which it was only lent."
            )
    sent = reports[0]["random"]["sent"]
    if sent > NUMBERS:
        raise Wrong(
            f"The numbers are right, but the collectives carried {shown(sent)} float32 numbers for each "
            "position, with only 20 words; wanted at most three, however many words there are."
        )
    return f"Loss and gradient on {len(reports)} ranks are those of one process, also with large logits."


def _loss(case: str, rank: int, mine: dict[str, Any]) -> None:
    answer, wanted = mine["loss"], mine["wanted_loss"]
    if answer is None:
        raise Wrong(f"Rank {rank} did not return two things: the loss, one number, and the gradient.")
    if math.isclose(answer, wanted, rel_tol=LOSS_TOLERANCE):
        return
    advice = next(
        (
            OF_LOSSES[name]
            for name, loss in mine["losses"].items()
            if math.isclose(answer, loss, rel_tol=LOSS_TOLERANCE)
        ),
        "",
    )
    if case == "large" and not math.isfinite(answer):
        advice = "In float32, exp(500) is infinite: subtract the largest logit of all ranks first."
        if answer < 0:
            advice = (
                "Every exponential is 0 here: what you subtract is too large. For the largest of all ranks, "
                "use `dist.ReduceOp.MAX`. Without it, all_reduce adds up."
            )
    which = "With logits around 500, the loss" if case == "large" else "The loss"
    raise Wrong(f"{which} on rank {rank} is {shown(answer)}; wanted {shown(wanted)}. {advice}".rstrip())


def _gradient(rank: int, mine: dict[str, Any]) -> None:
    answer, wanted = mine["gradient"], mine["wanted_gradient"]
    if answer is None:
        shape = (len(wanted), len(wanted[0]))
        raise Wrong(f"The gradient on rank {rank} is no tensor of shape {shape}, that of the rank's logits.")
    if _same(answer, wanted):
        return
    advice = next(
        (OF_GRADIENTS[name] for name, other in mine["gradients"].items() if _same(answer, other)), ""
    )
    place, word = next(
        (place, word)
        for place, row in enumerate(wanted)
        for word, number in enumerate(row)
        if not abs(answer[place][word] - number) <= TOLERANCE
    )
    raise Wrong(
        f"The loss is right. The gradient on rank {rank}, at position {place}, for word {word} of the rank, "
        f"is {shown(answer[place][word])}; wanted {shown(wanted[place][word])}. {advice}".rstrip()
    )


def _same(answer: list[list[float]], wanted: list[list[float]]) -> bool:
    pairs = [pair for rows in zip(answer, wanted, strict=True) for pair in zip(*rows, strict=True)]
    return all(abs(one - other) <= TOLERANCE for one, other in pairs)
