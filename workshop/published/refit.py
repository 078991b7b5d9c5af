"""All fitted constants again, on fewer rows: what a prediction would be had a regime never been measured.

Nothing else changes from the fit that made `rates.toml`: the same half of the groups, the same constants,
bounds and leash (`fit`), less the rows that are left out. It starts where the whole fit ended, for speed; the
leash draws to the usual values, and not to the start. A device none of whose rows is left takes what is
fitted from its relative (`like`), as a device that nobody measured does; the root of all takes the usual
values. Of memory one constant is fitted, the allocator's idle share (`allocator.FRAGMENTATION`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workshop.predict.memory import MemoryPrediction
from workshop.predict.memory.allocator import FRAGMENTATION
from workshop.predict.time.rates import Rates, device_tables, rates_of
from workshop.published.fit import SETS, USUAL, Fit, device_of
from workshop.published.predicted import Constants
from workshop.published.record import DEVICE, RESERVED, Observation
from workshop.published.report import is_held

ROUNDS = 5
SHARES = np.linspace(0.0, 0.5, 26)
"""Idle shares that are tried."""


@dataclass
class Refits:
    """Fits on fewer rows, one after another.

    rows: all that are ever fitted on. Most regimes leave most devices alone, so what was fitted once is kept.
    """

    rows: Sequence[Observation]
    made: dict[tuple[Any, ...], Rates] = field(default_factory=dict)

    def without(self, gone: Collection[int]) -> Constants:
        """Constants of every device, fitted on the half of the rows that may be seen, less those in `gone`.

        gone: `id` of each row that is left out.
        """
        rates: dict[str, Rates] = {}
        for device, (devices, names) in SETS.items():
            base = inherited(device, rates)
            mine = [
                case
                for case in self.rows
                if device_of(case) in devices and not is_held(case) and id(case) not in gone
            ]
            key = (device, base, *(id(case) for case in mine))
            if mine and key not in self.made:
                start = np.log([getattr(rates_of(device), name) for name in names])
                self.made[key], _ = Fit(mine, base, names).solved(start, ROUNDS)
            rates[device] = self.made[key] if mine else base
        return Constants({device: inherited(device, rates) for device in device_tables()}, {})


def inherited(device: str, rates: Mapping[str, Rates]) -> Rates:
    """A device's constants with `rates` in place of those that were fitted: its own, or its relative's."""
    if device in rates:
        return rates[device]
    entry: dict[str, Any] = dict(device_tables()[device])
    relative = entry.pop("like", "")
    fitted = SETS.get(device, ((), ()))[1]
    base = inherited(relative, rates) if relative else replace(rates_of(device), **_usual(fitted))
    own = {name: value for name, value in entry.items() if name not in fitted}
    return base.with_values(**{**own, "name": device})


def _usual(names: Sequence[str]) -> dict[str, Any]:
    return {name: USUAL[name] for name in names}


def refitted_share(rows: Sequence[tuple[Observation, MemoryPrediction]]) -> float:
    """The idle share that fits reserved and device bytes of these rows best; today's where there are none."""
    seen = [
        (one, prediction)
        for one, prediction in rows
        if one.quantity in (RESERVED, DEVICE) and not is_held(one)
    ]
    if not seen:
        return FRAGMENTATION
    errors = [
        np.mean([abs(np.log(with_share(one, prediction, share) / one.measured)) for one, prediction in seen])
        for share in SHARES
    ]
    return float(SHARES[int(np.argmin(errors))])


def with_share(one: Observation, prediction: MemoryPrediction, share: float) -> float:
    """Reserved or device bytes of an observation had the allocator that idle share."""
    if one.record.run.implementation.expandable_segments:
        share = 0.0
    outside = prediction.device - prediction.reserved
    reserved = prediction.allocated + share * np.maximum(0, prediction.allocated - prediction.steady)
    if prediction.capacity:
        reserved = np.maximum(prediction.allocated, np.minimum(reserved, prediction.capacity - outside))
    device = reserved + outside
    stage = int(np.argmax(device)) if one.record.stage is None else one.record.stage
    return float((device if one.quantity == DEVICE else reserved)[stage])
