"""DualPipe and DualPipeV: micro-batches from both ends, a forward hidden under a backward.

In expert parallelism a forward waits for all-to-alls and so does a backward; run together, the one computes
while the other communicates. DeepSeek-V3 (arXiv 2412.19437, section 3.2.1; schedule published at
github.com/deepseek-ai/DualPipe) therefore wants a forward and a backward of *different* micro-batches at each
point. It gets them by feeding the pipeline from both ends: every rank holds two stages, r (for the first half
of the micro-batches) and p - 1 - r (for the second half), and so two copies of the parameters exist.

**DualPipeV** folds the same picture in the middle: p/2 ranks and p stages in a V, one copy of the parameters.

Both have bubble (p/2 - 1)(F&B + B - 3W) and hold p + 1 stage activations, where F&B is the duration of the
overlapped pair.

The order of a rank has eight parts; r is its distance from the nearer end, h = p/2:
run ahead 2(h-r-1) F · both directions F,F (r+1) · I,W,F (h-r-1) · the steady part: overlapped pairs ·
B and a pair (h-r-1) · B,B (r+1), input gradients only from the middle on · W,I (h-r-1) · W (r+1).
"""

from __future__ import annotations

from collections import deque

from workshop.predict.pipeline.simulate import Action, Orders, Overlap, Step


def dual_pipe(ranks: int, micro_batches: int) -> Orders:
    """DualPipe on an even number of ranks; half of the micro-batches enter at each end.

    Raises ValueError for odd ranks, odd micro-batches, or fewer than 2p micro-batches.
    """
    _check("DualPipe", ranks, micro_batches, least=2 * ranks, even=True)
    half = micro_batches // 2
    orders = []
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)
        # Direction 0 enters at this rank's nearer end.
        first, second = (0, half) if rank < ranks // 2 else (half, 0)
        lane = _Lane((near, ranks - 1 - near), (first, second))
        orders.append(_eight_parts(lane, near, ranks // 2, half, middle=near == ranks // 2 - 1))
    return orders


def dual_pipe_v(ranks: int, micro_batches: int) -> Orders:
    """DualPipeV on `ranks` ranks and 2 * ranks stages.

    Raises ValueError below 2 * ranks micro-batches.
    """
    _check("DualPipeV", 2 * ranks, micro_batches, least=2 * ranks, even=False)
    return [
        _eight_parts(
            _Lane((rank, 2 * ranks - 1 - rank), (0, 0)), rank, ranks, micro_batches, middle=rank == ranks - 1
        )
        for rank in range(ranks)
    ]


class _Lane:
    """Counts the micro-batches of a rank's two directions while its order is written down."""

    def __init__(self, stages: tuple[int, int], first: tuple[int, int]):
        self.stages, self.steps = stages, list[Step]()
        self.next = {"F": list(first), "B": list(first)}
        self.kept: deque[Action] = deque()

    def forward(self, way: int) -> None:
        self.steps.append(self._take("F", way))

    def backward(self, way: int, split: bool = False) -> None:
        action = self._take("B", way)
        if split:
            action = Action("I", *action[1:])
            self.kept.append(Action("W", *action[1:]))
        self.steps.append(action)

    def pair(self, forward_way: int, backward_way: int) -> None:
        self.steps.append(Overlap(self._take("F", forward_way), self._take("B", backward_way)))

    def weight(self) -> None:
        self.steps.append(self.kept.popleft())

    def _take(self, kind: str, way: int) -> Action:
        micro_batch = self.next[kind][way]
        self.next[kind][way] += 1
        return Action(kind, self.stages[way], micro_batch)


def _eight_parts(lane: _Lane, near: int, half: int, each: int, middle: bool) -> list[Step]:
    gap = half - near - 1
    for _ in range(2 * gap):
        lane.forward(0)
    for _ in range(near + 1):
        lane.forward(0)
        lane.forward(1)
    for _ in range(gap):
        lane.backward(1, split=True)
        lane.weight()
        lane.forward(1)
    for i in range(each - 2 * half + near + 1):
        if i == 0 and middle:  # its first forward has nothing to hide under yet
            lane.forward(0)
            lane.backward(1)
        else:
            lane.pair(0, 1)
        lane.pair(1, 0)
    for _ in range(gap):
        lane.backward(1)
        lane.pair(1, 0)
    split = False
    for i in range(near + 1):
        split |= i == (near + 1) // 2 and near % 2 == 1
        lane.backward(1, split)
        split |= i == (near + 1) // 2 and near % 2 == 0
        lane.backward(0, split)
    for _ in range(gap):
        lane.weight()
        lane.backward(0, split=True)
    while lane.kept:
        lane.weight()
    return lane.steps


def _check(name: str, stages: int, micro_batches: int, least: int, even: bool) -> None:
    if stages % 2 or (even and micro_batches % 2):
        raise ValueError(
            f"{name} feeds the pipeline from both ends and needs an even number of stages and "
            f"micro-batches, not {stages} and {micro_batches}"
        )
    if micro_batches < least:
        raise ValueError(
            f"{name} needs at least {least} micro-batches for {stages} stages, not {micro_batches}"
        )
