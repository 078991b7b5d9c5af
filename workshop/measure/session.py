"""`measure`: one `with` block around training steps, everything measured inside."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workshop.measure.clock import StepClock
from workshop.measure.comms import tabulate
from workshop.measure.counting import GlooThreads, OperatorCounter
from workshop.measure.memory import MemoryTrace
from workshop.measure.phases import StepHooks
from workshop.measure.report import Measured


class measure:  # noqa: N801  a verb, used like one
    """Measure the training steps inside a `with` block, on this rank.

        with measure(model, optimizer) as measured:
            for batch in batches:
                train_step(batch)
        print(measured)

    Args:
        model: whose parameters are weights. Without it those of every optimizer that steps.
        optimizer: whose state already exists; without it, state is known from the first `step()` on.
        memory: trace allocations (exact bytes, by part).
        traffic: count collectives and FLOPs. Runs compiled functions eagerly.
        device: "cpu" or "cuda"; None: where the model's first parameter is, else CUDA if there is one.

    It works around any code that ends its steps with `optimizer.step()`: DDP, FSDP2, DTensor, pipelines,
    DeepSpeed. Its price, as a ratio of step times with and without, is measured by `benchmarks/measure.py`.
    On two CPU cores: memory 1.0 to 1.13, traffic 1.05 to 1.37, both 1.07 to 1.5, the larger figures for a
    step of 25 ms; starting and reading the trace costs another 0.15 to 0.25 s once.

    Raises:
        CounterUnavailableError: exact CPU memory is not to be had with this build of torch; pass
            memory=False.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Any = None,
        *,
        memory: bool = True,
        traffic: bool = True,
        device: str | None = None,
    ) -> None:
        self._model = model
        self._device = device or _device_of(model)
        self._clock = StepClock(self._device, waits_for_model=model is not None)
        self._trace = MemoryTrace(self._device, model, optimizer) if memory else None
        self._counter = OperatorCounter(self._clock) if traffic else None
        self._threads: GlooThreads | None = None
        self._hooks = StepHooks(self)
        self._undo: list[Callable[[], None]] = []
        self._measured = Measured(0, 1, self._device, None, [], 0)

    def __enter__(self) -> Measured:
        if self._model is not None:
            self._undo.append(self._model.register_forward_pre_hook(self._clock.model_begins).remove)
        self._undo.append(self._clock.watch_waits())
        if self._trace is not None:
            self._undo.append(self._trace.parts.watch_fsdp())
            self._trace.start()
        self._hooks.install()
        if self._counter is not None:
            self._counter.__enter__()
            if dist.is_available():
                self._threads = GlooThreads(weakref.ref(self._counter))
                self._undo.append(self._threads.wait_before_destroying())
        self._clock.start()
        return self._measured

    def __exit__(self, *error: Any) -> None:
        if self._counter is not None:
            self._counter.__exit__(*error)
            if self._threads is not None:
                self._threads.wait()
        self._hooks.remove()
        while self._undo:
            self._undo.pop()()
        measured = self._measured
        if self._trace is not None:
            measured.memory = self._trace.stop()
        if dist.is_available() and dist.is_initialized():
            measured.rank, measured.world_size = dist.get_rank(), dist.get_world_size()
        measured.steps = self._clock.steps
        if self._counter is not None:
            whole = bool(self._clock.steps)
            measured.traffic = tabulate(self._counter.last_calls if whole else self._counter.calls)
            measured.flops = self._counter.last_flops if whole else self._counter.flops

    # What the step hooks tell (workshop.measure.phases.StepListener): pass it on.

    def phase(self, name: str) -> None:
        """The step enters a phase."""
        self._clock.phase(name)
        if self._trace is not None:
            self._trace.phase(name)

    def before_optimizer(self, optimizer: Any) -> None:
        """Gradients are complete."""
        if self._trace is not None:
            self._trace.before_optimizer(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer's state exists."""
        if self._trace is not None:
            self._trace.after_optimizer(optimizer)

    def end_step(self) -> None:
        """A step is over."""
        if self._trace is not None:
            self._trace.end_step()
        if self._counter is not None:
            self._counter.end_step()
        self._clock.end_step()


def _device_of(model: nn.Module | None) -> str:
    first = next(model.parameters(), None) if model is not None else None
    if first is not None:
        return first.device.type
    return "cuda" if torch.cuda.is_available() else "cpu"
