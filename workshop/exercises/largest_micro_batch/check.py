"""Exercise: how many sequences go through a device at once, state, activations and logits counted.

The room that backward needs for a moment is left out; `workshop.predict.memory` counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

GB = 10**9
CALLS = (
    Call((80 * GB, 20 * GB, 500_000_000, 24, 400_000_000, 60)),  # four fit: a divisor of 60
    Call((80 * GB, 20 * GB, 250_000_000, 24, 400_000_000, 64)),  # nine fit: eight do
    Call((80 * GB, 20 * GB, 8_388_608, 24, 1_000, 64)),  # more than the batch
    Call((80 * GB, 112 * GB, 33_554_432, 32, 400_000_000, 64)),  # the state alone is too much
    Call((80 * GB, 79 * GB, 500_000_000, 24, 400_000_000, 64)),  # the state fits, no sequence does
    Call((1_000, 400, 95, 2, 10, 3)),  # fits to the last byte
)


def _formula(
    one: Callable[[float, int, int], float] = lambda layer, layers, logits: layers * layer + logits,
    fits: Callable[[float], float] = math.floor,
    state_share: float = 1,
    divides: bool = True,
    least: float = 0,
) -> Callable[..., float]:
    """A formula with one thing wrong."""

    def formula(memory: int, state: int, layer: float, layers: int, logits: int, batch: int) -> float:
        fitting = min(batch, fits((memory - state_share * state) / one(layer, layers, logits)))
        while divides and fitting > 0 and batch % fitting:
            fitting -= 1
        return max(least, fitting)

    return formula


MISTAKES = (
    Mistake(
        _formula(state_share=0),
        "The state takes its room first. Only the rest is available for activations.",
    ),
    Mistake(
        _formula(one=lambda layer, _, logits: layer + logits),
        "That is one layer. All of them keep their activations until backward.",
    ),
    Mistake(
        _formula(one=lambda layer, layers, _: layers * layer),
        "The logits take room too: `logits_bytes` for each sequence.",
    ),
    Mistake(
        _formula(one=lambda layer, layers, logits: layers * (layer + logits)),
        "The logits come after the last layer, once for a sequence and not once for a layer.",
    ),
    Mistake(
        _formula(divides=False),
        "So many fit, but the batch cannot be cut into equal micro-batches of that size: the last would be "
        "smaller.",
    ),
    Mistake(
        _formula(least=-math.inf),
        "If the state alone is too large, no sequence fits. The answer is then 0, not a negative number.",
    ),
    Mistake(_formula(fits=math.ceil), "Rounded up: the last sequence does not fit."),
)


def check(names: dict[str, Any]) -> str:
    """Six devices: from one that holds more than the batch to one that does not hold the state."""
    compare(names["largest_micro_batch"], "largest_micro_batch", CALLS, _formula(), MISTAKES)
    return "Where nine sequences fit of a batch of 64, eight go through at once, eight times."
