"""The connection to a node: who has the key comes in, and nobody else. On loopback, with real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

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


def heard(wire: Wire, seconds: float) -> list[list[bytes]]:
    """What gets through within so many seconds."""
    _context, gate, link, _endpoint = wire
    found = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not found:
        gate.answer()
        while link.poll(20):
            found.append(link.recv_multipart())
    return found


@contextlib.contextmanager
def talking(endpoint: str, server_key: bytes, keys: tuple[bytes, bytes]) -> Iterator[zmq.Socket]:
    context = zmq.Context()
    yield node_wire.connected(context, endpoint, server_key, keys)
    context.destroy(linger=0)


def test_the_node_comes_in_and_gets_its_answer(wire: Wire) -> None:
    with talking(wire[3], NOTEBOOK[0], NODE) as node:
        node_wire.send(node, "ready", b"frame", gpus=0)
        assert heard(wire, 3) == [[b"ready", b'{"gpus": 0}', b"frame"]]
        node_wire.send(wire[2], "start", n=2)
        assert node.poll(3000)
        assert node_wire.receive(node) == ("start", {"n": 2}, [])
    assert wire[1].refused == 0


def test_another_key_is_refused(wire: Wire) -> None:
    with talking(wire[3], NOTEBOOK[0], OTHER) as stranger:
        node_wire.send(stranger, "ready")
        assert heard(wire, 1) == []
        assert stranger.poll(0) == 0
    assert wire[1].refused >= 1


def test_who_takes_another_for_the_notebook_says_nothing_to_it(wire: Wire) -> None:
    with talking(wire[3], OTHER[0], NODE) as node:
        node_wire.send(node, "ready")
        assert heard(wire, 1) == []


def test_no_key_is_refused(wire: Wire) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(wire[3])
    stranger.send_multipart([b"ready", b"{}"])
    assert heard(wire, 1) == []
    context.destroy(linger=0)


def test_without_a_gate_nobody_comes_in() -> None:
    context = zmq.Context()
    link, endpoint = node_wire.listening(context, "127.0.0.1", NOTEBOOK[1], b"node0")
    with talking(endpoint, NOTEBOOK[0], NODE) as node:
        node_wire.send(node, "ready")
        assert link.poll(1000) == 0
    context.destroy(linger=0)


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
        node_wire.send(node, "ready", b"secret words")
        assert len(heard(wire, 3)) == 1
    recorder.join(5)
    listener.close()
    assert len(recorded) > 300
    assert b"secret words" not in recorded
    with socket.create_connection(("127.0.0.1", port), timeout=2) as again:
        again.sendall(bytes(recorded))
        assert heard(wire, 1) == []
