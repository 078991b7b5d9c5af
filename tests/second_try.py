"""A second try for single tests, each with its reason; what needed one is told at the end of the run.

``@pytest.mark.second_try(reason="...")`` stands on one test, never on a file: a test is marked when something that
is not ours, and that the test cannot wait for, has been seen to fail. Such a test, when it fails, runs once more in
a new place. The end of the run names those that needed it; with WORKSHOP_SECOND_TRIES set to a file, it also notes
them there, so that `make test` can count over all of its stages.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MARKER = "second_try"
KEPT_IN = "WORKSHOP_SECOND_TRIES"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hand the marked tests to pytest-rerunfailures; the reason travels with each report."""
    for item in items:
        mark = item.get_closest_marker(MARKER)
        if mark is None:
            continue
        reason = mark.kwargs.get("reason", "")
        if not reason:
            raise pytest.UsageError(
                f"{item.nodeid}: {MARKER} needs a reason: @pytest.mark.{MARKER}(reason='what fails, and why')"
            )
        item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
        item.user_properties.append((MARKER, reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name each test that needed its second try, with the reason that was given for it.

    xdist's workers come here too, unseen; who hands out their tests counts for all.
    """
    needed = terminalreporter.getreports("rerun")
    if not needed or hasattr(config, "workerinput"):
        return
    lines = [
        f"{report.nodeid}: {dict(report.user_properties).get(MARKER, 'not marked')}" for report in needed
    ]
    terminalreporter.section(f"needed a second try: {len(lines)}", yellow=True)
    for line in lines:
        terminalreporter.line(line)
    if os.environ.get(KEPT_IN):
        with Path(os.environ[KEPT_IN]).open("a") as kept:
            kept.writelines(f"{line}\n" for line in lines)
