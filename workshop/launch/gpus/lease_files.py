"""Lease files: who says that a GPU is theirs, and whether that is still true.

One folder for all users of a node (``/tmp/workshop-gpus``, mode 1777 as /tmp itself), one file for each GPU
and user: ``GPU-....1000.json`` with user, program, processes and since when. Whoever reads or changes the
folder holds a lock on it (flock(2) on the directory), so that several GPUs are taken at once or not at all.

Is a lease still true? Its processes are recorded by number **and start time**: a number that the kernel has
handed on is not taken for its former owner. Where processes cannot be seen (another PID namespace, or
/proc mounted with ``hidepid``) the lock that the holder keeps on its own file tells: the kernel drops it
with the process. Only the owner of a stale file, or root, can remove it (the sticky bit); for all others it
is as good as gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError

FOLDER = "WORKSHOP_GPU_LEASES"
DEFAULT_FOLDER = Path("/tmp/workshop-gpus")
LOCK_SECONDS = 5.0
_LONGEST = 1 << 14  # bytes of a lease file; ours have a few hundred


@dataclass(frozen=True)
class Holder:
    """Who holds a GPU: the file's owner, and what stands in the file. ``since``: Unix time."""

    gpu: str
    user: str
    program: str
    processes: tuple[ProcessId, ...]
    since: float
    path: Path

    def __str__(self) -> str:
        at = time.strftime("%H:%M on %d %B", time.localtime(self.since))
        pid = f" (process {self.processes[0].pid})" if self.processes else ""
        return f"{self.user}, {self.program}{pid}, since {at}"

    def is_this_process(self) -> bool:
        """Whether the lease is of the process that asks."""
        return bool(self.processes) and self.processes[0] == ProcessId.of(os.getpid())


def in_words(gpu: str) -> str:
    """``GPU 3``, or the UUID, which begins with GPU itself."""
    return gpu if gpu.startswith(("GPU", "MIG")) else f"GPU {gpu}"


def lease_folder() -> Path:
    """``WORKSHOP_GPU_LEASES``, else one folder for the whole node."""
    return Path(os.environ.get(FOLDER) or DEFAULT_FOLDER)


@contextlib.contextmanager
def locked_folder(create: bool = True) -> Iterator[Path | None]:
    """The lease folder, with nobody else in it; None where it does not exist and is not to be made.

    Raises `EngineError` when it cannot be made or used, or stays locked for ``LOCK_SECONDS``.
    """
    folder = lease_folder()
    do = f"Set {FOLDER} to a folder that all users of this node can write to (mode 1777)."
    try:
        if create and not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(0o1777)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if create:
            raise EngineError(f"no place for GPU leases: {folder} ({error.strerror}). {do}") from None
        yield None
        return
    except OSError as error:
        raise EngineError(f"no place for GPU leases: {folder} ({error.strerror}). {do}") from None
    try:
        _lock(descriptor, folder)
        yield folder
    finally:
        os.close(descriptor)  # and the lock with it


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"some process has kept {folder} locked for {LOCK_SECONDS:g} s; "
                    f"`fuser -v {folder}` names it"
                ) from None
            time.sleep(0.01)


def file_of(folder: Path, gpu: str) -> Path:
    """The file of this user's lease of a GPU."""
    return folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.{os.getuid()}.json"


def write(path: Path, gpu: str, program: str, processes: list[ProcessId]) -> int:
    """Make a lease file; returns the descriptor that keeps it locked. FileExistsError when it is there."""
    record = {
        "gpu": gpu,
        "program": program,
        "processes": [[process.pid, process.start_time] for process in processes],
        "since": round(time.time(), 3),
        **_here(),
    }
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # others must be able to read who it is, whatever the umask
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(record).encode())
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def read_all(folder: Path) -> list[Holder]:
    """Leases that are true now; stale files that this user may remove are removed. Hold the lock."""
    found = []
    for path in sorted(folder.glob("*.json")):
        holder, true = _read(path)
        if holder is not None and true:
            found.append(holder)
        elif not true:
            with contextlib.suppress(PermissionError, FileNotFoundError):  # another user's: no lease, no harm
                path.unlink()
    return found


def _read(path: Path) -> tuple[Holder | None, bool]:
    """What a lease file says, and whether it holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False
    except OSError:  # it cannot be read: believe that it is held, and say whose it is
        return Holder(path.name.split(".")[0], _user(path.lstat().st_uid), "?", (), 0.0, path), True
    try:
        status = os.fstat(descriptor)
        locked = not _can_lock(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None, True  # no file of ours: leave it
        record = _parsed(os.read(descriptor, _LONGEST))
    finally:
        os.close(descriptor)
    if record is None:  # its writer was killed in the middle
        return Holder(path.name.split(".")[0], _user(status.st_uid), "?", (), status.st_mtime, path), locked
    processes = tuple(ProcessId(pid, start) for pid, start in record["processes"])
    holder = Holder(record["gpu"], _user(status.st_uid), record["program"], processes, record["since"], path)
    visible = _here() == {name: record[name] for name in _here()}
    if visible and (status.st_uid == os.getuid() or Path("/proc/1").exists()):
        return holder, any(process.alive() for process in processes)
    return holder, locked


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parsed(data: bytes) -> dict[str, Any] | None:
    """The record, its fields made sure of; None for anything else."""
    try:
        record = json.loads(data)
        return {
            "gpu": str(record["gpu"]),
            "program": "".join(c for c in str(record["program"]) if c.isprintable())[:80],
            "processes": [(int(pid), int(start)) for pid, start in record["processes"]],
            "since": float(record["since"]),
            **{name: record[name] for name in _here()},
        }
    except (ValueError, KeyError, TypeError):
        return None


def _here() -> dict[str, Any]:
    """In which boot and PID namespace process numbers mean what they mean here."""
    return {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
    }


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
