"""What the processes of a sandbox hold of the machine's memory, as one can see it from outside.

Pages of their own and of shared memory are in ``/proc/PID/status``. Memory can also hang on a descriptor
alone: a file without a name (memfd_create(2)) that nobody maps, and what waits unread in sockets and pipes.
Each of those is counted once, a socket and a pipe with all that it can hold. System V's shared memory and
message queues, which hang on nothing, are switched off in a sandbox (`isolate`).

Sources: proc(5) on ``status``, ``task/TID/children`` and ``fd``; socket(7) on wmem_default; pipe(7).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_BLOCK_BYTES = 512  # of st_blocks
_PIPE_BYTES = 1 << 16
_SOCKET_BYTES = 212_992  # net.core.wmem_default


def processes_below(pid: int) -> list[int]:
    """The process and all below it, as far as they can be seen now."""
    pids, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        pids.append(one)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                waiting += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
    return pids


def mapped_bytes(pids: Iterable[int]) -> int:
    """Bytes of memory in their address spaces; files of the disk, which can be read again, are left out."""
    return sum(map(_mapped, pids))


def _mapped(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(
            1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))
        )
    return 0


def descriptor_bytes(pids: Iterable[int]) -> int:
    """Bytes that hang on their descriptors, and are mapped or not."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/fd/{number}").stat()
                    sizes[status.st_dev, status.st_ino] = _hangs_on(status)
    return sum(sizes.values())


def _hangs_on(status: os.stat_result) -> int:
    if stat.S_ISSOCK(status.st_mode):
        return _SOCKET_BYTES
    if stat.S_ISFIFO(status.st_mode):
        return _PIPE_BYTES
    nameless = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    return _BLOCK_BYTES * status.st_blocks if nameless else 0
