"""A training that waits for its preemption: what is put before its last line, and the job that takes its nodes."""

from __future__ import annotations

from pathlib import Path

# The first time the checkpoint of step 4 is there, the program waits.
_PAUSE = """
import time
from pathlib import Path
from workshop.train import checkpoint

save = checkpoint.Checkpoints.save


def save_and_wait(self, ready, batches, step):
    found = save(self, ready, batches, step)
    if step == 4 and "SLURM_RESTART_COUNT" not in os.environ:
        Path(os.environ["WORKSHOP_JOB_FILES"], "paused").touch()
        time.sleep(60)
    return found


checkpoint.Checkpoints.save = save_and_wait
"""


def pausing(program: str) -> str:
    """A program of `workshop.train` that waits after step 4 of its first start, and leaves ``paused``."""
    changed = program.replace("\ntrain_on_rank(", _PAUSE + "\ntrain_on_rank(")
    if changed == program:
        raise ValueError("this program calls no train_on_rank(...): there is nothing to wait before")
    return changed


def preempt(slurm, folder: Path) -> None:
    """A job of a more urgent partition takes both nodes for a moment."""
    script = folder / "urgent.sh"
    script.write_text("#!/bin/bash\nsleep 0.5\n")
    slurm.ask("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", str(script))
