"""From evidence to sentences: the text that a failed, hung or interrupted cell shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workshop.launch.failures import (
    Program,
    RankEnd,
    RankFailed,
    RankTimeout,
    as_failure,
    judge,
    trace_lines,
)
from workshop.launch.messages import Elsewhere
from workshop.launch.output import rank_label


def failed(
    ends: Sequence[RankEnd],
    program: Program,
    note: str = "",
    then: str = "ended",
    elsewhere: Elsewhere | None = None,
) -> RankFailed:
    """The exception for ranks of which at least one failed by itself, here or on another node.

    ``then``: what became of the others (ended with the program, or freed and kept). ``elsewhere``: what
    another node has left word of; it counts where all that ranks here can tell is an effect.
    """
    verdict = judge(ends)
    if elsewhere and all(end.kind == "lost" for end in verdict.first):
        if not verdict.first:
            return _ended_elsewhere(ends, elsewhere, then)
        note = "\n".join(filter(None, (f"{_word(elsewhere)}.", note)))
    if not verdict.first:
        return RankFailed(f"the ranks ended and left no trace.{note}", [], ends)
    if all(end.kind == "lost" for end in verdict.first) and any(_leaves(end) for end in ends):
        return _left_alone(ends, program, note, then)
    groups = _alike(verdict.first)
    lines = [_headline(verdict.first, len(ends))]
    for group in groups:
        lines.append(f"{rank_label(e.rank for e in group)}: {_what(group[0])}")
        if len({e.message for e in group}) > 1:
            lines.append(f"    (from rank {group[0].rank}; the others differ only in the rank's number)")
        lines += trace_lines(group[0], program)
        if group[0].cause:
            lines.append(f"    caused by {group[0].cause}")
    lines += [_carried_along(end, then) for end in verdict.others]
    lines += advice(ends)
    if note:
        lines.append(note)
    return RankFailed("\n".join(lines), [as_failure(end, program) for end in verdict.first], ends)


def _word(elsewhere: Elsewhere) -> str:
    """What another node has left word of."""
    if elsewhere.why == "gone":
        return "the node that kept the launch's store has gone: its notebook, its machine or the network"
    if elsewhere.why == "cancelled":
        return "the launch was stopped on another node"
    who = rank_label(elsewhere.ranks) if elsewhere.ranks else "a rank"
    return f"{who} failed on another node; the output there says how"


def _ended_elsewhere(ends: Sequence[RankEnd], elsewhere: Elsewhere, then: str) -> RankFailed:
    """No rank here has failed: the launch ended on another node, and these ranks with it."""
    lines = [
        f"{_word(elsewhere)}. The ranks of this node were ended.",
        *[_carried_along(e, then) for e in ends],
    ]
    return RankFailed("\n".join(lines), [], ends)


def _leaves(end: RankEnd) -> bool:
    """Has it left the others, or was it about to: in its group's end, or past its last line?"""
    past_its_lines = not end.place.line or end.place.function == "destroy_process_group"
    return end.kind == "finished" or (end.kind == "ended" and past_its_lines)


def _left_alone(ends: Sequence[RankEnd], program: Program, note: str, then: str) -> RankFailed:
    """Some ranks waited in a collective for one that had finished: nobody raised, they disagree."""
    lines = [mismatch_sentence(ends), *[_carried_along(end, then) for end in ends], *([note] if note else [])]
    waited = [as_failure(end, program) for end in ends if end.kind != "finished"]
    return RankFailed("\n".join(lines), waited, ends)


def _alike(ends: Sequence[RankEnd]) -> list[list[RankEnd]]:
    """Ranks that failed in the same way at the same place stand together.

    Messages that are the same but for the rank's own number count as the same.
    """
    groups: dict[tuple[object, ...], list[RankEnd]] = {}
    times = Counter(end.message for end in ends)
    for end in ends:
        message = end.message
        if times[message] == 1:
            message = re.sub(rf"\b([Rr]ank:? ){end.rank}\b", r"\1", message)
        groups.setdefault((end.error_type, message, end.place), []).append(end)
    return list(groups.values())


def _what(end: RankEnd) -> str:
    if end.kind == "died":
        return end.message
    if end.kind == "lost":
        reason = end.message.split("]")[-1].strip()[:80]
        return f"{end.error_type}: the connection to another rank is closed ({reason})"
    return f"{end.error_type}: {end.message}" if end.message else end.error_type


def _headline(first: Sequence[RankEnd], world_size: int) -> str:
    """Who, what and on which line, of those that failed first."""
    end = first[0]
    alike = [e for e in first if e.error_type == end.error_type]
    where = f", {end.place.where}" if end.place.where and len({e.place.where for e in alike}) == 1 else ""
    what = "died" if end.kind == "died" else f"raised {end.error_type}"
    everyone = "all " if len(alike) == world_size > 1 else ""
    alone = " first" if len(alike) == 1 and world_size > 1 else ""
    return f"{rank_label(e.rank for e in alike)} {everyone}{what}{alone}{where}"


