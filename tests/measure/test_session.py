"""`measure` around real steps, in one process."""

import gc
import json

import pytest
import torch
from torch import nn

from workshop.facts.measurement import Measurement
from workshop.measure import counter
from workshop.measure.session import measure

counter.enable()


def steps(model, optimizer, count=3):
    for _ in range(count):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(64, 256, bias=False), nn.GELU(), nn.Linear(256, 64, bias=False))


def test_parts_are_what_they_must_be(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with measure(model, optimizer) as measured:
        steps(model, optimizer)
    weights = 2 * 64 * 256 * 4
    parts = measured.memory.peak_parts
    assert parts["weights"] == weights
    assert sum(parts.values()) == measured.memory.peak_bytes
    assert max(measured.memory.timeline.part_bytes["gradients"]) == weights
    assert max(measured.memory.timeline.part_bytes["optimizer"]) == weights
    first, second, third = measured.memory.step_peaks
    assert first < second == third  # momentum is born at the end of the first


def test_without_a_model_the_optimizer_tells(model):
    optimizer = torch.optim.AdamW(model.parameters())
    with measure() as measured:
        steps(model, optimizer)
    series = measured.memory.timeline.part_bytes
    assert max(series["weights"]) == 2 * 64 * 256 * 4
    assert (
        max(series["optimizer"]) == 2 * 2 * 64 * 256 * 4 + 2 * 4
    )  # two moments, and a step count of 4 bytes each


def test_what_an_older_cycle_lets_go_of_is_none_of_the_moments_that_have_its_size(model):
    """Python's collector may come at any time, and find the tensors of a test before this one."""
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            cycle = [torch.ones(64, 256)]
            cycle.append(cycle)
        del cycle
        with measure() as measured:
            steps(model, optimizer, count=1)
            gc.collect()
            steps(model, optimizer, count=2)
    finally:
        gc.enable()
    held = measured.memory.timeline.part_bytes["optimizer"]
    assert held[-1] == max(held) == 2 * 2 * 64 * 256 * 4 + 2 * 4


def test_flops_of_a_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer, memory=False) as measured:
        steps(model, optimizer)
    product = 2 * 16 * 64 * 256
    assert measured.flops == 2 * product + 3 * product  # backward does not differentiate the input
    assert measured.mfu(1e15) == measured.flops / measured.steps[-1].total_seconds / 1e15


def test_phases_fill_the_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer, memory=False, traffic=False) as measured:
        steps(model, optimizer)
    assert len(measured.steps) == 3
    for step in measured.steps:
        assert min(step.forward_seconds, step.backward_seconds, step.optimizer_seconds) > 0
        assert 0 <= step.other_seconds < step.total_seconds


def test_micro_batches_are_one_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer, memory=False) as measured:
        for _ in range(4):
            model(torch.randn(16, 64)).sum().backward()
        optimizer.step()
    assert len(measured.steps) == 1
    assert measured.flops == 4 * 5 * 2 * 16 * 64 * 256


def test_it_leaves_no_trace(model):
    before = torch.autograd._engine_run_backward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), measure(model, optimizer):
        steps(model, optimizer, 1)
        raise ZeroDivisionError
    assert torch.autograd._engine_run_backward is before
    assert not model._forward_pre_hooks


def test_it_shows_itself_and_becomes_json(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer) as measured:
        steps(model, optimizer)
    assert "peak memory" in str(measured)
    assert "FLOPs per step" in measured._repr_html_()
    assert json.loads(json.dumps(measured.to_dict()))["memory"]["peak_bytes"] == measured.memory.peak_bytes


def test_mfu_needs_a_step_and_a_peak(model):
    with measure(model) as measured:
        pass
    with pytest.raises(ValueError, match=r"optimizer.step\(\)"):
        measured.mfu(1e12)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        measured.mfu(0)


def test_a_record_outlives_the_program(model, tmp_path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer) as measured:
        steps(model, optimizer)
    record = measured.to_measurement(commit="none")
    record.save(tmp_path / "record.json")
    assert Measurement.load(tmp_path / "record.json") == record
    assert record.allocated_bytes == measured.memory.peak_bytes == sum(record.parts.values())
    assert record.step_seconds == measured.steps[-1].total_seconds
    assert record.phases["forward"] > 0
    assert record.flops == measured.flops > 0
    assert record.setting == {"by": "measure", "device": "cpu", "commit": "none"}
