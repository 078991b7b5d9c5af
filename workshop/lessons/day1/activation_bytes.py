"""Exercise: what one layer keeps for backward, after Korthikanti et al. (arXiv:2205.05198, equation 1).

A GPT layer in 16 bits, with dropout and without flash attention, keeps s b h (34 + 5 a s / h) bytes. The
second part is the attention core, quadratic in the sequence; selective recomputation drops it (section
5), full recomputation keeps only the layer's input, 2 s b h (table 2).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `activation_bytes(seq_len, micro_batch, hidden_size, num_heads, recompute="none")`: the bytes that
one layer keeps for backward. With "none" that is s b h (34 + 5 a s / h). With "selective" the attention
core is computed again: the part that grows with s squared is not kept. With "full" only the layer's input
is kept, in 16 bits."""

STUB = '''\
def activation_bytes(
    seq_len: int, micro_batch: int, hidden_size: int, num_heads: int, recompute: str = "none"
) -> float:
    """Bytes one layer keeps for backward; recompute is "none", "selective" or "full"."""
    return ...
'''

SOLUTION = '''\
def activation_bytes(
    seq_len: int, micro_batch: int, hidden_size: int, num_heads: int, recompute: str = "none"
) -> float:
    """Bytes one layer keeps for backward; recompute is "none", "selective" or "full"."""
    values = seq_len * micro_batch * hidden_size
    each = {"none": 34 + 5 * num_heads * seq_len / hidden_size, "selective": 34, "full": 2}
    return values * each[recompute]
'''

CALLS = (
    Call((2048, 1, 12288, 96)),  # GPT-3
    Call((2048, 1, 12288, 96, "selective")),
    Call((2048, 1, 12288, 96, "full")),
    Call((1024, 4, 4096, 32)),
    Call((1024, 4, 4096, 32, "full")),
)


def _kept(
    linear: float = 34, core: float = 5, selective: float = 34, full: float = 2, batch: bool = True
) -> Any:
    """A formula with one thing wrong."""

    def formula(s: int, b: int, h: int, a: int, recompute: str = "none") -> float:
        each = {"none": linear + core * a * s / h, "selective": selective, "full": full}[recompute]
        return s * (b if batch else 1) * h * each

    return formula


def _outside(s: int, b: int, h: int, a: int, recompute: str = "none") -> float:
    return {"none": 34 * s * b * h + 5 * a * s / h, "selective": 34 * s * b * h, "full": 2 * s * b * h}[
        recompute
    ]


MISTAKES = (
    Mistake(
        _kept(core=0), "Without recomputation the attention core is kept too: 5 a s / h more for each value."
    ),
    Mistake(_kept(batch=False), "`micro_batch` sequences are in flight at once, and each keeps its own."),
    Mistake(_kept(full=0), "Full recomputation must begin somewhere: it keeps the layer's input."),
    Mistake(_kept(full=1), "The input has 16 bits a value: two bytes."),
    Mistake(_kept(full=4), "The input has 16 bits a value, not 32: two bytes."),
    Mistake(_kept(selective=0), "Selective recomputation drops only what grows with s squared; the 34 stay."),
    Mistake(_kept(selective=2), "Selective recomputation drops only what grows with s squared; the 34 stay."),
    Mistake(_outside, "Both parts stand in the brackets: the core is multiplied by s b h as well."),
)


def _check(names: dict[str, Any]) -> str:
    """Five layers against equation 1 and its two shorter forms."""
    compare(names["activation_bytes"], "activation_bytes", CALLS, _kept(), MISTAKES)
    return (
        "A layer of GPT-3 keeps 2.9 GB for each sequence; 0.86 GB with selective "
        "recomputation, 0.05 GB with full."
    )


ACTIVATION_BYTES = Exercise(
    name="activation_bytes",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        (
            "s b h is the number of values that go through a layer. The rest says how many bytes "
            "are kept for each."
        ),
        "For each value: 34 + 5 a s / h bytes, or 34 without the core. And 16 bits are how many bytes?",
        '`seq_len * micro_batch * hidden_size` times `{"none": ..., "selective": 34, "full": 2}[recompute]`.',
    ),
    solution=SOLUTION,
    defines=("activation_bytes",),
    check=_check,
    shows=(
        "In GPT-3 the core is 70 % of what a layer keeps, and cheap to compute again. That is "
        "why selective wins."
    ),
    wrong_answers=(
        WrongAnswer(
            "no core",
            SOLUTION.replace(" + 5 * num_heads * seq_len / hidden_size", ""),
            "the attention core is kept too",
        ),
        WrongAnswer("one sequence", SOLUTION.replace(" * micro_batch *", " *"), "each keeps its own"),
        WrongAnswer("full keeps nothing", SOLUTION.replace('"full": 2', '"full": 0'), "must begin somewhere"),
        WrongAnswer(
            "selective as full", SOLUTION.replace('"selective": 34', '"selective": 2'), "the 34 stay"
        ),
    ),
)
