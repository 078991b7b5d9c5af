"""Where ranks on several nodes meet: a small store of keys and bytes, served by the notebook.

torch wants a place where ranks leave their addresses for one another. Its TCPStore listens on every network
and asks nobody for a key; its FileStore wants locks that shared file systems often do not have. This one
has no address at all: a rank asks over a Unix socket in a directory of its user's, and on another node the
question travels through that node's one encrypted connection (`nodes.wire`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

Reply = Callable[[list[bytes]], None]


class StoreServer:
    """Keys and values; a question for a key that is not there yet waits."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._waiting: list[tuple[dict[str, Any], float, Reply]] = []
        self._closed: set[str] = set()

    def ask(self, frames: list[bytes], reply: Reply) -> None:
        """One question: a header in JSON (`child/node_store.py` makes it) and a value or two."""
        header = json.loads(frames[0])
        self._waiting.append((header, time.monotonic() + header.get("seconds", 0.0), reply))
        if header["op"] not in ("get", "wait"):
            self._waiting.pop()
            number, values = self._act(header, frames[1:])
            self._say(reply, header, number=number, values=values)
        self.look()

    def _act(self, header: dict[str, Any], values: list[bytes]) -> tuple[int, list[bytes]]:
        """Everything that can be answered at once."""
        op, keys = header["op"], header["keys"]
        key = keys[0] if keys else ""
        if op == "set":
            self.values[key] = values[0]
        elif op == "append":
            self.values[key] = self.values.get(key, b"") + values[0]
        elif op == "add":
            total = int(self.values.get(key, b"0")) + header["amount"]
            self.values[key] = str(total).encode()
            return total, []
        elif op == "compare_set":
            current = self.values.get(key)
            if current == values[0] or (current is None and not values[0]):
                self.values[key] = current = values[1]
            return 0, [values[0] if current is None else current]
        elif op == "check":
            return int(all(name in self.values for name in keys)), []
        elif op == "delete":
            return int(self.values.pop(key, None) is not None), []
        elif op == "count":
            return len(self.values), []
        return 0, []

    def close(self, prefix: str) -> None:
        """Who waits for a key that begins so, now or later, gets an error: its group will never be."""
        self._closed.add(prefix)
        self.look()

    def look(self) -> None:
        """Answer those whose keys have come, or never will; drop those who have stopped waiting."""
        still = []
        for header, until, reply in self._waiting:
            keys = header["keys"]
            if any(key.startswith(prefix) for key in keys for prefix in self._closed):
                self._say(reply, header, error="the group was cut while this rank waited for the others")
            elif all(key in self.values for key in keys):
                self._say(
                    reply, header, values=[self.values[k] for k in keys] if header["op"] == "get" else []
                )
            elif time.monotonic() < until:
                still.append((header, until, reply))
        self._waiting = still

    @staticmethod
    def _say(
        reply: Reply, header: dict[str, Any], *, number: int = 0, values: Any = (), error: str = ""
    ) -> None:
        reply([json.dumps({"id": header["id"], "number": number, "error": error}).encode(), *values])
