"""Folders that are whole or not there."""

import os
import time

import pytest

from workshop.assets import cache


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORKSHOP_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/workshop"),
        ({"HOME": "/h"}, "/h/.cache/workshop"),
    ],
)
def test_root(monkeypatch, variables, expected):
    for name in ("WORKSHOP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache.root()) == expected


def test_what_fails_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), cache.filling(tmp_path / "goal") as work:
        (work / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_first_rename_stands(tmp_path):
    goal = tmp_path / "goal"
    with cache.filling(goal) as late:
        (late / "file").write_text("late")
        with cache.filling(goal) as early:
            (early / "file").write_text("early")
    assert (goal / "file").read_text() == "early"
    assert cache.is_whole(goal)
    assert [path.name for path in tmp_path.iterdir()] == ["goal"]


def test_a_broken_folder_is_replaced(tmp_path):
    goal = tmp_path / "goal"
    goal.mkdir()
    (goal / "file").write_text("half")
    with cache.filling(goal) as work:
        (work / "file").write_text("whole")
    assert (goal / "file").read_text() == "whole"


def test_old_leftovers_are_swept_and_young_ones_stay(tmp_path):
    for name, age in (("old", 2 * 24 * 3600), ("young", 60)):
        left = tmp_path / (cache.UNFINISHED + name)
        left.mkdir()
        os.utime(left, (time.time() - age,) * 2)
    cache.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [cache.UNFINISHED + "young"]


def test_a_lock_that_is_held_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path))
    started = time.monotonic()
    with cache.lock("x"), cache.lock("x", seconds=0.3):
        pass
    assert time.monotonic() - started > 0.2  # it did wait, and here it is


def test_what_is_in_the_cache_can_be_read_by_others_whoever_wrote_it(tmp_path):
    """safetensors writes files for their maker alone."""
    goal = tmp_path / "goal"
    with cache.filling(goal) as work:
        (work / "inner").mkdir(mode=0o700)
        (work / "inner" / "model.safetensors").write_bytes(b"x")
        (work / "inner" / "model.safetensors").chmod(0o600)
    assert (goal / "inner").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in goal.rglob("*") if path.is_file()} == {0o644}
