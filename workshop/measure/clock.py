"""Seconds of a step, by phase.

forward: from the model's first call (or, if no model was given, from the end of the last step) to the first
backward, and between backwards when micro-batches alternate. backward: inside the autograd engine. optimizer:
inside `step()`. communication: time the program stood still in a collective or in `wait()`, wherever it fell.
DDP's C++ reducer waits inside backward, unseen from Python: that time stays in backward.

On CUDA work is queued, not done, when Python moves on; the clock synchronises at each change of phase. That
makes phases true and costs the overlap between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workshop.measure.report import StepTime
from workshop.measure.swap import swap


class StepClock:
    """Listens to phases (it is a `StepListener`) and keeps the seconds of every step.

    Args:
        device: "cpu" or "cuda".
        waits_for_model: whether `model_begins()` will be called; until then a step has not entered its
            forward phase.
    """

    def __init__(self, device: str, waits_for_model: bool = False) -> None:
        self.steps: list[StepTime] = []
        self._synchronise: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._idle_phase = "other" if waits_for_model else "forward"
        self._begin()

    def _begin(self) -> None:
        self._synchronise()
        self._started = self._since = time.perf_counter()
        self._seconds: dict[str, float] = {
            "forward": 0.0,
            "backward": 0.0,
            "optimizer": 0.0,
            "communication": 0.0,
            "other": 0.0,
        }
        self._phase = self._idle_phase

    def start(self) -> None:
        """The first step begins now."""
        self._begin()

    def _switch(self, name: str) -> None:
        self._synchronise()
        now = time.perf_counter()
        self._add(self._phase, now - self._since)
        self._since, self._phase = now, name

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def model_begins(self, *_: Any) -> None:
        """A forward pre-hook of the model."""
        if self._phase == "other":
            self._switch("forward")

    def phase(self, name: str) -> None:
        """The step enters a phase."""
        self._switch(name)

    def before_optimizer(self, optimizer: Any) -> None:
        """Nothing to time."""

    def after_optimizer(self, optimizer: Any) -> None:
        """Nothing to time."""

    def end_step(self) -> None:
        """The optimizer has finished."""
        self._switch(self._idle_phase)
        seconds = self._seconds
        self.steps.append(
            StepTime(
                total_seconds=self._since - self._started,
                forward_seconds=seconds["forward"],
                backward_seconds=seconds["backward"],
                optimizer_seconds=seconds["optimizer"],
                communication_seconds=seconds["communication"],
            )
        )
        self._begin()

    def add_wait(self, seconds: float) -> None:
        """The program stood in a collective for so long."""
        self._add("communication", seconds)

    def watch_waits(self) -> Callable[[], None]:
        """Time every `Work.wait()` called from Python. Returns what ends it."""
        if not dist.is_available():
            return lambda: None
        inner = dist.Work.wait
        clock = self

        def wait(work: dist.Work, *args: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(work, *args)
            finally:
                clock.add_wait(time.perf_counter() - begun)

        return swap(dist.Work, "wait", wait)
