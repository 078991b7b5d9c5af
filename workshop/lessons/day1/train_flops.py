"""Exercise: the FLOPs of training a dense transformer, weights and attention.

Six per parameter and token (Kaplan et al., arXiv:2001.08361, section 2.1), and for the scores and their use
12 L h s per token (PaLM, arXiv:2204.02311, appendix B), where a head's width times the heads is h. All s keys
are counted for each query, masked or not, as published MFU figures do.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Mistake, compare
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `train_flops(num_params, num_tokens, num_layers, hidden_size, seq_len)`: the FLOPs of training on
`num_tokens` tokens, forward and backward. Count two parts: the weights, and in each layer the attention
core, in which a token meets `seq_len` keys and as many values, each `hidden_size` wide."""

STUB = '''\
def train_flops(
    num_params: float, num_tokens: float, num_layers: int, hidden_size: int, seq_len: int
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = ...
    attention = ...
    return num_tokens * (weights + attention)
'''

SOLUTION = '''\
def train_flops(
    num_params: float, num_tokens: float, num_layers: int, hidden_size: int, seq_len: int
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 6 * num_params
    attention = num_layers * 3 * (2 * seq_len * hidden_size + 2 * seq_len * hidden_size)
    return num_tokens * (weights + attention)
'''

ARGUMENTS = "num_params, num_tokens, num_layers, hidden_size, seq_len"
CALLS = (
    Call((1e9, 1e6, 24, 2048, 2048)),
    Call((70e9, 15e12, 80, 8192, 8192)),  # a 70B model in Llama's shape
    Call((1000, 1, 2, 8, 16)),
)


def _flops(per_parameter: int, per_meeting: int) -> Any:
    """FLOPs per parameter and token, and per layer, key and unit of width."""
    return lambda n, tokens, layers, hidden, seq: (
        tokens * (per_parameter * n + per_meeting * layers * hidden * seq)
    )


MISTAKES = (
    Mistake(
        _flops(6, 0), "The attention core is missing: scores and their use have no weights, but they cost."
    ),
    Mistake(_flops(2, 4), "That is the forward pass alone. Backward costs twice as much again."),
    Mistake(_flops(4, 8), "Backward has two products for each of forward's one: it counts twice, not once."),
    Mistake(
        _flops(6, 4),
        "Attention runs backward too: its part must be three times forward's, as for the weights.",
    ),
    Mistake(
        _flops(6, 6),
        "Attention has two products, queries with keys and probabilities with values. One is missing.",
    ),
    Mistake(_flops(3, 6), "A multiplication and an addition are two FLOPs; you count one."),
    Mistake(
        lambda n, tokens, layers, hidden, seq: 6 * n * tokens + 12 * layers * hidden * seq,
        "The attention core is worked through for every token: multiply it by `num_tokens` too.",
    ),
)


def _answer(formula: str) -> str:
    return f"def train_flops({ARGUMENTS}):\n    return {formula}\n"


def _check(names: dict[str, Any]) -> str:
    """Three models against 6 N + 12 L h s per token."""
    compare(names["train_flops"], "train_flops", CALLS, _flops(6, 12), MISTAKES)
    return "70B on 15T tokens in sequences of 8,192: 7.27e24 FLOPs, of which attention is 13 %."


TRAIN_FLOPS = Exercise(
    name="train_flops",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Forward uses each weight once per token: one multiplication, one addition. Backward does it twice.",
        (
            "So 6 per parameter. A query meets a key in 2 * hidden_size FLOPs; there are seq_len "
            "keys, then as many values."
        ),
        (
            "`weights = 6 * num_params`; attention forward is `4 * seq_len * hidden_size` a "
            "layer, and three times that in all."
        ),
    ),
    solution=SOLUTION,
    defines=("train_flops",),
    check=_check,
    shows=(
        "The cost of a training run is known before its first step: parameters, tokens and "
        "three sizes decide it."
    ),
    wrong_answers=(
        WrongAnswer(
            "forgets attention", _answer("6 * num_params * num_tokens"), "The attention core is missing"
        ),
        WrongAnswer(
            "forward only",
            _answer("num_tokens * (2 * num_params + 4 * num_layers * hidden_size * seq_len)"),
            "the forward pass alone",
        ),
        WrongAnswer(
            "backward as dear as forward",
            _answer("num_tokens * (4 * num_params + 8 * num_layers * hidden_size * seq_len)"),
            "counts twice, not once",
        ),
        WrongAnswer(
            "attention forward only",
            _answer("num_tokens * (6 * num_params + 4 * num_layers * hidden_size * seq_len)"),
            "Attention runs backward too",
        ),
        WrongAnswer(
            "attention of one token",
            _answer("6 * num_params * num_tokens + 12 * num_layers * hidden_size * seq_len"),
            "multiply it by `num_tokens` too",
        ),
    ),
)
