"""One cell on ranks that stay: follow it, free who waits for nobody, heal, and tell what happened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from workshop.launch import rank_folder, verdicts
from workshop.launch.failures import Frame, RankEnd, RankInterrupted, is_collective
from workshop.launch.output import Live, Transcript, rank_label, render
from workshop.launch.report import Reported, own_report
from workshop.launch.request import Limits
from workshop.launch.staying import recovery
from workshop.launch.staying.channels import Exchange
from workshop.launch.staying.rank_set import RankSet

# After the first failure the others get this long to finish by themselves, unless two looks at their stacks,
# LOOK_SECONDS apart, find all of them in the same collectives: they wait for the rank that failed.
GRACE_SECONDS, LOOK_SECONDS = 0.3, 0.03


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

    def follow(self) -> None:
        """Until every rank has answered, or something has to be done about those that do not."""
        deadline = time.monotonic() + self.limits.seconds()
        if self.live is not None:
            self.live.begin(self.ranks.device.sentence)
        while self.exchange.waiting():
            try:
                self.exchange.pump(0.05 if self.failing_since is None else LOOK_SECONDS)
                now = time.monotonic()
                if not self.exchange.unanswered():
                    self.exchange.wait(1.0)
                    return
                if self._one_died():
                    return
                self.timed_out = now > deadline
                if self.timed_out or self._others_wait_in_vain(now):
                    self._free_the_others()
                    return
                if self.live is not None:
                    self.live.look(self.transcript)
            except KeyboardInterrupt:
                self.interrupted = True
                self._free_the_others()
                return

    def _one_died(self) -> bool:
        self.ranks.note_deaths()
        if self.ranks.deaths:
            self.places = recovery.ask_stacks(self.ranks, self.exchange.unanswered())
        return bool(self.ranks.deaths)

    def _others_wait_in_vain(self, now: float) -> bool:
        """Has a rank failed, and have the others shown that they will not end by themselves?"""
        if self.failing_since is None:
            if any(reply["status"] == "error" for reply in self.exchange.replies.values()):
                self.failing_since = now
            return False
        before, others = self.last_look, self.exchange.unanswered()
        self.last_look = recovery.ask_stacks(self.ranks, others, patience=0.1)
        wait = len(self.last_look) == len(others) and all(map(is_collective, self.last_look.values()))
        return (wait and self.last_look == before) or now - self.failing_since > GRACE_SECONDS

    def _free_the_others(self) -> None:
        with recovery.uninterrupted():
            self.cut_ranks = self.exchange.unanswered()
            self.places = recovery.ask_stacks(self.ranks, self.cut_ranks)
            left = recovery.free(self.ranks, self.exchange)
        if left:
            self.ranks.broken = (
                f"{rank_label(left)} did not come back (held in compiled code that listens to nothing, "
                "or in a loop that catches even KeyboardInterrupt), "
                "so the set of ranks is broken"
            )

    def conclude(self, started: float) -> RanksResult:
        """Heal where something is not well, then return or raise."""
        self.ranks.note_deaths()
        failed = any(reply["status"] == "error" for reply in self.exchange.replies.values())
        freed = self.interrupted or self.timed_out or bool(self.cut_ranks)
        if self.ranks.broken or failed or freed or self._left_group():
            return self._conclude_and_heal(started, failed)
        self.ranks.fetch(self.exchange)
        self.transcript.finish()
        return self._result(time.monotonic() - started, "")

    def _conclude_and_heal(self, started: float, failed: bool) -> RanksResult:
        ranks, healed = self.ranks, ""
        with recovery.uninterrupted():
            died = recovery.ends_of_the_dead(ranks)
            if ranks.broken:  # no cell will reach them any more
                ranks.end_processes()
            else:
                look = failed or self._left_group()
                healed = recovery.after_cell(ranks, must=bool(self.cut_ranks), look=look)
        ranks.fetch(self.exchange)
        self.transcript.finish()
        result = self._result(time.monotonic() - started, healed)
        note = self._note(healed, died)
        ends, then = self._ends(died), "ended" if ranks.broken else "freed"
        if self.interrupted:
            what = note or "the ranks were interrupted, their variables kept"
            raise _attach(RankInterrupted(verdicts.interrupted(ends, recovery.CELL, what)), result)
        if self.timed_out:
            note = "\n".join(filter(None, (self.limits.note(), note)))
            raise _attach(verdicts.timed_out(ends, self.limits.seconds(), recovery.CELL, note, then), result)
        if failed or died:
            raise _attach(verdicts.failed(ends, recovery.CELL, note, then), result)
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


def _attach(error: BaseException, result: RanksResult) -> Any:
    error.result = result  # type: ignore[attr-defined]
    return error
