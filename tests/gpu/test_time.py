"""Work is queued, not done, when Python goes on: timers wait for it, streams order it, steps do not wait for it."""

import time

import pytest
import torch
from torch import nn

from workshop.measure.spans import span
from workshop.measure.step_timer import StepTimer
from workshop.precision.fp8 import Fp8Linear, Recipe
from workshop.precision.scaling import AmaxHistory
from workshop.train.apply_layout import apply_layout
from workshop.train.optimizers import build_optimizers


@pytest.fixture
def long_work():
    """A call that queues about a tenth of a second of work and returns at once."""
    a = torch.randn(8192, 8192, device="cuda")

    def work(times=1):
        for _ in range(times):
            a @ a

    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work(10)
    queued = time.perf_counter() - began
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    assert queued < took / 3, "the products are not queued"
    return lambda: work(max(1, int(10 * 0.1 / took)))


class Slow(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.linear, self.work = nn.Linear(8, 8), work

    def forward(self, x):
        self.work()
        return self.linear(x)


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_the_step_timer_gives_queued_work_to_the_phase_that_queued_it(long_work, phase):
    model = Slow(long_work if phase == "forward" else lambda: None).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if phase == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: long_work())
    with StepTimer(model) as timer:
        for _ in range(3):
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    mean = timer.mean_seconds()
    assert max(mean, key=mean.get) == phase
    assert mean[phase] > 0.03


def test_a_span_is_an_nvtx_range_and_a_profilers(long_work):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen, span("here"):
        long_work()
        torch.cuda.synchronize()
    events = {event.key: event for event in seen.key_averages()}
    assert "here" in events
    assert any(event.device_time_total > 0 for event in events.values())


def test_a_trace_has_a_lane_for_kernels(long_work, tmp_path):
    from torch.profiler import ProfilerActivity, profile

    from workshop.measure.trace import read_trace

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        long_work()
        torch.cuda.synchronize()
    path = tmp_path / "trace.json"
    seen.export_chrome_trace(str(path))
    trace = read_trace(path)
    assert len(trace.lanes) >= 2
    assert trace.seconds > 0.02


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "muon"])
def test_a_step_of_our_loop_does_not_wait_for_the_device(optimizer):
    """`set_sync_debug_mode("error")` raises at any call that waits: `.item()`, a copy to the host, a mask."""
    from workshop.models.gpt import GPT, TINY

    ready = apply_layout(GPT(TINY), _one_rank())
    ready.optimizers = build_optimizers(optimizer, ready.model, 1e-3, 0.0)
    words = torch.randint(0, 256, (4, 33), device="cuda")
    pair = [(words[:, :-1], words[:, 1:])]
    for waits in ("default", "default", "error"):  # state is born in the first step
        torch.cuda.set_sync_debug_mode(waits)
        try:
            loss = ready.gradients(pair, 1)
            ready.clip(1.0)
            ready.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite()


def _one_rank():
    from workshop.facts.layout import Layout

    return Layout(precision="amp-bf16")


@pytest.mark.parametrize("scaling", ["delayed", "tensor", "row"])
def test_fp8_by_hand_does_not_wait_for_the_device(scaling):
    layer = Fp8Linear(64, 64, device="cuda")
    layer.recipe, layer.histories = Recipe(scaling), {}
    x = torch.randn(32, 64, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_amax_history_lives_on_the_gpu():
    history = AmaxHistory("e4m3", length=4)
    x = torch.randn(64, 64, device="cuda")
    history.quantize(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scale = history.quantize(2 * x).scale
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert scale.is_cuda
    assert float(scale) == pytest.approx(float(x.abs().amax()) / 448, rel=1e-6)


def test_work_of_a_side_stream_is_waited_for():
    a = torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        product = a @ a
    torch.cuda.current_stream().wait_stream(side)
    product.record_stream(torch.cuda.current_stream())
    assert torch.equal(product, a @ a)
