"""What the several-nodes part is made of, one machine: store, files, network names, starters."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from workshop import __version__
from workshop.launch.failures import FailureRecord, Frame, RankTimeout
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.messages import from_json, read_file, to_json, write_file
from workshop.launch.nodes import files as node_files
from workshop.launch.nodes import messages
from workshop.launch.nodes import ranks as node_ranks
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.links import Relay
from workshop.launch.nodes.ranks import RemoteNodes, RemoteProcess, StayingNodes, nodes_of_this_allocation
from workshop.launch.nodes.start import Commands, NodeProcess, Srun, Ssh
from workshop.launch.nodes.store import StoreServer
from workshop.launch.rank_folder import FAILURE
from workshop.launch.session import EngineError
from workshop.launch.staying import recovery
from workshop.launch.staying.channels import Exchange
from workshop.launch.staying.ranks import Ranks
from workshop.site.spec import SiteSpec


def asked(server: StoreServer, op: str, *keys: str, values: tuple[bytes, ...] = (), **more: Any) -> list[Any]:
    answers: list[Any] = []
    question = messages.StoreQuestion(op, keys, 1, **more)
    server.ask(
        [to_json(question).encode(), *values],
        lambda frames: answers.append((from_json(messages.StoreAnswer, frames[0]), frames[1:])),
    )
    return answers


def test_the_store_answers_at_once_or_when_the_key_comes() -> None:
    server = StoreServer()
    waiting = asked(server, "get", "g1/a", seconds=10.0)
    assert waiting == []
    assert asked(server, "check", "g1/a")[0][0].number == 0
    asked(server, "set", "g1/a", values=(b"x",))
    assert waiting[0][1] == [b"x"]
    assert [asked(server, "add", "n", amount=k)[0][0].number for k in (2, 3)] == [2, 5]
    assert asked(server, "compare_set", "g1/a", values=(b"y", b"z"))[0][1] == [b"x"]
    assert asked(server, "compare_set", "g1/a", values=(b"x", b"z"))[0][1] == [b"z"]
    assert asked(server, "delete", "g1/a")[0][0].number == 1


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([], "not enough values to unpack"),
        ([b"{"], "Expecting property name"),
        ([b'{"op": "get"}'], "a message StoreQuestion has op, keys, id, amount, seconds, not"),
        ([to_json(messages.StoreQuestion("pop", ("a",), 1)).encode()], "was asked 'pop' with 0 values"),
        ([to_json(messages.StoreQuestion("set", ("a",), 1)).encode()], "was asked 'set' with 0 values"),
    ],
)
def test_what_is_no_question_to_the_store_is_refused(frames: list[bytes], told: str) -> None:
    server = StoreServer()
    with pytest.raises(ValueError, match=told):
        server.ask(frames, print)
    assert asked(server, "count")[0][0].number == 0


def test_the_relay_serves_on_after_what_is_no_question(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "store")
    relay.start()
    rank = zmq.Context.instance().socket(zmq.DEALER)
    rank.linger = 0
    rank.connect(f"ipc://{tmp_path / 'store'}")
    try:
        rank.send_multipart([b"{"])
        rank.send_multipart([to_json(messages.StoreQuestion("count", (), 1)).encode()])
        assert rank.poll(30_000)
        assert from_json(messages.StoreAnswer, rank.recv()) == messages.StoreAnswer(1, number=0)
    finally:
        rank.close()
        relay.close()


def test_who_waits_in_a_closed_store_hears_so_now_and_later() -> None:
    server = StoreServer()
    waiting, other = asked(server, "wait", "g1/a", seconds=10.0), asked(server, "wait", "g2/a", seconds=10.0)
    server.close("g1/")
    assert "the group was cut" in waiting[0][0].error
    assert "the group was cut" in asked(server, "get", "g1/b", seconds=10.0)[0][0].error
    assert other == []


def test_who_has_stopped_waiting_is_forgotten() -> None:
    server = StoreServer()
    assert asked(server, "wait", "a", seconds=0.01) == []
    time.sleep(0.02)
    server.look()
    assert server._waiting == []


def test_a_mirror_becomes_what_the_files_are(tmp_path: Path) -> None:
    here, there = tmp_path / "rank_0", tmp_path / "copy"
    here.mkdir()
    tail, mirror = node_files.Tail(here), node_files.Mirror(there, clock_ahead=100.0)
    for name in ("log", "bars", "stacks"):
        (here / name).write_bytes(b"")
    big = bytes(range(256)) * 5000  # several blocks
    (here / "log").write_bytes(big)
    failure = FailureRecord(1.5, "ValueError", "no", (Frame("/a.py", 3, "f", "g()"),), None, None)
    write_file(here / FAILURE, failure)
    for name, block in tail.all_news():
        mirror.take(name, block)
    assert (there / "log").read_bytes() == big
    assert read_file(FailureRecord, there / FAILURE) == replace(failure, time=101.5)
    assert list(tail.all_news()) == []
    (here / "stacks").write_bytes(b"old")
    assert list(tail.all_news()) == [("stacks", b"old")]
    tail.clear()
    (here / "stacks").write_bytes(b"new")
    assert list(tail.all_news()) == [("stacks", b"new")]


@pytest.mark.parametrize("name", ["../../.bashrc", "connection_0.json", "passed.pkl"])
def test_a_mirror_takes_no_other_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="which no rank writes"):
        node_files.Mirror(tmp_path / "rank_0").take(name, b"x")
    assert sorted(path.name for path in (tmp_path / "rank_0").iterdir()) == ["bars", "log", "stacks"]


def test_a_mirror_takes_no_record_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a message FailureRecord has time, type, message, frames"):
        node_files.Mirror(tmp_path / "rank_0").take(FAILURE, b'{"type": "KeyError"}')
    assert not (tmp_path / "rank_0" / FAILURE).exists()


def test_networks_of_a_launch() -> None:
    assert Nodes(2, "127.0.0.1:29500").environment()["GLOO_SOCKET_IFNAME"] == "lo"
    with pytest.raises(ValueError, match="endpoint 'node1': write it as HOST:PORT"):
        Nodes(2, "node1").environment()
    with pytest.raises(
        ValueError, match=r"no network 'ib7' with an IPv4 address on .*; it has .*lo \(127.0.0.1\)"
    ):
        Nodes(2, "127.0.0.1:29500", interface="ib7").environment()


class Peers(Commands):
    """Nodes whose addresses are told."""

    def address(self, node: int) -> str:
        return {"a": "", "b": "10.1.2.3", "loop": "127.0.0.1"}[self.names[node]]


def test_the_notebook_listens_where_its_nodes_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "127.0.1.1")  # as on many a machine
    monkeypatch.setattr(node_ranks, "address_towards", {"10.1.2.3": "10.1.2.1", "127.0.0.1": "127.0.0.1"}.get)
    assert StayingNodes(Peers(("a", "b"), ((), ()))).own_address() == "10.1.2.1"
    assert StayingNodes(Peers(("loop",), ((),))).own_address() == "127.0.0.1"
    with pytest.raises(ValueError, match=r"no name of the other nodes \(a\) leads .* name the network"):
        StayingNodes(Peers(("a",), ((),))).own_address()
    assert StayingNodes(Peers(("a",), ((),)), interface="lo").own_address() == "127.0.0.1"
    assert node_start.reached_at("node7") == ""
    assert node_start.reached_at("localhost") == "127.0.1.1"


def test_what_a_starter_runs() -> None:
    program = node_start.program()
    command = Srun(("n1", "n2")).command(1, program)
    assert command[:5] == ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2"]
    assert command[-len(program) :] == program
    assert Commands(("b",), (("nsenter", "--net"),)).command(0, ["x"]) == ["nsenter", "--net", "x"]
    with pytest.raises(ValueError, match="2 names for 1 commands"):
        Commands(("a", "b"), (("x",),))
    with pytest.raises(ValueError, match=r"ssh -T b: ssh joins the words .* Ssh\(names\) quotes them"):
        Commands(("b",), (("ssh", "-T", "b"),))
    with pytest.raises(ValueError, match="the names of one node or more"):
        Ssh(("-oProxyCommand=x",))


STAND_IN_SSH = """\
#!/bin/sh
# As ssh does: options and host aside, the words are joined with blanks, and a login shell takes them apart.
while [ "$1" != "${1#-}" ]; do case $1 in -o) shift 2 ;; *) shift ;; esac; done
echo "Welcome to $1"
shift
cd / && exec env -i HOME="$HOME" PATH=/usr/bin:/bin SHELL=/bin/sh sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that runs what it is given here, as ssh runs it there."""
    (tmp_path / "ssh").write_text(STAND_IN_SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_ssh_hands_the_program_on_as_it_is(ssh: None) -> None:
    words = ["printf", "%s|", "a b", "it's", "$HOME; `ls`", 'a "b"', ""]
    done = subprocess.run(Ssh(("ada@b",)).command(0, words), capture_output=True, text=True, timeout=20)
    assert done.stdout == 'Welcome to ada@b\na b|it\'s|$HOME; `ls`|a "b"||'


def test_an_allocation_is_asked_for_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert nodes_of_this_allocation(1) is None
    with pytest.raises(ValueError, match="this notebook is in none .*salloc --nodes 2"):
        nodes_of_this_allocation(2)
    with pytest.raises(ValueError, match="--nnodes 0"):
        nodes_of_this_allocation(0)


def test_the_program_of_a_site() -> None:
    own = node_start.program()
    assert own[0] == "env"
    assert own[2] == sys.executable
    assert node_start.program(SiteSpec(python="/shared/bin/python"))[0] == "/shared/bin/python"
    site = SiteSpec(runtime="apptainer", container="/w.sif", gpus=4, modules=("apptainer",), jobs="/jobs")
    shell, login, flag, script, line, *words = node_start.program(site, "/home/ada/my course")
    assert (shell, login, flag) == ("bash", "-l", "-c")
    assert script.splitlines()[0] == "module load apptainer"
    assert line.startswith("apptainer exec --cleanenv --nv ")
    assert "--pwd '/home/ada/my course'" in line
    assert '${CUDA_VISIBLE_DEVICES+--env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"}' in line
    assert words[0] == "python3"


def test_where_the_nodes_run_other_software_the_notebooks_own_node_is_one_of_them(monkeypatch) -> None:
    monkeypatch.setattr(node_start, "allocated_nodes", lambda: ["n1", "n2", "n3"])
    monkeypatch.setattr(node_start, "this_node", lambda: "n1")
    for name in node_start.INSIDE:
        monkeypatch.delenv(name, raising=False)
    site = SiteSpec(runtime="apptainer", container="/w.sif", interface="ib0")
    outside = nodes_of_this_allocation(2, site=site)
    assert (outside.here, outside.starter.names, outside.site, outside.interface) == (
        *(False, ("n1", "n2"), site, "ib0"),
    )
    monkeypatch.setenv("APPTAINER_CONTAINER", "/w.sif")
    inside = nodes_of_this_allocation(2, site=site)
    assert (inside.here, inside.starter.names, inside.site) == (True, ("n2",), site)
    monkeypatch.delenv("APPTAINER_CONTAINER")
    same = nodes_of_this_allocation(2, site=SiteSpec(python=sys.executable))
    assert (same.here, same.site) == (True, None)
    other = nodes_of_this_allocation(2, site=SiteSpec(python="/shared/bin/python"))
    assert (other.here, other.starter.names) == (False, ("n1", "n2"))


@pytest.mark.parametrize(
    ("own", "here", "others"), [("n1", True, ("n2", "n3")), ("login", False, ("n1", "n2", "n3"))]
)
def test_the_notebooks_own_node_comes_first_if_it_is_one(monkeypatch, own, here, others) -> None:
    monkeypatch.setattr(node_start, "allocated_nodes", lambda: ["n1", "n2", "n3"])
    monkeypatch.setattr(node_start, "this_node", lambda: own)
    nodes = nodes_of_this_allocation(3, "ib0")
    assert (nodes.here, nodes.starter.names, nodes.count, nodes.interface) == (here, others, 3, "ib0")
    with pytest.raises(ValueError, match="--nnodes 4: this allocation has 3 nodes"):
        nodes_of_this_allocation(4)


def test_noise_of_a_login_shell_does_not_hide_the_key(tmp_path: Path) -> None:
    hello = messages.Hello("k", "b", __version__)
    noisy = f"echo 'Welcome to node b'; echo 'workshop-node {to_json(hello)}'; cat"
    process = NodeProcess("b", ["sh", "-c", noisy], tmp_path / "log")
    assert process.hear_hello(30) == hello
    assert not process.ended()
    process.close()
    assert process.ended()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"key": "k", "host": "b", "version": "0.0.1"}', "node b runs workshop 0.0.1 and this notebook"),
        (
            '{"key": "k", "host": "b"}',
            "another workshop than this notebook: a message Hello has key, host, version",
        ),
    ],
)
def test_another_workshop_on_the_node_is_told(tmp_path: Path, line: str, told: str) -> None:
    process = NodeProcess("b", ["sh", "-c", f"echo 'workshop-node {line}'; cat"], tmp_path / "log")
    with pytest.raises(EngineError, match=told):
        process.hear_hello(30)
    process.close()


def test_a_starter_that_says_nothing_or_fails_is_named(tmp_path: Path) -> None:
    silent = NodeProcess("b", ["sleep", "60"], tmp_path / "log")
    with pytest.raises(EngineError, match="node b did not answer within 1 s. It wrote nothing."):
        silent.hear_hello(1)
    threading.Thread(target=silent._process.kill).start()
    silent.close()
    failed = NodeProcess("c", ["sh", "-c", "echo Permission denied >&2; exit 255"], tmp_path / "log")
    with pytest.raises(EngineError, match="node c .*Permission denied"):
        failed.hear_hello(30)
    failed.close()
    with pytest.raises(EngineError, match="node d: cannot run no-such-srun"):
        NodeProcess("d", ["no-such-srun"], tmp_path / "log")


FORGETS = """\
import gc, sys, threading, zmq
from workshop.launch.child.node_store import NodeStore
from workshop.launch.nodes.store import StoreServer

