"""Exercise: what QLoRA keeps, on paper.

Dettmers et al. 2023, arXiv 2305.14314, section 3: 4 bits a frozen weight, 32 bits for each 64 as their
scale; double quantization makes those 8 bits and an fp32 number for each 256 of them.
"""

from __future__ import annotations

from collections.abc import Callable

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `qlora_bytes(num_frozen, num_trained, double=True)`: the bytes of weights, gradients and AdamW's
moments under QLoRA. A frozen weight takes 4 bits and its share of the scales: one fp32 scale for each block
of 64. With `double`, that scale takes 8 bits, and each 256 scales share one fp32 number. A trained weight
takes 4 bytes, its gradient 4, its two moments 8."""

STUB = '''\
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    ...
    return num_frozen * bits / 8 + 16 * num_trained
'''

SOLUTION = '''\
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 8 / 64 + 32 / (64 * 256) if double else 32 / 64
    return num_frozen * bits / 8 + 16 * num_trained
'''

Formula = Callable[..., float]


def _formula(twice: float, once: float = 32 / 64) -> Formula:
    """Bytes where a frozen weight's share of the scales is so many bits, with double quantization and "
    "without."""

    def qlora_bytes(frozen: int, trained: int, double: bool = True) -> float:
        return frozen * (4 + (twice if double else once)) / 8 + 16 * trained

    return qlora_bytes


CALLS = (
    Call((64 * 256, 0)),
    Call((64 * 256, 0), {"double": False}),
    Call((64 * 256, 1000)),
    Call((65_000_000_000, 0)),
    Call((70_000_000_000, 828_000_000)),
)

MISTAKES = (
    Mistake(_formula(0, 0), "That is 4 bits alone: the scales are missing."),
    Mistake(_formula(32 / 64), "`double` changes nothing yet: the scales take 8 bits then."),
    Mistake(_formula(8 / 64), "The fp32 number that 256 scales share is missing: small, but it is there."),
    Mistake(
        _formula(8 / 64 + 32 / 256),
        "The fp32 number is shared by 256 *scales*, and each of these stands for 64 weights.",
    ),
    Mistake(_formula(8 + 32 / 256, 32), "A scale is shared by 64 weights: divide."),
)


def _check(names: dict) -> str:
    """One block of blocks, with and without double quantization, and two models."""
    compare(names["qlora_bytes"], "qlora_bytes", CALLS, _formula(8 / 64 + 32 / (64 * 256)), MISTAKES)
    return "65 billion weights are 33.5 GB: with adapters and activations they fit one GPU of 48 GB."


UNDIVIDED = SOLUTION.replace("8 / 64", "8").replace("(64 * 256)", "256").replace("32 / 64", "32")

QLORA_BYTES = Exercise(
    name="qlora_bytes",
    day=5,
    question=QUESTION,
    stub=STUB,
    hints=(
        "A scale of 32 bits for 64 weights is 32 / 64 bits a weight.",
        "With `double` a weight's share is 8 / 64, and of the fp32 number for 256 scales 32 / (64 * 256).",
        "`bits += 8 / 64 + 32 / (64 * 256) if double else 32 / 64`",
    ),
    solution=SOLUTION,
    defines=("qlora_bytes",),
    check=_check,
    shows="Double quantization is worth 0.37 bits a weight: 3 GB of a model of 65 billion.",
    wrong_answers=(
        WrongAnswer("no scales", SOLUTION.replace("bits += ", "_ = "), "the scales are missing"),
        WrongAnswer(
            "never double",
            SOLUTION.replace("8 / 64 + 32 / (64 * 256)", "32 / 64"),
            "`double` changes nothing yet",
        ),
        WrongAnswer(
            "no second scale", SOLUTION.replace(" + 32 / (64 * 256)", ""), "256 scales share is missing"
        ),
        WrongAnswer("for 256 weights", SOLUTION.replace("(64 * 256)", "256"), "shared by 256 *scales*"),
        WrongAnswer("undivided", UNDIVIDED, "divide"),
    ),
)
