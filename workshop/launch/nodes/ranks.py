"""Ranks on further nodes, as `Ranks` sees them: start, signal, cut, clear, and who is gone.

    nodes = StayingNodes(Srun(("node2",)), interface="ib0")
    ranks = Ranks(4, nodes=nodes)        # four on this node, four on node2: eight in one group

Every node has the same number of ranks, as under torchrun, and this one has the first.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from workshop.launch import rank_folder
from workshop.launch.messages import NodeRanks
from workshop.launch.nodes import messages
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.files import Mirror
from workshop.launch.nodes.links import Link, NodeLost, Relay, connection_file
from workshop.launch.session import EngineError
from workshop.launch.staying.channels import Channel
from workshop.site.apptainer_command import hidden_environment
from workshop.site.current import site_environment
from workshop.site.interfaces import address_on, address_towards, collectives_on
from workshop.site.spec import SiteSpec

ANSWER_SECONDS = 30.0
READY_SECONDS = 90.0
T = TypeVar("T")


@dataclass(frozen=True)
class StayingNodes:
    """Which nodes, how a program is started there, and over which network the ranks talk.

    starter: `nodes.start.Srun`, `nodes.start.Ssh`, or whatever answers like them.
    interface: the networks of the ranks on every node, as in the site's file; "" takes, on each node, the one
        that leads to the notebook.
    address: the notebook's IPv4 address on it; "" finds the one that leads to the nodes.
    here: does the notebook's own node have ranks too? Not where that is a login node.
    site: whose software the nodes run: its container, or its Python. None: the notebook's own, which must
        then be at the same place on every node.
    """

    starter: node_start.Starter
    interface: str = ""
    address: str = ""
    here: bool = True
    site: SiteSpec | None = None

    @property
    def count(self) -> int:
        """How many nodes have ranks."""
        return len(self.starter.names) + self.here

    def own_address(self) -> str:
        """The address on which the notebook listens for its nodes; ValueError where none can be told."""
        if self.address:
            return self.address
        if self.interface and not self.interface.startswith("^"):
            return address_on(self.interface)
        names = self.starter.names
        peer = next(filter(None, (self.starter.address(node) for node in range(len(names)))), "")
        if not peer:
            raise ValueError(
                f"no name of the other nodes ({', '.join(names)}) leads to an address from here, so nobody "
                "knows by which network they reach this notebook: name the network of the ranks as "
                "`interface` in the site's file, or with --interface"
            )
        return address_on(self.interface, peer) if self.interface else address_towards(peer)

    def environment(self) -> dict[str, str]:
        """What keeps the collectives of the notebook's node on that network."""
        return collectives_on(self.interface, self.own_address())


def nodes_of_this_allocation(
    count: int, interface: str = "", site: SiteSpec | None = None
) -> StayingNodes | None:
    """``count`` nodes of the Slurm allocation that this process is in, its own first; None for one node.

    On a login node, which is in no allocation's list, all ranks are on the others. Where the site's nodes run
    other software than this notebook (its container, another Python), the notebook's own node is one like the
    others: all ranks run in the same.

    Args:
        count: how many nodes have ranks.
        interface: the network of the ranks; "" takes the site's.
        site: the site in force.

    Raises:
        ValueError: there is no allocation, or one of fewer nodes.
    """
    if count < 1:
        raise ValueError(f"--nnodes {count}: at least one")
    if count == 1:
        return None
    site = site or SiteSpec()
    names = node_start.allocated_nodes()
    if count > len(names):
        raise ValueError(f"--nnodes {count}: this allocation has {len(names)} nodes ({', '.join(names)})")
    own = node_start.this_node()
    others = [name for name in names if name != own]
    same = node_start.runs_here(site)
    here = own in names and same
    if own in names and not same:
        others = [own, *others]
    software = site if site.container or not same else None
    starter = node_start.Srun(tuple(others[: count - here]))
    return StayingNodes(starter, interface or site.interface, here=here, site=software)


