"""The layouts of a plan, fastest first, one line each; below them, why the first one looks as it does."""

from __future__ import annotations

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds
from workshop.predict.plan import Plan, Proposal

HEAD = (
    "", "tensor", "pipeline", "stages each", "context", "expert", "data", "ZeRO", "micro-batch", "recompute",
    "devices", "step", "MFU", "memory", "limited by",
)  # fmt: skip


def plan_table(plan: Plan) -> Table:
    """One line for each proposal: how it is cut, its step's time, MFU and memory, and what limits it."""
    rows = [[str(place), *_cells(proposal)] for place, proposal in enumerate(plan.proposals, 1)]
    caption = f"{plan.looked_at:,} layouts timed, {plan.fitted:,} fit"
    return Table(HEAD, rows, caption, "\n".join(plan.best.reasons.values()))


def _cells(proposal: Proposal) -> list[str]:
    x = proposal.run.layout
    counts = (x.tensor, x.pipeline, x.virtual_stages, x.context, x.expert, x.data_parallel, x.zero)
    return [
        *map(str, counts),
        str(proposal.run.micro_batch),
        x.recompute,
        f"{proposal.devices:,}",
        format_seconds(proposal.seconds),
        f"{proposal.mfu:.1%}",
        format_bytes(proposal.memory_bytes),
        proposal.limit,
    ]
