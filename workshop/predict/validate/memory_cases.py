"""A published row about memory as something that can be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workshop.facts.run import Run
from workshop.predict.memory import predict_memory, saved_activations

Row = Mapping[str, str]
GB, GIB = 10**9, 2**30


class NotPredictable(Exception):
    """Why a row is left out, in a sentence."""


@dataclass(frozen=True)
class MemoryCase:
    """One row: what was run and how many bytes were measured.

    ``quantity`` is ``"allocated"``, ``"steady"``, ``"reserved"``, ``"device"`` or ``"activations"``; or
    ``"out_of_memory"``, with ``measured`` 1 when the run failed.  ``stage`` is the pipeline stage that was
    measured, -1 the last, ``None`` the one that needs most.  ``pass_group``: micro-batches per virtual
    stage's turn.
    """

    table: str
    group: str
    row: int
    name: str
    quantity: str
    measured: float
    run: Run
    stage: int | None = None
    pass_group: int = 0

    def predict(self) -> float:
        """The predicted number for what was measured."""
        found = predict_memory(self.run, self.pass_group)
        if self.quantity == "out_of_memory":
            return float(not found.fits)
        stage = found.worst_stage if self.stage is None else self.stage
        if self.quantity == "activations":
            return float(saved_activations(self.run)[stage])
        return float(getattr(found, self.quantity)[stage])


def text(row: Row, name: str) -> str:
    """A cell without blanks around it; empty when the column is missing."""
    return (row.get(name) or "").strip()


def count(row: Row, name: str, default: int | None = None) -> int:
    """A whole number from a cell; without a default an empty cell makes the row unpredictable."""
    cell = text(row, name)
    if not cell:
        if default is None:
            raise NotPredictable(f"{name} is not given")
        return default
    try:
        return int(float(cell))
    except ValueError:
        raise NotPredictable(f"{name} is {cell!r}") from None


def flag(row: Row, name: str) -> bool:
    """Whether a yes-or-no cell says yes."""
    return text(row, name).lower() in ("1", "true", "yes")


def amount(cell: str) -> tuple[float, str]:
    """Bytes and the unit of a cell such as ``"18.9 GiB"`` or ``"4.82 GB"``; the unit is kept, since GB may
    mean GiB.
    """
    for unit, size in (("GiB", GIB), ("GB", GB), ("MiB", 2**20), ("MB", 10**6)):
        head, found, _ = cell.partition(unit)
        if found:
            try:
                return float(head.strip()) * size, unit
            except ValueError:
                break
    raise NotPredictable(f"memory is {cell!r}")
