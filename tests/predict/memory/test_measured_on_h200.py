"""The closed form beside what PyTorch allocated on an H200 (`data/measurements/gpu/memory.json`): 30 shapes, none fitted."""

import json
from statistics import median

import pytest

from benchmarks.gpu.memory import configurations
from benchmarks.gpu.train_once import run_of
from workshop import predict_memory
from workshop.facts.tree import ROOT

MEASURED = {
    name: part["rows"][0]["measured"]
    for name, part in json.loads((ROOT / "data" / "measurements" / "gpu" / "memory.json").read_text())["parts"].items()
    if part["status"] == "done" and part["rows"][0]["what"].startswith("allocated")
}  # fmt: skip


def error(name):
    told = predict_memory(run_of(configurations("full")[name], "1xH200"))
    return float(max(told.allocated)) / MEASURED[name] - 1


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_allocated_is_predicted(name):
    assert abs(error(name)) < 0.01


def test_and_most_of_them_much_closer():
    assert len(MEASURED) == 30
    assert median(abs(error(name)) for name in MEASURED) < 0.001
