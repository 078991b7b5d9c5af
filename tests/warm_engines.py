"""The engine of pytest's own process, and its server of rehearsals, are forks of the warm Python (`tests.warm_python`).

Each of the two would import torch and its compiler: three to six seconds of a core for every worker, and once more
whenever the engine is closed, or is to have other libraries (`tests.loaded_engine`). Kernels and programs that tests
start have engines of their own, which are new Pythons. So has a launch whose environment holds what torch would read
differently while it is imported.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import warm_python
from tests.warm_python import READ_AT_IMPORT, Forked, Program, descriptor_of
from workshop.facts import launcher_variables

ENGINE = ("-P", "-c", "from workshop.launch.child.supervisor import main; main()")
REHEARSALS = ("-m", "workshop.rehearse.fork_server")
# What a new interpreter would do: outlive whoever started it, to clean up after it, and read its sitecustomize.
_AS_A_NEW_ONE = """\
from workshop.launch import processes
processes._prctl(processes.PR_SET_PDEATHSIG, 0)
"""
_LOADED = f"import runpy; runpy.run_path({str(Path(__file__).parent / 'loaded' / 'sitecustomize.py')!r})\n"
# Names that `warm_python.become` reads anew, or that no output of an engine shows.
_NO_CHOICE = ("PYTHONPATH", "PYTHONUNBUFFERED", *READ_AT_IMPORT)


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """What torch and Python read while they start."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(launcher_variables.READ_AT_IMPORT) and name not in _NO_CHOICE
    }


class ForkedEngines:
    """The module `subprocess`, but ``Popen`` of an engine or of the server of rehearsals is a fork."""

    forks = True  # not within `new_pythons`

    def __init__(self) -> None:
        self._at_start = read_at_import(os.environ)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], **options: Any) -> Any:  # noqa: N802
        """A fork, or a new process."""
        words = [str(word) for word in command[1:]]
        is_one = command[0] == sys.executable and any(
            tuple(words[: len(start)]) == start for start in (ENGINE, REHEARSALS)
        )
        environment = options.get("env") or os.environ
        if not (self.forks and is_one) or read_at_import(environment) != self._at_start:
            return subprocess.Popen(command, **options)
        if words[0] == "-P":
            words[2] = _AS_A_NEW_ONE + (_LOADED if "TESTS_LOADED" in environment else "") + words[2]
        return begun(words, environment, options)


@contextlib.contextmanager
def new_pythons() -> Iterator[None]:
    """Engines that are started in this block are new Pythons; one that is there ends first."""
    from workshop.launch import Session

    if Session._current is not None:
        Session._current.close()
    ForkedEngines.forks = False
    try:
        yield
    finally:
        ForkedEngines.forks = True


def begun(words: Sequence[str], environment: Mapping[str, str], options: Mapping[str, Any]) -> Forked:
    """A fork that is ``python WORDS``, started with what `subprocess.Popen` takes."""
    with open(os.devnull, "r+b") as nothing:
        streams = [
            descriptor_of(options.get(name), nothing.fileno(), number)
            for number, name in enumerate(("stdin", "stdout", "stderr"))
        ]
        folder = str(options.get("cwd") or Path.cwd())
        return Forked(Program(words, environment, folder, streams, options.get("pass_fds", ())))


def pytest_collection_finish() -> None:
    """All engines of this process."""
    from workshop.launch import session

    warm_python.start_with(os.environ)
    engines = ForkedEngines()
    session.subprocess = engines  # type: ignore[assignment]
    if "workshop.rehearse.process" in sys.modules:  # it imports what a run without rehearsals need not
        sys.modules["workshop.rehearse.process"].subprocess = engines  # type: ignore[attr-defined]
