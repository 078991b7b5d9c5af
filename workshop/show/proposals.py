"""The layouts of a plan, in its order, one line each; below them, why the first one looks as it does."""

from __future__ import annotations

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds
from workshop.predict.plan import Plan, Proposal

HEAD = (
    "", "tensor", "pipeline", "stages each", "context", "expert", "data", "ZeRO", "micro-batch", "recompute",
    "devices", "step", "8 of 10 between", "MFU", "memory", "most time lost to",
)  # fmt: skip
AXES = ("stages each", "context", "expert")
"""Columns that are left out where every layout has 1 there: a page is narrow."""


def plan_table(plan: Plan) -> Table:
    """One line for each proposal: how it is cut, its step's time, MFU and memory, and what limits it.

    What all of them share (the number of devices, an axis that none uses) is not repeated in every line.
    """
    rows = [[str(place), *_cells(proposal)] for place, proposal in enumerate(plan.proposals, 1)]
    columns = list(zip(HEAD, *rows, strict=True))
    devices = {proposal.devices for proposal in plan.proposals}
    caption = f"{plan.looked_at:,} layouts timed, {plan.fitted:,} fit"
    if len(devices) == 1:
        caption += f"; on {devices.pop():,} devices each"
        columns = [column for column in columns if column[0] != "devices"]
    columns = [column for column in columns if column[0] not in AXES or set(column[1:]) != {"1"}]
    head, *lines = (list(line) for line in zip(*columns, strict=True))
    return Table(head, lines, caption, "\n".join([*plan.best.reasons.values(), *plan.ties]))


def _cells(proposal: Proposal) -> list[str]:
    x = proposal.run.layout
    counts = (x.tensor, x.pipeline, x.virtual_stages, x.context, x.expert, x.data_parallel, x.zero)
    return [
        *map(str, counts),
        str(proposal.run.micro_batch),
        x.recompute,
        f"{proposal.devices:,}",
        format_seconds(proposal.seconds),
        " and ".join(map(format_seconds, proposal.interval)),
        f"{proposal.mfu:.1%}",
        format_bytes(proposal.memory_bytes),
        _short(proposal.limit),
    ]


def _short(limit: str) -> str:
    """The cause's first words and its share: "the pipeline's bubble: 9%"."""
    cause, _, share = limit.partition(": ")
    cause = cause.split(" (")[0].split(" and ")[0].split(" that ")[0]
    return f"{cause.removeprefix('the ')}: {share.removesuffix(' of the step')}" if share else limit
