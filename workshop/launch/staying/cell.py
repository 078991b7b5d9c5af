"""One cell on ranks that stay: follow it, free who waits for nobody, heal, and tell what happened."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

from workshop.launch import rank_folder, verdicts
from workshop.launch.failures import Frame, RankEnd, RankInterrupted, attach, is_collective
from workshop.launch.output import Live, Transcript, rank_label, render
from workshop.launch.report import Reported, own_report
from workshop.launch.request import Limits
from workshop.launch.staying import recovery
from workshop.launch.staying.channels import Exchange
from workshop.launch.staying.rank_set import RankSet

# After the first failure the others get this long to finish by themselves, unless two looks at their stacks,
# POLL_SECONDS apart, find all of them in the same collectives: they wait for the rank that failed.
GRACE_SECONDS, POLL_SECONDS = 0.3, 0.03
# To show the first line takes a core from a rank, in this process and in the browser's. Most cells are over
# before anybody could read it: it waits so long for them.
SHORT_SECONDS = 0.02


@dataclass(frozen=True)
class RanksResult:
    """One cell on ranks that stay: reports by rank, the folded text, rich output, and what was healed."""

    reports: dict[int, Reported]
    text: str
    rich: tuple[tuple[int, dict[str, Any]], ...]
    device: str
    seconds: float
    healed: str = ""

    def __getitem__(self, rank: int) -> Reported:
        if rank not in self.reports:
            raise KeyError(f"rank {rank} did not run this cell; {rank_label(self.reports)} did")
        return self.reports[rank]

    def __len__(self) -> int:
        return len(self.reports)


class StopButton:
    """Within the block a press is noted, and raises nothing: it never breaks in between two things done.

    A press that nobody has `noticed` raises KeyboardInterrupt at the block's end. Further presses change
    nothing: healing half done would lose the ranks.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._noticed = False
        self._before: Any = None

    def __enter__(self) -> StopButton:
        handled = callable(signal.getsignal(signal.SIGINT))  # not where it is ignored
        # Signals go to the main thread alone.
        if handled and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._pressed and not self._noticed and kind is None:
            raise KeyboardInterrupt

    def _press(self, _number: int, _frame: object) -> None:
        self._pressed = True

    def noticed(self) -> bool:
        """Whether it was pressed; who asks deals with it."""
        self._noticed = self._pressed
        return self._noticed


