"""The ledger: every byte that came and went, in order, and what it was for.

Memory over a training step is a bank account. Each storage is an owner; each allocation is a deposit, each
free a withdrawal. The balance after event `i` is the sum of the first `i` entries, the peak is the largest
balance, and the parts (weights, gradients, optimizer state, activations ...) are the owners of the money at
that moment.

What a storage was for is often known only later. A tensor born in the forward pass is an *activation* if the
backward pass finds it alive, a *temporary* if it was freed before; a tensor born in the backward pass is a
*gradient* if the optimizer later finds it in `param.grad`. So the ledger writes down the entries first and
answers questions about parts at the end. That is why its parts always sum to the total, to the byte.

No torch here: whoever sees allocations (a dispatch mode, torch's allocator events, CUDA's memory history)
writes into the same ledger.
"""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING

import numpy as np

from workshop.facts.memory_parts import PARTS
from workshop.measure.report import MemoryReport, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PHASES = ("forward", "backward", "optimizer")
_PARTS = tuple(PARTS)
_UNKNOWN = -1


class Ledger:
    """An append-only log of `(owner, delta_bytes)` with phases and steps marked on it.

    Thirteen bytes an entry: a rehearsed 405B step has about a million of them.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self._owners = array("i")
        self._deltas = array("q")
        self._parts = array("b")  # by owner
        self._marks: list[tuple[int, int]] = [(0, 0)]  # (event, phase)
        self._steps: list[int] = []  # event index at which each step ended

    def __len__(self) -> int:
        return len(self._deltas)

    def open(self, num_bytes: int, part: str | None = None) -> int:
        """A new owner appears with `num_bytes`; returns its number."""
        owner = len(self._parts)
        self._parts.append(_UNKNOWN if part is None else _PARTS.index(part))
        self.change(owner, num_bytes)
        return owner

    def change(self, owner: int, delta_bytes: int) -> None:
        """The owner grows (or shrinks, or vanishes) by `delta_bytes`."""
        if delta_bytes:
            self._owners.append(owner)
            self._deltas.append(delta_bytes)
            self.live_bytes += delta_bytes

    def pulse(self, num_bytes: int, part: str) -> None:
        """Bytes that live only inside one operation."""
        owner = self.open(num_bytes, part)
        self.change(owner, -num_bytes)

    def label(self, owner: int, part: str) -> None:
        """Say what an owner is for. The last word counts, for its whole life."""
        self._parts[owner] = _PARTS.index(part)

    def label_if_unknown(self, owner: int, part: str) -> None:
        """Say what an owner is for unless somebody who knows better already did."""
        if self._parts[owner] == _UNKNOWN:
            self._parts[owner] = _PARTS.index(part)

    def phase(self, name: str) -> None:
        """From here on the step is in phase `name` (one of PHASES)."""
        self._marks.append((len(self), PHASES.index(name)))

    def end_step(self) -> None:
        """One training step (up to and including `optimizer.step()`) is over."""
        self._steps.append(len(self))

    def changes(self) -> Iterator[tuple[int, int]]:
        """Every owner's number and its change in bytes, in their order."""
        return zip(self._owners, self._deltas, strict=True)

    def report(self, points: int = 400) -> MemoryReport:
        """Peak, parts at the peak, the peak of every step, and a timeline of at most `points` moments."""
        if not len(self):
            return MemoryReport(0, {}, "forward", [], Timeline([], {}, []))
        deltas = np.frombuffer(self._deltas, dtype=np.int64)
        owners = np.frombuffer(self._owners, dtype=np.int32)
        parts = self._resolve(deltas, owners)[owners]
        total = np.cumsum(deltas)
        peak = int(total.argmax())
        return MemoryReport(
            peak_bytes=int(total[peak]),
            peak_parts=_by_part(deltas[: peak + 1], parts[: peak + 1]),
            peak_phase=self._phase_at(peak),
            step_peaks=self._step_peaks(total),
            timeline=self._timeline(total, deltas, parts, points),
        )

    def _resolve(self, deltas: NDArray[np.int64], owners: NDArray[np.int32]) -> NDArray[np.int8]:
        """The part of every owner; those nobody labelled are judged by their life."""
        parts = np.array(self._parts, dtype=np.int8)
        born = np.full(len(parts), len(deltas), dtype=np.int64)
        np.minimum.at(born, owners, np.arange(len(owners)))
        died = np.zeros(len(parts), dtype=np.int64)
        died[owners] = np.arange(len(owners))  # the last entry of an owner wins
        balance = np.zeros(len(parts), dtype=np.int64)
        np.add.at(balance, owners, deltas)
        died[balance > 0] = len(deltas) + 1
        events = np.array([event for event, _ in self._marks])
        phases = np.array([phase for _, phase in self._marks])
        phase_born = phases[np.searchsorted(events, born, side="right") - 1]
        backwards = np.append(events[phases == PHASES.index("backward")], len(deltas) + 2)
        next_backward = backwards[np.searchsorted(backwards, born, side="left")]
        kept = (phase_born == PHASES.index("forward")) & (died >= next_backward)
        guess = np.where(kept, _PARTS.index("activations"), _PARTS.index("temporaries"))
        guess = np.where(died > self._second_step_end_after(born, len(deltas)), _PARTS.index("other"), guess)
        return np.where(parts == _UNKNOWN, guess, parts).astype(np.int8)

    def _second_step_end_after(self, born: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """What outlives two ends of steps serves no step: a buffer that C++ code keeps, say."""
        ends = np.array([*self._steps, length + 2, length + 2], dtype=np.int64)
        following = np.searchsorted(ends, born, side="right") + 1
        return ends[np.minimum(following, len(ends) - 1)]

    def _phase_at(self, event: int) -> str:
        events = [start for start, _ in self._marks]
        return PHASES[self._marks[int(np.searchsorted(events, event, side="right")) - 1][1]]

    def _step_peaks(self, total: NDArray[np.int64]) -> list[int]:
        starts = [0, *self._steps][: len(self._steps)]
        return [int(total[a:b].max()) if b > a else 0 for a, b in zip(starts, self._steps, strict=True)]

    def _timeline(
        self, total: NDArray[np.int64], deltas: NDArray[np.int64], parts: NDArray[np.int8], points: int
    ) -> Timeline:
        """Each window of events is shown by its highest moment, so that the peak is never lost."""
        edges = np.unique(np.linspace(0, len(total), min(points, len(total)) + 1).astype(np.int64))
        moments = np.array([a + total[a:b].argmax() for a, b in itertools.pairwise(edges)])
        rows: dict[str, list[int]] = {}
        for number, name in enumerate(PARTS):
            series = np.cumsum(np.where(parts == number, deltas, 0))[moments]
            if series.any():
                rows[name] = [int(value) for value in series]
        phases = [self._phase_at(int(moment)) for moment in moments]
        return Timeline([int(value) for value in total[moments]], rows, phases)


def _by_part(deltas: NDArray[np.int64], parts: NDArray[np.int8]) -> dict[str, int]:
    sums = {name: int(deltas[parts == number].sum()) for number, name in enumerate(PARTS)}
    return {name: value for name, value in sums.items() if value}
