"""Fitting a device and its network to measured runs, so that predictions for this cluster are this
cluster's.

    workshop calibrate --runs mine.csv --output h100.toml
    WORKSHOP_RATES=h100.toml workshop plan --model llama-3-70b --cluster 64xH100 --global-batch 4M

Four shares of a device's own figures are fitted, all that runs of a whole step can tell apart: of the
matmul rate in 16 and in 8 bits (`sustained`, `sustained_fp8`), of the memory bandwidth (`memory`), and of
the link between nodes (`network`). Everything else stays as `rates.toml` has it.

The fit minimises the sum over runs of log(predicted / measured)^2. Its standard errors are those of least
squares: with n runs, p constants, residuals r and the slopes J of the residuals by the constants'
logarithms,

relative standard error of constant i = sqrt( [ (J'J)^-1 ]_ii * r'r / (n - p) )

A constant whose error is more than a fifth of itself, or which ends on the edge of what is physical, is not
determined by the runs. It is reported as unknown, put back to its usual value, and the others are fitted
again; their errors then hold what they would give way if that usual value were a fifth off. The same run
measured several times counts once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workshop.facts.checks import nearest
from workshop.predict.time.rates import Rates, all_rates, rates_of
from workshop.published.fit import device_of, minimise
from workshop.published.predicted import Constants, predict_times, time_gap
from workshop.published.record import TIMES, MeasuredRun, Observation, Skipped

BOUNDS = {
    "sustained": (0.05, 1.0),
    "sustained_fp8": (0.05, 1.0),
    "memory": (0.05, 1.0),
    "network": (0.02, 1.0),
}
"""What may be fitted: shares, and between which values they are physical."""
DETERMINED = 0.2
"""A constant with a larger relative standard error is unknown."""
USUAL_WITHIN = 0.2
"""How far, relatively, an unknown constant's usual value may well be off: this widens the others' errors."""
STEP = 1e-4


@dataclass(frozen=True)
class Calibration:
    """What the runs on one device say.

    values: constant -> (value, standard error). unknown: constant -> why the runs do not determine it.
    errors_before, errors_after: mean absolute relative error of its runs. runs: different ones.
    """

    device: str
    like: str
    runs: int
    values: dict[str, tuple[float, float]]
    unknown: dict[str, str]
    errors_before: float
    errors_after: float
    figures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """The runs of one device: each once, with the geometric mean of its measurements."""

    cases: Sequence[Observation]
    measured: np.ndarray
    base: Rates

    def residuals(self, names: Sequence[str], x: np.ndarray) -> np.ndarray:
        """log(predicted / measured), with the constants `names` at exp(x)."""
        values = {name: float(value) for name, value in zip(names, np.exp(x), strict=True)}
        rates = self.base.with_values(**values)
        return np.log(predict_times(self.cases, Constants({rates.name: rates}, {})) / self.measured)

    def error(self, names: Sequence[str], x: np.ndarray) -> float:
        """Mean absolute relative error."""
        return float(np.abs(np.exp(self.residuals(names, x)) - 1).mean())


def calibrate(records: Sequence[MeasuredRun], like: str = "") -> tuple[list[Calibration], list[Skipped]]:
    """Fit every device of the runs.

    Args:
        records: measured runs; those without a time are passed over.
        like: a device with constants, from which one that has none of its own takes what is not fitted.

    Returns:
        A calibration for each device, and the runs that could not be used, with the reason.
    """
    by_device: dict[str, list[Observation]] = {}
    skipped: list[Skipped] = []
    for record in records:
        gap = time_gap(record.run)
        for one in record.observations(TIMES):
            if gap:
                skipped.append(Skipped(one.table, one.row, gap, "time"))
            else:
                by_device.setdefault(device_of(one), []).append(one)
    calibrations = []
    for device, cases in by_device.items():
        try:
            calibrations.append(fit_device(problem_of(cases, base_of(device, like)), like))
        except ValueError as reason:
            skipped += [Skipped(one.table, one.row, str(reason), "time") for one in cases]
    return calibrations, skipped


def base_of(device: str, like: str) -> Rates:
    """Where the fit starts, and what it leaves alone. ValueError for a device without constants and
    relative.
    """
    if device in all_rates():
        return rates_of(device)
    if not like:
        raise ValueError(
            f"no time constants are known for {device!r}{nearest(device, all_rates())}: name a relative with "
            f"--like (known: {', '.join(all_rates())})"
        )
    return replace(rates_of(like), name=device)


def problem_of(cases: Sequence[Observation], base: Rates) -> Problem:
    """Each run once: of repeated measurements the geometric mean."""
    groups: dict[Any, list[Observation]] = {}
    for one in cases:
        groups.setdefault((one.record.run, one.record.software, one.quantity), []).append(one)
    means = [np.exp(np.mean(np.log([one.measured for one in same]))) for same in groups.values()]
    return Problem([same[0] for same in groups.values()], np.array(means), base)


def fit_device(problem: Problem, like: str = "") -> Calibration:
    """Fit what the runs determine; the rest is unknown and stays as it was."""
    names, unknown = list(BOUNDS), {}
    start = np.log([getattr(problem.base, name) for name in names])
    for name, strength in zip(BOUNDS, np.linalg.norm(slopes_of(problem, names, start), axis=0), strict=True):
        if strength < 1e-6:
            unknown[name] = _told(np.inf)
            names.remove(name)
    while names:
        x = solved(problem, names)
        errors, reasons = standard_errors(problem, names, x), edges(names, x)
        doubtful = {
            name: reasons.get(name) or _told(error)
            for name, error in zip(names, errors, strict=True)
            if name in reasons or not error <= DETERMINED
        }
        if not doubtful:
            break
        # One at a time: what looks undetermined may be so only beside another.
        worst = max(doubtful, key=lambda name: errors[names.index(name)])
        unknown[worst] = doubtful[worst]
        names.remove(worst)
    else:
        x, errors = np.zeros(0), np.zeros(0)
    errors = np.hypot(errors, leaning(problem, names, x, list(unknown)))
    fitted = {n: (float(v), float(v * e)) for n, v, e in zip(names, np.exp(x), errors, strict=True)}
    for name, error in zip(names, errors, strict=True):
        if error > DETERMINED:
            unknown[name] = _told(error)
            del fitted[name]
    return Calibration(
        problem.base.name,
        like if problem.base.name not in all_rates() else problem.base.name,
        len(problem.cases),
        fitted,
        unknown,
        problem.error([], np.zeros(0)),
        problem.error(list(fitted), np.log([value for value, _ in fitted.values()])),
        figures(problem, fitted),
    )


def solved(problem: Problem, names: Sequence[str]) -> np.ndarray:
    """The logarithms of the constants that fit best.

    What hides under other work moves nothing until it no longer fits there, so the fit may stop on a plain:
    it starts from several rates of the network, and the best goes on.
    """
    low, high = (np.log([BOUNDS[name][side] for name in names]) for side in (0, 1))
    usual = np.clip(np.log([getattr(problem.base, name) for name in names]), low, high)
    starts = [usual]
    if "network" in names:
        starts += [usual + np.log(share) * (np.array(names) == "network") for share in (0.5, 0.25)]

    def residuals(x: np.ndarray) -> np.ndarray:
        return problem.residuals(names, x)

    tried = [minimise(residuals, np.clip(start, low, high), low, high, rounds=4) for start in starts]
    best = min(tried, key=lambda x: float(residuals(x) @ residuals(x)))
    return minimise(residuals, best, low, high)


def slopes_of(problem: Problem, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    """Slopes of the residuals by each constant's logarithm: [runs, constants]."""
    current = problem.residuals(names, x)
    steps = np.eye(len(x)) * STEP
    return np.stack([(problem.residuals(names, x + step) - current) / STEP for step in steps], axis=1)


