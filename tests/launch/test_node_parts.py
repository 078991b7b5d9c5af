"""What the several-nodes part is made of, one machine: store, files, network names, starters."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workshop.launch.fresh.nodes import Nodes
from workshop.launch.nodes import files as node_files
from workshop.launch.nodes import network as node_network
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.ranks import StayingNodes, nodes_of_this_allocation
from workshop.launch.nodes.start import Commands, NodeProcess, Srun
from workshop.launch.nodes.store import StoreServer
from workshop.launch.session import EngineError
from workshop.launch.staying.ranks import Ranks


def asked(server: StoreServer, op: str, *keys: str, values: tuple[bytes, ...] = (), **more: Any) -> list[Any]:
    said: list[Any] = []
    header = {"op": op, "keys": keys, "id": 1, **more}
    server.ask(
        [json.dumps(header).encode(), *values],
        lambda frames: said.append((json.loads(frames[0]), frames[1:])),
    )
    return said


def test_the_store_answers_at_once_or_when_the_key_comes() -> None:
    server = StoreServer()
    waiting = asked(server, "get", "g1/a", seconds=10.0)
    assert waiting == []
    assert asked(server, "check", "g1/a")[0][0]["number"] == 0
    asked(server, "set", "g1/a", values=(b"x",))
    assert waiting[0][1] == [b"x"]
    assert [asked(server, "add", "n", amount=k)[0][0]["number"] for k in (2, 3)] == [2, 5]
    assert asked(server, "compare_set", "g1/a", values=(b"y", b"z"))[0][1] == [b"x"]
    assert asked(server, "compare_set", "g1/a", values=(b"x", b"z"))[0][1] == [b"z"]
    assert asked(server, "delete", "g1/a")[0][0]["number"] == 1


def test_who_waits_in_a_closed_store_hears_so_now_and_later() -> None:
    server = StoreServer()
    waiting, other = asked(server, "wait", "g1/a", seconds=10.0), asked(server, "wait", "g2/a", seconds=10.0)
    server.close("g1/")
    assert "the group was cut" in waiting[0][0]["error"]
    assert "the group was cut" in asked(server, "get", "g1/b", seconds=10.0)[0][0]["error"]
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
    (here / "failure.json").write_text(json.dumps({"time": 1.5, "type": "ValueError"}))
    for name, block in tail.all_news():
        mirror.take(name, block)
    assert (there / "log").read_bytes() == big
    assert json.loads((there / "failure.json").read_text())["time"] == 101.5
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


def test_networks_by_name() -> None:
    assert node_network.address_of("lo") == "127.0.0.1"
    assert node_network.interface_towards("127.0.0.1") == "lo"
    with pytest.raises(
        ValueError, match=r"no network 'ib7' with an IPv4 address on .*; it has .*lo \(127.0.0.1\)"
    ):
        node_network.address_of("ib7")
    assert node_network.address_of("none0,lo") == "127.0.0.1"
    assert node_network.collectives_on("none0,lo") == {
        "NCCL_SOCKET_IFNAME": "none0,lo", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    assert Nodes(2, "127.0.0.1:29500").environment()["GLOO_SOCKET_IFNAME"] == "lo"
    with pytest.raises(ValueError, match="endpoint 'node1': write it as HOST:PORT"):
        Nodes(2, "node1").environment()


def test_what_a_starter_runs() -> None:
    program = node_start.program()
    command = Srun(("n1", "n2")).command(1, program)
    assert command[:5] == ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2"]
    assert command[-len(program) :] == program
    assert Commands(("b",), (("ssh", "-T", "b"),)).command(0, ["x"]) == ["ssh", "-T", "b", "x"]
    with pytest.raises(ValueError, match="2 names for 1 commands"):
        Commands(("a", "b"), (("x",),))


def test_an_allocation_is_asked_for_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert nodes_of_this_allocation(1) is None
    with pytest.raises(ValueError, match="this notebook is in none .*salloc --nodes 2"):
        nodes_of_this_allocation(2)
    with pytest.raises(ValueError, match="--nnodes 0"):
        nodes_of_this_allocation(0)


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
    noisy = 'echo "Welcome to node b"; echo "workshop-node {\\"key\\": \\"k\\"}"; cat'
    process = NodeProcess("b", ["sh", "-c", noisy], tmp_path / "log")
    assert process.hear_key(5) == {"key": "k"}
    assert not process.ended()
    process.close()
    assert process.ended()


def test_a_starter_that_says_nothing_or_fails_is_named(tmp_path: Path) -> None:
    silent = NodeProcess("b", ["sleep", "60"], tmp_path / "log")
    with pytest.raises(EngineError, match="node b did not answer within 1 s. It wrote nothing."):
        silent.hear_key(1)
    threading.Thread(target=silent._process.kill).start()
    silent.close()
    failed = NodeProcess("c", ["sh", "-c", "echo Permission denied >&2; exit 255"], tmp_path / "log")
    with pytest.raises(EngineError, match="node c .*Permission denied"):
        failed.hear_key(5)
    failed.close()
    with pytest.raises(EngineError, match="node d: cannot run no-such-srun"):
        NodeProcess("d", ["no-such-srun"], tmp_path / "log")


def test_a_node_program_on_this_machine_is_a_node_like_any_other() -> None:
    """No namespaces, no root: the second node is a process beside the first, over loopback."""
    nodes = StayingNodes(Commands(("beside",), (("env",),)), interface="lo", here=False)
    ranks = Ranks(2, nodes=nodes)
    try:
        assert (
            ranks.run("x = torch.ones(1) * rank; dist.all_reduce(x); print(x.item())").text
            == "[ranks 0-1] 1.0\n"
        )
        assert "on beside, alive" in ranks.status()
    finally:
        ranks.stop()
    assert ranks.broken == "the ranks were stopped"
