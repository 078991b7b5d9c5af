"""The script at a lesson's end is saved by its cell, and runs by plain torchrun, twice: the second run goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.launch.script import save

SOURCES = sorted((Path(__file__).parents[2] / "notebooks" / "source").rglob("*.py"))
SCRIPT = re.compile(r'(?s)# %% tags=\["script"\]\n# (%%torchrun[^\n]*)\n(.*?)\n# %% ')
SCRIPTS = {path.stem: found for path in SOURCES if (found := SCRIPT.search(path.read_text(encoding="utf-8")))}

PRINTED = {
    "21_collectives": r"alpha \d+ us, beta \d+\.\d+ GB/s",
    "23_ddp_limits": r"optimizer: 8\.00 bytes a parameter",
}
"""What those print that train nothing; the others print a loss for each epoch."""


def test_a_lesson_ends_in_a_script() -> None:
    assert "22_ddp" in SCRIPTS


@pytest.mark.second_try(
    reason="gloo's threads now and then abort a process that is leaving (pytorch pull request 179291)"
)
@pytest.mark.parametrize("lesson", SCRIPTS)
def test_tomorrows_script_needs_nothing_of_ours(lesson: str, tmp_path: Path) -> None:
    printed = run_twice(lesson, tmp_path)
    if lesson in PRINTED:
        assert re.search(PRINTED[lesson], "\n".join(printed)), printed
        return
    losses = [float(text.rsplit(" ", 1)[1]) for text in printed]
    assert [text.split(":")[0] for text in printed] == [f"epoch {epoch}" for epoch in range(6)]
    assert losses[-1] < 0.5 * losses[0]


def run_twice(lesson: str, folder: Path) -> list[str]:
    """The lines that the script prints in two runs by plain torchrun; it may go on from a file in between."""
    line, cell = SCRIPTS[lesson].groups()
    assert "workshop" not in cell
    script = folder / "script.py"
    save(script, line.replace("{folder}", str(folder)), cell, {})
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CHECKPOINT": str(folder / "saved.pt")}
    printed = []
    for _ in range(2):
        done = subprocess.run(
            [*torchrun, str(script)], cwd=folder, env=env, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout.splitlines()
    return printed
