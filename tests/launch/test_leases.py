"""Two notebooks never take the same GPUs: real processes that race, die, fork, and belong to other users."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from workshop.launch.gpus import lease_files, leases
from workshop.launch.gpus.lease_files import FOLDER
from workshop.launch.processes import ProcessId, ProcessSpace
from workshop.launch.session import EngineError

ROOT = Path(__file__).parents[2]
FOUR = ["0", "1", "2", "3"]
HOLD = """
import os, sys, time
from workshop.launch.gpus import leases
from workshop.launch.processes import ProcessId
os.setuid(int(sys.argv[4]))
try:
    lease = leases.take(int(sys.argv[1]), sys.argv[3].split(","), also=[ProcessId.of(int(sys.argv[2]))])
except leases.GpusTaken as error:
    print("taken", error, flush=True)
    sys.exit(3)
print("held", *lease.gpus, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "leases"))
    return tmp_path / "leases"


class Holding:
    """Another process that holds GPUs until it is told to end, or killed."""

    def __init__(self, n, gpus=FOUR, also=-1, user=None):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(n), str(also), ",".join(gpus), str(user or os.getuid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
        )
        self.said = self.process.stdout.readline().strip()

    def end(self, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
        return self.process.returncode


def test_taken_and_given_back(folder):
    first = leases.take(2, FOUR)
    assert first.gpus == ("0", "1")
    assert {h.gpu for h in leases.holders()} == {"0", "1"}
    assert all(h.processes[0] == ProcessId.of(os.getpid()) for h in leases.holders())
    first.release()
    first.release()
    assert leases.holders() == []
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_another_process_takes_the_others_and_a_third_is_told_who_holds_them(folder):
    first, second = Holding(2), Holding(2)
    assert (first.said, second.said) == ("held 0 1", "held 2 3")
    with pytest.raises(leases.GpusTaken, match="1 ranks need 1 GPUs, and 0 of 4 are free") as error:
        leases.take(1, FOUR)
    said = str(error.value)
    assert said.count(f"process {first.process.pid}") == 2
    assert time.strftime("%H:") in said
    assert "workshop gpus" in said
    assert first.end() == 0  # a process that ends well gives back at once
    assert leases.take(1, FOUR).gpus == ("0",)
    second.end()
    leases._give_all_back()


def test_all_or_nothing(folder):
    with leases_of(3):
        with pytest.raises(leases.GpusTaken, match=r"and 1 of 4 is free.*-n 1"):
            raise_from(Holding(2))
        assert len(leases.holders()) == 3


class leases_of:  # noqa: N801
    def __init__(self, n):
        self.n = n

    def __enter__(self):
        self.lease = leases.take(self.n, FOUR)

    def __exit__(self, *_):
        self.lease.release()


def raise_from(holding):
    code = holding.end()
    if code == 3:
        raise leases.GpusTaken(holding.said)


def test_one_process_may_use_its_own_twice_but_takes_free_ones_first(folder):
    stay = leases.take(3, FOUR)
    fresh = leases.take(2, FOUR)
    assert fresh.gpus == ("0", "3")
    assert fresh.shares("0")
    assert not fresh.shares("3")
    fresh.release()
    assert {h.gpu for h in leases.holders()} == {"0", "1", "2"}  # still held by the first
    stay.release()
    assert leases.holders() == []


def test_busy_ones_last(folder):
    assert leases.take(2, FOUR, busy={"0", "1"}).gpus == ("2", "3")
    assert leases.take(1, FOUR, busy={"0", "1"}).gpus == ("0",)
    leases._give_all_back()


RACE = """
import os, random, sys, time
from pathlib import Path
from workshop.launch.gpus import leases
marks, taken = Path(sys.argv[1]), 0
until = time.monotonic() + 60
while taken < 15 and time.monotonic() < until:
    try:
        lease = leases.take(random.choice((1, 2, 3)), list("0123"))
    except leases.GpusTaken:
        continue
    for gpu in lease.gpus:  # fails if anybody else is between here and the unlink
        os.close(os.open(marks / gpu, os.O_CREAT | os.O_EXCL))
    time.sleep(random.random() / 300)
    for gpu in lease.gpus:
        (marks / gpu).unlink()
    lease.release()
    taken += 1
print(taken)
"""


def test_processes_that_race_never_hold_the_same_gpu(folder, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(marks)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(3)
    ]
    taken = [int(racer.communicate(timeout=90)[0] or -1) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert taken == [15, 15, 15]  # nobody starves
    assert list(folder.iterdir()) == []


def test_a_killed_holder_is_reaped(folder):
    holding = Holding(4)
    files = sorted(folder.iterdir())
    assert len(files) == 4
    holding.end(kill=True)
    assert sorted(folder.iterdir()) == files  # nobody could clean up
    assert leases.holders() == []
    assert list(folder.iterdir()) == []


def test_the_lease_lasts_until_the_engine_has_ended_too(folder):
    engine = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holding = Holding(1, also=engine.pid)
    os.kill(holding.process.pid, signal.SIGKILL)
    holding.process.wait(10)
    assert [h.gpu for h in leases.holders()] == ["0"]  # its ranks may still be ending
    engine.kill()
    engine.wait(10)
    engine.stdin.close()
    assert leases.holders() == []
    holding.end()


def record(folder, processes, **changes):
    """A lease file as a program of ours, or a stranger, might leave it."""
    folder.mkdir(exist_ok=True)
    whole = {"gpu": "0", "program": "x.ipynb", "since": 1.0, "place": asdict(ProcessSpace.here())}
    path = folder / f"{lease_files.PREFIX}0123.json"
    path.write_text(json.dumps({**whole, "processes": processes, **changes}))
    return path


def test_a_number_handed_on_is_not_its_former_owner(folder):
    me = ProcessId.of(os.getpid())
    path = record(folder, [[me.pid, me.start_time]])
    assert [h.gpu for h in leases.holders()] == ["0"]
    record(folder, [[me.pid, me.start_time - 1]])  # alive, but another process
    assert leases.holders() == []
    assert not path.exists()


def test_processes_of_another_pid_namespace_are_judged_by_the_lock(folder):
    elsewhere = {**asdict(ProcessSpace.here()), "pid_namespace": 1}
    path = record(folder, [[os.getpid(), 1]], place=elsewhere)
    with path.open() as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        assert [h.program for h in leases.holders()] == ["x.ipynb"]
    assert leases.holders() == []


ME = [[os.getpid(), ProcessId.of(os.getpid()).start_time]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "JSONDecodeError"),
        ("{", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ("[" * 16_000, "RecursionError|JSONDecodeError"),  # 3.11 and 3.13 differ in how deep they go
        ({"gpu": 1}, "names no GPU"),
        ({"gpu": "0\x1b]0;owned\x07"}, "names no GPU"),
        ({"gpu": "x" * 100}, "names no GPU"),
        ({"since": 1e300}, ""),
        ({"since": float("inf")}, "its time is none"),
        ({"since": "now"}, "its time is none"),
        ({"since": -1}, "its time is none"),
        ({"processes": []}, "names no processes"),
        ({"processes": [["a", 1]]}, "names no processes"),
        ({"processes": [[1e300, 1]]}, "names no processes"),
        ({"processes": [[2**40, 1]]}, "names no processes"),
        ({"processes": [[True, 1]]}, "names no processes"),
        ({"processes": ME * 100}, "names no processes"),
        ({"place": {"boot": "x"}}, "TypeError"),
        ({"place": 7}, "TypeError"),
    ],
)
def test_what_is_no_lease_is_passed_over_with_a_note(folder, content, why):
    path = record(folder, **({"processes": ME} | (content if isinstance(content, dict) else {})))
    if isinstance(content, str):
        path.write_text(content)
    found = leases.all_leases()
    if not why:  # a time to come is now
        assert found.holders[0].since <= time.time()
        assert time.strftime("%H:%M") in str(found.holders[0])
        return
    assert found.holders == ()
    assert re.search(rf"{path} of \w+ is no lease \(.*({why})", found.notes[0])
    assert leases.take(1, ["0"]).gpus == ("0",)
    leases._give_all_back()


def test_what_is_no_file_is_passed_over(folder):
    folder.mkdir()
    (folder / f"{lease_files.PREFIX}a.json").mkdir()
    os.mkfifo(folder / f"{lease_files.PREFIX}b.json")
    (folder / f"{lease_files.PREFIX}c.json").symlink_to("/dev/zero")
    assert [note.rpartition(" (")[2] for note in leases.all_leases().notes] == [
        "it is no file); passed over",
        "it is no file); passed over",
        "Too many levels of symbolic links); passed over",
    ]
    assert leases.take(1, ["0"]).gpus == ("0",)
    leases._give_all_back()


def test_a_flood_of_files_is_cut_off(folder, monkeypatch):
    monkeypatch.setattr(lease_files, "_MOST_OF_ONE_USER", 3)
    folder.mkdir()
    for number in range(5):
        (folder / f"{lease_files.PREFIX}{number}.json").write_text("")
    notes = leases.all_leases().notes
    assert len(notes) == 4
    assert notes[-1].endswith(f"has 5 lease files in {folder}: the first 3 are read")


def test_a_name_cannot_steer_the_terminal(folder):
    record(folder, ME, program="a\x1b[2Jb\u202ec\n" + "d" * 100)
    assert leases.holders()[0].program == ("a[2Jbc" + "d" * 100)[:80]


def test_process_1_is_nobodys_lease(open_folder):
    """A stranger's file that names the first process, or root's: it never ended."""
    open_folder.mkdir()
    open_folder.chmod(0o1777)
    init = ProcessId.of(1)
    path = record(open_folder, [[init.pid, init.start_time], *ME])
    os.chown(path, 65534, 65534)
    assert leases.holders() == []
    assert leases.take(1, ["0"]).gpus == ("0",)
    leases._give_all_back()


def test_a_lock_that_a_stranger_keeps_holds_nobody_up(folder):
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert leases.take(1, ["0"]).gpus == ("0",)
    os.close(descriptor)
    leases._give_all_back()


def test_a_forked_child_gives_nothing_back(folder):
    lease = leases.take(1, FOUR)
    pid = os.fork()
    if pid == 0:
        lease.release()
        leases._give_all_back()
        os._exit(0)
    os.waitpid(pid, 0)
    assert [h.gpu for h in leases.holders()] == ["0"]
    lease.release()


def test_a_folder_that_cannot_be_used_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"no place for GPU leases: .*Set WORKSHOP_GPU_LEASES"):
        leases.take(1, ["0"])
    for_all = tmp_path / "for all"
    for_all.mkdir()
    for_all.chmod(0o777)  # without the sticky bit anybody could remove anybody's leases
    monkeypatch.setenv(FOLDER, str(for_all))
    with pytest.raises(EngineError, match=r"no place for GPU leases: .*can be written to by all users"):
        leases.take(1, ["0"])


@pytest.fixture
def open_folder(monkeypatch):
    """A folder that other users reach."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users")
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    monkeypatch.setenv(FOLDER, str(base / "leases"))
    yield base / "leases"
    shutil.rmtree(base)


def test_another_users_lease_is_honoured_and_a_stale_one_does_no_harm(open_folder):
    other = 65534
    live = leases.take(1, ["0"])
    refused = Holding(1, ["0"], user=other)
    assert refused.said.startswith("taken 1 ranks need 1 GPUs, and 0 of 1 are free. GPU 0: root, ")
    assert refused.end() == 3
    live.release()

    path = record(
        open_folder, [[os.getpid(), 1]]
    )  # root's, stale; the other user can neither write nor remove it
    theirs = Holding(1, ["0"], user=other)
    assert theirs.said == "held 0"
    assert path.exists()
    assert [h.user for h in leases.holders()] != ["root"]
    with pytest.raises(leases.GpusTaken):
        leases.take(1, ["0"])
    theirs.end(kill=True)
    assert leases.take(1, ["0"]).gpus == ("0",)
    leases._give_all_back()
