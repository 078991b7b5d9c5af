"""Programs as others write them, rehearsed unchanged and measured on real gloo ranks.

Every row of the table is a program of `programs/` in the manner of a well-known project. Each is measured on two
ranks of an engine that has imported the libraries (`tests.loaded_engine`); meanwhile the rehearsals run. A rehearsal
is right to 0.1 % or it says which line it cannot rehearse.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rehearse import run_for_real
from tests.installed import skip_without
from workshop.rehearse import Rehearsal, RehearsalError, rehearse

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
WORLD = 2
TABLE = (
    "char_gpt.py --device=cpu",
    "tied_gpt2.py",
    "hf_trainer.py",
    "accelerate_loop.py",
    "fsdp2_meta.py",
    "tp_mesh_first.py",
    "grid_of_groups.py",
    "drop_path_vit.py",
    "hf_experts.py",
    "lightning_module.py",
)


def measure_line(line: str) -> dict[str, Any]:
    """What the last real rank of the table's world counted."""
    program, *arguments = line.split()
    return run_for_real(PROGRAMS / program, WORLD, arguments)[WORLD - 1]


def rehearse_line(line: str) -> Rehearsal | RehearsalError:
    """The last rank of the table's world."""
    program, *arguments = line.split()
    try:
        return rehearse(
            PROGRAMS / program, WORLD, WORLD - 1, arguments=tuple(arguments), gloo=True, timeout_seconds=300
        )
    except RehearsalError as error:
        return error


@pytest.fixture(scope="module")
def both(loaded_engine):
    """Measured and rehearsed, by line of the table."""
    skip_without("accelerate", "transformers", "lightning")
    with ThreadPoolExecutor(2) as pool:
        rehearsed = pool.map(rehearse_line, TABLE)
        measured = [measure_line(line) for line in TABLE]
        return dict(zip(TABLE, zip(measured, rehearsed, strict=True), strict=True))


@pytest.mark.parametrize("line", TABLE)
def test_a_foreign_program_is_rehearsed_right(both, line):
    measured, rehearsed = both[line]
    assert isinstance(rehearsed, Rehearsal), rehearsed
    assert not rehearsed.alarms
    peak = min(measured["memory"]["step_peaks"][1:])
    assert rehearsed.memory.step_peaks[-1] == pytest.approx(peak, rel=1e-3)
    assert sorted(map(str, measured["traffic"])) == sorted(str(vars(row)) for row in rehearsed.traffic)
    assert rehearsed.flops == measured["flops"]


def test_on_a_gpu_that_is_not_there_the_same_bytes(both):
    """The program names `cuda` and no machine here has one; in fp32 its tensors are those of the CPU."""
    torch_says = subprocess.run(
        [sys.executable, "-c", "import torch, sys; sys.exit(torch.cuda.is_available())"], check=False
    )
    if torch_says.returncode:
        pytest.skip("there is a GPU")
    measured, _ = both["char_gpt.py --device=cpu"]
    rehearsed = rehearse(PROGRAMS / "char_gpt.py", WORLD, WORLD - 1)
    peak = min(measured["memory"]["step_peaks"][1:])
    assert rehearsed.memory.step_peaks[-1] == pytest.approx(peak, rel=1e-3)
    assert rehearsed.flops == measured["flops"]
    assert any("no CUDA device" in note for note in rehearsed.notes)
    assert any("host's memory" in note for note in rehearsed.notes)
