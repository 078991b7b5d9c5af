"""Exercise: the step of ring attention: hand the keys on, attend, merge.

Liu et al. 2023, arXiv 2310.01889; how two parts of a softmax add up: Milakov and Gimelshein 2018, arXiv
1805.02867.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Wrong, nobody_waits, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Rank r has part r of a sequence: its queries, keys and values. Finish
`merge(out, lse, part, part_lse)` and `rotate_the_ring(query, key, value, attend)`, which gives causal
attention of the rank's queries over everybody's keys. `attend(query, key, value, causal)` does one block:
it gives the output and, for each query, `lse`, the logarithm of the sum of the exponentials. In each step
the block goes to the rank on the right. Use `dist.isend` and `dist.recv`, or `dist.batch_isend_irecv`."""

STUB = '''\
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Attention over two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    return ..., ...


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries, (positions, head_dim), over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        block = ...  # send it to the rank on the right, take what comes from the left
        owner = ...  # whose keys are these?
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out
'''

SOLUTION = '''\
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Attention over two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    both = torch.logaddexp(lse, part_lse)
    mine, theirs = (lse - both).exp(), (part_lse - both).exp()
    return out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries, (positions, head_dim), over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out, lse = attend(query, key, value, causal=True)  # its own keys: the block on the diagonal
    block = torch.stack((key, value))
    for step in range(1, world_size):
        arriving = torch.empty_like(block)
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving
        owner = (rank - step) % world_size
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out
'''

_MERGE = "out * mine.unsqueeze(-1) + part * theirs.unsqueeze(-1), both"
_BODY = SOLUTION[SOLUTION.index("    both =") : SOLUTION.index("\n\ndef rotate")]
ADDED = SOLUTION.replace(_BODY, "    return out + part, torch.logaddexp(lse, part_lse)\n")
HALVED = SOLUTION.replace(_BODY, "    return (out + part) / 2, torch.logaddexp(lse, part_lse)\n")
LSE_KEPT = SOLUTION.replace(_MERGE, _MERGE.replace("both", "lse"))
NEVER_MERGED = SOLUTION.replace(_BODY, "    return out, lse\n")
TO_THE_LEFT = SOLUTION.replace("isend(block, (rank + 1)", "isend(block, (rank - 1)").replace(
    "recv(arriving, (rank - 1)", "recv(arriving, (rank + 1)"
)
WRONG_OWNER = SOLUTION.replace("owner = (rank - step)", "owner = (rank + step)")
EVERY_BLOCK = SOLUTION.replace("if owner < rank:", "if owner != rank:")
ONE_HOP_MORE = SOLUTION.replace("range(1, world_size)", "range(1, world_size + 1)")

CHECK_PROGRAM = """\
from workshop.lessons.on_ranks.rotate_the_ring import check_rotate_the_ring
check_rotate_the_ring(rotate_the_ring)
"""

SEND_FIRST = (
    "All do the same at the same time. Begin the send with `dist.isend`, which returns at once, then "
    "receive, then wait for the send."
)
TOLERANCE = 1e-5  # of the largest value
WHY = {
    "added": (
        "That is the plain sum of the parts. Each part is an average over its own keys: it counts by its "
        "share of the sum of exponentials, e^(lse - lse of both)."
    ),
    "halved": (
        "That is the plain mean of the parts. But a part whose exponentials sum to more counts for more: by "
        "e^(lse - lse of both)."
    ),
    "lse_kept": (
        "The outputs are merged, but `lse` stayed as it was. After a merge it is the logarithm of both sums: "
        "the next merge needs that."
    ),
    "never_merged": "That is attention over the rank's own keys alone: the other parts are not merged yet.",
    "not_the_owner": (
        "`owner` is not the rank whose keys are here, so the wrong blocks are masked. Blocks go to "
        "`(rank + 1) % world_size` and come from `(rank - 1) % world_size`: in step s a rank has those of "
        "`(rank - s) % world_size`."
    ),
    "every_block": "That sees later keys too: of another rank's keys only those of a rank before count.",
}


