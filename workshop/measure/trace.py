"""A trace opened in the notebook: torch.profiler's file, read into spans that can be counted and drawn.

`torch.profiler.profile(...).export_chrome_trace("trace.json")` writes Chrome's trace format: a list of
events, of which those with ``"ph": "X"`` have a beginning (``ts``) and a length (``dur``), in microseconds.
Events of one thread lie inside each other like brackets. So an operator's *total* time includes what it
calls, and its *self* time is what is left when the spans directly inside it are taken away: self times sum to
the whole.

The same file opens in Perfetto: go to https://ui.perfetto.dev, "Open trace file" (it stays in your browser).
Source: Chrome's *Trace Event Format*; PyTorch, `torch.profiler`.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_seconds

SOURCE = "python_function"  # frames of with_stack=True: thousands, and not operators
# What runs on a device, in the words of Kineto; its lanes are streams, not threads.
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
RANGE = frozenset({"user_annotation", "gpu_user_annotation"})


@dataclass(frozen=True)
class Span:
    """One event: ``start`` and ``end`` in seconds from the trace's first, ``depth`` inside its lane."""

    name: str
    kind: str
    lane: str
    start: float
    end: float
    depth: int = 0
    self_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Its length, with all that lies inside."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """Spans of one or several ranks, in order of their beginnings. ``paths``: the files they came from."""

    spans: tuple[Span, ...]
    paths: tuple[Path, ...] = ()

    @property
    def lanes(self) -> list[str]:
        """Threads and streams, in order of rank."""
        return sorted({span.lane for span in self.spans})

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    def within(self, name: str) -> Trace:
        """Only what lies inside spans of that name (any rank). ValueError when there is none."""
        named = [span for span in self.spans if span.name == name]
        if not named:
            ranges = sorted({span.name for span in self.spans if span.kind in RANGE})
            raise ValueError(f"no span is called {name!r}; the ranges are {', '.join(ranges) or 'none'}")
        inside = [s for s in self.spans if any(f.start <= s.start and s.end <= f.end for f in named)]
        return Trace(tuple(inside), self.paths)

    def self_seconds(self) -> dict[str, float]:
        """Self time by name, largest first."""
        sums: dict[str, float] = defaultdict(float)
        for span in self.spans:
            sums[span.name] += span.self_seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def table(self, top: int = 10) -> Table:
        """Where the time goes: the names with most self time."""
        totals: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for span in self.spans:
            totals[span.name] += span.seconds
            counts[span.name] += 1
        own = self.self_seconds()
        whole = sum(own.values()) or 1.0
        rows = [
            [n, f"{counts[n]:,}", format_seconds(own[n]), f"{own[n] / whole:.1%}", format_seconds(totals[n])]
            for n in list(own)[:top]
        ]
        left = sum(list(own.values())[top:])
        note = f"{len(own) - top} names more: {format_seconds(left)}" if len(own) > top else ""
        return Table(["name", "calls", "self", "share", "total"], rows, "where the time goes", note)


def read_trace(source: str | Path | Sequence[str | Path] | Mapping[int, str | Path]) -> Trace:
    """Read one trace file (``.json`` or ``.json.gz``), or one for each rank, on one axis of time.

    The rank stands in the file where torch knew it; else a mapping gives it, or the order.

    Raises:
        ValueError: A file is no trace, or holds no events with a length.
    """
    if isinstance(source, str | Path):
        files: list[tuple[int | None, Path]] = [(None, Path(source))]
    elif isinstance(source, Mapping):
        files = [(rank, Path(path)) for rank, path in source.items()]
    else:
        files = [(None, Path(path)) for path in source]
    events: list[tuple[int, dict[str, Any]]] = []
    for order, (rank, path) in enumerate(files):
        content = _content(path)
        known = content.get("distributedInfo") or {}
        own = rank if rank is not None else known.get("rank", order)
        begin = content.get("baseTimeNanoseconds", 0) / 1e3
        events += [(own, {**e, "ts": e["ts"] + begin}) for e in content["traceEvents"] if _counts(e)]
    if not events:
        raise ValueError(f"{', '.join(str(path) for _, path in files)}: no event with a length (ph X)")
    return Trace(tuple(_spans(events)), tuple(path for _, path in files))


def _content(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if isinstance(content, list):  # the format's short form
        content = {"traceEvents": content}
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError(f"{path} is no Chrome trace: it has no list of traceEvents")
    return content


def _counts(event: Any) -> bool:
    """An event with a length that is not the profiler's own frame around everything."""
    if not isinstance(event, dict) or event.get("ph") != "X" or "dur" not in event:
        return False
    return event.get("cat") not in (SOURCE, "Trace", "overhead")


def _spans(events: list[tuple[int, dict[str, Any]]]) -> list[Span]:
    """Events as spans: lanes by rank and thread, depth and self time by nesting."""
    first = min(float(event["ts"]) for _, event in events)
    lanes: dict[tuple[int, bool, Any], list[dict[str, Any]]] = defaultdict(list)
    for rank, event in events:
        lanes[rank, event.get("cat") in ON_DEVICE, event.get("tid")].append(event)
    names = _lane_names(lanes)
    spans = [span for key, inside in lanes.items() for span in nested(_bare(inside, names[key], first))]
    return sorted(spans, key=lambda span: (span.start, span.depth))


def _lane_names(lanes: Iterable[tuple[int, bool, Any]]) -> dict[tuple[int, bool, Any], str]:
    counts: dict[tuple[int, bool], int] = defaultdict(int)
    names = {}
    for rank, on_device, thread in sorted(lanes, key=str):
        names[rank, on_device, thread] = (
            f"rank {rank} {'GPU stream' if on_device else 'thread'} {counts[rank, on_device]}"
        )
        counts[rank, on_device] += 1
    return names


def _bare(events: list[dict[str, Any]], lane: str, first: float) -> list[Span]:
    return [
        Span(
            str(event.get("name", "?")),
            str(event.get("cat", "")),
            lane,
            (float(event["ts"]) - first) / 1e6,
            (float(event["ts"]) + float(event["dur"]) - first) / 1e6,
        )
        for event in events
    ]


def nested(spans: Iterable[Span]) -> list[Span]:
    """The spans of one lane with their depth and self time; one that sticks out counts up to there."""
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    own = [span.seconds for span in ordered]
    depths, open_ones = [], list[int]()
    for place, span in enumerate(ordered):
        while open_ones and ordered[open_ones[-1]].end <= span.start:
            open_ones.pop()
        if open_ones:
            outer = ordered[open_ones[-1]]
            own[open_ones[-1]] -= min(span.end, outer.end) - span.start
        depths.append(len(open_ones))
        open_ones.append(place)
    return [
        Span(span.name, span.kind, span.lane, span.start, span.end, depth, max(seconds, 0.0))
        for span, depth, seconds in zip(ordered, depths, own, strict=True)
    ]
