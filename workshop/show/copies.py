"""What N data-parallel ranks hold together: one model, and N - 1 copies of it."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.facts.units import format_bytes
from workshop.show.style import LIMIT, Picture, byte_unit, new_figure, rank_colour


def replicas(parts: Mapping[str, float], ranks: int, cap: float) -> Picture:
    """One stack per rank with the parts of its state (bytes), the copies pale, and the device's cap."""
    figure, axis = new_figure(6.4, 3.0)
    name_of_unit, unit = byte_unit(max(sum(parts.values()), cap))
    for rank in range(ranks):
        bottom = 0.0
        for index, (name, size) in enumerate(parts.items()):
            height = size / unit
            label = name if rank == 0 else None
            axis.bar(
                rank,
                height,
                0.7,
                bottom=bottom,
                color=rank_colour(index),
                alpha=1.0 if rank == 0 else 0.3,
                label=label,
            )
            bottom += height
    total = sum(parts.values())
    axis.axhline(cap / unit, color=LIMIT, linewidth=1.5)
    axis.text(
        ranks - 0.45,
        cap / unit,
        f"cap {format_bytes(cap)} ",
        va="bottom",
        ha="right",
        fontsize=8,
        color=LIMIT,
    )
    axis.set_xticks(
        range(ranks), [f"rank {r}" + ("" if r == 0 else "\ncopy") for r in range(ranks)], fontsize=8
    )
    axis.set_ylabel(f"{name_of_unit} a rank holds")
    axis.set_ylim(0, 1.15 * max(total, cap) / unit)
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=len(parts))
    return Picture(
        figure, f"{ranks} ranks, {format_bytes(total)} each: one model and {ranks - 1} copies of it"
    )
