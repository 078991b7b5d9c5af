"""What a rehearsal says a GPU would reserve, beside what PyTorch reserved on an H200 (`data/measurements/gpu/memory.json`).

Nothing is fitted: the rule is the allocator's own. The record has thirty shapes; five are rehearsed here.
"""

import json
from statistics import median

import pytest
import torch

from benchmarks.gpu.memory import configurations
from benchmarks.gpu.train_once import train_once
from workshop.facts.tree import ROOT
from workshop.rehearse import rehearse

MIB = 2**20
WORKSPACES = 2 * 32 * MIB  # cuBLAS's on a Hopper: one for each thread that multiplies
RECORD = json.loads((ROOT / "data" / "measurements" / "gpu" / "memory.json").read_text("utf-8"))["parts"]
LINES = {
    name: next(line for line in RECORD[name]["rows"] if line["what"] == "reserved, beside the rehearsal")
    for name in configurations("full")
}


def test_all_thirty_shapes_as_recorded():
    errors = sorted(abs(line["predicted"] / line["measured"] - 1) for line in LINES.values())
    assert len(errors) == 30
    assert median(errors) < 0.002
    assert errors[-2] < 0.01
    assert errors[-1] < 0.06, "3B, 32 sequences of 2,048, recomputed: we do not know why"


@pytest.mark.parametrize("name", [*LINES][::6])
def test_a_rehearsal_says_it_here(name):
    told = rehearse(
        train_once, 1, keywords=configurations("full")[name], pretend_cuda=True, timeout_seconds=200
    )
    assert told.reserved_bytes + WORKSPACES == pytest.approx(LINES[name]["measured"], rel=0.015)
    assert told.reserved_bytes > told.peak_bytes
    assert f"reserved by PyTorch's allocator for them: {told.reserved_bytes / 1e9:.3f} GB" in str(told)
    assert type(told).from_dict(told.to_dict()).reserved_bytes == told.reserved_bytes


def asks():
    weight = torch.zeros(3 * MIB, device="cuda", requires_grad=True)  # 12 MiB
    for _ in range(2):
        extra = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
        del extra
    print(torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight * 2).sum().backward()
    optimizer.step()
    print(torch.cuda.max_memory_reserved() // MIB > torch.cuda.max_memory_allocated() // MIB)


def test_a_program_that_asks_what_is_reserved_is_answered_by_the_same_rule():
    told = rehearse(asks, 1, pretend_cuda=True, timeout_seconds=100)
    assert told.output.splitlines() == ["12 32", "True"]


def on_a_cpu():
    weight = torch.zeros(100, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()


def test_a_cpu_has_no_such_allocator():
    told = rehearse(on_a_cpu, 1, timeout_seconds=100)
    assert told.reserved_bytes is None
    assert "reserved" not in str(told)
