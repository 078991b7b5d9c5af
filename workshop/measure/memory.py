"""Every allocation of a real run, by torch's own account, with its part.

Three sources were compared with a counting allocator built for the purpose. A dispatch mode misses what C++
allocates (DDP's buckets: 10 % of the peak) and turns compiled code back into eager code. Sampling the counter
misses short peaks. The profiler's allocation events are exact, to the byte, provided the allocator's counter
is on (`workshop.measure.counter`): otherwise frees of older tensors are dropped and the sum drifts by 10 to
30 %.

So: the events say *how many bytes and when*; `PartFinder` says *what for*, by looking at who holds an
address; the phases say the rest; and the ledger adds it up. Bytes that other threads (gloo's) take are in
torch's total, seen at the next event, and entered as communication.

On CUDA the same is read from the caching allocator's history. On an H200 its peak was the allocator's own, to
2 % (tests/gpu/test_memory.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from workshop.measure import counter
from workshop.measure.held import workspace_bytes
from workshop.measure.ledger import Ledger
from workshop.measure.parts import PartFinder
from workshop.measure.report import MemoryReport


@dataclass(frozen=True)
class Allocation:
    """One event of an allocator: at `time_ns`, `delta_bytes` (negative: freed) at `address`; `total_bytes`
    live after it in the whole process, or None if the source does not know."""

    time_ns: int
    address: int
    delta_bytes: int
    total_bytes: int | None


class MemoryTrace:
    """Writes down allocations between `start()` and `stop()`, then answers with a `MemoryReport`.

    Args:
        device: "cpu" or "cuda".
        model: whose parameters are weights; None: those of any optimizer that steps.
        optimizer: whose state exists already; None: known from its first step on.

    It is a `StepListener` (see `workshop.measure.phases`): something must tell it about phases.
    """

    def __init__(self, device: str, model: nn.Module | None = None, optimizer: Any = None) -> None:
        self._device = device
        self._optimizer = optimizer
        self.parts = PartFinder(self._label, model)
        self._notes: list[tuple[int, str, Any]] = []  # (time, what, value)
        self._known: dict[int, tuple[int, str]] = {}
        self._base = 0
        self._uncounted = 0
        self._started = False
        self._profiler: profile | None = None

    def start(self) -> None:
        """Begin; what modules and the optimizer hold by now is entered first."""
        if self._device == "cpu":
            counter.enable()
        if self._optimizer is not None:
            self.parts.before_optimizer(self._optimizer)
            # `parallel.zero` keeps its state in optimizers of its own, one for each unit
            for one in (self._optimizer, *getattr(self._optimizer, "inner", ())):
                self.parts.after_optimizer(one)
        self.parts.sweep_modules()
        self._started = True
        if self._device == "cpu":
            # The profiler's start-up makes and drops tensors of its own; they are in no one's step.
            self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profiler.__enter__()
            self._base = counter.live_bytes()
            # A model older than the counter is not in it, but it is there: every total lacks it.
            self._uncounted = max(sum(size for size, _ in self._known.values()) - self._base, 0)
            self._base += self._uncounted
        else:
            workspaces = workspace_bytes()  # before anything is noted: they are no part of anybody's step
            torch.cuda.memory._record_memory_history(
                enabled="all", context=None, stacks="python", max_entries=10**6
            )
            self._base = torch.cuda.memory_allocated() - workspaces

    def stop(self) -> MemoryReport:
        """End, and add everything up."""
        if self._device == "cpu":
            assert self._profiler is not None
            self._profiler.__exit__(None, None, None)
            events = [_shifted(event, self._uncounted) for event in _cpu_events(self._profiler)]
        else:
            events = cuda_events(torch.cuda.memory._snapshot(), torch.cuda.current_device())
            torch.cuda.memory._record_memory_history(enabled=None)
        return build_report(self._base, self._known, events, self._notes)

    def phase(self, name: str) -> None:
        """The step enters a phase."""
        self._notes.append((time.time_ns(), "phase", name))

    def end_step(self) -> None:
        """A step is over."""
        self._notes.append((time.time_ns(), "step", None))

    def before_optimizer(self, optimizer: Any) -> None:
        """Gradients are complete."""
        self.parts.before_optimizer(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer's state exists."""
        self.parts.after_optimizer(optimizer)

    def _label(self, storage: torch.UntypedStorage, part: str) -> None:
        if storage.device.type != self._device or not storage.nbytes():
            return
        if self._started:
            self._notes.append((time.time_ns(), "label", (storage.data_ptr(), part, storage.nbytes())))
        else:
            self._known[storage.data_ptr()] = (storage.nbytes(), part)


