"""What a rank leaves in its folder, by name: the rank writes, the notebook reads.

A rank of a launch has the folder ``attempt_A/rank_R``, for a launch may start its ranks again; a rank that
stays has ``rank_R``. On another node the folder is mirrored (`nodes/files.py`), for a job it lies where every
node sees it (`jobs/record.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

LOG = "log"  # what it prints, and what its children and libraries print
BARS = "bars"  # its progress bars, state after state
STACKS = "stacks"  # where it was: faulthandler's dumps, when it was asked, ended, or crashed
FAILURE = "failure.json"  # its exception, as data; written whole or not at all
REPORT = "report.data"  # what it handed to `report(...)`, call after call
DONE = "done"  # empty; it came to its end
PROCESS = "process.json"  # its process, by number and start time
CUT = "cut"  # the socket at which its cutting thread listens (`child/cut.py`)

# Forgotten before each cell of ranks that stay.
EMPTIED = (BARS, STACKS)  # the rank holds these open
REMOVED = (FAILURE, REPORT)

CELL = "cell.py"  # of the launch: the program, where it is no file of the learner's
PASSED = "passed.pkl"  # of the launch: values of the notebook for every rank
JOB_PROGRAM = "program.json"  # of a job: what its ranks run

_RANK, _ATTEMPT = "rank_", "attempt_"  # and the number


def of_rank(directory: Path, rank: int) -> Path:
    """The folder of a rank that stays, or of one in a launch's attempt."""
    return directory / f"{_RANK}{rank}"


def of_attempt(run: Path, attempt: int) -> Path:
    """The folder of one start of a launch's ranks, the first being number 0."""
    return run / f"{_ATTEMPT}{attempt}"


def of_ranks(run: str, attempt: int, ranks: Iterable[int]) -> dict[int, str]:
    """The folders of these ranks in one start of a launch, as its agent tells them (`messages.Started`)."""
    of = of_attempt(Path(run), attempt)
    return {rank: str(of_rank(of, rank)) for rank in ranks}


def last_attempt(run: Path) -> int:
    """The number of the last start of a launch's ranks; 0 before the first."""
    return max((int(path.name.removeprefix(_ATTEMPT)) for path in run.glob(f"{_ATTEMPT}*")), default=0)


def of_every_rank(run: Path) -> list[Path]:
    """The folders of all ranks of a launch, of every attempt."""
    return list(run.glob(f"{_ATTEMPT}*/{_RANK}*"))


def clear(rank_dir: Path) -> None:
    """Forget the last cell's failure, report and stacks; FileNotFoundError where somebody removed a file."""
    own = os.fspath(rank_dir)  # text: to make four paths takes longer than to look at four files
    for name in REMOVED:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{own}/{name}")  # noqa: PTH108
    for name in EMPTIED:
        path = f"{own}/{name}"
        if os.stat(path).st_size:  # noqa: PTH116
            os.truncate(path, 0)
