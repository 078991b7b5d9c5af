"""Exercise: make it fit under the cap with the least traffic.

Sharding more saves memory and sends more. So the question is never "what saves most?" but "what sends least,
among what fits?".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Choice = tuple[str, int, int]

CHOICES: list[Choice] = [
    ("stage 3", 300, 900),
    ("ddp", 1000, 600),
    ("stage 1", 700, 600),
    ("stage 2", 500, 600),
    ("every linear", 290, 950),
    ("keep weights", 480, 650),
    ("no prefetch", 490, 800),
]
CASES = ((2000, "stage 2"), (700, "stage 2"), (499, "keep weights"), (480, "keep weights"), (300, "stage 3"),
         (295, "every linear"), (100, None))  # fmt: skip


def smallest_peak(choices: Sequence[Choice], cap_bytes: int) -> str | None:
    """A mistake: the choice that saves most."""
    fitting = [(peak, name) for name, peak, _ in choices if peak <= cap_bytes]
    return min(fitting)[-1] if fitting else None


def largest_peak(choices: Sequence[Choice], cap_bytes: int) -> str | None:
    """A mistake: the choice that just fits."""
    fitting = [(peak, name) for name, peak, _ in choices if peak <= cap_bytes]
    return max(fitting)[-1] if fitting else None


def check(names: dict[str, Any]) -> str:
    """Seven caps on one list, the last of them under everything."""
    function = names["least_traffic"]
    found = [call(function, "least_traffic", Call((list(CHOICES), cap))) for cap, _ in CASES]
    for (cap, wanted), name in zip(CASES, found, strict=True):
        if name != wanted:
            table = "; ".join(f"{n}: {peak}, sends {sent}" for n, peak, sent in CHOICES)
            raise Wrong(
                f"`least_traffic(choices, {cap})` gave {shown(name)}; wanted {shown(wanted)}. "
                f"{_why(found, cap, name)} (choices, with their peaks: {table})"
            )
    return "Under a generous cap the answer is what sends least, and it changes as the cap comes down."


def _why(found: list[Any], cap: int, name: Any) -> str:
    if found == [smallest_peak(CHOICES, other) for other, _ in CASES]:
        return "That is always the one that saves most, and it sends more than is needed."
    if found == [largest_peak(CHOICES, other) for other, _ in CASES]:
        return "That is the largest that fits; nothing is won by filling the device."
    peak = next((each for known, each, _ in CHOICES if known == name), None)
    if peak is None:
        return "Return the name of a choice, or None."
    if peak > cap:
        return "That one does not fit."
    if peak == cap or cap in (300, 480):
        return "A peak that is just the cap fits."
    return "Another one fits and sends less, or as little with a smaller peak."
