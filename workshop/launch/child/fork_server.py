"""The fork server that ranks come from: a fork of the supervisor, so that torch is imported once for both.

multiprocessing starts its fork server as a new interpreter, which would import torch once more: seconds of
a core and hundreds of megabytes for every notebook. Here the supervisor imports all of it (`preload`). Where
multiprocessing would start the interpreter, the supervisor forks, and the fork runs what the interpreter
would have run. Should the fork server die, multiprocessing starts the next one in its own way: that takes
longer and does the same.

A fork has the thread that forked, and no other: nothing may compute beside it. It also has what a new
interpreter would not have, and lets go of it: the other descriptors (the wire to the notebook) and the folder
for temporary files.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STANDARD = (0, 1, 2)
SPAWN = multiprocessing.util.spawnv_passfds
PRELOADED = ["workshop.launch.child.tie", "workshop.launch.child.preload"]


def start() -> None:
    """Have multiprocessing start its fork server from this process, which has one thread and has imported
    `preload`.
    """
    gc.collect()
    gc.freeze()  # torch's own objects: an agent's end would look through all of them, a third of a launch
    gc.enable()  # here, and in every rank
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    multiprocessing.resource_tracker.ensure_running()  # an interpreter of its own, as ever
    multiprocessing.util.spawnv_passfds = _forked  # type: ignore[assignment]
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = SPAWN


def let_a_dying_one_go(patience: float = 2.0) -> None:
    """Wait for the end of a fork server that is dying, so that multiprocessing sees that it needs another.

    multiprocessing starts another once the old one can be waited for. One that was killed a moment ago cannot
    yet, and its socket still takes calls that nobody will answer: a launch would end with EOFError. It stays
    there to be waited for.

    Args:
        patience: seconds after which it is left as it is.
    """
    server: Any = multiprocessing.forkserver._forkserver
    pid, end = server._forkserver_pid, time.monotonic() + patience
    if pid is None or not _dying(pid):
        return
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < end:
        time.sleep(0.005)


def _dying(pid: int) -> bool:
    """Whether SIGKILL is on its way to a child, or it has given back its memory already."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return "VmSize" not in status or bool(int(status["ShdPnd"], 16) >> (signal.SIGKILL - 1) & 1)


def own_processes() -> set[int]:
    """Numbers of the fork server and of the resource tracker that multiprocessing has now.

    Asked each time: where one of them was killed, multiprocessing has started another.
    """
    server: Any = multiprocessing.forkserver._forkserver
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    return {pid for pid in (server._forkserver_pid, tracker._pid) if pid is not None}


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker of multiprocessing: ours, or that of a rank's own program."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has gone
        return False
    return b"from multiprocessing.resource_tracker import main" in command


def leave_tracker() -> None:
    """Hang up on the resource tracker; it ends when all processes that use it have.

    multiprocessing has this too (``_stop``), but waits under a lock which another thread may hold.
    """
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    descriptor, tracker._fd = tracker._fd, None
    if descriptor is not None:
        os.close(descriptor)


def _forked(_interpreter: bytes, words: Sequence[str], descriptors: Iterable[int]) -> int:
    """In place of ``spawnv_passfds``: a fork runs the program that the interpreter would get with ``-c``."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    multiprocessing.util.spawnv_passfds = SPAWN  # ranks spawn processes of their own
    try:
        _close_all_but({*STANDARD, *descriptors})
        tempfile.tempdir = None
        exec(words[-1], {"__name__": "__main__"})
    except SystemExit:
        code = 0
    except BaseException:  # noqa: BLE001 there is nobody above to hear of it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _close_all_but(kept: set[int]) -> None:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the one that listed them has gone
                os.close(descriptor)
