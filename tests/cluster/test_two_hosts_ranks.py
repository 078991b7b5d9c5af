"""Ranks that stay on two hosts: the contract of one machine, and what only several can break."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host, HostError
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
]

START = """
from workshop.launch.nodes.ranks import StayingNodes
from workshop.launch.nodes.start import Commands
names, prefixes = {nodes}
nodes = StayingNodes(Commands(tuple(names), tuple(map(tuple, prefixes))), interface={interface!r})
ranks = launch.Ranks({n}, launch.Limits(timeout=20), nodes)
"""


def start_code(b: Host, n: int = 2, interface: str = lab.INTERFACE) -> str:
    nodes = json.dumps([[b.name], [b.prefix()]])
    return START.format(nodes=nodes, n=n, interface=interface)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    with lab.hosts(("ws-a", "ws-b")) as (a, b):
        yield a, b


@pytest.fixture(scope="module")
def group(pair: tuple[Host, Host]) -> Iterator[Console]:
    console = Console(pair[0])
    console(start_code(pair[1]))
    yield console
    if console.process.poll() is None:
        console("ranks.stop()")
        console.close()
    assert lab.wait_until_gone(pair, 5.0) == []


@pytest.fixture
def ranks(group: Console) -> Iterator[Console]:
    """Healthy ranks with a variable set; the same processes must be there afterwards."""
    pids = group("if ranks.broken: ranks.restart()\nanswer = [p.pid for p in ranks.processes.values()]")
    run(group, "kept = 40 + rank")
    yield group
    assert group("answer = [p.pid for p in ranks.processes.values()]") == pids
    text = run(group, "x = torch.ones(1) * (rank + 1); dist.all_reduce(x); print(x.item(), kept)")
    assert text == "".join(f"[rank {rank}] 10.0 {40 + rank}\n" for rank in range(4))


def run(console: Console, cell: str, **options: object) -> str:
    return console(f"answer = ranks.run({cell!r}, **{options!r}).text")


def test_two_hosts_make_one_group_and_status_names_the_nodes(ranks: Console) -> None:
    text = run(
        ranks,
        "import os, socket\nprint(socket.gethostname(), os.environ['LOCAL_RANK'], dist.get_world_size())",
    )
    assert text == "[rank 0] ws-a 0 4\n[rank 1] ws-a 1 4\n[rank 2] ws-b 0 4\n[rank 3] ws-b 1 4\n"
    status = ranks("answer = ranks.status()").splitlines()
    assert status[0].startswith("4 ranks on 2 nodes, CPU, gloo; group ")
    assert [line.split()[-2].rstrip(",") for line in status[1:]] == ["ws-a", "ws-a", "ws-b", "ws-b"]


def test_values_go_there_and_come_back_and_figures_show(ranks: Console) -> None:
    code = "result = ranks.run('from workshop import report\\nreport(twice=2 * rank + n)', variables={'n': 10})\n"
    assert ranks(code + "answer = [result[rank].twice for rank in range(4)]") == [10, 12, 14, 16]
    cell = "from IPython.display import HTML\nHTML('<b>hi</b>') if rank == 3 else None"
    assert ranks(f"answer = [[r, c['data']['text/html']] for r, c in ranks.run({cell!r}).rich]") == [
        [3, "<b>hi</b>"]
    ]
    assert run(ranks, "print(rank)", on=[1, 2]) == "[rank 1] 1\n[rank 2] 2\n"


def test_a_flood_from_the_other_host_is_shortened_and_stays_in_its_cell(ranks: Console) -> None:
    text = run(ranks, "if rank == 3:\n    for i in range(200_000):\n        print(i)")
    assert "[rank 3] 399\n" in text
    assert text.endswith("[rank 3] 199999\n")
    assert "more lines; the whole log is" in text
    assert run(ranks, "print('next')") == "[ranks 0-3] next\n"


def test_a_failure_on_the_other_host_comes_first_and_costs_no_state(ranks: Console) -> None:
    with pytest.raises(HostError) as caught:
        run(ranks, "if rank == 3:\n    raise ValueError('boom')\ndist.barrier()")
    lines = caught.value.text.splitlines()
    assert (caught.value.kind, lines[0]) == ("RankFailed", "rank 3 raised ValueError first, line 2")
    assert [f"rank {rank}: in barrier, line 3; freed" in lines for rank in range(3)] == [True] * 3


def test_a_hang_across_hosts_is_cut_and_explained(ranks: Console) -> None:
    cell = "x = torch.ones(1)\nif rank == 0:\n    dist.all_reduce(x)\nelse:\n    dist.recv(x, 0)"
    with pytest.raises(
        HostError, match="rank 0 waits in all_reduce at line 3; ranks 1-3 wait in recv at line 5"
    ):
        run(ranks, cell, timeout=1.5)
    # Three wait in the store, which no cut reaches: they come back, or the set is broken and says so.
    with pytest.raises(HostError, match=r"RankTimeout.*new_group|did not come back.*%ranks restart"):
        run(ranks, "if rank < 3:\n    dist.new_group([0, 1, 2, 3])", timeout=2)
    ranks("if ranks.broken: ranks.restart()")
    assert run(ranks, "print(1)") == "[ranks 0-3] 1\n"


def test_the_stop_button_reaches_the_other_host_and_keeps_state(ranks: Console, tmp_path: Path) -> None:
    cell = f"import pathlib\nseen = 0\npathlib.Path({str(tmp_path)!r}, str(rank)).touch()\n"
    cell += "try:\n    dist.recv(torch.ones(1), (rank + 1) % 4)\nexcept KeyboardInterrupt:\n    seen = 1"
    ranks.send(f"ranks.run({cell!r})")
    wait_until(lambda: len(list(tmp_path.iterdir())) == 4)
    time.sleep(0.3)  # from there to the next line
    ranks.process.send_signal(signal.SIGINT)
    with pytest.raises(HostError, match="RankInterrupted"):
        ranks.hear(10)
    assert run(ranks, "print(seen)") == "[ranks 0-3] 1\n"


def test_a_death_names_rank_signal_and_node(group: Console) -> None:
    cell = "import os, time\nif rank == 2:\n    time.sleep(0.3); os.kill(os.getpid(), 9)\ndist.barrier()"
    with pytest.raises(HostError) as caught:
        run(group, cell)
    assert caught.value.text.startswith("rank 2 died first")
    assert "SIGKILL" in caught.value.text
    assert "on node ws-b" in caught.value.text
    assert "%ranks restart" in caught.value.text
    with pytest.raises(HostError, match="rank 2: it died by SIGKILL .*, on node ws-b"):
        run(group, "print(1)")
    group("ranks.restart()")
    assert run(group, "print(1)") == "[ranks 0-3] 1\n"


def test_a_pulled_cable_ends_a_collective_with_a_clear_error(
    pair: tuple[Host, Host], group: Console, tmp_path: Path
) -> None:
    at_work = tmp_path / "at work"
    cell = "import pathlib, time\nwhile True:\n    dist.all_reduce(torch.ones(1)); "
    group.send(f"ranks.run({cell + f'pathlib.Path({str(at_work)!r}).touch(); time.sleep(0.01)'!r})")
    wait_until(at_work.exists)
    pair[1].cable("down")
    try:
        with pytest.raises(HostError) as caught:
            group.hear(60)
        assert caught.value.kind == "RankFailed"
        # Both ends count the same silence: which of the two is first to act on it is open.
        assert re.match(
            "ranks 2-3 died\nranks 2-3: its node ws-b is gone: (nothing was heard of it|its program has ended)",
            caught.value.text,
        )
        assert "rank 0: in all_reduce, line 3; ended" in caught.value.text
        assert lab.wait_until_gone(pair[1:], 5.0) == []
        with pytest.raises(HostError, match="ws-b is gone.*%ranks restart"):
            run(group, "print(1)")
    finally:
        pair[1].cable("up")
        time.sleep(0.2)
        group("ranks.restart()")
    assert run(group, "print(1)") == "[ranks 0-3] 1\n"


def test_a_node_that_cannot_be_started_is_named(pair: tuple[Host, Host]) -> None:
    console = Console(pair[0])
    wrong = start_code(pair[1], interface="nonet0")
    with pytest.raises(HostError, match=r"no network 'nonet0' with an IPv4 address on ws-a; it has .*wnet0"):
        console(wrong)
    broken = START.format(
        nodes=json.dumps([["ws-c"], [["sh", "-c", "echo no such host >&2; exit 1"]]]),
        n=1,
        interface=lab.INTERFACE,
    )
    with pytest.raises(HostError, match="node ws-c .*no such host"):
        console(broken)
    console.close()


@pytest.mark.parametrize("end", ["notebook", "starter"])
def test_nothing_is_left_behind_on_either_host(pair: tuple[Host, Host], group: Console, end: str) -> None:
    """The last tests here: they end the notebook that the others share."""
    if end == "notebook":
        console = group
        console("if ranks.broken: ranks.restart()")
    else:
        console = Console(pair[0])
        console(start_code(pair[1], n=1))
    starter = console("answer = ranks.remote._processes[0].starter.pid")
    cell = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    console.send(f"ranks.run({cell!r})")
    wait_until(
        lambda: min(len(host.processes()) for host in pair) >= 6
    )  # both ends, supervisor, fork server, rank, sleep
    if end == "notebook":
        console.process.kill()
        console.process.wait(5)
        assert lab.wait_until_gone(pair, 5.0) == []
        return
    os.kill(starter, signal.SIGKILL)
    with pytest.raises(HostError, match="rank 1.*its node ws-b is gone: its program has ended"):
        console.hear(10)
    assert lab.wait_until_gone(pair[1:], 5.0) == []
    console.close()
    assert lab.wait_until_gone(pair, 5.0) == []
