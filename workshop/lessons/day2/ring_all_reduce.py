"""Exercise: a ring all-reduce from sends and receives.

Cut the tensor into N chunks. N - 1 times round the ring, each rank passes a chunk to the right and adds
the one that comes from the left: then each rank holds the full sum of one chunk (reduce-scatter). N - 1
times more, and the full chunks have reached everybody (all-gather). Patarasuk and Yuan, J. Parallel
Distrib. Comput. 69 (2009); for deep learning, Gibiansky, "Bringing HPC techniques to deep learning"
(2017).
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Write `ring_all_reduce(tensor)`: sum a 1-D tensor over all ranks, in place, by sending chunks round a ring
with `dist.isend`, `dist.irecv` or `dist.batch_isend_irecv`. Its length divides by the number of ranks.
The check compares with `dist.all_reduce`, and counts the bytes that each rank sends: 2 (N - 1) / N times
the tensor, no more."""

STUB = '''\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)  # views: what is written to a chunk is written to the tensor
    # Reduce-scatter: pass a chunk to the right, add the one from the left, world_size - 1 times.
    ...
    # All-gather: pass on the chunk that is complete, world_size - 1 times.
    ...
'''

HEAD = '''\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])
'''

REDUCE_SCATTER = """\
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(received, left)
        chunks[(rank - step - 1) % world_size].add_(received)
        sending.wait()
"""

ALL_GATHER = """\
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step + 1) % world_size], right)
        dist.recv(chunks[(rank - step) % world_size], left)
        sending.wait()
"""

SOLUTION = HEAD + REDUCE_SCATTER + ALL_GATHER

GATHER_EVERYTHING = """\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, tensor)
    tensor.copy_(torch.stack(everything).sum(dim=0))
"""

WHOLE_TENSOR_ROUND = """\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    passing, received = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        sending = dist.isend(passing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        tensor += received
        passing, received = received, passing
"""

WRONG_CHUNK = (
    HEAD
    + REDUCE_SCATTER
    + ALL_GATHER.replace("rank - step + 1", "rank - step").replace(
        "dist.recv(chunks[(rank - step)", "dist.recv(chunks[(rank - step - 1)"
    )
)

RECEIVE_FIRST = HEAD + REDUCE_SCATTER.replace(
    """\
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(received, left)
""",
    """\
        dist.recv(received, left)
        sending = dist.isend(chunks[(rank - step) % world_size], right)
""",
)

LIBRARY = """\
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)
"""

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.ring_all_reduce import check_ring_all_reduce
check_ring_all_reduce(ring_all_reduce)
"""

TOLERANCE = 1e-6  # of the largest value: the sums of a ring are added in another order than the library's

SEND_FIRST = (
    "All do the same at the same time: where all wait to receive, nobody sends; where all wait in a send, "
    "nobody receives. Begin the send with `dist.isend`, which returns at once, then receive, then wait for "
    "the send."
)


def _check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, the readable sums, the random sums, the bytes."""
    nobody_waits([report["waited_at"] for report in reports], SEND_FIRST)
    wanted = [sum(column) for column in zip(*(report["began_with"] for report in reports), strict=True)]
    for rank, report in enumerate(reports):
        if report["held"] != wanted:
            raise Wrong(
                f"Rank r began with {_row(reports[0]['began_with'])} times 10^r. Afterwards rank {rank} "
                f"holds {_row(report['held'])}; wanted {_row(wanted)}. {_why(reports, wanted)}"
            )
    for cases in zip(*(report["random"] for report in reports), strict=True):
        _check_random(cases)
    case = reports[0]["random"][-1]
    share = case["sent_bytes"] / case["tensor_bytes"]
    return (
        f"Equal to `dist.all_reduce` on {len(reports[0]['random'])} random tensors. For the largest, of "
        f"{shown(case['tensor_bytes'])} bytes, each rank sent {shown(case['sent_bytes'])}: "
        f"{shown(share)} times that."
    )


