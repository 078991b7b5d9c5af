"""The lab's table as data: each fault on each engine, run by run, and in which parts it was made.

A whole table takes the better part of an hour. It can be made in parts: a part keeps what the file holds,
runs what is missing, and writes the file anew after each fault.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.faults.lab import Outcome

PACKAGES = ("torch", "ipykernel", "jupyter_client", "pyzmq", "deepspeed", "torchft")


@dataclass
class Row:
    """One fault on one engine; the lists have an element for each run.

    seconds: from the failure to the error. left: processes that should have gone. problems: what was not
    as promised. goes_on, said: of the last run.
    """

    fault: str
    engine: str
    seconds: list[float | None] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    problems: list[list[str]] = field(default_factory=list)
    goes_on: str = ""
    said: str = ""

    def add(self, outcome: Outcome) -> None:
        """One more run."""
        self.seconds.append(None if outcome.seconds is None else round(outcome.seconds, 3))
        self.left.append(outcome.left)
        self.problems.append(outcome.problems)
        self.goes_on, self.said = outcome.goes_on, outcome.said


class Table:
    """All rows, by fault and engine.

    Args:
        path: the JSON file; None where nothing is written.
        kept: files whose runs are kept; one that is not there yet has none.
        command: how this part was called.
    """

    def __init__(self, path: Path | None, kept: Iterable[Path], command: str):
        self.path = path
        self.rows: dict[tuple[str, str], Row] = {}
        self._parts: list[dict[str, Any]] = []
        for file in kept:
            if file.exists():
                self._take(json.loads(file.read_text()))
        self._before = sum(len(row.left) for row in self.rows.values())
        self._machine = machine.machine(PACKAGES)
        self._part: dict[str, Any] = {
            "command": command,
            "commit": machine.commit(),
            "began": _now(),
            "load_average": {"begin": self._machine.pop("load_average")},
        }
        self._started = time.monotonic()

    def _take(self, kept: dict[str, Any]) -> None:
        self._parts += kept["parts"]
        for row in kept["faults"]:
            here = self.row(row["fault"], row["engine"])
            here.seconds += row["seconds"]
            here.left += row["left"]
            here.problems += row["problems"]
            here.goes_on, here.said = row["goes_on"], row["said"]

    def row(self, fault: str, engine: str) -> Row:
        """The row of this fault, new where there is none."""
        return self.rows.setdefault((fault, engine), Row(fault, engine))

    def runs(self) -> int:
        """How often any fault was run."""
        return sum(len(row.left) for row in self.rows.values())

    def seconds(self) -> float:
        """What all parts took until now."""
        return time.monotonic() - self._started + sum(part["seconds"] for part in self._parts)

    def left(self) -> list[str]:
        """What sessions left when they were closed, in all parts."""
        return [what for part in [*self._parts, self._part] for what in part.get("left_at_the_end") or []]

    def close(self, left: list[str]) -> None:
        """The end of this part; ``left``: what its session left when it was closed."""
        self._part["left_at_the_end"] = left
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all. A part that was cut off has no ``left_at_the_end``."""
        if self.path is None:
            return
        self._part["load_average"]["end"] = machine.load_average()
        self._part["seconds"] = round(time.monotonic() - self._started, 1)
        self._part["runs"] = self.runs() - self._before
        record = {
            "machine": self._machine,
            "parts": [*self._parts, self._part],
            "faults": [asdict(row) for row in self.rows.values()],
        }
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps(record, indent=1) + "\n")
        partial.rename(self.path)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
