"""Where are we in the step? Forward, backward or optimizer, for code we did not write.

A training step has no official shape in PyTorch, but three doors that all code passes through:

* every backward pass (`loss.backward()`, `autograd.grad`, pipeline schedules, checkpointing) enters the
  autograd engine through `torch.autograd._engine_run_backward`;
* every `torch.optim.Optimizer.step` calls the global hooks of `torch.optim.optimizer`;
* DeepSpeed's optimizers are no `torch.optim.Optimizer`s; they are entered through
  `DeepSpeedEngine._take_model_step`.

What lies before the first backward is forward. With several micro-batches forward and backward alternate; a
step ends when the optimizer has finished.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from workshop.measure.swap import swap


class StepListener(Protocol):
    """Who wants to know."""

    def phase(self, name: str) -> None:
        """The step enters `name`: forward, backward or optimizer."""

    def before_optimizer(self, optimizer: Any) -> None:
        """`optimizer.step()` begins (also for the inner optimizers of a wrapped one)."""

    def after_optimizer(self, optimizer: Any) -> None:
        """`optimizer.step()` has finished."""

    def end_step(self) -> None:
        """A whole training step is over."""


class StepHooks:
    """Tells a listener about phases and steps between `install()` and `remove()`.

    Nested entries (re-entrant checkpointing runs a backward inside a backward; ZeroRedundancyOptimizer steps
    an inner optimizer) count as one.
    """

    def __init__(self, listener: StepListener) -> None:
        self._listener = listener
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Start listening."""
        engine = torch.autograd._engine_run_backward
        self._undo.append(swap(torch.autograd, "_engine_run_backward", self._around_backward(engine)))
        self._undo.append(register_optimizer_step_pre_hook(self._before_optimizer).remove)
        self._undo.append(register_optimizer_step_post_hook(self._after_optimizer).remove)
        if "deepspeed" in sys.modules:
            self.follow_deepspeed()

    def follow_deepspeed(self) -> None:
        """Bracket DeepSpeed's own step, which may call several inner optimizers."""
        from deepspeed.runtime.engine import DeepSpeedEngine

        inner = DeepSpeedEngine._take_model_step

        @functools.wraps(inner)
        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self._enter_optimizer()
            try:
                return inner(engine, *args, **kwargs)
            finally:
                self._leave_optimizer()

        self._undo.append(swap(DeepSpeedEngine, "_take_model_step", step))

    def remove(self) -> None:
        """Stop listening and put everything back."""
        while self._undo:
            self._undo.pop()()

    def _around_backward(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(engine)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self._backward_depth += 1
            if self._backward_depth == 1 and not self._optimizer_depth:
                self._listener.phase("backward")
            try:
                return engine(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                if not self._backward_depth and not self._optimizer_depth:
                    self._listener.phase("forward")

        return run_backward

    def _enter_optimizer(self) -> None:
        self._optimizer_depth += 1
        if self._optimizer_depth == 1:
            self._listener.phase("optimizer")

    def _leave_optimizer(self) -> None:
        self._optimizer_depth -= 1
        if self._optimizer_depth:
            return
        self._listener.phase("backward" if self._backward_depth else "forward")
        if not self._backward_depth:  # an optimizer that steps inside backward ends no step
            self._listener.end_step()

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._enter_optimizer()
        self._listener.before_optimizer(optimizer)

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._listener.after_optimizer(optimizer)
        self._leave_optimizer()
