"""In a rank: torch's store, answered by `workshop.launch.nodes.store` over a Unix socket of this node."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import zmq

from workshop.launch.messages import from_json, to_json
from workshop.launch.nodes.messages import StoreAnswer, StoreQuestion

ANSWER_SECONDS = 30.0


@functools.cache
def _context_of(_pid: int) -> zmq.Context:
    """One for the whole life of a process, never ended.

    A context waits, when it is collected, until its sockets are closed, and swallows the interrupt that
    comes meanwhile. With a context for each store, the stores of groups that were cut did so in whatever call
    the garbage collector ran: a rank that waited in the next group then did not come back.
    """
    return zmq.Context()


class NodeStore(dist.Store):
    """Each thread has a socket of its own, so that one that waits holds up no other."""

    def __init__(self, path: str, seconds: float = 1800.0):
        super().__init__()
        self.path = path
        self._seconds = seconds
        self._ids = itertools.count(1)
        self._own = threading.local()
        self._clones: list[NodeStore] = []

    def _socket(self) -> zmq.Socket:
        if not hasattr(self._own, "socket"):
            self._own.socket = _context_of(os.getpid()).socket(zmq.DEALER)
            self._own.socket.linger = 0
            self._own.socket.connect(f"ipc://{self.path}")
        return self._own.socket

    def _ask(
        self, op: str, keys: Sequence[str], *values: bytes, amount: int = 0, seconds: float = 0.0
    ) -> Any:
        number, socket = next(self._ids), self._socket()
        question = StoreQuestion(op, tuple(keys), number, amount, seconds)
        socket.send_multipart([to_json(question).encode(), *values])
        patience = seconds or ANSWER_SECONDS
        while socket.poll(int(patience * 1000)):
            first, *rest = socket.recv_multipart()
            answer: StoreAnswer = from_json(StoreAnswer, first)
            if answer.id == number:  # else: the answer to a question that was interrupted
                if answer.error:
                    raise RuntimeError(answer.error)
                return answer.number, rest
        raise dist.DistStoreError(f"no answer from the ranks' store to {op} {list(keys)} in {patience:g} s")

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` are patient."""
        self._seconds = timeout.total_seconds()

    def set(self, key: str, value: bytes | str) -> None:
        """Leave a value."""
        self._ask("set", [key], value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """A value, when it is there."""
        return self._ask("get", [key], seconds=self._seconds)[1][0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Several values, when all are there."""
        return self._ask("get", keys, seconds=self._seconds)[1]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Leave several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: bytes) -> None:
        """Add to the end of a value."""
        self._ask("append", [key], bytes(value))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; its new value."""
        return self._ask("add", [key], amount=amount)[0]

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Replace a value if it is still the expected one; the value that is there then."""
        pair = [text.encode() if isinstance(text, str) else bytes(text) for text in (expected, desired)]
        return self._ask("compare_set", [key], *pair)[1][0]

    def check(self, keys: list[str]) -> bool:
        """Are all of these there?"""
        return bool(self._ask("check", keys)[0])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all of these are there."""
        self._ask("wait", keys, seconds=self._seconds if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Take a value away; was it there?"""
        return bool(self._ask("delete", [key])[0])

    def num_keys(self) -> int:
        """How many there are."""
        return self._ask("count", [])[0]

    def has_extended_api(self) -> bool:
        """`append` and the like are here."""
        return True

    def clone(self) -> NodeStore:
        """Another one with connections of its own (NCCL's watching threads ask for it)."""
        another = NodeStore(self.path, self._seconds)
        self._clones.append(another)  # C++ holds on to its half of the object only
        return another
