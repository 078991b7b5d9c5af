"""Ranges with names: what a trace shows above the operators, and what a step timer counts.

    with span("forward"):
        loss = model(batch)

A span is a `torch.profiler.record_function`, so torch.profiler's trace has it, and where there is a GPU an
NVTX range too, so Nsight Systems has it. It costs about 10 microseconds when nobody listens. A `StepTimer`
that is running counts its seconds under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class SpanListener(Protocol):
    """Who counts the seconds of spans."""

    def enter_span(self, name: str) -> None:
        """A span begins, inside whatever went on."""

    def leave_span(self) -> None:
        """The innermost span has ended."""


_listeners: list[SpanListener] = []


def listen(listener: SpanListener) -> Callable[[], None]:
    """Tell ``listener`` of every span from now on; what is returned ends it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


class Range:
    """A range that is opened and closed by hand, for phases that no ``with`` block surrounds."""

    def __init__(self, name: str):
        self._nvtx = torch.cuda.is_available()
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
        self._record = torch.profiler.record_function(name)
        self._record.__enter__()

    def close(self) -> None:
        """End the range; ranges end in the opposite order of their beginnings."""
        self._record.__exit__(None, None, None)
        if self._nvtx:
            torch.cuda.nvtx.range_pop()


@contextmanager
def span(name: str) -> Iterator[None]:
    """A range with this name around the block, for the profiler, for Nsight Systems and for a step timer."""
    for listener in _listeners:
        listener.enter_span(name)
    opened = Range(name)
    try:
        yield
    finally:
        opened.close()
        for listener in _listeners:
            listener.leave_span()
