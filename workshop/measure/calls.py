"""Which Python functions take the time: cProfile, and its numbers as a tree that can be drawn.

    with profile_calls() as calls:
        train()
    show.icicle(calls.tree())

cProfile counts every call of this thread. It keeps who called whom, not whole stacks. Where a function has
several callers, the time below it is shared out among them in proportion, as SnakeViz does. Counting costs:
a function of a microsecond looks two or three times as long, so trust the large boxes, not the ratios of
small ones. It sees Python and calls into C, not threads, not kernels.
Source: Python documentation, "The Python Profilers".
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_seconds

_Key = tuple[str, int, str]
_DEEPEST = 40
_LEAST = 1e-3  # share of the whole below which a box is not followed


@dataclass(frozen=True)
class CallNode:
    """A function as called from the one above: its seconds with all below it, and its own."""

    name: str
    place: str
    seconds: float
    self_seconds: float
    children: tuple[CallNode, ...] = ()


@dataclass
class Calls:
    """What cProfile counted; filled when the ``with`` block of `profile_calls` ends."""

    stats: dict[_Key, Any] = field(default_factory=dict)

    def tree(self) -> CallNode:
        """The whole as one node. ValueError when nothing was counted."""
        if not self.stats:
            raise ValueError("nothing was counted: the with block has not ended, or called nothing")
        callees = self._callees()
        roots = [key for key, (_, _, _, _, callers) in self.stats.items() if not callers]
        nodes = [
            node
            for key in roots
            if (node := self._node(key, self.stats[key][3], self._least(), callees, (key,))) is not None
        ]
        whole = sum(node.seconds for node in nodes)
        return CallNode("all", "", whole, 0.0, tuple(sorted(nodes, key=lambda node: -node.seconds)))

    def table(self, top: int = 10) -> Table:
        """The functions with most time of their own."""
        ranked = sorted(self.stats.items(), key=lambda item: -item[1][2])[:top]
        rows = [
            [_name(key), f"{calls:,}", format_seconds(own), format_seconds(total)]
            for key, (_, calls, own, total, _) in ranked
        ]
        return Table(["function", "calls", "self", "total"], rows, "where the time goes, by cProfile")

    def _least(self) -> float:
        return _LEAST * max(total for _, _, _, total, _ in self.stats.values())

    def _callees(self) -> dict[_Key, dict[_Key, tuple[float, float]]]:
        """By caller: each callee with its own and its total seconds on that edge."""
        callees: dict[_Key, dict[_Key, tuple[float, float]]] = {}
        for key, (_, _, _, _, callers) in self.stats.items():
            for caller, (_, _, own, total) in callers.items():
                callees.setdefault(caller, {})[key] = (own, total)
        return callees

    def _node(
        self, key: _Key, seconds: float, least: float, callees: dict[_Key, Any], path: tuple[_Key, ...]
    ) -> CallNode | None:
        """A function that took ``seconds`` on this path; its callees get the same share of theirs."""
        if seconds < least or len(path) > _DEEPEST:
            return None
        share = seconds / (self.stats[key][3] or seconds)
        children = []
        for callee, (_, total) in callees.get(key, {}).items():
            if callee not in path:  # recursion: its time is in the box above already
                children.append(self._node(callee, total * share, least, callees, (*path, callee)))
        slowest_first = sorted((child for child in children if child), key=lambda child: -child.seconds)
        own = max(seconds - sum(child.seconds for child in slowest_first), 0.0)
        return CallNode(_name(key), _place(key), seconds, own, tuple(slowest_first))


@contextmanager
def profile_calls() -> Iterator[Calls]:
    """Count every Python call of this thread inside the block."""
    calls = Calls()
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield calls
    finally:
        profiler.disable()
        stats: Any = pstats.Stats(profiler)
        calls.stats = {key: value for key, value in stats.stats.items() if "_lsprof.Profiler" not in key[2]}


def _name(key: _Key) -> str:
    file, _, function = key
    if file in ("~", ""):
        return function.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    return f"{Path(file).stem}.{function}"


def _place(key: _Key) -> str:
    file, line, _ = key
    return "built in" if file in ("~", "") else f"{Path(file).name}, line {line}"
