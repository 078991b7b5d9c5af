"""The lessons' kernels are forks of a Python that has torch (`tests.warm_python`); so are their two servers.

A lesson that nbval executes starts a Python for the kernel, one for the engine when a cell wants ranks, and one that
rehearsals are forks of. Each would import torch, its compiler and ipykernel: three to five seconds of a core, three
times a lesson. Here the kernel is a fork, and before it starts it forks twice: two twins that wait. Where the
notebook's end of the engine, or of the rehearsals, would start an interpreter, a twin becomes that program: a child
of the kernel, in a session of its own, with no descriptor but those that it is given, as a new one. Whoever wants a
third starts it the usual way, as does an environment in which torch would read other things while it is imported.

All else is what a learner has: the kernel is a process of its own, hears the same signals, ends with whoever started
it. `COLD` lessons get new Pythons all along, as the magics' tests (they
import no torch), the failure lab, `jupyter execute` and `workshop lab` do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.warm_python import LIBRARIES, Forked, Program, descriptor_of

# Lessons that compile, or import transformers and its like, in kernels, ranks or rehearsals; all forks have them then.
WITH_LIBRARIES = ("15_", "19_", "24_", "25_", "26_", "4", "5")
LAUNCHES = {"26_accelerate.ipynb": 2}  # how often a lesson calls ``accelerate launch``
# The first, which looks at what this machine's Pythons can do, and one with ranks and rehearsals.
COLD = ("00_welcome.ipynb", "22_ddp.ipynb")
# Triton interprets or compiles as its environment says when it is imported, and with a torch that brings it the
# compiler has imported it before the lesson says a word. A new Python where there is one.
ASKS_TRITON = ("19_compile_and_kernels.ipynb",)


def is_cold(lesson: str) -> bool:
    """Whether a lesson, by its file's name, gets new Pythons here."""
    return lesson in COLD or (lesson in ASKS_TRITON and importlib.util.find_spec("triton") is not None)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A lesson's first cell starts its kernel."""
    name = item.path.name
    libraries = LIBRARIES if name.startswith(WITH_LIBRARIES) else ()
    is_warm = name.endswith(".ipynb") and not is_cold(name)
    with warm(libraries, LAUNCHES.get(name, 0)) if is_warm else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def warm(libraries: Sequence[str] = (), launches: int = 0) -> Iterator[None]:
    """Kernels that jupyter_client starts in this block are forks of the warm Python, which has ``libraries``.

    launches: so many calls of ``accelerate launch`` get forks, too.
    """
    from jupyter_client.provisioning import local_provisioner  # half a second: not for runs without kernels

    usual = local_provisioner.launch_kernel
    local_provisioner.launch_kernel = functools.partial(launch, libraries=libraries, launches=launches)
    try:
        yield
    finally:
        local_provisioner.launch_kernel = usual


def launch(cmd: list[str], *, libraries: Sequence[str] = (), launches: int = 0, **options: Any) -> Forked:
    """As jupyter_client's ``launch_kernel``, for ``python -m ipykernel_launcher -f FILE``."""
    assert cmd[1:3] == ["-m", "ipykernel_launcher"], f"not a Python kernel: {cmd}"
    with open(os.devnull) as nothing:
        outputs = [
            descriptor_of(options.get(name), nothing.fileno(), number)
            for number, name in enumerate(("stdout", "stderr"), 1)
        ]
        folder = options.get("cwd") or str(Path.cwd())
        environment = options.get("env") or os.environ
        program = Program(cmd[1:], environment, str(folder), [nothing.fileno(), *outputs])
        program.preloaded = libraries
        program.told["launches"] = launches
        return Forked(program)
