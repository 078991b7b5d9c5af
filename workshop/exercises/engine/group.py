"""The process group in which an exercise is checked, and a hang in it told in words.

Exercises run on gloo and CPU tensors also where there are GPUs: what is learnt is the algorithm, the
tensors are small, and four ranks need not find four devices. The group's time limit is short, so that
ranks that wait for each other raise soon; the engine's own limit stands behind it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workshop.exercises.engine.check import HANG_SECONDS


def join() -> None:
    """Join the group of all ranks and meet the others, so that the time limit starts for all at once."""
    if not dist.is_initialized():  # a cell that is also run as a program may have done it
        dist.init_process_group("gloo", timeout=timedelta(seconds=HANG_SECONDS))
    dist.barrier()


def line_of_wait(function: Callable[..., Any], *args: Any) -> int | None:
    """Call the learner's function; the line of theirs at which it waited in vain, or None if it returned."""
    try:
        function(*args)
    except RuntimeError as error:
        if not _is_vain_wait(error):
            raise
        file = sys.modules["__main__"].__file__  # the cell; a decorator's own frame does not count
        lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == file]
        return lines[-1] if lines else 0
    return None


def all_say(right: bool) -> bool:
    """Whether every rank says so; False also where some rank can no longer be reached."""
    all_right = torch.tensor(float(right))
    try:
        dist.all_reduce(all_right, dist.ReduceOp.MIN)
    except RuntimeError as error:
        if not _is_vain_wait(error):
            raise
        return False
    return bool(all_right)


def _is_vain_wait(error: RuntimeError) -> bool:
    """Gloo's time limit, or the connections that were closed because some rank reached it first."""
    signs = ("Timed out waiting", "Connection closed by peer", "Application timeout caused pair closure")
    return any(sign in str(error) for sign in signs)
