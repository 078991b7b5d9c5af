r"""Ranks that stay: one kernel per rank, variables kept from cell to cell, healed after trouble.

    >>> ranks = Ranks(4)
    >>> ranks.run("x = torch.ones(1) * rank; dist.all_reduce(x); print(x)").text
    '[ranks 0-3] tensor([6.])\\n'

When a cell fails on some ranks while others wait for them in a collective, or hangs, or is
interrupted, the process group is cut (`child/cut.py`): the waiting calls return with an error,
every rank keeps its variables, and all of them join a new group. Only a rank's death, or a rank
that does not come back, breaks the set; then every later cell says so at once, until `restart`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from workshop.launch import device, healing
from workshop.launch.channels import Channel, Exchange, write_connection_files
from workshop.launch.environment import rank_environment
from workshop.launch.failures import RankEnd, RankFailed, death_in_words, place_in
from workshop.launch.limits import Limits, check_rank_count
from workshop.launch.output import Transcript
from workshop.launch.passing import pickled
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError, Session
from workshop.launch.staying_cell import CellRun, RanksResult

START_SECONDS = 60.0


class Ranks:
    """``n`` ranks with a process group between them. Starts them; `stop` ends them."""

    def __init__(self, n: int, limits: Limits | None = None):
        self.n = check_rank_count(n)
        self.limits = limits or Limits()
        self.broken = ""
        self.generation = 0
        self.stale: set[str] = set()  # variables that hold a group which was cut
        self._start()

    def _start(self) -> None:
        self.session = Session.get()
        self.session.wait_ready()
        self.device = device.take(self.n, self.session)
        try:
            self._begin()
        except BaseException:
            self.device.release()
            raise

    def _begin(self) -> None:
        try:
            self.directory = self.session.directory / f"k{time.monotonic_ns() % 10**9}"
            self.directory.mkdir()
            connections = write_connection_files(self.directory, self.n)
        except OSError as error:
            where = self.session.directory
            raise EngineError(f"cannot write to {where} ({error.strerror}): free some room") from None
        self.number = self.session.send(
            "ranks_start",
            n=self.n,
            dir=str(self.directory),
            connections=connections,
            env={**rank_environment(os.environ), **self.device.environment()},
            cwd=str(Path.cwd()),
            sys_path=[*[p for p in sys.path if p], str(Path.cwd())],
            device=self.device.kind,
            device_memory=self.limits.memory_bytes(),
        )
        self.processes = self._await_processes()
        self._context = zmq.Context()
        self.channels = [Channel(self._context, path, rank) for rank, path in enumerate(connections)]
        self.deaths: dict[int, int | None] = {}
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _await_processes(self) -> dict[int, ProcessId]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for event in self.session.events(self.number, 0.5):
                if event["event"] == "ranks_failed":
                    raise EngineError(
                        f"the ranks could not be started: {event['why']}. Run `workshop doctor`."
                    )
                if event["event"] == "ranks_started":
                    found = {int(rank): ProcessId.of(pid) for rank, pid in event["pids"].items()}
                    return {rank: process or ProcessId(-1, -1) for rank, process in found.items()}
        raise EngineError(f"the ranks were not started within {START_SECONDS:.0f} s")

    def _await_ready(self) -> None:
        """The first request waits in the socket until the rank's kernel is up; the second makes the group."""
        deadline = time.monotonic() + START_SECONDS
        for channel in self.channels:  # iopub drops what is sent before the subscription has arrived
            while not channel.iopub.poll(20):
                channel.ask("", silent=True)
                self._note_deaths()
                if self.deaths or time.monotonic() > deadline:
                    raise EngineError(f"the ranks did not start. {self._last_words()}")
        self.generation += 1
        replies = healing.call_each(self, f"join({str(self.store_file())!r})")
        bad = [str(reply) for reply in replies.values() if "error" in reply]
        if bad:
            raise EngineError(f"the ranks could not form a group: {bad[0]}")

    def store_file(self) -> Path:
        """Where the ranks of this generation meet."""
        return self.directory / f"store_{self.generation}"

    def rank_dir(self, rank: int) -> Path:
        """Logs, stacks and reports of one rank."""
        return self.directory / f"rank_{rank}"

    # -- running a cell ------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        on: Sequence[int] | None = None,
        timeout: float | None = None,
        passing: Mapping[str, Any] | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> RanksResult:
        """Run ``code`` on all ranks (or those in ``on``) and wait.

        Raises `RankFailed` (also `RankTimeout`), `RankInterrupted`; ValueError for a rank that is not there.
        """
        chosen = self._check(on)
        seconds = Limits(timeout=timeout).seconds() if timeout else self.limits.seconds()
        started = time.monotonic()
        starts = self._clear(chosen)
        prefix = self._pass(passing)
        exchange = Exchange([self.channels[rank] for rank in chosen])
        logs = {rank: self.rank_dir(rank) / "log" for rank in chosen}
        cell = CellRun(self, exchange, Transcript(logs, starts), seconds, on_output)
        exchange.ask(prefix + code, expressions={"state": "__workshop__.state()"})
        cell.follow()
        return cell.conclude(started)

    def _check(self, on: Sequence[int] | None) -> list[int]:
        if self.session.usable():
            self._note_deaths()
        if self.broken or not self.session.usable():
            raise RankFailed(
                f"{self.broken or 'the launch engine has ended'}. `%ranks restart` starts new ranks."
            )
        if on is None:
            return list(range(self.n))
        unknown = [rank for rank in on if not 0 <= rank < self.n]
        if unknown or not on:
            raise ValueError(f"--on {unknown[0] if unknown else ''}: these are ranks 0 to {self.n - 1}")
        return sorted(set(on))

    def _pass(self, passing: Mapping[str, Any] | None) -> str:
        if not passing:
            return ""
        path = self.directory / "passed.pkl"
        path.write_bytes(pickled(passing))
        return f"__workshop__.receive({str(path)!r}, globals());"

    def _clear(self, chosen: Sequence[int]) -> dict[int, int]:
        """Forget the last cell's failure and report; where each rank's log begins for this one."""
        starts = {}
        for rank in chosen:
            here = self.rank_dir(rank)
            try:
                for name in ("failure.json", "report.pkl"):
                    (here / name).unlink(missing_ok=True)
                for name in ("stacks", "bars"):  # the rank holds these open for appending
                    os.truncate(here / name, 0)
                starts[rank] = (here / "log").stat().st_size
            except FileNotFoundError as error:
                self.broken = f"somebody removed {error.filename}, which rank {rank} writes to"
                self.end_processes()
                raise RankFailed(f"{self.broken}. `%ranks restart` starts new ranks.") from None
        return starts

    # -- life and death ------------------------------------------------------------------------

    def _note_deaths(self) -> None:
        for event in self.session.events(self.number):
            if event["event"] == "rank_died":
                self.deaths[event["rank"]] = event["exit_code"]
        if self.deaths and not self.broken:
            self.broken = f"the ranks are gone since {self._deaths_in_words()}"

    def _deaths_in_words(self) -> str:
        return "; ".join(f"rank {rank}: {death_in_words(code)}" for rank, code in sorted(self.deaths.items()))

    def _last_words(self) -> str:
        """Why the ranks did not come up: how they ended, and the end of what one of them wrote."""
        log = self.rank_dir(min(self.deaths, default=0)) / "log"
        tail = log.read_text(errors="replace").strip().splitlines()[-6:] if log.exists() else []
        return "\n".join([self._deaths_in_words() or "no answer", *tail])

    def ends_of_the_dead(self) -> list[RankEnd]:
        """Evidence of every rank that has died."""
        self._note_deaths()
        found = []
        for rank, code in sorted(self.deaths.items()):
            frames = healing.stacks(self, rank)
            place = place_in(frames, healing.CELL)
            found.append(
                RankEnd(rank, "died", place, "died", death_in_words(code), frames=frames, exit_code=code)
            )
        return found

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank, by process number and start time."""
        self.processes[rank].signal(number)

    def interrupt(self) -> None:
        """KeyboardInterrupt in every rank that runs learner's code now."""
        for rank in self.processes:
            self.signal(rank, signal.SIGINT)

    def status(self) -> str:
        """A line per rank: its process, and how it is."""
        if not self.session.usable():
            return "the launch engine has ended; `%ranks start` begins anew"
        self._note_deaths()
        lines = [
            f"{self.device.sentence}; group {self.generation}" + (f"; {self.broken}" if self.broken else "")
        ]
        for rank, process in self.processes.items():
            state = "alive" if process.alive() else death_in_words(self.deaths.get(rank))
            lines.append(f"rank {rank}: process {process.pid}, {state}")
        return "\n".join(lines)

    def summary(self) -> str:
        """One line, the same each time: how many ranks, where, and whether they are well."""
        return f"{self.device.sentence}: {self.broken or 'ready'}"

    def stop(self) -> None:
        """End the ranks and remove their directory; safe to call twice."""
        for channel in self.channels:
            channel.close()
        self._context.destroy(linger=0)
        self.broken = self.broken or "the ranks were stopped"
        self.end_processes()
        self.device.release()
        self.session.forget(self.number)
        shutil.rmtree(self.directory, ignore_errors=True)

    def end_processes(self) -> None:
        """End what is left of the ranks and what they started."""
        if self.session.usable():
            stopping = self.session.send("ranks_stop", group=self.number)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if any(e["event"] == "ranks_stopped_clean" for e in self.session.events(stopping, 0.2)):
                    break
            self.session.forget(stopping)

    def restart(self) -> None:
        """End these ranks and start as many new ones; variables are gone."""
        self.stop()
        self.broken = ""
        self.stale = set()
        self._start()
