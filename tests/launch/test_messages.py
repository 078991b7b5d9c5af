"""Messages between a notebook, its supervisor and its ranks: what is sent arrives equal, what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest

from workshop.launch import Session
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.messages import (
    COMMANDS,
    EVENTS,
    Broken,
    Cancel,
    Clean,
    Done,
    GroupState,
    Launch,
    LaunchEnd,
    LaunchReplicas,
    Network,
    NodeRanks,
    RankDied,
    RankProgram,
    RanksFailed,
    RanksStarted,
    Ready,
    ReplicasDone,
    Started,
    StartRanks,
    StopRanks,
    from_json,
    packed,
    to_json,
    unpacked,
)

PROGRAM = RankProgram(
    "/a b/cell.py", "/", ("/x", "/y"), ("--lr", "0.1"), "pkg.train", "/p.pkl", "cuda", 1 << 30
)
LAUNCH = Launch(PROGRAM, 2, "r", "/run", {"A": "ä"}, 300, 1, Nodes(2, "a:29400", interface="^lo"), 7)
END = LaunchEnd("failed", {0: None, 1: -9, 2: 0})
MESSAGES = [
    LAUNCH,
    Launch(RankProgram("/cell.py", "/", ()), 2, "r", "/run", {}, 0.5, 0),
    LaunchReplicas(LAUNCH, ({"CUDA_VISIBLE_DEVICES": "0"}, {}), True, 8),
    StartRanks(NodeRanks(4, 2, 8, "cpu", None, "/", (), {"A": "1"}), "/k", ("/c0", "/c1"), "/store", 9),
    StopRanks(9, 10),
    Cancel(7, "timeout"),
    Ready(0),
    Broken("no torch"),
    Started(7, 1, {0: 4711, 1: 4712}, {0: None, 1: 1}),
    Started(8, 0, {0: 4711}, {}, replica=2),
    Done(7, END),
    Network(8, False, "no user namespaces"),
    ReplicasDone(8, "ended", {0: END, 1: None}, "the lighthouse ended"),
    RanksStarted(9, {4: 4711}),
    RanksFailed(9, "OSError"),
    RankDied(9, 4, None),
    Clean(7, 3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_arrives_equal(message: Any) -> None:
    assert unpacked(packed(message), COMMANDS | EVENTS) == message


def test_every_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == {*COMMANDS.values(), *EVENTS.values()}


def test_what_a_rank_answers_arrives_equal() -> None:
    state = GroupState(True, 12, ("model", "mesh"))
    assert from_json(GroupState, to_json(state)) == state


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"Ready", "Expecting value"),
        (b'Ready {"gpus": "2"}', "Ready.gpus must be int, not '2'"),
        (b'Ready {"gpus": 2, "more": 1}', "a message Ready has gpus, not"),
        (b'Done {"id": 7, "end": {"state": "failed"}}', "a message Done.end has state, exit_codes, why, not"),
        (b'Done {"id": 7, "end": null}', "a message Done.end has state, exit_codes, why, not None"),
        (b'RankDied {"id": 1, "rank": 0, "exit_code": "9"}', "RankDied.exit_code must be int, not '9'"),
        (
            b'StopRanks {"group": 1, "id": 2}',
            "unknown message b'StopRanks'",
        ),  # the notebook takes no commands
    ],
)
def test_what_does_not_fit_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        unpacked(data, EVENTS)


def test_a_command_that_does_not_fit_is_refused_where_it_is_given() -> None:
    session = Session.get()
    with pytest.raises(ValueError, match="StopRanks.group must be int, not 'two'"):
        session.send(StopRanks("two"))  # type: ignore[arg-type]
    assert session.usable()
