"""What is shown while ranks run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from workshop.launch import output
from workshop.launch.output import BY_TIME, Live, Transcript


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(output, "NEWS_SECONDS", 0.0)
    return []


def _look(live: Live, transcript: Transcript) -> None:
    time.sleep(0.001)
    live.look(transcript)


@pytest.mark.parametrize(
    ("view", "last"),
    [
        ("folded", "[ranks 0-1] one\n[rank 0] late\n[ranks 0-1] two\n"),
        (BY_TIME, "[ranks 0-1] one\n[rank 1] two\n[rank 0] late\n[rank 0] two\n"),
        (1, "[rank 1] one\n[rank 1] two\n"),
    ],
)
def test_three_views(tmp_path: Path, shown: list[str], view: str | int, last: str) -> None:
    transcript = Transcript({rank: tmp_path / f"rank_{rank}" / "log" for rank in range(2)})
    for rank in range(2):
        (tmp_path / f"rank_{rank}").mkdir()
    live = Live(lambda _sentence, text: shown.append(text), view)
    live.begin("2 ranks")
    assert shown == [""]  # the first line stands at once
    for rank, text in ((0, "one\n"), (1, "one\n"), (1, "two\n"), (0, "late\ntwo\n")):
        with (tmp_path / f"rank_{rank}" / "log").open("a") as file:
            file.write(text)
        if (rank, text) != (0, "one\n"):
            _look(live, transcript)
    assert shown[-1] == last


def test_a_silent_cell_shows_its_seconds_and_a_bar_moves(
    tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript = Transcript({0: tmp_path / "log"})
    live = Live(lambda _sentence, text: shown.append(text))
    live.begin("1 rank")
    _look(live, transcript)
    assert shown == [""]  # too early to say anything
    monkeypatch.setattr(output, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(output, "CLOCK_SECONDS", 0.0)
    _look(live, transcript)
    assert shown[-1] == "... 0 s"
    monkeypatch.setattr(live, "_began", live._began - 75)
    (tmp_path / "bars").write_text("\r10%|#   |")
    _look(live, transcript)
    assert shown[-1] == "[rank 0] 10%|#   |\n... 1 min 15 s"
