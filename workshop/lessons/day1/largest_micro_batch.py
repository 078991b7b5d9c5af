"""Exercise: how many sequences go through a device at once, state and activations counted.

The logits and the room that backward needs are left out; `workshop.predict.memory` counts them.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
A device has `memory_bytes`; weights, gradients and optimizer state take `state_bytes` of them. Write
`largest_micro_batch(memory_bytes, state_bytes, layer_bytes, num_layers)`: how many sequences fit at once,
a whole number, 0 if none. Each of the layers keeps `layer_bytes` of activations for each sequence."""

STUB = '''\
def largest_micro_batch(memory_bytes: int, state_bytes: int, layer_bytes: float, num_layers: int) -> int:
    """The most sequences whose activations fit beside the state."""
    return ...
'''

SOLUTION = '''\
def largest_micro_batch(memory_bytes: int, state_bytes: int, layer_bytes: float, num_layers: int) -> int:
    """The most sequences whose activations fit beside the state."""
    one_sequence = num_layers * layer_bytes
    return max(0, int((memory_bytes - state_bytes) // one_sequence))
'''

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


def _check(names: dict[str, Any]) -> str:
    """Four devices: a small state with much and with little to keep, one too small, one full to the byte."""
    compare(names["largest_micro_batch"], "largest_micro_batch", CALLS, _right, MISTAKES)
    return (
        "60 GB left: 5 sequences at 0.5 GB a layer, 298 at 8 MB. Nothing left: none, whatever a layer keeps."
    )


LARGEST_MICRO_BATCH = Exercise(
    name="largest_micro_batch",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "What is left for activations when the state has taken its room? What does one sequence take of it?",
        "One sequence takes `num_layers * layer_bytes`. Divide, and round down.",
        "`max(0, int((memory_bytes - state_bytes) // (num_layers * layer_bytes)))`.",
    ),
    solution=SOLUTION,
    defines=("largest_micro_batch",),
    check=_check,
    shows="Recomputation buys a larger micro-batch; it buys nothing where the state alone does not fit.",
    wrong_answers=(
        WrongAnswer(
            "forgets the state",
            SOLUTION.replace("(memory_bytes - state_bytes)", "memory_bytes"),
            "The state takes its room first",
        ),
        WrongAnswer(
            "one layer", SOLUTION.replace("num_layers * layer_bytes", "layer_bytes"), "That is one layer"
        ),
        WrongAnswer("below zero", SOLUTION.replace("max(0, int", "min(9**9, int"), "not a negative number"),
        WrongAnswer(
            "rounds up",
            SOLUTION.replace("int((memory_bytes - state_bytes) //", "-int((state_bytes - memory_bytes) //"),
            "Rounded up",
        ),
        WrongAnswer(
            "not whole",
            SOLUTION.replace(
                "int((memory_bytes - state_bytes) // one_sequence)",
                "(memory_bytes - state_bytes) / one_sequence",
            ),
            "round down",
        ),
    ),
)
