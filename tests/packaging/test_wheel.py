"""What `pip install` of a wheel or an sdist gives: lessons, tables, sites and every command, where there is no clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tools.wheel import lay_tree
from workshop.cli.lab_here import WELCOME
from workshop.cli.server import free_port
from workshop.exercises import all_exercises
from workshop.facts.tree import DISTRIBUTION

from .conftest import ROOT, Built, Installed

pytestmark = pytest.mark.slow
MEGABYTE = 10**6
LARGEST_WHEEL = 12 * MEGABYTE
COMMANDS = {
    ("site", "show"): "examples to start from: jean-zay, laptop, ",
    ("site", "check", "laptop"): "this machine fits the site",
    ("validate", "--quantity", "memory"): "korthikanti_2022_seqpar_selective",
    ("validate", "--serving"): "serving_",
    ("validate", "--left-out"): "# How far off the predictor is",
    ("plan", "--model", "llama-3-70b", "--cluster", "64xH100", "--global-batch", "4M"): "tensor",
}
IN_ONE_PROCESS = """
import contextlib, io, json, os, sys
from workshop.cli import main
from workshop.exercises import all_exercises
from workshop.facts import tree
from workshop.facts.published import published_table
from workshop.site.current import current_site

def said(words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    return code, out.getvalue()

for each in all_exercises():
    answers = [*each.wrong_answers, *each.other_answers]
    assert callable(each.check) and each.stub and each.solution and all(a.source for a in answers)
seen = {
    "commands": [said(words) for words in json.loads(sys.argv[1])],
    "exercises": [[each.name, len(each.wrong_answers), len(each.other_answers)] for each in all_exercises()],
    "rows": len(published_table("korthikanti_2022_seqpar_selective")),
    "site": current_site({"WORKSHOP_SITE": "laptop", **os.environ}).source,
    "tree": [tree.FROM_WHEEL, str(tree.ROOT)],
}
json.dump(seen, open("seen.json", "w"))
"""


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_clone(built: Built) -> None:
    """So that whatever is tried from the one below holds of both."""
    contents = []
    for wheel in (built.wheel, built.from_tree):
        with zipfile.ZipFile(wheel) as archive:
            contents.append({each.filename: each.CRC for each in archive.infolist()})
    assert contents[0] == contents[1]


def test_name_and_size(built: Built) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    assert (built.wheel.name, built.sdist.name) == (f"{stem}-py3-none-any.whl", f"{stem}.tar.gz")
    assert MEGABYTE < built.wheel.stat().st_size < LARGEST_WHEEL
    with tarfile.open(built.sdist) as archive:  # nothing of a machine, and nothing that only tests want
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"notebooks", "data", "examples", "workshop"} <= tops
    assert not {"tests", ".venv", "lab", "shared", "benchmarks"} & tops


def test_commands_tables_sites_and_exercises(installed: Installed, tmp_path: Path) -> None:
    words = json.dumps([list(each) for each in COMMANDS])
    done = installed.run(tmp_path, "python", "-c", IN_ONE_PROCESS, words)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["tree"] == [True, str(installed.packages / "workshop" / "tree")]
    for (asked, told), (code, out) in zip(COMMANDS.items(), seen["commands"], strict=True):
        assert code == 0, (asked, out)
        assert told in out, asked
    here = [[each.name, len(each.wrong_answers), len(each.other_answers)] for each in all_exercises()]
    assert seen["exercises"] == here
    assert seen["rows"] > 0
    assert seen["site"] == str(installed.packages / "workshop/tree/examples/sites/laptop.toml")


def test_the_first_lesson_runs(installed: Installed, tmp_path: Path) -> None:
    """In the current folder, and not beside what is installed."""
    done = installed.run(tmp_path, "workshop", "lab", "--welcome-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the first lesson ran to its end on this machine" in done.stdout
    assert (tmp_path / "lab" / WELCOME).is_file()


def test_lab_opens_the_first_lesson(installed: Installed, tmp_path: Path) -> None:
    port = free_port(20000 + os.getpid() % 20000)
    command = [installed.folder / "bin" / "workshop", "lab", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=installed.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        lines = []
        address = None
        while address is None and (line := process.stdout.readline()):
            lines.append(line)
            address = re.search(r"(http://127\.0\.0\.1:\d+)/lab/tree/(\S+)\?token=(\S+)", line)
        assert address, "".join(lines)
        server, page, token = address.groups()
        assert page == WELCOME
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{server}/api/contents/{page}?token={token}", timeout=30) as answer:
            lesson = json.load(answer)["content"]
        assert any("workshop" in cell["source"] for cell in lesson["cells"])
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_missing_package_is_brought_back_without_a_clone(installed: Installed, tmp_path: Path) -> None:
    code = (
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = missing\n"
        "from workshop.doctor.software import check_jupyterlab\n"
        "print(check_jupyterlab().do)"
    )
    done = installed.run(tmp_path, "python", "-c", code)
    assert done.stdout == f'run `{installed.python} -m pip install "jupyterlab>=4.2"`\n', done.stderr


def test_a_wheel_has_the_lessons_and_not_what_is_for_authors(tmp_path: Path) -> None:
    (tmp_path / "tree" / "notebooks").mkdir(parents=True)
    (tmp_path / "tree" / "notebooks" / "left_over.ipynb").touch()
    lay_tree(ROOT, tmp_path / "tree")
    there = {path.relative_to(tmp_path / "tree").as_posix() for path in (tmp_path / "tree").rglob("*")}
    lessons = {p.relative_to(ROOT).as_posix() for p in (ROOT / "notebooks").glob("day*/*.ipynb")}
    assert len(lessons) > 30
    assert {*lessons, "notebooks/glossary.md", "examples/sites/laptop.toml"} <= there
    assert not {"notebooks/left_over.ipynb", "notebooks/source"} & there
    for folder in ("data/published", "data/measurements"):
        assert {name for name in there if name.startswith(f"{folder}/")} == {
            path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*")
        }
