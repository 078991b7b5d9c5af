"""Fitting the constants, so that anyone can do it again.

For a device type the fit takes **half of the groups** of each table measured on it (drawn by a checksum of
their names), and minimises the sum over rows of log(predicted / measured)^2, linear for large errors (Huber's
loss) and with each table given equal weight, over the logarithms of a few constants (Gauss-Newton with
Levenberg-Marquardt damping; the derivatives are finite differences). Every fit starts at the same usual
values and is drawn back to them a little, so that a constant the rows do not determine stays where it is
usual instead of wandering to a bound. The other half of the groups is never seen; `held_out` says which.

`benchmarks/fit_rates.py` runs it for every device of `SETS` and compares with `rates.toml`; `constants` says
how well the rows determine what it finds; `refit` runs it on fewer rows, for judging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from workshop.facts.stack import software
from workshop.predict.time.rates import Rates, rates_of
from workshop.published.predicted import Constants, predict_times, time_gap
from workshop.published.record import TIMES, Observation
from workshop.published.report import is_held
from workshop.published.tables import read_folder

BOUNDS = {
    "sustained": (0.4, 1),
    "sustained_fp8": (0.4, 1),
    "attention": (0.4, 1),
    "host_seconds": (2e-6, 4e-5),
    "network": (0.2, 1),
    "skew": (1e-4, 0.015),
}
"""What may be fitted, and between which values it stays physical."""
USUAL = {
    "sustained": 0.85,
    "sustained_fp8": 0.85,
    "attention": 0.85,
    "host_seconds": 2.37e-5,  # an A100's, timed (facts/data/host.csv)
    "network": 0.8,
    "skew": 0.002,
}
"""Where the fit starts, and whither a constant is drawn that the rows do not determine (`LEASH`)."""

SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "A100-80GB": (
        ("A100-80GB", "A100-40GB"),
        ("sustained", "attention", "network"),
    ),
    "H100": (("H100",), ("sustained", "sustained_fp8", "attention", "skew")),
    "GB200": (("GB200",), ("host_seconds",)),
}
"""By device: whose rows it is fitted on, and what. In this order, as later ones inherit from earlier ones.
All else comes from kernels timed alone (`benchmarks/fit_curves.py`) or within steps
(`benchmarks/step_kernels.py`), or was set by hand, as `rates.toml` says.
"""

LEASH = 0.02  # a constant twice its usual value costs as much as an error of 1.4 % in every row of a table

HUBER = 0.05  # residuals (in logarithms) beyond this count linearly: what is judged is the mean error


def held_out(cases: Sequence[Observation]) -> np.ndarray:
    """True for the rows that fitting may not see: about half of the groups of each table."""
    return np.array([is_held(case) for case in cases])


def minimise(
    residuals: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    rounds: int = 30,
) -> np.ndarray:
    """Levenberg-Marquardt within bounds, for a few unknowns and no library."""
    x, damping = start.copy(), 1e-2
    current = residuals(x)
    for _ in range(rounds):
        slopes = np.stack([(residuals(x + step) - current) / 1e-4 for step in np.eye(len(x)) * 1e-4], axis=1)
        better = False
        for _ in range(6):
            normal = slopes.T @ slopes
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ current)
            trial = np.clip(x + np.clip(move, -0.7, 0.7), low, high)
            value = residuals(trial)
            if value @ value < current @ current:
                better = current @ current - value @ value > 1e-7 * (current @ current)
                x, current, damping = trial, value, damping / 4
                break
            damping *= 5
        if not better:
            break
    return x


@dataclass(frozen=True)
class Fit:
    """A fit of the constants `names` ("stack:constant" for those of a training stack) to measured times.

    base: the constants of the device, of which those that are not named stay. bounds: see `BOUNDS`.
    """

    cases: Sequence[Observation]
    base: Rates
    names: Sequence[str]
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=lambda: BOUNDS)

    @cached_property
    def usual(self) -> np.ndarray:
        """Logarithms of the values whither the fit is drawn."""
        return np.log([USUAL.get(name, _value(self.base, name)) for name in self.names])

    @cached_property
    def weight(self) -> np.ndarray:
        """Each table counts the same."""
        tables = Counter(case.table for case in self.cases)
        return np.array([1 / np.sqrt(tables[case.table]) for case in self.cases])

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the least and the largest values."""
        edges = [self.bounds.get(name.split(":")[-1], (1e-9, 1e9)) for name in self.names]
        return np.log([low for low, _ in edges]), np.log([high for _, high in edges])

    def constants(self, x: np.ndarray) -> tuple[Rates, Constants]:
        """The constants for logarithms `x`: the device's own, and those of all that the cases ran on."""
        values = {name: float(value) for name, value in zip(self.names, np.exp(x), strict=True)}
        own = self.base.with_values(**{n: v for n, v in values.items() if ":" not in n})
        changed: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            if ":" in name:
                stack, constant = name.split(":")
                changed.setdefault(stack, {})[constant] = value
        devices = {device_of(case) for case in self.cases}
        return own, Constants({d: replace(own, name=d) for d in devices}, changed)

    def residuals(self, x: np.ndarray) -> np.ndarray:
        """What is squared and summed."""
        measured = np.array([case.measured for case in self.cases])
        off = np.log(predict_times(self.cases, self.constants(x)[1]) / measured)
        size = np.abs(off)
        linear = np.sqrt(np.maximum(2 * HUBER * size - HUBER**2, 0))
        bent = np.where(size > HUBER, linear, size) * np.sign(off)
        return np.concatenate([bent * self.weight, LEASH * (x - self.usual)])

    def solved(self, start: np.ndarray | None = None, rounds: int = 30) -> tuple[Rates, Constants]:
        """The constants that fit best, looked for from `start` (logarithms; the usual values if None)."""
        low, high = self.limits
        begin = self.usual if start is None else start
        return self.constants(minimise(self.residuals, np.clip(begin, low, high), low, high, rounds))


