"""Processes by number and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from workshop.launch.processes import ProcessId, children, descendants, end_all, wait_gone


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_process_is_known_until_it_ends() -> None:
    child = _sleeper()
    process = ProcessId.of(child.pid)
    assert process is not None
    assert process.alive()
    assert child.pid in children(os.getpid())
    assert process in descendants(os.getpid())
    child.kill()
    assert wait_gone([process], 5.0) == []  # a zombie is not alive
    child.wait()
    assert ProcessId.of(child.pid) is None


def test_a_recycled_number_gets_no_signal() -> None:
    child = _sleeper()
    real = ProcessId.of(child.pid)
    assert real is not None
    impostor = ProcessId(real.pid, real.start_time - 1)  # the same number, an earlier life
    assert not impostor.alive()
    assert not impostor.signal(signal.SIGKILL)
    time.sleep(0.05)
    assert real.alive()
    assert end_all([real]) == []
    child.wait()


def test_end_all_kills_what_ignores_sigterm() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    process = ProcessId.of(child.pid)
    assert process is not None
    assert end_all([process], patience=0.2) == []
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
