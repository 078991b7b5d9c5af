"""A fork of the warm Python is as good as a new one: same answer, same errors, nothing stays behind."""

import os
import subprocess
import sys

import pytest

from tests import warm_python


def test_environment_folder_and_output_are_the_callers(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, sys\nprint(os.environ['MINE'], 'HOME' in os.environ, os.getcwd(), sys.argv[1:])\n"
        "print('to stderr', file=sys.stderr)\nsys.exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mine", "--flag", "1"]
    environment = {"MINE": "a value", "PATH": os.environ["PATH"]}
    cold = subprocess.run(command, env=environment, capture_output=True, text=True)
    warm = warm_python.run(command, env=environment)
    assert cold.stdout == f"a value False {tmp_path} ['--flag', '1']\n"
    assert (warm.returncode, warm.stdout, warm.stderr) == (3, cold.stdout, cold.stderr)


def test_it_is_ended_in_time_with_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired) as late:
        warm_python.run([sys.executable, "-m", "sleeper"], timeout=5)
    assert late.value.stdout == b"begun\n"
