"""Who is who: processes known by number and start time, and ties that make children end with their parent.

A process number alone is not a name: the kernel hands it out again. Number and start time together
are one (proc(5), field 22 of ``/proc/PID/stat``), so that is what we record, and what we look at
before we send a signal. Nothing in this project ever ends a process by its name.

Both mean something in one place only: after a boot numbers begin anew, and in a PID namespace (a container)
they are others than outside. A record that another process will read says its `ProcessSpace` too.

Three ties keep ranks from outliving the notebook that started them:

* ``die_with_parent``: the kernel sends SIGKILL when the parent goes (prctl(2), PR_SET_PDEATHSIG);
* ``adopt_orphans``: what a rank started and left behind becomes a child of the supervisor
  (prctl(2), PR_SET_CHILD_SUBREAPER), which ends it;
* the supervisor reads from a socket held by the notebook: end of file means the notebook is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")


def die_with_parent() -> None:
    """Ask for SIGKILL when the thread that created this process ends (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the new parent of every orphaned descendant (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the third on (state, parent, ...), or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and brackets


@dataclass(frozen=True)
class ProcessSpace:
    """Where process numbers mean something: one boot of one machine, one PID namespace of it.

    ``host`` is for people, and names machines that boots come and go on; two containers may call one machine
    differently.
    """

    host: str
    boot: str
    pid_namespace: int

    @staticmethod
    def here() -> ProcessSpace:
        """This process's own."""
        return ProcessSpace(
            socket.gethostname(),
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            Path("/proc/self/ns/pid").stat().st_ino,
        )

    @property
    def sees_processes(self) -> bool:
        """Whether others' processes of this place are seen from here (``hidepid`` would hide them)."""
        return self.is_here and (os.geteuid() == 0 or Path("/proc/1").exists())

    @property
    def is_here(self) -> bool:
        """Whether this is this process's own place."""
        here = ProcessSpace.here()
        return (self.boot, self.pid_namespace) == (here.boot, here.pid_namespace)


@dataclass(frozen=True)
class ProcessId:
    """A process by number and start time (clock ticks after boot)."""

    pid: int
    start_time: int

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The process that has this number now, or None."""
        fields = _stat_fields(pid)
        return ProcessId(pid, int(fields[19])) if fields else None

    def owner(self) -> int | None:
        """Number of the user whose process it is, or None when it is gone."""
        try:
            uid = Path(f"/proc/{self.pid}").stat().st_uid
        except FileNotFoundError:
            return None
        return uid if self.alive() else None

    def alive(self) -> bool:
        """True while any thread of this very process runs (a zombie has none).

        A main thread that has ended shows as a zombie while other threads are still ending; only with
        the last of them does the kernel hand the process's children on, so that they can be found.
        """
        fields = _stat_fields(self.pid)
        if fields is None or int(fields[19]) != self.start_time:
            return False
        return fields[0] not in "ZX" or int(fields[17]) > 1

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False when it is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def children(pid: int) -> list[int]:
    """Numbers of the direct children of ``pid``, zombies included."""
    numbers = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields and int(fields[1]) == pid:
                numbers.append(int(entry))
    return sorted(numbers)


def descendants(pid: int) -> list[ProcessId]:
    """Every process below ``pid``, nearest first."""
    parent_of = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields:
                parent_of[int(entry)] = (int(fields[1]), int(fields[19]))
    below: list[ProcessId] = []
    level = [pid]
    while level:
        level = [child for child, (parent, _) in parent_of.items() if parent in level]
        below += [ProcessId(child, parent_of[child][1]) for child in level]
    return below


def end_all(processes: list[ProcessId], patience: float = 2.0) -> list[ProcessId]:
    """SIGTERM, then SIGKILL after ``patience`` seconds; returns those still there after that."""
    for process in processes:
        process.signal(signal.SIGTERM)
    if wait_gone(processes, patience):
        for process in processes:
            process.signal(signal.SIGKILL)
    return wait_gone(processes, 2.0)


def wait_gone(processes: list[ProcessId], patience: float) -> list[ProcessId]:
    """Wait up to ``patience`` seconds; returns the processes that are still alive."""
    deadline = time.monotonic() + patience
    while (alive := [p for p in processes if p.alive()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def boot_time() -> float:
    """When this machine booted, in Unix time."""
    text = Path("/proc/stat").read_text()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("btime ")))


def can_lock(descriptor: int) -> bool:
    """Whether nobody keeps the open file locked (flock(2)): the kernel drops a lock with its holder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks says nothing
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
