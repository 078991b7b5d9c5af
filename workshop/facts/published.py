"""Published measurements that ship with the workshop: one CSV each, every row with its source."""

from __future__ import annotations

import csv
from difflib import get_close_matches
from pathlib import Path

from workshop.facts.tree import ROOT

FOLDER = ROOT / "data" / "published"


def published_table(name: str, folder: Path = FOLDER) -> list[dict[str, str]]:
    """The rows of ``data/published/NAME.csv``, values as text, units in the column names.

    ValueError names the tables there are when there is none of this name.
    """
    path = folder / f"{name}.csv"
    if not path.is_file():
        known = sorted(table.stem for table in folder.glob("*.csv"))
        near = get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"no published table {name!r} in {folder.name}/; there are: {', '.join(known)}.{hint}"
        )
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
