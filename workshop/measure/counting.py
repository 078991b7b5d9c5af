"""Collectives and FLOPs of a real run, counted in the dispatcher.

A `TorchDispatchMode` sees every operator below autograd and below DTensor. It costs some microseconds of
Python per operator: little beside real kernels, much beside tiny ones (`benchmarks/measure.py` states the
ratio). A compiled function runs eagerly under any dispatch mode, so leave counting off when you measure
compiled code.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from workshop.measure import comms, flops
from workshop.measure.clock import StepClock
from workshop.measure.swap import swap

_LONGEST_WAIT_SECONDS = 2.0


class GlooThreads:
    """Waits until gloo's threads have let go of a dispatch mode.

    A collective carries the caller's dispatch modes, Python objects, into gloo's thread. That thread needs
    the interpreter's lock to drop them; a process group destroyed at that moment waits for the thread, with
    the lock held: a deadlock of torch's, met about once in a hundred runs. So before a group is destroyed,
    and at the end, sleep (which releases the lock) until the mode has no more references than when it was
    entered.

    Args:
        mode: entered just now; nothing but its owner and torch's stack of modes may hold it.
    """

    def __init__(self, mode: weakref.ref[TorchDispatchMode]) -> None:
        self._mode = mode
        self._resting = sys.getrefcount(mode())

    def wait(self) -> None:
        """Return when they have, or after two seconds."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while sys.getrefcount(self._mode()) > self._resting and time.monotonic() < deadline:
            time.sleep(0.002)

    def wait_before_destroying(self) -> Callable[[], None]:
        """Make `destroy_process_group` wait first. Returns what ends it."""
        inner = dist.destroy_process_group

        @functools.wraps(inner)
        def destroy_process_group(*args: Any, **kwargs: Any) -> None:
            self.wait()
            inner(*args, **kwargs)

        return swap(dist, "destroy_process_group", destroy_process_group)


class OperatorCounter(TorchDispatchMode):
    """Counts between entering and leaving; `last_calls` and `last_flops` are those of the last whole step."""

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self._clock = clock
        self.calls: list[comms.Collective] = []
        self.flops = 0
        self.last_calls: list[comms.Collective] = []
        self.last_flops = 0

    def end_step(self) -> None:
        """A step is over."""
        self.last_calls, self.calls = self.calls, []
        self.last_flops, self.flops = self.flops, 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            if issubclass(kind, DTensor):
                return NotImplemented
        kwargs = kwargs or {}
        if func.namespace not in comms.NAMESPACES:
            out = func(*args, **kwargs)
            self.flops += flops.count(func, args, kwargs, out)
            return out
        begun = time.perf_counter()
        out = func(*args, **kwargs)
        self._clock.add_wait(time.perf_counter() - begun)
        call = comms.describe(func, args, kwargs)
        if call is not None:
            self.calls.append(call)
        return out
