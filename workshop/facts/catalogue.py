"""The known models, devices, links and clusters, each by its name in ``data/*.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from workshop.facts import this_machine
from workshop.facts.checks import check_keys
from workshop.facts.device import ClusterSpec, DeviceSpec, LinkSpec, split_count
from workshop.facts.model import ModelSpec
from workshop.facts.tables import from_table, lookup, table
from workshop.facts.vision import CoAtNetSpec, ViTSpec


@cache
def models() -> dict[str, ModelSpec]:
    """All known models by name."""
    return {
        name: from_table(ModelSpec, {"name": name, **entry}, f"model {name!r}")
        for name, entry in table("models").items()
    }


@cache
def devices() -> dict[str, DeviceSpec]:
    """All known devices by name."""
    return {
        name: from_table(DeviceSpec, {"name": name, **entry}, f"device {name!r}")
        for name, entry in table("devices").items()
    }


@cache
def links() -> dict[str, LinkSpec]:
    """All known links by name."""
    return {
        name: from_table(LinkSpec, {"name": name, **entry}, f"link {name!r}")
        for name, entry in table("links").items()
    }


def model(name: str) -> ModelSpec:
    """A known model, e.g. ``model("llama-3.1-8b")``."""
    return lookup(name, models(), "model")


def device(name: str) -> DeviceSpec:
    """A known device, e.g. ``device("H100")``."""
    return lookup(name, devices(), "device")


def link(name: str) -> LinkSpec:
    """A known link, e.g. ``link("nvlink-4")``."""
    return lookup(name, links(), "link")


def cluster(text: str) -> ClusterSpec:
    """A cluster by its name, by ``"64xH100"`` (nodes as the vendor builds them), or one device by its name.

    ``"this-machine"`` is the one at hand, with as many ranks as the layout has.
    ``"16xdgx-a100"`` counts nodes when the name is a cluster of the catalogue, devices when it is a device.
    """
    number, name = split_count(text)
    if name.lower() == this_machine.NAME:
        return this_machine.this_machine(number)
    known = table("clusters")
    kind = lookup(name, {**devices(), **known}, "cluster or device")
    if isinstance(kind, DeviceSpec):
        node = known.get("node-of-" + kind.name.lower(), known["plain-node"])
        entry = {**node, "device": kind.name, "num_devices": 1}
    else:
        entry = {"num_devices": kind.get("devices_per_node", 8), **kind}
    check_keys(
        f"cluster {name!r}", entry, ("device", "num_devices", "devices_per_node", "intra", "inter", "source")
    )
    per_node = entry.get("devices_per_node", 8)
    return ClusterSpec(
        text,
        device(entry["device"]),
        number * entry["num_devices"],
        per_node,
        link(entry["intra"]) if "intra" in entry else None,
        link(entry["inter"]) if "inter" in entry else None,
        entry.get("source", ""),
    )


def read_model(path: str | Path) -> ModelSpec:
    """A model from a TOML file of its own; unknown keys are refused."""
    entry = tomllib.loads(Path(path).read_text("utf-8"))
    return from_table(ModelSpec, {"name": Path(path).stem, **entry}, f"model file {path}")


def vision_model(name: str) -> ViTSpec | CoAtNetSpec:
    """A known vision model, e.g. ``vision_model("vit-b-16")`` or ``vision_model("coatnet-0")``."""
    kinds = {"vit": ViTSpec, "coatnet": CoAtNetSpec}
    known = {
        key: (kinds[family], key, entry)
        for family, entries in table("vision").items()
        for key, entry in entries.items()
    }
    kind, key, entry = lookup(name, known, "vision model")
    fields = {field: tuple(value) if isinstance(value, list) else value for field, value in entry.items()}
    return from_table(kind, {"name": key, **fields}, f"vision model {key!r}")
