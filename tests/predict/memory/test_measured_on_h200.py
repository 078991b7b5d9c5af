"""The closed form beside what PyTorch allocated on an H200 (`data/measurements/gpu/memory.json`): 30 shapes, none fitted."""

import json
import re
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


def test_what_lesson_23_says_of_nccl_is_what_was_seen():
    seen = (ROOT / "benchmarks" / "results" / "ddp_buckets_under_nccl.txt").read_text()
    held = re.findall(r"(forward|step) +allocated +(\d+)", seen)
    after_a_step, at_the_second = int(held[1][1]), int(held[2][1])
    assert [name for name, _ in held] == ["forward", "step", "forward", "step"]
    assert at_the_second > 1.2 * after_a_step, "a fifth copy beside four"
    (page,) = (ROOT / "notebooks" / "source").glob("*/23_ddp_limits.py")
    assert f"{at_the_second:,} MiB on an H200 where {after_a_step:,} are needed" in page.read_text()


def test_and_most_of_them_much_closer():
    assert len(MEASURED) == 30
    assert median(abs(error(name)) for name in MEASURED) < 0.001
