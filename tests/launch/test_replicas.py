"""Replicas, for real: one dies and the run goes on; what it says when it does not; and that nobody else can reach it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.faults.orphans import leads_of, listeners_beyond_loopback, wait_until
from workshop.launch import (
    Cell,
    EngineError,
    Limits,
    RankFailed,
    RankInterrupted,
    RankTimeout,
    Script,
    Session,
    processes,
    replicas,
)
from workshop.launch.fresh.replicas import ReplicaTranscript

ROOT = Path(__file__).parents[2]
OUTLIVE = ROOT / "examples" / "replicas" / "outlive.py"
SHORT = Limits(timeout=60)
WHO = "import os, time\nreplica, rank = int(os.environ['REPLICA_GROUP_ID']), int(os.environ['RANK'])\n"
# Everything that a replica of a real run has open is open; it steps until it is told to go.
AT_WORK = """\
import os, time
from datetime import timedelta
from pathlib import Path
import torch
from torchft import Manager, ProcessGroupGloo

replica = os.environ["REPLICA_GROUP_ID"]
manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=30)), min_replica_size=1, load_state_dict=print,
                  state_dict=dict, replica_id="replica_" + replica)
while not Path(where, "go").exists():
    manager.start_quorum()
    manager.allreduce(torch.ones(1)).wait()
    if manager.should_commit() and manager.num_participants() == 2 and not Path(where, replica).exists():
        Path(where, replica + ".part").write_text(f"{os.getpid()} {os.environ['TORCHFT_LIGHTHOUSE']}")
        Path(where, replica + ".part").rename(Path(where, replica))
    time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def nothing_left():
    """After each launch the engine's own two processes are left: no agent, no rank, no lighthouse."""
    session = Session.get()
    session.wait_ready()
    engine = {process.pid for process in processes.descendants(session.process.pid)}
    yield
    if session.usable():
        wait_until(lambda: len(processes.descendants(session.process.pid)) > len(engine), 5.0)
        assert {process.pid for process in processes.descendants(session.process.pid)} == engine


def test_a_replica_is_killed_in_a_step_the_others_go_on_and_it_comes_back_with_their_weights() -> None:
    result = replicas(Script(OUTLIVE, ("--kill", "2")), 3, limits=Limits(timeout=100, max_restarts=1))
    said = [one.text for one in result.replicas]
    assert result.notes[0].startswith("replica 2: attempt 1 failed (rank 0 died); it was started again")
    assert "the work of a step is lost" in said[0]
    for who, text in enumerate(said[:2]):  # those who live: 3 took part, then 2, then 3 again, in one process
        assert "--- attempt" not in text, f"replica {who} has died too"
        after = text.split("is lost")[1]
        assert after.index("2 of 3 take part") < after.index("3 of 3 take part")
    assert "takes the state of a peer" in said[2].split("--- attempt 2 ---")[1]
    last = result.text.splitlines()[-1]
    assert re.fullmatch(r"\[replicas 0-2\] ended at step \d+ with weights [0-9a-f]{8}", last)
    assert result.device.startswith("3 replicas of 1 rank on CPU, gloo") or "GPU" in result.device


def test_one_that_fails_for_ever_gives_up_and_the_others_finish() -> None:
    body = WHO + (
        "from workshop import report\nattempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "def step():\n    raise ValueError(f'attempt {attempt}')\n"
        "if replica == 1:\n    step()\nreport(done=replica)\nprint('done')\n"
    )
    with pytest.raises(RankFailed) as caught:
        replicas(Cell(body), 3, limits=Limits(timeout=60, max_restarts=2))
    assert str(caught.value).splitlines() == [
        "replica 1: rank 0 raised ValueError, line 7, and so did 2 attempts before",
        "rank 0: ValueError: attempt 2",
        "    cell line 9",
        "        step()",
        "    cell line 7, in step",
        "        raise ValueError(f'attempt {attempt}')",
        "replicas 0,2: went on, and finished",
    ]
    (failure,) = caught.value.failures
    assert (failure.replica, failure.rank, failure.error_type, failure.line) == (1, 0, "ValueError", 7)
    result = caught.value.result
    assert (result[0][0].done, result[2][0].done) == (0, 2)
    assert len(result.notes) == 2
    assert "[replicas 0,2] done\n" in result.text
    with pytest.raises(KeyError, match="no replica 3; this launch had replicas 0 to 2"):
        result[3]


def test_a_mistake_that_all_make_is_told_once() -> None:
    with pytest.raises(RankFailed) as caught:
        replicas("import os\nprint(undefined)\n", 3, limits=SHORT)
    assert str(caught.value).splitlines()[:2] == [
        "replicas 0-2: rank 0 raised NameError, line 3",
        "rank 0: NameError: name 'undefined' is not defined",
    ]
    assert [failure.replica for failure in caught.value.failures] == [0, 1, 2]


