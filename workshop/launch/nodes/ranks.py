"""Ranks on further nodes, as `Ranks` sees them: start, signal, cut, clear, and who is gone.

    nodes = StayingNodes(Srun(("node2",)), address="10.0.0.1", interface="ib0")
    ranks = Ranks(4, nodes=nodes)        # four on this node, four on node2: eight in one group

Every node has the same number of ranks, as under torchrun, and this one has the first.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.launch.nodes import network as node_network
from workshop.launch.nodes import start as node_start
from workshop.launch.nodes.files import Mirror
from workshop.launch.nodes.links import Link, NodeLost, Relay, connection_file
from workshop.launch.session import EngineError
from workshop.launch.staying.channels import Channel

ANSWER_SECONDS = 30.0
READY_SECONDS = 90.0


@dataclass(frozen=True)
class StayingNodes:
    """Which nodes, how a program is started there, and over which network the ranks talk.

    starter: `nodes.start.Srun`, `nodes.start.Commands`, or whatever answers like them.
    interface: the network's name on every node, as in the site's file; "" takes, on each node, the one that
        leads to the notebook, and needs ``address``.
    address: the notebook's IPv4 address on it; "" looks it up by ``interface``.
    here: does the notebook's own node have ranks too? Not where that is a login node.
    """

    starter: node_start.Starter
    interface: str = ""
    address: str = ""
    here: bool = True
    python: str = ""

    @property
    def count(self) -> int:
        """How many nodes have ranks."""
        return len(self.starter.names) + self.here

    def own_address(self) -> str:
        """The address on which the notebook listens for its nodes; ValueError where none can be told."""
        if self.address:
            return self.address
        if self.interface:
            return node_network.address_of(self.interface)
        try:
            return socket.gethostbyname(node_start.this_node())
        except OSError:
            raise ValueError(
                f"the address of {node_start.this_node()} is not known; name the network of the ranks as "
                "`interface` in the site's file, or with --interface"
            ) from None

    def own_interface(self) -> str:
        """The network's name on the notebook's node."""
        address = self.own_address()
        found = node_network.interfaces()
        if self.interface:
            return self.interface
        return next((name for name, own in found.items() if own == address), "lo")

    def environment(self) -> dict[str, str]:
        """What keeps the collectives of the notebook's node on that network."""
        return node_network.collectives_on(self.own_interface())


def nodes_of_this_allocation(count: int, interface: str = "", python: str = "") -> StayingNodes | None:
    """``count`` nodes of the Slurm allocation that this process is in, its own first; None for one node.

    On a login node, which is in no allocation's list, all ranks are on the others. Raises ValueError where
    there is no allocation, or one of fewer nodes.
    """
    if count < 1:
        raise ValueError(f"--nnodes {count}: at least one")
    if count == 1:
        return None
    names = node_start.allocated_nodes()
    if count > len(names):
        raise ValueError(f"--nnodes {count}: this allocation has {len(names)} nodes ({', '.join(names)})")
    own = node_start.this_node()
    others = [name for name in names if name != own]
    here = own in names
    return StayingNodes(node_start.Srun(tuple(others[: count - here])), interface, here=here, python=python)


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
        self.nodes.relay.tell(self.link, "signal", rank=self.rank, number=int(number))
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
        program = node_start.program(self.plan.python)
        address = self.plan.own_address()
        for number, name in enumerate(self.plan.starter.names):
            command = self.plan.starter.command(number, program)
            log = self.directory / f"node_{number}.log"
            self._processes.append(node_start.NodeProcess(name, command, log))
        links = []
        for process in self._processes:
            links.append(self.relay.open(process, address, process.hear_key()["key"].encode()))
        self.relay.start()
        for link in links:
            key = self.relay.keys[0].decode()
            link.process.tell(endpoint=link.endpoint, key=key, interface=self.plan.interface)

    def wait_ready(self) -> None:
        """Until every node has its engine up; EngineError names the one that has not."""
        deadline = time.monotonic() + READY_SECONDS
        for link in self.relay.links:
            _result(link.ready, max(0.1, deadline - time.monotonic()), link)
            began = time.monotonic()
            theirs = _result(self.relay.ask(link, "clock"), ANSWER_SECONDS, link)["now"]
            link.clock_ahead = (began + time.monotonic()) / 2 - theirs

    @property
    def store_path(self) -> str:
        """Where the ranks of the notebook's own node find the store."""
        return str(self.directory / "store")

    def gpus(self) -> list[int]:
        """GPUs of each further node."""
        return [link.gpus for link in self.relay.links]

    def start(
        self, directory: Path, first: int, n: int, spec: Mapping[str, Any], environment: Mapping[str, str]
    ) -> dict[int, RemoteProcess]:
        """Start ``n`` ranks on each node, numbered from ``first``; ``directory`` mirrors their files."""
        self.ranks, self.deaths = {}, {}
        asked: list[tuple[Link, Future[dict[str, Any]]]] = []
        common = {"n": n, "cwd": str(Path.cwd()), "spec": dict(spec), "env": dict(environment)}
        for number, link in enumerate(self.relay.links):
            link.deaths.clear()
            mine = range(first + number * n, first + (number + 1) * n)
            link.mirrors.clear()
            for rank in mine:
                mirror = Mirror(directory / f"rank_{rank}", link.clock_ahead)
                self._ends[rank] = self.relay.carry(link, rank, mirror)
                self.ranks[rank] = link
            asked.append((link, self.relay.ask(link, "start", first=mine.start, **common)))
        processes = {}
        for link, future in asked:
            answer = _result(future, ANSWER_SECONDS, link)
            for rank, pid in answer["pids"].items():
                connection_file(directory, int(rank), self._ends[int(rank)], answer["key"])
                processes[int(rank)] = RemoteProcess(self, link, int(rank), pid)
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

    def each(self, kind: str, ranks: Iterable[int], *frames: bytes, patience: float, **header: Any) -> None:
        """Ask the nodes of these ranks and wait for their answers, as far as they come in time.

        Raises FileNotFoundError where a node answers that a file is gone.
        """
        wanted = set(ranks)
        asked = []
        for link in self.relay.links:
            mine = sorted(rank for rank, its in self.ranks.items() if its is link and rank in wanted)
            if mine:
                asked.append(self.relay.ask(link, kind, *frames, ranks=mine, **header))
        deadline = time.monotonic() + patience
        for future in asked:
            try:
                answer = future.result(max(0.0, deadline - time.monotonic()))
            except (NodeLost, FutureTimeout):  # `note_deaths` tells of the one, the cell's end of the other
                continue
            if answer.get("error"):
                raise FileNotFoundError(2, "removed", answer["error"])

    def stop_ranks(self) -> None:
        """End the ranks on every node; the nodes' programs stay."""
        self.each("stop", self.ranks, patience=5.0)

    def close(self) -> None:
        """End the nodes' programs, and everything below them."""
        self.relay.close()
        for process in self._processes:
            process.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _result(future: Future[Any], seconds: float, link: Link) -> Any:
    try:
        answer = future.result(seconds)
    except NodeLost as error:
        raise EngineError(str(error)) from None
    except FutureTimeout:
        raise EngineError(
            f"node {link.name} gave no answer in {seconds:.0f} s. {link.process.last_words()}"
        ) from None
    if answer and answer.get("error"):
        raise EngineError(f"node {link.name}: the ranks could not be started: {answer['error']}")
    return answer
