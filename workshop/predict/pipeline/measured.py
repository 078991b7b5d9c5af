"""A pipeline step that real ranks ran, as the same kind of timeline that the simulator gives.

Each rank writes down its events in seconds from the start of its own step (`parallel.pipeline.Step`). Put on
one clock they can be drawn, and their idle share can be held against the simulated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from workshop.predict.pipeline.simulate import (
    Action,
    Durations,
    Event,
    Orders,
    PipelineTimeline,
    parts,
    play,
    timeline_of,
)


def measured_timeline(events: Sequence[Sequence[Event]], began: Sequence[float] = ()) -> PipelineTimeline:
    """The timeline of one step.

    events: of each rank, in its order. began: when each rank's step began, in seconds on a clock that the
        ranks share (on one Linux machine `time.perf_counter` is one); without it all began together.
    Raises ValueError where a rank has no events, or ``began`` has another length.
    """
    began = began or [0.0] * len(events)
    if len(began) != len(events):
        raise ValueError(f"{len(events)} ranks have events and {len(began)} a beginning; give one each")
    empty = [rank for rank, own in enumerate(events) if not own]
    if empty or not events:
        raise ValueError(f"no events of rank {empty[0] if empty else 0}; every rank of a step has some")
    shift = [start + own[0].start for start, own in zip(began, events, strict=True)]
    zero = min(shift)
    moved = [
        event._replace(rank=rank, start=event.start + began[rank] - zero, end=event.end + began[rank] - zero)
        for rank, own in enumerate(events)
        for event in own
    ]
    num_stages = 1 + max(action.stage for event in moved for action in parts(event.action))
    return timeline_of(moved, len(events), num_stages)


def measured_durations(timeline: PipelineTimeline) -> Durations:
    """Seconds of a forward and a backward of each stage, the median over micro-batches: to simulate with.

    Raises ValueError where some stage has no F or no B of its own (a backward in two halves is not taken).
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    for event in timeline.events:
        for action in parts(event.action):
            seconds.setdefault((action.kind, action.stage), []).append(event.end - event.start)
    stages = range(timeline.num_stages)
    missing = [
        f"{kind} of stage {stage}" for stage in stages for kind in "FB" if (kind, stage) not in seconds
    ]
    if missing:
        raise ValueError(f"the timeline has no {missing[0]}; durations are those of whole F and B")
    forward, backward = ([median(seconds[kind, stage]) for stage in stages] for kind in "FB")
    return Durations(forward=forward, backward=backward)


def replayed(timeline: PipelineTimeline, communication_seconds: float = 0.0) -> PipelineTimeline:
    """What the schedule makes of a measured step: its orders, each action as long as this very one was.

    The simulator knows when an action may start and nothing else. So what the measured step idles more than
    this is what no schedule tells: messages under way, and ranks that were not let run between two actions.
    Noise *inside* an action is in both.
    Raises ValueError where two micro-batches were run as one block: they have no seconds of their own.
    """
    orders: Orders = [[] for _ in timeline.busy_seconds]
    seconds: dict[Action, float] = {}
    for event in timeline.events:
        if not isinstance(event.action, Action):
            raise ValueError(
                f"{event.action} was run as one block, and its parts have no seconds of their own"
            )
        orders[event.rank].append(event.action)
        seconds[event.action] = event.end - event.start
    return play(orders, seconds, communication_seconds)
