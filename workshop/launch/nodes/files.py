"""A rank's files on another node, kept equal here: the notebook reads them as if the rank were its own.

Every rank leaves what it has to say in files (`child/rank_io.py`). `Tail` runs beside the rank and says what
has been added; `Mirror` runs beside the notebook and writes it into a directory of the same shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workshop.launch.failures import FailureRecord
from workshop.launch.messages import from_json, write_file
from workshop.launch.rank_folder import BARS, EMPTIED, FAILURE, LOG, REPORT, STACKS, clear

GROWING = (LOG, BARS, STACKS, REPORT)  # added to
WHOLE = FAILURE  # appears at once, by a rename
BLOCK_BYTES = 256 * 1024


class Tail:
    """What is new in one rank's directory."""

    def __init__(self, rank_dir: Path):
        self.rank_dir = rank_dir
        self._sent = dict.fromkeys(GROWING, 0)
        self._told: float | None = None

    def clear(self) -> None:
        """The files are emptied (see `rank_folder.clear`): begin them anew."""
        clear(self.rank_dir)
        self._sent |= dict.fromkeys((*EMPTIED, REPORT), 0)
        self._told = None

    def news(self, most_blocks: int = 8) -> Iterator[tuple[str, bytes]]:
        """(file name, bytes added to it), at most ``most_blocks`` of each; of `WHOLE` all of it."""
        for name in GROWING:
            with contextlib.suppress(FileNotFoundError), (self.rank_dir / name).open("rb") as file:
                file.seek(self._sent[name])
                for _ in range(most_blocks):
                    block = file.read(BLOCK_BYTES)
                    if not block:
                        break
                    self._sent[name] += len(block)
                    yield name, block
        with contextlib.suppress(FileNotFoundError):
            written = (self.rank_dir / WHOLE).stat().st_mtime_ns
            if written != self._told:
                self._told = written
                yield WHOLE, (self.rank_dir / WHOLE).read_bytes()

    def all_news(self) -> Iterator[tuple[str, bytes]]:
        """Everything that is new, to the end."""
        while True:
            empty = True
            for name, block in self.news():
                empty = False
                yield name, block
            if empty:
                return


class Mirror:
    """The notebook's copy of one rank's directory. ``clock_ahead``: seconds to add to that node's clock."""

    def __init__(self, rank_dir: Path, clock_ahead: float = 0.0):
        self.rank_dir = rank_dir
        self.clock_ahead = clock_ahead
        rank_dir.mkdir(parents=True, exist_ok=True)
        for name in (LOG, BARS, STACKS):
            (rank_dir / name).touch(0o600)

    def take(self, name: str, block: bytes) -> None:
        """Write what `Tail` said.

        Raises ValueError for a name that is none of a rank's files, and for a record that is none.
        """
        if name == WHOLE:
            write_file(self.rank_dir / WHOLE, self._in_our_time(from_json(FailureRecord, block)))
        elif name in GROWING:
            with (self.rank_dir / name).open("ab") as file:
                file.write(block)
        else:
            raise ValueError(f"a node sent a file {name!r}, which no rank writes")

    def _in_our_time(self, record: FailureRecord) -> FailureRecord:
        """Who failed first is told by time; each node's monotonic clock began when it booted."""
        return replace(record, time=record.time + self.clock_ahead)
