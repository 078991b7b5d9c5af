"""What another user of the node can do to leases of GPUs and to running sessions."""

import json
import multiprocessing.connection
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.attacks.table import ADA, MALLORY, as_user, attack, begin_as, end
from workshop.launch import session
from workshop.launch.gpus import lease_files, leases
from workshop.launch.processes import ProcessId, ProcessSpace


def lease_file(shared, name="1", **changes):
    """A lease of GPU 0 as mallory would write it, with process 1 for its holder."""
    init = ProcessId.of(1)
    record = {
        "gpu": "0", "program": "notebook", "since": time.time(), "place": asdict(ProcessSpace.here()),
        "processes": [[init.pid, init.start_time]], **changes,
    }  # fmt: skip
    return shared.file(shared.drop / f"{lease_files.PREFIX}{name}.json", json.dumps(record), MALLORY)


def take():
    """Ada's launch takes the one GPU and gives it back."""
    lease = leases.take(1, ["0"])
    notes = leases.all_leases().notes
    lease.release()
    why = {note.rpartition(" (")[2].removesuffix("); passed over") for note in notes}
    return "passed over" + f" ({', '.join(sorted(why))})" * bool(why) + ": ada got the GPU"


@attack("a lease of 16,000 opening brackets")
def test_brackets(shared):
    shared.file(lease_file(shared), "[" * 16_000, MALLORY)
    return as_user(ADA, take).replace("RecursionError", "JSONDecodeError")


def living(shared, **changes):
    """What ada is told while mallory, alive, leases the GPU; and how her launch ends."""
    holding = begin_as(MALLORY, time.sleep, 60)
    process = ProcessId.of(holding)
    lease_file(shared, processes=[[process.pid, process.start_time]], **changes)
    try:
        return as_user(ADA, take)
    finally:
        end(holding)


@attack("a lease since 1e300, which no clock can show, of a living process of mallory's")
def test_since(shared):
    said = living(shared, since=1e300)
    assert said.startswith(
        "GpusTaken: 1 ranks need 1 GPUs, and 0 of 1 are free. GPU 0: user 54322, notebook (process "
    )
    assert time.strftime(" %B") in said
    return "ada is told that mallory holds the GPU, since now"


@attack("a lease whose GPU is an escape sequence for terminals, of a living process of mallory's")
def test_escapes(shared):
    return living(shared, gpu="\x1b]0;owned\x07")


@attack("a program's name of escape sequences in a lease of a living process of mallory's")
def test_program(shared):
    said = living(shared, program="\x1b[2J\u202e\x9b31mnote\nbook")
    assert all(letter.isprintable() for letter in said)
    assert "user 54322, [2J31mnotebook (process" in said
    return "shown without them: [2J31mnotebook"


@attack("a lease that names process 1, which never ends")
def test_process_1(shared):
    lease_file(shared)
    return as_user(ADA, take)


@attack("a lease that names ada's own process")
def test_process_of_the_victim(shared):
    me = ProcessId.of(os.getpid())
    lease_file(shared, processes=[[me.pid, me.start_time]])
    return as_user(ADA, take)


@attack("a lease that nobody can read, a named pipe, a link and a folder for leases")
def test_no_files(shared):
    lease_file(shared).chmod(0)
    os.mkfifo(shared.drop / f"{lease_files.PREFIX}2.json")
    (shared.drop / f"{lease_files.PREFIX}3.json").symlink_to("/dev/zero")
    (shared.drop / f"{lease_files.PREFIX}4.json").mkdir()
    for path in shared.drop.iterdir():
        os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
    return as_user(ADA, take)


@attack("a thousand lease files")
def test_flood(shared):
    for number in range(1000):
        shared.file(shared.drop / f"{lease_files.PREFIX}{number}.json", "", MALLORY)
    return as_user(ADA, take).partition(" (")[0] + ": ada got the GPU"


def keep_locked(folder: Path):
    """Mallory locks the folder and each lease in it, and never lets go."""
    import fcntl

    kept = [os.open(folder, os.O_RDONLY)]
    fcntl.flock(kept[0], fcntl.LOCK_EX)
    while True:
        for path in folder.glob("*.json"):
            kept.append(os.open(path, os.O_RDONLY))
            try:
                fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(kept.pop())
        time.sleep(0.001)


@attack("a lock on the folder of leases, and on every lease that can be locked, kept for ever")
def test_lock(shared):
    locking = begin_as(MALLORY, keep_locked, shared.drop)
    time.sleep(0.2)
    try:
        return as_user(ADA, take)
    finally:
        end(locking)


def spoil(folder: Path):
    """Mallory removes, empties and renames ada's lease."""
    (path,) = folder.glob("*.json")
    said = []
    for act in (
        path.unlink,
        lambda: path.open("r+b"),
        lambda: path.rename(folder / "x"),
        lambda: path.chmod(0),
    ):
        try:
            act()
            said.append("done")
        except OSError as error:
            said.append(error.strerror)
    return said


