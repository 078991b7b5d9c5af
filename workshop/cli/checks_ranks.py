"""The doctor's last check: two real ranks, started as torchrun starts them, add up a number with gloo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workshop.cli.doctor import Check, Finding
from workshop.facts.units import format_seconds
from workshop.launch.environment import rank_environment
from workshop.launch.processes import die_with_parent

QUICK_SECONDS = 20
LIMIT_SECONDS = 60

_PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if total.item() != 3.0:
    raise ArithmeticError(f"the sum of 1 and 2 came out as {total.item()}")
dist.destroy_process_group()
"""


def check_ranks(limit: float = LIMIT_SECONDS, program: str = _PROGRAM) -> Finding:
    """Two ranks start, meet and agree that 1 + 2 is 3."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="workshop-doctor-") as folder:
        script = Path(folder) / "two_ranks.py"
        script.write_text(program)
        returncode, output = _torchrun(script, limit)
    took = time.monotonic() - started
    if returncode is None:
        return Finding("no", f"two ranks did not finish an all_reduce in {limit:g} s", _WHY_NOT)
    if returncode:
        return Finding("no", f"two ranks failed: {_cause(output)}", _WHY_NOT)
    said = f"two gloo ranks agree, after {format_seconds(took)}"
    if took > QUICK_SECONDS:
        return Finding("note", said, "the machine is slow or busy")
    return Finding("ok", said)


_WHY_NOT = "see torch, free port and memory above; `hostname` must resolve (/etc/hosts); then try once more"


def _torchrun(script: Path, limit: float) -> tuple[int | None, str]:
    """Exit code (None after ``limit`` seconds) and output of two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.Popen(
        [*command, str(script)],
        env=rank_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            # SIGTERM lets the agent end its ranks, which sit in sessions of their own.
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


# "RuntimeError: no peer", with or without the "[rank0]:" that torch puts before it.
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


def _cause(output: str) -> str:
    """The error that the ranks met first; torchrun's own report comes after it and says less."""
    found = _ERROR.search(output)
    last = output.strip().splitlines() or ["no word from them"]
    return (found[1] if found else last[-1])[:200]


CHECKS = [Check("two ranks", check_ranks, LIMIT_SECONDS + 40)]
