"""What a serving program adds to what the device does: few constants, each with where it comes from.

A forward pass of a decoder that is served is a stream of kernels. Per layer there are four matrix products
(queries, keys and values together; the output; gate and up together; down), two norms, rotary positions and
the write to the cache, attention, and the activation: ten kernels, none shorter than the device's
`kernel_seconds`. That count is not fitted. What is fitted, on which tables, stands in `data/serving.toml`.

A program that launches each kernel from Python is bound by its host instead: then a pass takes at least
kernels * `host_seconds` of the device's constants.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from workshop.facts.checks import nearest
from workshop.facts.device import DeviceSpec
from workshop.predict.time.rates import Rates, all_rates, calibrated, rates_for, rates_of

FILE = Path(__file__).parent.parent / "data" / "serving.toml"


@dataclass(frozen=True)
class Engine:
    """A serving program.

    kernels: of one layer. launched: they are launched one by one from Python, without a graph or compilation.
    all_reduce_seconds: of a small all-reduce within a node, before its first byte. head_cut: tensor ranks
    share the output head. unpack: share of the bandwidth that products with weights of a format reach, where
    a kernel has to unpack them; 1 where it is not named. measured: rows of published tables stand for it.
    """

    name: str
    kernels: float = 10.0
    launched: bool = False
    all_reduce_seconds: float = 0.0
    head_cut: bool = True
    unpack: dict[str, float] = field(default_factory=dict, hash=False)
    measured: bool = False

    def unpacks(self, weights: str) -> float:
        """Share of the bandwidth for weights of this format."""
        return self.unpack.get(weights, 1.0)


@dataclass(frozen=True)
class Shares:
    """What every engine has in common.

    attention: share of a large product's rate that attention over a prompt reaches. overlap: exponent p of
    (memory^p + arithmetic^p)^(1/p), how well a product hides one behind the other. How much of the memory's
    bandwidth kernels reach is the device's own constant (`Rates.memory`; 1 where it was measured here).
    """

    attention: float
    overlap: float


@cache
def read() -> dict[str, Any]:
    """The file of constants."""
    return tomllib.loads(FILE.read_text("utf-8"))


@cache
def shares() -> Shares:
    """What every engine has in common, as it is kept."""
    return Shares(**{f.name: read()["shares"][f.name] for f in fields(Shares)})


def engines() -> dict[str, Engine]:
    """All known engines by name."""
    common = read()["engines"]["defaults"]
    known = {name: entry for name, entry in read()["engines"].items() if name != "defaults"}
    return {name: Engine(name, **{**common, **entry}) for name, entry in known.items()}


def engine(name: str | Engine) -> Engine:
    """An engine by name, or as it is; ValueError with the known names for an unknown one."""
    if isinstance(name, Engine):
        return name
    known = engines()
    if name not in known:
        raise ValueError(f"unknown engine {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return known[name]


def device_rates(device: DeviceSpec) -> tuple[Rates, bool]:
    """The constants that a server on this device takes, and whether `rates.toml` names it.

    They are those of the device in `like`, unless there is none or you have calibrated this device.

    Raises:
        ValueError: neither file names the device.
    """
    like = read()["like"].get(device.name)
    if like is None or device.name in calibrated():
        return rates_for(device), device.name in all_rates()
    return rates_of(like), False
