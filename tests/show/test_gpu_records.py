"""The records of `make gpu` as a table: chosen lines, ratios, none yet, and words that nothing has."""

import json
import re

import pytest

from workshop import show
from workshop.show.gpu_records import RECORDS, STAGES, measured_on_gpu

LINES = [
    {"what": "tokens/s", "measured": 63_000.0, "unit": "tokens/s", "predicted": 60_000.0},
    {"what": "MFU", "measured": 0.54, "unit": "", "predicted": None},
    {"what": "not timed", "measured": None, "unit": "s", "predicted": None},
]


@pytest.fixture
def folder(tmp_path):
    parts = {
        "1.3b, ours": {"status": "done", "rows": LINES},
        "125m, ours": {"status": "done", "rows": LINES[1:]},
    }
    about = {"device": "NVIDIA H200", "date": "2026-12-01", "machine": {"versions": {"torch": "2.11.0"}}}
    (tmp_path / "throughput.json").write_text(json.dumps({**about, "parts": parts}))
    return tmp_path


def test_chosen_lines_stand_beside_what_was_predicted(folder):
    table = measured_on_gpu("throughput", "1.3b", folder=folder)
    assert table.caption == "NVIDIA H200, 2026-12-01, torch 2.11.0: 1.3b, ours"
    assert [tuple(row) for row in table.rows] == [
        ("tokens/s", "63,000 tokens/s", "60,000 tokens/s", "1.05"),
        ("MFU", "0.54", "", ""),
    ]
    both = measured_on_gpu("throughput", folder=folder)
    assert [row[0] for row in both.rows] == ["1.3b, ours: tokens/s", "1.3b, ours: MFU", "125m, ours: MFU"]
    assert both.caption == "NVIDIA H200, 2026-12-01, torch 2.11.0"


def test_where_nothing_was_predicted_there_is_no_such_column(folder):
    assert list(measured_on_gpu("throughput", "MFU", folder=folder).head) == ["", "measured"]


def test_a_goal_is_no_prediction(folder):
    path = folder / "throughput.json"
    record = json.loads(path.read_text())
    record["parts"]["1.3b, ours"]["rows"] = [LINES[0], {**LINES[1], "wanted": 0.5}]
    path.write_text(json.dumps(record))
    assert measured_on_gpu("throughput", "tokens/s", folder=folder).head[2] == "predicted"
    goals = measured_on_gpu("throughput", "1.3b, ours: MFU", folder=folder)
    assert (goals.head[2], goals.rows[0][2]) == ("wanted", "0.5")
    both = measured_on_gpu("throughput", "1.3b", folder=folder)
    assert both.head[2] == "predicted"
    assert [row[2] for row in both.rows] == ["60,000 tokens/s", "0.5 (wanted)"]


def test_what_is_not_there_is_said(folder):
    told = measured_on_gpu("fp8", folder=folder)
    assert not told.rows
    assert "`make gpu`" in told.caption
    with pytest.raises(ValueError, match="unknown stage 'train'"):
        measured_on_gpu("train", folder=folder)
    with pytest.raises(ValueError, match="no line of throughput.json has '7b'.*1.3b, ours: tokens/s"):
        measured_on_gpu("throughput", "7b", folder=folder)


def test_another_cards_record_is_named_below_and_shown_when_asked_for(folder):
    record = json.loads((folder / "throughput.json").read_text())
    record["parts"]["1.3b, ours"]["rows"] = [{**LINES[0], "measured": 21_000.0}]
    (folder / "NVIDIA-A100").mkdir()
    (folder / "NVIDIA-A100" / "throughput.json").write_text(json.dumps({**record, "device": "NVIDIA A100"}))
    ours = measured_on_gpu("throughput", "1.3b", folder=folder)
    assert ours.rows[0][1] == "63,000 tokens/s"
    assert ours.note == 'also measured: device="NVIDIA A100"'
    other = measured_on_gpu("throughput", "1.3b", device="NVIDIA A100", folder=folder)
    assert other.rows[0][1] == "21,000 tokens/s"
    assert other.caption.startswith("NVIDIA A100, 2026-12-01")
    with pytest.raises(ValueError, match="unknown device 'A10'"):
        measured_on_gpu("throughput", device="A10", folder=folder)


@pytest.mark.parametrize("stage", [stage for stage in STAGES if (RECORDS / f"{stage}.json").exists()])
def test_every_record_that_there_is_makes_a_table(stage):
    assert show.measured_on_gpu(stage).rows


def printed(lesson: str, words: str) -> str:
    """What the cell of a lesson that prints these words printed on the workshop's own GPU."""
    record = json.loads((RECORDS / "lessons.json").read_text())
    cells = record["parts"][lesson]["rows"][0]["cells"].values()
    return next(text for text in cells if words in text)


def test_12_says_how_near_short_kernels_come_to_the_slope():
    lines = re.findall(
        r"(.*?)  +[\d.]+ FLOPs.*?([\d.]+)% of.*?([\d.]+)%", printed("12_flops_and_mfu", "the roof is")
    )
    of_roof = {name: float(share) / float(roof) for name, share, roof in lines}
    assert all(of_roof[name] <= 0.5 for name in ("GELU", "norm", "one token x matrix"))


def test_55_says_that_a_small_2_to_4_network_takes_many_times_as_long():
    lines = re.findall(
        r"(\d+) tokens, (\S+) +kernel +([\d.]+)", printed("55_pruning", "tokens, dense kernel")
    )
    took = {(tokens, kernel): float(seconds) for tokens, kernel, seconds in lines}
    assert [round(took[tokens, "dense"]) for tokens in ("128", "4096")] == [115, 154]
    assert [round(took[tokens, "2:4"]) for tokens in ("128", "4096")] == [2_665, 2_752]
    for tokens in ("128", "4096"):
        assert took[tokens, "2:4"] > 15 * took[tokens, "dense"]
    assert took["4096", "2:4"] < 1.1 * took["128", "2:4"]
