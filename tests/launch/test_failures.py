"""Evidence, judgement, sentences: without ranks, from made-up evidence."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from workshop.launch import verdicts
from workshop.launch.failures import (
    Frame,
    Place,
    Program,
    RankEnd,
    death_in_words,
    judge,
    parse_stacks,
    place_in,
    read_evidence,
)
from workshop.launch.verdicts import KNOWN, advice

CELL = Program("/tmp/run/cell.py")
DUMP = """Thread 0x1 (most recent call first):
  File "/lib/threading.py", line 5 in wait

Current thread 0x2 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 3012 in all_reduce
  File "/site/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/tmp/run/cell.py", line 9 in step
  File "/tmp/run/cell.py", line 12 in <module>
  File "/site/rank_script.py", line 70 in _execute
"""


def _record(kind: str, message: str, time: float, line: int = 3) -> dict[str, Any]:
    frames = [{"file": CELL.file, "line": line, "name": "<module>", "source": "f()"}]
    return {"time": time, "type": kind, "message": message, "frames": frames, "cause": None, "syntax": None}


def _end(rank: int, kind: str, line: int | None, function: str | None = None, **more: Any) -> RankEnd:
    return RankEnd(rank, kind, Place(line, function), **more)


def test_the_learners_thread_is_found_in_a_dump() -> None:
    frames = parse_stacks(DUMP, CELL)
    assert frames[0].name == "_execute"
    assert place_in(frames, CELL) == Place(9, "all_reduce")


def test_a_dump_of_the_main_thread_alone_is_read() -> None:
    """What a rank writes when it is asked: other threads' frames change while they are read."""
    alone = 'Stack (most recent call first):\n  File "/tmp/run/cell.py", line 7 in step\n'
    assert place_in(parse_stacks(DUMP + alone, CELL), CELL).line == 7


def test_a_program_is_all_below_its_folder_but_libraries(tmp_path: Path) -> None:
    program = Program("/home/ada/run/train.py", label="train.py", folder="/home/ada/run")
    own = ["/home/ada/run/train.py", "/home/ada/run/comms/ring.py"]
    others = [
        "/home/ada/running/x.py",
        "/home/ada/run/.venv/lib/python3.11/site-packages/torch/nn.py",
        "/usr/lib/python3/dist-packages/x.py",
        json.__file__,
        verdicts.__file__,
        "<frozen runpy>",
    ]
    assert all(map(program.owns, own))
    assert not any(map(program.owns, others))
    everywhere = Program("/train.py", folder="/")
    assert everywhere.owns("/comms/ring.py")
    assert not everywhere.owns(json.__file__)
    assert not everywhere.owns(verdicts.__file__)
    assert [program.name_of(file) for file in own] == ["", "comms/ring.py"]
    frames = [Frame(own[0], 4, "<module>"), Frame(own[1], 51, "turn"), Frame(json.__file__, 1, "loads")]
    assert str(place_in(frames, program)) == "line 51 of comms/ring.py"


def test_a_thread_of_another_file_does_not_hide_the_main_one() -> None:
    program = Program("/home/run/train.py", folder="/home/run")
    dump = (
        'Current thread 0x1 (most recent call first):\n  File "/home/run/train.py", line 7 in <module>\n\n'
        'Thread 0x2 (most recent call first):\n  File "/home/run/loader.py", line 3 in work\n'
    )
    assert place_in(parse_stacks(dump, program), program) == Place(7, None)


def test_the_last_dump_counts() -> None:
    later = DUMP.replace("line 9 in step", "line 10 in step")
    assert place_in(parse_stacks(DUMP + later, CELL), CELL).line == 10


def test_a_later_dump_that_has_left_the_program_does_not_hide_where_it_was() -> None:
    leaving = (
        'Current thread 0x2 (most recent call first):\n  File "/site/rank_script.py", line 80 in _failed\n'
    )
    assert place_in(parse_stacks(DUMP + leaving, CELL), CELL) == Place(9, "all_reduce")


