"""A file's text as a table of settings, and whose file it is; told by the content, not by the name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
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

    ``kind``: one of `KINDS`; ``table``: the settings by name; ``folder``: where the file's own paths start;
    ``twice``: paths of keys that a YAML says more than once, with the last value, which counts.
    """

    kind: str
    table: dict[str, Any]
    folder: Path
    twice: tuple[tuple[str, Any], ...] = ()


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
    if isinstance(source, Mapping):
        return Content(kind_of(source), dict(source), folder)
    table, twice = _parsed(source, name)
    return Content(kind_of(table), table, folder, twice)


def _parsed(text: str, name: str) -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]]:
    """JSON where it begins as JSON does, TOML where it can be, else YAML; and where it is none, arguments.

    With it, what is said twice.
    """
    import yaml

    twice: tuple[tuple[str, Any], ...] = ()
    if name.endswith(".toml"):  # then nothing else was meant
        try:
            return tomllib.loads(text), ()
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{name} is not TOML: {error}") from None
    try:
        if text.lstrip().startswith("{"):
            table = json.loads(text, object_pairs_hook=_once)
        elif (table := _toml(text) or None) is None:
            table = yaml.safe_load(text)
            twice = tuple(_said_twice(yaml.compose(text, Loader=yaml.SafeLoader), table))
    except (json.JSONDecodeError, yaml.YAMLError, RecursionError) as error:
        if _has_arguments(text):
            return megatron_values(text), ()
        raise ValueError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if isinstance(table, dict) and all(isinstance(key, str) for key in table):
        return table, twice
    if _has_arguments(text):
        return megatron_values(text), ()
    raise ValueError(f"{name} holds no settings: a configuration is a table of names and values")


_ARGUMENT = re.compile(r"(?m)(^|[\s(\"'])--[a-z][a-z-]+")
"""What arguments of a command look like."""


def _has_arguments(text: str) -> bool:
    """Outside of comments."""
    return any(_ARGUMENT.search(line) for line in text.splitlines() if not line.lstrip().startswith("#"))


def _said_twice(document: Any, table: Any) -> Iterator[tuple[str, Any]]:
    """Keys that stand more than once in one of a YAML's tables, with the value that they have in the end."""
    looked_at: set[int] = set()  # a node that anchors repeat is looked at once
    left = [(document, table, "")]
    while left:
        node, values, path = left.pop()
        if node is None or node.id != "mapping" or id(node) in looked_at:
            continue
        looked_at.add(id(node))
        keys = [key.value for key, _ in node.value if key.id == "scalar" and key.tag != _MERGED]
        for key in dict.fromkeys(keys):
            if keys.count(key) > 1 and key in values:
                yield f"{path}{key}", values[key]
        inside = {key.value: value for key, value in node.value if key.id == "scalar"}
        left += [(value, values[key], f"{path}{key}.") for key, value in inside.items() if key in values]


_MERGED = "tag:yaml.org,2002:merge"
"""The key ``<<``, which may stand there more than once."""


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
