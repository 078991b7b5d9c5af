"""Fresh ranks on two hosts: equal results, a restart after a rank was killed, and a pulled cable."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host, HostError
from tests.cluster.test_two_hosts_ranks import start_code
from tests.waiting import wait_until
from workshop import launch

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
]

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(rank)
x = torch.randn(1000)
dist.all_reduce(x)
parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(parts, x[:1] + rank)
print(x.double().sum().item(), [part.item() for part in parts])
dist.destroy_process_group()
"""

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
CABLE_SECONDS = 8  # busy ranks begin in that time, and TCP has not given up yet (seen: some ten seconds)
TRAINING = ("--model", "tiny", "--zero", "3", "--steps", "8", "--save-every", "2")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    with lab.hosts(("ws-a", "ws-b")) as (a, b):
        yield a, b


@pytest.fixture(scope="module")
def consoles(pair: tuple[Host, Host]) -> Iterator[tuple[Console, Console]]:
    both = Console(pair[0]), Console(pair[1])
    yield both
    for console in both:
        console.close()
    assert lab.wait_until_gone(pair, 5.0) == []


def on_both(
    consoles: tuple[Console, Console], program: str, *, timeout: float = 40, restarts: int = 0
) -> list[str]:
    """What the ranks of each host printed, two on each; or the error that was raised there.

    ``program``: a Python expression. The name of the launch and its port are the same each time.
    """
    for console in consoles:
        console.send(
            f"nodes = launch.Nodes(2, '10.98.7.1:29611', 'two-hosts', interface={lab.INTERFACE!r}, timeout=20)\n"
            f"limits = launch.Limits({timeout}, max_restarts={restarts})\n"
            f"answer = launch.torchrun({program}, 2, nodes=nodes, limits=limits).text"
        )
    return [heard(console, timeout + 15) for console in consoles]


def heard(console: Console, timeout: float) -> str:
    try:
        return console.hear(timeout)
    except HostError as error:
        return f"{error.kind} after {error.seconds:.1f} s: {error.text}"


def unfolded(texts: list[str]) -> dict[int, list[str]]:
    said: dict[int, list[str]] = {}
    for line in "".join(texts).splitlines():
        ranks, words = re.fullmatch(r"\[ranks? ([\d,-]+)\] ?(.*)", line).groups()
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                said.setdefault(rank, []).append(words)
    return said


def test_two_hosts_compute_what_one_does_under_both_engines(pair, consoles) -> None:
    one = unfolded([launch.torchrun(PROGRAM, 4).text])
    two = unfolded(on_both(consoles, repr(PROGRAM)))
    again = unfolded(on_both(consoles, repr(PROGRAM)))
    consoles[0](start_code(pair[1]))
    stay = unfolded([consoles[0](f"answer = ranks.run({PROGRAM!r}).text\nranks.stop()")])
    assert sorted(one) == [0, 1, 2, 3]
    assert one == two == again == stay


def losses(text: str) -> dict[int, str]:
    """Loss of each step, as all ranks printed it."""
    found = re.findall(r"^\[ranks [\d,-]+\] step (\d+) loss ([\d.]+)$", text, re.MULTILINE)
    return {int(step): loss for step, loss in found}


@pytest.fixture(scope="module")
def unbroken() -> dict[int, str]:
    result = launch.torchrun(launch.Script(EXAMPLE, TRAINING), 4, limits=launch.Limits(60))
    assert sorted(losses(result.text)) == list(range(8))
    return losses(result.text)


def test_a_killed_rank_is_replaced_on_one_node_with_the_loss_of_the_unbroken_run(unbroken, tmp_path) -> None:
    args = (*TRAINING, "--folder", str(tmp_path), "--die-at", "5")
    result = launch.torchrun(launch.Script(EXAMPLE, args), 4, limits=launch.Limits(60, max_restarts=1))
    assert result.notes[0].startswith("attempt 1 failed (rank 3 died first")
    assert losses(result.text) == {
        step: unbroken[step] for step in range(4, 8)
    }  # from the checkpoint of step 4


def test_a_killed_rank_is_replaced_on_two_nodes_with_the_loss_of_the_unbroken_run(
    consoles, unbroken, tmp_path
) -> None:
    args = (*TRAINING, "--folder", str(tmp_path), "--die-at", "5")
    program = f"launch.Script(__import__('pathlib').Path({str(EXAMPLE)!r}), {args!r})"
    first, second = on_both(consoles, program, timeout=60, restarts=1)
    assert second.startswith("attempt 1 failed (rank 3 died first")
    assert first.startswith("attempt 1 failed (")  # its ranks lost their peer: an effect, on the other host
    assert losses(first) == losses(second) == {step: unbroken[step] for step in range(4, 8)}


def test_without_restarts_left_both_hosts_are_told(consoles, tmp_path) -> None:
    """The ranks of the first host still wait for the others when one of those dies."""
    program = "import os\nimport torch.distributed as dist\nif os.environ['RANK'] == '3':\n    os.kill(os.getpid(), 9)\ndist.init_process_group()"
    first, second = on_both(consoles, repr(program), timeout=90)
    assert "rank 3 died first" in second
    assert first.startswith("RankFailed")
    assert "rank 3 failed on another node" in first


def test_a_pulled_cable_ends_a_launch_within_its_time_limit(pair, consoles, tmp_path) -> None:
    at_work = tmp_path / "at work"
    body = "import pathlib, time\nimport torch, torch.distributed as dist\ndist.init_process_group()\nwhile True:\n"
    body += f"    dist.all_reduce(torch.ones(1)); pathlib.Path({str(at_work)!r}).touch(); time.sleep(0.01)"

    def pull_when_at_work() -> None:
        wait_until(at_work.exists)
        pair[1].cable("down")

    pulling = threading.Thread(target=pull_when_at_work)
    pulling.start()
    try:
        told = on_both(consoles, repr(body), timeout=CABLE_SECONDS)
        pulling.join()
        assert at_work.exists()
        for text, ranks in zip(told, ("0-1", "2-3"), strict=True):
            assert f": time is up after {CABLE_SECONDS} s. ranks {ranks} wait in all_reduce at line 6" in text
            assert "the network between the nodes" in text
            assert float(re.match(r"RankTimeout after ([\d.]+) s", text)[1]) >= CABLE_SECONDS
        assert [p for host in pair for p in host.processes() if "rank" in _name(p.pid)] == []
    finally:
        pair[1].cable("up")
    time.sleep(0.2)
    assert on_both(consoles, "'print(1)'") == ["[ranks 0-1] 1\n", "[ranks 2-3] 1\n"]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