RECORDS = """  File "/site/torch/distributed/distributed_c10d.py", line 1440 in get_backend
  File "/site/torch/distributed/c10d_logger.py", line 60 in _get_msg_dict
"""
LOGS = """  File "/python3.11/logging/__init__.py", line 1601 in makeRecord
  File "/python3.11/logging/__init__.py", line 1477 in debug
"""


@pytest.mark.parametrize("logger", [RECORDS, "", LOGS], ids=["records", "has caught", "logs"])
def test_a_dump_from_torchs_log_of_the_failure_comes_too_late(logger: str) -> None:
    late = f"""Stack (most recent call first):
{logger}  File "/site/torch/distributed/c10d_logger.py", line 85 in wrapper
  File "/tmp/run/cell.py", line 9 in step
"""
    assert place_in(parse_stacks(DUMP + late, CELL), CELL) == Place(9, "all_reduce")
    assert place_in(parse_stacks(late, CELL), CELL) == Place(9, None)


def test_a_dump_without_the_program_is_no_place() -> None:
    assert parse_stacks('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in b\n', CELL) == ()


def test_evidence_of_each_kind(tmp_path: Path) -> None:
    def kind(name: str, exit_code: int | None, state: str = "failed", **files: str) -> str:
        where = tmp_path / name
        where.mkdir()
        for file, text in files.items():
            (where / file.replace("_json", ".json")).write_text(text)
        return read_evidence(0, where, exit_code, CELL, state).kind

    assert kind("a", 0, done="") == "finished"
    assert kind("b", 1, failure_json=json.dumps(_record("ValueError", "x", 1.0))) == "raised"
    lost = _record("RuntimeError", "[../gloo/transport/tcp/pair.cc] Connection closed by peer", 1.0)
    assert kind("c", 1, failure_json=json.dumps(lost)) == "lost"
    assert kind("d", None, stacks=DUMP) == "ended"  # with the others, by the agent
    assert kind("e", -signal.SIGKILL) == "died"
    assert kind("f", -signal.SIGTERM, stacks=DUMP) == "died"  # by itself: its stacks are those of its own end
    assert kind("g", -signal.SIGSEGV, stacks="Fatal Python error: Segmentation fault\n\n" + DUMP) == "died"
    assert kind("h", 3) == "died"
    assert kind("i", -signal.SIGTERM, "timeout", stacks=DUMP) == "stuck"


def test_a_death_comes_before_the_errors_it_caused() -> None:
    ends = [_end(0, "lost", 5, error_type="RuntimeError", time=1.0), _end(1, "died", None, error_type="died")]
    assert [end.rank for end in judge(ends).first] == [1]


def test_the_earliest_exception_is_the_cause() -> None:
    ends = [_end(0, "raised", 9, error_type="E", time=3.0), _end(2, "raised", 4, error_type="V", time=1.0)]
    assert [end.rank for end in judge(ends).first] == [2]


def test_exceptions_in_one_breath_stand_together_in_rank_order() -> None:
    ends = [_end(1, "raised", 4, error_type="V", time=1.0), _end(0, "raised", 4, error_type="V", time=1.05)]
    assert [end.rank for end in judge(ends).first] == [0, 1]


def test_failure_text_names_rank_line_and_where_the_others_were() -> None:
    frames = (Frame(CELL.file, 7, "<module>", "boom()"), Frame(CELL.file, 3, "boom", "raise ValueError('x')"))
    ends = [
        _end(0, "ended", 12, "all_reduce"),
        _end(1, "raised", 3, error_type="ValueError", message="x", frames=frames, time=1.0),
        _end(2, "finished", None),
    ]
    error = verdicts.failed(ends, CELL)
    assert str(error).splitlines() == [
        "rank 1 raised ValueError first, line 3",
        "rank 1: ValueError: x",
        "    cell line 7",
        "        boom()",
        "    cell line 3, in boom",
        "        raise ValueError('x')",
        "rank 0: in all_reduce, line 12; ended",
        "rank 2: had finished",
    ]
    assert [(f.rank, f.line, f.error_type) for f in error.failures] == [(1, 3, "ValueError")]
    assert error._render_traceback_() == [f"RankFailed: {error}"]


