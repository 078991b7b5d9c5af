"""The four calls that the README shows: want, expect, happen, look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def test_they_run_as_they_stand_there_and_agree(capsys: pytest.CaptureFixture[str]) -> None:
    (calls,) = re.findall(r"(?s)```python\n(.*?)```", README.read_text(encoding="utf-8"))
    exec(compile(calls, str(README), "exec"), {})  # two real ranks train
    assert "they agree" in capsys.readouterr().out
