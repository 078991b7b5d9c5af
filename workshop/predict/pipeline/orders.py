"""The classic pipeline schedules, written as orders.

Each function returns, for every rank, the list of its actions. p ranks, m micro-batches, v chunks (stages)
per rank; stage s lives on rank s % p. In words:

- **naive**: one micro-batch at a time. All ranks but one wait, always.
- **GPipe** (Huang et al., arXiv 1811.06965): all forwards, then all backwards. Bubble (p-1)(F+B), and every
  micro-batch is alive at once.
- **1F1B** (PipeDream-Flush; Narayanan et al., arXiv 2006.09503): as soon as a backward can run, it does. The
  same bubble, but rank r never holds more than p - r micro-batches.
- **interleaved 1F1B** (Narayanan et al., arXiv 2104.04473, section 2.2): each rank has v thin stages instead
  of a thick one, so the first micro-batch is through v times sooner: the bubble is divided by v, at the cost
  of v times the messages and a few more activations.
- **breadth-first** (Lamy-Poirier, arXiv 2211.05953): interleaved stages, but all micro-batches pass a stage
  before the next one starts, so a stage's weights are gathered and its gradients reduced once.
"""

from __future__ import annotations

from workshop.predict.pipeline.simulate import Action, Orders, Step

CLASSIC = ("naive", "gpipe", "1f1b", "interleaved", "breadth-first")
"""Names of the schedules above: forwards and backwards alone, stage s on rank s % p."""


def naive(ranks: int, micro_batches: int) -> Orders:
    """One micro-batch in the pipeline at a time."""
    return [[Action(kind, rank, mb) for mb in range(micro_batches) for kind in "FB"] for rank in range(ranks)]


def gpipe(ranks: int, micro_batches: int) -> Orders:
    """All forwards, then all backwards (the last micro-batch first, as its activations are the freshest)."""
    back = list(reversed(range(micro_batches)))
    return [
        [*(Action("F", rank, mb) for mb in range(micro_batches)), *(Action("B", rank, mb) for mb in back)]
        for rank in range(ranks)
    ]


def one_f_one_b(ranks: int, micro_batches: int) -> Orders:
    """Rank r runs p - r - 1 forwards ahead, then one forward and one backward in turn."""
    return [
        _alternate(
            [Action("F", rank, mb) for mb in range(micro_batches)],
            [Action("B", rank, mb) for mb in range(micro_batches)],
            warm_up=ranks - rank - 1,
        )
        for rank in range(ranks)
    ]


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Interleaved 1F1B: micro-batches go round in groups of p, chunk after chunk.

    Raises ValueError if p does not divide the number of micro-batches.
    """
    if micro_batches % ranks:
        raise ValueError(
            f"interleaved 1F1B sends micro-batches round in groups of {ranks} (the ranks), and "
            f"{micro_batches} is no multiple of it; try {-(-micro_batches // ranks) * ranks}"
        )
    rounds = [
        (chunk, group + i)
        for group in range(0, micro_batches, ranks)
        for chunk in range(chunks)
        for i in range(ranks)
    ]
    orders = []
    for rank in range(ranks):
        forwards = [Action("F", chunk * ranks + rank, mb) for chunk, mb in rounds]
        backwards = [Action("B", (chunks - 1 - chunk) * ranks + rank, mb) for chunk, mb in rounds]
        warm_up = 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        if micro_batches == ranks:
            warm_up = len(forwards)  # every forward is warm-up: there is no second group to alternate with
        orders.append(_alternate(forwards, backwards, warm_up))
    return orders


def breadth_first(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Looped, breadth first: all micro-batches through a chunk, then the next chunk; then back."""
    orders: Orders = []
    for rank in range(ranks):
        stages = [chunk * ranks + rank for chunk in range(chunks)]
        forwards: list[Step] = [Action("F", stage, mb) for stage in stages for mb in range(micro_batches)]
        orders.append(
            forwards + [Action("B", stage, mb) for stage in reversed(stages) for mb in range(micro_batches)]
        )
    return orders


def _alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Step]:
    """`warm_up` forwards, then forward and backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steps: list[Step] = list(forwards[:warm_up])
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        steps += [forward, backward]
    return steps + list(backwards[len(forwards) - warm_up :])
