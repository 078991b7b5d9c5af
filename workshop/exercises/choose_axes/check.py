"""Exercise: a layout by rule of thumb: tensor inside the node, then pipeline, the rest data.

The first two takeaways of Narayanan et al. (arXiv:2104.04473, section 3): tensor parallelism up to the
devices of a server, pipeline parallelism beyond; as much of both as the model needs to fit, and data
parallelism for the rest. The rule gives back every row of their table 1.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

CASES = (
    (32, 8, 1),  # Megatron-LM, table 1, from 1.7B ...
    (64, 8, 2),
    (128, 8, 4),
    (256, 8, 8),
    (512, 8, 16),
    (1024, 8, 32),
    (3072, 8, 512),  # ... to 1T
    (4480, 8, 280),  # MT-NLG
    (64, 4, 10),  # not a multiple of the node
    (144, 72, 36),  # a rack that is one node
)


def _right(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    tensor = min(pieces, gpus_per_node)
    pipeline = -(-pieces // tensor)
    return tensor, pipeline, gpus // (tensor * pipeline)


def check(names: dict[str, Any]) -> str:
    """Megatron-LM's table 1, MT-NLG, a number of pieces between two nodes, and a rack."""
    for case in CASES:
        made = Call(case)
        written = made.written("choose_axes")
        answer, wanted = call(names["choose_axes"], "choose_axes", made), _right(*case)
        if not isinstance(answer, (tuple, list)) or len(answer) != 3:
            raise Wrong(f"`{written}` gave {shown(answer)}; wanted three numbers, (tensor, pipeline, data).")
        if tuple(answer) != wanted:
            raise Wrong(
                f"`{written}` gave {shown(tuple(answer))}; wanted {wanted}. {_why(tuple(answer), *case)}"
            )
    return "Every row of Megatron-LM's table from 1.7B to 1T, and MT-NLG: (8, 35, 16)."


def _why(answer: tuple[Any, ...], gpus: int, gpus_per_node: int, pieces: int) -> str:
    """The plainest fault of a layout."""
    tensor, pipeline, data = answer
    if tensor > gpus_per_node:
        return (
            "The tensor-parallel group leaves the node, so its all-reduces (several in each layer) would "
            "cross the slow network."
        )
    if tensor * pipeline < pieces:
        return (
            f"Tensor times pipeline is {shown(tensor * pipeline)}: the model does not fit. Round "
            "the stages up."
        )
    if tensor < min(pieces, gpus_per_node):
        return (
            "Tensor parallelism comes first: the node has room for more of it, and a pipeline has a bubble."
        )
    if tensor * pipeline * data > gpus:
        return f"That is {shown(tensor * pipeline * data)} GPUs; there are {gpus:,}."
    if tensor * pipeline * data < gpus and data < gpus // (tensor * pipeline):
        return "Some GPUs are left without work: all that remain go to data parallelism."
    return "That cuts the model further than it needs: every further piece sends more and computes less."
