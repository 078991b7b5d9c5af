"""Healing ranks that stay: ask where they are, cut their group, and join them in a new one.

The order matters. First the stacks are asked for (a signal, answered also from inside a
collective), because the cut changes them. Then every rank's connections are shut down, by a thread
in the rank itself; the calls that waited return, and an interrupt that was sent before ends the
cell. When all have answered, each leaves the old group and joins a new one that meets in a new
file (on several nodes: under a new name in their store). Variables are never touched.
"""

from __future__ import annotations

import ast
import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workshop.launch import rank_folder
from workshop.launch.failures import Frame, Place, Program, RankEnd, from_record, parse_stacks, place_in
from workshop.launch.staying.channels import Exchange

if TYPE_CHECKING:
    from workshop.launch.staying.ranks import Ranks

CELL = Program("<rank cell", prefix=True)  # the name under which a rank compiles the learner's cells
ANSWER_SECONDS = 30.0
# On a busy machine a rank needs a while to come back; only one that never does waits so long.
FREE_SECONDS = 4.0
ANSWER_TO_CUT_SECONDS = 0.5
ARRIVAL_SECONDS = 3.0  # a node of which nothing is heard for so long is gone (`nodes.wire`)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Healing half done would lose the ranks: a second press of the stop button changes nothing now."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread alone
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def call_each(ranks: Ranks, call: str) -> dict[int, dict[str, Any]]:
    """``__workshop__.CALL`` on every rank; the dict each returned, or ``{"error": text}``."""
    exchange = Exchange(ranks.channels)
    exchange.ask("", silent=True, expressions={"answer": f"__workshop__.{call}"})
    deadline = time.monotonic() + ANSWER_SECONDS
    while exchange.waiting() and time.monotonic() < deadline:
        exchange.pump(0.5)
        if _one_refused(exchange):  # then the others wait for it in vain, in the new group's store
            deadline = min(deadline, time.monotonic() + FREE_SECONDS)
    answers: dict[int, dict[str, Any]] = {}
    for channel in ranks.channels:
        reply = exchange.replies.get(channel.rank, {})
        answer = reply.get("user_expressions", {}).get("answer", {"status": "none", "evalue": "no answer"})
        if answer["status"] == "ok":
            answers[channel.rank] = ast.literal_eval(answer["data"]["text/plain"])
        else:
            answers[channel.rank] = {"error": f"rank {channel.rank}: {answer['evalue']}"}
    return answers


def _one_refused(exchange: Exchange) -> bool:
    replies = exchange.replies.values()
    return any(
        reply.get("user_expressions", {}).get("answer", {}).get("status") == "error" for reply in replies
    )


def ask_stacks(ranks: Ranks, which: Iterable[int], patience: float = 0.5) -> dict[int, tuple[Frame, ...]]:
    """Where each of these ranks is now, as frames; empty for one that runs nothing of the learner's."""
    before = {rank: (ranks.rank_dir(rank) / rank_folder.STACKS).stat().st_size for rank in which}
    for rank in before:
        ranks.signal(rank, signal.SIGUSR2)
    ranks.await_signals(before)
    deadline = time.monotonic() + patience
    found: dict[int, tuple[Frame, ...]] = {}
    while len(found) < len(before) and time.monotonic() < deadline:
        for rank, start in before.items():
            frames = stacks(ranks, rank, start)
            if frames:
                found[rank] = frames
        time.sleep(0.005)
    return found


def stacks(ranks: Ranks, rank: int, start: int = 0) -> tuple[Frame, ...]:
    """The learner's thread in the last stack dump of ``rank``."""
    with (ranks.rank_dir(rank) / rank_folder.STACKS).open("rb") as file:
        file.seek(start)
        return parse_stacks(file.read().decode("utf-8", "replace"), CELL)


def free(ranks: Ranks, exchange: Exchange) -> list[int]:
    """Interrupt who is still at work, cut every rank's group; returns the ranks that did not come back.

    The signal goes first. It is pending when the cut call returns, so the cell leaves by
    KeyboardInterrupt, also from under an ``except Exception`` that would call the cut group again
    (where gloo may wait for ever).
    """
    deadline = time.monotonic() + FREE_SECONDS
    _interrupt(ranks, exchange)
    _wait(exchange, 0.02)
    _close_store(ranks)
    _request_cut(ranks)
    while _wait(exchange, min(0.4, deadline - time.monotonic())) and time.monotonic() < deadline:
        _interrupt(ranks, exchange)  # once may not be enough: a destructor swallows an exception
        _request_cut(ranks)  # nor this: a handler may have made a new group, or connected anew
    return exchange.unanswered()


