"""What a notebook left behind: processes, sockets, files. Found by mark and number, never by name.

Every process of the lab is started with one variable of its environment set to a value of its own. Children
inherit it, so that a process which got away from every parent is still found: Linux shows in
``/proc/PID/environ`` what a process was started with (proc(5)).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from workshop.launch.processes import ProcessId

MARK = "WORKSHOP_FAULT_LAB"
_LISTEN = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def marked_processes(value: str) -> list[ProcessId]:
    """Living processes that were started with our mark, this one left out (it set the mark itself)."""
    wanted = f"{MARK}={value}".encode()
    marked = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                process = ProcessId.of(int(entry.name))
                if process is not None and process.alive():
                    marked.append(process)
    return marked


def sockets_below(directory: Path) -> list[str]:
    """Unix sockets bound to a path in this directory."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[-1] for line in lines if str(directory) in line]


def entries_below(directory: Path) -> list[str]:
    """What stands in the directory that served as TMPDIR, torch's own cache left out.

    torch keeps ``torchinductor_USER`` there for every program of that user, and its ``mp.spawn`` a file for
    each child that raised, under plain torchrun as well.
    """
    torchs_own = ("torchinductor_", "pytorch-errorfile-")
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith(torchs_own))


def leads_of(pid: int) -> set[str]:
    """Where a process's descriptors lead, as Linux writes it (``socket:[123]``, a path); those open now."""
    leads = set()
    with contextlib.suppress(OSError):  # the process has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed since
                leads.add(str(descriptor.readlink()))
    return leads


def listeners_beyond_loopback(processes: list[ProcessId]) -> list[str]:
    """Addresses (hexadecimal, as in /proc/net/tcp) on which another machine could reach these processes."""
    leads = {lead for process in processes for lead in leads_of(process.pid)}
    inodes = {lead.removeprefix("socket:[").rstrip("]") for lead in leads if lead.startswith("socket:")}
    listeners = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _number, local, _remote, state, *rest = line.split()
            inside = local.split(":")[0] in _LOOPBACK
            if state == _LISTEN and rest[5] in inodes and not inside:
                listeners.append(local)
    return listeners


def wait_until(nothing: Callable[[], object], seconds: float) -> float:
    """Wait until ``nothing()`` is false or time is up; returns the seconds it took."""
    started = time.monotonic()
    while nothing() and time.monotonic() - started < seconds:
        time.sleep(0.02)
    return time.monotonic() - started
