"""Exercise: ZeRO's third stage. Layers are gathered twice, and gradients are reduced.

Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3 and, for the traffic, 7.2.
"""

from __future__ import annotations

import math
from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

MOST_PASSES = 3.5  # a reduce-scatter: 3. A reduce to each owner on four ranks: 3 1/3. An all-reduce: 4
INSTEAD = {
    "before": "The shard is as it was before the step: change it in place, for example with `shard -= ...`.",
    "sum": "That is a step with the sum of the gradients: divide by the number of ranks.",
    "own": "That is a step with the gradient of this rank's own part of the batch, without the others.",
    "moved": "The gradient came through weights that were already updated: gather before `shard` changes.",
    "uphill": "That step goes away from the minimum: subtract the gradient.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits, every shard is right, each matrix was gathered twice, and little was sent."""
    nobody_waits([report["waited_at"] for report in reports], "All ranks must make the same calls.")
    for rank, report in enumerate(reports):
        for number, layer in enumerate(report["layers"], 1):
            _right_shard(rank, number, layer)
        _two_gathers(rank, report["gathers"], len(report["layers"]))
        if report["passes"] > MOST_PASSES:
            raise Wrong(
                f"The shards are right. But rank {rank} sends {report['passes']:.2g} passes, and two gathers "
                "and a reduce-scatter are 3. An all-reduce gives every rank what it then drops."
            )
    return f"On {len(reports)} ranks the step is that of one process, and no matrix stayed whole."


def _right_shard(rank: int, number: int, layer: dict[str, Any]) -> None:
    answer, wanted = layer["found"], layer["wanted"]
    if answer is None or len(answer) != len(wanted):
        raise Wrong(f"On rank {rank}, shard {number} is no longer a tensor of {len(wanted)} numbers.")
    if _same(answer, wanted):
        return
    advice = next((words for name, words in INSTEAD.items() if _same(answer, layer["others"][name])), "")
    raise Wrong(
        f"On rank {rank}, shard {number} is now {shown(answer)}; wanted {shown(wanted)}. {advice}".rstrip()
    )


def _two_gathers(rank: int, gathers: int, layers: int) -> None:
    if gathers != 2 * layers:
        raise Wrong(
            f"On rank {rank} `gather` was called {gathers} times; wanted {2 * layers} for {layers} matrices, "
            "each once in forward and once in backward. Between the two, no matrix may stay whole."
        )


def _same(answer: list[float], wanted: list[float]) -> bool:
    return all(math.isclose(one, two, rel_tol=1e-4) for one, two in zip(answer, wanted, strict=True))
