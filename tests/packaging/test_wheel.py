"""What `pip install` of a wheel gives: the commands work where there is no clone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools.wheel import FOLDERS, lay_tree
from workshop.exercises import all_exercises

ROOT = Path(__file__).parents[2]
MADE_FROM = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "workshop", "tools", *FOLDERS)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel, and what it requires from this one's packages; no clone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in MADE_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "venv" / "bin" / "python"


def said(python: Path, folder: Path, *words: str) -> str:
    """What a command prints; it must end well."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "workshop", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lab", "--welcome-only"), "the first lesson ran to its end on this machine"),
        (("site", "show"), "examples to start from: jean-zay, laptop, "),
        (("site", "check", "laptop"), "this machine fits the site"),
        (("validate", "--quantity", "memory"), "korthikanti_2022_seqpar_selective"),
    ],
    ids=["lab", "site show", "site check", "validate"],
)
def test_from_a_wheel(installed: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    assert told in said(installed, tmp_path, *words)
    if words[0] == "lab":  # in the current folder, not beside what is installed
        assert (tmp_path / "lab" / "day0_welcome" / "00_welcome.ipynb").is_file()


@pytest.mark.slow
def test_it_is_the_wheel_that_was_tried(installed: Path, tmp_path: Path) -> None:
    code = "from workshop.facts import tree; print(tree.FROM_WHEEL, tree.ROOT)"
    done = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", str(tree_of(installed))], done.stderr


@pytest.mark.slow
def test_the_exercises_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = (
        "from workshop.exercises import all_exercises\n"
        "for each in all_exercises():\n"
        "    answers = [*each.wrong_answers, *each.other_answers]\n"
        "    assert callable(each.check) and each.stub and each.solution and all(a.source for a in answers)\n"
        "    print(each.name, len(answers))\n"
    )
    done = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    here = [f"{each.name} {len(each.wrong_answers) + len(each.other_answers)}" for each in all_exercises()]
    assert done.stdout.splitlines() == here, done.stderr


def tree_of(python: Path) -> Path:
    (tree,) = python.parents[1].glob("lib/python*/site-packages/workshop/tree")
    return tree


def test_a_wheel_has_the_lessons_and_not_what_is_for_authors(tmp_path: Path) -> None:
    (tmp_path / "tree" / "notebooks").mkdir(parents=True)
    (tmp_path / "tree" / "notebooks" / "left_over.ipynb").touch()
    lay_tree(ROOT, tmp_path / "tree")
    there = {path.relative_to(tmp_path / "tree").as_posix() for path in (tmp_path / "tree").rglob("*")}
    pages = {"notebooks/day0_welcome/00_welcome.ipynb", "notebooks/glossary.md"}
    assert {*pages, "examples/sites/laptop.toml"} <= there
    assert not {"notebooks/left_over.ipynb", "notebooks/source"} & there
    for folder in ("data/published", "data/measurements"):
        assert {name for name in there if name.startswith(f"{folder}/")} == {
            path.relative_to(ROOT).as_posix() for path in (ROOT / folder).iterdir()
        }
