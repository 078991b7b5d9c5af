"""A draft decides how many passes it takes, and never what is written."""

from __future__ import annotations

import pytest

from tests.serve.test_server import model, plainly
from workshop.serve.speculate import OneSequence, keep_drafted, model_draft, ngram_draft, speculate

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("count", [0, 1, 3, 8])
@pytest.mark.parametrize("draft", ["itself", "another", "n-gram", "too long a guess"])
def test_the_text_is_the_models_own(draft: str, count: int) -> None:
    drafts = {
        "itself": model_draft(model(), 64),
        "another": model_draft(model(1, 1), 64),
        "n-gram": ngram_draft,
        "too long a guess": lambda tokens, wanted: [0] * wanted,
    }
    found = speculate(OneSequence(model(), 64), PROMPT, 21, drafts[draft], count)
    assert found.output == plainly(PROMPT, 21)
    assert all(right <= guessed <= count for right, guessed in zip(found.right, found.guessed, strict=True))
    if draft == "itself":
        assert found.tokens_per_pass == pytest.approx(21 / -(-21 // (count + 1)))


def test_what_was_guessed_wrong_is_not_read() -> None:
    sequence = OneSequence(model(), 64)
    sequence.choose([*PROMPT, 7, 7, 7], last=4)
    for end in ([8], [7, 8], [7, 7, 8]):
        assert sequence.choose([*PROMPT, *end]) == plainly([*PROMPT, *end], 1)
    assert sequence.choose(PROMPT) == plainly(PROMPT, 1)


def test_an_n_gram_is_guessed_from_where_it_stood_last() -> None:
    assert ngram_draft([1, 2, 3, 1, 2, 4, 1, 2], 2) == [4, 1]
    assert ngram_draft([1, 2, 3], 2) == []
    assert ngram_draft([1], 2) == []


def test_kept_is_what_was_right_and_one_more() -> None:
    assert keep_drafted([5, 7], [5, 7, 9]) == [5, 7, 9]
    assert keep_drafted([5, 7], [5, 8, 9]) == [5, 8]
    assert keep_drafted([], [3]) == [3]