path, server = sys.argv[1], StoreServer()
router = zmq.Context().socket(zmq.ROUTER)
router.bind(f"ipc://{path}")

def serve():
    while True:
        asker, *question = router.recv_multipart()
        server.ask(question, lambda reply: router.send_multipart([asker, *reply]))

threading.Thread(target=serve, daemon=True).start()
store = NodeStore(path)
store.set("a", b"x")
cycle = [store]
cycle.append(cycle)
del store, cycle
gc.collect()
print("collected", flush=True)
"""


def test_the_store_of_a_group_that_was_cut_is_forgotten_at_once(tmp_path: Path) -> None:
    """Its context once waited for its own sockets, in whatever call of a rank the collector ran."""
    command = [sys.executable, "-c", FORGETS, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "collected\n", done.stderr


@pytest.fixture(scope="module")
def beside() -> Iterator[Ranks]:
    """No namespaces, no root: the second node is a process beside the first, over loopback."""
    nodes = StayingNodes(Commands(("beside",), (("env",),)), interface="lo", here=False)
    ranks = Ranks(2, nodes=nodes)
    yield ranks
    ranks.stop()
    assert ranks.broken == "the ranks were stopped"


def test_a_node_program_on_this_machine_is_a_node_like_any_other(beside: Ranks) -> None:
    told = beside.run("x = torch.ones(1) * rank; dist.all_reduce(x); print(x.item(), n)", variables={"n": 7})
    assert told.text == "[ranks 0-1] 1.0 7\n"
    assert "on beside, alive" in beside.status()


def test_ranks_that_wait_in_the_store_come_back_each_time(beside: Ranks) -> None:
    beside.run("kept = rank")
    for _ in range(6):
        with pytest.raises(RankTimeout, match="rank 0 waits in new_group"):
            beside.run("if rank == 0:\n    dist.new_group([0, 1])", timeout=0.5)
        assert beside.broken == ""
    assert beside.run("print(kept)").text == "[rank 0] 0\n[rank 1] 1\n"


def test_signals_have_arrived_before_the_first_connection_is_cut(beside: Ranks, monkeypatch) -> None:
    """Else a cell that deals with KeyboardInterrupt sees a lost connection in its place."""
    order = []
    monkeypatch.setattr(
        RemoteProcess,
        "signal",
        lambda process, number: order.append((process.rank, signal.Signals(number).name)),
    )
    monkeypatch.setattr(RemoteNodes, "settle", lambda *_: order.append("arrived"))
    recovery._interrupt(beside, Exchange(beside.channels))
    assert order == [(0, "SIGINT"), (0, "SIGCONT"), (1, "SIGINT"), (1, "SIGCONT"), "arrived"]


def test_over_ssh(ssh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(1, nodes=StayingNodes(Ssh(("ada@b",)), interface="lo", here=False))
    try:
        assert ranks.run("print(rank, world_size)").text == "[rank 0] 0 1\n"
    finally:
        ranks.stop()
