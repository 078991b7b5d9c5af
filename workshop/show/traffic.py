"""What a rank sends in a step, by collective and axis, one column of bytes for each case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes

_Key = tuple[str, str, int]
_Row = tuple[int, int, int | None]


def traffic_table(cases: Any) -> Table:
    """A table of collectives: calls, bytes of the whole tensors, and bytes one rank puts on the wire.

    ``cases``: what `predict_traffic`, `rehearse` or `measure` bring back, a `Measurement`, or a list of their
    rows; or a mapping of labels to those, to compare them line by line. A `Measurement` knows no wire bytes;
    the cell says "-". ValueError for something without traffic.
    """
    labelled = cases if isinstance(cases, Mapping) else {"": cases}
    found = {name: _rows(source) for name, source in labelled.items()}
    keys = sorted({key for rows in found.values() for key in rows})
    head = ["collective", "axis", "ranks"]
    for name in found:
        head += [f"{name} {column}".strip() for column in ("calls", "payload", "on the wire")]
    lines = []
    for key in keys:
        line = [key[0], key[1], str(key[2]) if key[2] else "-"]
        for rows in found.values():
            line += _cells(rows.get(key))
        lines.append(line)
    return Table(head, lines, "traffic of one rank in one step", _agreement(found))


def _rows(source: Any) -> dict[_Key, _Row]:
    rows = getattr(source, "traffic", source)
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise ValueError(
            f"a {type(source).__name__} has no traffic: give what measure or rehearse bring back"
        )
    found: dict[_Key, _Row] = {}
    for row in rows:
        name = getattr(row, "name", None) or row.operation
        payload = getattr(row, "payload_bytes", None)
        key = (name, row.axis, getattr(row, "group_size", 0))
        found[key] = (
            row.count,
            row.num_bytes if payload is None else payload,
            getattr(row, "wire_bytes", None),
        )
    return found


def _cells(row: _Row | None) -> list[str]:
    if row is None:
        return ["0", "0 B", "0 B"]
    count, payload, wire = row
    return [f"{count:,}", _bytes(payload), "-" if wire is None else _bytes(wire)]


def _bytes(size: int) -> str:
    return format_bytes(size, decimals=3, binary=False)


def _agreement(found: Mapping[str, Mapping[_Key, _Row]]) -> str:
    """Said only where there is something to compare."""
    if len(found) < 2:
        return ""
    first, *others = found.values()
    differ = {key for rows in others for key in {*first, *rows} if first.get(key) != rows.get(key)}
    names = " and ".join(found)
    return f"{names} differ in {len(differ)} lines" if differ else f"{names} agree to the byte"
