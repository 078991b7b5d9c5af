"""What a page shows of ranks beside the text: tabs while they run, leaves afterwards, the line that failed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from workshop.jupyter import magics
from workshop.jupyter.failing_line import FailingLine
from workshop.jupyter.rank_tabs import KEPT_LINES, LINES, RankTabs, leaves
from workshop.launch import RankFailed
from workshop.launch.failures import Failure
from workshop.show.page import is_live

SOURCE = ["%%ranks", "a = 1 < 2", "raise ValueError"]


def failed(line: int | None, file: str = "") -> RankFailed:
    ends = [Failure(rank, "raised", "ValueError", "x", line, None, "", file) for rank in (1, 2)]
    return RankFailed("failed", ends)


def test_tabs_show_the_ends_of_their_texts() -> None:
    tabs = RankTabs(["by time", "rank 0"])
    tabs.show(
        "".join(f"line {n}\n" for n in range(99)), {"by time": "<b>\n", "rank 0": "mine\n", "rank 9": "?"}
    )
    assert list(tabs.box.titles) == ["all ranks", "by time", "rank 0"]
    assert tabs.pages["all ranks"].value.count("line") - 1 == LINES  # one is in the style
    assert "&lt;b&gt;" in tabs.pages["by time"].value
    assert "mine" in tabs.pages["rank 0"].value


def test_leaves_need_no_script_and_are_bounded() -> None:
    html = leaves("2 ranks <here>", {"by time": "x\n" * 500, "rank 0": "<i>\n", "rank 1": ""})
    assert "<script" not in html
    assert "2 ranks &lt;here&gt;" in html
    assert "&lt;i&gt;" in html
    assert html.count("x\n") == KEPT_LINES - 1
    assert "300 lines before these" in html
    assert "rank 1" not in html  # it printed nothing


def test_the_line_that_failed_is_marked_and_linked() -> None:
    found = FailingLine.of(failed(3), SOURCE)
    assert found is not None
    top, link = found.top("2 ranks"), found.link()
    assert ".cm-line:nth-child(3)" in top
    assert re.search(r'id="(.+?)"', top)[1] == re.search(r'href="#(.+?)"', link)[1]  # type: ignore[index]
    assert "ranks 1-2 failed first" in link
    assert "→   3  raise ValueError" in link
    assert "    2  a = 1 &lt; 2" in link
    assert found.plain() == "line 3: raise ValueError"


@pytest.mark.parametrize(
    "error", [failed(None), failed(3, "other.py"), failed(9), RankFailed("x"), ValueError("x")]
)
def test_what_failed_elsewhere_marks_nothing(error: BaseException) -> None:
    assert FailingLine.of(error, SOURCE) is None


class Handle:
    """A display that keeps what it was last given."""

    def __init__(self) -> None:
        self.shown: Any = None

    def update(self, shown: Any) -> None:
        self.shown = shown


@pytest.mark.parametrize(("page", "tabs"), [(True, True), (False, False)])
def test_tabs_are_for_a_page_and_end_as_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: bool, tabs: bool
) -> None:
    monkeypatch.setattr(magics, "_ON_A_PAGE", page)
    monkeypatch.setattr(magics, "_TABS_SECONDS", 0.0)
    transcript = SimpleNamespace(
        logs={0: None}, by_time=lambda: "[rank 0] hello\n", of_rank=lambda rank: "hello\n"
    )
    view = magics.LiveView(SimpleNamespace())
    view.handle, view.sentence = Handle(), "1 rank"
    view.watch(transcript)  # type: ignore[arg-type]
    view("1 rank", "[rank 0] hello\n")
    assert isinstance(view.handle.shown, RankTabs) == tabs
    view.end(SimpleNamespace(device="1 rank", text="[rank 0] hello\n"))
    assert repr(view.handle.shown) == "1 rank"  # what is stored, and what nbval compares
    assert bool(view.handle.shown._repr_html_()) == tabs
    assert capsys.readouterr().out == "[rank 0] hello\n"


def test_a_page_is_told_by_jupyters_own_variable() -> None:
    assert is_live({"JPY_SESSION_NAME": "a.ipynb"})
    assert not is_live({})
