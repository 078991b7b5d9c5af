"""What `make gpu` measured on a GPU, beside what was predicted: lines of its records as a table.

    show.measured_on_gpu("throughput", "1.3b")
    show.measured_on_gpu("throughput", "1.3b", device="NVIDIA A100-SXM4-80GB")

The caption says device, day and torch; a note below says where other work ran beside it and which other cards
have a record. What `make gpu` measures on another card than the workshop's own lies in a folder of that card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_choice
from workshop.facts.tabular import Table
from workshop.facts.tree import ROOT

RECORDS = ROOT / "data" / "measurements" / "gpu"
STAGES = ("device", "throughput", "fp8", "memory", "around", "kernels", "quantized", "serving")
_UNITS = {"B": (1e9, "GB"), "B/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}


def cards(stage: str, folder: Path = RECORDS) -> dict[str, Path]:
    """The record of a stage by the name of the device: the workshop's own first, then every other card's."""
    paths = [folder / f"{stage}.json", *sorted(folder.glob(f"*/{stage}.json"))]
    return {json.loads(path.read_text("utf-8"))["device"]: path for path in paths if path.exists()}


def measured_on_gpu(stage: str, *words: str, device: str | None = None, folder: Path = RECORDS) -> Table:
    """Lines of a stage's record: measured, predicted, and their ratio.

    Some lines have a goal in place of a prediction, such as an MFU: their column is called "wanted". Where a
    table has lines of both kinds, "(wanted)" stands behind each goal.

    Args:
        stage: which record, one of `STAGES`.
        words: only lines that have one of these in their name; none: all.
        device: the card, where several have a record; the workshop's own by default.
        folder: where the records lie.

    Returns:
        A table. Without a record it has no rows, and its caption says how to make one.

    Raises:
        ValueError: An unknown stage, a card without a record, or words that no line has.
    """
    check_choice("stage", stage, STAGES)
    there = cards(stage, folder)
    if not there:
        head = ("", "measured", "predicted", "ratio")
        return Table(head, [], "On a GPU this has not been measured yet: `make gpu` does.")
    check_choice("device", device := device or next(iter(there)), there)
    path = there[device]
    record = json.loads(path.read_text("utf-8"))
    every = {f"{part}: {line['what']}": (part, line) for part, line in _measured(record)}
    lines = {name: pair for name, pair in every.items() if not words or any(word in name for word in words)}
    if words and not lines:
        raise ValueError(f"no line of {path.name} has {' or '.join(words)!r} in its name: {'; '.join(every)}")
    parts = {part for part, _ in lines.values()}
    kinds = {bool(line.get("wanted")) for _, line in lines.values() if _expected(line)}
    head = ("", "measured", "wanted" if kinds == {True} else "predicted", "ratio")
    rows = [
        (line["what"] if len(parts) == 1 else name, *_numbers(line, mark=len(kinds) == 2))
        for name, (part, line) in lines.items()
    ]
    keep = slice(None) if any(row[3] for row in rows) else slice(2)
    caption, note = _about(record, parts)
    if others := " or ".join(f'device="{name}"' for name in there if name != device):
        note = f"{note}{'; ' if note else ''}also measured: {others}"
    return Table(head[keep], [row[keep] for row in rows], caption, note)


def _about(record: dict[str, Any], parts: set[str]) -> tuple[str, str]:
    """Device, days and versions of these parts, with the part's name where it is one; and their notes."""
    chosen = [record["parts"][part] for part in sorted(parts)] or [{}]
    head = {
        "date": record["date"],
        "torch": record["machine"]["versions"]["torch"],
        "note": record.get("note"),
    }
    days, versions, notes = (
        sorted({one.get(name, head[name]) or "" for one in chosen}) for name in ("date", "torch", "note")
    )
    where = f"{record['device']}, {' and '.join(days)}, torch {' and '.join(versions)}"
    return (f"{where}: {next(iter(parts))}" if len(parts) == 1 else where), "; ".join(filter(None, notes))


def _measured(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line that has a number, with the name of its part. What was rehearsed is no measurement."""
    for part, about in record["parts"].items():
        for line in about["rows"]:
            if line["measured"] is not None and not line["unit"].endswith("rehearsed"):
                yield part, line


def _numbers(line: dict[str, Any], mark: bool) -> tuple[str, str, str]:
    """What was measured, what was predicted or wanted, and their ratio. mark: say which of them are goals."""
    measured, expected, unit = line["measured"], _expected(line), line["unit"]
    if not expected:
        return number(measured, unit), "", ""
    goal = " (wanted)" if mark and line.get("wanted") else ""
    return number(measured, unit), number(expected, unit) + goal, f"{measured / expected:.2f}"


def _expected(line: dict[str, Any]) -> float | None:
    """The goal that was set before the run, where a line has one; else what was predicted."""
    return line.get("wanted") or line["predicted"]


def number(value: float | None, unit: str) -> str:
    """A number as people write it, with its unit."""
    if value is None:
        return "-"
    if unit == "s":
        for limit, factor, word in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
            if value < limit:
                return f"{value * factor:.3g} {word}"
        return f"{value:.3g} s"
    scale, word = _UNITS.get(unit.split(" ")[0], (1.0, unit))
    shown = value / scale
    return f"{shown:,.0f} {word}".strip() if shown >= 100 else f"{shown:.3g} {word}".strip()