@attack("ada's lease removed, emptied, renamed and hidden")
def test_spoilt_lease(shared):
    def hold():
        lease = leases.take(1, ["0"])
        time.sleep(30)
        lease.release()

    holding = begin_as(ADA, hold)
    deadline = time.monotonic() + 20
    while not list(shared.drop.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        said = as_user(MALLORY, spoil, shared.drop)
        assert [holder.user for holder in leases.holders()] == [f"user {ADA}"]
    finally:
        end(holding)
    return f"{', '.join(sorted(set(said)))}: ada's lease held"


@attack("a folder of leases that belongs to mallory, who could remove ada's")
def test_folder_of_leases(shared, monkeypatch):
    shared.mallory.chmod(0o1777)
    monkeypatch.setenv(lease_files.FOLDER, str(shared.mallory))
    return as_user(ADA, take).partition(". If")[0]


# ---------------------------------------------------------------------------- sessions


@attack("mallory lists, enters and connects to the sockets of ada's session")
def test_session_directory(shared, monkeypatch):
    monkeypatch.setattr(session.tempfile, "tempdir", str(shared.drop))
    directory = session._private_directory()  # root's, as ada's would be: mallory is neither
    listener = multiprocessing.connection.Listener(str(directory / "store"))
    said = set()

    def tries():
        for act in (
            lambda: list(directory.iterdir()) or [(directory / "x").stat()],
            lambda: (directory / session.OWNER).read_text(),
            lambda: multiprocessing.connection.Client(str(directory / "store")),
        ):
            try:
                act()
                said.add("done")
            except OSError as error:
                said.add(error.strerror)
        return sorted(said)

    said = set(as_user(MALLORY, tries))
    listener.close()
    assert said == {"Permission denied"}
    return "Permission denied"


def abandoned(directory: Path, owner: int):
    """A session's directory whose owner is gone, by what stands in it."""
    directory.mkdir(mode=0o700)
    dead = [os.getpid(), 1]
    record = {"notebook": dead, "supervisor": dead, "place": asdict(ProcessSpace.here()), "since": 1.0}
    (directory / session.OWNER).write_text(json.dumps(record))
    for path in (directory, directory / session.OWNER):
        os.chown(path, owner, owner)


@attack(
    "a link in /tmp with a session's name, to a folder of ada's: her next session shall remove it as abandoned"
)
def test_link_with_a_sessions_name(shared):
    precious = shared.ada / "precious"
    abandoned(precious, ADA)
    link = shared.drop / f"{session.PREFIX}planted"
    link.symlink_to(precious)
    os.chown(link, MALLORY, MALLORY, follow_symlinks=False)
    assert as_user(ADA, lambda: len(session.reap_abandoned(shared.drop))) == 0
    assert (precious / session.OWNER).exists()
    return "left alone: a link is no session"


@attack("a directory in /tmp with a session's name, whose record names a living process of ada's to be ended")
def test_planted_session(shared):
    def victim():
        time.sleep(60)

    living = begin_as(ADA, victim)
    planted = shared.drop / f"{session.PREFIX}planted"
    abandoned(planted, MALLORY)
    process = ProcessId.of(living)
    record = json.loads((planted / session.OWNER).read_text())
    record["supervisor"] = [process.pid, process.start_time]
    shared.file(planted / session.OWNER, json.dumps(record), MALLORY)
    try:
        assert as_user(ADA, lambda: len(session.reap_abandoned(shared.drop))) == 0
        assert process.alive()
    finally:
        end(living)
    return "left alone: it is mallory's"


@attack("a TMPDIR that mallory can write to, so that she could put her sockets in place of ada's")
def test_tmpdir(shared, monkeypatch):
    monkeypatch.setattr(session.tempfile, "tempdir", str(shared.open))
    return as_user(ADA, lambda: str(session._private_directory()))


@attack("names in /tmp taken before ada's session takes them")
def test_taken_names(shared, monkeypatch):
    monkeypatch.setattr(session.tempfile, "tempdir", str(shared.drop))
    names = iter(["a", "b", "c", "free"])
    monkeypatch.setattr(session.tempfile, "_get_candidate_names", lambda: names)
    for name in "abc":
        (shared.drop / f"{session.PREFIX}{name}").symlink_to(shared.mallory)
    made = as_user(ADA, lambda: str(session._private_directory()))
    assert made == str(shared.drop / f"{session.PREFIX}free")
    assert list(shared.mallory.iterdir()) == []
    return "passed over: the directory is made anew, or not at all"


@attack("mallory connects to the store at which ada's fresh ranks meet, on loopback")
def test_store_on_loopback():
    program = "from workshop.launch.child.rendezvous import store_on as s; a = s('127.0.0.1'); print(a.port, flush=True); input()"
    serving = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(serving.stdout.readline())
        as_user(MALLORY, lambda: socket.create_connection(("127.0.0.1", port), 10).close())
    finally:
        serving.communicate("\n", timeout=30)
    return (
        "she can, as under torchrun: it holds short texts, of which none is unpickled, but she could disturb"
    )
