"""A Python with torch imported already: ``python -m MODULE ...`` in a fork of it costs milliseconds, not seconds.

A fork server imports torch and half of its compiler once for each pytest process. A fork is still a process of its
own: it may abort, hang, print and change global state, and the next one is new.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PRELOADED = ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", __name__]


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_options: Any,
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run(command, capture_output=True, text=True)`` for ``[python, ..., "-m", module, ...]``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        ends = Path(folder, "stdout"), Path(folder, "stderr")
        start = command.index("-m") + 1
        task = (list(command[start:]), dict(os.environ if env is None else env), str(Path.cwd()), ends)
        process = context.Process(target=_become, args=task)
        process.start()
        process.join(timeout)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        out, err = (end.read_text(errors="replace") if end.exists() else "" for end in ends)
    if late:
        raise subprocess.TimeoutExpired(command, timeout or 0.0, out.encode(), err.encode())
    return subprocess.CompletedProcess(command, process.exitcode or 0, out, err)


def _become(arguments: list[str], env: dict[str, str], folder: str, ends: tuple[Path, Path]) -> None:
    """In the fork: be `python -m ARGUMENTS` in ``folder`` with ``env``, with output to the files ``ends``."""
    gc.freeze()  # torch's objects: nobody need look through them again
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    for number, end in enumerate(ends, 1):
        os.dup2(os.open(end, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path[:0] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
