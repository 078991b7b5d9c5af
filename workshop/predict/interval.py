"""How sure a prediction is: the two values between which eight in ten measurements lie.

A prediction's `Interval` goes from p10 to p90 of what would be measured. How wide it is was not chosen: it is
read off residuals, log(measured / predicted), of published rows **whose whole source was left out** of every
fit, because that is where a run of yours stands. Two numbers for time, two for memory, and what widens them:

    scale(run) = scale * product of `wider` over the run's doubts
    interval   = predicted * exp(lower * scale(run)) ... predicted * exp(upper * scale(run))

A **doubt** is a plain fact of the run, the same whoever measures it: more nodes than one, more than eight,
pipeline stages, experts, 8 or 4 bits, an adapter, a device or a training stack that no row was measured on,
or a program that nobody has described. `wider` never falls below one: a doubt can only widen.
`workshop.published.residuals` estimates it (*undescribed*: `workshop.published.blind`), and
`make predict-report` writes it to `data/intervals.toml`.

**Undescribed** is the largest doubt. The programs of left-out sources had been looked at by whoever wrote
their readers: kernels counted, networks looked up. A program of your own has not. What that costs was
measured on first predictions: 201 times and 199 memories of new sources (`data/measurements/blind_rows.md`).
The doubt is there where the run's stack is in none of the tables of the fit. For time it goes, whatever the
program, on a device that you have calibrated (`workshop calibrate`): so calibrate with the program that you
mean to predict. For memory it stays. What such a program reserves was no further off than what it allocates,
for nobody knows its tensors; so *outside* does not come on top of it (`with_outside`).

**Two layouts of one run** share most of what can be wrong: the device's rates, the stack's kernels, the slow
node. What they share cancels in the ratio of their times. To first order, with s_c the share of cause c
in a step and e_c the relative error of that cause, the same for both layouts,

    error of log(t_a / t_b) = sum over causes of (s_ac - s_bc) e_c

so two layouts whose time goes to the same causes have no error in their ratio, however wrong both are, and a
layout full of bubbles beside one full of all-reduces has much. With errors of one size, independent by cause:

    scale(a, b)^2 = floor^2 + slope^2 * sum over causes of (s_ac - s_bc)^2

Floor and slope come from pairs of published layouts of the same model, devices and batch, again with the
source left out. Two layouts are told apart where their predicted ratio is further from one than p90 of that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision, precision
from workshop.facts.run import Adapter, Run
from workshop.predict.time.rates import calibrated

# What can widen an interval. nodes: more than one. many_nodes: more than `MANY_NODES`. few_bits: matrix
# products in 8 or 4. adapter: most weights are frozen. device: no fitted row was measured on it. stack: no
# row was, or the source does not name it. undescribed: and nobody has counted the program's kernels. outside:
# what PyTorch does not allocate for tensors, as fragments, contexts, libraries' buffers.
TIME_DOUBTS = (
    "nodes",
    "many_nodes",
    "pipeline",
    "experts",
    "few_bits",
    "adapter",
    "device",
    "stack",
    "undescribed",
)
MEMORY_DOUBTS = ("pipeline", "experts", "few_bits", "adapter", "stack", "undescribed", "outside")
MEASURED_HERE = ("workshop", "adapt")
"""Implementations that are this package's own, and whose memory its tests and `make gpu` have measured."""
MANY_NODES = 8
FILE = Path(__file__).parent / "data" / "intervals.toml"


class Interval(NamedTuple):
    """From p10 to p90 of what would be measured, in the prediction's own unit.

    One measurement in ten is expected below `lower`, one in ten above `upper`. Estimated from published rows
    whose source was left out of the fit; see the module's docstring for the method.
    """

    lower: float
    upper: float

    def holds(self, value: float) -> bool:
        """Whether a measured value lies within."""
        return self.lower <= value <= self.upper

    def times(self, value: float) -> Interval:
        """The interval of `value` for margins around one."""
        return Interval(self.lower * value, self.upper * value)


@dataclass(frozen=True)
class Bars:
    """What intervals of one kind are made of; `devices` and `stacks` are those that rows were measured on.

    A stack is "implementation/software" for time, and the implementation's name for memory.
    """

    scale: float
    lower: float
    upper: float
    wider: Mapping[str, float] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()
    stacks: frozenset[str] = frozenset()

    def width(self, doubts: tuple[str, ...]) -> float:
        """The scale of a run with these doubts."""
        return self.scale * prod(self.wider.get(doubt, 1.0) for doubt in doubts)

    def around(self, value: float, doubts: tuple[str, ...]) -> Interval:
        """The interval of a prediction."""
        width = self.width(doubts)
        return Interval(value * exp(self.lower * width), value * exp(self.upper * width))


