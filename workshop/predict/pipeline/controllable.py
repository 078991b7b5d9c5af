"""V-Half and V-Min: pipelines that hold a half or a third of the activations.

Qi et al., "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), see a schedule as one
**building block**, the cells of a single micro-batch, repeated every T cells; with forward F, input gradient
I and weight gradient W of two half-stages, T = 6. On a V (rank r holds stages r and 2p - 1 - r) the block is
four slopes, F down, F up, I down, I up, each rank some cells after its neighbour. An activation lives from
its F to its W, so the *slopes* decide what is alive, on all ranks alike:

    alive ~ p (sum of the four slopes) / 6   half-stage activations, of 2p in 1F1B

All slopes 1 give V-Min, a third; slopes 2, 1, 2, 1 give V-Half, a half. Steeper slopes cost the bubble that
is saved elsewhere: two thirds of 1F1B's for V-Min, half of it for V-Half, both plus a term that does not
grow with the number of micro-batches. Cells of different micro-batches must not meet on a rank: the turns
wait a cell or two until the four cells fall on different remainders of T; weight gradients take the two
remainders left.
"""

from __future__ import annotations

from itertools import product

from workshop.predict.pipeline.simulate import Action, Orders

PERIOD = 6


def v_min(ranks: int, micro_batches: int) -> Orders:
    """A third of 1F1B's activations, two thirds of its bubble."""
    return _repeated(ranks, micro_batches, (1, 1, 1, 1))


def v_half(ranks: int, micro_batches: int) -> Orders:
    """Half of 1F1B's activations, half of its bubble."""
    return _repeated(ranks, micro_batches, (2, 1, 2, 1))


def _repeated(ranks: int, micro_batches: int, slopes: tuple[int, int, int, int]) -> Orders:
    """The building block once per micro-batch, `PERIOD` cells apart, as the order of each rank."""
    orders: Orders = []
    for rank, cells in enumerate(_block(ranks, slopes)):
        down, up = rank, 2 * ranks - 1 - rank
        taken = {cell % PERIOD for cell in cells}
        free = [cell for cell in range(PERIOD) if cell not in taken]
        placed: list[tuple[int, Action]] = []
        gradients: list[tuple[int, int, int]] = []
        for mb in range(micro_batches):
            f_down, f_up, i_up, i_down = (cell + PERIOD * mb for cell in cells)
            placed += [(f_down, Action("F", down, mb)), (f_up, Action("F", up, mb))]
            gradients += [(i_up, up, mb), (i_down, down, mb)]
        weight = -1
        for cell, stage, mb in sorted(gradients):
            placed.append((cell, Action("I", stage, mb)))
            weight = max(weight, cell) + 1
            while weight % PERIOD not in free:
                weight += 1
            placed.append((weight, Action("W", stage, mb)))
        orders.append([action for _, action in sorted(placed)])
    return orders


def _block(ranks: int, slopes: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Cells of F down, F up, I down the loss side, I up again, by rank, with the shortest waits that never
    meet.
    """
    for waits in sorted(product(range(PERIOD), repeat=3), key=sum):
        block = [_cells(rank, ranks, slopes, waits) for rank in range(ranks)]
        if all(len({cell % PERIOD for cell in cells}) == len(cells) for cells in block):
            return block
    raise AssertionError(f"no waits keep the slopes {slopes} apart on {ranks} ranks")


def _cells(
    rank: int, ranks: int, slopes: tuple[int, ...], waits: tuple[int, ...]
) -> tuple[int, int, int, int]:
    last = ranks - 1
    turn = last * slopes[0] + 1 + waits[0]
    loss = turn + last * slopes[1] + 1 + waits[1]
    back = loss + last * slopes[2] + 1 + waits[2]
    away = last - rank
    return (
        rank * slopes[0],
        turn + away * slopes[1],
        loss + rank * slopes[2],
        back + away * slopes[3],
    )
