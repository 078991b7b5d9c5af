"""A file's text as a table of settings, and whose file it is; told by the content, not by the name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.configs.formats.megatron import is_megatron, megatron_values
from workshop.configs.formats.nemo import is_nemo
from workshop.configs.formats.torchtitan import is_torchtitan
from workshop.configs.known_keys import ACCELERATE, DEEPSPEED, DEEPSPEED_REMOVED

KINDS = ("accelerate", "deepspeed", "torchtitan", "megatron", "nemo", "run")


@dataclass(frozen=True)
class Content:
    """Settings of a file.

    ``kind``: one of `KINDS`; ``table``: the settings by name; ``folder``: where the file's own paths start.
    """

    kind: str
    table: dict[str, Any]
    folder: Path


def content(source: Path | str | Mapping[str, Any]) -> Content:
    """A file (a `Path`), its text or its content.

    Raises:
        ValueError: It holds no settings, or nobody's that is known here.
        FileNotFoundError: There is no such file.
    """
    folder, name = Path(), "the text"
    if isinstance(source, Path):
        if not source.is_file():
            raise FileNotFoundError(f"there is no file {source}")
        folder, name = source.parent, source.name
        try:
            source = source.read_text("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name} is no text: it cannot be read as UTF-8") from None
    table = dict(source) if isinstance(source, Mapping) else _parsed(source, name)
    return Content(kind_of(table), table, folder)


def _parsed(text: str, name: str) -> dict[str, Any]:
    """JSON where it begins as JSON does, TOML where it can be, else YAML; and where it is none, arguments."""
    import yaml

    if name.endswith(".toml"):  # then nothing else was meant
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{name} is not TOML: {error}") from None
    try:
        if text.lstrip().startswith("{"):
            table = json.loads(text, object_pairs_hook=_once)
        else:
            table = _toml(text) or yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, RecursionError) as error:
        if _has_arguments(text):
            return megatron_values(text)
        raise ValueError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if isinstance(table, dict) and all(isinstance(key, str) for key in table):
        return table
    if _has_arguments(text):
        return megatron_values(text)
    raise ValueError(f"{name} holds no settings: a configuration is a table of names and values")


_ARGUMENT = re.compile(r"(?m)(^|[\s(\"'])--[a-z][a-z-]+")
"""What arguments of a command look like."""


def _has_arguments(text: str) -> bool:
    """Outside of comments."""
    return any(_ARGUMENT.search(line) for line in text.splitlines() if not line.lstrip().startswith("#"))


def _toml(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Each key once, as DeepSpeed wants it; JSON itself would take the last one without a word."""
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the file says {', '.join(twice)} twice; DeepSpeed stops at that")
    return dict(pairs)


def kind_of(table: Mapping[str, Any]) -> str:
    """Whose settings these are; Accelerate's and DeepSpeed's by who knows most of the keys. ValueError for
    nobody's."""
    for kind, is_theirs in (("megatron", is_megatron), ("nemo", is_nemo), ("torchtitan", is_torchtitan)):
        if is_theirs(table):
            return kind
    if "model" in table and "cluster" in table:
        return "run"
    accelerate = sum(key in ACCELERATE for key in table)
    deepspeed = sum(key in (*DEEPSPEED, *DEEPSPEED_REMOVED) for key in table)
    if not accelerate and not deepspeed:
        keys = ", ".join(list(table)[:20]) or "none"
        raise ValueError(
            f"these are keys of neither an Accelerate YAML nor a DeepSpeed JSON: {keys}. An Accelerate file "
            "has distributed_type, a DeepSpeed file zero_optimization or train_micro_batch_size_per_gpu; "
            "torchtitan's "
            "TOML has [model], [training] and [parallelism], NeMo's YAML trainer and model, and "
            "Megatron-LM's arguments "
            "--num-layers"
        )
    return "accelerate" if accelerate >= deepspeed else "deepspeed"
