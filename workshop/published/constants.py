"""What is fitted to published training runs: every constant, its value, and how well the rows determine it.

    workshop calibrate --constants

A constant's standard error is taken at the value in `rates.toml`, over the half of the rows that fitting may
see, with each table counting alike. Rows of one group (the same model on the same devices) err together, so
they are not as many measurements: with slopes J of log(predicted) by the constants' logarithms and residuals
r, both weighted by 1/sqrt(rows of the table), and J_g, r_g those of group g of G,

covariance = (J'J)^-1 [ sum over g of J_g' r_g r_g' J_g ] (J'J)^-1 G / (G - p)

for p constants. One whose relative error is more than a fifth, or which lies on its bound, is **unknown**:
rows of whole steps do not tell it from the others.
Its value is then no more than where the fit was left, and predictions away from the rows should not lean on
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workshop.facts.stack import software
from workshop.predict.time.rates import rates_of
from workshop.published.calibrate import DETERMINED
from workshop.published.fit import BOUNDS, SETS, cases_on, held_out
from workshop.published.predicted import Constants, predict_times
from workshop.published.record import Observation

OF_STACKS = {"composer": ("hidden_passes",)}
"""Constants of training stacks that were fitted, by hand, with those of their device."""
HAND_SET = {
    "memory": "0.85 on all, for what only streams: an A100's addition of two tensors reaches 1.70 of 2.0 "
    "TB/s (github microsoft/vidur, data/profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv, add at "
    "6,144 tokens)",
    "ramp": "100 on A100, half of the 214 that products timed alone have: rows of training want less than "
    "that, and do not determine how much",
    "network": "0.83 on H100 and later: an all-gather of 8 GiB reaches 333 of 400 GB/s on 4 nodes of 8 B200 "
    "(facts/data/collectives_between_nodes.csv; an all-reduce of 16 GiB elsewhere 377)",
    "contention": "0.5: rows do not determine it",
    "host_jitter": "0.03: rows do not determine it",
    "misaligned": "1 on A100: a product of depth 1,376 = 21.5 x 64 takes half of the time of one of 2,752 = "
    "43 x 64 (github microsoft/vidur, data/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv, "
    "mlp_down_proj at 3,264 tokens, tensor parallel 8 and 4: 0.158 and 0.311 ms); 0.81 on H100 and later, "
    "from an earlier fit",
    "unaligned": "0.6: rows do not determine it",
    "unaligned_batched": "0.0625: an A100's cores for 32 bits, not its tensor cores: 19.5 of 312 TFLOP/s",
}
"""What neither kernels timed alone nor the rows determine, and what it was set to."""
STEP = 1e-3


@dataclass(frozen=True)
class Fitted:
    """One constant. error: relative standard error; nan for one that was fitted by hand. rows: it was fitted
    on.
    """

    owner: str
    name: str
    value: float
    error: float
    rows: int
    bounds: tuple[float, float] | None = None

    @property
    def unknown(self) -> str:
        """Why the rows do not determine it; empty where they do."""
        if self.bounds is not None:
            low, high = self.bounds
            if self.value <= low * 1.01 or self.value >= high / 1.01:
                return "on its bound"
        if np.isnan(self.error):
            return "no table isolates it"
        return f"standard error {self.error:.0%}" if self.error > DETERMINED else ""

    def __str__(self) -> str:
        spread = "      " if np.isnan(self.error) else f"+-{self.error:>4.0%}"
        between = "" if self.bounds is None else f"  in {self.bounds[0]:g} to {self.bounds[1]:g}"
        unknown = f"  UNKNOWN: {self.unknown}" if self.unknown else ""
        head = f"  {self.owner:<10} {self.name:<14} {self.value:<9.3g} {spread}"
        return f"{head}  {self.rows:>4} rows{between}{unknown}"


def fitted_constants(folder: Path) -> list[Fitted]:
    """Every constant that was fitted to the rows of `folder`, device by device, then those of stacks."""
    constants = []
    for device, (devices, names) in SETS.items():
        cases = cases_on(folder, devices)
        seen = [case for case, held in zip(cases, held_out(cases), strict=True) if not held]
        values = [float(getattr(rates_of(device), name)) for name in names]
        errors = standard_errors(seen, device, devices, names)
        constants += [
            Fitted(device, name, value, float(error), len(seen), BOUNDS[name])
            for name, value, error in zip(names, values, errors, strict=True)
        ]
    for stack, names in OF_STACKS.items():
        constants += [
            Fitted(stack, name, float(getattr(software(stack), name)), float("nan"), 0) for name in names
        ]
    return constants


def standard_errors(
    cases: Sequence[Observation], device: str, devices: Sequence[str], names: Sequence[str]
) -> np.ndarray:
    """Relative standard errors of a device's constants at their values; infinite without enough groups."""
    groups = np.unique([f"{case.table}/{case.group}" for case in cases], return_inverse=True)[1]
    count = int(groups.max(initial=-1)) + 1
    if count <= len(names):
        return np.full(len(names), np.inf)
    base, measured = rates_of(device), np.array([case.measured for case in cases])
    tables = [case.table for case in cases]
    weight = np.array([1 / np.sqrt(tables.count(table)) for table in tables])

    def off(changes: dict[str, float]) -> np.ndarray:
        rates = base.with_values(**changes)
        return np.log(predict_times(cases, Constants(dict.fromkeys(devices, rates), {})) / measured) * weight

    residuals = off({})
    slopes = np.stack(
        [(off({name: getattr(base, name) * np.exp(STEP)}) - residuals) / STEP for name in names], axis=1
    )
    normal = slopes.T @ slopes
    if np.linalg.cond(normal) > 1e12:
        return np.full(len(names), np.inf)
    scores = np.zeros((count, len(names)))
    np.add.at(scores, groups, slopes * residuals[:, None])
    inverse = np.linalg.inv(normal)
    covariance = inverse @ (scores.T @ scores) @ inverse * count / (count - len(names))
    return np.asarray(np.sqrt(np.diag(covariance)))


def text(constants: Sequence[Fitted]) -> str:
    """The list as lines to read, the count first."""
    unknown = sum(bool(one.unknown) for one in constants)
    head = f"{len(constants)} constants are fitted to published training runs; of them unknown: {unknown}"
    rest = ["", "set by hand, unknown as well:", *(f"  {name:<12} {why}" for name, why in HAND_SET.items())]
    return "\n".join([head, *map(str, constants), *rest])
