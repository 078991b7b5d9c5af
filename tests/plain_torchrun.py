"""The command torchrun with a Python that has torch already: ``python -m tests.plain_torchrun WORDS OF TORCHRUN``.

Everything is torchrun's: its command line, its agent, its rendezvous, the variables it sets for each rank. But where
it would start ``python -u SCRIPT`` for a rank, which imports torch for seconds of a core, it gets a fork of this
process that is that. Forked beforehand: the agent has threads, and a fork of a process with threads may find a lock
that nobody will open. A rank that asks for `workshop` is refused. To be run in a fork of the warm Python
(`tests.warm_python`).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.run import main, parse_args

from workshop.launch.processes import die_with_parent


class Waiting:
    """A fork that waits for its script; from then on what the agent uses of a ``subprocess.Popen``."""

    def __init__(self, wires: list[Connection], *, with_workshop: bool = False) -> None:
        self._wire, theirs = multiprocessing.Pipe()
        wires.append(self._wire)
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=wait_and_be_program, args=(theirs, list(wires), with_workshop))
        self._process.start()
        self.pid = self._process.pid

    def begin(self, words: Sequence[str], environment: Mapping[str, str]) -> Waiting:
        """Be ``words``."""
        self._wire.send((words, dict(environment)))
        return self

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, when there is one or the time is over."""
        self._process.join(timeout)
        return self._process.exitcode

    def let_go(self) -> None:
        """It was not wanted: there was no further attempt."""
        self._wire.close()
        self._process.join()


def wait_and_be_program(wire: Connection, of_the_agent: list[Connection], with_workshop: bool) -> None:
    """In the fork: be ``python -u SCRIPT``, in a session of its own, without `workshop` if so wanted.

    Other than torchrun's own it ends with its agent: a rank that waits for gloo's thread, which waits for the
    interpreter's lock that the rank holds (`ProcessGroupGloo`'s destructor), would stay when the test is over.
    """
    die_with_parent()
    os.setsid()
    for end in of_the_agent:  # or the end of the agent would not end this one's waiting
        end.close()
    try:
        (python, *script), environment = wire.recv()
    except EOFError:
        os._exit(0)
    assert python == sys.executable
    script = script[script[0] == "-u" :]
    os.environ.clear()
    os.environ.update(environment)
    ours = [name for name in sys.modules if name.partition(".")[0] == "workshop"]
    for name in () if with_workshop else ours:
        sys.modules[name] = None  # type: ignore[assignment] # Python's own way to say: not to be imported
    sys.argv = script
    sys.path[0] = str(Path(script[0]).parent)
    runpy.run_path(script[0], run_name="__main__")


def run(words: list[str]) -> None:
    """The command torchrun; all its ranks, of every attempt, are forked before it begins."""
    wires: list[Connection] = []
    asked = parse_args(words)
    waiting = [Waiting(wires) for _ in range(int(asked.nproc_per_node) * (1 + asked.max_restarts))]

    def popen(_handler: SubprocessHandler, *started: Any) -> Waiting:
        return waiting.pop().begin(*started)

    SubprocessHandler._popen = popen  # type: ignore[assignment, method-assign]
    try:
        main(words)
    finally:
        for one in waiting:
            one.let_go()


if __name__ == "__main__":
    run(sys.argv[1:])
