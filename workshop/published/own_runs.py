"""A centre's own runs, or anybody's, in canonical columns: prediction beside measurement, row by row.

    workshop validate --runs mine.csv
    workshop validate --runs mine.csv --assumptions

and what the published sources leave open: `workshop validate --assumptions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workshop.facts.units import format_bytes
from workshop.published.canonical_reader import read_runs
from workshop.published.predicted import interval_of
from workshop.published.record import MeasuredRun, Skipped
from workshop.published.report import VERDICT, Line, memory_lines, summary, time_lines

UNITS = {
    "seconds_per_step": "s",
    "tokens_per_second_per_device": "tokens/s",
    "model_tflops_per_device": "TFLOP/s",
    "hardware_tflops_per_device": "TFLOP/s",
    "mfu": "of the peak",
}


def compare(path: Path, quantity: str = "both") -> dict[str, Any]:
    """Every row of a file beside its prediction, and what could not be predicted.

    Args:
        path: a CSV in the columns of `workshop.published.columns`. quantity: "time", "memory" or "both".

    Returns:
        "rows": one for each measured quantity, with line, name, quantity, measured, predicted, signed_error,
        interval (p10 and p90) and inside (whether the measurement lies there).
        "skipped": line and reason. "summary": `report.summary` by quantity.

    Raises:
        ValueError: the file is no table in these columns.
        FileNotFoundError: there is no such file.
    """
    records, skipped = read_runs(path)
    named = {record.row: record for record in records}
    lines: list[Line] = []
    for kind, lines_of in (("time", time_lines), ("memory", memory_lines)):
        if quantity in (kind, "both"):
            some, left = lines_of(records)
            lines += some
            skipped = [*skipped, *left]
    bare = [record.row for record in records if not record.quantities]
    skipped += [
        Skipped(path.stem, row, "nothing was measured: fill a column such as seconds_per_step")
        for row in bare
    ]
    lines.sort(key=lambda line: line.row)
    kinds = dict.fromkeys(line.quantity for line in lines)
    return {
        "rows": [_shown(line, named[line.row]) for line in lines],
        "skipped": [
            {"line": left.row, "reason": left.reason} for left in sorted(skipped, key=lambda x: x.row)
        ],
        "summary": {kind: summary([line for line in lines if line.quantity == kind]) for kind in kinds},
    }


def _shown(line: Line, record: MeasuredRun) -> dict[str, Any]:
    interval = interval_of(record, line.quantity.removesuffix("_bytes"), line.predicted)
    values: dict[str, Any] = {
        "measured": line.measured,
        "predicted": line.predicted,
        "signed_error": line.signed_error,
        "interval": list(interval),
        "inside": interval.holds(line.measured),
    }
    if line.quantity == VERDICT:  # the group says what happened, the prediction whether we agree
        ran = line.group == "ran"
        values = {"measured": ran, "predicted": ran == bool(line.predicted), "signed_error": None}
        values |= {"interval": None, "inside": None}
    return {"line": line.row, "name": record.name, "quantity": line.quantity, **values}


def amount(quantity: str, value: float | bool) -> str:
    """A value as a reader wants it."""
    if isinstance(value, bool):
        return "fits" if value else "does not fit"
    if quantity.startswith("memory"):
        return format_bytes(int(value))
    return f"{value:.4g} {UNITS[quantity]}"


def text(compared: dict[str, Any]) -> str:
    """What `compare` found, as a table to read."""
    out = [f"{'line':>5} {'name':<28} {'quantity':<28} {'measured':>17} {'predicted':>17} {'error':>7}"]
    for row in compared["rows"]:
        measured, predicted = (amount(row["quantity"], row[key]) for key in ("measured", "predicted"))
        error = "" if row["signed_error"] is None else f"{row['signed_error']:>+7.1%}"
        wrong = "  wrong" if row["quantity"] == VERDICT and measured != predicted else ""
        if row["inside"] is False:
            wrong = "  outside its interval"
        out.append(
            f"{row['line']:>5} {row['name'][:28]:<28} {row['quantity'][:28]:<28} {measured:>17} "
            f"{predicted:>17} {error:>7}{wrong}".rstrip()
        )
    for kind, numbers in compared["summary"].items():
        if kind == VERDICT:
            out.append(f"{kind}: {numbers['rows']} rows, {numbers['mean_error']:.1%} wrong")
        else:
            out.append(
                f"{kind}: {numbers['rows']} rows, mean error {numbers['mean_error']:.1%}, "
                f"signed {numbers['mean_signed_error']:+.1%}, worst {numbers['worst_error']:.1%}"
            )
    out += [f"line {left['line']} not predicted: {left['reason']}" for left in compared["skipped"]]
    return "\n".join(out)


def assumptions(records: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """What each table leaves open: column, what was assumed and why, and of how many rows."""
    counted = Counter((record.table, column, words) for record in records for column, words in record.assumed)
    return [
        {"table": table, "column": column, "assumed": words, "rows": rows}
        for (table, column, words), rows in sorted(counted.items())
    ]


def assumptions_text(entries: Iterable[dict[str, Any]]) -> str:
    """The assumptions as lines to read, table by table."""
    out: list[str] = []
    table = None
    for entry in entries:
        if entry["table"] != table:
            table = entry["table"]
            out.append(f"\n{table}")
        out.append(f"  assumed_{entry['column']:<26} {entry['rows']:>5} rows  {entry['assumed']}")
    return "\n".join(out).lstrip("\n") or "nothing was assumed"