@dataclass(frozen=True)
class RemoteProcess:
    """A rank's process on another node."""

    nodes: RemoteNodes = field(repr=False)
    link: Link = field(repr=False)
    rank: int
    pid: int

    def alive(self) -> bool:
        """True until it was seen to end, or its node is gone."""
        return not self.link.lost and self.rank not in self.nodes.deaths

    def signal(self, number: int) -> bool:
        """Have its node send it a signal; False when it is gone."""
        if not self.alive():
            return False
        self.nodes.relay.tell(self.link, messages.Signal(self.rank, int(number)))
        return True


class RemoteNodes:
    """The further nodes of one group. Made once; ranks may be started on them again and again."""

    def __init__(self, plan: StayingNodes, session_directory: Path):
        self.plan = plan
        self.directory = session_directory / f"n{time.monotonic_ns() % 10**9}"
        self.directory.mkdir()
        self.relay = Relay(self.directory / "store")
        self.ranks: dict[int, Link] = {}
        self.deaths: dict[int, int | None] = {}
        self._processes: list[node_start.NodeProcess] = []
        self._ends: dict[int, str] = {}
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        """Start every node's program, exchange public keys, and let each connect."""
        site = self.plan.site
        program = node_start.program(site, str(Path.cwd()))
        hidden = hidden_environment(site, site_environment(site, one_node=False)) if site else {}
        address = self.plan.own_address()
        for number, name in enumerate(self.plan.starter.names):
            command = self.plan.starter.command(number, program)
            log = self.directory / f"node_{number}.log"
            self._processes.append(node_start.NodeProcess(name, command, log, hidden))
        links = []
        for process in self._processes:
            links.append(self.relay.open(process, address, process.hear_hello().key.encode()))
        self.relay.start()
        for link in links:
            key = self.relay.keys[0].decode()
            link.process.invite(messages.Invitation(link.endpoint, key, self.plan.interface))

    def wait_ready(self) -> None:
        """Until every node has its engine up; EngineError names the one that has not."""
        deadline = time.monotonic() + READY_SECONDS
        for link in self.relay.links:
            _result(link.ready, max(0.1, deadline - time.monotonic()), link)
            began = time.monotonic()
            theirs = _result(self.relay.ask(link, messages.Clock()), ANSWER_SECONDS, link)
            assert isinstance(theirs, messages.Time)
            link.clock_ahead = (began + time.monotonic()) / 2 - theirs.now

    @property
    def store_path(self) -> str:
        """Where the ranks of the notebook's own node find the store."""
        return str(self.directory / "store")

    def gpus(self) -> list[int]:
        """GPUs of each further node."""
        return [link.gpus for link in self.relay.links]

    def start(
        self, directory: Path, first: int, n: int, local: NodeRanks, environment: Mapping[str, str]
    ) -> dict[int, RemoteProcess]:
        """Start ``n`` ranks on each node, numbered from ``first``; ``directory`` mirrors their files.

        local: those of the notebook's own node.
        """
        self.ranks, self.deaths = {}, {}
        replies: list[tuple[Link, Future[messages.Reply]]] = []
        own_path, here = self.plan.site is not None, str(Path.cwd())
        searched = (here,) if own_path else local.sys_path
        there = replace(local, n=n, cwd=here, sys_path=searched, env=dict(environment))
        for number, link in enumerate(self.relay.links):
            link.deaths.clear()
            mine = range(first + number * n, first + (number + 1) * n)
            link.mirrors.clear()
            for rank in mine:
                mirror = Mirror(rank_folder.of_rank(directory, rank), link.clock_ahead)
                self._ends[rank] = self.relay.carry(link, rank, mirror)
                self.ranks[rank] = link
            request = messages.Start(replace(there, first=mine.start), own_path)
            replies.append((link, self.relay.ask(link, request)))
        processes = {}
        for link, future in replies:
            started = _result(future, ANSWER_SECONDS, link)
            assert isinstance(started, messages.Started)
            for rank, pid in started.pids.items():
                connection_file(directory, rank, self._ends[rank], started.key)
                processes[rank] = RemoteProcess(self, link, rank, pid)
        return processes

    def channel(self, directory: Path, rank: int) -> Channel:
        """The notebook's end of one rank's messages."""
        return Channel(self.relay.context, str(directory / f"connection_{rank}.json"), rank)

    def node_of(self, rank: int) -> str:
        """The name of the node on which a rank runs."""
        return self.ranks[rank].name

    def note_deaths(self) -> dict[int, int | None]:
        """Ranks that ended, by exit code; None for those whose whole node is gone."""
        for rank, link in self.ranks.items():
            while link.deaths:
                died, code = link.deaths.popleft()
                self.deaths[died] = code
            if link.lost:
                self.deaths.setdefault(rank, None)
        return self.deaths

    def lost(self) -> dict[str, str]:
        """Why each node that is gone is gone."""
        return {link.name: link.lost for link in self.relay.links if link.lost}

    # -- said to the nodes of some ranks -------------------------------------------------------

    def sync(self, ranks: Iterable[int], patience: float) -> None:
        """Have all that these ranks have written, here."""
        self._each(ranks, lambda mine: messages.Sync(mine), patience)

    def clear(self, ranks: Iterable[int], patience: float) -> None:
        """Forget the ranks' last cell. Raises FileNotFoundError where a file of theirs is gone."""
        self._each(ranks, lambda mine: messages.Clear(mine), patience)

    def pass_file(self, name: str, data: bytes, patience: float) -> None:
        """Write a file into the ranks' directory on every node."""
        self._each(self.ranks, lambda _mine: messages.Pass(name), patience, data)

    def cut(self, patience: float) -> None:
        """Have all ranks cut their group."""
        self._each(self.ranks, lambda _mine: messages.Cut(), patience)

    def settle(self, ranks: Iterable[int], patience: float) -> None:
        """Until all that was said to the nodes of these ranks so far, their signals too, has been done."""
        self._each(ranks, lambda _mine: messages.Clock(), patience)

    def stop_ranks(self) -> None:
        """End the ranks on every node; the nodes' programs stay."""
        self._each(self.ranks, lambda _mine: messages.Stop(), 5.0)

    def _each(
        self,
        ranks: Iterable[int],
        question: Callable[[tuple[int, ...]], messages.Question],
        patience: float,
        *frames: bytes,
    ) -> None:
        """Ask the nodes of these ranks and wait for their answers, as far as they come in time.

        Raises FileNotFoundError where a node answers that a file is gone.
        """
        wanted, replies = set(ranks), []
        for link in self.relay.links:
            mine = tuple(sorted(rank for rank, its in self.ranks.items() if its is link and rank in wanted))
            if mine:
                replies.append(self.relay.ask(link, question(mine), *frames))
        deadline = time.monotonic() + patience
        for future in replies:
            try:
                answer = future.result(max(0.0, deadline - time.monotonic()))
            except (NodeLost, FutureTimeout):  # `note_deaths` tells of the one, the cell's end of the other
                continue
            if isinstance(answer, messages.Answer) and answer.error:
                raise FileNotFoundError(2, "removed", answer.error)

    def close(self) -> None:
        """End the nodes' programs, and everything below them."""
        self.relay.close()
        for process in self._processes:
            process.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _result(future: Future[T], seconds: float, link: Link) -> T:
    try:
        answer = future.result(seconds)
    except NodeLost as error:
        raise EngineError(str(error)) from None
    except FutureTimeout:
        raise EngineError(
            f"node {link.name} gave no answer in {seconds:.0f} s. {link.process.last_words()}"
        ) from None
    if isinstance(answer, messages.Answer) and answer.error:
        raise EngineError(f"node {link.name}: the ranks could not be started: {answer.error}")
    return answer
