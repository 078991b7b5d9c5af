"""Exercise: the FLOPs of training a dense transformer, weights and attention.

Six per parameter and token (Kaplan et al., arXiv:2001.08361, section 2.1), and for the scores and their use
12 L h s per token (PaLM, arXiv:2204.02311, appendix B), where a head's width times the heads is h. All s keys
are counted for each query, masked or not, as published MFU figures do.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

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
        _flops(6, 0), "The attention core is missing. Its products have no weights, but they cost FLOPs."
    ),
    Mistake(_flops(2, 4), "That is the forward pass alone. Backward costs twice as much again."),
    Mistake(_flops(4, 8), "Backward has two products for each one in forward, so it counts twice, not once."),
    Mistake(
        _flops(6, 4),
        "Attention runs backward too. Its part must be three times that of forward, as for the weights.",
    ),
    Mistake(
        _flops(6, 6),
        "Attention has two products, queries with keys and probabilities with values. One is missing.",
    ),
    Mistake(
        lambda n, tokens, _, hidden, seq: tokens * (6 * n + 12 * hidden * seq),
        "That is the attention core of one layer. Each of `num_layers` has one.",
    ),
    Mistake(_flops(3, 6), "A multiplication and an addition are two FLOPs; you count one."),
    Mistake(
        lambda n, tokens, layers, hidden, seq: 6 * n * tokens + 12 * layers * hidden * seq,
        "Every token goes through the attention core: multiply it by `num_tokens` too.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three models against 6 N + 12 L h s per token."""
    compare(names["train_flops"], "train_flops", CALLS, _flops(6, 12), MISTAKES)
    return "70B on 15T tokens in sequences of 8,192: 7.27e24 FLOPs, of which attention is 13 %."
