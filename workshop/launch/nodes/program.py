"""The program on a further node: it starts the ranks there and stands in for the notebook beside them.

To the ranks it is what the notebook is on its own node: it holds a `Session` with a supervisor and a
private directory, talks to each kernel over Unix sockets, sends signals by process number and start time,
asks for cuts, and reads the ranks' files. To the notebook it is one encrypted connection (`nodes.wire`) on
which all of that travels.

It ends, and every rank with it, when its stdin ends (the starter has gone), when the connection breaks or
falls silent for three seconds (a pulled cable, a notebook that was killed), or when it is told to.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from workshop import __version__
from workshop.launch import rank_folder, stack_dumps
from workshop.launch.messages import (
    Clean,
    RankDied,
    RanksFailed,
    RanksStarted,
    StartRanks,
    StopRanks,
    from_json,
    to_json,
)
from workshop.launch.nodes import messages
from workshop.launch.nodes import wire as node_wire
from workshop.launch.nodes.files import Tail
from workshop.launch.nodes.start import MARK
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError, Session
from workshop.launch.staying.channels import Channel, ask_to_cut, write_connection_files
from workshop.site.current import rank_environment
from workshop.site.interfaces import chosen, collectives_on

POLL_MS = 20
_LEAVE = "the notebook is gone"


class NodeGroup:
    """The ranks of one group on this node."""

    def __init__(self, node: NodeProgram, request: messages.Start):
        self.session = node.session
        wanted = request.ranks
        self.first = wanted.first
        self.ranks = range(wanted.first, wanted.first + wanted.n)
        self.directory = self.session.directory / f"k{time.monotonic_ns() % 10**9}"
        self.directory.mkdir()
        files = write_connection_files(self.directory, wanted.n)
        self.key = json.loads(Path(files[0]).read_text())["key"]
        network = collectives_on(node.interface, node.notebook)
        ours = rank_environment(os.environ, one_node=False, ranks=wanted.n)
        own_path = [path for path in sys.path if path] if request.own_path else []
        here = replace(
            wanted,
            cwd=wanted.cwd if Path(wanted.cwd).is_dir() else str(Path.home()),
            sys_path=(*wanted.sys_path, *own_path),
            env={**ours, **network, **wanted.env},
        )
        self.number = self.session.send(
            StartRanks(here, str(self.directory), tuple(files), str(node.store_path))
        )
        self.channels = [
            Channel(node.context, path, rank) for path, rank in zip(files, self.ranks, strict=True)
        ]
        self.tails = {rank: Tail(self.rank_dir(rank)) for rank in self.ranks}
        self.processes: dict[int, ProcessId] = {}

    def rank_dir(self, rank: int) -> Path:
        """Logs, stacks and reports of one rank."""
        return rank_folder.of_rank(self.directory, rank)

    def take_pids(self, pids: Mapping[int, int]) -> None:
        """Note the ranks' processes by number and start time."""
        started = {rank: ProcessId.of(pid) for rank, pid in pids.items()}
        self.processes = {rank: process for rank, process in started.items() if process}

    def do(
        self, message: messages.Shell | messages.Signal | messages.Pass | messages.Cut, frames: list[bytes]
    ) -> None:
        """What is said to the ranks."""
        match message:
            case messages.Shell(rank):
                self.channels[rank - self.first].shell.send_multipart(frames)
            case messages.Signal(rank, number):
                process = self.processes.get(rank)
                if process and (number != stack_dumps.ASK_IN_C or stack_dumps.is_in_c(process.pid)):
                    process.signal(number)
            case messages.Pass(name):
                (self.directory / Path(name).name).write_bytes(b"".join(frames))
            case messages.Cut():
                ask_to_cut(self.directory, [self.rank_dir(rank) for rank in self.ranks])

    def close(self) -> None:
        """End the ranks."""
        for channel in self.channels:
            channel.close()
        self.session.forget(self.number)


