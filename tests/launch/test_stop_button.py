"""The stop button, pressed at every line of a cell's way: the ranks are freed and healed, or were never begun."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from workshop.launch.failures import Frame, RankEnd, RankFailed, RankInterrupted, RankTimeout
from workshop.launch.output import Transcript
from workshop.launch.request import Limits
from workshop.launch.staying import cell, recovery

FINE = {"status": "ok", "user_expressions": {}}
RAISED = {"status": "error", "ename": "ValueError", "evalue": "no", "user_expressions": {}}


class Asked:
    """Two ranks: the first answers at once, the second when it is freed, or at the third look."""

    def __init__(self, first: dict[str, Any], second_comes_back: bool):
        self.channels = [SimpleNamespace(rank=0), SimpleNamespace(rank=1)]
        self.first, self.second_comes_back = first, second_comes_back
        self.asked, self.looks = False, 0
        self.replies: dict[int, Any] = {}
        self.rich: list[Any] = []
        self.results: dict[int, Any] = {}

    def ask(self, _code: str, expressions: dict[str, str]) -> None:
        self.asked = True

    def pump(self, _seconds: float) -> None:
        self.looks += 1
        self.replies[0] = self.first
        if self.second_comes_back and self.looks > 2:
            self.replies[1] = FINE

    def unanswered(self) -> list[int]:
        return [rank for rank in (0, 1) if self.asked and rank not in self.replies]

    def expressions(self, _name: str) -> dict[int, Any]:
        return {}

    def wait(self, _seconds: float) -> bool:
        return True

    waiting = unanswered


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to the ranks, in order."""
    deeds: list[str] = []

    def free(_ranks: Any, exchange: Asked) -> list[int]:
        deeds.append("cut")
        exchange.replies.update(dict.fromkeys(exchange.unanswered(), RAISED))
        return []

    monkeypatch.setattr(cell, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(recovery, "free", free)
    monkeypatch.setattr(
        recovery, "ask_stacks", lambda *_args, **_words: {1: (Frame("<rank cell 1>", 1, "recv"),)}
    )
    monkeypatch.setattr(recovery, "ends_of_the_dead", lambda _ranks: [])
    monkeypatch.setattr(
        recovery, "after_cell", lambda *_args, **_words: deeds.append("healed") or "a new group"
    )
    monkeypatch.setattr(recovery, "end_of", lambda _ranks, rank, *_rest: RankEnd(rank, "finished"))
    return deeds


def _run(first: dict[str, Any], comes_back: bool, timeout: float, tmp_path: Path) -> tuple[Asked, Any]:
    asked = Asked(first, comes_back)
    ranks: Any = SimpleNamespace(
        device=SimpleNamespace(sentence="2 ranks"), deaths={}, broken="", note_deaths=lambda: None,
        fetch=lambda _exchange: None, rank_dir=lambda rank: tmp_path / str(rank), stale=set(),
    )  # fmt: skip
    limits = Limits(timeout=timeout)
    try:
        return asked, cell.CellRun(ranks, asked, Transcript({}), limits, None).run("x = 1")  # type: ignore[arg-type]
    except (RankFailed, KeyboardInterrupt) as error:
        return asked, error


def _pressing(*lines: int) -> Callable[..., Any]:
    """A tracer that presses the stop button at the lines of that number which are run in `cell`."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != cell.__file__:
            return None
        if event == "line":
            seen += 1
            trace.seen = seen  # type: ignore[attr-defined]
            if seen in lines:
                signal.raise_signal(signal.SIGINT)
        return trace

    return trace


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """Python's own, and no loop of another test that wants to be woken: its pipe would be full of signals."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    wakes = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize(
    ("first", "comes_back", "timeout", "outcome"),
    [
        (RAISED, False, 60.0, RankFailed),
        (FINE, False, 1e-9, RankTimeout),
        (FINE, True, 60.0, cell.RanksResult),
    ],
    ids=["one raises, one waits", "time is up", "a good cell"],
)
def test_whenever_it_is_pressed_nobody_is_lost(
    first: dict[str, Any],
    comes_back: bool,
    timeout: float,
    outcome: type,
    presses: int,
    done: list[str],
    tmp_path: Path,
) -> None:
    count, outcomes = 0, set()
    while True:
        count += 1
        done.clear()
        tracer = _pressing(*range(count, count + presses))
        sys.settrace(tracer)
        try:
            asked, ended = _run(first, comes_back, timeout, tmp_path)
        finally:
            sys.settrace(None)
        where = f"pressed at line {count} of its way: {done}, {ended!r}"
        assert asked.unanswered() == [], where  # nobody is left at work
        assert done.count("cut") == 0 or done[-1] == "healed", where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where
        outcomes.add(type(ended))
        if tracer.seen < count:  # type: ignore[attr-defined] # past its last line
            break
    assert count > 40
    assert outcomes == {outcome, RankInterrupted, KeyboardInterrupt}


def test_who_looks_on_may_raise_and_the_ranks_do_not_run_on(done: list[str], tmp_path: Path) -> None:
    class Torn:
        def begin(self, _sentence: str) -> None:
            return None

        def look(self, _transcript: Transcript) -> None:
            raise OSError("nobody reads any more")

    asked = Asked(FINE, second_comes_back=False)
    ranks: Any = SimpleNamespace(device=SimpleNamespace(sentence=""), deaths={}, broken="", note_deaths=list)
    run = cell.CellRun(ranks, asked, Transcript({}), Limits(timeout=60), Torn())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="nobody reads"):
        run.run("x = 1")
    assert (done, asked.unanswered()) == (["cut", "healed"], [])
