"""Pipelines by torch.distributed.pipelining: its schedules behind our names.

It runs what `parallel.pipeline` cannot: schedules that take backward apart in the part for the input, for
which the previous stage waits, and the part for the weights, which may fill a gap (zero bubble, Qi et al.
2023, arXiv 2401.10241), and V-shaped placements, where a rank has a stage on the way down and one on the way
back.

    gpipe, 1f1b                               one stage a rank, stage s on rank s
    interleaved, breadth-first,
    interleaved-zero-bubble                   several a rank, stage s on rank s % ranks
    zbv, dualpipev                            two a rank, stages r and 2 ranks - 1 - r
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "breadth-first": "ScheduleLoopedBFS",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Our name of a schedule: torch's class."""
ONE_STAGE, V_SHAPED = ("gpipe", "1f1b"), ("zbv", "dualpipev")


def stages_of(schedule: str, rank: int, ranks: int, chunks: int = 2) -> list[int]:
    """Which stages ``rank`` has. ``chunks``: how many, for those schedules that take any number.

    Raises ValueError for an unknown schedule, and for a number of stages that it does not run with.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is not one of torch's: {', '.join(SCHEDULES)}")
    if schedule in ONE_STAGE:
        return [rank]
    if schedule in V_SHAPED:
        if chunks != 2:
            raise ValueError(f"{schedule} has two stages on each rank, not {chunks}")
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, ranks * chunks, ranks))


class _Stage(PipelineStage):
    """A stage that greets no neighbour on its own rank: at the turn of a V there is one, and gloo cannot send
    to itself. Before torch 2.13 schedules of several stages a rank begin with such greetings."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        greetings = super()._get_init_p2p_neighbors_ops()
        return [message for message in greetings if message.peer != dist.get_rank()]


class TorchPipeline:
    """A schedule with this rank's stages, ready to step.

    Args:
        schedule: one of `SCHEDULES`.
        stages: this rank's, by number, as `stages_of` says.
        num_stages: of the whole model.
        num_micro_batches: into which a batch is cut along its first dim; dualpipev needs as many as stages.
        loss: ``loss(outputs, targets)``, a scalar for one micro-batch; gradients are those of the mean over
            them.

    Raises ValueError for stages that are not those of the schedule.
    """

    def __init__(
        self,
        schedule: str,
        stages: Mapping[int, nn.Module],
        num_stages: int,
        num_micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        wanted = stages_of(schedule, rank, ranks, len(stages))
        if sorted(stages) != sorted(wanted):
            raise ValueError(f"{schedule}: rank {rank} has stages {sorted(stages)}, and should have {wanted}")
        self.has_first, self.has_last = 0 in stages, num_stages - 1 in stages
        device = next(next(iter(stages.values())).parameters()).device
        made = [_Stage(stages[number], number, num_stages, device) for number in wanted]
        kind: Any = getattr(torch_schedules, SCHEDULES[schedule])
        of = made[0] if schedule in ONE_STAGE else made
        self.schedule = kind(of, n_microbatches=num_micro_batches, loss_fn=loss)

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        """Forward and backward of all micro-batches; their losses where the last stage is, else none."""
        losses: list[Tensor] = []
        given = (torch.cat(list(inputs)),) if self.has_first else ()
        more = {"target": torch.cat(list(targets)), "losses": losses} if self.has_last else {}
        self.schedule.step(*given, **more)
        return [loss.detach() for loss in losses]