def fit_constants(
    cases: Sequence[Observation],
    device: str,
    names: Sequence[str],
    bounds: dict[str, tuple[float, float]] | None = None,
) -> tuple[Rates, Constants]:
    """The constants `names` of a device, fitted on `cases` from the usual values."""
    return Fit(cases, rates_of(device), names, bounds or {}).solved()


def _value(base: Rates, name: str) -> float:
    if ":" not in name:
        return float(getattr(base, name))
    stack, constant = name.split(":")
    return float(getattr(software(stack), constant))


def device_of(case: Observation) -> str:
    """The catalogue's name of the device that a row was measured on."""
    return case.record.run.cluster.device.name


def cases_on(folder: Path, devices: Sequence[str]) -> list[Observation]:
    """Every measured time of a folder's tables on one of these devices that the time model has."""
    return [
        case
        for record in read_folder(folder)[0]
        if not time_gap(record.run)
        for case in record.observations(TIMES)
        if device_of(case) in devices
    ]


def leave_out_tensor(folder: Path, devices: Sequence[str], names: Sequence[str]) -> dict[int, float]:
    """Mean error on the rows of each tensor-parallel degree when the constants were fitted on all the
    others.
    """
    cases = cases_on(folder, devices)
    errors: dict[int, float] = {}
    for degree in sorted({case.column["tensor"] for case in cases}):
        seen = [case for case in cases if case.column["tensor"] != degree]
        left = [case for case in cases if case.column["tensor"] == degree]
        _, fitted = fit_constants(seen, devices[0], names, BOUNDS)
        predicted = predict_times(
            left, Constants(dict.fromkeys(devices, fitted.rates[devices[0]]), fitted.software)
        )
        measured = np.array([case.measured for case in left])
        errors[degree] = float(np.abs(predicted / measured - 1).mean())
    return errors