def test_a_replica_of_several_ranks_is_a_launch_of_its_own() -> None:
    body = WHO + (
        "import torch, torch.distributed as dist\nfrom workshop import report\ndist.init_process_group()\n"
        "total = torch.tensor([10.0 * replica + rank])\ndist.all_reduce(total)\nprint('sum', total.item())\n"
        "report(total=total, groups=os.environ['NUM_REPLICA_GROUPS'], local=os.environ['LOCAL_RANK'])\n"
        "dist.destroy_process_group()\n"
    )
    result = replicas(body, 2, 2, limits=SHORT)
    assert result.text == "[replica 0 ranks 0-1] sum 1.0\n[replica 1 ranks 0-1] sum 21.0\n"
    assert [[result[r][k].total.item() for k in (0, 1)] for r in (0, 1)] == [[1.0, 1.0], [21.0, 21.0]]
    assert [result[1][k].local for k in (0, 1)] == ["0", "1"]
    assert result[0][0].groups == "2"
    assert len(result) == 2
    assert result.device.startswith("2 replicas of 2 ranks on ")


def test_only_the_failing_replicas_ranks_start_again() -> None:
    body = WHO + (
        "from workshop import report\nattempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if (replica, rank, attempt) == (1, 1, 0):\n    os.kill(os.getpid(), 9)\n"
        "time.sleep(1.0)\nreport(attempt=attempt)\n"
    )
    result = replicas(body, 2, 2, limits=Limits(timeout=60, max_restarts=1))
    assert [[result[r][k].attempt for k in (0, 1)] for r in (0, 1)] == [[0, 0], [1, 1]]
    assert result.notes == ("replica 1: attempt 1 failed (rank 1 died first); it was started again",)


def test_the_stop_button_ends_all_of_them() -> None:
    pressed = threading.Event()

    def press(first: str, text: str) -> None:
        if "at work" in text and not pressed.is_set():
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RankInterrupted, match="the 3 replicas were ended") as caught:
        replicas(
            "import time\nprint('at work', flush=True)\ntime.sleep(600)", 3, limits=SHORT, on_output=press
        )
    assert "at work" in caught.value.result.text
    assert replicas("print(1)", 2, limits=SHORT).text == "[replicas 0-1] 1\n"


def test_when_time_is_up_each_replicas_place_is_told() -> None:
    body = WHO + "if replica == 2:\n    time.sleep(600)\nprint('done')\n"
    with pytest.raises(RankTimeout) as caught:
        replicas(body, 3, limits=Limits(timeout=8))
    lines = str(caught.value).splitlines()
    assert lines[0] == "time is up after 8 s."
    assert "replicas 0-1: rank 0 has left the cell." in lines
    assert "replica 2: rank 0 is at line 5." in lines
    assert [(failure.replica, failure.line) for failure in caught.value.failures] == [(2, 5)]


class Working:
    """Two replicas at work in a thread; `pids` of their ranks, `port` of the lighthouse."""

    def __init__(self, folder: Path, limits: Limits = SHORT):
        self.folder, self.error, self.result, self.pids = folder, None, None, [0, 0]
        self.thread = threading.Thread(target=self._run, args=(limits,))

    def _run(self, limits: Limits) -> None:
        try:
            self.result = replicas(AT_WORK, 2, limits=limits, variables={"where": str(self.folder)})
        except RuntimeError as error:
            self.error = error

    def __enter__(self) -> Working:
        self.thread.start()
        wait_until(
            lambda: self.thread.is_alive() and not all((self.folder / str(r)).exists() for r in (0, 1)), 50
        )
        assert self.error is None
        for replica in (0, 1):
            pid, lighthouse = (self.folder / str(replica)).read_text().split()
            self.pids[replica], self.port = int(pid), int(lighthouse.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        (self.folder / "go").touch()
        self.thread.join(60)

    def listeners(self) -> set[str]:
        """Addresses on which anything in the replicas' network listens, in hexadecimal."""
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/{self.pids[0]}/net/{table}").read_text().splitlines()[1:]
        ]
        return {row[1].split(":")[0] for row in rows if row[3] == "0A"}


def test_nobody_from_outside_reaches_a_launch_and_all_of_it_listens_on_loopback(tmp_path: Path) -> None:
    with Working(tmp_path) as working:
        assert Path(f"/proc/{working.pids[0]}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        assert (
            Path(f"/proc/{working.pids[0]}/ns/net").readlink()
            == Path(f"/proc/{working.pids[1]}/ns/net").readlink()
        )
        interfaces = Path(f"/proc/{working.pids[0]}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces if not line.strip().startswith("tun")][
            :1
        ] == ["lo"]
        assert working.listeners() == {"0100007F"}, "lighthouse, managers, stores and checkpoints"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", working.port), timeout=5)
    assert working.error is None
    assert "everybody" not in working.result.device