def _carried_along(end: RankEnd, then: str) -> str:
    """One line for a rank that did not fail by itself."""
    who = f"rank {end.rank}"
    if end.kind == "finished":
        return f"{who}: had finished"
    if end.kind == "raised":
        return ", ".join(filter(None, (f"{who}: {_what(end).rstrip(' .')}", end.place.where, "later")))
    return f"{who}: {end.place}; {then}"


def timed_out(
    ends: Sequence[RankEnd], seconds: float, program: Program, note: str = "", then: str = "ended"
) -> RankTimeout:
    """The exception for a launch that was still at work when its time was up."""
    lines = [f"time is up after {seconds:g} s. {mismatch_sentence(ends)}".rstrip()]
    for end in ends:
        if end.kind == "raised":
            lines.append(f"rank {end.rank}: {_what(end)}")
        elif end.kind == "finished":
            lines.append(f"rank {end.rank}: had finished")
        else:
            lines.append(f"rank {end.rank}: {end.place}; {then}")
        lines += trace_lines(end, program)
    lines += advice(ends)
    if note:
        lines.append(note)
    stuck = [end for end in ends if end.kind != "finished"]
    return RankTimeout("\n".join(lines), [as_failure(end, program) for end in stuck], ends)


def interrupted(ends: Sequence[RankEnd], program: Program, what: str) -> str:
    """What the stop button's message says: ``what`` became of the ranks, and where each of them was."""
    working = [end for end in ends if end.kind == "stuck"]
    if not working:
        return what
    lines = [mismatch_sentence(ends)]
    for end in working:
        lines += [f"rank {end.rank}: {end.place}", *trace_lines(end, program)]
    return "\n".join([*lines, what])


def mismatch_sentence(ends: Sequence[RankEnd]) -> str:
    """``ranks 0,2 wait in all_reduce at line 9; rank 1 has left the cell.``"""
    groups: dict[tuple[str, str], list[RankEnd]] = {}
    for end in ends:
        groups.setdefault(_standing(end), []).append(end)
    parts = []
    for (one, many), group in groups.items():
        parts.append(f"{rank_label(e.rank for e in group)} {many if len(group) > 1 else one}")
    if len(groups) == 1 and next(iter(ends)).place.function:
        parts.append("all are in the same call: it waits for something else, or is only slow")
    return "; ".join(parts) + "."


def _standing(end: RankEnd) -> tuple[str, str]:
    """What a rank is doing, for one and for several."""
    if end.kind == "finished":
        return "has left the cell", "have left the cell"
    if end.place.function:
        at = f"in {end.place.function} at {end.place.where}"
        return f"waits {at}", f"wait {at}"
    if end.place.line:
        return f"is at {end.place.where}", f"are at {end.place.where}"
    return "is outside the cell's own lines", "are outside the cell's own lines"


# ---------------------------------------------------------------------------- known causes

# Failures that have been met before, in programs that are right by their own lights: what to do about them.
#
# A program that fails or hangs like this under plain torchrun does so here too. The message then says what is
# known, because neither the exception nor the place where a rank waits would lead there.


@dataclass(frozen=True)
class KnownCause:
    """``fits`` tells by how a rank ended whether it is this one; ``advice`` is what the reader is told."""

    fits: Callable[[RankEnd], bool]
    advice: str


def _stuck_in(name: str, file: str) -> Callable[[RankEnd], bool]:
    def fits(end: RankEnd) -> bool:
        return end.kind == "stuck" and any(
            frame.name == name and frame.file.endswith(file) for frame in end.frames
        )

    return fits


def _raised(pattern: str) -> Callable[[RankEnd], bool]:
    return lambda end: end.kind == "raised" and re.search(pattern, end.message) is not None


KNOWN = (
    KnownCause(
        _stuck_in("destroy_process_group", "torch/distributed/distributed_c10d.py"),
        "Known of gloo, under plain torchrun too: a DDP model that outlives its group can hold up its end. "
        "Delete the model before destroy_process_group() (or end_training()), or leave that call out: "
        "the end of the program ends the group.",
    ),
    KnownCause(
        _stuck_in("start_processes", "torch/multiprocessing/spawn.py"),
        "The program starts ranks of its own with torch.multiprocessing.spawn, once in every rank here, and "
        "they wait for one another. Let one of the two do it: `-n 1` for the program as it is, or call its "
        "function without spawn and read RANK and WORLD_SIZE from the environment.",
    ),
    KnownCause(
        _raised(r"_scaled_dot_product_flash_attention_for_cpu\S* does not have a sharding strategy"),
        "torch cannot cut its flash attention for CPUs. Wrap the step: `with torch.nn.attention.sdpa_kernel("
        "torch.nn.attention.SDPBackend.MATH):`; on GPUs it runs as it is.",
    ),
    KnownCause(
        _raised(r"\.so: (file too short|invalid ELF header)"),
        "A kernel in torch's cache of compiled code is incomplete: something stopped while it was written. "
        "Delete the file that the message names; torch compiles it again.",
    ),
)


def advice(ends: Sequence[RankEnd]) -> list[str]:
    """What is known about how these ranks ended: a sentence or two for each cause that fits one of them."""
    return [known.advice for known in KNOWN if any(known.fits(end) for end in ends)]
