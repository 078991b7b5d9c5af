"""``%%torchrun --nsys``: the cell as a saved program, under Nsight Systems.

The cell is written as NAME.py, the line that profiles it is shown, and where nsys is on the PATH that line
runs. It runs below the launch engine, as the one process of a launch: so it has a time limit, the stop button
ends it, and it ends with the notebook, with all that nsys has started.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workshop.configs.nsys_command import nsys_command
from workshop.launch import Cell, Limits, Result, Session, device, torchrun
from workshop.launch import script as program_file
from workshop.site.current import rank_environment

_RUN = "import subprocess, sys\nsys.exit(subprocess.run({command!r}, env={environment!r}).returncode)\n"


def check_flags(args: Any) -> None:
    """ValueError for flags that the engine sees to, and nsys's own torchrun would not."""
    refused = {
        "--into": args.into,
        "--device-memory": args.device_memory,
        "--share-gpu": args.share_gpu,
        "--nnodes": args.nnodes > 1,
        "--replicas": args.replicas is not None,
    }
    given = [flag for flag, value in refused.items() if value]
    if given:
        raise ValueError(
            f"{given[0]} does not go with --nsys, which runs the cell as a program of its own, on one node"
        )


def command_of(args: Any, n: int, magic_line: str, cell: str, variables: Mapping[str, Any]) -> list[str]:
    """Save the cell as ``NAME.py`` and return the line that profiles it."""
    path = program_file.save(Path(f"{args.nsys}.py"), magic_line, cell, variables)
    return nsys_command(str(path), n, args.nsys, inside=args.nsys_range or "", python=sys.executable)


def say(command: list[str]) -> bool:
    """Show the line (with a Python of any machine); whether nsys is here to run it."""
    here = shutil.which("nsys") is not None
    shown = shlex.join(["python3" if word == sys.executable else word for word in command])
    if not here:
        print("nsys is not on this machine's PATH: the cell runs without it. The line where it is:")
    print(shown, flush=True)
    return here


def run(command: list[str], n: int, limits: Limits, on_output: Any) -> Result:
    """Run the line to its end, on GPUs of its own where there are enough; raises as `torchrun` does."""
    session = Session.get()
    session.wait_ready()
    chosen = device.take(n, session, False)
    try:
        environment = {**rank_environment(os.environ), **chosen.environment()}
        return torchrun(
            Cell(_RUN.format(command=command, environment=environment), "nsys"),
            1,
            limits=limits,
            on_output=on_output,
        )
    finally:
        chosen.release()
