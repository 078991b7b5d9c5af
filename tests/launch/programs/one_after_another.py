"""Several programs on the ranks of one torchrun: `one_after_another.py FOLDER "PROGRAM ARGUMENTS"...`

torch is imported once, and each program runs in a fork of the rank, as `python PROGRAM ARGUMENTS`. What it prints is
in FOLDER/NUMBER-RANK. torchrun's own store is for one group, in which the addresses of the dead lie: so each program
has a port of its own to meet at, which rank 0 finds and writes to FOLDER/NUMBER-port.
"""

import gc
import os
import runpy
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.optim  # noqa: F401 - all of these so that each fork has them

RANK = os.environ["RANK"]


def meeting_place(said: Path) -> str:
    """A port that is free now: the same on every rank."""
    if RANK == "0":
        with socket.create_server(("127.0.0.1", 0)) as server:
            said.with_suffix(".new").write_text(str(server.getsockname()[1]))
        said.with_suffix(".new").rename(said)
    while not said.exists():
        time.sleep(0.01)
    return said.read_text()


def become(program: str, *arguments: str) -> NoReturn:
    """In the fork. It leaves without Python's end, in which gloo's threads now and then abort (torch 2.13)."""
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Fork for each program and wait for it; leave as the first does that fails."""
    gc.freeze()
    folder, *lines = sys.argv[1:]
    for number, line in enumerate(lines):
        port = meeting_place(Path(folder, f"{number}-port"))
        child = os.fork()
        if not child:
            os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
            os.dup2(os.open(Path(folder, f"{number}-{RANK}"), os.O_WRONLY | os.O_CREAT), 1)
            become(*shlex.split(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        elif code:
            sys.exit(code)


if __name__ == "__main__":
    main()
