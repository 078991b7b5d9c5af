"""What every test starts from: one thread a process, no variables of another launcher; and a second try.

A test that starts real ranks shares the machine with whoever else is there: a gloo thread that wakes late, a
connection that times out while the disk is busy. Such a test, when it fails, is run once more in a new place;
the summary counts it under "rerun", so that it is seen. The failure lab (`make faults`), which counts how
often the engine keeps its promises, has no second try.
"""

import os
from pathlib import Path

import pytest

from workshop.launch.environment import leaked

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in leaked(os.environ):
    del os.environ[_name]

REAL_RANKS = (
    "cluster",
    "configs",
    "jupyter",
    "launch",
    "lessons",
    "measure",
    "parallel",
    "rehearse",
    "train",
)


def pytest_collection_modifyitems(items):
    """A second try for tests in the rooms where ranks are real."""
    for item in items:
        room = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        if room in REAL_RANKS:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
