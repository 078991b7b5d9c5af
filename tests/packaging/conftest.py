"""The sdist and the wheel of this tree, built once for all files that want them, and a Python that has the wheel alone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.wheel import FOLDERS

ROOT = Path(__file__).parents[2]
MADE_FROM = (
    *("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "apptainer.def", "constraints.txt"),
    *("workshop", "tools", *FOLDERS),
)


@dataclass(frozen=True)
class Built:
    """Files that `python -m build` made: the sdist, the wheel from that sdist, and the wheel from the tree."""

    sdist: Path
    wheel: Path
    from_tree: Path


@dataclass(frozen=True)
class Installed:
    """A Python that has the wheel, and what it requires from this one's packages; no clone."""

    folder: Path
    packages: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of its own ``bin`` in ``folder``, as a shell that has it on PATH would."""
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=folder, env=self.environment(**variables), capture_output=True, text=True, timeout=220,
        )  # fmt: skip

    def environment(self, **variables: str) -> dict[str, str]:
        """The variables of a learner's shell: nothing that leads to this clone."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "WORKSHOP_SITE"))
        }
        return kept | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"} | variables


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy of what a clone holds, which is gone before anything is tried."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in MADE_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    build(["--sdist", "--wheel"], source, folder / "tree")
    (sdist,) = (folder / "tree").glob("*.tar.gz")
    (from_tree,) = (folder / "tree").glob("*.whl")
    (folder / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", sdist, "-C", folder / "unpacked"], check=True, timeout=60)
    (unpacked,) = (folder / "unpacked").iterdir()
    build(["--wheel"], unpacked, folder / "sdist")
    (wheel,) = (folder / "sdist").glob("*.whl")
    shutil.rmtree(source)
    shutil.rmtree(unpacked)
    return Built(sdist, wheel, from_tree)


def build(what: Sequence[str], source: Path, into: Path) -> None:
    """`python -m build` with the packages that are here: it need not reach an index."""
    command = [sys.executable, "-m", "build", *what, "--no-isolation", "--outdir", str(into), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="session")
def installed(built: Built, bare: Installed) -> Installed:
    """What `pip install` of the wheel leaves in a new environment."""
    command = [sys.executable, "-m", "pip", "--python", bare.python, "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-compile"]
    done = subprocess.run([*command, *offline, built.wheel], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return bare


@pytest.fixture
def bare_here(tmp_path: Path) -> Installed:
    """A new environment without the workshop, for one test."""
    return make_bare(tmp_path / "venv")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment without the workshop, for `installed`."""
    return make_bare(tmp_path_factory.mktemp("installed") / "venv")


def make_bare(folder: Path) -> Installed:
    """A new Python with this one's packages, and without this clone."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth names comes after a wheel, and its own .pth files, an editable clone's, are not read.
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return Installed(folder, packages)
