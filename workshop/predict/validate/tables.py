"""Old name: see `workshop.published.tables`."""

from __future__ import annotations

from pathlib import Path

from workshop.published.record import TIMES, Observation, Skipped
from workshop.published.tables import read_table as read_records


def read_table(path: Path) -> tuple[list[Observation], list[Skipped]]:
    """What a table says about time, for `predict_cases`, and the rows that say nothing, with the reason."""
    records, skipped = read_records(path)
    return [one for record in records for one in record.observations(TIMES)], skipped
