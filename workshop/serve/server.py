"""A server in small: requests come and go at every step (Yu et al. 2022, *Orca*, OSDI), a step has a
budget of tokens that prompts are cut to (Agrawal et al. 2024, arXiv 2403.02310), and blocks with known
beginnings are used again.

Each step: let in who waits; share the budget; find a slot for every new token; one forward pass; a token
for each request whose prompt has been read. Where no block is free, the request that came last gives up
its own and will be read again later (Kwon et al. 2023, arXiv 2309.06180, section 4.5). Decoding is
greedy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workshop.models.gpt import GPT
from workshop.serve.blocks import Blocks, OutOfBlocks, names, slot_for
from workshop.serve.paged import Chunk, PagedCache, forward


@dataclass
class Request:
    """What a user wants continued, and how far it is.

    ``times``: when it was added, then when each new token was there (`time.perf_counter`).
    """

    prompt: tuple[int, ...]
    max_new: int
    tokens: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    written: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """The tokens it was given so far."""
        return self.tokens[len(self.prompt) :]


def share_budget(wants: Sequence[int], budget: int) -> list[int]:
    """How many of the tokens that each request wants are computed in this step.

    One that has been read wants one token and gets it; what is left goes to the others in order.
    """
    left = budget - sum(want == 1 for want in wants)
    shares = []
    for want in wants:
        share = 1 if want == 1 else max(0, min(want, left))
        left -= 0 if want == 1 else share
        shares.append(share)
    return shares


class Server:
    """Serves requests until none is left: `add` some, then `run`, or `step` by step.

    Args:
        model: what computes; the cache is in its dtype, on its device.
        num_blocks, block_size: of the cache.
        budget: most tokens of a step.
        continuous: let a request in as soon as there is room; if not, when all before it are done.
        prefix_cache: use blocks of known beginnings again.

    ``share`` and ``slot`` are `share_budget` and `slot_for`; put your own in their place. ``max_running`` is
    the most requests of a step, at first as many as the budget.
    """

    def __init__(
        self,
        model: GPT,
        num_blocks: int = 256,
        block_size: int = 16,
        *,
        budget: int = 64,
        continuous: bool = True,
        prefix_cache: bool = True,
    ) -> None:
        self.model, self.budget, self.max_running = model, budget, budget
        self.continuous, self.prefix_cache = continuous, prefix_cache
        self.cache = PagedCache(model, num_blocks, block_size)
        self.share: Callable[[Sequence[int], int], Sequence[int]] = share_budget
        self.slot: Callable[[int, list[int], Blocks], int] = slot_for
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.steps: list[tuple[int, float]] = []  # tokens and seconds of each step
        self.reused = self.preempted = 0  # tokens read from known blocks; requests that had to begin again

    def add(self, prompt: Sequence[int], max_new: int) -> Request:
        """Queue a request. ValueError where it is empty or can never fit."""
        blocks = self.cache.blocks
        if not prompt or max_new < 1:
            raise ValueError(
                f"a request needs a token to read and one to write, not {len(prompt)} and {max_new}"
            )
        if len(prompt) + max_new > len(blocks.holders) * blocks.size:
            raise ValueError(
                f"{len(prompt)} + {max_new} tokens never fit into {len(blocks.holders)} blocks of "
                f"{blocks.size}"
            )
        request = Request(tuple(prompt), max_new, list(prompt), times=[time.perf_counter()])
        self.waiting.append(request)
        return request

    def run(self) -> None:
        """Step until every request is done."""
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        """One forward pass, for as many requests as there is room for."""
        started = time.perf_counter()
        self._let_in()
        wants = [len(request.tokens) - request.written for request in self.running]
        shares = list(zip(list(self.running), self.share(wants, self.budget), strict=True))
        given = [(request, self._chunk(request, share)) for request, share in shares if share]
        chunks = [(request, chunk) for request, chunk in given if chunk and request in self.running]
        if not chunks:
            raise RuntimeError(f"no request got a token of the budget of {self.budget}")
        logits = forward(self.model, self.cache, [chunk for _, chunk in chunks])
        for (request, chunk), token in zip(chunks, logits.argmax(-1).tolist(), strict=True):
            self._finish(request, chunk, token)
        self.steps.append((sum(len(chunk.tokens) for _, chunk in chunks), time.perf_counter() - started))

    def _let_in(self) -> None:
        """Who waits, in order, while there is room; blocks of a known beginning are held at once."""
        if not self.continuous and self.running:
            return
        blocks = self.cache.blocks
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if self.running and blocks.num_free * blocks.size < len(request.tokens) + blocks.size:
                return
            self.running.append(self.waiting.popleft())
            known = names(request.tokens[:-1], blocks.size) if self.prefix_cache else []
            for name in known:  # never the last token: its logits are wanted
                block = blocks.known(name)
                if block is None:
                    break
                request.table.append(block)
            request.written = len(request.table) * blocks.size
            self.reused += request.written

    def _chunk(self, request: Request, share: int) -> Chunk | None:
        """The next tokens of a request and their slots; None where it had to give up its own blocks."""
        first = request.written
        slots: list[int] = []
        while request in self.running and len(slots) < share:
            try:
                slots.append(self.slot(first + len(slots), request.table, self.cache.blocks))
            except OutOfBlocks:
                self._send_back(self.running[-1])
        if request not in self.running:
            return None
        return Chunk(request.tokens[first : first + share], first, request.table, slots)

    def _send_back(self, request: Request) -> None:
        """Take a request's blocks; it waits as the first, and is read again."""
        self._give_back(request)
        self.waiting.appendleft(request)
        self.preempted += 1

    def _give_back(self, request: Request) -> None:
        self.running.remove(request)
        for block in reversed(request.table):
            self.cache.blocks.give_back(block)
        request.table, request.written = [], 0

    def _finish(self, request: Request, chunk: Chunk, token: int) -> None:
        """Note what was written; a request that has been read gets its token, and goes when it has all."""
        request.written += len(chunk.tokens)
        blocks = self.cache.blocks
        if self.prefix_cache and request.written // blocks.size > chunk.first // blocks.size:
            for block, name in zip(
                request.table, names(request.tokens[: request.written], blocks.size), strict=False
            ):
                blocks.publish(block, name)
        if request.written == len(request.tokens):
            request.tokens.append(token)
            request.times.append(time.perf_counter())
            if len(request.output) == request.max_new:
                self._give_back(request)
