"""Whose turn it is to compute: of the files that keep a core busy, as many run at once as there are cores.

There are more workers than cores, because many files wait for most of their time: for a scheduler, a limit, a
browser. Were all of them given a lesson at once, four would share two cores, and take each other's place in the
caches at every switch, so that the same lessons take more of the cores' time than two by two. So a file
that computes takes a turn first, and gives it back after its last test; the other workers wait, or run what waits.

A turn is a lock on a file. A worker that dies lets go of it; one that is left without any runs all the same after
a while.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.schedule import unit

COMPUTING = (
    "notebooks/",
    "tests/adapt/",
    "tests/compress/",
    "tests/parallel/",
    "tests/precision/",
    "tests/rehearse/",
    "tests/train/",
    "tests/show/",
    "tests/packaging/test_wheel.py",
    "tests/published/",
    "tests/tools/test_docs.py",
    "tests/tools/test_gpu_day.py",
)
"""Files that compute, by the beginning of their names; all others start when a worker is free."""
PATIENCE = 900.0  # seconds


class Turns:
    """The turn of this worker, if it has one."""

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.unit = ""
        self._held: IO[bytes] | None = None

    def go_on_to(self, name: str) -> None:
        """The next test is of this unit: keep the turn, give it back, or wait for one."""
        if name == self.unit:
            return
        self.give_back()
        self.unit = name
        if name.startswith(COMPUTING):
            self._take()

    def give_back(self) -> None:
        """Let another worker have it."""
        if self._held is not None:
            self._held.close()
        self._held = None

    def _take(self) -> None:
        self.folder.mkdir(exist_ok=True)
        files = [open(self.folder / str(number), "wb") for number in range(self.count)]  # noqa: SIM115
        end = time.monotonic() + PATIENCE
        while self._held is None and time.monotonic() < end:
            self._held = next((file for file in files if _locked(file)), None)
            if self._held is None:
                time.sleep(0.05)
        for file in files:
            if file is not self._held:
                file.close()


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_turns: Turns | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers of one run share a folder; a run without workers needs no turns."""
    global _turns
    if hasattr(session.config, "workerinput"):
        own = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        _turns = Turns(own.parent / "turns", len(os.sched_getaffinity(0)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Before the limit of the test's time begins."""
    if _turns is not None:
        _turns.go_on_to(unit(item.nodeid))
    return (yield)


def pytest_sessionfinish() -> None:
    """What is left of it."""
    if _turns is not None:
        _turns.give_back()
