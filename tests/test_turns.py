"""Files that compute take turns, and those that wait do not wait for one."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.turns import COMPUTING, Turns

ROOT = Path(__file__).parents[1]
ONE, OTHER, FREE = "notebooks/day1/11.ipynb", "tests/train/test_run.py", "tests/launch/test_faults.py"


def test_as_many_compute_as_there_are_turns(tmp_path: Path) -> None:
    first, second, third = (Turns(tmp_path / "turns", 2) for _ in range(3))
    first.go_on_to(ONE)
    second.go_on_to(OTHER)
    waiting = threading.Thread(target=third.go_on_to, args=(ONE,))
    waiting.start()
    third_free = Turns(tmp_path / "turns", 2)
    third_free.go_on_to(FREE)  # at once
    first.go_on_to(ONE)  # keeps its turn
    waiting.join(0.3)
    assert waiting.is_alive()
    second.go_on_to(FREE)
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_worker_that_is_gone_holds_no_turn(tmp_path: Path) -> None:
    first, second = (Turns(tmp_path / "turns", 1) for _ in range(2))
    first.go_on_to(ONE)
    first._held.close()  # as the end of its process does
    second.go_on_to(ONE)
    assert second._held is not None


def test_what_computes_is_there() -> None:
    there = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tests", "notebooks")
        for path in (ROOT / folder).rglob("*")
    ]
    assert [name for name in COMPUTING if not any(path.startswith(name) for path in there)] == []
