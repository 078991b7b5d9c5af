"""Tables of what was measured and predicted, written from the data and from what the package says of it."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workshop.facts.published import FOLDER
from workshop.published import serving
from workshop.published.report import validate

MOST_VALUES = 6
"""Longer lists of numbers are shown by their count and range."""
HEAD_KEYS = ("date", "command", "commit", "device", "machine", "versions", "python", "what", "unit", "note")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def validate_page() -> str:
    """What ``workshop validate`` says: one row for each published table and quantity."""
    whole = [record for record in validate(FOLDER) if record["group"] == "all"]
    rows = [
        (r["table"], r["quantity"].replace("_", " "), r["rows"],
         *(f"{r[c]:.1%}" for c in ("mean_error", "median_error", "p90_error", "worst_error")),
         f"{r['mean_signed_error']:+.1%}", r["skipped"])
        for r in whole if r["rows"]
    ]  # fmt: skip
    reasons = sorted({(r["table"], why, count) for r in whole for why, count in r.get("reasons", {}).items()})
    return "\n".join(
        [
            "# Published measurements, predicted again\n",
            "What `workshop validate` prints: every table in `data/published/`, each row predicted from its",
            "configuration. Errors are relative to what was measured. The groups within a table, and other",
            "ways to cut it, are what the command prints here as on your machine.\n",
            table(
                ("table", "quantity", "rows", "mean", "median", "p90", "worst", "signed", "not predicted"),
                rows,
            ),
            "\n## Rows that are not predicted, and why\n",
            table(("table", "rows", "why"), [(name, count, why) for name, why, count in reasons]),
        ]
    )


def serving_page() -> str:
    """What ``workshop validate --serving`` says."""
    summaries, left = _serving()
    rows = [
        (r["table"], r["quantity"].replace("_", " "), r["rows"], f"{r['mean_error']:.1%}",
         f"{r['median_signed_error']:+.1%}", f"{r['left_out_mean_error']:.1%}", f"{r['worst_error']:+.0%}",
         f"{r['inside_interval']:.0%}")
        for r in summaries
    ]  # fmt: skip
    reasons = Counter((f"serving_{source}", why) for source, _, why in left)
    head = ("table", "quantity", "rows", "mean error", "median, signed", "mean, left out", "worst", "inside")
    return "\n".join(
        [
            "# Published servers, predicted again\n",
            "What `workshop validate --serving` prints. *Left out*: the source was left out of the fit.",
            "*Inside*: the share of rows between p10 and p90.\n",
            table(head, rows),
            "\n## Rows that are not predicted, and why\n",
            table(
                ("table", "rows", "why"),
                [(name, count, why) for (name, why), count in sorted(reasons.items())],
            ),
        ]
    )


def _serving() -> tuple[list[dict[str, Any]], list[tuple[str, int, str]]]:
    rows, left = serving.read_rows(FOLDER)
    return serving.summary(rows, left), left


def faults_page(file: Path) -> str:
    """What `make faults` wrote: how each fault ends on each engine."""
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        (one["fault"], one["engine"], len(one["seconds"]), f"{statistics.median(one['seconds']):.2f}",
         f"{max(one['seconds']):.2f}", max(one["left"], default=0), one["goes_on"], one["said"])
        for one in record["faults"] if one["seconds"]
    ]  # fmt: skip
    runs = sum(part["runs"] for part in record["parts"])
    return "\n".join(
        [
            "# The failure lab\n",
            f"What `make faults` wrote: {len(record['faults'])} pairs of fault and engine, {runs:,} runs.",
            "*Median* and *worst* are seconds until the cell was back; *left* is the most processes or files",
            "that one run left behind.\n",
            table(
                ("fault", "engine", "runs", "median, s", "worst, s", "left", "goes on", "what was said"), rows
            ),
            _head(record),
        ]
    )


def benchmark_page(file: Path) -> str:
    """The page of one file of measurements, whatever its shape."""
    record = json.loads(file.read_text(encoding="utf-8"))
    name = file.stem.replace("_", " ")
    parts = [f"# {name[0].upper()}{name[1:]}\n", f"From `data/measurements/{file.name}`.\n"]
    rest = {key: value for key, value in record.items() if key not in HEAD_KEYS}
    plain = {key: value for key, value in rest.items() if not _is_table(value)}
    if plain:
        parts.append(
            table(("what", "value"), [(_name(key), shown(value)) for key, value in flat(plain).items()])
        )
    for key, value in rest.items():
        if _is_table(value):
            parts.append(f"## {_name(key)}\n\n{table_of(value)}")
    return "\n".join([*parts, _head(record)])


def _head(record: dict[str, Any]) -> str:
    """Where and how the numbers came to be."""
    entries = flat({key: record[key] for key in HEAD_KEYS if key in record})
    for number, part in enumerate(record.get("parts", ())):
        entries |= flat({f"part {number + 1}": part})
    return "\n## Where and how\n\n" + table(
        ("what", "value"), [(_name(key), shown(value)) for key, value in entries.items()]
    )


def _is_table(value: Any) -> bool:
    """Whether a value is rows: records by name, or a list of them."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inside) > 1 and all(isinstance(one, dict) for one in inside)


def table_of(value: Any) -> str:
    """Rows of records that need not all have the same fields."""
    named = isinstance(value, dict)
    rows = [flat(one) for one in (value.values() if named else value)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = [*([""] if named else []), *map(_name, columns)]
    names = list(value) if named else []
    body = [
        [*([_name(names[number])] if named else []), *(shown(row.get(key, "")) for key in columns)]
        for number, row in enumerate(rows)
    ]
    return table(head, body)


def flat(value: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested records as one, the names joined."""
    entries: dict[str, Any] = {}
    for key, inside in value.items():
        name = f"{before} {key}".strip()
        entries |= flat(inside, name) if isinstance(inside, dict) else {name: inside}
    return entries


def _name(key: str) -> str:
    return str(key).replace("_", " ")


def shown(value: Any) -> str:
    """A value as a cell of a table: four digits, lists by their range when they are long."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, list):
        return _list(value)
    return str(value)


def _list(values: list[Any]) -> str:
    numbers = [one for one in values if isinstance(one, int | float)]
    if len(values) > MOST_VALUES and len(numbers) == len(values):
        return f"{len(values)} values, {shown(min(numbers))} to {shown(max(numbers))}"
    if len(values) > MOST_VALUES:
        return f"{len(values)} entries"
    return "; ".join(shown(one) for one in values)
