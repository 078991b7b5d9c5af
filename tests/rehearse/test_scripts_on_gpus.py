"""The script that each lesson leaves, rehearsed as one rank of a world of GPUs that are not here.

Whoever takes it to a node of GPUs runs the lines below `if torch.cuda.is_available()`, which no other test
here does. A tensor that is made on the CPU and meets one on the GPU is refused by torch's own rule.
"""

import pytest
import torch

from tests.exercises.test_tomorrows_scripts import SCRIPTS, written
from workshop.rehearse import rehearse
from workshop.rehearse.report import RehearsalError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

REFUSED = {
    "52_qlora": "bitsandbytes keeps 4-bit weights in kernels that need real memory",
    "56_serving": "a rehearsal cannot see values",
}
ON_CPU = (
    "11_numbers_and_tensors",  # rounds numbers
    "24_zero",  # DeepSpeed looks at bytes, so its tensors are real
    "37_plan_the_layout",  # formulas
    "41_fp8_scaling",  # rounds numbers
    "64_plan_a_run",  # formulas
)
AS_FIRST_RANK = ("71_data",)  # it writes the file that the others read


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Scripts write beside themselves, and where they are started."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("lesson", SCRIPTS)
def test_a_script_rehearses_as_its_last_rank_on_gpus(lesson, tmp_path):
    script, ranks = written(lesson, tmp_path)
    rank = 0 if lesson in AS_FIRST_RANK else ranks - 1
    if lesson in REFUSED:
        with pytest.raises(RehearsalError, match=REFUSED[lesson]):
            rehearse(script, ranks, rank, pretend_cuda=True)
        return
    rehearsed = rehearse(script, ranks, rank, pretend_cuda=True)
    on_gpu = any("memory is the device's" in note for note in rehearsed.notes)
    assert on_gpu == (lesson not in ON_CPU)


@pytest.mark.parametrize(
    ("lesson", "there", "on_cpu"),
    [
        ("22_ddp", "y.to(device)", "y"),
        ("35_mesh", "manual_seed(0)).to(device)", "manual_seed(0))"),
        ("72_capacity", "2).to(device)", "2)"),
    ],
)
def test_a_tensor_that_stayed_on_the_cpu_is_noticed(lesson, there, on_cpu, tmp_path):
    script, ranks = written(lesson, tmp_path)
    text = script.read_text()
    assert there in text
    script.write_text(text.replace(there, on_cpu))
    rehearse(script, ranks)  # on CPUs nobody notices
    with pytest.raises(RehearsalError, match="at least two devices|cpu"):
        rehearse(script, ranks, pretend_cuda=True)
