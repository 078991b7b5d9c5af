"""Cutting groups: sockets that close under the cutter's hand, and many cuts on a busy machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from workshop.launch import RankFailed, Ranks
from workshop.launch.child import cut
from workshop.launch.child.cut import GroupSockets, held_socket, open_sockets, refuse_newcomers

CUTS = 100
HELD = (
    "import gc, os\ngc.collect()\nprint(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
)
THREAD_ALIVE = "any(t.name == 'workshop-cut' and t.is_alive() for t in threading.enumerate())"


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def test_a_socket_that_closed_since_it_was_listed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair()
    inode = os.fstat(left.fileno()).st_ino
    descriptor = left.fileno()
    assert open_sockets()[inode] == descriptor
    left.close()
    with held_socket(inode, descriptor) as gone:
        assert gone is None
    assert not refuse_newcomers(inode, descriptor)
    monkeypatch.setattr("workshop.launch.child.cut.open_sockets", lambda: {inode: descriptor})
    sockets = GroupSockets.__new__(GroupSockets)
    sockets._inodes = {inode}
    assert sockets.cut() == 0
    right.close()


def test_a_number_that_now_leads_to_another_socket_is_left_alone() -> None:
    old, peer = socket.socketpair()
    inode, descriptor = os.fstat(old.fileno()).st_ino, old.fileno()
    old.close()
    left, right = socket.socketpair()
    os.dup2(left.fileno(), descriptor)
    try:
        with held_socket(inode, descriptor) as other:
            assert other is None
        right.sendall(b"still open")
        assert left.recv(10) == b"still open"
    finally:
        if descriptor not in (left.fileno(), right.fileno()):
            os.close(descriptor)
        for end in (left, right, peer):
            end.close()


@pytest.mark.timeout(300)
def test_many_cuts_on_a_busy_machine_lose_nothing() -> None:
    ranks = Ranks(2)
    try:
        ranks.run("import threading\nkept = 40 + rank")
        after_one = ""
        with busy_core():
            for number in range(CUTS):
                with pytest.raises(RankFailed, match="rank 1 raised ValueError first") as caught:
                    ranks.run(f"if rank == 1:\n    raise ValueError({number})\ndist.barrier()")
                assert "rank 0: in barrier, line 3; freed" in str(caught.value)
                kept = ranks.run(f"print(kept, {THREAD_ALIVE})").text
                assert kept == "[rank 0] 40 True\n[rank 1] 41 True\n"
                after_one = after_one or ranks.run(HELD).text
        assert ranks.run(HELD).text == after_one  # no group is held by more than garbage
        names = [path.name for path in ranks.directory.iterdir()]
        assert not [name for name in names if name.startswith("ask")]
        assert len([name for name in names if name.startswith("store_")]) <= 1
        for rank in range(2):
            assert "Exception in thread" not in (ranks.rank_dir(rank) / "log").read_text()
    finally:
        ranks.stop()


def test_a_kernel_that_lets_no_user_filter_leaves_the_socket_as_it_is(monkeypatch):
    """As a hardened one does for whoever is not root, and in every container without privileges."""

    class Hardened(socket.socket):
        def setsockopt(self, *_args):
            raise PermissionError(1, "Operation not permitted")

    with Hardened() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(cut, "held_socket", lambda *_: contextlib.nullcontext(listener))
        assert refuse_newcomers(0, 0) is False
        with socket.create_connection(listener.getsockname(), timeout=10):
            pass
