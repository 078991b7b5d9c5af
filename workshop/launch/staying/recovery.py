"""Healing ranks that stay: ask where they are, cut their group, and join them in a new one.

The order matters. First the stacks are asked for (a signal, answered also from inside a
collective), because the cut changes them. Then every rank's connections are shut down, by a thread
in the rank itself; the calls that waited return, and an interrupt that was sent before ends the
cell. When all have answered, each leaves the old group and joins a new one that meets in a new
file (on several nodes: under a new name in their store). Variables are never touched.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Any

from workshop.launch import rank_folder, stack_dumps
from workshop.launch.failures import (
    FailureRecord,
    Frame,
    Place,
    Program,
    RankEnd,
    from_record,
    parse_stacks,
    place_in,
)
from workshop.launch.messages import GroupState, read_file
from workshop.launch.staying.channels import Exchange
from workshop.launch.staying.rank_set import RankSet

CELL = Program("<rank cell", prefix=True)  # the name under which a rank compiles the learner's cells
# On a busy machine a rank needs a while to come back; only one that never does waits so long.
FREE_SECONDS = 4.0


def ask_stacks(ranks: RankSet, which: Iterable[int], patience: float = 0.5) -> dict[int, tuple[Frame, ...]]:
    """Where each of these ranks is now, as frames; empty for one that runs nothing of the learner's."""
    questions = {
        rank: stack_dumps.Question(
            ranks.processes[rank], ranks.rank_dir(rank) / rank_folder.STACKS, rank in ranks.local
        )
        for rank in which
    }
    ranks.signal(questions, stack_dumps.ASK)
    deadline = time.monotonic() + patience
    frames_of: dict[int, tuple[Frame, ...]] = {}
    while len(frames_of) < len(questions) and time.monotonic() < deadline:
        for rank, question in questions.items():
            question.again()
            frames = stacks(ranks, rank, question.size)
            if frames:
                frames_of[rank] = frames
        time.sleep(0.005)
    return frames_of


def stacks(ranks: RankSet, rank: int, start: int = 0) -> tuple[Frame, ...]:
    """The learner's thread in the last stack dump of ``rank``."""
    with (ranks.rank_dir(rank) / rank_folder.STACKS).open("rb") as file:
        file.seek(start)
        return parse_stacks(file.read().decode("utf-8", "replace"), CELL)


def free(ranks: RankSet, exchange: Exchange) -> list[int]:
    """Interrupt who is still at work, cut every rank's group; returns the ranks that did not come back.

    The signal goes first. It is pending when the cut call returns, so the cell leaves by
    KeyboardInterrupt, also from under an ``except Exception`` that would call the cut group again
    (where gloo may wait for ever).
    """
    deadline = time.monotonic() + FREE_SECONDS
    _interrupt(ranks, exchange)
    _wait(exchange, 0.02)
    ranks.close_meeting()
    ranks.cut()
    while _wait(exchange, min(0.4, deadline - time.monotonic())) and time.monotonic() < deadline:
        _interrupt(ranks, exchange)  # once may not be enough: a destructor swallows an exception
        ranks.cut()  # nor this: a handler may have made a new group, or connected anew
    return exchange.unanswered()


def _interrupt(ranks: RankSet, exchange: Exchange) -> None:
    """SIGINT for all that are still at work. It must have arrived before the first connection is cut.

    Else the cut of one node's ranks reaches those of another before their signal does: their calls fail by a
    lost connection, and a cell that would have dealt with KeyboardInterrupt never sees one.
    """
    # one that was stopped goes on, with the interrupt
    ranks.signal(exchange.unanswered(), signal.SIGINT, signal.SIGCONT)


def _wait(exchange: Exchange, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while exchange.unanswered() and (left := deadline - time.monotonic()) > 0:
        exchange.pump(min(left, 0.05))
    return exchange.unanswered()


def after_cell(ranks: RankSet, *, must: bool, look: bool) -> str:
    """Make the group sound again where it is not; a sentence when something was done, else empty.

    ``must``: a group was cut. ``look``: a cell failed or destroyed the group, so compare how many
    collectives each rank has entered: ranks that differ would meet in the wrong one next time.
    """
    why = "the process group was cut"
    if not must:
        if not look:
            return ""
        states = ranks.states().values()
        have_group = all(isinstance(state, GroupState) and state.group for state in states)
        if have_group and len({state.sequence for state in states if isinstance(state, GroupState)}) == 1:
            return ""
        why = (
            "the ranks had entered different collectives"
            if have_group
            else "the cell destroyed the process group"
        )
    return renew(ranks, why)


def renew(ranks: RankSet, why: str) -> str:
    """All ranks leave their group and join a new one."""
    answers = ranks.join_anew().values()
    refusals = [answer for answer in answers if isinstance(answer, str)]
    if refusals:
        ranks.broken = f"healing failed ({refusals[0]})"
        return ""
    stale = sorted({name for answer in answers if isinstance(answer, GroupState) for name in answer.stale})
    ranks.stale |= set(stale)
    sentence = f"{why}; all ranks are in a new one (group {ranks.generation}), their variables are kept."
    if stale:
        sentence += f" These still hold the old group, make them again before use: {', '.join(stale)}."
    return sentence


def stale_note(ranks: RankSet, ends: Iterable[RankEnd]) -> str:
    """Lost connections that no rank caused: the cell used a variable from before the cut. Names which."""
    causes = [end for end in ends if end.kind in ("raised", "died", "stuck")]
    if not ranks.stale or any("not registered" not in end.message for end in causes):
        return ""
    names = ", ".join(sorted(ranks.stale))
    return (
        f"This looks like the use of a group that was cut: {names} still hold{'s' * (len(ranks.stale) == 1)} "
        "the old one. Make it again (for example model = DDP(model.module)) and run the cell once more."
    )


def end_of(
    ranks: RankSet, rank: int, reply: dict[str, Any] | None, frames: tuple[Frame, ...] | None
) -> RankEnd:
    """How one rank ended this cell. ``frames``: where it was when it had to be freed."""
    if frames is not None:
        return RankEnd(rank, "stuck", place_in(frames, CELL), frames=frames)
    if reply is None:
        return RankEnd(rank, "stuck", Place(None, None))
    if reply["status"] == "ok":
        return RankEnd(rank, "finished")
    record = ranks.rank_dir(rank) / rank_folder.FAILURE
    if record.exists():
        return from_record(rank, read_file(FailureRecord, record), CELL)
    return RankEnd(rank, "raised", Place(None, None), reply.get("ename", "error"), reply.get("evalue", ""))


def ends_of_the_dead(ranks: RankSet) -> list[RankEnd]:
    """Evidence of every rank that has died."""
    ranks.note_deaths()
    ends = []
    for rank, code in sorted(ranks.deaths.items()):
        frames = stacks(ranks, rank)
        death = ranks.death_of(rank)
        ends.append(
            RankEnd(rank, "died", place_in(frames, CELL), "died", death, frames=frames, exit_code=code)
        )
    return ends
