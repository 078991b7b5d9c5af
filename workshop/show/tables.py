"""Tables: what a rank sends in a step, collective by collective, and the layouts of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_alike, format_bytes

if TYPE_CHECKING:  # a bar picture of traffic needs no planner
    from workshop.predict.plan import Plan, Proposal

_Key = tuple[str, str, int]
_Row = tuple[int, int, int]
_HEAD = (
    "", "tensor", "pipeline", "stages each", "context", "expert", "data", "ZeRO", "micro-batch", "recompute",
    "devices", "step", "in 8 of 10", "MFU", "memory", "most time lost to",
)  # fmt: skip
_AXES = ("stages each", "context", "expert")
"""Columns that are left out where every layout has 1 there: a page is narrow."""


def traffic_table(cases: Any) -> Table:
    """A table of collectives: calls, bytes of the whole tensors, and bytes one rank puts on the wire.

    ``cases``: what `predict_traffic`, `rehearse` or `measure` bring back, a `Measurement`, or a list of their
    rows; or a mapping of labels to those, to compare them line by line. ValueError for something
    without traffic.
    """
    labelled = cases if isinstance(cases, Mapping) else {"": cases}
    by_case = {name: _traffic_rows(source) for name, source in labelled.items()}
    keys = sorted({key for rows in by_case.values() for key in rows})
    head = ["collective", "axis", "ranks"]
    for name in by_case:
        head += [f"{name}: {column}" if name else column for column in ("calls", "payload", "on the wire")]
    lines = []
    for key in keys:
        line = [key[0], key[1], str(key[2]) if key[2] else "-"]
        for rows in by_case.values():
            line += _traffic_cells(rows.get(key))
        lines.append(line)
    return Table(head, lines, "traffic of one rank in one step", _agreement(by_case))


def wire_bytes_by_axis(source: Any) -> dict[str, int]:
    """Bytes a rank sends along each axis, all collectives together; ``source`` as in `traffic_table`.

    Raises ValueError for something without traffic.
    """
    sums: dict[str, int] = {}
    for (_, axis, _), (_, _, wire) in _traffic_rows(source).items():
        sums[axis] = sums.get(axis, 0) + wire
    return sums


def _traffic_rows(source: Any) -> dict[_Key, _Row]:
    traffic = getattr(source, "traffic", source)
    if not isinstance(traffic, Iterable) or isinstance(traffic, str | bytes):
        raise ValueError(
            f"a {type(source).__name__} has no traffic: give what measure or rehearse bring back"
        )
    rows: dict[_Key, _Row] = {}
    for row in traffic:
        rows[row.name, row.axis, row.group_size] = row.count, row.payload_bytes, row.wire_bytes
    return rows


def _traffic_cells(row: _Row | None) -> list[str]:
    if row is None:
        return ["0", "0 B", "0 B"]
    count, payload, wire = row
    return [f"{count:,}", short_bytes(payload), short_bytes(wire)]


def short_bytes(size: int) -> str:
    """Decimal units, three digits behind the point: 1.500 kB."""
    return format_bytes(size, decimals=3, binary=False)


def _agreement(by_case: Mapping[str, Mapping[_Key, _Row]]) -> str:
    """Said only where there is something to compare."""
    if len(by_case) < 2:
        return ""
    first, *others = by_case.values()
    differ = {key for rows in others for key in {*first, *rows} if first.get(key) != rows.get(key)}
    names = " and ".join(by_case)
    return f"{names} differ in {len(differ)} lines" if differ else f"{names} agree to the byte"


def plan_table(plan: Plan) -> Table:
    """One line for each proposal: how it is cut, its step's time, MFU and memory, and what limits it.

    What all of them share (the number of devices, an axis that none uses) is not repeated in every line.
    """
    times = _times(plan.proposals)
    rows = [
        [str(place), *_proposal_cells(proposal, *interval)]
        for place, (proposal, interval) in enumerate(zip(plan.proposals, times, strict=True), 1)
    ]
    columns = list(zip(_HEAD, *rows, strict=True))
    devices = {proposal.devices for proposal in plan.proposals}
    caption = f"{plan.looked_at:,} layouts timed, {plan.fitted:,} fit"
    if len(devices) == 1:
        caption += f"; on {devices.pop():,} devices each"
        columns = [column for column in columns if column[0] != "devices"]
    columns = [column for column in columns if column[0] not in _AXES or set(column[1:]) != {"1"}]
    head, *lines = (list(line) for line in zip(*columns, strict=True))
    return Table(head, lines, caption, "\n".join([*plan.best.reasons.values(), *plan.ties]))


def _times(proposals: Sequence[Proposal]) -> list[tuple[str, str]]:
    """A step's time and its interval, of all proposals in one unit."""
    numbers, unit = format_alike([s for one in proposals for s in (one.seconds, *one.interval)])
    return [
        (f"{step} {unit}", f"{low} to {high}") for step, low, high in zip(*[iter(numbers)] * 3, strict=True)
    ]


def _proposal_cells(proposal: Proposal, step: str, between: str) -> list[str]:
    x = proposal.run.layout
    counts = (x.tensor, x.pipeline, x.virtual_stages, x.context, x.expert, x.data_parallel, x.zero)
    return [
        *map(str, counts),
        str(proposal.run.micro_batch),
        x.recompute,
        f"{proposal.devices:,}",
        step,
        between,
        f"{proposal.mfu:.1%}",
        format_bytes(proposal.memory_bytes),
        _short(proposal.limit),
    ]


def _short(limit: str) -> str:
    """The cause's first words and its share: "the pipeline's bubble: 9%"."""
    cause, _, share = limit.partition(": ")
    cause = cause.split(" (")[0].split(" and ")[0].split(" that ")[0]
    return f"{cause.removeprefix('the ')}: {share.removesuffix(' of the step')}" if share else limit