def build_report(
    base_bytes: int,
    known: dict[int, tuple[int, str]],
    events: Iterable[Allocation],
    notes: list[tuple[int, str, Any]],
) -> MemoryReport:
    """Play events and notes in the order of their times into a ledger.

    Args:
        base_bytes: live when the trace began.
        known: address -> (bytes, part) of what was held then and by whom; the rest of the base is `other`.
        events: the allocator's, in any order.
        notes: (time, "phase" | "step" | "label", value); a label's value is (address, part, bytes).
    """
    events = list(events)
    books = _Books(_older_than_the_trace(events, notes) | known)
    books.ledger.change(books.other, max(base_bytes - books.ledger.live_bytes, 0))
    stream: list[tuple[int, int, Any]] = [(event.time_ns, 0, event) for event in events]
    stream += [(note[0], 1, note) for note in notes]
    for _, kind, item in sorted(stream, key=lambda entry: entry[:2]):
        if kind == 0:
            books.enter(item)
        elif item[1] == "phase":
            books.ledger.phase(item[2])
        elif item[1] == "step":
            books.ledger.end_step()
        else:
            books.label(*item[2][:2])
    return books.ledger.report()


def _older_than_the_trace(
    events: list[Allocation], notes: list[tuple[int, str, Any]]
) -> dict[int, tuple[int, str]]:
    """What was labelled at an address where nothing had been allocated yet: it was there before."""
    born: dict[int, int] = {}
    for event in sorted(events, key=lambda event: event.time_ns):
        born.setdefault(event.address, event.time_ns)  # a free first also means: it was there before
    return {
        value[0]: (value[2], value[1])
        for moment, what, value in notes
        if what == "label" and born.get(value[0], moment + 1) > moment
    }


class _Books:
    """A ledger kept by address.

    The profiler shows one thread's events, but each carries the total of all threads. What the total says
    beyond the events happened in gloo's threads: bytes that appear are their copies; bytes that vanish are
    tensors whose last reference a thread held, found by their size.
    """

    def __init__(self, known: dict[int, tuple[int, str]]) -> None:
        self.ledger = Ledger()
        self._owners = {
            address: (self.ledger.open(size, part), size) for address, (size, part) in known.items()
        }
        self.other = self.ledger.open(0, "other")
        self._threads = self.ledger.open(0, "communication")
        self._threads_bytes = 0

    def label(self, address: int, part: str) -> None:
        """Say what lives at an address."""
        if address in self._owners:
            self.ledger.label(self._owners[address][0], part)

    def enter(self, event: Allocation) -> None:
        """One event of the allocator."""
        if event.delta_bytes > 0:
            self._close(event.address)  # still open: freed where we could not see it
            self._owners[event.address] = (self.ledger.open(event.delta_bytes), event.delta_bytes)
        elif not self._close(event.address):  # it has an address, so it is none of ours, whatever its size
            self._others(event.delta_bytes + self._came_unseen(event))
        if event.total_bytes is not None:
            self._adjust(event.total_bytes - self.ledger.live_bytes)

    def _close(self, address: int) -> bool:
        owner = self._owners.pop(address, None)
        if owner is not None:
            self.ledger.change(owner[0], -owner[1])
        return owner is not None

    def _came_unseen(self, event: Allocation) -> int:
        """Bytes that other threads took since the event before: among them may be what this one frees."""
        if event.total_bytes is None:
            return 0
        return max(event.total_bytes - event.delta_bytes - self.ledger.live_bytes, 0)

    def _adjust(self, difference: int) -> None:
        """Bytes that came or went in another thread."""
        if difference < 0 and self._threads_bytes + difference < 0:
            for address, (_, size) in reversed(self._owners.items()):
                if size == -difference:
                    self._close(address)
                    return
        self._others(difference)

    def _others(self, difference: int) -> None:
        """Bytes of other threads, as far as they reach; else of what is older than the trace."""
        if self._threads_bytes + difference < 0:
            self.ledger.change(self.other, difference)
            return
        self._threads_bytes += difference
        self.ledger.change(self._threads, difference)


def _shifted(event: Allocation, by_bytes: int) -> Allocation:
    """The event with what the counter never saw in its total."""
    if event.total_bytes is None or not by_bytes:
        return event
    return replace(event, total_bytes=event.total_bytes + by_bytes)


def _cpu_events(profiler: profile) -> list[Allocation]:
    """All allocation events of the profiler's tree."""
    results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
    events = []
    todo = list(results.experimental_event_tree())
    while todo:
        node = todo.pop()
        todo.extend(node.children)
        if node.tag == _EventType.Allocation:
            fields = node.extra_fields
            if fields.device.type == "cpu":
                events.append(
                    Allocation(node.start_time_ns, fields.ptr, fields.alloc_size, fields.total_allocated)
                )
    return events


def cuda_events(snapshot: dict[str, Any], device: int) -> list[Allocation]:
    """The allocator's history in `torch.cuda.memory._snapshot()` as the same kind of events."""
    sign = {"alloc": 1, "free_completed": -1}
    return [
        Allocation(entry["time_us"] * 1000, entry["addr"], sign[entry["action"]] * entry["size"], None)
        for entry in snapshot["device_traces"][device]
        if entry["action"] in sign
    ]
