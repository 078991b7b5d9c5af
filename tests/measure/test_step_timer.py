"""Spans and step timers: each second counted once, under the right name."""

from __future__ import annotations

import time

import pytest
import torch

from workshop.measure import StepTimer, span
from workshop.measure.spans import _listeners


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time passes where somebody sleeps, and nowhere else: no machine is too busy for it."""
    passed = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: passed[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: passed.append(passed.pop() + seconds))


class Slow(torch.nn.Module):
    """A forward of 20 ms and a backward of 30 ms."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch):
        time.sleep(0.02)

        class Sleep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value * 1

            @staticmethod
            def backward(ctx, gradient):
                time.sleep(0.03)
                return gradient

        return Sleep.apply(self.weight * batch)


def loader(count):
    for _ in range(count):
        time.sleep(0.01)
        yield torch.ones(1)


@pytest.fixture
def timed():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: time.sleep(0.005))
    with StepTimer(model) as timer:
        for batch in timer.batches(loader(3)):
            loss = model(batch)
            loss.backward()
            with span("communication"):
                time.sleep(0.015)
            optimizer.step()
            time.sleep(0.004)  # logging, say: it belongs to the next step
    return timer


def test_each_phase_has_its_seconds(timed):
    assert len(timed.seconds()) == 3
    step = timed.seconds()[1]
    seconds = {"data": 0.01, "forward": 0.02, "backward": 0.03, "communication": 0.015}
    assert {name: step[name] for name in seconds} == pytest.approx(seconds)
    assert step["other"] == pytest.approx(0.004)
    assert set(timed.mean_seconds()) == {*step}
    assert timed.mean_seconds()["backward"] == pytest.approx(0.03)


def test_phases_sum_to_the_step(timed):
    for step, whole in zip(timed.seconds(), timed.steps, strict=True):
        assert sum(step.values()) == pytest.approx(whole.total_seconds, abs=1e-4)


def test_nothing_is_left_behind(timed):
    assert _listeners == []
    with pytest.raises(ValueError, match="3 whole steps were timed: no step is left after 3"):
        timed.mean_seconds(skip=3)


def test_names_of_ones_own_are_kept_and_nested_spans_are_exclusive():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with StepTimer(model) as timer:
        with span("outer"):
            time.sleep(0.01)
            with span("inner"):
                time.sleep(0.02)
        model(torch.ones(1)).backward()
        optimizer.step()
    (step,) = timer.seconds()
    assert step["outer"] == pytest.approx(0.01)
    assert step["inner"] == pytest.approx(0.02)


def test_micro_batches_alternate():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with StepTimer(model) as timer:
        for _ in range(2):
            model(torch.ones(1)).backward()
        optimizer.step()
    (step,) = timer.seconds()
    assert step["forward"] == pytest.approx(0.04)
    assert step["backward"] == pytest.approx(0.06)


def test_an_error_inside_a_span_is_not_swallowed_and_the_clock_goes_on():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with StepTimer(model) as timer:
        with pytest.raises(KeyError), span("broken"):
            raise KeyError("x")
        model(torch.ones(1)).backward()
        optimizer.step()
    assert timer.seconds()[0]["forward"] == pytest.approx(0.02)


def test_phases_and_spans_are_ranges_in_torchs_profile():
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, StepTimer(model) as timer:
        for batch in timer.batches(loader(2)):
            model(batch).backward()
            optimizer.step()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert (counts["forward"], counts["backward"], counts["optimizer"], counts["data"]) == (2, 2, 2, 3)


def test_waiting_for_others_is_communication_and_taken_from_its_phase():
    model = Slow()
    timer = StepTimer(model)
    timer.start()
    timer.phase("backward")
    time.sleep(0.02)
    timer.add_wait(0.015)
    timer.end_step()
    (step,) = timer.seconds()
    assert step["communication"] == pytest.approx(0.015)
    assert step["backward"] == pytest.approx(0.005)
    timer._close_range()


def test_nvtx_ranges_where_there_is_a_gpu(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: said.append(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    with span("a"), span("b"):
        pass
    assert said == ["a", "b", "end", "end"]
