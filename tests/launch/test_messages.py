"""Messages between a notebook, its supervisor and its ranks: what is sent arrives equal, what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workshop.launch import Session
from workshop.launch.failures import FailureRecord, Frame, WrongSyntax
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.messages import (
    COMMANDS,
    EVENTS,
    Broken,
    Cancel,
    Clean,
    Done,
    GroupState,
    JobProgram,
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
    Submission,
    from_json,
    packed,
    read_file,
    to_json,
    unpacked,
    write_file,
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
    Started(7, 1, {0: 4711, 1: 4712}, {0: "/run/attempt_1/rank_0"}, {0: None, 1: 1}),
    Started(8, 0, {0: 4711}, {0: "/run/replica_2/attempt_0/rank_0"}, {}, replica=2),
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


IN_FILES = [
    JobProgram(PROGRAM, sweep=True, replicas=0, one_node=False),
    FailureRecord(1.5, "KeyError", "'ä'", (Frame("/a b/cell.py", 3, "f", "g()"),), "OSError: gone", None),
    FailureRecord(1.5, "SyntaxError", "bad", (), None, WrongSyntax(None, None, "x =")),
]


@pytest.mark.parametrize("message", IN_FILES, ids=lambda message: type(message).__name__)
def test_what_lies_in_a_file_is_read_equal(message: Any, tmp_path: Path) -> None:
    write_file(tmp_path / "message.json", message)
    assert read_file(type(message), tmp_path / "message.json") == message
    assert [path.name for path in tmp_path.iterdir()] == ["message.json"]


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (JobProgram, "{", r"/message.json cannot be used \(Expecting property name.*\): it was changed, or"),
        (JobProgram, "\udcff", r"/message.json cannot be used \(.*codec can't decode"),
        (JobProgram, '{"program": "/cell.py"}', r"/message.json .*a message JobProgram has program, sweep"),
        (FailureRecord, "[]", r"/message.json .*a message FailureRecord has time, type, message, frames"),
    ],
)
def test_a_file_of_another_form_is_named(kind: type, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "message.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=told):
        read_file(kind, tmp_path / "message.json")


def test_a_number_of_a_job_arrives_equal() -> None:
    for answer in (Submission("12"), Submission(error="no such partition")):
        assert from_json(Submission, to_json(answer)) == answer


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"Ready", "Expecting value"),
        (b'Ready {"gpus": "2"}', "Ready.gpus must be int, not '2'"),
        (b'Ready {"gpus": 2, "more": 1}', "a message Ready has gpus, not"),
        (
            b'Done {"id": 7, "end": {"state": "failed"}}',
            "a message Done.end has state, exit_codes, why, elsewhere, not",
        ),
        (
            b'Done {"id": 7, "end": null}',
            "a message Done.end has state, exit_codes, why, elsewhere, not None",
        ),
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
