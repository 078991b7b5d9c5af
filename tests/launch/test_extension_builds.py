"""The lock of a build that was ended: taken over where nobody holds it, waited for where somebody does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from workshop import launch
from workshop.launch.child import extension_builds

PROGRAM = """
import sys
from torch.utils.file_baton import FileBaton
baton = FileBaton(sys.argv[1])
took = baton.try_acquire()
if not took: baton.wait()
print("built" if took else "waited")
if took: baton.release()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "my_operator" / "lock"


@pytest.fixture
def dead_lock(lock: Path) -> Path:
    """As a build leaves it that was killed."""
    lock.parent.mkdir()
    lock.touch()
    return lock


def test_ranks_take_over_a_dead_lock(dead_lock: Path, tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(PROGRAM)
    result = launch.torchrun(launch.Script(script, (str(dead_lock),)), 2, limits=launch.Limits(timeout=60))
    assert "built" in result.text
    assert not dead_lock.exists()


def test_a_lock_that_somebody_holds_is_left_alone(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.parent.mkdir()
    holds = f"import os, sys; os.open({str(lock)!r}, os.O_CREAT | os.O_EXCL); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", holds], stdin=-1, stdout=-1, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    baton = FileBaton(str(lock))
    assert extension_builds.held(lock)
    assert not extension_builds._try_acquire(baton)
    assert lock.exists()
    monkeypatch.setattr(extension_builds, "on_this_machine", lambda path: True)
    threading.Timer(0.3, holder.kill).start()
    with pytest.raises(RuntimeError, match="the operator my_operator was ended before it was done: run this"):
        extension_builds._wait(baton)
    holder.communicate()


def test_on_a_disk_of_many_machines_the_holder_may_be_elsewhere(
    dead_lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_builds, "on_this_machine", lambda path: False)
    assert not extension_builds._try_acquire(FileBaton(str(dead_lock)))
    assert dead_lock.exists()


def test_the_kind_of_a_file_system(tmp_path: Path) -> None:
    assert isinstance(extension_builds.on_this_machine(tmp_path), bool)
    assert not extension_builds.on_this_machine(Path("/proc/self/status"))


def test_what_is_compiled_is_told(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock.parent.mkdir()
    baton = FileBaton(str(lock))
    assert extension_builds._try_acquire(baton)
    baton.release()
    assert "compiling the operator my_operator: once" in capsys.readouterr().err
