"""What a rank sends in a step, by collective and axis: a table, and bars by axis, one for each case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes
from workshop.show.style import MEASURED, PREDICTED, Picture, new_figure

_Key = tuple[str, str, int]
_Row = tuple[int, int, int]


def traffic_table(cases: Any) -> Table:
    """A table of collectives: calls, bytes of the whole tensors, and bytes one rank puts on the wire.

    ``cases``: what `predict_traffic`, `rehearse` or `measure` bring back, a `Measurement`, or a list of their
    rows; or a mapping of labels to those, to compare them line by line. ValueError for something
    without traffic.
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


def wire_bytes_by_axis(source: Any) -> dict[str, int]:
    """Bytes a rank sends along each axis, all collectives together; ``source`` as in `traffic_table`.

    Raises ValueError for something without traffic.
    """
    sums: dict[str, int] = {}
    for (_, axis, _), (_, _, wire) in _rows(source).items():
        sums[axis] = sums.get(axis, 0) + wire
    return sums


def traffic_by_axis(cases: Mapping[str, Any], title: str = "what a rank sends in a step") -> Picture:
    """A bar for each axis and case, on a scale where each line is ten times the one before.

    ``cases``: labels to what `traffic_table` takes, or to bytes by axis. At most four; ValueError for none.
    """
    if not 1 <= len(cases) <= 4:
        raise ValueError(f"{len(cases)} cases: give one to four, for example predicted and measured")
    found = {
        name: dict(source) if isinstance(source, Mapping) else wire_bytes_by_axis(source)
        for name, source in cases.items()
    }
    axes = sorted({axis for sums in found.values() for axis in sums}, key=lambda axis: -_most(found, axis))
    figure, picture = new_figure(6.4, 0.9 + 0.26 * len(axes) * (len(found) + 0.6))
    high, least = 0.8 / len(found), min(size for sums in found.values() for size in sums.values() if size)
    for place, (name, sums) in enumerate(found.items()):
        colour = (PREDICTED, MEASURED, "#4f9d69", "#8e6bbf")[place]
        at = [number - 0.4 + high * (place + 0.5) for number in range(len(axes))]
        sizes = [sums.get(axis, 0) for axis in axes]
        picture.barh(at, [max(size, least / 3) for size in sizes], high * 0.92, color=colour, label=name)
        for y, size in zip(at, sizes, strict=True):
            picture.text(max(size, least / 3) * 1.08, y, _bytes(size), va="center", fontsize=8)
    picture.set_xscale("log")
    picture.set_xlim(least / 3, 12 * max(_most(found, axis) for axis in axes))
    picture.set_yticks(range(len(axes)), axes)
    picture.invert_yaxis()
    picture.set_xlabel("bytes on the wire")
    picture.set_title(title, fontsize=9, loc="left")
    short = sum(map(len, found)) < 40  # a wide legend would lie over the labels of short bars
    picture.legend(fontsize=8, frameon=False, loc="lower right", ncols=len(found) if short else 1)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{axis} {_bytes(sums.get(axis, 0))}" for axis in axes)
        for name, sums in found.items()
    )
    return Picture(figure, f"{title}; {words}")


def _most(found: Mapping[str, Mapping[str, int]], axis: str) -> int:
    return max(sums.get(axis, 0) for sums in found.values())


def _rows(source: Any) -> dict[_Key, _Row]:
    rows = getattr(source, "traffic", source)
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise ValueError(
            f"a {type(source).__name__} has no traffic: give what measure or rehearse bring back"
        )
    found: dict[_Key, _Row] = {}
    for row in rows:
        found[row.name, row.axis, row.group_size] = row.count, row.payload_bytes, row.wire_bytes
    return found


def _cells(row: _Row | None) -> list[str]:
    if row is None:
        return ["0", "0 B", "0 B"]
    count, payload, wire = row
    return [f"{count:,}", _bytes(payload), _bytes(wire)]


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
