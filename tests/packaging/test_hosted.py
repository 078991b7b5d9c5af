"""The way in at Colab, Kaggle and Binder, without them: their variables, a folder without a clone, the wheel built here."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tools.setup_environment import TORCH_RANGE
from workshop.cli.lab_here import WELCOME
from workshop.facts.tree import DISTRIBUTION

from .conftest import ROOT, Built, Installed

FIRST_CELL = ROOT / "examples" / "hosted" / "first_cell.py"
BINDER = ROOT / "binder"


@pytest.mark.slow
def test_the_first_cell_installs_checks_and_lays_the_lessons(
    built: Built, bare_here: Installed, tmp_path: Path
) -> None:
    """The doctor's checks on real ranks too; what a busy machine lacks is another file's matter (`tests/doctor`)."""
    content = tmp_path / "content"
    content.mkdir()
    variables = {"COLAB_RELEASE_TAG": "release-colab", "WORKSHOP_WHEEL": str(built.wheel)}
    done = bare_here.run(content, "python", FIRST_CELL, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^(ok|note|no) +(\S.*?) {2,}(.*)$", done.stdout, re.MULTILINE)
    verdicts = {name: verdict for verdict, name, _ in said}
    assert [verdicts.get(name) for name in ("Python", "JupyterLab", "kernel", "torch")] == ["ok"] * 4, (
        done.stdout
    )
    (found,) = [text for _, name, text in said if name == "hosted notebook"]
    assert re.match(r"Colab: \S+ cores?, (no GPU|\d+ GPUs?), (you are root|sudo|no sudo)", found), found
    assert "make lab" not in done.stdout
    assert (content / "lab" / WELCOME).is_file()
    assert (bare_here.packages / "workshop" / "tree" / "notebooks" / WELCOME).is_file()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the first cell runs, and a host's packages: ``has`` by name, ``fails`` the words that do not end well."""
    faked = SimpleNamespace(
        ran=[], has={"ipykernel": "6.29.0", "torch": "2.12.1", "numpy": "1.20"}, fails=None
    )

    def run(command: list[str], check: bool) -> SimpleNamespace:
        faked.ran.append(command[2:])
        return SimpleNamespace(returncode=int(faked.fails is not None and faked.fails in command))

    def version(name: str) -> str:
        if name not in faked.has:
            raise importlib.metadata.PackageNotFoundError(name)
        return faked.has[name]

    wanted = ["ipykernel>=7", "torch<2.14,>=2.11", "numpy>=1.26", "einops>=0.8", 'onnx>=1; extra == "dev"']
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.metadata, "requires", {DISTRIBUTION: wanted}.__getitem__)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.delenv("WORKSHOP_WHEEL", raising=False)
    return faked


def test_it_installs_what_is_missing_and_leaves_the_hosts_own(
    pip: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    runpy.run_path(str(FIRST_CELL))
    assert pip.ran == [
        ["pip", "install", "--quiet", "--no-deps", DISTRIBUTION],
        ["pip", "install", "--quiet", "numpy>=1.26", "einops>=0.8"],
        ["workshop", "lab", "--copies-only", "--dir", "lab"],
        ["workshop", "doctor"],
    ]
    assert "note: ipykernel 6.29.0 is the host's and stays; we are tried with >=7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fails", "said"),
    [("--no-deps", "set WORKSHOP_WHEEL"), ("einops>=0.8", "could not install what is missing")],
)
def test_it_says_when_pip_fails(pip: SimpleNamespace, fails: str, said: str) -> None:
    pip.fails = fails
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(FIRST_CELL))
    assert ["workshop", "doctor"] not in pip.ran


def test_binders_python_is_one_of_ours() -> None:
    found = yaml.safe_load((BINDER / "environment.yml").read_text())
    (python,) = [entry.partition("=")[2] for entry in found["dependencies"] if entry.startswith("python ")]
    project = yaml.safe_load((ROOT / "environment.yml").read_text())
    (range_,) = [
        entry.removeprefix("python ") for entry in project["dependencies"] if str(entry).startswith("python ")
    ]
    assert f"{python}.1" in SpecifierSet(range_)
    assert found["channels"] == ["conda-forge"]


def test_binder_installs_torch_without_cuda_before_anything_asks_for_it(tmp_path: Path) -> None:
    """postBuild with a Python that writes down what it is asked for."""
    python, asked = tmp_path / "python", tmp_path / "asked.txt"
    python.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    python.chmod(0o755)
    post_build = BINDER / "postBuild"
    assert os.access(post_build, os.X_OK)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([post_build], cwd=ROOT, env=environment, check=True, timeout=30)
    uv, torch, workshop, copies = asked.read_text().splitlines()
    assert uv.endswith(" uv")
    assert torch == f"-m uv pip install --no-cache --python {python} --torch-backend=cpu {TORCH_RANGE}"
    assert workshop == "-m pip install --no-cache-dir --constraint constraints.txt --editable ."
    assert copies == "-m workshop lab --copies-only"
    assert (ROOT / "constraints.txt").is_file()
