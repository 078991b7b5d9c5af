"""The engine imports torch once: its fork server is a fork of the supervisor, and ranks see nothing of that."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.faults.orphans import leads_of
from tests.waiting import wait_until
from workshop import launch
from workshop.launch.processes import children, descendants

WHAT_A_RANK_HAS = """
import json, logging, multiprocessing.util, os, tempfile
wires = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
print(json.dumps({
    "server": os.getppid(),
    "folder": tempfile.gettempdir(),
    "handlers": len(logging.getLogger().handlers),
    "spawn": multiprocessing.util.spawnv_passfds.__module__,
    "supervisors": [wire for wire in wires if "supervisor" in wire],
    "sockets": sorted(wire for wire in wires if wire.startswith("socket:")),
}))
"""


def seen_by_a_rank():
    return json.loads(launch.torchrun(WHAT_A_RANK_HAS, 1).text.removeprefix("[rank 0] "))


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def sockets_of(pid):
    return {lead for lead in leads_of(pid) if lead.startswith("socket:")}


def test_the_fork_server_is_a_fork_of_the_supervisor():
    rank, supervisor = seen_by_a_rank(), launch.Session.get().process.pid
    assert rank["server"] in children(supervisor)
    assert command_line(rank["server"]) == command_line(supervisor)


def test_a_rank_has_nothing_of_the_supervisor():
    rank = seen_by_a_rank()
    assert rank["folder"] == tempfile.gettempdir()
    assert rank["handlers"] == 0, "logging.basicConfig of a program has its effect"
    assert rank["spawn"] == "multiprocessing.util", "its own processes are spawned as ever"
    wire = {str(Path(f"/proc/self/fd/{launch.Session.get().descriptor()}").readlink())}
    assert sockets_of(launch.Session.get().process.pid), "the supervisor's end of the wire"
    assert not set(rank["sockets"]) & (wire | sockets_of(launch.Session.get().process.pid))


def test_after_a_fork_server_that_was_killed_the_next_launch_has_another():
    first = seen_by_a_rank()["server"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{first}").exists() or command_line(first) == b"")
    second = seen_by_a_rank()["server"]
    assert second != first
    assert seen_by_a_rank()["server"] == second, "it is the engine's own now, and stays after a launch"


KILLED_AT_THE_LAST_MOMENT = """
import multiprocessing, os, signal, time
from multiprocessing import forkserver
from workshop.launch.child import fork_server

if __name__ == "__main__":
    for _ in range(5):
        forkserver.ensure_running()
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        fork_server.let_a_dying_one_go()
        process = multiprocessing.get_context("forkserver").Process(target=time.time)
        process.start()
        process.join(20)
        print(process.exitcode, end=" ")
"""


def test_a_process_starts_right_after_its_fork_server_was_killed(tmp_path):
    """Without `let_a_dying_one_go` 29 of 30 such starts met EOFError or a broken connection."""
    (tmp_path / "killed.py").write_text(KILLED_AT_THE_LAST_MOMENT)
    command = [sys.executable, str(tmp_path / "killed.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.split(), done.stderr) == (["0"] * 5, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_notebook_that_goes_while_torch_is_imported_leaves_nothing(number):
    """The supervisor reads no commands yet; that its notebook has gone it sees all the same."""
    code = "import time\nfrom workshop import launch\nprint(launch.Session().directory, flush=True)\ntime.sleep(100)"
    notebook = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    directory = Path(notebook.stdout.readline().strip())
    below = descendants(notebook.pid)
    notebook.send_signal(number)
    notebook.wait(20)
    notebook.stdout.close()
    assert below
    wait_until(lambda: not any(process.alive() for process in below))
    wait_until(lambda: not directory.exists())