def standard_errors(problem: Problem, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    """Relative standard error of each constant; infinite where the runs say nothing about it."""
    current = problem.residuals(names, x)
    free = len(current) - len(names)
    slopes = slopes_of(problem, names, x)
    strength = np.linalg.norm(slopes, axis=0)
    if free < 1 or strength.min() < 1e-6:
        # Too few runs: the constant that moves the answers least is the first to go.
        return np.where(strength == strength.min(), np.inf, 1 / np.maximum(strength, 1e-12))
    normal = slopes.T @ slopes
    if np.linalg.cond(normal) > 1e12:
        return np.where(strength == strength.min(), np.inf, 1 / strength)
    return np.sqrt(np.diag(np.linalg.inv(normal)) * (current @ current) / free)


def leaning(problem: Problem, names: Sequence[str], x: np.ndarray, unknown: Sequence[str]) -> np.ndarray:
    """Relative error that each constant has from the unknown ones, which stay at their usual values.

    By how much a constant i gives way when an unknown one, u, is off: (J'J)^-1 J' j_u.
    """
    if not names or not unknown:
        return np.zeros(len(names))
    usual = np.log([getattr(problem.base, name) for name in unknown])
    slopes = slopes_of(problem, [*names, *unknown], np.concatenate([x, usual]))
    own, others = slopes[:, : len(names)], slopes[:, len(names) :]
    give = np.linalg.solve(own.T @ own, own.T @ others)
    return np.asarray(USUAL_WITHIN * np.linalg.norm(give, axis=1))


def edges(names: Sequence[str], x: np.ndarray) -> dict[str, str]:
    """Constants on the edge of what is physical."""
    on_bounds = {}
    for name, value in zip(names, np.exp(x), strict=True):
        low, high = BOUNDS[name]
        if value <= low * 1.001 or value >= high / 1.001:
            on_bounds[name] = f"ends on its bound, {value:.3g}: something else is slow or fast in these runs"
    return on_bounds


def _told(error: float) -> str:
    if not np.isfinite(error):
        return "the runs say nothing about it, or are too few"
    return f"its standard error is {error:.0%} of it, with the others"


def figures(problem: Problem, fitted: dict[str, tuple[float, float]]) -> dict[str, str]:
    """What the shares mean on this device: TFLOP/s, GB/s, Gbit/s."""
    cluster = problem.cases[0].record.run.cluster
    device, links = cluster.device, {one.record.run.cluster.inter for one in problem.cases}
    wide, narrow = device.reachable_flops, [d for d in ("bf16", "fp16") if d in device.peak_flops]
    whole = {"memory": (device.memory_bandwidth / 1e9, "GB/s")}
    if narrow:
        rate = wide.get(narrow[0]) or device.peak(narrow[0])
        whole["sustained"] = (rate / 1e12, f"TFLOP/s in {narrow[0]}")
    if "fp8" in wide:
        whole["sustained_fp8"] = (wide["fp8"] / 1e12, "TFLOP/s in fp8")
    link = next(iter(links)) if len(links) == 1 else None
    if link is not None:
        whole["network"] = (link.bytes_per_second * 8 / 1e9, "Gbit/s a device between nodes")
    return {
        name: f"{value * whole[name][0]:.4g} of {whole[name][0]:.4g} {whole[name][1]}"
        for name, (value, _) in fitted.items()
        if name in whole
    }


def text(calibrations: Sequence[Calibration], skipped: Sequence[Skipped]) -> str:
    """What was fitted, as lines to read."""
    out: list[str] = []
    for one in calibrations:
        out.append(
            f"{one.device}: {one.runs} different runs, mean error {one.errors_before:.1%} before, "
            f"{one.errors_after:.1%} after"
        )
        for name, (value, error) in one.values.items():
            figure = f"  ({one.figures[name]})" if name in one.figures else ""
            out.append(f"  {name:<14} {value:.4g} +- {error:.2g}{figure}")
        out += [f"  {name:<14} unknown: {reason}" for name, reason in one.unknown.items()]
    out += [f"line {left.row} not used: {left.reason}" for left in skipped]
    return "\n".join(out) or "no run has a time"


def quoted(words: str) -> str:
    """A text as TOML holds it, on one line: JSON's way is also TOML's."""
    return json.dumps(words)


def as_toml(calibrations: Sequence[Calibration], source: str) -> str:
    """The file that WORKSHOP_RATES names: the constants of each device, their errors, and what is unknown."""
    out = [f"# Fitted by `workshop calibrate` to {quoted(source)}. To use it: WORKSHOP_RATES=THIS_FILE."]
    for one in calibrations:
        if not one.values:
            continue
        out += ["", f'[device."{one.device}"]', f'like = "{one.like}"']
        out += [f"{name} = {value:.6g}" for name, (value, _) in one.values.items()]
        out += [f"error = {one.errors_after:.4g}", f"fitted_on = {quoted(f'{one.runs} runs of {source}')}"]
        out += ["", f'[standard_error."{one.device}"]']
        out += [f"{name} = {error:.3g}" for name, (_, error) in one.values.items()]
        if one.unknown:
            out += ["", f'[unknown."{one.device}"]']
            out += [f"{name} = {quoted(reason)}" for name, reason in one.unknown.items()]
    return "\n".join(out) + "\n"