def _check(reports: list[dict[str, Any]]) -> str:
    """In turn: nobody waits in vain, attention over the whole sequence, and what was sent for it."""
    nobody_waits([report["waited_at"] for report in reports], SEND_FIRST)
    for rank, report in enumerate(reports):
        found, wanted = report["found"], report["wanted"]
        if found is None or len(found) != len(wanted):
            what = "nothing" if found is None else f"{len(found)} numbers"
            raise Wrong(f"rank {rank} returned {what}; wanted a tensor of {len(wanted)} numbers, as `query`.")
    right = [_same(report["found"], report["wanted"]) for report in reports]
    if not all(right):
        rank = right.index(False)
        raise Wrong(_difference(rank, reports[rank], _reason(reports)))
    for rank, report in enumerate(reports):
        if report["sent"] != report["allowed"]:
            raise Wrong(
                f"The result is right, but rank {rank} sent {shown(report['sent'])} bytes; wanted "
                f"{shown(report['allowed'])}: N - 1 times its keys and values."
            )
    return (
        f"Equal to attention over the whole sequence, on {len(reports)} ranks. Each sent "
        f"{shown(reports[0]['sent'])} bytes: N - 1 times its keys and values."
    )


def _reason(reports: list[dict[str, Any]]) -> str:
    """The mistake that explains every rank's numbers, if one does."""
    for name, sentence in WHY.items():
        if all(_same(report["found"], report["mistakes"][name]) for report in reports):
            return sentence
    return ""


def _difference(rank: int, report: dict[str, Any], reason: str) -> str:
    pairs = zip(report["found"], report["wanted"], strict=True)
    place = max(enumerate(pairs), key=lambda item: abs(item[1][0] - item[1][1]))[0]
    said = f"On rank {rank} one number is {shown(report['found'][place])}; wanted"
    return f"{said} {shown(report['wanted'][place])}. {reason}".rstrip()


def _same(found: list[float], wanted: list[float]) -> bool:
    largest = max(abs(value) for value in wanted)
    return all(abs(one - two) <= TOLERANCE * largest for one, two in zip(found, wanted, strict=True))


ROTATE_THE_RING = Exercise(
    name="rotate_the_ring",
    day=3,
    question=QUESTION,
    stub=STUB,
    hints=(
        "`dist.isend(block, right)`, then `dist.recv(arriving, left)`, then wait.",
        "`both = torch.logaddexp(lse, part_lse)` is the logarithm of the two sums of exponentials together.",
        (
            "Each part counts by its share of that sum: "
            "`out * (lse - both).exp().unsqueeze(-1) + part * (part_lse - both).exp().unsqueeze(-1)`."
        ),
    ),
    solution=SOLUTION,
    defines=("rotate_the_ring",),
    check=_check,
    shows="No rank ever holds the whole sequence, nor the whole matrix of scores, and the result is exact.",
    wrong_answers=(
        WrongAnswer("adds the parts", ADDED, "plain sum of the parts"),
        WrongAnswer("the mean of the parts", HALVED, "plain mean of the parts"),
        WrongAnswer("forgets the new lse", LSE_KEPT, "`lse` stayed as it was"),
        WrongAnswer("never merges", NEVER_MERGED, "own keys alone"),
        WrongAnswer("sends to the left", TO_THE_LEFT, "`owner` is not the rank whose keys are here"),
        WrongAnswer("masks the wrong blocks", WRONG_OWNER, "so the wrong blocks are masked"),
        WrongAnswer("masks no block", EVERY_BLOCK, "sees later keys too"),
        WrongAnswer("one hop more", ONE_HOP_MORE, "sent 768 bytes; wanted 576: N - 1 times"),
    ),
    ranks=4,
    check_program=CHECK_PROGRAM,
)
