"""An exception as data: what no stream can write, and what nobody can read to its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.launch.child.failure_record import describe, tellable
from workshop.launch.failures import FailureRecord
from workshop.launch.messages import read_file
from workshop.launch.rank_folder import FAILURE, STACKS

HALF = "half a pair \ud800"


def test_half_of_a_surrogate_pair_is_told_as_its_escape() -> None:
    record = describe(ValueError(HALF), "cell")
    assert record.message == "half a pair \\ud800"
    record.message.encode()


def test_a_message_ends_somewhere() -> None:
    record = describe(ValueError("x" * 5_000_000), "cell")
    assert len(record.message) < 11_000
    assert "4,990,000 characters left out" in record.message


@pytest.mark.parametrize("text", [HALF, "x" * 5_000_000], ids=["half", "long"])
def test_the_kernels_reply_can_be_written(text: str) -> None:
    str(tellable(ValueError(text))).encode()
    fine = ValueError("as it is")
    assert tellable(fine) is fine
    assert tellable(None) is None


def test_a_rank_that_is_ended_while_it_writes_its_record_has_written_it(tmp_path: Path) -> None:
    """Its peers' death raises in it, and the agent ends it, at the same moment."""
    program = f"""
import os, pathlib, signal
from workshop.launch.child import failure_record, rank_io
folder = pathlib.Path({str(tmp_path)!r})
rank_io.dump_stacks_on_signal(folder)
class Slow(Exception):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return "the peer is gone"
failure_record.write(Slow(), "cell.py", folder)
print("not ended")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")
    assert read_file(FailureRecord, tmp_path / FAILURE).message == "the peer is gone"


def test_after_its_record_a_rank_that_is_ended_writes_its_stack(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal
from workshop.launch.child import failure_record, rank_io
folder = pathlib.Path({str(tmp_path)!r})
rank_io.dump_stacks_on_signal(folder)
failure_record.write(ValueError("a staying rank goes on"), "cell.py", folder)
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGTERM
    assert "in <module>" in (tmp_path / STACKS).read_text()
