"""Questions to the installed libraries, and their answers: one process loads everything that the tests ask about."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from tests.configs.foreign_files import TWINS
from tests.configs.mistake_cases import CASES, GONE, GOOD, RIGHT, Ignored, NotHere, OnRanks, Refused, changed
from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "library_reads.py"
TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
BATCHES = list(product((None, 4, 6, 8, 12), (None, 1, 2, 3), (None, 1, 2, 3), (1, 2, 4)))
"""Total, micro-batch, steps, ranks."""


def batch(numbers: Iterable[int | None]) -> dict[str, Any]:
    given = {key: number for key, number in zip(TRIPLE, numbers, strict=True) if number is not None}
    return {**given, "zero_optimization": {"stage": 1}}


def reader_of(good: str, reader: str) -> str:
    return reader or ("engine" if good == "json" else "yaml")


def name_of(config: dict[str, Any], reader: str, ranks: int = 1) -> str:
    return f"{reader} {ranks} {json.dumps(config, sort_keys=True)}"


def questions() -> dict[str, dict[str, Any]]:
    """Everything that is asked, by name."""
    asked: dict[str, dict[str, Any]] = {}

    def ask(config: dict[str, Any], reader: str, ranks: int = 1) -> None:
        more = {"ranks": ranks} if reader == "json" else {}
        asked[name_of(config, reader, ranks)] = {"kind": reader, "config": config, **more}

    every = [(case.good, case.config(), case.proofs) for case in CASES]
    every += [(good, changed(GOOD[good], changes), (proof,)) for good, changes, _, proof in RIGHT]
    for good, config, proofs in every:
        for proof in proofs:
            if isinstance(proof, OnRanks | NotHere):
                continue
            reader = reader_of(good, proof.reader)
            ask(config, reader, getattr(proof, "ranks", 1))
            if isinstance(proof, Ignored):
                ask(changed(config, {proof.path: GONE}), reader)
            if isinstance(proof, Refused):
                ask(GOOD[good], reader)
    for *numbers, ranks in BATCHES:
        ask(batch(numbers), "json", ranks)
    for twin in TWINS:
        ask(twin.as_loaded(), twin.reader)
    return asked


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """What the libraries make of every file: one rank reads them all."""
    (folder / "cases.json").write_text(json.dumps(questions()))
    launch.torchrun(launch.Script(PROGRAM, (str(folder),)), 1, limits=launch.Limits(timeout=600))
    return json.loads((folder / "found.json").read_text())
