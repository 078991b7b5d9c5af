"""A thousand cells from each of two notebooks: the record in data/measurements, and the judge of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from benchmarks.endurance import growth

MEASURED = Path(__file__).parents[2] / "data" / "measurements" / "endurance.json"


def test_in_a_thousand_cells_from_each_of_two_notebooks_nothing_grew() -> None:
    measured = json.loads(MEASURED.read_text())
    assert measured["cells"] >= 1000
    assert len(measured["held"]) == 2
    for counts in measured["held"].values():
        assert set(counts["end"]) == {"memory_bytes", "descriptors", "threads", "processes", "files"}
        assert min(counts["warm"].values()) > 0
    assert growth(measured["held"]) == []
    assert measured["commit"].isalnum(), "of a tree with changes that are in no commit"
    assert measured["machine"]["versions"]["torch"]


def test_the_judge_sees_a_descriptor_that_stays_open() -> None:
    held = copy.deepcopy(json.loads(MEASURED.read_text())["held"])
    held["second notebook"]["end"]["descriptors"] = held["second notebook"]["warm"]["descriptors"] * 12 // 10
    assert growth(held) == ["second notebook: descriptors"]
