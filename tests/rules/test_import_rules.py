"""import-linter's contracts: kept by this tree, and each seen failing on a copy that breaks it."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH_FREE = ("facts", "predict", "configs", "launch", "show", "site", "process", "published")


def lint(folder):
    code = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout + done.stderr


def test_contracts_are_kept():
    returncode, said = lint(ROOT)
    assert returncode == 0, said


def test_every_torch_free_room_is_under_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (torch_free,) = [c for c in contracts if c["name"] == "The torch-free half"]
    present = {f"workshop.{room}" for room in TORCH_FREE if (ROOT / "workshop" / room).is_dir()}
    assert set(torch_free["source_modules"]) == present


@pytest.mark.parametrize(
    ("module", "text", "contract"),
    [
        ("facts/bad.py", "import workshop.launch.request", "Imports only go down"),
        ("launch/bad.py", "import workshop.cli.doctor", "Imports only go down"),
        ("novelties/__init__.py", "", "Imports only go down"),
        ("facts/bad.py", "def late():\n    import torch", "The torch-free half"),
        ("launch/bad.py", "from torch import nn", "The torch-free half"),
        ("launch/bad.py", "import transformers", "The torch-free half"),
        ("launch/bad.py", "import workshop.launch.child", "launch.child runs in ranks"),
    ],
)
def test_a_broken_contract_is_named(tmp_path, module, text, contract):
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "workshop", tmp_path / "workshop", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    bad = tmp_path / "workshop" / module
    bad.parent.mkdir(exist_ok=True)
    bad.write_text(text)
    returncode, said = lint(tmp_path)
    assert returncode != 0, said
    assert f"{contract}" in said
    assert "BROKEN" in said
