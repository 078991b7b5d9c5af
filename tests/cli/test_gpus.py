"""`workshop gpus`: who holds which GPU."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from workshop.cli import main
from workshop.launch.gpus import leases
from workshop.launch.gpus.lease_files import FOLDER

FAKE = Path(__file__).parents[1] / "measure" / "nvml"


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Two GPUs, as NVML would tell."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "leases"))
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    fake = importlib.import_module("pynvml")
    fake.reset()
    yield fake
    leases._give_all_back()
    monkeypatch.delitem(sys.modules, "pynvml")


def test_the_table_and_the_list(driver, capsys, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "day1/my lesson.ipynb")
    driver.STATE["processes"][1] = [4711]
    leases.take(1, ["GPU-bbbb1111"])
    leases.take(1, ["MIG-part"])
    assert main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Pretend GPU GPU-aaaa0000" in lines[2]
    assert "free" in lines[2]
    assert "my lesson.ipynb" in lines[3]
    assert str(os.getpid()) in lines[3]
    assert lines[3].endswith("4711")
    assert "MIG-part" in lines[4]
    assert main(["gpus", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["gpu"], row["pid"]) for row in rows] == [
        ("GPU-aaaa0000", None),
        ("GPU-bbbb1111", os.getpid()),
        ("MIG-part", os.getpid()),
    ]


def test_without_gpus_it_says_why(driver, capsys):
    driver.STATE["init_error"] = driver.NVMLError_LibraryNotFound
    assert main(["gpus"]) == 0
    assert capsys.readouterr().out.startswith("no GPUs here: no NVIDIA driver on this machine")


def test_a_folder_that_cannot_be_read_is_a_failure(driver, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file"))
    assert main(["gpus"]) == 1
    assert "no place for GPU leases" in capsys.readouterr().out