def test_without_a_network_of_their_own_they_say_so_and_stay_on_loopback(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORKSHOP_REPLICAS_NETWORK", "shared")
    with Working(tmp_path) as working:
        assert Path(f"/proc/{working.pids[0]}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        ours = processes.descendants(Session.get().process.pid)
        assert listeners_beyond_loopback(ours) == []
        socket.create_connection(("127.0.0.1", working.port), timeout=5).close()
    assert working.error is None
    assert working.result.device.endswith(
        "everybody on this machine can reach them (no network of their own: as asked)"
    )


def holder(working: Working) -> list[processes.ProcessId]:
    """The process that holds the lighthouse's port."""
    rows = [line.split() for line in Path(f"/proc/{working.pids[0]}/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [row[9] for row in rows if int(row[1].split(":")[1], 16) == working.port and row[3] == "0A"]
    below = processes.descendants(Session.get().process.pid)
    return [p for p in below if f"socket:[{inode}]" in leads_of(p.pid)]


def test_a_lighthouse_that_dies_ends_the_launch_with_a_word(tmp_path: Path) -> None:
    with Working(tmp_path) as working:
        (lighthouse,) = holder(working)
        lighthouse.signal(signal.SIGKILL)
        working.thread.join(30)
    assert isinstance(working.error, EngineError)
    assert "the lighthouse ended before the replicas" in str(working.error)


def test_an_agent_that_is_killed_costs_its_replica_and_leaves_no_rank(tmp_path: Path) -> None:
    engine = {process.pid for process in processes.descendants(Session.get().process.pid)}
    with Working(tmp_path) as working:
        known = {*engine, *working.pids, *(process.pid for process in holder(working))}
        agents = [p for p in processes.descendants(Session.get().process.pid) if p.pid not in known]
        assert len(agents) == 2
        ranks = [processes.ProcessId.of(pid) for pid in working.pids]
        agents[0].signal(signal.SIGKILL)
        wait_until(lambda: all(rank.alive() for rank in ranks), 10)
        lost = [replica for replica in (0, 1) if not ranks[replica].alive()]
    assert len(lost) == 1
    assert isinstance(working.error, RankFailed)
    assert str(working.error).splitlines() == [
        f"replica {lost[0]}: its agent ended without a word",
        f"replica {1 - lost[0]}: went on, and finished",
    ]


WITHOUT_RIGHTS = """\
import ctypes, encodings.idna, os, socket
from workshop.launch.child import own_network

if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: who was never root has its own /proc/self
print("refusal:", repr(own_network.refusal()), flush=True)
told, tell = os.pipe()
maker = os.fork()
if maker == 0:
    own_network.make()
    listener = socket.create_server(("127.0.0.1", 0))
    os.write(tell, str(listener.getsockname()[1]).encode())
    listener.accept()[0].sendall(b"in")
    os._exit(0)
port = int(os.read(told, 10))
try:
    socket.create_connection(("127.0.0.1", port), 2)
except OSError as error:
    print("outside:", type(error).__name__, flush=True)
guest = os.fork()
if guest == 0:
    own_network.join(maker)
    print("inside:", socket.create_connection(("127.0.0.1", port), 5).recv(2).decode(), os.getuid(), flush=True)
    os._exit(0)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (guest, maker)])
"""


def test_who_is_not_root_may_make_a_network_too() -> None:
    if subprocess.run(["unshare", "-Urn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no user namespaces")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    )
    user = os.getuid() or 65534
    assert done.stdout.splitlines() == [
        "refusal: ''",
        "outside: ConnectionRefusedError",
        f"inside: in {user}",
        "[0, 0]",
    ], done.stderr


def test_a_machine_that_allows_none_says_why_and_nothing_of_the_try_is_left() -> None:
    body = (
        "import os\nfrom workshop.launch.child import own_network\n"
        "def refused(name, *arguments):\n    raise PermissionError(1, 'not here')\n"
        "own_network._call = refused\nbefore = os.readlink('/proc/self/ns/net')\n"
        "print(own_network.refusal(), os.readlink('/proc/self/ns/net') == before)\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "not here True\n", done.stderr


def test_values_and_arguments_reach_every_replica(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys\nprint(sys.argv[1:], lr)\n")
    result = replicas(Script(path, ("--lr", "1")), 2, variables={"lr": 0.5}, limits=SHORT)
    assert result.text == "[replicas 0-1] ['--lr', '1'] 0.5\n"


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_number_of_replicas_that_is_none(count) -> None:
    with pytest.raises(ValueError, match="one or more, for example --replicas 3"):
        replicas("pass", count)


def test_an_unknown_network_names_the_known(monkeypatch) -> None:
    monkeypatch.setenv("WORKSHOP_REPLICAS_NETWORK", "open")
    with pytest.raises(ValueError, match=r"'open': own \(the default\) or shared"):
        replicas("pass", 2)


def test_without_torchft_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install 'torchft==0\.2\.\*'"):
        replicas("pass", 2)


def test_lines_of_several_ranks_of_several_replicas_stand_once(tmp_path: Path) -> None:
    transcript = ReplicaTranscript(alone=False)
    for replica, rank, text in [(0, 0, "a\n"), (0, 1, "a\n"), (1, 0, "a\nb\n"), (1, 1, "a\n"), (2, 0, "a\n")]:
        path = tmp_path / f"{replica}{rank}"
        path.write_text(text)
        transcript.add(replica, rank, path)
    transcript.finish()
    assert transcript.text() == "[replicas 0-1 ranks 0-1, replica 2 rank 0] a\n[replica 1 rank 0] b\n"
    assert transcript.text(1) == "[replica 1 ranks 0-1] a\n[replica 1 rank 0] b\n"
