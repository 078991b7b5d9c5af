"""What share of a cache holds tokens, by the way it is reserved: a trace of lengths is played again,
without a model.

Kwon et al. 2023 (arXiv 2309.06180) measured this for four systems (figure 2, OPT-13B on ShareGPT). Orca
reserves one piece in a row for each request, for the longest there can be (max), for its output rounded
up to a power of two (pow2), or for exactly what will come, which only an oracle knows; the pieces come
from a buddy allocator (section 6.1). vLLM takes a block when the last one is full. Requests are served
in order, with as many at once as there is room for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request: its prompt and its output."""

    prompt: int
    output: int


def drawn_lengths(num: int, mean_prompt: float, mean_output: float, longest: int, seed: int) -> list[Lengths]:
    """Lengths drawn from exponential distributions with these means, cut at ``longest`` tokens together."""
    chance, lengths = random.Random(seed), []
    for _ in range(num):
        prompt = min(1 + int(chance.expovariate(1 / mean_prompt)), longest // 2)
        output = min(1 + int(chance.expovariate(1 / mean_output)), longest - prompt)
        lengths.append(Lengths(prompt, output))
    return lengths


class Buddies:
    """A buddy allocator: pieces are powers of two, halved where too large, joined where both are free."""

    def __init__(self, num_slots: int) -> None:
        self.free: dict[int, set[int]] = {}
        begin = 0
        for power in range(num_slots.bit_length() - 1, -1, -1):
            if num_slots >> power & 1:
                self.free.setdefault(1 << power, set()).add(begin)
                begin += 1 << power
        self.largest = max(self.free)

    def take(self, wanted: int) -> tuple[int, int] | None:
        """Begin and size of a piece with ``wanted`` slots at least; None where there is none."""
        size = needed = 1 << (wanted - 1).bit_length()
        while size <= self.largest and not self.free.get(size):
            size *= 2
        if size > self.largest:
            return None
        begin = min(self.free[size])
        self.free[size].remove(begin)
        while size > needed:
            size //= 2
            self.free.setdefault(size, set()).add(begin + size)
        return begin, size

    def give_back(self, piece: tuple[int, int]) -> None:
        """Free a piece, and join it with its buddy where that is free too."""
        begin, size = piece
        while size < self.largest and (begin ^ size) in self.free.get(size, ()):
            self.free[size].remove(begin ^ size)
            begin, size = min(begin, begin ^ size), 2 * size
        self.free.setdefault(size, set()).add(begin)


@dataclass
class _Running:
    lengths: Lengths
    piece: tuple[int, int] = (0, 0)
    written: int = field(default=0)


@dataclass(frozen=True)
class Shares:
    """Mean shares of the slots (each of 1), and the mean number of requests at once."""

    tokens: float
    reserved_for_later: float
    never_used: float
    elsewhere: float
    requests: float


def replay(
    trace: Sequence[Lengths],
    num_slots: int,
    reserve: Callable[[Lengths, int], int],
    longest: int,
    skip: int = 500,
) -> Shares:
    """Play a trace under full load, with ``reserve(lengths, longest)`` slots in a row for each request.

    The first ``skip`` steps, in which all requests begin at once, are not counted, nor is the end, when
    none waits.
    """
    room, waiting, running = Buddies(num_slots), list(reversed(trace)), list[_Running]()
    sums, steps = [0.0] * 5, 0
    while waiting:
        while waiting and (piece := room.take(reserve(waiting[-1], longest))):
            lengths = waiting.pop()
            running.append(_Running(lengths, piece, lengths.prompt))
        if not running:
            raise ValueError(f"{waiting[-1]} never fits into {num_slots:,} slots")
        steps += 1
        if steps > skip:
            written = sum(one.written for one in running)
            later = sum(one.lengths.prompt + one.lengths.output - one.written for one in running)
            reserved = sum(reserve(one.lengths, longest) for one in running)
            parts = (written, later, reserved - written - later, num_slots - reserved)
            sums = [total + part for total, part in zip(sums, (*parts, len(running)), strict=True)]
        for one in _grow(running):
            room.give_back(one.piece)
    return _mean(sums, steps - skip, num_slots)


def replay_blocks(trace: Sequence[Lengths], num_slots: int, size: int, skip: int = 500) -> Shares:
    """The same with blocks taken one by one; where none is left, the request that came last begins again."""
    total, waiting, running = num_slots // size, list(reversed(trace)), list[_Running]()
    for one in trace:
        if one.prompt + one.output > total * size:
            raise ValueError(f"{one} never fits into {total:,} blocks of {size}")
    sums, steps = [0.0] * 5, 0

    def held() -> int:
        return sum(-(-one.written // size) for one in running)

    while waiting:
        while waiting and held() - (-waiting[-1].prompt // size) <= total:
            lengths = waiting.pop()
            running.append(_Running(lengths, written=lengths.prompt))
        while held() > total:
            waiting.append(running.pop().lengths)
        steps += 1
        if steps > skip:
            written = sum(one.written for one in running)
            parts = (written, 0, held() * size - written, num_slots - held() * size)
            sums = [sofar + part for sofar, part in zip(sums, (*parts, len(running)), strict=True)]
        _grow(running)
    return _mean(sums, steps - skip, num_slots)


def _grow(running: list[_Running]) -> list[_Running]:
    """A token for each request; those that have all of theirs leave, and are given."""
    for one in running:
        one.written += 1
    done = [one for one in running if one.written >= one.lengths.prompt + one.lengths.output]
    running[:] = [one for one in running if one.written < one.lengths.prompt + one.lengths.output]
    return done


def _mean(sums: Sequence[float], steps: int, num_slots: int) -> Shares:
    if steps < 1:
        raise ValueError("the trace ended before anything was counted: more requests, or skip fewer steps")
    tokens, later, never, elsewhere = (total / steps / num_slots for total in sums[:4])
    return Shares(tokens, later, never, elsewhere, sums[4] / steps)
