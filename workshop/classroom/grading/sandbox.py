"""A sandbox as the grader sees it: a process to talk to, watched, and ended with all that it started.

Three things bound it. The kernel's limits hold for each process (`resource`), the watch adds up the memory of
all of them twenty times a second, and whoever waits for an answer waits until a time and no longer. What it
prints is drained and thrown away, but for the end of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.assets import cache
from workshop.classroom.grading.held import descriptor_bytes, mapped_bytes, processes_below
from workshop.classroom.grading.isolate import INSIDE_HOME, NOT_ISOLATED
from workshop.facts.checks import check_positive
from workshop.facts.tree import ROOT

MIB = 1 << 20
_KEPT_OUTPUT = 4000
_LEAST_MEMORY = 256 * MIB  # Python with torch for CPUs holds 145 MiB before an answer begins
_WATCH_SECONDS = 0.05
_ROUNDS_TO_DESCRIPTORS = 4  # there are many, and to look at one costs as much as at a process
_START_SECONDS = 60.0
_BEYOND_THE_WATCH = 16  # processes that the kernel allows before the watch has seen them
CONNECTION = "WORKSHOP_GRADING_CONNECTION"


class NotIsolated(RuntimeError):
    """This machine allows no sandbox; the message says what it refused."""


@dataclass(frozen=True)
class Bounds:
    """What a hand-in may take: wall seconds of one exercise, bytes of memory, processes and threads, bytes of
    a file.
    """

    seconds: float = 60.0
    memory_bytes: int = 4096 * MIB
    processes: int = 256
    file_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        """Refuse what no answer could keep to: a right one would be called wrong."""
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be a number above zero, not {self.seconds}")
        if self.memory_bytes < _LEAST_MEMORY:
            held = f"{self.memory_bytes / MIB:g} MiB"
            raise ValueError(
                f"memory: {held} is too little: Python with torch alone holds about 150 MiB; "
                f"give {_LEAST_MEMORY // MIB} MiB or more (--memory {_LEAST_MEMORY / (1 << 30):g})"
            )
        check_positive("processes", self.processes)
        check_positive("file_bytes", self.file_bytes)

    def limits(self) -> dict[str, int]:
        """For each process, by their names in `resource`."""
        return {
            "RLIMIT_AS": 4 * self.memory_bytes,  # room that is asked for, of which torch uses little
            "RLIMIT_CPU": int(self.seconds) + 30,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NPROC": self.processes + _BEYOND_THE_WATCH,
            "RLIMIT_NOFILE": 4096,
            "RLIMIT_CORE": 0,
        }


@dataclass
class Sandbox:
    """One running sandbox. ``why`` says why it was ended, where the watch did."""

    bounds: Bounds
    isolated: bool
    program: str  # a module, run with -m
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    limits_cpu: bool = True  # under a limit `time.process_time` ticks coarsely: not for lessons that measure
    why: str = ""
    output: str = ""

    def __enter__(self) -> Sandbox:
        self.root = Path(tempfile.mkdtemp(prefix="workshop-grade-"))
        mine, theirs = socket.socketpair()
        self.end = mine
        work = self._own_folder()
        spec = {
            "isolated": self.isolated,
            "limits": self._limits(),
            "root": str(self.root),
            "read_only": list(_read_only()),
            "files": dict(self.files),
            "space": 4 * self.bounds.file_bytes,
        }
        written = self.root / "spec.json"
        written.write_text(json.dumps(spec), encoding="utf-8")
        isolate = [sys.executable, "-I", "-m", "workshop.classroom.grading.isolate", str(written)]
        self.process = subprocess.Popen(
            [*isolate, sys.executable, "-I", "-m", self.program, *self.arguments],
            cwd=work,
            env=self._environment(work, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._over = threading.Event()
        for act in (self._drain, self._watch):
            threading.Thread(target=act, daemon=True).start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        self.end.close()
        self.kill()
        self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def kill(self, why: str = "") -> None:
        """End it and all that it started."""
        self.why = self.why or why
        if not self.isolated:
            for pid in processes_below(self.process.pid):
                _end(pid)
        _end(self.process.pid)  # isolated: its namespace of processes goes with it

    def reason(self) -> str:
        """Why it is gone, in words; raises NotIsolated where it never began."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.poll()
        if code == NOT_ISOLATED and self.isolated:
            raise NotIsolated(self.output.strip().rpartition("\n")[2])
        if self.why:
            return self.why
        if code is None:
            return "it says nothing any more"
        number = -code if code < 0 else code - 128
        if number > 0:
            names = {signal.SIGXCPU: "it used up its CPU seconds", signal.SIGXFSZ: "it wrote too long a file"}
            with contextlib.suppress(ValueError):
                return names.get(signal.Signals(number), f"it was ended by {signal.Signals(number).name}")
        return f"it ended itself (exit code {code})"

    def _limits(self) -> dict[str, int]:
        limits = self.bounds.limits()
        if not self.limits_cpu:
            del limits["RLIMIT_CPU"]
        if not self.isolated:  # the kernel counts all of this user's processes then
            del limits["RLIMIT_NPROC"]
        return limits

    def _own_folder(self) -> Path:
        """Where it works when it has no root of its own: a folder that goes with it."""
        work = self.root / "work"
        if not self.isolated:
            work.mkdir()
            for name, text in self.files.items():
                (work / name).write_text(text, encoding="utf-8", errors="replace")
        return work if not self.isolated else self.root

    def _environment(self, work: Path, connection: int) -> dict[str, str]:
        """Nothing of the grader's own: no token, no proxy, no path."""
        home = INSIDE_HOME if self.isolated else str(work)
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": "/tmp" if self.isolated else str(work),
            "USER": "learner",
            "LOGNAME": "learner",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
            "WORKSHOP_PROGRESS": "off",
            "WORKSHOP_WARM_UP": "off",
            "WORKSHOP_CACHE": str(cache.root().absolute()),
            CONNECTION: str(connection),
        }

    def _drain(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while block := os.read(stream.fileno(), 1 << 16):
            self.output = (self.output + block.decode("utf-8", "replace"))[-_KEPT_OUTPUT:]

    def _watch(self) -> None:
        """Add up what all of its processes hold, and what only their number can show."""
        rounds, hanging = 0, 0
        while not self._over.wait(_WATCH_SECONDS):
            pids = processes_below(self.process.pid)
            if rounds % _ROUNDS_TO_DESCRIPTORS == 0:
                hanging = descriptor_bytes(pids)
            rounds += 1
            if mapped_bytes(pids) + hanging > self.bounds.memory_bytes:
                self.kill(f"it held more than {self.bounds.memory_bytes // MIB} MiB of memory")
            if len(pids) > self.bounds.processes:
                self.kill(f"it started more than {self.bounds.processes} processes")


@functools.cache
def why_not_isolated() -> str:
    """Why this machine allows no sandbox, or "". Tried once."""
    with Sandbox(Bounds(), True, "workshop.classroom.grading.answering", ("--try",)) as tried:
        until = time.monotonic() + _START_SECONDS
        while tried.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        code = tried.process.poll()
        time.sleep(0.05)  # for the last of its output
        return "" if code == 0 else tried.output.strip().rpartition("\n")[2] or f"exit code {code}"


def _read_only() -> set[str]:
    """Python, its libraries, this package, and the lessons' models and data; no home, no project."""
    kept = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2], cache.root().absolute()]
    kept += [ROOT / name for name in ("notebooks", "examples", "data", "pyproject.toml")]
    return {str(path) for path in kept if path.exists() and not path.is_relative_to("/usr")}


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
