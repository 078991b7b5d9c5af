"""How ranks that stay are spoken to: by Jupyter's wire protocol, and by the socket of their cutting threads.

A rank has one shell and one iopub socket.

Messages go over Unix sockets in a directory that only its user can enter, and each is signed with
a key of the group's own (HMAC-SHA256). A reply counts only when it answers the message that was
just sent, so what an ended cell says late is dropped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from jupyter_client.session import Session as Protocol

from workshop.launch import rank_folder
from workshop.launch.messages import IDLE_FOLLOWS

ANSWER_TO_CUT_SECONDS = 0.5
_PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}


def write_connection_files(directory: Path, n: int) -> list[str]:
    """One connection file per rank, readable by its user alone; returns their paths."""
    key = secrets.token_hex(32)
    paths = []
    for rank in range(n):
        path = directory / f"connection_{rank}.json"
        content = {"transport": "ipc", "ip": str(directory / f"r{rank}"), "key": key, **_PORTS}
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({**content, "signature_scheme": "hmac-sha256"}, file)
        paths.append(str(path))
    return paths


class Request(NamedTuple):
    """A signed message: its number, by which the answer is known, and its frames."""

    number: str
    frames: list[bytes]


class Channel:
    """The notebook's side of one rank."""

    def __init__(self, context: zmq.Context, connection_file: str, rank: int):
        info = json.loads(Path(connection_file).read_text())
        self.rank = rank
        self.protocol = Protocol(key=info["key"].encode(), signature_scheme=info["signature_scheme"])
        self.shell = context.socket(zmq.DEALER)
        self.iopub = context.socket(zmq.SUB)
        self.iopub.subscribe(b"")
        for end, port in ((self.shell, "shell_port"), (self.iopub, "iopub_port")):
            end.linger = 0
            end.reconnect_ivl = 20
            end.connect(f"{info['transport']}://{info['ip']}-{info[port]}")
        self.request_number: str | None = None

    def request(self, code: str, *, silent: bool, expressions: dict[str, str] | None = None) -> Request:
        """An execute request as it goes over the wire, for each channel with this one's key."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": False,
            "user_expressions": expressions or {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self.protocol.msg("execute_request", content)
        return Request(message["header"]["msg_id"], self.protocol.serialize(message))

    def send(self, request: Request) -> None:
        """Send it; its answer is what `receive` returns next."""
        self.request_number = request.number
        self.shell.send_multipart(request.frames)

    def receive(self, socket: zmq.Socket) -> list[dict[str, Any]]:
        """Messages on ``socket`` that answer what was asked last."""
        answers = []
        while socket.poll(0):
            message = self.protocol.recv(socket, mode=zmq.NOBLOCK)[1]
            if message and message["parent_header"].get("msg_id") == self.request_number:
                answers.append(message)
        return answers

    def close(self) -> None:
        """Give the sockets back."""
        self.shell.close()
        self.iopub.close()


class Exchange:
    """One request to several ranks and what came back until each has answered and is idle."""

    def __init__(self, channels: Iterable[Channel]):
        self.channels = list(channels)
        self.replies: dict[int, dict[str, Any]] = {}
        self.rich: list[tuple[int, dict[str, Any]]] = []
        self.results: dict[int, dict[str, Any]] = {}
        self._idle: set[int] = set()
        self.poller = zmq.Poller()
        for channel in self.channels:
            self.poller.register(channel.shell, zmq.POLLIN)
            self.poller.register(channel.iopub, zmq.POLLIN)

    def ask(self, code: str, *, silent: bool = False, expressions: dict[str, str] | None = None) -> None:
        """Send the same request to every rank."""
        requests: dict[bytes, Request] = {}  # by key: those of one node have one, and are sent the same
        for channel in self.channels:
            key = channel.protocol.key
            if key not in requests:
                requests[key] = channel.request(code, silent=silent, expressions=expressions)
            channel.send(requests[key])

    def waiting(self) -> list[int]:
        """Ranks that have not answered yet, or still have output on the way."""
        return [c.rank for c in self.channels if c.rank not in self.replies or c.rank not in self._idle]

    def unanswered(self) -> list[int]:
        """Ranks that are still at work."""
        return [c.rank for c in self.channels if c.rank not in self.replies]

    def expressions(self, name: str) -> dict[int, dict[str, Any]]:
        """What the ranks that have answered gave for an expression, as Jupyter tells it."""
        answers = {rank: reply.get("user_expressions", {}).get(name) for rank, reply in self.replies.items()}
        return {rank: answer for rank, answer in answers.items() if answer}

    def pump(self, seconds: float) -> None:
        """Wait up to ``seconds`` for messages and sort them in."""
        ready = dict(self.poller.poll(math.ceil(seconds * 1000)))
        for channel in self.channels:
            if channel.iopub in ready:
                for message in channel.receive(channel.iopub):
                    self._published(channel.rank, message)
            if channel.shell in ready:
                for message in channel.receive(channel.shell):
                    self.replies[channel.rank] = message["content"]
                    if not message["metadata"].get(IDLE_FOLLOWS, True):
                        self._idle.add(channel.rank)

    def _published(self, rank: int, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            self._idle.add(rank)
        elif kind == "execute_result":
            self.results[rank] = content["data"]
        elif kind in ("display_data", "update_display_data"):
            self.rich.append((rank, content))

    def wait(self, seconds: float) -> bool:
        """Pump until every rank is done; False when time ran out."""
        deadline = time.monotonic() + seconds
        while self.waiting():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pump(min(left, 0.5))
        return True


def ask_to_cut(directory: Path, rank_dirs: Iterable[Path]) -> None:
    """Ask the cutting threads of this node's ranks; wait a moment for those that can answer.

    A rank that has died has nobody to ask, and one that holds the interpreter's lock in compiled
    code does not get to it.
    """
    waiting = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        own = directory / f"ask{time.monotonic_ns()}"
        wire.bind(str(own))
        for rank_dir in rank_dirs:
            with contextlib.suppress(OSError):
                wire.sendto(b"cut", str(rank_dir / rank_folder.CUT))
                waiting += 1
        deadline = time.monotonic() + ANSWER_TO_CUT_SECONDS
        with contextlib.suppress(OSError):
            while waiting and (left := deadline - time.monotonic()) > 0:
                wire.settimeout(left)
                wire.recv(64)
                waiting -= 1
        own.unlink(missing_ok=True)
