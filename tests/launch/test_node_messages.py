"""Messages between a notebook and its nodes: what is sent arrives equal, and what does not fit is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workshop.launch.messages import NodeRanks, RankDied, from_json, parsed, to_json
from workshop.launch.nodes import messages
from workshop.launch.nodes.messages import TO_NODE, TO_NOTEBOOK

EXAMPLES = [
    messages.Hello("key", "node2", "1.0"),
    messages.Invitation("tcp://10.0.0.1:4000", "key", "^lo"),
    messages.Start(
        NodeRanks(4, 2, 8, "cpu", None, "/home/ada", ("/a", "/b c"), {"A": "1", "é": "ü"}), False, 3
    ),
    messages.Start(NodeRanks(4, 2, 8, "cuda", 1 << 30, "/", (), {}), True),
    messages.Clear((2, 3), 5),
    messages.Time(1, 2.5),
    messages.Started(1, {2: 4711, 3: 4712}, "k"),
    RankDied(9, 3, None),
    RankDied(9, 3, -9),
    messages.Alive(),
    messages.StoreQuestion("get", ("g1/a", "g1/ö"), 7, seconds=0.5),
    messages.StoreAnswer(7, error="the group was cut"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_what_is_sent_arrives_equal(message: Any) -> None:
    assert from_json(type(message), to_json(message)) == message
    known = TO_NODE | TO_NOTEBOOK
    if type(message).__name__ in known:
        assert parsed(type(message).__name__.encode(), to_json(message).encode(), known) == message


@pytest.mark.parametrize(
    ("name", "header", "told"),
    [
        (b"Ready", b"{", "Expecting property name"),
        (b"Ready", b"[1, 2]", "a message Ready has gpus, host, not"),
        (b"Ready", b'{"gpus": 1}', "a message Ready has gpus, host, not"),
        (b"Ready", b'{"gpus": 1, "host": "b", "pid": 3}', "a message Ready has gpus, host, not"),
        (b"Ready", b'{"gpus": "1", "host": "b"}', "Ready.gpus must be int, not '1'"),
        (b"Ready", b'{"gpus": true, "host": "b"}', "Ready.gpus must be int, not True"),
        (b"Started", b'{"id": 1, "pids": {"x": 1}, "key": "k"}', "invalid literal for int"),
        (b"Time", b'{"id": 1, "now": null}', "Time.now must be float, not None"),
        (b"Start", b"{}", "unknown message b'Start'"),  # the notebook takes no commands
        (b"\xff" * 200, b"{}", "unknown message"),
    ],
)
def test_what_does_not_fit_is_refused(name: bytes, header: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parsed(name, header, TO_NOTEBOOK)


def test_a_secret_key_has_no_place_in_a_message() -> None:
    fields = {field for kind in (*TO_NODE.values(), *TO_NOTEBOOK.values()) for field in kind.__annotations__}
    assert not [field for field in fields if "secret" in field]
    assert json.loads(to_json(messages.Leave())) == {}
