"""The constants of the time model: few, physical, one set per device type.

They live in `data/rates.toml`, each set with what it was fitted on. Peaks, bandwidths and links are not
here: those are facts (`workshop.facts.device`). Here is what a data sheet does not say: how much of the
sheet a long training step reaches, how long the smallest kernel takes, what an all-reduce costs before its
first byte moves.

A device without a set of its own takes that of its nearest relative (`like`), so a prediction for it says so.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

from workshop.facts.checks import nearest
from workshop.facts.device import DeviceSpec
from workshop.predict.calibrated import own_section


@dataclass(frozen=True)
class Rates:
    """What one device type reaches. Shares are of the device's own figures, so they carry over to its
    relatives.
    """

    name: str
    multiprocessors: int
    sustained: float  # share of the best matmul rate that a step keeps (power, clocks)
    sustained_fp8: float  # the same in 8 bits, where quantizing gets in the way as well
    tile_loss: float  # elements: a tile a x b reaches 1 / (1 + tile_loss (1/a + 1/b))
    ramp: float  # elements of depth lost at each tile's start and end
    matmul: float  # best rate of a large product in 16 bits, as a share of the device's reachable one
    matmul_fp8: float  # the same in 8 bits
    matmul_memory: float  # share of the memory bandwidth at which products read and write
    grouped: float  # seconds of a server's fused experts relative to those of as many plain products
    routed_passes: (
        float  # reads and writes of each routed token's [hidden], forward, at the sheet's bandwidth
    )
    token_passes: float  # ... and of each token's before it is routed
    route_seconds: float  # of a layer's routing, besides: kernels that are too small to count by bytes
    misaligned: float  # share of the rate when sizes are no multiples of 64 elements
    unaligned: float  # ... of 8 elements
    unaligned_batched: float  # ... of 8 elements, of a batch of products: no tensor cores
    attention: float  # share of the measured rate of fused attention that a step keeps, besides `sustained`
    memory: float  # share of the memory bandwidth that a kernel reaches which only streams
    kernel_seconds: float  # no kernel is shorter
    host_seconds: float  # Python and launch, per kernel, when nothing is compiled or captured
    host_jitter: float  # how much later a tensor group's slowest host is, per further rank of the group
    link: float  # share of the link within a node that collectives reach
    link_seconds: float  # start of a collective within a node, plus `hop_seconds` per further rank
    hop_seconds: float
    network: float  # share of the link between nodes that large messages reach
    skew: float  # share of a step lost to the slowest of all, per doubling of nodes
    contention: float  # share of hidden communication that slows down what it hides under
    host_link: (
        float  # bytes/s between a device and its host, one way, as pinned copies reach it; 0: not known
    )
    host_memory: float  # bytes/s of the host's memory that one device's share of its processors reach
    error: float  # mean absolute relative error on held-out rows: the interval
    fitted_on: str = ""
    pointwise: float = 0.0  # ... that norms, activations and casts reach within a step; 0: as `memory`
    timed: str = ""  # the device whose microbenchmarks stand for it (facts.microbenchmarks); "": none do

    def with_values(self, **changes: Any) -> Rates:
        """A copy with some constants changed."""
        return replace(self, **changes)


def _inherited(tables: dict[str, Any], name: str) -> dict[str, Any]:
    entry = dict(tables[name])
    base = _inherited(tables, entry.pop("like")) if "like" in entry else {}
    return {**base, **entry}


def _data() -> dict[str, Any]:
    return tomllib.loads((resources.files("workshop.predict") / "data" / "rates.toml").read_text("utf-8"))


def own_tables() -> dict[str, Any]:
    """The devices of the file that WORKSHOP_RATES names, as `workshop calibrate` writes it; none where unset.

    Raises ValueError where it is not there, or no such file.
    """
    return own_section("device")


def calibrated() -> frozenset[str]:
    """Names of the devices that were fitted to runs of your own."""
    return frozenset(own_tables())


def with_calibrated(tables: dict[str, Any]) -> dict[str, Any]:
    """The devices of `rates.toml`, and over them your own (`own_tables`)."""
    own = own_tables()
    if not own:
        return tables
    merged = dict(tables)
    for name, entry in own.items():
        base = entry.get("like", name)
        if base not in tables:
            raise ValueError(
                f"WORKSHOP_RATES: device {name!r} is like {base!r}{nearest(base, tables)} "
                f"(known: {', '.join(tables)})"
            )
        merged[name] = {**_inherited(tables, base), **{k: v for k, v in entry.items() if k != "like"}}
    return merged


def device_tables() -> dict[str, Any]:
    """What the file says of each device, by name: its own constants, and whose it takes (`like`)."""
    tables: dict[str, Any] = _data()["device"]
    return tables


@cache
def all_rates() -> dict[str, Rates]:
    """Every set of constants by device name."""
    known = {f.name for f in fields(Rates)}
    tables = with_calibrated(device_tables())
    rates: dict[str, Rates] = {}
    for name in tables:
        values = _inherited(tables, name)
        if unknown := set(values) - known:
            raise ValueError(f"rates.toml, device {name!r}: unknown constants {sorted(unknown)}")
        rates[name] = Rates(name=name, **values)
    return rates


def rates_of(device: str) -> Rates:
    """The constants for a device by its name in the catalogue; ValueError with the nearest where there are
    none.
    """
    names = all_rates()
    folded = {name.lower(): name for name in names}
    if device.lower() not in folded:
        raise ValueError(
            f"no time constants are known for {device!r}{nearest(device, names)} (known: {', '.join(names)})"
        )
    return names[folded[device.lower()]]


def rates_for(device: DeviceSpec) -> Rates:
    """The constants of a device; of one that was calibrated here (its matmul rate is measured), those of
    "measured".
    """
    known = {name.lower() for name in all_rates()}
    if device.name.lower() not in known and device.reachable_flops and device.memory_bandwidth:
        return replace(rates_of("measured"), name=device.name)
    return rates_of(device.name)
