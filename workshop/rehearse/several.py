"""Several ranks of one world: each is rehearsed in a process of its own, side by side where cores allow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes
from workshop.rehearse.report import Rehearsal
from workshop.rehearse.run import rehearse


@dataclass(frozen=True, repr=False)
class Rehearsals:
    """Rehearsed ranks of one world, in the order asked for; `[rank]` is that rank's `Rehearsal`."""

    ranks: tuple[Rehearsal, ...]

    def __getitem__(self, rank: int) -> Rehearsal:
        for rehearsal in self.ranks:
            if rehearsal.rank == rank:
                return rehearsal
        known = ", ".join(str(rehearsal.rank) for rehearsal in self.ranks)
        raise KeyError(f"rank {rank} was not rehearsed (rehearsed: {known})")

    def __iter__(self) -> Iterator[Rehearsal]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def worst(self) -> Rehearsal:
        """The rank with the largest peak."""
        return max(self.ranks, key=lambda rehearsal: rehearsal.peak_bytes)

    def by_rank(self) -> dict[str, Rehearsal]:
        """Labelled by rank, as `show.traffic_table` and `show.memory_by_part` take them."""
        return {f"rank {rehearsal.rank}": rehearsal for rehearsal in self.ranks}

    def table(self) -> Table:
        """A line for each rank: its peak, what it sends, what it computes."""
        lines = [
            [
                f"{rehearsal.rank:,}",
                format_bytes(rehearsal.peak_bytes, decimals=3, binary=False),
                rehearsal.memory.peak_phase,
                format_bytes(sum(row.wire_bytes for row in rehearsal.traffic), decimals=3, binary=False),
                f"{rehearsal.flops:.4g}",
            ]
            for rehearsal in self.ranks
        ]
        alarms = dict.fromkeys(f"ALARM: {alarm}" for rehearsal in self.ranks for alarm in rehearsal.alarms)
        notes = dict.fromkeys(f"note: {note}" for rehearsal in self.ranks for note in rehearsal.notes)
        head = ["rank", "peak", "in", "sent per step", "FLOPs per step"]
        world = f"rehearsed ranks of {self.ranks[0].world_size:,}"
        return Table(head, lines, world, "\n".join([*alarms, *notes]))

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def rehearse_ranks(
    program: str | Path | Callable[..., Any], world_size: int, ranks: Sequence[int], **options: Any
) -> Rehearsals:
    """`rehearse` for each of some ranks of a world; options as there.

    Raises ValueError for no rank, or one named twice, and what `rehearse` raises.
    """
    if not ranks or len(set(ranks)) != len(ranks):
        raise ValueError(f"ranks are {list(ranks)}: name at least one, and none twice")
    for rank in ranks:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank} is not in a world of {world_size}: ranks are 0 to {world_size - 1}"
            )
    with ThreadPoolExecutor(max(1, min(len(ranks), os.cpu_count() or 1))) as pool:
        rehearsals = tuple(pool.map(lambda rank: rehearse(program, world_size, rank, **options), ranks))
    return Rehearsals(rehearsals)


def parse_ranks(text: str) -> list[int]:
    """The ranks in "7" or "0,7,63"; ValueError for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--rank {text}: a rank, or some with commas between, for example 0,7,63") from None
