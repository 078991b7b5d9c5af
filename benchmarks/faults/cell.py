"""What a fault is: a cell that breaks in one way, and what must be said about it.

Every cell runs on two ranks (or ``world_size``), in ``%%ranks`` and under ``%%torchrun``. Its first line
(the magic's own in a notebook) is written by the lab: it imports torch and ``dist``, joins the group,
and sets ``rank`` and ``mark``. A cell calls ``mark("failed")`` right before it breaks: that is where the
clock starts. Where a time limit or the stop button ends the cell, the clock starts there.

What the cells keep is checked by the lab, not by them: a variable set before the fault, the process
numbers of the ranks, and a sum over all ranks afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

BOTH = ("ranks", "torchrun")


@dataclass(frozen=True)
class Fault:
    """One way to break a cell.

    says: regular expression that the error's message must match.
    costs_restart: True where a rank dies or cannot be reached any more; else the same ranks must go on.
    timeout: the cell's time limit in seconds, for cells that hang.
    from_outside: what happens to the cell once every rank has called ``mark("ready")``.
    before_init: the cell itself decides when it joins the group.
    world_size: how many ranks it takes.
    changes_signals: its cell changes what a signal does to its rank; the next fault gets new ranks.
    """

    name: str
    cell: str
    says: str
    engines: tuple[str, ...] = BOTH
    costs_restart: bool = False
    timeout: float | None = None
    device_memory: str | None = None
    from_outside: str = ""
    before_init: bool = False
    world_size: int = 2
    changes_signals: bool = False

    @property
    def source(self) -> str:
        """The cell's own lines; the first of them is line 2."""
        return dedent(self.cell).strip("\n") + "\n"
