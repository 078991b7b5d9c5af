"""Folding, labels, bounded reading."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from workshop.launch import output
from workshop.launch.output import RankLog, Transcript, fold, rank_label, render


@pytest.mark.parametrize(
    ("ranks", "label"),
    [([2], "rank 2"), ([0, 1, 2, 3], "ranks 0-3"), ([3, 0, 2], "ranks 0,2-3"), ([1, 5], "ranks 1,5")],
)
def test_rank_label(ranks: list[int], label: str) -> None:
    assert rank_label(ranks) == label


def test_equal_lines_stand_once_between_different_ones() -> None:
    texts = {rank: ["start", f"I am {rank}", "done"] for rank in range(3)}
    assert render(texts) == (
        "[ranks 0-2] start\n[rank 0] I am 0\n[rank 1] I am 1\n[rank 2] I am 2\n[ranks 0-2] done\n"
    )


def test_line_order_of_each_rank_survives_folding() -> None:
    generator = random.Random(0)
    for _ in range(200):
        texts = {r: generator.choices("abcde", k=generator.randrange(8)) for r in range(4)}
        folded = fold(texts)
        for rank, lines in texts.items():
            assert [line for ranks, line in folded if rank in ranks] == list(lines)


def test_tables_of_which_one_row_is_equal_stand_whole() -> None:
    texts = {0: ["before", "[[1, 2],\n [3, 4]]", "after"], 1: ["before", "[[1, 2],\n [9, 9]]", "after"]}
    assert render(texts) == (
        "[ranks 0-1] before\n[rank 0] [[1, 2],\n[rank 0]  [3, 4]]\n"
        "[rank 1] [[1, 2],\n[rank 1]  [9, 9]]\n[ranks 0-1] after\n"
    )


def test_every_rank_is_read_each_time(tmp_path: Path) -> None:
    paths = {rank: tmp_path / str(rank) for rank in range(3)}
    for path in paths.values():
        path.write_text("here\n")
    transcript = Transcript(paths)
    assert transcript.read()
    assert transcript.text() == "[ranks 0-2] here\n"
    assert not transcript.read()


def test_ranks_that_swap_two_lines_do_not_stall_the_folding() -> None:
    assert len(fold({0: ["x", "y"], 1: ["y", "x"]})) == 3


def test_a_flood_is_kept_in_bounded_memory_and_says_where_the_log_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(200_000)))
    log = RankLog(path)
    log.finish()
    lines = log.blocks()
    assert log.count == 200_000
    assert len(lines) == output.HEAD_LINES + output.TAIL_LINES + 1
    assert lines[0] == "line 0"
    assert lines[-1] == "line 199999"
    assert "199,500 more lines" in lines[output.HEAD_LINES]
    assert str(path) in lines[output.HEAD_LINES]


def test_an_endless_line_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5_000_000 + b"\nnext\n")
    log = RankLog(path)
    log.finish()
    assert len(log.blocks()[0]) < output.LONGEST_LINE + 100
    assert log.blocks()[1] == "next"


def test_reading_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    log = RankLog(path)
    assert log.read()
    assert log.blocks() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nlast")
    assert log.read()
    assert log.blocks() == ["one", "two"]
    log.finish()
    assert log.blocks() == ["one", "two", "last"]
    assert not log.read()


def test_transcript_of_a_rank_that_never_wrote_is_empty(tmp_path: Path) -> None:
    transcript = Transcript({0: tmp_path / "a", 1: tmp_path / "b"})
    (tmp_path / "b").write_text("hello\n")
    transcript.finish()
    assert transcript.text() == "[rank 1] hello\n"


def test_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    bars = tmp_path / "bars"
    bars.write_text("\r  0%|   |\r 50%|# |\r100%|##|\r")
    assert output.last_bar(bars) == "100%|##|"
    assert output.last_bar(tmp_path / "none") == ""
