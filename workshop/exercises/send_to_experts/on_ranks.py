"""Call the learner's dispatch on every rank, on rows that say where they come from and where they want to go.

Before rows leave, the two lists are looked at: parts that do not fit would let ranks wait, or worse.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report

# The experts that the rows of each rank want. Nobody wants expert 7: counts must have a place for it.
WANTS = (
    (2, 2, 0, 5, 3, 2),
    (0, 6, 1, 0, 0, 4, 0, 3),
    (6, 1, 6, 2, 4, 5, 6),
    (5, 4, 0, 4, 1, 4, 5, 6, 3),
)
NUM_EXPERTS = 8


class Halted(Exception):
    """Rows would leave in parts that are not right."""


def try_on_rank(send_to_experts: Callable[..., Any]) -> None:
    """Report the parts in which rows left, what came, and what is wanted."""
    join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    here = NUM_EXPERTS // ranks
    counts = torch.tensor([[wants.count(e) for e in range(NUM_EXPERTS)] for wants in WANTS])
    to_ranks = counts[rank].view(ranks, here).sum(1).tolist()
    coming = counts[:, rank * here : (rank + 1) * here]
    from_ranks = coming.sum(1).tolist()
    reported: dict[str, Any] = {"lists": None, "num_counts": None, "found": None}
    send = dist.all_to_all_single

    def guarded(*args: Any, **kwargs: Any) -> Any:
        """The real one, once the parts are right."""
        given = signature(send).bind(*args, **kwargs).arguments
        if given["input"].is_floating_point():
            reported["lists"] = [given.get("input_split_sizes"), given.get("output_split_sizes")]
            if reported["lists"] != [to_ranks, from_ranks]:
                raise Halted
        elif given["input"].numel() != NUM_EXPERTS:
            reported["num_counts"] = given["input"].numel()
            raise Halted
        return send(*args, **kwargs)

    def run() -> None:
        expert = torch.tensor(WANTS[rank])
        with patch.object(dist, "all_to_all_single", guarded):
            reported["found"] = _plain(send_to_experts(rows_of(rank), expert, NUM_EXPERTS))

    try:
        reported["waited_at"] = line_of_wait(run)
    except Halted:
        reported["waited_at"] = None
    mine = range(rank * here, (rank + 1) * here)
    rows = [row for source in range(ranks) for e in mine for row in rows_of(source).tolist() if row[1] == e]
    reported["wanted"] = {"lists": [to_ranks, from_ranks], "rows": rows, "came": coming.flatten().tolist()}
    reported["together"] = counts.sum(0).view(ranks, here).sum(1).tolist()
    reported["in_turn"] = counts[rank].view(here, ranks).sum(0).tolist()
    report(check=reported)


def rows_of(rank: int) -> Tensor:
    """A rank's rows; each holds its rank, its expert, and its place."""
    return torch.tensor([[rank, e, place] for place, e in enumerate(WANTS[rank])], dtype=torch.float32)


def _plain(answer: Any) -> list[Any] | None:
    """The two tensors that were returned, as lists; None for anything else."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(x, Tensor) for x in answer)):
        return None
    return [answer[0].tolist(), answer[1].flatten().tolist()]