@dataclass(frozen=True)
class Difference:
    """What tells two layouts apart; `quantile` of |log ratio error| / scale is p90 of either side."""

    floor: float
    slope: float
    quantile: float

    def margin(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """How far the log of the measured ratio may be from that of the predicted one, p10 to p90.

        Args:
            first: seconds by cause, causes last. second: those of other layouts, broadcast.
        """
        apart = first / first.sum(-1, keepdims=True) - second / second.sum(-1, keepdims=True)
        distance = (apart**2).sum(-1)
        return np.asarray(self.quantile * np.sqrt(self.floor**2 + self.slope**2 * distance))

    def tells_apart(self, first: Mapping[str, float], second: Mapping[str, float]) -> bool:
        """Whether one of two layouts is surely (nine in ten) the faster, from their seconds by cause."""
        names = sorted({*first, *second})
        a, b = (np.array([causes.get(name, 0.0) for name in names]) for causes in (first, second))
        return bool(abs(np.log(a.sum() / b.sum())) > self.margin(a, b))


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text("utf-8"))


@cache
def bars(kind: str) -> Bars:
    """The bars of "time" or "memory" as they are kept."""
    entry = dict(_data()[kind])
    devices, stacks = (frozenset(entry.pop(name)) for name in ("devices", "stacks"))
    return Bars(**entry, devices=devices, stacks=stacks)


@cache
def difference() -> Difference:
    """What tells two layouts of one run apart, as it is kept."""
    return Difference(**_data()["difference"])


def model_doubts(model: ModelSpec, numbers: Precision, adapter: Adapter | None) -> dict[str, bool]:
    """The doubts about what is trained, in which numbers."""
    return {
        "experts": model.is_moe,
        "few_bits": numbers.dtype in ("fp8", "fp4"),
        "adapter": adapter is not None,
    }


def time_doubts(run: Run, software: str, known: Bars, described: bool = False) -> tuple[str, ...]:
    """The doubts about a run's time, beside what `known` has rows of, or what you have calibrated.

    software: the training stack's name. described: somebody has looked at this very program, although no row
    of `known` is of its stack.
    """
    nodes = -(-run.layout.world_size // run.cluster.devices_per_node)
    own = run.cluster.device.name in calibrated()
    strange = f"{run.implementation.name}/{software}" not in known.stacks
    doubtful = model_doubts(run.model, precision(run.layout.precision), run.adapter) | {
        "nodes": nodes > 1,
        "many_nodes": nodes > MANY_NODES,
        "pipeline": run.layout.pipeline > 1,
        "device": not own and run.cluster.device.name not in known.devices,
        "stack": strange,
        "undescribed": strange and not described and not own,
    }
    return tuple(name for name in TIME_DOUBTS if doubtful[name])


def memory_doubts(
    of_model: Mapping[str, bool], library: str, pipeline: bool, known: Bars, described: bool = False
) -> tuple[str, ...]:
    """The doubts about allocated bytes; `with_outside` has those about reserved or device bytes.

    of_model: `model_doubts`. library: the implementation's name. pipeline: whether there are stages.
    described: as for `time_doubts`.
    """
    strange = library not in known.stacks
    doubtful = {
        **of_model,
        "pipeline": pipeline,
        "stack": strange,
        "undescribed": strange and not described and library not in MEASURED_HERE,
    }
    return tuple(name for name in MEMORY_DOUBTS if doubtful.get(name))


def with_outside(doubts: tuple[str, ...]) -> tuple[str, ...]:
    """The doubts about reserved or device bytes, from those about allocated bytes."""
    return doubts if "undescribed" in doubts else (*doubts, "outside")


def time_interval(run: Run, software: str, seconds: float) -> Interval:
    """Between which seconds eight in ten measurements of this step lie."""
    known = bars("time")
    return known.around(seconds, time_doubts(run, software, known))


def memory_margins(of_model: Mapping[str, bool], library: str, pipeline: bool) -> tuple[Interval, Interval]:
    """Measured over predicted bytes, p10 to p90: of allocated bytes, and of reserved or device bytes."""
    known = bars("memory")
    doubts = memory_doubts(of_model, library, pipeline, known)
    return known.around(1.0, doubts), known.around(1.0, with_outside(doubts))
