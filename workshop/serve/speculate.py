"""Speculative decoding: a cheap draft guesses a few tokens, the model checks them all in one pass.

One pass over five tokens costs about as much as one over a single token while memory is what limits it.
Greedily, a guess is kept while it is what the model itself would have written; behind the first that is
not stands the model's own token, which the same pass gave. So each pass yields one token at least, and
the text is exactly the model's own (Leviathan et al. 2023, arXiv 2211.17192; with sampling, a guess is
kept by chance, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workshop.models.gpt import GPT
from workshop.serve.blocks import slot_for
from workshop.serve.paged import Chunk, PagedCache, forward

Propose = Callable[[Sequence[int], int], list[int]]
Keep = Callable[[Sequence[int], Sequence[int]], Sequence[int]]


def keep_drafted(drafted: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The tokens that a pass yields: guesses before the first wrong one, and the model's own behind them.

    ``chosen[i]`` is what the model writes in the place of ``drafted[i]``, the last one behind all guesses.
    """
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return [*drafted[:kept], chosen[kept]]


class OneSequence:
    """One sequence of a model with a cache of its own, that can be taken back to any length."""

    def __init__(self, model: GPT, max_tokens: int, block_size: int = 16) -> None:
        self.model, self.table, self.tokens = model, list[int](), list[int]()
        self.cache = PagedCache(model, -(-max_tokens // block_size), block_size)

    def choose(self, tokens: Sequence[int], last: int = 1) -> list[int]:
        """What the model writes behind each of the ``last`` tokens; what it has read is not read again."""
        known = 0
        while known < min(len(self.tokens), len(tokens) - last) and self.tokens[known] == tokens[known]:
            known += 1
        slots = [slot_for(place, self.table, self.cache.blocks) for place in range(known, len(tokens))]
        chunk = Chunk(tokens[known:], known, self.table, slots)
        self.tokens = list(tokens)
        chosen: list[int] = forward(self.model, self.cache, [chunk], every=True)[-last:].argmax(-1).tolist()
        return chosen


def model_draft(model: GPT, max_tokens: int) -> Propose:
    """Guesses of a smaller model with the same tokens, one after the other."""
    sequence = OneSequence(model, max_tokens)

    def propose(tokens: Sequence[int], count: int) -> list[int]:
        guessed: list[int] = []
        for _ in range(count):
            guessed += sequence.choose([*tokens, *guessed])
        return guessed

    return propose


def ngram_draft(tokens: Sequence[int], count: int, longest: int = 3) -> list[int]:
    """What followed the last few tokens where they stood before, if they did: nothing is computed.

    Known as prompt lookup; it serves texts that repeat what they were given.
    """
    tokens = list(tokens)
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        ending = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == ending:
                return tokens[start + length : start + length + count]
    return []


@dataclass(frozen=True)
class Speculated:
    """The new tokens, and for each pass of the model how many were guessed, and how many were right."""

    output: list[int]
    guessed: list[int]
    right: list[int]

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass of the model yields: 1 without a draft."""
        return sum(right + 1 for right in self.right) / len(self.right)


def speculate(
    sequence: OneSequence,
    prompt: Sequence[int],
    max_new: int,
    propose: Propose,
    count: int,
    keep: Keep = keep_drafted,
) -> Speculated:
    """Greedy decoding of one prompt with ``count`` guesses before each pass."""
    tokens, guessed, right = list(prompt), list[int](), list[int]()
    while len(tokens) < len(prompt) + max_new:
        room = min(count, len(prompt) + max_new - len(tokens) - 1)
        drafted = propose(tokens, room) if room else []
        chosen = sequence.choose([*tokens, *drafted], last=len(drafted) + 1)
        kept = list(keep(drafted, chosen))
        guessed.append(len(drafted))
        right.append(len(kept) - 1)
        tokens += kept
    return Speculated(tokens[len(prompt) :], guessed, right)
