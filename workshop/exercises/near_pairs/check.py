"""Exercise: texts that are nearly alike, found by a few of their hashes.

Broder 1997, *On the resemblance and containment of documents*; bands as in Leskovec, Rajaraman and Ullman,
*Mining of Massive Datasets*, section 3.4.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "near_pairs"
Pairs = set[tuple[int, int]]
MANY = 1000
PATIENCE = 0.8  # seconds of a processor: a loop over each with each takes several, buckets some milliseconds


def _same(signatures: Any, bands: int, i: int, j: int) -> list[bool]:
    """For each part, whether both agree in all of it."""
    length = signatures.shape[1] // bands
    starts = range(0, bands * length, length)
    return [(signatures[i, s : s + length] == signatures[j, s : s + length]).all() for s in starts]


def _where(rule: Callable[[list[bool]], bool]) -> Callable[[Any, int], Pairs]:
    def pairs(signatures: Any, bands: int) -> Pairs:
        rows = range(len(signatures))
        return {(i, j) for i, j in combinations(rows, 2) if rule(_same(signatures, bands, i, j))}

    return pairs


_wanted = _where(any)


def _one_hash(signatures: Any, _: int) -> Pairs:
    return _wanted(signatures, signatures.shape[1])


def _any_part(signatures: Any, bands: int) -> Pairs:
    length = signatures.shape[1] // bands
    parts = [{tuple(row[s : s + length]) for s in range(0, bands * length, length)} for row in signatures]
    return {(i, j) for i, j in combinations(range(len(parts)), 2) if parts[i] & parts[j]}


def _neighbours(signatures: Any, bands: int) -> Pairs:
    pairs: Pairs = set()
    length = signatures.shape[1] // bands
    for start in range(0, bands * length, length):
        last: dict[tuple[int, ...], int] = {}
        for row, hashes in enumerate(signatures[:, start : start + length]):
            key = tuple(hashes)
            if key in last:
                pairs.add((last[key], row))
            last[key] = row
    return pairs


MISTAKES: tuple[tuple[Callable[[Any, int], Pairs], str], ...] = (
    (_one_hash, "One equal hash is not enough. A pair agrees in all hashes of a part."),
    (_where(all), "It found only pairs that agree in all parts. One part is enough."),
    (_where(lambda same: same[0]), "Only the first part was looked at."),
    (_any_part, "A part was compared with another text's other part: each part needs its own buckets."),
    (_neighbours, "A bucket may contain more than two texts, and any two of them are a pair."),
)


def _cases() -> list[tuple[Any, int]]:
    import numpy as np

    drawn = np.random.default_rng(0)
    shapes = ((12, 6, 3, 2), (20, 8, 4, 2), (15, 6, 2, 2), (10, 4, 4, 3), (9, 12, 3, 2), (8, 6, 3, 50))
    cases = [(drawn.integers(0, values, (rows, hashes)), bands) for rows, hashes, bands, values in shapes]
    crossed = np.array([[1, 2, 3, 4], [3, 4, 1, 2], [1, 2, 5, 6]])  # rows 0 and 1 agree in other parts only
    return [*cases, (crossed, 2)]


def _answer(function: Any, signatures: Any, bands: int) -> Pairs:
    """What the learner's function gives, as a set of pairs of whole numbers."""
    value = call(function, NAME, Call((signatures.copy(), bands)))
    written = f"near_pairs(signatures, {bands})"
    if value is None:
        raise Wrong(f"`{written}` gave nothing (None). Is a `return` missing?")
    try:
        listed = [(int(i), int(j)) for i, j in value] if isinstance(value, Iterable) else None
    except (TypeError, ValueError):
        listed = None
    if listed is None:
        raise Wrong(f"`{written}` gave {shown(value)}; wanted a set of pairs of row numbers.")
    if turned := [pair for pair in sorted(listed) if pair[0] >= pair[1]]:
        raise Wrong(f"`{written}` holds the pair {turned[0]}; wanted pairs (i, j) with i < j, each once.")
    if len(pairs := set(listed)) < len(listed):
        twice = next(pair for pair in listed if listed.count(pair) > 1)
        raise Wrong(f"`{written}` holds the pair {twice} more than once: a set holds each once.")
    return pairs


def check(names: dict[str, Any]) -> str:
    """Small tables whose pairs are counted one by one, and then many texts at once."""
    import numpy as np

    function, cases = names[NAME], _cases()
    answers = [_answer(function, *case) for case in cases]
    wanted = [_wanted(*case) for case in cases]
    if answers != wanted:
        advice = next((s for rule, s in MISTAKES if answers == [rule(*case) for case in cases]), "")
        where = next(i for i in range(len(cases)) if answers[i] != wanted[i])
        extra, missing = sorted(answers[where] - wanted[where]), sorted(wanted[where] - answers[where])
        signatures, bands = cases[where]
        i, j = extra[0] if extra else missing[0]
        rows = f"{signatures[i].tolist()} and {signatures[j].tolist()}, in {bands} parts,"
        which = "are no pair, and it found them" if extra else "are a pair, and it missed them"
        raise Wrong(f"{rows} {which}. {advice}".rstrip())
    many = np.random.default_rng(1).integers(0, 1 << 30, (MANY, 8))
    many[7], many[MANY - 1] = many[MANY - 2], many[3]
    gc.collect()  # a collection takes a fifth of a second where torch is in memory
    began = time.process_time()  # a busy machine makes no answer wrong
    found_in_many = _answer(function, many, 4)
    if (took := time.process_time() - began) > PATIENCE:
        raise Wrong(
            f"{MANY:,} texts took {took:.1f} s. That compares each with each, half a million times. "
            "Put them into buckets by the hashes of a part instead."
        )
    if found_in_many != {(7, MANY - 2), (3, MANY - 1)}:
        raise Wrong(f"Of {MANY:,} texts two pairs are alike; it found {len(found_in_many)}.")
    return f"{sum(map(len, answers))} pairs in small tables, and two among {MANY:,} texts"
