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

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.launch import rank_folder
from workshop.launch.nodes.ranks import StayingNodes
from workshop.launch.output import Live, Show, Transcript, live_of
from workshop.launch.request import Limits, takes_passing
from workshop.launch.staying.cell import CellRun, RanksResult
from workshop.launch.staying.channels import Exchange
from workshop.launch.staying.rank_set import RankSet
from workshop.launch.staying.start import start


class Ranks(RankSet):
    """``n`` ranks, on each node if there are several, and a process group between all of them.

    Starts them; `stop` ends them.
    """

    def __init__(self, n: int, limits: Limits | None = None, nodes: StayingNodes | None = None):
        super().__init__(n, limits or Limits(), nodes)
        self._start()

    def _start(self) -> None:
        try:
            start(self)
        except BaseException:
            self.stop()
            raise

    @takes_passing
    def run(
        self,
        code: str,
        *,
        on: Sequence[int] | None = None,
        timeout: float | None = None,
        variables: Mapping[str, Any] | None = None,
        on_output: Show | Live | None = None,
    ) -> RanksResult:
        """Run ``code`` on all ranks (or those in ``on``) and wait.

        Raises `RankFailed` (also `RankTimeout`), `RankInterrupted`; ValueError for a rank that is not there.
        """
        self.check_well()
        chosen = self._chosen(on)
        limits = Limits(timeout=timeout) if timeout else self.limits
        limits.seconds()  # says at once where the environment's is no number
        starts = self.clear(chosen)
        take_values = self.pass_values(variables)
        exchange = Exchange([self.channels[rank] for rank in chosen])
        logs = {rank: self.rank_dir(rank) / rank_folder.LOG for rank in chosen}
        cell = CellRun(self, exchange, Transcript(logs, starts), limits, live_of(on_output))
        return cell.run(take_values + code)

    def _chosen(self, on: Sequence[int] | None) -> list[int]:
        if on is None:
            return list(range(self.n))
        unknown = [rank for rank in on if not 0 <= rank < self.n]
        if unknown or not on:
            raise ValueError(f"--on {unknown[0] if unknown else ''}: these are ranks 0 to {self.n - 1}")
        return sorted(set(on))

    def status(self) -> str:
        """A line per rank: its process, and how it is."""
        if not self.session.usable():
            return "the launch engine has ended; `%ranks start` begins anew"
        self.note_deaths()
        lines = [
            f"{self.device.sentence}; group {self.generation}" + (f"; {self.broken}" if self.broken else "")
        ]
        for rank, process in self.processes.items():
            state = "alive" if process.alive() else self.death_of(rank)
            on = f" on {self.node_of(rank)}" if self.remote else ""
            lines.append(f"rank {rank}: process {process.pid}{on}, {state}")
        return "\n".join(lines)

    def summary(self) -> str:
        """One line, the same each time: how many ranks, where, and whether they are well."""
        return f"{self.device.sentence}: {self.broken or 'ready'}"

    def restart(self) -> None:
        """End these ranks and start as many new ones; variables are gone."""
        self.close()
        if self.remote is not None and (self.remote.lost() or not self.session.usable()):
            self.leave_nodes()
        self.reset()
        self._start()

    def stop(self) -> None:
        """End the ranks, also on other nodes, and remove their directory; safe to call twice."""
        self.close()
        self.leave_nodes()
