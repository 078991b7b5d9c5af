"""A model as people name it on a command line."""

from __future__ import annotations

from pathlib import Path

from workshop.facts import catalogue
from workshop.facts.model import ModelSpec


def named_model(name: str) -> ModelSpec:
    """The model of a TOML file, where there is one of that name, else the catalogue's; ValueError else."""
    if name.endswith(".toml") and Path(name).is_file():
        return catalogue.read_model(name)
    return catalogue.model(name)