class CellRun:
    """One cell on its way: follow the ranks, heal where needed, tell what happened."""

    def __init__(
        self, ranks: RankSet, exchange: Exchange, transcript: Transcript, limits: Limits, live: Live | None
    ):
        self.ranks = ranks
        self.exchange = exchange
        self.transcript = transcript
        self.limits = limits
        self.live = live
        self.interrupted = False
        self.timed_out = False
        self.failing_since: float | None = None
        self.cut_ranks: list[int] = []
        self.last_look: dict[int, tuple[Frame, ...]] = {}
        self.places: dict[int, tuple[Frame, ...]] = {}

    def run(self, code: str) -> RanksResult:
        """Have the ranks run ``code``, heal where something is not well then, and return or raise."""
        started = time.monotonic()
        with StopButton() as button:  # one block: pressed between freeing and healing, ranks would be lost
            self.exchange.ask(code, expressions={"has_group": "__workshop__.has_group()"})
            try:
                self._follow(button)
            except BaseException:  # of who looks on, say: the ranks must not run on alone
                if self.exchange.unanswered():
                    self._free_the_others()
                self._heal(failed=True)
                raise
            failed = any(reply["status"] == "error" for reply in self.exchange.replies.values())
            self.ranks.note_deaths()
            well = not (self.ranks.broken or failed or self._freed() or self._left_group())
            died, healed = ([], "") if well else self._heal(failed)
            if not well:
                button.noticed()  # the message says more than that somebody pressed again
        self.ranks.fetch(self.exchange)
        self.transcript.finish()
        result = self._result(time.monotonic() - started, healed)
        return result if well else self._told(result, died, failed)

    def _follow(self, button: StopButton) -> None:
        """Until every rank has answered; those that wait in vain are freed."""
        deadline = time.monotonic() + self.limits.seconds()
        self.exchange.wait(SHORT_SECONDS)
        if self.live is not None:
            self.live.begin(self.ranks.device.sentence)
        self._note_failure(time.monotonic())  # most that fail do so at once; nobody sends news of it later
        while self.exchange.waiting():
            self.exchange.pump(0.05 if self.failing_since is None else POLL_SECONDS)
            now = time.monotonic()
            self.interrupted = button.noticed()
            if not self.exchange.unanswered():
                self.exchange.wait(1.0)
                return
            if self._one_died():
                return
            self.timed_out = now > deadline
            if self.interrupted or self.timed_out or self._others_wait_in_vain(now):
                self._free_the_others()
                return
            if self.live is not None:
                self.live.look(self.transcript)

    def _one_died(self) -> bool:
        self.ranks.note_deaths()
        if self.ranks.deaths:
            self.places = recovery.ask_stacks(self.ranks, self.exchange.unanswered())
        return bool(self.ranks.deaths)

    def _others_wait_in_vain(self, now: float) -> bool:
        """Has a rank failed, and have the others shown that they will not end by themselves?"""
        if self.failing_since is None:
            self._note_failure(now)
            return False
        before, others = self.last_look, self.exchange.unanswered()
        self.last_look = recovery.ask_stacks(self.ranks, others, patience=0.1)
        wait = len(self.last_look) == len(others) and all(map(is_collective, self.last_look.values()))
        return (wait and self.last_look == before) or now - self.failing_since > GRACE_SECONDS

    def _note_failure(self, now: float) -> None:
        if any(reply["status"] == "error" for reply in self.exchange.replies.values()):
            self.failing_since = now

    def _free_the_others(self) -> None:
        self.cut_ranks = self.exchange.unanswered()
        self.places = recovery.ask_stacks(self.ranks, self.cut_ranks)
        left = recovery.free(self.ranks, self.exchange)
        if left:
            self.ranks.broken = (
                f"{rank_label(left)} did not come back (held in compiled code that listens to nothing, "
                "or in a loop that catches even KeyboardInterrupt), "
                "so the set of ranks is broken"
            )

    def _freed(self) -> bool:
        return self.interrupted or self.timed_out or bool(self.cut_ranks)

    def _heal(self, failed: bool) -> tuple[list[RankEnd], str]:
        """How those that died ended, and what was healed of the others."""
        died = recovery.ends_of_the_dead(self.ranks)
        if self.ranks.broken:  # no cell will reach them any more
            self.ranks.end_processes()
            return died, ""
        look = failed or self._left_group()
        return died, recovery.after_cell(self.ranks, must=bool(self.cut_ranks), look=look)

    def _told(self, result: RanksResult, died: list[RankEnd], failed: bool) -> RanksResult:
        """The result of a cell that was healed, or the exception that says what went wrong."""
        note = self._note(result.healed, died)
        ends, then = self._ends(died), "ended" if self.ranks.broken else "freed"
        if self.interrupted:
            what = note or "the ranks were interrupted, their variables kept"
            raise attach(RankInterrupted(verdicts.interrupted(ends, recovery.CELL, what)), result)
        if self.timed_out:
            note = "\n".join(filter(None, (self.limits.note(), note)))
            raise attach(verdicts.timed_out(ends, self.limits.seconds(), recovery.CELL, note, then), result)
        if failed or died:
            raise attach(verdicts.failed(ends, recovery.CELL, note, then), result)
        return result

    def _note(self, healed: str, died: list[RankEnd]) -> str:
        """The last line of the message: what was healed, or what to do."""
        if died:
            return (
                "The other ranks were ended with it; `%ranks restart` starts new ones, without the variables."
            )
        if self.ranks.broken:
            return f"{self.ranks.broken}. `%ranks restart` starts new ranks."
        return healed or recovery.stale_note(self.ranks, self._ends(died))

    def _left_group(self) -> bool:
        """Did the cell destroy the group? Each rank says so in its reply, so that asking costs nothing."""
        answers = self.exchange.expressions("has_group").values()
        return any(answer["status"] == "ok" and answer["data"]["text/plain"] == "False" for answer in answers)

    def _ends(self, died: list[RankEnd]) -> list[RankEnd]:
        ends = {end.rank: end for end in died}
        for channel in self.exchange.channels:
            rank = channel.rank
            if rank not in ends:
                reply, place = self.exchange.replies.get(rank), self.places.get(rank)
                ends[rank] = recovery.end_of(self.ranks, rank, reply, place)
        return [ends[rank] for rank in sorted(ends)]

    def _result(self, seconds: float, healed: str) -> RanksResult:
        chosen = [channel.rank for channel in self.exchange.channels]
        texts = {rank: log.blocks() for rank, log in self.transcript.logs.items()}
        rich = list(self.exchange.rich)
        for rank, data in sorted(self.exchange.results.items()):
            if set(data) <= {"text/plain"}:
                texts[rank] = [*texts[rank], data["text/plain"]]
            else:
                rich.append((rank, {"data": data, "metadata": {}}))
        reports = {rank: own_report(self.ranks.rank_dir(rank) / rank_folder.REPORT) for rank in chosen}
        rich.sort(key=lambda item: item[0])
        return RanksResult(reports, render(texts), tuple(rich), self.ranks.device.sentence, seconds, healed)
