"""What the fork server of a test's engine has imported already, beside what it imports for everybody.

Every rank is a fork of it. Our own rooms are there in all engines of pytest's processes: half a second of a core for
each rank that trains. DeepSpeed, Accelerate, transformers, peft and bitsandbytes cost two to four, and the tests that
compare with them want many ranks: the fixture `loaded_engine`, for modules, has an engine that imported them too. It
lives as long as the next test is of a module that asks for it (such files stand side by side in
`tests.schedule.TOGETHER`); then it ends, and the next launch has a usual one.

The ranks are real ones all the same: processes of their own on gloo. Notebooks and programs that tests start have the
engine that everybody has.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workshop.launch import session

FOLDER = Path(__file__).parent / "loaded"
OURS = (
    "workshop.train.on_rank",
    "workshop.parallel.ddp",
    "workshop.parallel.fsdp",
    "workshop.parallel.zero",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint.state_dict",
)
LIBRARIES = (
    "deepspeed",
    "accelerate",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "peft",
    "bitsandbytes",
)
_usual = session.engine_environment
_modules = [*OURS]


def _environment() -> dict[str, str]:
    known = _usual()
    path = os.pathsep.join([str(FOLDER), known["PYTHONPATH"]])
    return known | {"PYTHONPATH": path, "TESTS_LOADED": " ".join(_modules), "DS_ACCELERATOR": "cpu"}


def pytest_configure() -> None:
    """All engines of this process."""
    session.engine_environment = _environment


def _from_now_on(*modules: str) -> None:
    """The next engine has these; the present one ends."""
    if _modules != [*modules]:
        _modules[:] = modules
        if session.Session._current is not None:
            session.Session._current.close()


@pytest.fixture(scope="module")
def loaded_engine() -> None:
    """Launches of this module's tests are forks of a process that has the libraries."""
    _from_now_on(*OURS, *LIBRARIES)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The libraries go where the next test is of another file and did not ask for them."""
    goes_on = nextitem is not None and (
        nextitem.path == item.path or "loaded_engine" in getattr(nextitem, "fixturenames", ())
    )
    if not goes_on:
        _from_now_on(*OURS)
