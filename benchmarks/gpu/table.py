"""The GPU day in one table: every part of every record, what was measured beside what was predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workshop.show.gpu_records import number

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


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Every stage's record that is in the folder, in the order of stages."""
    files = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text("utf-8")) for name, path in files.items() if path.exists()}


def table(folder: Path) -> str:
    """One line for each measurement: beside it what was predicted, or wanted; and why a part did not run."""
    lines = []
    for name, record in records(folder).items():
        about = f"{record['device']}, {record['date']}, size {record['size']}"
        lines += ["", f"{NAMES[name]}: {record['status']} ({about})"]
        if record.get("note"):
            lines.append(f"  {record['note']}")
        for part, entry in record["parts"].items():
            if entry["status"] != "done":
                lines.append(f"  {part}: {entry['status']}: {entry.get('why', '')[:150]}")
            for row in entry["rows"]:
                lines.append(_line(part, row))
    return "\n".join(lines).strip() or f"no record in {folder}"


def _line(part: str, row: dict[str, Any]) -> str:
    measured, goal = row["measured"], row.get("wanted")
    expected = goal or row["predicted"]
    ratio = f"{measured / expected:6.2f}" if measured and expected else ""
    what = f"{part}: {row['what']}"
    beside = f"{number(measured, row['unit']):>16} {number(expected, row['unit']):>16} {ratio:>6}"
    return f"  {what[:64]:<64} {beside}{' wanted' if goal else ''}".rstrip()
