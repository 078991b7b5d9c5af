"""The ranks of one set, as the notebook knows them: who they are, where they are, and whether they are well.

What is done with a set lies above: it is started (`start`), runs cells (`cell`), is healed (`recovery`), and
is what the learner holds (`ranks.Ranks`). Here is what all of these read, and how a rank is reached: by
messages (`channels`), by signals, by its files, and on another node through that node's one connection
(`nodes.ranks`).
"""

from __future__ import annotations

import ast
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from workshop.launch import device, rank_folder
from workshop.launch.failures import RankFailed, death_in_words
from workshop.launch.messages import Clean, GroupState, RankDied, StopRanks, from_json
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.ranks import RemoteNodes, RemoteProcess, StayingNodes
from workshop.launch.processes import ProcessId
from workshop.launch.request import Limits, check_rank_count, pickled
from workshop.launch.session import Session
from workshop.launch.staying.channels import ANSWER_TO_CUT_SECONDS, Channel, Exchange, ask_to_cut

ANSWER_SECONDS = 30.0
REFUSED_SECONDS = 4.0  # when one rank has refused, the others wait for it in vain, in the new group's store
ARRIVAL_SECONDS = 3.0  # a node of which nothing is heard for so long is gone (`nodes.wire`)


class RankSet:
    """``n`` ranks in all, ``per_node`` on each of ``num_nodes``; ``local``: those on the notebook's own.

    broken: why no cell can run on them, once that is so. deaths: exit codes of those that have ended.
    generation: the number of their process group. stale: variables that hold a group which was cut.
    """

    def __init__(self, per_node: int, limits: Limits, nodes: StayingNodes | None):
        self.per_node = check_rank_count(per_node)
        self.nodes = nodes
        self.num_nodes = nodes.count if nodes else 1
        self.n = check_rank_count(per_node * self.num_nodes)
        self.local = range(per_node if nodes is None or nodes.here else 0)
        self.limits = limits
        self.remote: RemoteNodes | None = None
        self.generation = 0
        self.reset()

    def reset(self) -> None:
        """As before a start: nobody is there, in a folder of their own. Groups are counted on."""
        self.session = Session.get()
        self.directory = self.session.directory / f"k{time.monotonic_ns() % 10**9}"
        self.number = 0  # of the command that started them
        self.device = device.Device("cpu", "")  # holds nothing yet
        self.context = zmq.Context()
        self.channels: list[Channel] = []
        self.processes: dict[int, ProcessId | RemoteProcess] = {}
        self.deaths: dict[int, int | None] = {}
        self.broken = ""
        self.stale: set[str] = set()

    def rank_dir(self, rank: int) -> Path:
        """Logs, stacks and reports of one rank."""
        return rank_folder.of_rank(self.directory, rank)

    # -- are they well? ------------------------------------------------------------------------

    def check_well(self) -> None:
        """RankFailed where no cell can run on them."""
        if self.session.usable():
            self.note_deaths()
        if self.broken or not self.session.usable():
            raise RankFailed(
                f"{self.broken or 'the launch engine has ended'}. `%ranks restart` starts new ranks."
            )

    def note_deaths(self) -> None:
        """Take in which ranks have ended since; any death breaks the set."""
        for event in self.session.events(self.number):
            if isinstance(event, RankDied):
                self.deaths[event.rank] = event.exit_code
        if self.remote is not None:
            self.deaths |= self.remote.note_deaths()
        if self.deaths and not self.broken:
            self.broken = f"the ranks are gone since {self.deaths_in_words()}"

    def deaths_in_words(self) -> str:
        """Who died, and how."""
        return "; ".join(f"rank {rank}: {self.death_of(rank)}" for rank in sorted(self.deaths))

    def death_of(self, rank: int) -> str:
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

    # -- before and after a cell ---------------------------------------------------------------

    def clear(self, chosen: Sequence[int]) -> dict[int, int]:
        """Forget the last cell's failure and report; where each rank's log begins for this one."""
        starts = {}
        try:
            if self.remote is not None:  # first there: what is on its way still belongs to the last cell
                self.remote.clear(chosen, ANSWER_SECONDS)
            for rank in chosen:
                rank_folder.clear(self.rank_dir(rank))
                starts[rank] = (self.rank_dir(rank) / rank_folder.LOG).stat().st_size
        except FileNotFoundError as error:
            self.broken = f"somebody removed {error.filename}, which a rank writes to"
            self.end_processes()
            raise RankFailed(f"{self.broken}. `%ranks restart` starts new ranks.") from None
        return starts

    def pass_values(self, variables: Mapping[str, Any] | None) -> str:
        """Lay values where the ranks find them; returns the code by which a rank takes them."""
        if not variables:
            return ""
        name, data = rank_folder.PASSED, pickled(variables)
        (self.directory / name).write_bytes(data)
        if self.remote is not None:
            self.remote.pass_file(name, data, ANSWER_SECONDS)
        return f"__workshop__.receive({name!r}, globals());"

    def fetch(self, exchange: Exchange) -> None:
        """Have all that the ranks of other nodes have written, here, now that their cell is over."""
        if self.remote is not None:
            self.remote.sync([channel.rank for channel in exchange.channels], ANSWER_SECONDS)

    # -- their process group -------------------------------------------------------------------

    def meeting(self) -> str:
        """The name under which the ranks of this generation meet."""
        return f"store_{self.generation}"

    def states(self) -> dict[int, GroupState | str]:
        """Each rank's process group; a sentence of one that could not say."""
        return self._ask_each("state()")

    def join(self) -> dict[int, GroupState | str]:
        """All ranks make their first group."""
        self.generation += 1
        return self._ask_each(f"join({self.meeting()!r})")

    def join_anew(self) -> dict[int, GroupState | str]:
        """All ranks leave their group and make a new one."""
        left = self.directory / self.meeting()
        self.generation += 1
        answers = self._ask_each(f"heal({self.meeting()!r}, globals())")
        if not any(isinstance(answer, str) for answer in answers.values()):
            left.unlink(missing_ok=True)  # where the ranks met before; on several nodes that was no file
        return answers

    def _ask_each(self, call: str) -> dict[int, GroupState | str]:
        exchange = Exchange(self.channels)
        exchange.ask("", silent=True, expressions={"answer": f"__workshop__.{call}"})
        deadline = time.monotonic() + ANSWER_SECONDS
        while exchange.waiting() and time.monotonic() < deadline:
            exchange.pump(0.5)
            if any(answer["status"] == "error" for answer in exchange.expressions("answer").values()):
                deadline = min(deadline, time.monotonic() + REFUSED_SECONDS)
        answers: dict[int, GroupState | str] = {}
        for rank in (channel.rank for channel in self.channels):
            answer = exchange.expressions("answer").get(rank, {"status": "none", "evalue": "no answer"})
            if answer["status"] == "ok":
                answers[rank] = from_json(GroupState, ast.literal_eval(answer["data"]["text/plain"]))
            else:
                answers[rank] = f"rank {rank}: {answer['evalue']}"
        return answers

    def close_meeting(self) -> None:
        """A rank may wait in the store (for a group that the others never make): let its next look fail.

        The store's file becomes a link to itself, which nobody can open. The next group has a new file.
        """
        if self.remote is not None:
            self.remote.relay.close_store(f"{self.meeting()}/")
            return
        path = self.directory / self.meeting()
        loop = path.with_suffix(".closed")
        loop.symlink_to(path.name)
        loop.replace(path)

    def cut(self) -> None:
        """Have the cutting threads of all ranks cut their group, on all nodes at once."""
        here = [self.rank_dir(rank) for rank in self.local]
        if self.remote is None:
            ask_to_cut(self.directory, here)
            return
        there = threading.Thread(target=self.remote.cut, args=(2 * ANSWER_TO_CUT_SECONDS,))
        there.start()
        ask_to_cut(self.directory, here)
        there.join()

    # -- their processes -----------------------------------------------------------------------

    def signal(self, which: Iterable[int], *numbers: int) -> None:
        """Signal these ranks, by process number and start time; it has arrived when this returns."""
        which = list(which)
        for rank in which:
            for number in numbers:
                self.processes[rank].signal(number)
        if self.remote is not None:
            self.remote.settle(which, ARRIVAL_SECONDS)

    def interrupt(self) -> None:
        """KeyboardInterrupt in every rank that runs learner's code now."""
        for process in self.processes.values():
            process.signal(signal.SIGINT)

    def end_processes(self) -> None:
        """End what is left of the ranks and what they started."""
        if self.remote is not None:
            self.remote.stop_ranks()
        if self.session.usable():
            stopping = self.session.send(StopRanks(self.number))
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if any(isinstance(event, Clean) for event in self.session.events(stopping, 0.2)):
                    break
            self.session.forget(stopping)

    def close(self) -> None:
        """End the ranks and remove their directory; the programs on other nodes stay. Safe to call twice."""
        for channel in self.channels:
            channel.close()
        self.context.destroy(linger=0)
        self.broken = self.broken or "the ranks were stopped"
        self.end_processes()
        self.device.release()
        self.session.forget(self.number)
        shutil.rmtree(self.directory, ignore_errors=True)

    def leave_nodes(self) -> None:
        """End the programs on other nodes, and with them everything there."""
        if self.remote is not None:
            self.remote.close()
            self.remote = None
