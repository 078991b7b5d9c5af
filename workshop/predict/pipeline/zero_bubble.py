"""Schedules that fill the bubble with weight gradients.

Nobody waits for a weight gradient (W), so it can be kept for later and done where a rank would idle
(Qi et al., arXiv 2401.10241). Here F, I and W are a stage's forward, input gradient and weight gradient.

- **ZB-H1** keeps the memory of 1F1B: rank r runs p - r forwards ahead and stays r weight gradients behind,
  (p - r) + r = p alive. Bubble (p-1)(F + I - W): a third of 1F1B's when F = I = W.
- **ZB-H2** runs 2(p - r) - 1 forwards ahead and stays 2r behind: 2p - 1 alive, bubble (p-1)(F + I - 2W),
  which is none when F = I = W. Ranks start and end staggered, and the optimizer step must allow that.
- **ZBV** (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362) folds the model: 2p
  stages, rank r holds stages r and 2p - 1 - r, so the loss and the first layer meet on rank 0. No bubble
  when F = I = W, and 2p half-stages alive: 1F1B's memory, the same on each rank.
"""

from __future__ import annotations

from workshop.predict.pipeline.simulate import Action, Orders, Step


def zb_h1(ranks: int, micro_batches: int) -> Orders:
    """Zero bubble within the memory of 1F1B (handcrafted schedule H1)."""
    return [_handcrafted(rank, micro_batches, ahead=ranks - rank, behind=rank) for rank in range(ranks)]


def zb_h2(ranks: int, micro_batches: int) -> Orders:
    """Zero bubble with twice the memory of 1F1B (handcrafted schedule H2).

    Raises ValueError below 2p - 1 micro-batches, where its first rank has nothing to run ahead with.
    """
    if micro_batches < 2 * ranks - 1:
        raise ValueError(
            f"ZB-H2 runs {2 * ranks - 1} forwards ahead on its first of {ranks} ranks, and there are "
            f"only {micro_batches} micro-batches; use zb-h1"
        )
    return [
        _handcrafted(rank, micro_batches, ahead=2 * (ranks - rank) - 1, behind=2 * rank)
        for rank in range(ranks)
    ]


def _handcrafted(stage: int, micro_batches: int, ahead: int, behind: int) -> list[Step]:
    """`ahead` forwards, then I, W and F in turn, W staying `behind` micro-batches after I; then what is
    left.
    """
    ahead = min(ahead, micro_batches)
    steps: list[Step] = [Action("F", stage, mb) for mb in range(ahead)]
    weights = 0
    for mb in range(micro_batches):
        steps.append(Action("I", stage, mb))
        forward = ahead + mb
        # Once the forwards have run out, the gaps between input gradients are what W was kept for.
        if mb >= behind or forward >= micro_batches:
            steps.append(Action("W", stage, weights))
            weights += 1
        if forward < micro_batches:
            steps.append(Action("F", stage, forward))
    return steps + [Action("W", stage, mb) for mb in range(weights, micro_batches)]


def zbv(ranks: int, micro_batches: int) -> Orders:
    """Zero bubble on a V of 2p stages.

    Raises ValueError below 2p micro-batches.
    """
    if micro_batches < 2 * ranks:
        raise ValueError(
            f"ZBV needs at least {2 * ranks} micro-batches on {ranks} ranks, not {micro_batches}"
        )
    return [_folded(rank, ranks, micro_batches) for rank in range(ranks)]


def _folded(rank: int, ranks: int, micro_batches: int) -> list[Step]:
    down, up = rank, 2 * ranks - 1 - rank
    steps: list[Step] = []
    count = {(kind, stage): 0 for kind in "FIW" for stage in (down, up)}

    def run(*what: tuple[str, int]) -> None:
        for kind, stage in what:
            steps.append(Action(kind, stage, count[kind, stage]))
            count[kind, stage] += 1

    for _ in range(2 * (ranks - rank) - 1):  # fill the V
        run(("F", down))
    for _ in range(rank):
        run(("F", up), ("F", down))
    for _ in range(ranks - rank):  # the first micro-batches have turned round
        run(("F", up), ("I", up), ("W", up))
    while count["F", up] < micro_batches:  # steady: both ways, nothing kept
        if count["F", down] < micro_batches:
            run(("F", down))
        run(("I", down), ("W", down), ("F", up), ("I", up), ("W", up))
    for _ in range(rank):  # drain: input gradients first, weights kept
        run(("I", down), ("I", up))
    for _ in range(ranks - rank):
        run(("I", down), ("W", down))
    run(*[("W", up)] * (micro_batches - count["W", up]), *[("W", down)] * (micro_batches - count["W", down]))
    return steps
