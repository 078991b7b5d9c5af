"""A launch on two nodes that ends on one of them ends on the other too, at once, and is told there.

The second node is a process beside this one, over loopback. Ranks here are where no lost connection could tell
them: about to meet the others, or at work of their own.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.ports import free_port
from tests.waiting import wait_until
from workshop.launch import Limits, Nodes, RankFailed, torchrun
from workshop.launch.failures import Place, Program, RankEnd
from workshop.launch.messages import Elsewhere
from workshop.launch.verdicts import failed

PROGRAM = """
import os, sys, time, pathlib
import torch.distributed as dist
here = os.environ["LOCAL_RANK"] if node == "here" else "beside"
if here == "beside" and os.environ["LOCAL_RANK"] == "1":
    {beside}
if here == "0":
    time.sleep(300)
dist.init_process_group()
"""
LONG = 120.0
SOON = 40.0  # far below LONG; what is measured is a second or two, on a machine that others use
READ_AND_RUN = """
import sys
from workshop.launch import *
from workshop.launch.session import Session
Session.get().wait_ready()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except BaseException as error:
        print(repr(f"{type(error).__name__}: {error}"), flush=True)
"""


class Beside:
    """A notebook on the second node: it evaluates one line after the other."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READ_AND_RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return eval(self.process.stdout.readline())


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    one = Beside()
    yield one
    one.process.stdin.close()
    one.process.wait(20)


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def run_on_both(beside: Beside, what_beside_does: str, *, store_beside: bool) -> RankFailed:
    """What the ranks of this node say of a launch that ends on the other; who has the agents' store is told."""
    port, body = free_port(), PROGRAM.format(beside=what_beside_does)

    def there() -> None:
        beside.send(
            f"torchrun({body!r}, 2, nodes=Nodes(2, '127.0.0.1:{port}'), variables=dict(node='beside'), "
            f"limits=Limits({LONG})).text"
        )

    def when_it_listens() -> None:
        wait_until(lambda: listens(port))
        there()

    later = None
    if store_beside:
        there()
        wait_until(lambda: listens(port))
    else:
        later = threading.Thread(target=when_it_listens)
        later.start()
    began = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        torchrun(
            body,
            2,
            nodes=Nodes(2, f"127.0.0.1:{port}"),
            variables={"node": "here"},
            limits=Limits(LONG),
        )
    if later is not None:
        later.join()
    assert time.monotonic() - began < SOON
    return caught.value


@pytest.mark.parametrize("store_beside", [True, False])
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise ValueError('no data')"])
def test_ranks_that_meet_or_compute_end_with_a_rank_of_another_node(
    beside: Beside, end: str, store_beside: bool
) -> None:
    told = str(run_on_both(beside, end, store_beside=store_beside))
    there = beside.hear()
    culprit = re.search(r"rank (\d) (died|raised ValueError) first", there)
    assert culprit, there
    if told.startswith(f"rank {culprit[1]} failed on another node; the output there says how. The ranks of"):
        assert re.search(r"rank [02]: line 9; ended", told), told
        assert re.search(r"rank [13]: in init_process_group, line 10; ended", told), told
    else:  # the store of the ranks went with the other node's agent, and a rank that met lost it
        assert f"rank {culprit[1]} failed on another node" in told, told
        assert "line 10" in told


def test_a_launch_that_is_stopped_on_one_node_ends_on_the_other(beside: Beside, tmp_path) -> None:
    at_work = tmp_path / "at work"

    def stop() -> None:
        wait_until(at_work.exists)
        beside.process.send_signal(signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    wait = f"pathlib.Path({str(at_work)!r}).touch(); time.sleep(300)"
    told = str(run_on_both(beside, wait, store_beside=True))
    stopping.join()
    assert "the launch was stopped on another node" in told
    assert beside.hear().startswith("RankInterrupted")


def test_a_node_that_is_gone_with_the_store_ends_the_launch(tmp_path) -> None:
    at_work, other = tmp_path / "at work", Beside()

    def kill() -> None:
        wait_until(at_work.exists)
        other.process.kill()
        other.process.wait()

    killing = threading.Thread(target=kill)
    killing.start()
    wait = f"pathlib.Path({str(at_work)!r}).touch(); time.sleep(300)"
    told = str(run_on_both(other, wait, store_beside=True))
    killing.join()
    # Its ranks die with it, and its agent may have the time to tell of them before it goes too. Which node has which
    # ranks is the rendezvous' to say.
    gone = "the node that kept the launch's store has gone" in told
    assert gone or re.search("ranks (0-1|2-3) failed on another node", told), told


def test_ranks_that_succeed_are_not_kept_by_a_node_that_failed(beside: Beside) -> None:
    """The agent that succeeded would wait half a minute for one that has gone."""
    port, body = free_port(), "import os\nif node == 'beside':\n    os._exit(3)"
    beside.send(
        f"torchrun({body!r}, 1, nodes=Nodes(2, '127.0.0.1:{port}'), variables=dict(node='beside')).text"
    )
    result = torchrun(body, 1, nodes=Nodes(2, f"127.0.0.1:{port}"), variables={"node": "here"})
    there = beside.hear()
    assert "exit code 3" in there, there
    assert result.seconds < 25


# ------------------------------------------------------------------------------------------------ what is said of it

PROGRAM_OF = Program("/cell")
LOST = RankEnd(0, "lost", Place(4, "all_reduce"), "RuntimeError", "Connection closed by peer", time=1.0)


def test_what_is_lost_here_is_told_with_its_cause_elsewhere() -> None:
    told = str(failed([LOST], PROGRAM_OF, elsewhere=Elsewhere("failed", (3,))))
    assert told.startswith("rank 0 raised RuntimeError")
    assert told.splitlines()[-1] == "rank 3 failed on another node; the output there says how."


def test_what_has_failed_here_needs_no_word_from_elsewhere() -> None:
    raised = RankEnd(1, "raised", Place(2, None), "ValueError", "no", time=1.0)
    assert "another node" not in str(failed([LOST, raised], PROGRAM_OF, elsewhere=Elsewhere("failed", (3,))))