class NodeProgram:
    """See the module's docstring."""

    def __init__(self, keys: tuple[bytes, bytes], invitation: messages.Invitation):
        self.context = zmq.Context()
        server_key = invitation.key.encode()
        self.link = node_wire.connected(self.context, invitation.endpoint, server_key, keys)
        self.monitor = self.link.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self.notebook = invitation.endpoint.removeprefix("tcp://").rpartition(":")[0]
        self.interface = invitation.interface
        chosen(self.interface, self.notebook)  # says at once, and by name, when there is no such network
        self.session = Session.get()
        self.session.wait_ready()
        self.store_path = self.session.directory / "store"
        self.store = self.context.socket(zmq.ROUTER)
        self.store.linger = 0
        self.store.bind(f"ipc://{self.store_path}")
        self.group: NodeGroup | None = None
        self.starting: int | None = None
        self.stopping: dict[int, int] = {}  # number of the session's command -> number of the notebook's

    def serve(self) -> str:
        """Until there is a reason to end; returns it."""
        node_wire.send(self.link, messages.Ready(self.session.gpus, socket.gethostname()))
        beat = 0.0
        while True:
            poller = self._poller()
            ready = dict(poller.poll(POLL_MS))
            if 0 in ready or self.monitor in ready:
                return _LEAVE
            if time.monotonic() - beat > node_wire.HEARTBEAT_MS / 1000:
                beat = time.monotonic()
                node_wire.send(self.link, messages.Alive())
            while self.link.poll(0):
                message, frames = node_wire.receive(self.link, messages.TO_NODE)
                if isinstance(message, messages.Leave):
                    return "the notebook said so"
                self._do(message, frames)
            while self.store.poll(0):
                node_wire.send(self.link, messages.Store(), *self.store.recv_multipart())
            self._from_ranks(ready)
            self._from_session()

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        for one in (self.link, self.monitor, self.store):
            poller.register(one, zmq.POLLIN)
        poller.register(0, zmq.POLLIN | zmq.POLLERR)
        poller.register(self.session.descriptor(), zmq.POLLIN)
        for channel in self.group.channels if self.group else ():
            poller.register(channel.shell, zmq.POLLIN)
            poller.register(channel.iopub, zmq.POLLIN)
        return poller

    # -- what the ranks say -------------------------------------------------------------------

    def _from_ranks(self, ready: dict[Any, int]) -> None:
        if self.group is None:
            return
        for rank, tail in self.group.tails.items():
            for name, block in tail.news():
                node_wire.send(self.link, messages.File(rank, name), block)
        for channel in self.group.channels:
            for kind, end in ((messages.Iopub, channel.iopub), (messages.Shell, channel.shell)):
                while end in ready and end.poll(0):
                    node_wire.send(self.link, kind(channel.rank), *end.recv_multipart())

    def _from_session(self) -> None:
        for number in list(self.stopping):
            if any(isinstance(event, Clean) for event in self.session.events(number)):
                self.session.forget(number)
                self._answer(self.stopping.pop(number))
        if self.group is None:
            return
        for event in self.session.events(self.group.number):
            if isinstance(event, RankDied):
                self._send_files(event.rank)
                node_wire.send(self.link, event)
            elif self.starting is not None and isinstance(event, RanksStarted):
                self.group.take_pids(event.pids)
                node_wire.send(self.link, messages.Started(self.starting, event.pids, self.group.key))
                self.starting = None
            elif self.starting is not None and isinstance(event, RanksFailed):
                self._answer(self.starting, event.why)
                self.starting = None

    def _send_files(self, rank: int) -> None:
        if self.group is not None:
            for name, block in self.group.tails[rank].all_news():
                node_wire.send(self.link, messages.File(rank, name), block)

    def _answer(self, number: int, error: str = "") -> None:
        node_wire.send(self.link, messages.Answer(number, error))

    # -- what the notebook says ---------------------------------------------------------------

    def _do(self, message: messages.ToNode, frames: list[bytes]) -> None:
        """Deal with one message."""
        match message:
            case messages.Store():
                self.store.send_multipart(frames)
            case messages.Clock(number):
                node_wire.send(self.link, messages.Time(number, time.monotonic()))
            case messages.Start():
                self._start(message)
            case messages.Stop(number):
                self._stop(number)
            case messages.Sync(ranks, number):
                for rank in ranks:
                    self._send_files(rank)
                self._answer(number)
            case messages.Clear(ranks, number):
                self._answer(number, self._clear(ranks))
            case messages.Shell() | messages.Signal() | messages.Pass() | messages.Cut():
                if self.group is not None:
                    self.group.do(message, frames)
                if isinstance(message, messages.Pass | messages.Cut):
                    self._answer(message.id)

    def _start(self, request: messages.Start) -> None:
        try:
            self.group = NodeGroup(self, request)
        except OSError as error:
            self._answer(request.id, f"cannot write to {self.session.directory} ({error.strerror})")
            return
        self.starting = request.id

    def _clear(self, ranks: tuple[int, ...]) -> str:
        """Forget the last cell of these ranks; the file that is gone, if one is."""
        if self.group is None:
            return ""
        try:
            for rank in ranks:
                self._send_files(rank)
                self.group.tails[rank].clear()
        except FileNotFoundError as error:
            return str(error.filename)
        return ""

    def _stop(self, number: int) -> None:
        if self.group is None:
            self._answer(number)
            return
        self.stopping[self.session.send(StopRanks(self.group.number))] = number
        self.group.close()
        self.group = None


def main() -> None:
    """Started by `nodes.start`: public keys over stdin and stdout, all else over the connection."""
    public, secret = zmq.curve_keypair()
    hello = messages.Hello(public.decode(), socket.gethostname(), __version__)
    print(MARK + to_json(hello), flush=True)
    line = sys.stdin.readline()
    if not line:
        return
    try:
        node = NodeProgram((public, secret), from_json(messages.Invitation, line))
    except (EngineError, ValueError) as error:
        sys.exit(f"node {socket.gethostname()}: {error}")
    try:
        node.serve()
    except (zmq.Again, EngineError) as error:  # nobody takes what we send; or our own engine has gone
        print(f"node {socket.gethostname()}: {error or _LEAVE}", file=sys.stderr)
    finally:
        node.session.close()
        node.link.disable_monitor()
        node.context.destroy(linger=0)
