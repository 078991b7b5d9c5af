"""Operators that are compiled when they are first used, and the lock that a build leaves when it is ended.

DeepSpeed and others compile C++ on first use (`torch.utils.cpp_extension`): a minute or more in which a
cell looks hung. One process builds, the others wait until its lock, a file, is gone. A build that was
ended (a time limit, the stop button, a full disk) never removes that file, and from then on every
program of this user that needs the operator waits for ever, here and under plain torchrun.

So a rank says what it waits for, on the line of its progress bar, and a lock that nobody holds is taken over.
Who builds keeps the file open (`torch.utils.file_baton.FileBaton`), and the kernel shows who has what open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torch.utils.file_baton import FileBaton

_acquire = FileBaton.try_acquire


def watch_builds() -> None:
    """From now on this process, and what is forked from it, tells of builds and takes over dead locks."""
    FileBaton.try_acquire = _try_acquire  # type: ignore[method-assign]
    FileBaton.wait = _wait  # type: ignore[method-assign]


def held(lock: Path) -> bool:
    """Does any process of this machine that we can look at have the file open?"""
    try:
        wanted = lock.stat()
    except FileNotFoundError:
        return False
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            there = descriptor.stat()
            if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def on_this_machine(path: Path) -> bool:
    """False for a file system that other machines may share: there the holder may be elsewhere."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    resolved = str(path.resolve())
    above = [
        (len(at), kind) for at, kind in mounts if resolved == at or resolved.startswith(at.rstrip("/") + "/")
    ]
    kind = max(above, default=(0, "unknown"))[1]
    return kind in {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "bcachefs"}


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time looks at the folder's lock and takes it over."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_acquire(self: FileBaton) -> bool | None:
    lock = Path(self.lock_file_path)
    if _acquire(self):
        if not any(lock.parent.glob("*.so")):
            _tell(f"compiling the operator {lock.parent.name}: once, and it takes a minute or more")
        return True
    with _alone(lock.parent):
        if on_this_machine(lock) and not held(lock):
            lock.unlink(missing_ok=True)
            return _acquire(self)
    return False


def _wait(self: FileBaton) -> None:
    lock = Path(self.lock_file_path)
    _tell(f"waiting for another process that compiles the operator {lock.parent.name}")
    looked = time.monotonic()
    while lock.exists():
        time.sleep(self.wait_seconds)
        if time.monotonic() - looked < 1.0:
            continue
        looked = time.monotonic()
        if on_this_machine(lock) and not held(lock) and lock.exists():
            raise RuntimeError(
                f"the process that compiled the operator {lock.parent.name} was ended before it was done: "
                "run this again, and it is compiled anew"
            )


def _tell(text: str) -> None:
    """On the line of the progress bar: it is shown while it lasts, and is no part of the text."""
    if sys.stderr is not None:
        sys.stderr.write(f"\r{text}")
