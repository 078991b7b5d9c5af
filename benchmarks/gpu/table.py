"""The GPU day in one table: every part of every record, what was measured beside what was predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = {
    "device": "(a) the device",
    "lessons": "(b) lessons",
    "memory": "(c) memory",
    "throughput": "(d) training",
    "fp8": "(e) FP8",
    "quantized": "(f) fewer bits",
    "serving": "(g) serving",
    "kernels": "(h) kernels",
    "around": "(i) around",
}
_UNITS = {"B": (1e9, "GB"), "B/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Every stage's record that is in the folder, in the order of stages."""
    found = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text("utf-8")) for name, path in found.items() if path.exists()}


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


def table(folder: Path) -> str:
    """One line for each measurement; a part that failed or was left out says why."""
    lines = []
    for name, record in records(folder).items():
        about = f"{record['device']}, {record['date']}, size {record['size']}"
        lines += ["", f"{NAMES[name]}: {record['status']} ({about})"]
        for part, said in record["parts"].items():
            if said["status"] != "done":
                lines.append(f"  {part}: {said['status']}: {said.get('why', '')[:150]}")
            for row in said["rows"]:
                lines.append(_line(part, row))
    return "\n".join(lines).strip() or f"no record in {folder}"


def _line(part: str, row: dict[str, Any]) -> str:
    measured, predicted = row["measured"], row["predicted"]
    ratio = f"{measured / predicted:6.2f}" if measured and predicted else ""
    what = f"{part}: {row['what']}"
    beside = f"{number(measured, row['unit']):>16} {number(predicted, row['unit']):>16} {ratio}"
    return f"  {what[:64]:<64} {beside}".rstrip()
