"""A rank that is asked where it is answers, whatever it does, and goes on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workshop.launch import rank_folder, stack_dumps
from workshop.launch.failures import Program, parse_stacks
from workshop.launch.processes import ProcessId

SETTLED = """
import pathlib, sys
from workshop.launch.child import rank_io
rank_io.dump_stacks_on_signal(pathlib.Path(sys.argv[1]))
print("settled", flush=True)
"""
CALLS = """
class Stream:
    def write(self, text):
        return len(text.split())
while True:
    for number in range(20_000):
        print("line", number, file=Stream())
"""
IN_C = """
import hashlib
while True:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)  # minutes, in which no instruction of Python runs
"""
BLOCKED = """
import threading
lock = threading.Lock()
lock.acquire()
while True:
    lock.acquire(timeout=1000)
"""


@contextlib.contextmanager
def rank(folder: Path, does: str) -> Iterator[ProcessId]:
    """A process that is settled in ``folder`` as a rank is, and does this."""
    (folder / "cell.py").write_text(SETTLED + does)
    command = [sys.executable, str(folder / "cell.py"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "settled\n"
            started = ProcessId.of(process.pid)
            assert started
            yield started
            assert process.poll() is None  # it goes on
        finally:
            process.kill()


def where(folder: Path, start: int = 0) -> list[str]:
    """The files of the newest dump, outermost first."""
    with (folder / rank_folder.STACKS).open("rb") as file:
        file.seek(start)
        text = file.read().decode()
    return [frame.file for frame in parse_stacks(text, Program(str(folder), prefix=True))]


@pytest.mark.parametrize("does", [CALLS, IN_C, BLOCKED], ids=["calls", "in C", "blocked"])
def test_it_answers(tmp_path: Path, does: str) -> None:
    with rank(tmp_path, does) as process:
        time.sleep(0.1)
        stack_dumps.request_dumps({tmp_path / rank_folder.STACKS: process}, patience=30)
        assert str(tmp_path / "cell.py") in where(tmp_path)


def test_many_questions_do_it_no_harm(tmp_path: Path) -> None:
    """faulthandler alone ended it by SIGSEGV: after 270 questions in one try, on 3.12 after 64, on 3.13 after 46."""
    with rank(tmp_path, CALLS) as process:
        for _ in range(3_000):
            assert process.signal(stack_dumps.ASK)
            time.sleep(0.0002)
        stack_dumps.request_dumps({tmp_path / rank_folder.STACKS: process}, patience=30)
        assert str(tmp_path / "cell.py") in where(tmp_path)


def test_what_runs_python_is_not_asked_as_if_it_were_in_c(tmp_path: Path) -> None:
    with rank(tmp_path, CALLS) as process:
        question = stack_dumps.Question(process, tmp_path / rank_folder.STACKS)
        question.asked_at -= 1
        question.ticks = 10**9  # as if it had had no core since
        for _ in range(20):
            question.again()
        assert not question.is_asked_in_c
