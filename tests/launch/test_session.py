"""Nothing left behind, side by side, and who may connect."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from workshop.launch import session as session_module
from workshop.launch.processes import ProcessId, ProcessSpace, can_lock, descendants
from workshop.launch.session import OWNER, PREFIX, EngineError, Session, reap_abandoned

NOTEBOOK = """
import sys, time
from workshop import launch
ranks = launch.Ranks(2)
ranks.run("import subprocess; p = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
print(launch.Session.get().directory, flush=True)
launch.torchrun("import time, subprocess; subprocess.Popen(['sleep', '1000']); print('up'); time.sleep(100)", 2)
"""


def _started(temporary: Path) -> tuple[subprocess.Popen[str], Path, list[ProcessId]]:
    """A stand-in for a notebook, in the middle of a cell, with everything it started."""
    env = {**os.environ, "TMPDIR": str(temporary)}
    notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, text=True, env=env)
    assert notebook.stdout is not None
    directory = Path(notebook.stdout.readline().strip())
    deadline = time.monotonic() + 30
    while not list(directory.glob("run-*/attempt_0/rank_1/log")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    return notebook, directory, descendants(notebook.pid)


def test_a_notebook_that_is_killed_leaves_nothing() -> None:
    """By SIGKILL. SIGTERM ends a Python in the same way, and how a supervisor is killed is seen in `test_faults`."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        notebook, directory, below = _started(Path(short))
        assert len(below) >= 8  # supervisor, fork server, tracker, 2 staying and 2 fresh ranks, their sleeps
        assert directory.is_dir()
        notebook.kill()
        notebook.wait(timeout=10)
        deadline = time.monotonic() + 5
        while (any(p.alive() for p in below) or directory.exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [p for p in below if p.alive()] == []
        assert not directory.exists()
        assert [
            name for name in os.listdir(short) if not name.startswith("torchinductor_")
        ] == []  # torch's cache
        assert notebook.stdout is not None
        notebook.stdout.close()


def test_the_directory_is_private() -> None:
    directory = Session.get().directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert directory.stat().st_uid == os.getuid()


def test_two_notebooks_side_by_side_do_not_meet() -> None:
    code = (
        "from workshop import launch\nr = launch.Ranks(2)\nimport sys\n"
        "for i in range(20):\n    r.run(f'x = torch.ones(1) * {sys.argv[1]}; dist.all_reduce(x)')\n"
        "print(r.run('print(x.item())').text, launch.torchrun('print(' + sys.argv[1] + ')', 2).text)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, number], stdout=subprocess.PIPE, text=True)
        for number in "35"
    ]
    texts = [process.communicate(timeout=90)[0] for process in both]
    assert texts == ["[ranks 0-1] 6.0\n [ranks 0-1] 3\n\n", "[ranks 0-1] 10.0\n [ranks 0-1] 5\n\n"]


ME = ProcessId.of(os.getpid())
DEAD = [ME.pid, ME.start_time - 1]
HERE = ProcessSpace.here()


def _directory(base: Path, name: str, **changes: object) -> Path:
    """A session's directory as its owner would leave it, gone by now where ``changes`` say nothing else."""
    directory = base / (PREFIX + name)
    directory.mkdir(mode=0o700)
    record = {"notebook": DEAD, "supervisor": DEAD, "place": asdict(HERE), "since": time.time(), **changes}
    (directory / OWNER).write_text(json.dumps(record))
    return directory


def test_abandoned_directories_are_removed_and_living_ones_are_not(tmp_path: Path) -> None:
    gone = _directory(tmp_path, "gone")
    alive = _directory(tmp_path, "alive", notebook=[ME.pid, ME.start_time])
    being_made = _directory(tmp_path, "new")
    (being_made / OWNER).write_text("{}")
    assert reap_abandoned(tmp_path) == [gone]
    assert alive.exists()
    assert being_made.exists()


def test_sessions_of_other_machines_in_a_shared_folder_are_left_alone(tmp_path: Path) -> None:
    """Their process numbers mean nothing here: each node removed the others' notebooks."""
    other = {**asdict(HERE), "host": "node2", "boot": "another"}
    _directory(tmp_path, "other", place=other)
    _directory(tmp_path, "same-name", place={**other, "host": HERE.host})  # began after this machine did
    assert reap_abandoned(tmp_path) == []


def test_what_an_earlier_boot_left_is_removed(tmp_path: Path) -> None:
    before = {**asdict(HERE), "boot": "an earlier one"}
    gone = _directory(tmp_path, "gone", place=before, since=1.0)
    assert reap_abandoned(tmp_path) == [gone]


def test_a_session_of_another_container_is_judged_by_its_lock(tmp_path: Path) -> None:
    inside = {**asdict(HERE), "pid_namespace": 1}
    directory = _directory(tmp_path, "inside", place=inside)
    descriptor = os.open(directory / OWNER, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert reap_abandoned(tmp_path) == []
    os.close(descriptor)
    assert reap_abandoned(tmp_path) == [directory]


def test_a_session_keeps_its_record_locked() -> None:
    with (Session.get().directory / OWNER).open("rb") as file:
        assert not can_lock(file.fileno())
        assert json.loads(file.read())["place"] == asdict(HERE)


def test_a_link_with_a_sessions_name_leads_nowhere(tmp_path: Path) -> None:
    mine = _directory(tmp_path, "x").rename(tmp_path / "precious")
    (tmp_path / (PREFIX + "planted")).symlink_to(mine)
    assert reap_abandoned(tmp_path) == []
    assert (mine / OWNER).exists()


def test_a_folder_in_which_others_could_replace_a_session_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session_module, "_LONGEST_SOCKET_DIR", 10_000)
    with pytest.raises(EngineError, match="can be written to by all users"):
        Session()


def test_no_place_to_write_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))
    monkeypatch.setattr(session_module, "_LONGEST_SOCKET_DIR", 10_000)
    with pytest.raises(EngineError, match=r"no place for the ranks' sockets and logs .*Set TMPDIR"):
        Session()


def test_an_engine_that_cannot_start_says_what_its_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(
        session_module, "engine_environment", lambda: {"PATH": os.environ["PATH"], "PYTHONHOME": "/nowhere"}
    )
    broken = Session()
    with pytest.raises(EngineError, match="the launch engine stopped"):
        broken.wait_ready()
    broken.close()
