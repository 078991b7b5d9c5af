"""The line that profiles a program's ranks, to the letter."""

from __future__ import annotations

import shlex

import pytest

from workshop.configs.nsys_command import nsys_command


def test_the_whole_run_to_the_letter():
    assert shlex.join(nsys_command("step.py", 2, "step")) == (
        "nsys profile --trace=cuda,nvtx,osrt --sample=none --force-overwrite=true --output=step "
        "python3 -m torch.distributed.run --standalone --nproc-per-node=2 step.py"
    )


def test_a_range_to_the_letter():
    assert shlex.join(nsys_command("my step.py", 8, "out/step", inside="measured steps", python="py")) == (
        "nsys profile --trace=cuda,nvtx,osrt --sample=none --force-overwrite=true "
        "--capture-range=nvtx '--nvtx-capture=measured steps' --capture-range-end=stop "
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0 --output=out/step "
        "py -m torch.distributed.run --standalone --nproc-per-node=8 'my step.py'"
    )


def test_what_nsys_would_misread_is_refused():
    with pytest.raises(ValueError, match="reads % as a variable"):
        nsys_command("a.py", 2, "rank_%q{RANK}")
    with pytest.raises(ValueError, match="reads @"):
        nsys_command("a.py", 2, "a", inside="step@domain")
    with pytest.raises(ValueError, match="0 ranks"):
        nsys_command("a.py", 0, "a")
