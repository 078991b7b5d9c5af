"""The connection to a node: who has the key comes in, and nobody else. On loopback, with real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from workshop.launch.nodes import messages
from workshop.launch.nodes import wire as node_wire

Wire = tuple[zmq.Context, node_wire.Gate, zmq.Socket, str]
NOTEBOOK, NODE, OTHER = zmq.curve_keypair(), zmq.curve_keypair(), zmq.curve_keypair()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """The notebook's end, which lets ``NODE`` in."""
    context = zmq.Context()
    gate = node_wire.Gate(context)
    gate.allowed[b"node0"] = NODE[0]
    link, endpoint = node_wire.listening(context, "127.0.0.1", NOTEBOOK[1], b"node0")
    yield context, gate, link, endpoint
    context.destroy(linger=0)


PATIENCE = 30.0  # on a machine that computes elsewhere, a handshake takes its time


def heard(wire: Wire, until: Callable[[], bool] = lambda: False, seconds: float = PATIENCE) -> list:
    """What gets through until something has happened; the first message ends it."""
    _context, gate, link, _endpoint = wire
    received = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not received and not until():
        gate.answer()
        while link.poll(20):
            received.append(node_wire.receive(link, messages.TO_NOTEBOOK))
    return received


def refused(wire: Wire) -> Callable[[], bool]:
    """Has the gate turned somebody away?"""
    return lambda: wire[1].refused > 0


def failed(listening: zmq.Socket) -> Callable[[], bool]:
    """Has a handshake with this end come to nothing? To be called before anybody connects."""
    ends = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    monitor = listening.get_monitor_socket(
        ends | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    )
    return lambda: bool(monitor.poll(0))


@contextlib.contextmanager
def talking(endpoint: str, server_key: bytes, keys: tuple[bytes, bytes]) -> Iterator[zmq.Socket]:
    context = zmq.Context()
    yield node_wire.connected(context, endpoint, server_key, keys)
    context.destroy(linger=0)


def knock(stranger: zmq.Socket) -> None:
    """Say something as one who is not let in: the line may be closed already, and then there is nobody to hear."""
    with contextlib.suppress(zmq.Again):
        stranger.send_multipart([b"Alive", b"{}"], zmq.NOBLOCK)


def test_the_node_comes_in_and_gets_its_answer(wire: Wire) -> None:
    with talking(wire[3], NOTEBOOK[0], NODE) as node:
        node_wire.send(node, messages.Ready(2, "b"), b"frame")
        assert heard(wire) == [(messages.Ready(2, "b"), [b"frame"])]
        node_wire.send(wire[2], messages.Signal(3, 9))
        assert node.poll(int(PATIENCE * 1000))
        assert node_wire.receive(node, messages.TO_NODE) == (messages.Signal(3, 9), [])
    assert wire[1].refused == 0


def test_a_notebook_that_was_busy_when_the_node_came_lets_it_in(wire: Wire) -> None:
    """It connects once, so five seconds of a loaded machine cost the group."""
    with talking(wire[3], NOTEBOOK[0], NODE) as node:
        node_wire.send(node, messages.Alive())
        time.sleep(6)
        assert heard(wire) == [(messages.Alive(), [])]


def test_another_key_is_refused(wire: Wire) -> None:
    with talking(wire[3], NOTEBOOK[0], OTHER) as stranger:
        knock(stranger)
        assert heard(wire, refused(wire)) == []
        assert stranger.poll(0) == 0
    assert wire[1].refused >= 1


def test_who_takes_another_for_the_notebook_says_nothing_to_it(wire: Wire) -> None:
    ended = failed(wire[2])
    with talking(wire[3], OTHER[0], NODE) as node:
        knock(node)
        assert heard(wire, ended) == []
        assert ended(), "it was tried"
    wire[2].disable_monitor()


def test_no_key_is_refused(wire: Wire) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    ended = failed(wire[2])
    stranger.connect(wire[3])
    knock(stranger)
    assert heard(wire, ended) == []
    assert ended(), "it was tried"
    wire[2].disable_monitor()
    context.destroy(linger=0)


def test_without_a_gate_nobody_comes_in() -> None:
    context = zmq.Context()
    link, endpoint = node_wire.listening(context, "127.0.0.1", NOTEBOOK[1], b"node0")
    ended = failed(link)
    with talking(endpoint, NOTEBOOK[0], NODE) as node:
        knock(node)
        deadline = time.monotonic() + PATIENCE
        while not ended() and time.monotonic() < deadline:
            assert link.poll(20) == 0
        assert ended(), "it was tried"
    link.disable_monitor()
    context.destroy(linger=0)


def closed(connection: socket.socket) -> bool:
    """Has the other end closed it? What it says before is read and dropped."""
    try:
        return connection.recv(4096) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_recorded_bytes_mean_nothing_a_second_time(wire: Wire) -> None:
    port = int(wire[3].rpartition(":")[2])
    recorded = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on() -> None:
        """Between the node and the notebook: note what the node says."""
        inner, _ = listener.accept()
        outer = socket.create_connection(("127.0.0.1", port))

        def back() -> None:
            with contextlib.suppress(OSError):
                while block := outer.recv(4096):
                    inner.sendall(block)

        threading.Thread(target=back, daemon=True).start()
        with contextlib.suppress(OSError):
            while block := inner.recv(4096):
                recorded.extend(block)
                outer.sendall(block)
        outer.close()
        inner.close()

    recorder = threading.Thread(target=pass_on, daemon=True)
    recorder.start()
    with talking(f"tcp://127.0.0.1:{listener.getsockname()[1]}", NOTEBOOK[0], NODE) as node:
        node_wire.send(node, messages.Alive(), b"secret words")
        assert len(heard(wire)) == 1
    recorder.join(5)
    listener.close()
    assert len(recorded) > 300
    assert b"secret words" not in recorded
    with socket.create_connection(("127.0.0.1", port), timeout=2) as again:
        again.sendall(bytes(recorded))
        again.settimeout(0.05)
        assert heard(wire, lambda: closed(again)) == []
        assert closed(again), "the notebook's end has hung up"
