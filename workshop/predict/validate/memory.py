"""Predicted memory against every published table, by table, group and quantity.

Each table's rows are dealt into two halves by group (model and layout for pretraining, test case for
Megatron's CI): a group's name is hashed, so the halves do not depend on order or on which rows are there.
Constants were fitted on the ``"fit"`` half; the ``"held"`` half is what a claim can rest on.

A row whose run did happen also says that it fitted into its device.  ``fits`` is the share of rows where the
verdict is wrong, runs that ran out of memory included.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workshop.predict.memory import predict_memory
from workshop.predict.validate.megatron_ci import case_of
from workshop.predict.validate.memory_bloom import bloom
from workshop.predict.validate.memory_cases import MemoryCase, NotPredictable, Row
from workshop.predict.validate.memory_finetuning import litgpt, torchtune
from workshop.predict.validate.memory_formulas import SAYS_TOO_LITTLE, korthikanti, refuse
from workshop.predict.validate.memory_moe import mbridge
from workshop.predict.validate.memory_pretraining import internevo, nanotron, torchtitan

READERS: dict[str, Callable[[Row, int], MemoryCase]] = {
    "megatron_lm_ci_golden_memory_time": case_of,
    "torchtitan_performance": torchtitan,
    "nanotron_ultrascale_best_configs_h100": nanotron,
    "internevo_memory_a800": internevo,
    "torchtune_memory_speed": torchtune,
    "litgpt_resource_tables_a100_40gb": litgpt,
    "bloom_176b_layout_sweep_a100": bloom,
    "mbridge_moe_memory_estimator_real_vs_est": mbridge,
    "korthikanti_2022_seqpar_selective": korthikanti,
    **{table: refuse(reason) for table, reason in SAYS_TOO_LITTLE.items()},
}


@dataclass(frozen=True)
class MemoryResult:
    """One case beside its prediction; ``fitted`` and ``fits`` are the measured and the predicted verdict."""

    case: MemoryCase
    predicted: float
    fitted: bool
    fits: bool

    @property
    def error(self) -> float:
        """Signed relative error; nothing for a run that failed."""
        return self.predicted / self.case.measured - 1

    @property
    def half(self) -> str:
        """``"fit"`` or ``"held"``: by a hash of table, group and name."""
        key = f"{self.case.table}/{self.case.group}/{self.case.name}".encode()
        return "fit" if hashlib.sha256(key).digest()[0] % 2 == 0 else "held"


@dataclass(frozen=True)
class LeftOut:
    """A row that was not predicted, and why."""

    table: str
    row: int
    reason: str


def read_cases(folder: Path) -> tuple[list[MemoryCase], list[LeftOut]]:
    """All memory rows of the tables in a folder; tables that are not there are passed over."""
    cases, left_out = [], []
    for table, reader in READERS.items():
        path = folder / f"{table}.csv"
        if not path.exists():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                try:
                    cases.append(reader(row, number))
                except (NotPredictable, ValueError) as reason:
                    left_out.append(LeftOut(table, number, str(reason)))
    return cases, left_out


def check(case: MemoryCase) -> MemoryResult:
    """Predict one case."""
    found = predict_memory(case.run, case.pass_group)
    ran = case.quantity != "activations"  # a computed figure says nothing about a device
    return MemoryResult(case, case.predict(), case.quantity != "out_of_memory", found.fits or not ran)


def results(folder: Path) -> tuple[list[MemoryResult], list[LeftOut]]:
    """Predict every row of a folder's tables."""
    cases, left_out = read_cases(folder)
    return [check(case) for case in cases], left_out


def summary(found: Iterable[MemoryResult]) -> dict[str, float]:
    """Rows, mean, median, 90th percentile and worst absolute error, and the share of wrong verdicts."""
    found = list(found)
    errors = np.abs([result.error for result in found if result.fitted]) if found else np.zeros(0)
    wrong = [result.fits != result.fitted for result in found]
    if not len(errors):
        return {"rows": 0, "wrong_verdicts": float(np.mean(wrong)) if wrong else 0.0}
    return {
        "rows": len(errors),
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
        "wrong_verdicts": float(np.mean(wrong)),
    }


def by_half(found: Iterable[MemoryResult]) -> dict[tuple[str, str], dict[str, float]]:
    """``summary`` for every table, whole and by half."""
    found = list(found)
    tables = dict.fromkeys(result.case.table for result in found)
    return {
        (table, half): summary(r for r in found if r.case.table == table and half in ("all", r.half))
        for table in tables
        for half in ("all", "fit", "held")
    }
