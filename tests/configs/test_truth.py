"""What is told of a file is what the library does with it: every case of `mistake_cases`, loaded."""

from __future__ import annotations

import pytest

import tests.configs.test_used as used
from tests.configs.library import BATCHES, TRIPLE, batch, name_of, reader_of
from tests.configs.mistake_cases import (
    CASES,
    GONE,
    GOOD,
    RIGHT,
    Ignored,
    NotHere,
    OnRanks,
    Refused,
    Shows,
    changed,
)
from workshop.configs import Overrides, find_mistakes


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.good}-{case.key}-{case.kind}")
def test_the_library_does_as_told(case, library):
    assert case.proofs, "how is it known?"
    for proof in case.proofs:
        holds(case.good, case.config(), proof, library)


@pytest.mark.parametrize(("good", "changes", "_", "proof"), RIGHT)
def test_what_is_left_alone_works(good, changes, _, proof, library):
    holds(good, changed(GOOD[good], changes), proof, library)


def holds(good, config, proof, library):
    if isinstance(proof, OnRanks):
        assert callable(getattr(used, proof.test))
        return
    if isinstance(proof, NotHere):
        assert len(proof.reason) > 20
        return
    reader = reader_of(good, proof.reader)
    made = library[name_of(config, reader, getattr(proof, "ranks", 1))]
    if isinstance(proof, Refused):
        assert made["refused"], "the library takes it"
        assert proof.words in made["refused"]
        assert not library[name_of(GOOD[good], reader)]["refused"], "the good file is refused too"
    elif isinstance(proof, Ignored):
        without = library[name_of(changed(config, {proof.path: GONE}), reader)]
        assert not made["refused"]
        assert what_matters(made) == what_matters(without)
    elif isinstance(proof, Shows):
        assert not made.get("refused") or good != "json", made["refused"]
        assert proof.look(made), made


def what_matters(made):
    """Without what differs from call to call: a free port, and the list of keys that Accelerate keeps beside them."""
    variables = {**made.get("environment", {}), "ACCELERATE_CONFIG_DS_FIELDS": ""}
    return {**made, "endpoint": "", "command": "", "environment": variables}


def test_the_batch_is_judged_as_deepspeed_judges_it(library):
    """Every combination of the three numbers and the ranks: refused here if and only if DeepSpeed refuses it."""
    judged = 0
    for *numbers, ranks in BATCHES:
        mistakes = find_mistakes(batch(numbers), Overrides(num_processes=ranks))
        here = [mistake for mistake in mistakes if mistake.kind == "stops" and mistake.key in TRIPLE]
        there = library[name_of(batch(numbers), "json", ranks)]["refused"]
        assert bool(here) == bool(there), (numbers, ranks, there, [str(mistake) for mistake in here])
        judged += bool(here)
    assert 20 < judged < len(BATCHES) - 20
