"""Exercise: the gradients of two matrices that are cut twice.

Tensor parallelism inside, sharded data parallelism outside, as Llama 3 was trained (Dubey et al. 2024,
arXiv 2407.21783, section 3.3.2): each collective has its own group.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, nobody_waits, shown

SAME_CALLS = "All ranks must make the same calls in the same order, each in its own groups."
TOLERANCE = 1e-5
MATRICES = ("up", "down")
SHAPES = ((2, 5), (2, 4))
INNER = {"tensor": "the tensor group of rank 0 is (0, 1)", "data": "the tensor group of rank 0 is (0, 2)"}
TOGETHER = (
    "the ranks of a tensor group hold different halves. Only the gradients in a data group belong together."
)
SLIPS = {
    "parts_not_added": "Each rank uses its own part of y alone. Add up the parts in the tensor group.",
    "added_over_data": (
        "That adds up parts of y in the data group, whose ranks have other rows of the batch. The parts of "
        "one sum are in the tensor group."
    ),
    "added_over_all": "That adds up parts of y over all four ranks, and so over different rows of the batch.",
    "averaged_over_tensor": (
        "That averages gradients in the tensor group, whose ranks hold different halves of the matrices. The "
        "gradients of one half, from different rows of the batch, are in the data group."
    ),
    "averaged_over_all": f"That is the mean over all four ranks. But {TOGETHER}",
    "halved_over_all": f"That adds up all four ranks. But {TOGETHER}",
    "own_rows": "That is the gradient for its own rows of the batch alone. Average it in the data group.",
    "summed": "That is the sum over the data group. The loss is the mean over the whole batch: divide.",
    "gathered_over_tensor": (
        "The shards were gathered in the tensor group. But the rows of one half are in the data group."
    ),
    "other_rows": "That gradient is of another rank's rows: count by the rank's place in its data group.",
}


def check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, tensor inside, data inside."""
    nobody_waits([report["waited_at"] for report in reports], SAME_CALLS)
    for inner, groups in INNER.items():
        cases = [report[inner] for report in reports]
        for rank, case in enumerate(cases):
            if case["answer"] is None:
                raise Wrong(
                    f"Rank {rank} did not return two gradients of the shapes of its shards, {SHAPES[0]} and "
                    f"{SHAPES[1]}."
                )
        for rank, case in enumerate(cases):
            for matrix, name in enumerate(MATRICES):
                answer, wanted = _numbers(case["answer"][matrix]), _numbers(case["wanted"][matrix])
                if not _same(answer, wanted):
                    far = max(range(len(wanted)), key=lambda i: abs(answer[i] - wanted[i]))
                    raise Wrong(
                        f"Where {groups}: in the gradient of the shard of `{name}` on rank {rank}, one "
                        f"number is {shown(answer[far])}; wanted {shown(wanted[far])}. {_why(cases)}".rstrip()
                    )
    return "For two numberings of the ranks, all gradients are those of one process with the whole batch."


def _why(cases: list[dict[str, Any]]) -> str:
    """The slip that gives exactly these gradients on every rank."""
    for name, sentence in SLIPS.items():
        if all(
            _same(_numbers(answer), _numbers(slip))
            for case in cases
            for answer, slip in zip(case["answer"], case["slips"][name], strict=True)
        ):
            return sentence
    return ""


def _numbers(rows: list[list[float]]) -> list[float]:
    return [number for row in rows for number in row]


def _same(answer: list[float], wanted: list[float]) -> bool:
    return all(abs(one - other) <= TOLERANCE for one, other in zip(answer, wanted, strict=True))
