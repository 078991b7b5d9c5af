"""Reading a row's cells: a number, a flag, a choice; and refusing, in a sentence, what cannot be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from workshop.facts.checks import nearest
from workshop.facts.model import ModelSpec
from workshop.predict.case import NotPredictable
from workshop.published.record import Measure, Row

T = TypeVar("T")
GB, GIB = 10**9, 2**30
_EMPTY = ("", "n/a", "-")


def text(row: Row, name: str) -> str:
    """A cell without blanks around it; empty where the column is missing, or the cell says "n/a"."""
    cell = (row.get(name) or "").strip()
    return "" if cell.lower() in _EMPTY else cell


def number(row: Row, name: str, default: float | None = None) -> float:
    """A number from a cell; of two configurations "a (b)" the first. Without a default an empty cell is
    refused.
    """
    cell = text(row, name)
    if not cell:
        if default is None:
            raise NotPredictable(f"{name} is not given")
        return default
    try:
        value = float(cell.split("(")[0].strip())
    except ValueError:
        raise NotPredictable(f"{name} is {cell!r}, not a number") from None
    if not math.isfinite(value):
        raise NotPredictable(f"{name} is {cell!r}, not a finite number")
    return value


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A whole number from a cell."""
    value = number(row, name, default)
    if value != int(value):
        raise NotPredictable(f"{name} is {value}, not a whole number")
    return int(value)


def flag(row: Row, name: str) -> bool:
    """Whether a yes-or-no cell says yes; an empty one says no."""
    return choice(
        row, name, {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}
    )


def choice(row: Row, name: str, known: Mapping[str, T]) -> T:
    """What a cell stands for; upper and lower case are the same. An unknown one lists the known."""
    cell = text(row, name).lower()
    folded = {key.lower(): value for key, value in known.items()}
    if cell not in folded:
        listed = ", ".join(key for key in known if key)
        raise NotPredictable(f"{name} is {text(row, name)!r}{nearest(cell, folded)} (known: {listed})")
    return folded[cell]


def data_parallel(devices: int, tensor: int, pipeline: int, context: int = 1) -> int:
    """Data-parallel ranks, when tensor, pipeline and context parallelism take theirs."""
    cut = tensor * pipeline * context
    if cut < 1 or devices < cut or devices % cut:
        raise NotPredictable(
            f"{devices} devices do not divide by tensor {tensor} x pipeline {pipeline} x context {context}"
        )
    return devices // cut


def check_devices(devices: int, **degrees: int) -> None:
    """Refuse a row whose degrees do not multiply to its devices."""
    product = 1
    for degree in degrees.values():
        product *= degree
    if product != devices:
        degrees_in_words = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise NotPredictable(f"{degrees_in_words} is {product}, not the row's {devices} devices")


def accumulation(total: int, micro: int, data: int) -> int:
    """Micro-batches of a rank's step, from the global batch in sequences."""
    if micro < 1 or total < 1 or total % (micro * data):
        raise NotPredictable(
            f"global batch {total} does not divide by micro-batch {micro} x data-parallel {data}"
        )
    return total // (micro * data)


def virtual_stages(layers: int, pipeline: int, each: int) -> int:
    """Chunks of a stage from the layers of a chunk; 1 where `each` is 0."""
    if not each:
        return 1
    if layers % (pipeline * each):
        raise NotPredictable(f"{layers} layers do not divide into {pipeline} stages of chunks of {each}")
    return layers // (pipeline * each)


def gpt(layers: int, hidden: int, heads: int, seq_len: int, vocab: int = 51200) -> ModelSpec:
    """A GPT-2-like model: learned positions, LayerNorm, 4h MLP, tied embeddings."""
    if heads < 1 or hidden % heads:
        raise NotPredictable(f"hidden {hidden} does not divide by {heads} heads")
    return ModelSpec(
        f"gpt-{layers}x{hidden}",
        layers,
        hidden,
        heads,
        vocab,
        gated_mlp=False,
        positions="learned",
        max_positions=seq_len,
        norm="layernorm",
        tied_embeddings=True,
        dropout=True,
    )


# ------------------------------------------------------------------------------------------ measured cells


def plain(quantity: str, scale: float = 1.0) -> Measure:
    """A number times `scale` is the quantity."""

    def measure(cell: str) -> dict[str, float]:
        return {quantity: number({"cell": cell}, "cell") * scale}

    return measure


def memory(quantity: str, unit: str = "") -> Measure:
    """Bytes of a cell such as "18.9 GiB" or "4.82 GB", or a number in `unit`; "OOM" is out of memory."""

    def measure(cell: str) -> dict[str, float]:
        if cell.upper() == "OOM":
            return {"out_of_memory": 1.0}
        return {quantity: amount(f"{cell} {unit}")}

    return measure


def amount(cell: str) -> float:
    """Bytes of a cell such as "18.9 GiB"."""
    for unit, size in (("GiB", GIB), ("GB", GB), ("MiB", 2**20), ("MB", 10**6)):
        head, is_there, _ = cell.partition(unit)
        if is_there:
            try:
                return float(head.strip()) * size
            except ValueError:
                break
    raise NotPredictable(f"memory is {cell.strip()!r}, not an amount such as '18.9 GiB'")


def unused(cell: str) -> dict[str, float]:  # noqa: ARG001
    """A column that was measured, or follows from what was, and adds nothing: kept from the reader all the
    same.
    """
    return {}
