"""What a wheel has besides the package: lessons, data and examples, for `workshop.facts.tree` to find.

setuptools calls `BuildWithTree` in place of its own ``build_py`` (``pyproject.toml``).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("notebooks", "data", "examples")
# Halves of the lessons that are for authors, and what tools leave behind.
_LEFT_OUT = shutil.ignore_patterns("source", ".ipynb_checkpoints", "__pycache__", "*.pyc", ".*")


class BuildWithTree(build_py):
    """``build_py``, and the tree's folders too; an editable install reads them where they stand."""

    def run(self) -> None:
        """Lay out the package as always, then the tree's folders in ``workshop/tree``."""
        super().run()
        if not self.editable_mode:
            lay_tree(ROOT, Path(self.build_lib) / "workshop" / "tree")


def lay_tree(root: Path, folder: Path) -> None:
    """Make ``folder`` anew with what a wheel takes from ``root``: an earlier build may have left more."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=_LEFT_OUT)
