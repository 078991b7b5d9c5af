r"""Ranks that stay: one kernel per rank, variables kept from cell to cell, healed after trouble.

    >>> ranks = Ranks(4)
    >>> ranks.run("x = torch.ones(1) * rank; dist.all_reduce(x); print(x)").text
    '[ranks 0-3] tensor([6.])\\n'

When a cell fails on some ranks while others wait for them in a collective, or hangs, or is
interrupted, the process group is cut (`child/cut.py`): the waiting calls return with an error,
every rank keeps its variables, and all of them join a new group. Only a rank's death, or a rank
that does not come back, breaks the set; then every later cell says so at once, until `restart`.

On several nodes (`nodes.ranks.StayingNodes`) all of this is the same; a rank of another node is reached
through that node's one connection, and the loss of a node is the death of its ranks.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from workshop.launch import device, rank_folder
from workshop.launch.failures import RankEnd, RankFailed, death_in_words, place_in
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.ranks import RemoteNodes, RemoteProcess, StayingNodes
from workshop.launch.output import Live, Show, Transcript, live_of
from workshop.launch.processes import ProcessId
from workshop.launch.request import Limits, check_rank_count, pickled
from workshop.launch.session import Session
from workshop.launch.staying import recovery
from workshop.launch.staying import start as staying_start
from workshop.launch.staying.cell import CellRun, RanksResult
from workshop.launch.staying.channels import Channel, Exchange


class Ranks:
    """``n`` ranks, on each node if there are several, and a process group between all of them.

    Starts them; `stop` ends them. ``local``: the numbers of those on the notebook's own node.
    """

    def __init__(self, n: int, limits: Limits | None = None, nodes: StayingNodes | None = None):
        self.per_node = check_rank_count(n)
        self.nodes = nodes
        self.num_nodes = nodes.count if nodes else 1
        self.n = check_rank_count(n * self.num_nodes)
        self.local = range(n if nodes is None or nodes.here else 0)
        self.remote: RemoteNodes | None = None
        self.limits = limits or Limits()
        self.broken = ""
        self.generation = 0
        self.stale: set[str] = set()  # variables that hold a group which was cut
        self._start()

    def _start(self) -> None:
        self.session = Session.get()
        self.deaths: dict[int, int | None] = {}
        self.processes: dict[int, ProcessId | RemoteProcess] = {}
        self.channels: list[Channel] = []
        self._context = zmq.Context()
        self.directory = self.session.directory / f"k{time.monotonic_ns() % 10**9}"
        self.number = 0
        self.device = device.Device("cpu", "")  # holds nothing yet
        try:
            if self.nodes is not None and self.remote is None:
                self.remote = RemoteNodes(self.nodes, self.session.directory)
            self.session.wait_ready()
            if self.remote is None:
                self.device = device.take(self.n, self.session)
            else:  # nodes that a scheduler gave out are this user's alone: no leases
                self.remote.wait_ready()
                gpus = [self.session.gpus] if self.local else []
                self.device = device.choose_for_nodes(self.per_node, [*gpus, *self.remote.gpus()])
            staying_start.start_processes(self)
            staying_start.await_ready(self)
        except BaseException:
            self.stop()
            raise

    def meeting(self) -> str:
        """The name under which the ranks of this generation meet."""
        return f"store_{self.generation}"

    def rank_dir(self, rank: int) -> Path:
        """Logs, stacks and reports of one rank."""
        return rank_folder.of_rank(self.directory, rank)

    # -- running a cell ------------------------------------------------------------------------

    def run(
        self,
        code: str,
        *,
        on: Sequence[int] | None = None,
        timeout: float | None = None,
        passing: Mapping[str, Any] | None = None,
        on_output: Show | Live | None = None,
    ) -> RanksResult:
        """Run ``code`` on all ranks (or those in ``on``) and wait.

        Raises `RankFailed` (also `RankTimeout`), `RankInterrupted`; ValueError for a rank that is not there.
        """
        chosen = self._check(on)
        limits = Limits(timeout=timeout) if timeout else self.limits
        limits.seconds()  # says at once where the environment's is no number
        started = time.monotonic()
        starts = self._clear(chosen)
        prefix = self._pass(passing)
        exchange = Exchange([self.channels[rank] for rank in chosen])
        logs = {rank: self.rank_dir(rank) / rank_folder.LOG for rank in chosen}
        cell = CellRun(self, exchange, Transcript(logs, starts), limits, live_of(on_output))
        exchange.ask(prefix + code, expressions={"state": "__workshop__.state()"})
        cell.follow()
        return cell.conclude(started)

    def _check(self, on: Sequence[int] | None) -> list[int]:
        if self.session.usable():
            self.note_deaths()
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
        name, data = rank_folder.PASSED, pickled(passing)
        (self.directory / name).write_bytes(data)
        if self.remote is not None:
            self.remote.pass_file(name, data, recovery.ANSWER_SECONDS)
        return f"__workshop__.receive({name!r}, globals());"

    def _clear(self, chosen: Sequence[int]) -> dict[int, int]:
        """Forget the last cell's failure and report; where each rank's log begins for this one."""
        starts = {}
        try:
            if self.remote is not None:  # first there: what is on its way still belongs to the last cell
                self.remote.clear(chosen, recovery.ANSWER_SECONDS)
            for rank in chosen:
                rank_folder.clear(self.rank_dir(rank))
                starts[rank] = (self.rank_dir(rank) / rank_folder.LOG).stat().st_size
        except FileNotFoundError as error:
            self.broken = f"somebody removed {error.filename}, which a rank writes to"
            self.end_processes()
            raise RankFailed(f"{self.broken}. `%ranks restart` starts new ranks.") from None
        return starts

    def fetch(self, exchange: Exchange) -> None:
        """Have all that the ranks of other nodes have written, here, now that their cell is over."""
        if self.remote is not None:
            ranks = [channel.rank for channel in exchange.channels]
            self.remote.sync(ranks, recovery.ANSWER_SECONDS)

    def ask_nodes_to_cut(self) -> None:
        """Have the other nodes ask their ranks' cutting threads."""
        if self.remote is not None:
            self.remote.cut(2 * recovery.ANSWER_TO_CUT_SECONDS)

    # -- life and death ------------------------------------------------------------------------

    def note_deaths(self) -> None:
        """Take in which ranks have ended since; any death breaks the set."""
        for event in self.session.events(self.number):
            if event["event"] == "rank_died":
                self.deaths[event["rank"]] = event["exit_code"]
        if self.remote is not None:
            self.deaths |= self.remote.note_deaths()
        if self.deaths and not self.broken:
            self.broken = f"the ranks are gone since {self.deaths_in_words()}"

    def deaths_in_words(self) -> str:
        """Who died, and how."""
        return "; ".join(f"rank {rank}: {self._death_of(rank)}" for rank in sorted(self.deaths))

    def _death_of(self, rank: int) -> str:
        """How a rank died, and on which node where there are several."""
        words = death_in_words(self.deaths.get(rank))
        if self.remote is None:
            return words
        name = self.node_of(rank)
        lost = self.remote.lost().get(name)
        return f"its node {name} is gone: {lost}" if lost else f"{words}, on node {name}"

    def node_of(self, rank: int) -> str:
        """The name of the node on which a rank runs."""
        if self.remote is None or rank in self.local:
            return node_start.this_node()
        return self.remote.node_of(rank)

    def ends_of_the_dead(self) -> list[RankEnd]:
        """Evidence of every rank that has died."""
        self.note_deaths()
        found = []
        for rank, code in sorted(self.deaths.items()):
            frames = recovery.stacks(self, rank)
            place = place_in(frames, recovery.CELL)
            found.append(
                RankEnd(rank, "died", place, "died", self._death_of(rank), frames=frames, exit_code=code)
            )
        return found

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank, by process number and start time."""
        self.processes[rank].signal(number)

    def await_signals(self, which: Iterable[int]) -> None:
        """Until the signals that were sent to ranks of other nodes have arrived."""
        if self.remote is not None:
            self.remote.settle(which, recovery.ARRIVAL_SECONDS)

    def interrupt(self) -> None:
        """KeyboardInterrupt in every rank that runs learner's code now."""
        for rank in self.processes:
            self.signal(rank, signal.SIGINT)

    def status(self) -> str:
        """A line per rank: its process, and how it is."""
        if not self.session.usable():
            return "the launch engine has ended; `%ranks start` begins anew"
        self.note_deaths()
        lines = [
            f"{self.device.sentence}; group {self.generation}" + (f"; {self.broken}" if self.broken else "")
        ]
        for rank, process in self.processes.items():
            state = "alive" if process.alive() else self._death_of(rank)
            on = f" on {self.node_of(rank)}" if self.remote else ""
            lines.append(f"rank {rank}: process {process.pid}{on}, {state}")
        return "\n".join(lines)

    def summary(self) -> str:
        """One line, the same each time: how many ranks, where, and whether they are well."""
        return f"{self.device.sentence}: {self.broken or 'ready'}"

    def stop(self) -> None:
        """End the ranks, also on other nodes, and remove their directory; safe to call twice."""
        self._stop_ranks()
        if self.remote is not None:
            self.remote.close()
            self.remote = None

    def _stop_ranks(self) -> None:
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
        if self.remote is not None:
            self.remote.stop_ranks()
        if self.session.usable():
            stopping = self.session.send("ranks_stop", group=self.number)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if any(e["event"] == "ranks_stopped_clean" for e in self.session.events(stopping, 0.2)):
                    break
            self.session.forget(stopping)

    def restart(self) -> None:
        """End these ranks and start as many new ones; variables are gone."""
        self._stop_ranks()
        if self.remote is not None and (self.remote.lost() or not self.session.usable()):
            self.remote.close()
            self.remote = None
        self.broken = ""
        self.stale = set()
        self._start()
