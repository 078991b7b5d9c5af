"""Exercise: how many sequences go through a device at once, state and activations counted.

The logits and the room that backward needs are left out; `workshop.predict.memory` counts them.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

GB = 10**9
CALLS = (
    Call((80 * GB, 20 * GB, 500_000_000, 24)),
    Call((80 * GB, 20 * GB, 8_388_608, 24)),
    Call((80 * GB, 112 * GB, 33_554_432, 32)),  # the state alone is too much
    Call((1_000, 400, 100, 2)),  # fits to the last byte
)


def _right(memory: int, state: int, layer: float, layers: int) -> int:
    return max(0, int((memory - state) // (layers * layer)))


MISTAKES = (
    Mistake(
        lambda memory, _, layer, layers: int(memory // (layers * layer)),
        "The state takes its room first: only what it leaves is there for activations.",
    ),
    Mistake(
        lambda memory, state, layer, _: max(0, int((memory - state) // layer)),
        "That is one layer. All of them keep their activations until backward.",
    ),
    Mistake(
        lambda memory, state, layer, layers: int((memory - state) // (layers * layer)),
        "Where the state alone is too large, no sequence fits: the answer is 0, not a negative number.",
    ),
    Mistake(
        lambda memory, state, layer, layers: max(0, -int((state - memory) // (layers * layer))),
        "Rounded up: the last sequence does not fit.",
    ),
    Mistake(
        lambda memory, state, layer, layers: max(0.0, (memory - state) / (layers * layer)),
        "A part of a sequence cannot be trained on: round down to a whole number.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Four devices: a small state with much and with little to keep, one too small, one full to the byte."""
    compare(names["largest_micro_batch"], "largest_micro_batch", CALLS, _right, MISTAKES)
    return (
        "60 GB left: 5 sequences at 0.5 GB a layer, 298 at 8 MB. Nothing left: none, whatever a layer keeps."
    )
