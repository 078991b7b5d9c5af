"""Semaphores that have a name are files in /dev/shm. After a notebook none of its are left there."""

import sys
from pathlib import Path

import pytest

from tests.own_shared_memory import run_with_own_shared_memory

KEPT = "from multiprocessing import get_context\nkept = get_context('spawn').Lock()\n"
NOTEBOOK = """
import os, signal, time
from workshop import launch

def named():
    return len(os.listdir("/dev/shm"))

def until_none():
    end = time.monotonic() + 30
    while named() and time.monotonic() < end:
        time.sleep(0.01)
    return named()

launch.torchrun("print(1)", 2)
print("after a launch", until_none())
try:
    launch.torchrun({kept!r} "import os, signal\\nos.kill(os.getpid(), signal.SIGKILL)", 1)
except launch.RankFailed:
    print("of a rank that was killed", named() > 0)
launch.Ranks(2).run({kept!r})
print("of ranks that stay", named() > 2)
{end}
"""
ENDS = {"it ends": "", "it is killed": "os.kill(os.getpid(), signal.SIGKILL)"}


@pytest.mark.parametrize("end", ENDS)
def test_no_semaphore_outlives_a_notebook(end: str, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(NOTEBOOK.format(kept=KEPT, end=ENDS[end]))
    left = (
        'for _ in $(seq 300); do [ -z "$(ls /dev/shm)" ] && break; sleep 0.1; done; echo left: $(ls /dev/shm)'
    )
    done = run_with_own_shared_memory(f"{sys.executable} {notebook}\n{left}", 200)
    told = [line for line in done.stdout.splitlines() if line.startswith(("after", "of a", "of r", "left"))]
    assert told == [
        "after a launch 0",
        "of a rank that was killed True",
        "of ranks that stay True",
        "left:",
    ], done.stderr[-2000:]
