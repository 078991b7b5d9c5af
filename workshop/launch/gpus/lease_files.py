"""Lease files: who says that a GPU is theirs, and whether that is still true.

One file for each lease, in ``/tmp``, where root's sticky bit lets nobody but the owner of a file remove it:
``workshop-gpu-3fa2....json`` with GPU, program, processes and since when. The user is the owner of the file,
whatever stands in it.

Is a lease still true? Its processes are recorded by number **and start time** (a number that the kernel has
handed on is not taken for its former owner), and must be the owner's own: nobody can name another's process,
or process 1, which never ends. Where processes cannot be seen (another PID namespace, or /proc mounted with
``hidepid``) the lock tells that the holder keeps on its own file: the kernel drops it with the process.

Any user of the node can write such files, so what stands in them is read with limits and believed only as far
as it makes sense. A file that is no lease is passed over, with a note; of a stale one only its owner can be
rid, and for all others it is as good as gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workshop.launch.processes import ProcessId, ProcessSpace, can_lock
from workshop.launch.session import EngineError
from workshop.site.owners import NotOurs, ours, user_name

FOLDER = "WORKSHOP_GPU_LEASES"
DEFAULT_FOLDER = Path("/tmp")
PREFIX = "workshop-gpu-"
_LONGEST = 1 << 12  # bytes of a lease file; ours have a few hundred
_MOST_OF_ONE_USER = (
    256  # files that one user may have there; a node has at most some dozens of GPUs and parts
)
_MOST_PROCESSES = 8
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._/-]{0,79}")


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


@dataclass(frozen=True)
class Leases:
    """What was read: the leases that are true now, and a note for each file that is none."""

    holders: tuple[Holder, ...]
    notes: tuple[str, ...] = ()


def in_words(gpu: str) -> str:
    """``GPU 3``, or the UUID, which begins with GPU itself."""
    return gpu if gpu.startswith(("GPU", "MIG")) else f"GPU {gpu}"


def lease_folder(create: bool = True) -> Path | None:
    """``WORKSHOP_GPU_LEASES``, else ``/tmp``; None where it does not exist and is not to be made.

    Raises `EngineError` when it cannot be made or used, or when another user could remove leases from it.
    """
    folder = Path(os.environ.get(FOLDER) or DEFAULT_FOLDER)
    do = f"Set {FOLDER} to a folder of root's that all users of this node can write to (mode 1777)."
    try:
        if create and not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(0o1777)
        if not create and not folder.exists():
            return None
        folder = ours(folder, "the folder of GPU leases")
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        raise EngineError(f"no place for GPU leases: {folder} ({error.strerror}). {do}") from None
    except NotOurs as error:
        raise EngineError(f"no place for GPU leases: {error}. {do}") from None
    return folder


def write(folder: Path, gpu: str, program: str, processes: Sequence[ProcessId]) -> tuple[Path, int]:
    """Make a lease file; its path, and the descriptor that keeps it locked. It is there whole or not at all.

    Raises OSError where it cannot be written.
    """
    record = {
        "gpu": gpu,
        "program": program,
        "processes": [[process.pid, process.start_time] for process in processes],
        "since": round(time.time(), 3),
        "place": asdict(ProcessSpace.here()),
    }
    unseen = folder / f".{PREFIX}{secrets.token_hex(8)}"
    path = folder / f"{PREFIX}{secrets.token_hex(8)}.json"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unseen, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else can have opened it yet
        os.write(descriptor, json.dumps(record).encode())
        os.fchmod(descriptor, 0o644)  # others must be able to read who it is, whatever the umask
        unseen.rename(path)
    except BaseException:
        os.close(descriptor)
        unseen.unlink(missing_ok=True)
        raise
    return path, descriptor


def read_all(folder: Path) -> Leases:
    """Leases that are true now; stale files of this user are removed."""
    holders, notes, seen = [], [], Counter[int]()
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            status = path.lstat()
        except FileNotFoundError:  # given back this very moment
            continue
        seen[status.st_uid] += 1
        if seen[status.st_uid] > _MOST_OF_ONE_USER:
            continue
        try:
            holder, true = _read(path)
        except _NoLease as why:
            notes.append(f"{path} of {user_name(status.st_uid)} is no lease ({why}); passed over")
            continue
        if holder is not None and true:
            holders.append(holder)
        elif not true and status.st_uid == os.geteuid():
            path.unlink(missing_ok=True)
    for uid, number in seen.items():
        if number > _MOST_OF_ONE_USER:
            few = f"the first {_MOST_OF_ONE_USER} are read"
            notes.append(f"{user_name(uid)} has {number} lease files in {folder}: {few}")
    return Leases(tuple(sorted(holders, key=lambda holder: holder.gpu)), tuple(notes))


class _NoLease(ValueError):
    """The file is none of ours; the message says why."""


def _read(path: Path) -> tuple[Holder | None, bool]:
    """What a lease file says, and whether it holds. Raises `_NoLease`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False
    except OSError as error:  # ours can be read by all
        raise _NoLease(error.strerror) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _NoLease("it is no file")
        locked = not can_lock(descriptor)
        record = _parsed(os.read(descriptor, _LONGEST))
    finally:
        os.close(descriptor)
    place, processes = record["place"], record["processes"]
    since = min(record["since"], time.time())
    holder = Holder(record["gpu"], user_name(status.st_uid), record["program"], processes, since, path)
    if place.is_here and (status.st_uid == os.geteuid() or place.sees_processes):
        return holder, any(process.owner() == status.st_uid for process in processes)
    return holder, locked


def _parsed(data: bytes) -> dict[str, Any]:
    """The record, each field made sure of. Raises `_NoLease` for anything else."""
    try:
        record = json.loads(data)
        place, pairs, since = ProcessSpace(**record["place"]), record["processes"], record["since"]
        gpu, program = record["gpu"], record["program"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _NoLease(f"it cannot be read: {type(error).__name__}") from None
    if not isinstance(gpu, str) or not _GPU.fullmatch(gpu):
        raise _NoLease("it names no GPU")
    if type(since) not in (int, float) or not math.isfinite(since) or since < 0:
        raise _NoLease("its time is none")
    if (
        not isinstance(pairs, list)
        or not 0 < len(pairs) <= _MOST_PROCESSES
        or not all(map(_is_process, pairs))
    ):
        raise _NoLease("it names no processes")
    return {
        "gpu": gpu,
        "program": "".join(c for c in str(program) if c.isprintable())[:80],
        "processes": tuple(ProcessId(pid, start) for pid, start in pairs),
        "since": float(since),
        "place": place,
    }


def _is_process(pair: object) -> bool:
    """A number and a start time as the kernel gives them (pid_max is at most 2^22)."""
    if not isinstance(pair, list) or len(pair) != 2 or any(type(number) is not int for number in pair):
        return False
    return 0 < pair[0] <= 1 << 22 and 0 <= pair[1] < 1 << 63
