"""A slow link is as slow as predicted: start-up cost measured on the fast one, plus bytes over the rate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host
from tests.cluster.test_two_hosts_ranks import start_code
from workshop.facts.device import LinkSpec
from workshop.predict.collectives import wire_bytes

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
]

MOST, TRIES = 1.2, 10
TIMED = """
import time
from workshop import report
x = torch.ones({num_bytes} // 4)
dist.all_reduce(x)
seconds = []
for _ in range({times}):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(x)
    seconds.append(time.perf_counter() - began)
report(seconds=seconds)
"""


@pytest.fixture(scope="module")
def linked() -> Iterator[tuple[Host, Host, Console]]:
    with lab.hosts(("ws-a", "ws-b")) as (a, b):
        console = Console(a)
        console(start_code(b, n=1))
        yield a, b, console
        console("ranks.stop()")
        console.close()


def all_reduce_seconds(console: Console, num_bytes: int, times: int) -> float:
    cell = TIMED.format(num_bytes=num_bytes, times=times)
    return min(console(f"answer = ranks.run({cell!r}, timeout=60)[0].seconds"))


@pytest.mark.parametrize(("megabits", "mebibytes"), [(300, 12), (100, 4)])
def test_an_all_reduce_on_a_shaped_link_takes_the_predicted_time(linked, megabits, mebibytes) -> None:
    a, b, console = linked
    num_bytes = mebibytes * 2**20
    start_up = all_reduce_seconds(console, 4, times=30)
    unshaped = all_reduce_seconds(console, num_bytes, times=5)
    rate = megabits * 1e6 / 8
    link = LinkSpec("shaped", bytes_per_second=rate, latency_seconds=start_up)
    predicted = link.seconds(float(wire_bytes("all_reduce", num_bytes, 2)))
    measured, tries = float("inf"), 0
    for host in (a, b):
        host.slow_down(rate)
    try:
        while measured >= MOST * predicted and tries < TRIES:  # a busy machine makes some slower, not all
            measured, tries = min(measured, all_reduce_seconds(console, num_bytes, times=3)), tries + 1
    finally:
        for host in (a, b):
            host.full_speed()
    print(f"{megabits} Mbit/s, {mebibytes} MiB: predicted {predicted:.3f} s, measured {measured:.3f} s, ")
    print(f"unshaped {unshaped:.4f} s, start-up {start_up * 1e6:.0f} us")
    assert measured > 2 * unshaped  # the link is what it waits for
    assert 0.8 < measured / predicted < MOST
