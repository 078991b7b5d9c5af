"""Which worker runs what: whole files, the longest first, so that no worker is left alone with a long one at the end.

xdist's own ``--dist loadfile`` begins with the files that hold the most tests, and what takes a minute is often one
test on real ranks. The list below is by measured time (``--durations=0``); a file that is not on it comes after those
that are, in its usual place. A name that is no file any more is found by `tests/rules/test_suite_rules.py`.
"""

from __future__ import annotations

import pytest

LONGEST_FIRST = (
    "tests/launch/test_faults.py",
    "tests/train/test_every_way.py",
    "tests/configs/test_used.py",
    "tests/jupyter/test_canaries.py",
    "tests/rehearse/test_against_gloo.py",
    "tests/launch/test_examples.py",
    "tests/train/test_checkpoint.py",
    "tests/lessons/test_exercises.py",
    "tests/launch/test_ranks.py",
    "tests/launch/test_session.py",
    "tests/launch/test_cut.py",
    "tests/rehearse/test_rehearse.py",
    "tests/parallel/test_fsdp.py",
    "tests/train/test_traffic_by_axis.py",
    "tests/train/test_faults.py",
    "tests/predict/test_traffic.py",
    "tests/train/test_ready_cut.py",
    "tests/doctor/test_doctor.py",
    "tests/doctor/test_doctor_cluster.py",
    "tests/cli/test_lab.py",
    "tests/parallel/test_zero.py",
    "tests/parallel/test_vision.py",
    "tests/parallel/test_tensor_plans.py",
    "tests/jupyter/test_rehearse_magic.py",
    "tests/jupyter/test_nsys_cell.py",
    "tests/jupyter/test_magics.py",
    "tests/jupyter/test_exercise.py",
    "tests/rules/test_suite_rules.py",
    "tests/launch/test_torchrun.py",
)
_PLACE = {name: place for place, name in enumerate(LONGEST_FIRST)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the tests of a file keep their order."""
    items.sort(key=lambda item: _PLACE.get(item.nodeid.split("::")[0], len(_PLACE)))


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist keep that order."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
