"""Where does a step's time go? Seconds by phase, each second counted once.

    with StepTimer(model) as timer:
        for batch in timer.batches(loader):      # data: standing in the loader's next()
            model(batch).mean().backward()       # forward: from the model's call; backward: in autograd
            optimizer.step()                     # optimizer
    timer.seconds()                              # a dict for each step

It finds forward, backward and optimizer by itself, as `measure` does (`phases`, `clock`). What it cannot see
it must be told: `timer.batches` for data, ``with span("communication")`` around collectives of your own.
Waiting in a `Work.wait()` is communication too. A span's time is taken from the phase it lies in, so phases
sum to the step. DDP's reducer works in C++ inside backward: its communication stays there.

Each phase is also a range, in torch.profiler's trace and for Nsight Systems (`spans`). On CUDA every change
of phase waits for the device: true phases, at the price of the overlap between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import nn

from workshop.measure.clock import StepClock
from workshop.measure.phases import StepHooks
from workshop.measure.spans import Range, listen, span

PHASES = ("data", "forward", "backward", "communication", "optimizer", "other")
Batch = TypeVar("Batch")


class StepTimer(StepClock):
    """Counts the seconds of each step by phase, inside a ``with`` block.

    Args:
        model: its call begins the forward phase.
        device: "cpu" or "cuda"; None: where the model's first parameter is.

    A step ends with `optimizer.step()`; what comes after belongs to the next.
    """

    def __init__(self, model: nn.Module, device: str | None = None) -> None:
        self._spans: list[str] = []
        self._range: Range | None = None
        self._history: list[dict[str, float]] = []
        super().__init__(device or next(model.parameters()).device.type, waits_for_model=True)
        self._model = model
        self._hooks = StepHooks(self)
        self._undo: list[Any] = []

    def __enter__(self) -> StepTimer:
        self._undo.append(self._model.register_forward_pre_hook(self.model_begins).remove)
        self._undo.append(self.watch_waits())
        self._undo.append(listen(self))
        self._hooks.install()
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._close_range()
        self._hooks.remove()
        while self._undo:
            self._undo.pop()()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches; the time spent waiting for each is data."""
        source = iter(loader)
        while True:
            with span("data"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def seconds(self) -> list[dict[str, float]]:
        """Seconds by phase of every whole step; the sum of a dict is the step."""
        return [dict(step) for step in self._history]

    def mean_seconds(self, skip: int = 1) -> dict[str, float]:
        """The mean step, without the first ``skip`` (they warm up). ValueError when nothing is left."""
        steps = self._history[skip:]
        if not steps:
            raise ValueError(f"{len(self._history)} whole steps were timed: no step is left after {skip}")
        names = [*PHASES, *(n for n in dict.fromkeys(k for step in steps for k in step) if n not in PHASES)]
        return {name: sum(step.get(name, 0.0) for step in steps) / len(steps) for name in names}

    # What the hooks, the spans and the waits tell.

    def phase(self, name: str) -> None:
        """The step enters a phase. After a backward nothing is known until the model is called again."""
        self._close_range()
        self._switch("other" if name == "forward" else name)
        if name != "forward":
            self._range = Range(name)

    def model_begins(self, *arguments: Any) -> None:
        """A forward pre-hook of the model."""
        if self._phase == "other":
            self._switch("forward")
            self._range = Range("forward")

    def enter_span(self, name: str) -> None:
        """A span's seconds are its own."""
        self._spans.append(self._phase)
        self._switch(name)

    def leave_span(self) -> None:
        """Back to the phase around it."""
        if self._spans:
            self._switch(self._spans.pop())

    def add_wait(self, seconds: float) -> None:
        """Time in a collective is communication, and not what the program stood in meanwhile."""
        self._add("communication", seconds)
        self._add(self._phase, -seconds)

    def end_step(self) -> None:
        """Keep the step."""
        self._close_range()
        self._switch("other")
        self._history.append({name: max(value, 0.0) for name, value in self._seconds.items()})
        super().end_step()

    def _close_range(self) -> None:
        opened, self._range = self._range, None
        if opened is not None:
            opened.close()
