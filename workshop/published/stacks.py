"""A training stack by one name: the software that decides time, and the implementation that decides memory.

`workshop.predict` keeps the two halves under names of their own (`rates.toml`, `implementations.toml`). A row
names its stack once, and time and memory are predicted for the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from workshop.facts.checks import nearest
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.tables import table
from workshop.predict.case import NotPredictable
from workshop.predict.time.rates import Software, all_software, software


class Stack(NamedTuple):
    """What decides time, and what decides memory."""

    software: Software
    implementation: Implementation


# name -> (software, implementation). Where the package knows no constants of time for a library, the software
# is that of the nearest relative, as `predict.case.stack_for` takes it.
PAIRS: dict[str, tuple[str, str]] = {
    "megatron-2021": ("megatron-2021", "megatron-local"),
    "megatron-2022": ("megatron-2022", "megatron-local"),
    "megatron-core": ("megatron-core", "megatron"),
    "megatron-local": ("megatron-core", "megatron-local"),
    "megatron-bridge": ("megatron-bridge", "megatron"),
    "nemo": ("nemo", "megatron"),
    "megatron-deepspeed-bloom": ("megatron-deepspeed-bloom", "megatron-deepspeed"),
    "deepspeed-2021": ("deepspeed-2021", "deepspeed"),
    "composer": ("composer", "torch"),
    "internevo": ("internevo", "internevo"),
    "nanotron": ("nanotron", "nanotron"),
    "torchtitan": ("torchtitan", "torchtitan"),
    "torchtitan-compile": ("torchtitan-compile", "torchtitan"),
    "torchtune": ("torchtitan", "torchtune"),
    "litgpt": ("torchtitan", "litgpt"),
    "transformers": ("torchtitan", "transformers"),
    "adapt": ("torchtitan", "adapt"),
    "torch": ("torchtitan", "torch"),
}


def stack(name: str, memory: Mapping[str, Any] | None = None, time: Mapping[str, Any] | None = None) -> Stack:
    """A stack by name, with choices of its implementation (`memory`) and its software (`time`) changed.

    Raises NotPredictable for an unknown name, with the known ones.
    """
    if name not in PAIRS:
        raise NotPredictable(f"stack {name!r} is not known{nearest(name, PAIRS)} (known: {', '.join(PAIRS)})")
    of_time, of_memory = PAIRS[name]
    how = implementation(of_memory, **({"compile": True} if name.endswith("-compile") else {}))
    return Stack(replace(software(of_time), **(time or {})), replace(how, **(memory or {})))


def unpaired() -> list[str]:
    """Software and implementations that no stack here names; a test holds it empty."""
    pairs = list(PAIRS.values())
    lacking = [name for name in all_software() if name not in {first for first, _ in pairs}]
    return lacking + [
        name for name in table("implementations") if name not in {second for _, second in pairs}
    ]
