"""cProfile's numbers as a tree."""

from __future__ import annotations

import cProfile
import time

import pytest

from workshop import show
from workshop.measure import profile_calls
from workshop.measure.calls import CallNode, Calls


class Clock:
    """Seconds that pass only when somebody lets them: no machine is too busy for it."""

    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock, profile = Clock(), cProfile.Profile
    monkeypatch.setattr(cProfile, "Profile", lambda: profile(clock))
    monkeypatch.setattr(time, "sleep", clock.sleep)


def fast():
    time.sleep(0.01)


def slow():
    time.sleep(0.05)
    fast()


def both():
    slow()
    fast()


def find(node, name):
    return [node] * (node.name == name) + [x for child in node.children for x in find(child, name)]


def test_the_tree_says_who_called_whom_for_how_long():
    with profile_calls() as calls:
        both()
    tree = calls.tree()
    (top,) = find(tree, "test_calls.both")
    assert top.seconds == pytest.approx(0.07)
    assert [child.name for child in top.children] == ["test_calls.slow", "test_calls.fast"]
    (under_slow,) = list(find(top.children[0], "test_calls.fast"))
    assert under_slow.seconds == pytest.approx(0.01)
    assert top.children[1].seconds == pytest.approx(0.01)
    assert sum(n.self_seconds for n in find_all(tree)) == pytest.approx(tree.seconds, rel=1e-6)
    assert calls.table(3).rows[0][0] == "test_calls.sleep"


def find_all(node):
    return [node, *(x for child in node.children for x in find_all(child))]


def test_a_row_is_never_wider_than_the_one_above():
    def down(n):
        if n:
            down(n - 1)
            fast()

    with profile_calls() as calls:
        down(3)
    for node in find_all(calls.tree()):
        assert sum(child.seconds for child in node.children) <= node.seconds * (1 + 1e-9)


def test_nothing_counted_is_said():
    with pytest.raises(ValueError, match="nothing was counted"):
        Calls().tree()
    with pytest.raises(ValueError, match="no time to draw"):
        show.icicle(CallNode("all", "", 0.0, 0.0))


def test_the_drawing_is_as_wide_as_the_time():
    leaf = CallNode("m.f", "m.py, line 3", 1.0, 1.0)
    tree = CallNode("all", "", 4.0, 0.0, (CallNode("m.g", "m.py, line 1", 4.0, 3.0, (leaf,)),))
    drawing = show.icicle(tree, title="four")
    assert "four: calls, 4 s in all; most time of its own: m.g, 75%" in repr(drawing)
    assert "width='224.4'" in drawing.svg  # a quarter of 900, less the gap
    assert "m.f (m.py, line 3): 1 s, 25.0%" in drawing.svg
