"""Where ranks on several nodes meet: a small store of keys and bytes, served by the notebook.

torch wants a place where ranks leave their addresses for one another. Its TCPStore listens on every network
and asks nobody for a key; its FileStore wants locks that shared file systems often do not have. This one
has no address at all: a rank asks over a Unix socket in a directory of its user's, and on another node the
question travels through that node's one encrypted connection (`nodes.wire`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from workshop.launch.messages import from_json, to_json
from workshop.launch.nodes.messages import StoreAnswer, StoreQuestion

Reply = Callable[[list[bytes]], None]
# How many frames of bytes come with each question.
VALUES = {
    **dict.fromkeys(("get", "wait", "add", "check", "delete", "count"), 0),
    **dict.fromkeys(("set", "append"), 1),
    "compare_set": 2,
}


class StoreServer:
    """Keys and values; a question for a key that is not there yet waits."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._waiting: list[tuple[StoreQuestion, float, Reply]] = []
        self._closed: set[str] = set()

    def ask(self, frames: list[bytes], reply: Reply) -> None:
        """One question (`child/node_store.py` makes it), and a value or two.

        Raises ValueError for frames that are none.
        """
        header, *values = frames
        question: StoreQuestion = from_json(StoreQuestion, header)
        if VALUES.get(question.op) != len(values):
            known = ", ".join(f"{op} with {n}" for op, n in VALUES.items())
            raise ValueError(
                f"the ranks' store was asked {question.op!r:.80} with {len(values)} values (known: {known})"
            )
        if question.op in ("get", "wait"):
            self._waiting.append((question, time.monotonic() + question.seconds, reply))
        else:
            number, current = self._act(question, values)
            self._answer(reply, StoreAnswer(question.id, number), current)
        self.look()

    def _act(self, question: StoreQuestion, values: list[bytes]) -> tuple[int, list[bytes]]:
        """Everything that can be answered at once."""
        op, keys = question.op, question.keys
        key = keys[0] if keys else ""
        if op == "set":
            self.values[key] = values[0]
        elif op == "append":
            self.values[key] = self.values.get(key, b"") + values[0]
        elif op == "add":
            total = int(self.values.get(key, b"0")) + question.amount
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
        for question, until, reply in self._waiting:
            keys = question.keys
            if any(key.startswith(prefix) for key in keys for prefix in self._closed):
                cut = "the group was cut while this rank waited for the others"
                self._answer(reply, StoreAnswer(question.id, error=cut))
            elif all(key in self.values for key in keys):
                values = [self.values[key] for key in keys] if question.op == "get" else []
                self._answer(reply, StoreAnswer(question.id), values)
            elif time.monotonic() < until:
                still.append((question, until, reply))
        self._waiting = still

    @staticmethod
    def _answer(reply: Reply, answer: StoreAnswer, values: Sequence[bytes] = ()) -> None:
        reply([to_json(answer).encode(), *values])
