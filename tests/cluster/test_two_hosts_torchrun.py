"""Fresh ranks on two hosts: equal results, a restart after a rank was killed, and a pulled cable."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host, HostError

from workshop import launch

pytestmark = pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made")

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

TRAIN = """
import os, signal, sys
import torch, torch.distributed as dist
from workshop.facts import Layout, Run
from workshop.train.checkpoint import Checkpoints
"""


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
    consoles: tuple[Console, Console], source: str, *, name: str, timeout: float = 40, restarts: int = 0
) -> list[str]:
    """What the ranks of each host printed. ``name``: of the launch; each has its own port too."""
    port = 29600 + sum(name.encode()) % 300
    for console in consoles:
        console.send(
            f"nodes = launch.Nodes(2, '10.98.7.1:{port}', {name!r}, interface={lab.INTERFACE!r}, timeout=20)\n"
            f"limits = launch.Limits({timeout}, max_restarts={restarts})\n"
            f"answer = launch.torchrun({source!r}, 2, nodes=nodes, limits=limits).text"
        )
    said: list[str] = []
    for console in consoles:
        try:
            said.append(console.hear(timeout + 20))
        except HostError as error:
            said.append(f"{error.kind} after {error.seconds:.1f} s: {error.text}")
    return said


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
    two = unfolded(on_both(consoles, PROGRAM, name="equal"))
    from tests.cluster.test_two_hosts_ranks import start_code

    consoles[0](start_code(pair[1]))
    stay = unfolded([consoles[0](f"answer = ranks.run({PROGRAM!r}).text\nranks.stop()")])
    assert sorted(one) == [0, 1, 2, 3]
    assert one == two == stay
