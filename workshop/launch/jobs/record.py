"""What a job has left in its directory: its record, and of every element what its ranks wrote.

Nothing here asks the scheduler anything: a job that the scheduler has forgotten can still be read. How the
directory looks is told in `jobs.directory`.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.launch import rank_folder
from workshop.launch.failures import Program, RankEnd, read_evidence
from workshop.launch.report import Reported, read_report
from workshop.site.owners import LONGEST, open_own
from workshop.site.spec import seconds_of

_RECORD = "job.json"
CANCELLED = "cancelled"
_TORCHRUN_SAYS = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


@dataclass(frozen=True)
class Record:
    """What is known of a job apart from its state. ``tasks``: its indices, (0,) where it is no array."""

    name: str
    nnodes: int
    nproc_per_node: int
    device: str
    program: str
    label: str
    submitted: str
    time: str
    job: str = ""
    scheduler: str = "slurm"
    tasks: tuple[int, ...] = (0,)
    array: bool = False
    replicas: int = 0
    sweep: tuple[tuple[str, str], ...] = ()
    detached: bool = False

    @property
    def world_size(self) -> int:
        """Ranks in all; of replicas, those of each."""
        return self.nproc_per_node if self.replicas else self.nnodes * self.nproc_per_node

    @property
    def several(self) -> bool:
        """Whether its tasks are told apart: elements of an array, or replicas."""
        return self.array or self.replicas > 0

    @property
    def seconds(self) -> int:
        """The time limit."""
        return seconds_of(self.time)

    @property
    def sentence(self) -> str:
        """What the first line of a cell says: number, size, device."""
        nodes = f"{self.nnodes} node{'s' * (self.nnodes > 1)}"
        ranks = f"{self.nproc_per_node} rank{'s' * (self.nproc_per_node > 1)}"
        if self.replicas:
            replicas = f"{self.replicas} replica{'s' * (self.replicas > 1)} of {ranks} on {self.device}"
            who = "that machine" if self.nnodes == 1 else "the nodes' network"
            return f"job {self.job}: {nodes}, {replicas}; everybody on {who} can reach them"
        times = f", {len(self.tasks)} times" if self.array else ""
        return f"job {self.job}: {nodes} of {ranks} on {self.device}{times}"

    def task_label(self, task: int) -> str:
        """``task 1 (lr=0.003)``, ``replica 1``."""
        if self.replicas:
            return f"replica {task}"
        if not self.sweep:
            return f"task {task}"
        name, value = self.sweep[task]
        return f"task {task} ({name}={value})"


def read_record(directory: Path) -> Record:
    """The record of a job. Raises OSError or ValueError where there is none."""
    with os.fdopen(open_own(directory / _RECORD), "rb") as file:
        entry = json.loads(file.read(LONGEST))
    sweep = tuple((name, value) for name, value in entry.pop("sweep"))
    return Record(**{**entry, "tasks": tuple(entry["tasks"]), "sweep": sweep})


def write_record(directory: Path, record: Record) -> None:
    """Leave the record, whole or not at all."""
    partial = directory / (_RECORD + ".part")
    partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    partial.rename(directory / _RECORD)


def indices(array: str) -> tuple[int, ...]:
    """``0-6:2,9%2`` as (0, 2, 4, 6, 9); (0,) for ""."""
    elements: list[int] = []
    for part in filter(None, array.partition("%")[0].split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        elements += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(elements) or (0,)


@dataclass(frozen=True)
class Task:
    """What one element of a job (the only one, where it is no array) has left so far."""

    directory: Path
    record: Record
    number: int

    @property
    def start(self) -> int:
        """How often it was started again by the scheduler."""
        return _last(self.directory / f"task_{self.number}", "start_")

    @property
    def attempt(self) -> int:
        """How often torchrun started its ranks again within this start (`child.job_rank` agrees on it)."""
        return rank_folder.last_attempt(self._start_dir)

    @property
    def _start_dir(self) -> Path:
        return self.directory / f"task_{self.number}" / f"start_{self.start}"

    def rank_dir(self, rank: int) -> Path:
        """Where a rank of the last attempt writes."""
        return rank_folder.of_rank(rank_folder.of_attempt(self._start_dir, self.attempt), rank)

    def exit_code(self) -> int | None:
        """The batch script's, or None while it runs (or where it was killed)."""
        try:
            return int((self._start_dir / "exit").read_text())
        except (OSError, ValueError):
            return None

    def reports(self, *, allow_pickle: bool = False) -> dict[int, Reported]:
        """What every rank has reported; pickled values only where they are asked for (`launch.report`)."""
        paths = {rank: self.rank_dir(rank) / rank_folder.REPORT for rank in range(self.record.world_size)}
        return {rank: read_report(path, allow_pickle=allow_pickle) for rank, path in paths.items()}

    def began(self) -> bool:
        """Whether its batch script ever ran."""
        return (self.directory / f"task_{self.number}").exists()

    def cancelled(self) -> bool:
        """Whether it was ended from here."""
        return (self.directory / CANCELLED).exists()

    def program(self) -> Program:
        """The learner's own file, for messages."""
        return Program(self.record.program, label=self.record.label)

    def ends(self, state: str) -> list[RankEnd]:
        """How every rank ended; exit codes are those that torchrun wrote into the job's output.

        A scheduler ends ranks by SIGTERM before torchrun hears of it: that code does not tell who was first.
        """
        codes = {int(rank): int(code) for rank, code in _TORCHRUN_SAYS.findall(self.printed())}
        codes = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}
        program = self.program()
        return [
            read_evidence(rank, self.rank_dir(rank), codes.get(rank), program, state)
            for rank in range(self.record.world_size)
        ]

    def had_ranks(self) -> bool:
        """Whether any rank began."""
        return any(self.rank_dir(rank).exists() for rank in range(self.record.world_size))

    def output(self) -> Path:
        """The file of what the batch script, srun and torchrun printed; of a replica, its torchrun."""
        of_job = self.directory / f"{self.record.name}-{self.record.job}.out"
        own = of_job.with_stem(f"{of_job.stem}_{self.number}")
        before_replicas = self.record.replicas and not own.exists()
        return own if self.record.several and not before_replicas else of_job

    def printed(self) -> str:
        """The last part of `output`, "" where there is none."""
        try:
            with self.output().open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


def _last(folder: Path, prefix: str) -> int:
    numbers = [int(path.name[len(prefix) :]) for path in folder.glob(f"{prefix}*")]
    return max(numbers, default=0)