def test_messages_that_differ_only_in_the_ranks_own_number_stand_together() -> None:
    def said(rank: int, words: str) -> RankEnd:
        return _end(rank, "raised", 3, error_type="RuntimeError", message=words, time=1.0)

    alike = [said(rank, f"no gradient for rank {rank}: 4 5") for rank in (0, 1, 10)]
    text = str(verdicts.failed(alike, CELL)).splitlines()
    assert text[1] == "ranks 0-1,10: RuntimeError: no gradient for rank 0: 4 5"
    assert text[2] == "    (from rank 0; the others differ only in the rank's number)"
    assert len(text) == 3
    other = [said(0, "no gradient for rank 0: 4"), said(1, "no gradient for rank 1: 5")]
    assert "rank 1: RuntimeError: no gradient for rank 1: 5" in str(verdicts.failed(other, CELL))
    of_a_peer = [said(0, "rank 1 has gone"), said(1, "rank 1 has gone")]
    assert "ranks 0-1: RuntimeError: rank 1 has gone" in str(verdicts.failed(of_a_peer, CELL))


def test_mismatch_is_said_plainly() -> None:
    ends = [_end(0, "stuck", 9, "all_reduce"), _end(1, "finished", None), _end(2, "stuck", 9, "all_reduce")]
    assert (
        verdicts.mismatch_sentence(ends)
        == "ranks 0,2 wait in all_reduce at line 9; rank 1 has left the cell."
    )
    same = [_end(0, "stuck", 9, "all_reduce"), _end(1, "stuck", 9, "all_reduce")]
    assert "all are in the same call" in verdicts.mismatch_sentence(same)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (-9, "SIGKILL (killed from outside"),
        (-11, "SIGSEGV (a crash in compiled code)"),
        (None, "without"),
    ],
)
def test_death_in_words(code: int | None, words: str) -> None:
    assert words in death_in_words(code)


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (Place(None, None), "is outside the cell's own lines"),
        (Place(3, "destroy_process_group"), "waits in destroy_process_group at line 3"),
    ],
)
def test_a_rank_that_was_ended_while_it_left_has_left_its_peer_alone(place: Place, where: str) -> None:
    """Its group can be gone, and its peer have failed, before it has come to its end."""
    lost = _end(0, "lost", 5, "barrier", error_type="RuntimeError", message="Connection closed by peer")
    text = str(verdicts.failed([lost, RankEnd(1, "ended", place)], CELL))
    assert text.startswith(f"rank 0 waits in barrier at line 5; rank 1 {where}.\n")
    at_work = RankEnd(1, "ended", Place(4, "all_reduce"))
    assert str(verdicts.failed([lost, at_work], CELL)).startswith(
        "rank 0 raised RuntimeError first, line 5\n"
    )


# ------------------------------------------------------------------------------- what has been met before


def test_the_end_of_a_group_that_a_ddp_model_holds_up_is_known() -> None:
    inside = Frame("/site/torch/distributed/distributed_c10d.py", 2200, "destroy_process_group")
    called = Frame(CELL.file, 9, "<module>")
    (told,) = advice([RankEnd(0, "finished"), RankEnd(1, "stuck", frames=(called, inside))])
    assert told == KNOWN[0].advice
    assert "Delete the model before destroy_process_group()" in told
    of_the_reader = Frame("/home/ada/groups.py", 3, "destroy_process_group")
    assert advice([RankEnd(1, "stuck", frames=(called, of_the_reader))]) == []
    assert advice([RankEnd(1, "raised", message="no group", frames=(called, inside))]) == []
