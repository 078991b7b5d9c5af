"""What a draft gains, against counting."""

from __future__ import annotations

import random

import pytest

from workshop.facts.run import Run
from workshop.predict.serving import (
    Serving,
    best_draft,
    predict_serving,
    speculation_speedup,
    tokens_per_round,
)


def test_the_formula_counts_tokens():
    random.seed(0)
    for acceptance, drafted in ((0.3, 4), (0.8, 4), (0.9, 8)):
        rounds = 20_000
        total = 0
        for _ in range(rounds):
            kept = 0
            while kept < drafted and random.random() < acceptance:
                kept += 1
            total += kept + 1
        assert tokens_per_round(acceptance, drafted) == pytest.approx(total / rounds, rel=0.02)


def test_the_ends():
    assert tokens_per_round(0, 5) == 1
    assert tokens_per_round(1, 5) == 6
    assert tokens_per_round(0.5, 0) == 1
    assert speculation_speedup(0.5, 0, 0.1) == 1


def test_a_dear_draft_loses_and_then_none_is_best():
    assert speculation_speedup(0.5, 4, 0.9) < 1
    assert best_draft(0.5, 0.9) == 0
    assert best_draft(0.9, 0.05) > 3
    assert speculation_speedup(0.8, 4, 0.05, verify=3) < speculation_speedup(0.8, 4, 0.05)


def test_the_numbers_of_the_paper():
    # Leviathan et al. 2023, arXiv 2211.17192, corollary 3.9 for a draft without cost.
    assert speculation_speedup(0.8, 5, 0) == pytest.approx((1 - 0.8**6) / 0.2)


def test_gpt_fasts_speculative_row():
    # github pytorch-labs/gpt-fast README.md: Llama-70B int4 alone 25.25 tokens/s, with Llama-7B int4 as the
    # draft 48.4; generate.py drafts 5 tokens. The draft's cost follows from what is predicted of both.
    alone, draft = (
        predict_serving(
            Serving(Run(name, "A100-80GB", seq_len=256), "int4-32", quantized_head=True),
            *(5, 200),
            engine="gpt-fast",
        )
        for name in ("llama-2-70b", "llama-2-7b")
    )
    cost = draft.time_between_tokens / alone.time_between_tokens
    assert cost == pytest.approx(25.25 / 196.80, rel=0.03)
    # That speed-up is one of an acceptance of three in four, and no draft of that cost can do more than 3.7.
    assert speculation_speedup(0.75, 5, cost) == pytest.approx(48.4 / 25.25, rel=0.05)
    assert speculation_speedup(1, 5, cost) < 3.75


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="acceptance must lie between 0 and 1, not 1.2"):
        tokens_per_round(1.2, 4)
    with pytest.raises(ValueError, match="drafted must be a whole number"):
        tokens_per_round(0.5, -1)
    with pytest.raises(ValueError, match="cost must not be negative"):
        speculation_speedup(0.5, 4, -1)
    with pytest.raises(ValueError, match="no time"):
        speculation_speedup(0.5, 4, 0, 0)
