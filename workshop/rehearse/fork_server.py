"""The process that rehearsals are forks of: ``python -m workshop.rehearse.fork_server DESCRIPTOR``.

A rehearsal needs a process of its own, and a new Python imports torch and half of its compiler first, for
seconds. This process imports them once and then does nothing but fork. Each rehearsal is two forks: one is
the rehearsal, the other waits for it, sends its exit code, and ends it if the notebook no longer wants it.

A rehearsal may ask for another one (of a pipeline's first stage), and is answered by this process too.

The notebook's end of the socket is the only tie: at its end of file this process leaves.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

from workshop.rehearse import process

IMPORTED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "workshop.rehearse.stage",
)


def serve(requests: socket.socket) -> None:
    """Import what every rehearsal imports, then fork for each request until the notebook is gone.

    A request is a datagram, the path of a JSON file (words, environment, folder), with three descriptors: a
    socket for the exit code, the rehearsal's standard output and its standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stop button is the notebook's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that waited leave no zombies
    own = {str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    installed = [entry for entry in sys.path if entry not in own]
    gc.disable()  # what modules leave behind is theirs, and no garbage
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # torch's objects: no rehearsal need look through them again
    gc.enable()
    from_forks, forks = socket.socketpair(type=socket.SOCK_SEQPACKET)
    while True:
        readable, _, _ = select.select([requests, from_forks], [], [])
        message, descriptors, _, _ = socket.recv_fds(readable[0], 4096, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            from_forks.close()
            process.use_server(forks)
            _see_to_one(json.loads(Path(os.fsdecode(message)).read_text()), descriptors, installed)
        for descriptor in descriptors:
            os.close(descriptor)


def _see_to_one(start: Mapping[str, Any], descriptors: list[int], installed: list[str]) -> None:
    """In the first fork: a rehearsal, and then its exit code; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asker = socket.socket(fileno=descriptors[0])
    child = os.fork()
    if child == 0:
        asker.close()
        _rehearse(start, descriptors[1:], installed)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, asker.fileno()], [], [])
    if asker.fileno() in ready:  # closed: the time is over, or the notebook
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    try:
        asker.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    except OSError:  # nobody asks any more
        os._exit(1)
    os._exit(0)


def _rehearse(start: Mapping[str, Any], outputs: list[int], installed: list[str]) -> None:
    """In the second fork: be ``python -m workshop.rehearse.child WORDS``; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(start["environment"])
        os.chdir(start["folder"])
        paths = filter(None, start["environment"].get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = [start["folder"], *paths, *installed]
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
            os.close(output)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(open(number, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
            for number in (1, 2)
        )
        random.seed()  # a new Python draws anew, and a fork would draw what the last one drew
        numpy.random.seed()
        torch.seed()
        sys.argv = [process.CHILD, *start["words"]]
        runpy.run_module(process.CHILD, run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:  # noqa: BLE001 as a new Python does: told, and exit code 1
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
