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


def _grown(folder: Path, texts: dict[int, str]) -> Transcript:
    for rank, text in texts.items():
        (folder / f"rank_{rank}").mkdir(exist_ok=True)
        (folder / f"rank_{rank}" / "log").write_text(text)
    transcript = Transcript({rank: folder / f"rank_{rank}" / "log" for rank in texts})
    transcript.read()
    return transcript


@pytest.mark.parametrize(
    ("texts", "behind"),
    [
        ({0: "step 1\nstep 2\nstep 3\n", 1: "step 1\n", 2: "step 1\nstep 2\n"}, "[rank 1] step 1"),
        ({0: "step 1\nstep 2\ndone\n", 1: "step 1\n"}, "[rank 1] step 1"),
        ({0: "step 1\n", 1: "step 1\n"}, ""),  # both are as far
        ({0: "step 1\nstep 2\n", 1: ""}, ""),  # rank 0 prints, the others do not
        ({0: "loss 1\nloss 2\n", 1: "waiting\n"}, ""),  # each prints its own
    ],
)
def test_who_is_behind_is_said_only_where_it_shows(
    tmp_path: Path, texts: dict[int, str], behind: str
) -> None:
    assert _grown(tmp_path, texts).behind() == behind


def test_the_clock_names_the_slowest_and_the_newest(
    tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SILENT_SECONDS", "CLOCK_SECONDS"):
        monkeypatch.setattr(output, name, 0.0)
    live = Live(lambda _sentence, text: shown.append(text))
    live.begin("2 ranks")
    _look(live, _grown(tmp_path, {0: "step 1\nstep 2\n", 1: "step 1\n"}))
    assert shown[-1].splitlines()[-1] == "... 0 s; slowest [rank 1] step 1; newest [rank 0] step 2"


def test_of_several_bars_the_slowest_is_shown(tmp_path: Path) -> None:
    transcript = _grown(tmp_path, {0: "", 1: "", 2: ""})
    for rank, percent in enumerate((50, 9, 10)):
        (tmp_path / f"rank_{rank}" / "bars").write_text(f"\r{percent}%|#   |")
    assert transcript.bar() == "[rank 1] 9%|#   |"
    assert transcript.bar(2) == "[rank 2] 10%|#   |"


def test_at_the_end_the_text_by_time_is_whole(tmp_path: Path) -> None:
    transcript = _grown(tmp_path, {0: "one\n", 1: "one\n"})
    with (tmp_path / "rank_1" / "log").open("a") as file:
        file.write("two\nlast, without an end")
    transcript.finish()
    assert transcript.by_time() == "[ranks 0-1] one\n[rank 1] two\n[rank 1] last, without an end\n"
