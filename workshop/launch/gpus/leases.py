"""GPU leases: two notebooks on one node never take the same GPUs.

A launch takes as many free GPUs as it has ranks, all at once or none, and gives them back when it ends;
ranks that stay keep theirs until they are stopped. The lease also ends with the processes that it names (the
notebook's and its engine's), however they end (`gpus.lease_files`). It is an agreement among notebooks of the
workshop: another program does not ask. So GPUs on which the driver sees foreign processes are taken last,
and then the first line says so.

No lock is kept over the node's leases: any user could keep it for ever. Whoever takes a GPU writes the lease
first and reads all leases after, and gives back what another has leased too: of two that take the same GPU at
once at least one sees the other, and both try again after a short while, each of its own length.

One notebook may use its own GPUs twice (fresh ranks beside ranks that stay): it knows what it does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from workshop.launch.gpus import lease_files
from workshop.launch.gpus.lease_files import Holder, Leases
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError

__all__ = ["GpusTaken", "Holder", "Lease", "Leases", "all_leases", "holders", "take"]

PATIENCE_SECONDS = 3.0
SETTLING_SECONDS = 0.5  # a lease that stays longer is no attempt among several


class GpusTaken(EngineError):
    """Too few GPUs are free; the message says who holds the others, and since when."""


class Lease:
    """GPUs that are this process's until `release` (or its end). ``gpus``: UUIDs, or numbers."""

    def __init__(self, gpus: Sequence[str]):
        self.gpus = tuple(gpus)
        self._files: list[tuple[Path, str]] = []

    def shares(self, gpu: str) -> bool:
        """Whether another launch of this very process had the GPU already."""
        return any(_own[path][1] > 1 for path, name in self._files if name == gpu and path in _own)

    def release(self) -> None:
        """Give the GPUs back; safe to call twice."""
        with _own_lock:
            while self._files:
                _give_back(self._files.pop()[0])


# This process's files: the descriptor that keeps each locked, and how many leases share it.
_own: dict[Path, list[int]] = {}
_own_lock = threading.RLock()


def take(
    n: int, candidates: Sequence[str], *, busy: Collection[str] = (), also: Sequence[ProcessId | None] = ()
) -> Lease:
    """Take ``n`` of the candidates, in their order; those in ``busy`` only when no others are left.

    also: processes beside this one for which the lease holds (the engine, which ends the ranks).
    Raises `GpusTaken` when fewer than ``n`` are free, `EngineError` when the folder cannot be used.
    """
    me = ProcessId.of(os.getpid())
    processes = [process for process in (me, *also) if process is not None]
    folder = lease_files.lease_folder()
    assert folder is not None
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.005
    while True:
        with _own_lock:
            there = lease_files.read_all(folder).holders
            held = {holder.gpu: holder for holder in sorted(there, key=lambda h: h.path in _own)}
            chosen = _choose(n, candidates, held, busy)
            if len(chosen) == n:
                lease = _written(folder, chosen, held, processes, candidates)
                if not _leased_by_others(folder, [gpu for gpu in chosen if gpu not in held]):
                    return lease
                lease.release()
        late = time.monotonic() > deadline
        if len(chosen) < n and (late or not _unsettled(candidates, held)):
            raise GpusTaken(_who_holds(n, candidates, held))
        if late:
            raise GpusTaken(
                f"others take and leave these GPUs again and again. {_who_holds(n, candidates, held)}"
            )
        time.sleep(random.uniform(0.0, pause))
        pause = min(0.2, pause * 2)


def _choose(n: int, candidates: Sequence[str], held: dict[str, Holder], busy: Collection[str]) -> list[str]:
    """Free ones first, then those that others compute on, then this process's own; fewer if there are few."""
    mine = [gpu for gpu in candidates if gpu in held and held[gpu].path in _own]
    free = [gpu for gpu in candidates if gpu not in held]
    return [*(g for g in free if g not in busy), *(g for g in free if g in busy), *mine][:n]


def _written(
    folder: Path,
    chosen: Sequence[str],
    held: dict[str, Holder],
    processes: Sequence[ProcessId],
    candidates: Sequence[str],
) -> Lease:
    lease = Lease(sorted(chosen, key=candidates.index))
    try:
        for gpu in chosen:
            if gpu in held:
                path = held[gpu].path
            else:
                path, descriptor = lease_files.write(folder, gpu, program_name(), processes)
                _own[path] = [descriptor, 0]
            _own[path][1] += 1
            lease._files.append((path, gpu))
    except OSError as error:
        lease.release()
        raise EngineError(
            f"the lease of GPU {gpu} cannot be written to {folder} ({error.strerror}); "
            f"set {lease_files.FOLDER} to a folder that all users of this node can write to"
        ) from None
    return lease


def _leased_by_others(folder: Path, chosen: Collection[str]) -> bool:
    """Whether another process has a lease of one of these too."""
    return any(h.gpu in chosen and h.path not in _own for h in lease_files.read_all(folder).holders)


def _unsettled(candidates: Collection[str], held: dict[str, Holder]) -> bool:
    """Whether one of the leases in the way is so young that its owner may give it back again."""
    young = time.time() - SETTLING_SECONDS
    return any(h.gpu in candidates and h.since > young and h.path not in _own for h in held.values())


def _who_holds(n: int, candidates: Sequence[str], held: dict[str, Holder]) -> str:
    free = sum(gpu not in held for gpu in candidates)
    taken = "; ".join(f"{lease_files.in_words(gpu)}: {held[gpu]}" for gpu in candidates if gpu in held)
    fewer = f"take fewer ranks (-n {free}), " if free else ""
    return (
        f"{n} ranks need {n} GPUs, and {free} of {len(candidates)} {'is' if free == 1 else 'are'} free. "
        f"{taken}. Wait for them, {fewer}or run on the CPU (os.environ['CUDA_VISIBLE_DEVICES'] = ''). "
        "`workshop gpus` shows who holds which."
    )


def all_leases() -> Leases:
    """Every lease on this node that is true now, and a note for each file that is none."""
    folder = lease_files.lease_folder(create=False)
    return Leases(()) if folder is None else lease_files.read_all(folder)


def holders() -> list[Holder]:
    """Every lease on this node that is true now."""
    return list(all_leases().holders)


def program_name() -> str:
    """What a person would call this process: the notebook, where Jupyter tells, else the program."""
    notebook = os.environ.get("JPY_SESSION_NAME")
    return Path(notebook or sys.argv[0] or "python").name


def _give_back(path: Path) -> None:
    if path not in _own:
        return
    _own[path][1] -= 1
    if _own[path][1] <= 0:
        descriptor, _ = _own.pop(path)
        with contextlib.suppress(FileNotFoundError):  # somebody cleaned /tmp
            path.unlink()
        os.close(descriptor)


def _give_all_back() -> None:
    with _own_lock:
        for path in list(_own):
            _own[path][1] = 0
            _give_back(path)


def _forget_in_child() -> None:
    """A forked child holds nothing: the leases stay its parent's, and end with it."""
    global _own_lock
    _own_lock = threading.RLock()  # another thread may have held it when we were forked
    for descriptor, _ in _own.values():
        os.close(descriptor)
    _own.clear()


atexit.register(_give_all_back)
os.register_at_fork(after_in_child=_forget_in_child)
