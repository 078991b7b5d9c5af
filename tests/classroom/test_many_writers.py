"""Thirty learners write at once, some are killed in the middle and come back: the instructor sees what each
did.
"""

import pytest

from benchmarks.classroom import simulate


@pytest.fixture(autouse=True)
def _progress_is_kept(monkeypatch):
    for name in ("CI", "NBVAL", "WORKSHOP_PROGRESS", "WORKSHOP_ROOM", "WORKSHOP_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_thirty_learners_lose_nothing(tmp_path):
    done = simulate(tmp_path, 30, 60, think_seconds=0.0, kill_seconds=0.4)
    assert done.lost == []
    assert done.refused == 0
    assert done.deeds >= 30 * 60
    assert done.killed
    assert len(done.looks_seconds) >= 2


def test_a_state_that_is_lost_is_found(tmp_path, monkeypatch):
    """The comparison can fail."""
    monkeypatch.setattr("workshop.classroom.seat.Seat._write", lambda *_: True)
    assert simulate(tmp_path, 1, 2, think_seconds=0.0).lost == ["learner 0 is not seen"]
