"""A rank's stream: whole blocks, bars aside, and what the reader makes of both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workshop.launch.child.rank_io import RankStream
from workshop.launch.output import Transcript, last_bar
from workshop.launch.rank_folder import STACKS


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[Callable[..., tuple[list[str], str]]]:
    """Give a stream texts to write; get the blocks of its log and the bar as it stands."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log, bars = os.open(tmp_path / "log", flags), os.open(tmp_path / "bars", flags)
    stream = RankStream(log, bars, os.dup(log))

    def write(*texts: str | None) -> tuple[list[str], str]:
        for text in texts:
            if text is None:
                stream.flush()
            else:
                stream.write(text)
        bar = last_bar(tmp_path / "bars")
        stream.flush()
        transcript = Transcript({0: tmp_path / "log"})
        transcript.finish()
        return transcript.logs[0].blocks(), bar

    yield write
    os.close(log)
    os.close(bars)


def test_what_one_print_says_stays_together(printed: Callable[..., tuple[list[str], str]]) -> None:
    assert printed("a\nb", "\n", "c", "\n", "d\ne\n", "\n")[0] == ["a\nb", "c", "d\ne", ""]


def test_a_long_text_is_lines(printed: Callable[..., tuple[list[str], str]]) -> None:
    assert len(printed("x\n" * 150)[0]) == 150


@pytest.mark.parametrize(
    ("texts", "blocks", "bar"),
    [
        (["\r 5%|", "\r50%|"], [], "50%|"),  # tqdm, at work
        (["\r 5%|", "\r99%|", "\n", "end", "\n"], ["end"], ""),  # and closed
        (["\r 5%|", "warn", "\n", "\r 9%|"], ["warn"], "9%|"),
        (["step 1", "\r", "step 2", "\r"], [], "step 2"),  # print(..., end="\r")
        (["step 1", "\r", "warn 1", "\n"], ["warn 1"], "step 1"),
        (["step 1", None, "\r", "warn 1", "\n"], ["warn 1"], ""),  # flushed before the return came
        (["hello\n\r 5%|"], ["hello"], "5%|"),
        (["windows\r\n", "next\r\n"], ["windows", "next"], ""),
        (["\r0%|", "\n", "\r0%|", "\x1b[A"], [], "0%|\x1b[A"),  # two bars, one below the other
        (["text\n", "\n", "more\n"], ["text", "", "more"], ""),
    ],
)
def test_returns(
    printed: Callable[..., tuple[list[str], str]], texts: list[str | None], blocks: list[str], bar: str
) -> None:
    assert printed(*texts) == (blocks, bar)


def test_an_overwritten_line_of_a_child_process_is_its_last_state(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"10%\r50%\rdone\n")
    transcript = Transcript({0: tmp_path / "log"})
    transcript.finish()
    assert transcript.text() == "[rank 0] done\n"


ASKED_TOO_EARLY = """
import os, pathlib, signal, sys, time
from workshop.launch.child import rank_io
folder, opens = pathlib.Path(sys.argv[1]), pathlib.Path.open

def opened_and_asked(path, *how, **more):
    file = opens(path, *how, **more)
    os.kill(os.getpid(), signal.SIGUSR2)
    return file

pathlib.Path.open = opened_and_asked
rank_io.dump_stacks_on_signal(folder)
os.kill(os.getpid(), signal.SIGUSR2)
"""


def test_a_rank_that_is_asked_where_it_is_while_it_starts_goes_on(tmp_path: Path) -> None:
    """The file of its stacks is there, what writes to it is not yet: that signal ended the rank."""
    asked = subprocess.run([sys.executable, "-c", ASKED_TOO_EARLY, str(tmp_path)], timeout=60)
    assert asked.returncode == 0
    assert (tmp_path / STACKS).read_text().count("most recent call first") == 1  # the second time
