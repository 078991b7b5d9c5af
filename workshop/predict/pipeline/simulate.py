"""A pipeline schedule as events: who does what, when, and how long everyone waits.

A model cut into stages is a row of stations. A micro-batch walks forward through all of them (F) and its
gradient walks back (B). The backward of a stage has two halves that need not run together: the gradient
with respect to the *input* (I), which the stage before is waiting for, and the gradient with respect to
the *weights* (W), which nobody waits for (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv
2401.10241). So there are four kinds of action:

    F   forward            needs F of the stage before, same micro-batch
    B   whole backward     needs F of the same stage and the backward of the stage after
    I   input gradient     the same needs as B
    W   weight gradient    needs I of the same stage

A **schedule** is nothing but, for every rank, the order of its actions. This module takes such orders and
plays them: an action starts when its rank is free *and* what it needs has arrived. Whatever a rank waits
for in between is the **bubble**. Nothing about any schedule is assumed here, so unequal stages, slow
links and orders nobody has published are answered by the same forty lines.

The activations of a micro-batch at a stage live from its F to the end of its B (or of its W, when the
backward is split, because the weight gradient still needs the stage's inputs). The largest number alive at
once is what a rank must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from workshop.facts.units import format_seconds

KINDS = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One piece of work: `kind` ("F", "B", "I" or "W") of `stage` for `micro_batch` (both from 0)."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}@{self.stage}"


class Overlap(NamedTuple):
    """A forward and a backward of different micro-batches run as one block (DualPipe's "F&B")."""

    forward: Action
    backward: Action


Step = Action | Overlap
Orders = list[list[Step]]


@dataclass(frozen=True)
class Durations:
    """Seconds per stage. `backward` is the whole of it, `weight` the part of it that W is.

    Each is one number (equal stages) or a sequence with one entry per stage. `overlapped` is the time of an
    `Overlap` block; None means that nothing is gained, i.e. forward + backward.
    """

    forward: float | Sequence[float]
    backward: float | Sequence[float]
    weight: float | Sequence[float] | None = None
    overlapped: float | None = None

    def of_stages(self, num_stages: int) -> dict[str, np.ndarray]:
        """Seconds by kind, each an array of `num_stages`."""
        forward, backward = (self._spread(x, num_stages) for x in (self.forward, self.backward))
        weight = backward / 2 if self.weight is None else self._spread(self.weight, num_stages)
        if (weight > backward).any():
            raise ValueError(
                f"the weight part {self.weight} is longer than the whole backward {self.backward}"
            )
        return {"F": forward, "B": backward, "I": backward - weight, "W": weight}

    @staticmethod
    def _spread(value: float | Sequence[float], num_stages: int) -> np.ndarray:
        seconds = (
            np.broadcast_to(np.asarray(value, dtype=float), (num_stages,))
            if np.ndim(value) == 0
            else np.asarray(value, dtype=float)
        )
        if len(seconds) != num_stages:
            raise ValueError(
                f"{len(seconds)} durations were given for {num_stages} stages; give one, or one each"
            )
        if (seconds < 0).any():
            raise ValueError(f"a duration is negative: {seconds.tolist()}")
        return seconds


class Event(NamedTuple):
    """An action that has happened: on `rank`, from `start` to `end` seconds."""

    rank: int
    action: Step
    start: float
    end: float


@dataclass(frozen=True, repr=False)
class PipelineTimeline:
    """What came of playing a schedule.

    `events` is the Gantt chart. `busy_seconds`, `span_seconds` and `peak_in_flight` have one entry per rank:
    time at work, time from the first action's start to the last action's end, and the most micro-batch
    activations of one stage alive at once.
    """

    events: tuple[Event, ...] = field(repr=False)
    num_stages: int
    busy_seconds: np.ndarray
    span_seconds: np.ndarray
    peak_in_flight: np.ndarray

    @property
    def seconds(self) -> float:
        """From the first action of any rank to the last of any rank."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def bubble_seconds(self) -> float:
        """The longest a rank waits between its first and its last action.

        It is counted within a rank's own span, as the published formulas do: a schedule whose ranks start
        and end staggered (ZB-H2) has no bubble if the next step may start staggered as well.
        """
        return float((self.span_seconds - self.busy_seconds).max())

    @property
    def idle_share(self) -> float:
        """Share of all rank-seconds, over the whole makespan, in which nothing ran."""
        total = self.seconds * len(self.busy_seconds)
        return float(1 - self.busy_seconds.sum() / total) if total else 0.0

    @property
    def peak_micro_batches(self) -> np.ndarray:
        """Peak in flight per rank, in units of one micro-batch through `1/ranks` of the model."""
        return self.peak_in_flight * len(self.busy_seconds) / self.num_stages

    def __str__(self) -> str:
        return (
            f"{len(self.busy_seconds)} ranks, {self.num_stages} stages: {format_seconds(self.seconds)}, "
            f"bubble {format_seconds(self.bubble_seconds)}, idle {self.idle_share:.1%}, "
            f"at most {self.peak_micro_batches.max():g} micro-batches held"
        )

    __repr__ = __str__


def parts(step: Step) -> tuple[Action, ...]:
    """The one or two actions of a step."""
    return (step,) if isinstance(step, Action) else (step.forward, step.backward)


def needs(action: Action, num_stages: int) -> list[Action]:
    """What must have ended before `action` may start; of a backward's B or I, either will do."""
    kind, stage, micro_batch = action
    if kind == "F":
        return [Action("F", stage - 1, micro_batch)] if stage else []
    if kind == "W":
        return [Action("I", stage, micro_batch)]
    after = [Action("I", stage + 1, micro_batch)] if stage + 1 < num_stages else []
    return [Action("F", stage, micro_batch), *after]


def play(
    orders: Orders, durations: Durations | Mapping[Action, float], communication_seconds: float = 0.0
) -> PipelineTimeline:
    """Plays `orders` and returns the timeline.

    orders: per rank, the steps in the order in which the rank runs them.
    durations: seconds by kind and stage, or of every single action.
    communication_seconds: from the end of an action to the start of the one that needs its result on
        another rank; the sender is not held up by it.
    Raises ValueError if the orders wait for each other for ever, naming who waits for what.
    """
    num_stages = 1 + max(a.stage for steps in orders for step in steps for a in parts(step))
    takes = _clock_of(durations, num_stages)
    ended: dict[Action, tuple[float, int]] = {}
    waiting: dict[Action, list[int]] = {}
    position, clock = [0] * len(orders), [0.0] * len(orders)
    events: list[Event] = []
    runnable = list(range(len(orders)))
    while runnable:
        rank = runnable.pop()
        while position[rank] < len(orders[rank]):
            step = orders[rank][position[rank]]
            missing, ready = _arrival(step, rank, num_stages, ended, communication_seconds)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            start = max(clock[rank], ready)
            clock[rank] = start + takes(step)
            events.append(Event(rank, step, start, clock[rank]))
            position[rank] += 1
            for action in parts(step):
                done = Action("I", *action[1:]) if action.kind == "B" else action
                ended[done] = (clock[rank], rank)
                runnable.extend(waiting.pop(done, ()))
    _refuse_deadlock(orders, position, waiting)
    return timeline_of(events, len(orders), num_stages)


def _clock_of(durations: Durations | Mapping[Action, float], num_stages: int) -> Callable[[Step], float]:
    """How long a step takes."""
    if not isinstance(durations, Durations):
        return lambda step: sum(durations[action] for action in parts(step))
    seconds, overlapped = durations.of_stages(num_stages), durations.overlapped

    def takes(step: Step) -> float:
        if isinstance(step, Overlap) and overlapped is not None:
            return overlapped
        return float(sum(seconds[action.kind][action.stage] for action in parts(step)))

    return takes


def _arrival(
    step: Step, rank: int, num_stages: int, ended: dict[Action, tuple[float, int]], communication: float
) -> tuple[Action | None, float]:
    """The first need that is missing (or None), and when the last of the needs reaches `rank`."""
    ready, own = 0.0, parts(step)
    for action in own:
        for need in needs(action, num_stages):
            if need in own:
                continue
            if need not in ended:
                return need, ready
            end, source = ended[need]
            ready = max(ready, end if source == rank else end + communication)
    return None, ready


def _refuse_deadlock(orders: Orders, position: list[int], waiting: dict[Action, list[int]]) -> None:
    stuck = [
        f"rank {rank} waits for {need} to run {orders[rank][position[rank]]}"
        for need, ranks in waiting.items()
        for rank in ranks
    ]
    if stuck:
        raise ValueError("these orders never finish: " + "; ".join(sorted(stuck)[:4]))


def timeline_of(events: Sequence[Event], num_ranks: int, num_stages: int) -> PipelineTimeline:
    """What follows from events, played or measured; all on one clock that begins with the step at 0 s."""
    events = sorted(events, key=lambda e: (e.start, e.rank, e.end))
    busy, first, last = np.zeros(num_ranks), np.full(num_ranks, np.inf), np.zeros(num_ranks)
    split = {(a.stage, a.micro_batch) for e in events for a in parts(e.action) if a.kind == "W"}
    changes: list[list[tuple[float, int]]] = [[] for _ in range(num_ranks)]
    for rank, step, start, end in events:
        busy[rank] += end - start
        first[rank], last[rank] = min(first[rank], start), max(last[rank], end)
        for kind, stage, micro_batch in parts(step):
            if kind == "F":
                changes[rank].append((start, +1))
            elif kind == "W" or (stage, micro_batch) not in split:
                changes[rank].append((end, -1))
    peaks = [int(np.cumsum([0, *(step for _, step in sorted(c))]).max()) for c in changes]
    span = np.where(np.isfinite(first), last - first, 0.0)
    return PipelineTimeline(tuple(events), num_stages, busy, span, np.array(peaks))
