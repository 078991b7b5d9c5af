"""Fitting what memory leaves open to measured runs: the share that the allocator lets lie idle.

What a run allocates is counted, tensor by tensor, and has no constant. What PyTorch *reserves* is more: of
the bytes that come and go within a step a share lies idle in pieces that nothing fits
(`predict.memory.allocator`). That share is the one constant of the memory model. It depends on the program,
so it is worth fitting to one's own: runs that report reserved memory, or what the device shows, determine it.

The fit minimises the sum over runs of log(predicted / measured)^2 between shares of 0 and 1. With the slopes
J and residuals r there, n runs,

standard error = sqrt( r'r / (n - 1) / J'J )

More than `DETERMINED` of the bytes that come and go, or a share on its bound, is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workshop.predict.memory import MemoryPrediction
from workshop.predict.memory.allocator import idle_share
from workshop.published.predicted import predicted_memory
from workshop.published.record import DEVICE, RESERVED, MeasuredRun, Observation, Skipped
from workshop.published.refit import with_share

DETERMINED = 0.1
"""A share with a larger standard error, absolute, is unknown."""
SHARES = np.linspace(0.0, 1.0, 201)
STEP = 1e-3

ObservedMemory = tuple[Observation, MemoryPrediction]


@dataclass(frozen=True)
class MemoryCalibration:
    """What the runs say of the idle share.

    unknown: why they do not determine it; "" where they do. errors_before, errors_after: mean absolute
    relative error of their reserved or device memory.
    """

    runs: int
    share: float
    error: float
    unknown: str
    errors_before: float
    errors_after: float


def calibrate_memory(records: Sequence[MeasuredRun]) -> tuple[MemoryCalibration | None, list[Skipped]]:
    """The idle share of the runs that measured reserved or device memory; None where none did.

    Returns also the runs that could not be used, with the reason.
    """
    seen: dict[object, ObservedMemory] = {}
    skipped: list[Skipped] = []
    for record in records:
        for one in record.observations((RESERVED, DEVICE)):
            try:
                seen[record.run, one.quantity, record.stage, one.measured] = one, predicted_memory(record)
            except ValueError as reason:
                skipped.append(Skipped(one.table, one.row, str(reason), "memory"))
    return (fitted(list(seen.values())) if seen else None), skipped


def fitted(rows: Sequence[ObservedMemory]) -> MemoryCalibration:
    """The share that fits these rows best, and how well they determine it."""
    usual = idle_share()
    best = float(min(SHARES, key=lambda share: float((off(rows, share) ** 2).sum())))
    ahead, back = min(best + STEP, 1.0), max(best - STEP, 0.0)
    slopes = (off(rows, ahead) - off(rows, back)) / (ahead - back)
    strength, left = float(slopes @ slopes), off(rows, best)
    free = len(rows) - 1
    error = float(np.sqrt(left @ left / free / strength)) if free and strength > 1e-12 else np.inf
    reason = ""
    if not np.isfinite(error):
        reason = "the runs say nothing about it, or are too few"
    elif best in (SHARES[0], SHARES[-1]):
        reason = f"ends on its bound, {best:g}: something else is large or small in these runs"
    elif error > DETERMINED:
        reason = f"its standard error is {error:.2f}"
    share = usual if reason else best
    before, after = (float(np.abs(np.exp(off(rows, x)) - 1).mean()) for x in (usual, share))
    return MemoryCalibration(len(rows), share, error, reason, before, after)


def off(rows: Sequence[ObservedMemory], share: float) -> np.ndarray:
    """log(predicted / measured) with this share."""
    return np.log([with_share(one, prediction, share) / one.measured for one, prediction in rows])


def text(fit: MemoryCalibration) -> str:
    """What was fitted, as lines to read."""
    head = (
        f"reserved memory: {fit.runs} measurements, mean error {fit.errors_before:.1%} before, "
        f"{fit.errors_after:.1%} after"
    )
    if fit.unknown:
        return f"{head}\n  idle_share     unknown: {fit.unknown}"
    return f"{head}\n  idle_share     {fit.share:.3g} +- {fit.error:.2g}  (of the bytes of a step)"


def as_toml(calibration: MemoryCalibration | None) -> str:
    """Its section of the file that WORKSHOP_RATES names; empty where nothing was found."""
    if calibration is None or calibration.unknown:
        return ""
    return "\n".join(
        [
            "",
            "[memory]",
            f"idle_share = {calibration.share:.4g}",
            f"standard_error = {calibration.error:.3g}",
            f"error = {calibration.errors_after:.4g}",
            f"measurements = {calibration.runs}",
            "",
        ]
    )