def _interrupt(ranks: Ranks, exchange: Exchange) -> None:
    """SIGINT for all that are still at work. It must have arrived before the first connection is cut.

    Else the cut of one node's ranks reaches those of another before their signal does: their calls fail by a
    lost connection, and a cell that would have dealt with KeyboardInterrupt never sees one.
    """
    unanswered = exchange.unanswered()
    for rank in unanswered:
        ranks.signal(rank, signal.SIGINT)
        ranks.signal(rank, signal.SIGCONT)  # one that was stopped goes on, with the interrupt
    ranks.await_signals(unanswered)


def _wait(exchange: Exchange, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while exchange.unanswered() and (left := deadline - time.monotonic()) > 0:
        exchange.pump(min(left, 0.05))
    return exchange.unanswered()


def _close_store(ranks: Ranks) -> None:
    """A rank may wait in the store (for a group that the others never make): let its next look fail.

    The store's file becomes a link to itself, which nobody can open. The next group has a new file.
    """
    if ranks.remote is not None:
        ranks.remote.relay.close_store(f"{ranks.meeting()}/")
        return
    path = ranks.directory / ranks.meeting()
    loop = path.with_suffix(".closed")
    loop.symlink_to(path.name)
    loop.replace(path)


def _request_cut(ranks: Ranks) -> None:
    """Ask the cutting threads of all ranks, on their nodes at once."""
    asking = threading.Thread(target=ranks.ask_nodes_to_cut)
    asking.start()
    cut_here(ranks.directory, [ranks.rank_dir(rank) for rank in ranks.local])
    asking.join()


def cut_here(directory: Path, rank_dirs: Iterable[Path]) -> None:
    """Ask the cutting threads of this node's ranks; wait a moment for those that can answer.

    A rank that has died has nobody to ask, and one that holds the interpreter's lock in compiled
    code does not get to it.
    """
    asked = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        own = directory / f"ask{time.monotonic_ns()}"
        wire.bind(str(own))
        for rank_dir in rank_dirs:
            with contextlib.suppress(OSError):
                wire.sendto(b"cut", str(rank_dir / rank_folder.CUT))
                asked += 1
        deadline = time.monotonic() + ANSWER_TO_CUT_SECONDS
        with contextlib.suppress(OSError):
            while asked and (left := deadline - time.monotonic()) > 0:
                wire.settimeout(left)
                wire.recv(64)
                asked -= 1
        own.unlink(missing_ok=True)


def after_cell(ranks: Ranks, *, must: bool, look: bool) -> str:
    """Make the group sound again where it is not; a sentence when something was done, else empty.

    ``must``: a group was cut. ``look``: a cell failed or destroyed the group, so compare how many
    collectives each rank has entered: ranks that differ would meet in the wrong one next time.
    """
    why = "the process group was cut"
    if not must:
        if not look:
            return ""
        states = call_each(ranks, "state()")
        if len({state.get("sequence") for state in states.values()}) == 1 and all(
            state.get("group") for state in states.values()
        ):
            return ""
        left = [rank for rank, state in states.items() if not state.get("group")]
        why = (
            "the cell destroyed the process group" if left else "the ranks had entered different collectives"
        )
    return renew(ranks, why)


def renew(ranks: Ranks, why: str) -> str:
    """All ranks leave their group and join a new one."""
    left = ranks.directory / ranks.meeting()
    ranks.generation += 1
    answers = call_each(ranks, f"heal({ranks.meeting()!r}, globals())")
    failed = [answer["error"] for answer in answers.values() if "error" in answer]
    if failed:
        ranks.broken = f"healing failed ({failed[0]})"
        return ""
    left.unlink(missing_ok=True)  # where the ranks met before; on several nodes that was no file
    stale = sorted({name for answer in answers.values() for name in answer["stale"]})
    ranks.stale |= set(stale)
    sentence = f"{why}; all ranks are in a new one (group {ranks.generation}), their variables are kept."
    if stale:
        sentence += f" These still hold the old group, make them again before use: {', '.join(stale)}."
    return sentence


def stale_note(ranks: Ranks, ends: Iterable[RankEnd]) -> str:
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
    ranks: Ranks, rank: int, reply: dict[str, Any] | None, frames: tuple[Frame, ...] | None
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
        return from_record(rank, json.loads(record.read_text(encoding="utf-8")), CELL)
    return RankEnd(rank, "raised", Place(None, None), reply.get("ename", "error"), reply.get("evalue", ""))
