"""The command ``accelerate launch`` with a Python that has torch and Accelerate already.

Everything is Accelerate's: how it reads its file, the variables it sets, whether it starts torchrun's agent or one
process. But where a ``python SCRIPT`` would be started, there is a fork that is that, as in `tests.plain_torchrun`.
Its script may import `workshop`. To be run in a fork of the warm Python (`tests.warm_twins`):
``python -m tests.plain_accelerate WORDS OF ACCELERATE LAUNCH``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from accelerate.commands import launch
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from tests.plain_torchrun import Waiting

MOST = 2  # ranks that a lesson starts so


class WithWaiting:
    """The module `subprocess`, but ``Popen`` takes a fork that waits."""

    def __init__(self, waiting: list[Waiting]) -> None:
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], env: Mapping[str, str]) -> Waiting:  # noqa: N802
        """The program, in a fork."""
        return self._waiting.pop().begin(command, env)


def main() -> None:
    """The command; its processes are forked before it begins, for the agent has threads."""
    wires: list[Connection] = []
    waiting = [Waiting(wires, with_workshop=True) for _ in range(MOST)]
    forks = WithWaiting(waiting)
    SubprocessHandler._popen = lambda _, *started: forks.Popen(*started)  # type: ignore[assignment, method-assign]
    launch.subprocess = forks  # type: ignore[assignment]
    try:
        launch.main()
    finally:
        for one in waiting:
            one.let_go()


if __name__ == "__main__":
    main()