def _check_random(cases: tuple[dict[str, Any], ...]) -> None:
    """One random tensor on all ranks: the sums, then how they came about."""
    world_size = len(cases)
    nobody_waits([case["waited_at"] for case in cases], SEND_FIRST)
    for rank, case in enumerate(cases):
        if not case["difference"] <= TOLERANCE:
            raise Wrong(
                f"On {shown(case['length'])} random numbers rank {rank} differs from `dist.all_reduce` by "
                f"{case['difference']:.1g} of the largest value; wanted at most {TOLERANCE:.1g}."
            )
        if case["collectives"]:
            raise Wrong(
                f"The sums are right, but `dist.{case['collectives'][0]}` made them: here it is to be "
                "written with `dist.isend` and `dist.irecv`."
            )
        wanted = 2 * (world_size - 1) * case["tensor_bytes"] // world_size
        if case["sent_bytes"] != wanted:
            raise Wrong(
                f"The sums are right, but rank {rank} sent {shown(case['sent_bytes'])} bytes for a tensor of "
                f"{shown(case['tensor_bytes'])} bytes; wanted {shown(wanted)}, which is 2 (N - 1) / N of it. "
                "A ring sends chunks, and adds on the way."
            )


def _why(reports: list[dict[str, Any]], wanted: list[float]) -> str:
    """The stage that was reached, read from the digits."""
    if all(report["held"] == report["began_with"] for report in reports):
        return "The tensor is as it was: write the sums into it, in place."
    size = len(wanted) // len(reports)
    full = [
        sum(_chunk(report["held"], c, size) == _chunk(wanted, c, size) for c in range(len(reports)))
        for report in reports
    ]
    if all(count == 1 for count in full):
        return (
            "Each rank has the full sum of one chunk: the reduce-scatter is right, but the all-gather "
            "has not handed the sums out."
        )
    return (
        "The digits tell whose numbers arrived: the ones are rank 0's, the tens rank 1's, and so on. "
        "Which chunk goes in which step?"
    )


def _chunk(values: list[float], index: int, size: int) -> list[float]:
    return values[index * size : (index + 1) * size]


def _row(values: list[float]) -> str:
    return "[" + " ".join(f"{value:g}" for value in values) + "]"


RING_ALL_REDUCE = Exercise(
    name="ring_all_reduce",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        (
            "Each step: begin a send to the right (`dist.isend` returns at once), receive from the left "
            "(`dist.recv`), then `wait()` for the send. In step 0 a rank sends the chunk of its own number."
        ),
        (
            "Reduce-scatter, step s: send chunk `(rank - s) % world_size`, add what comes to chunk "
            "`(rank - s - 1) % world_size`. What you have just added to is what you send next."
        ),
        (
            "After it, rank r holds the full sum of chunk `(r + 1) % world_size`. All-gather, step s: send "
            "chunk `(rank - s + 1) % world_size`, receive into chunk `(rank - s) % world_size`."
        ),
    ),
    solution=SOLUTION,
    defines=("ring_all_reduce",),
    check=_check,
    shows=(
        "Libraries do this for large tensors: no rank is the centre, and in every step every rank sends and "
        "receives."
    ),
    wrong_answers=(
        WrongAnswer(
            "gathers everything and sums",
            GATHER_EVERYTHING,
            "rank 0 sent 48 bytes for a tensor of 16 bytes; wanted 24",
        ),
        WrongAnswer(
            "sends the whole tensor round",
            WHOLE_TENSOR_ROUND,
            "rank 0 sent 48 bytes for a tensor of 16 bytes",
        ),
        WrongAnswer(
            "forgets the second phase", HEAD + REDUCE_SCATTER, "the all-gather has not handed the sums out"
        ),
        WrongAnswer("wrong chunk in the second phase", WRONG_CHUNK, "Which chunk goes in which step?"),
        WrongAnswer(
            "receives first everywhere", RECEIVE_FIRST, "after 10 seconds rank 0 still waits on line 13"
        ),
        WrongAnswer("calls the library", LIBRARY, "`dist.all_reduce` made them"),
    ),
    ranks=4,
    check_program=CHECK_PROGRAM,
)
