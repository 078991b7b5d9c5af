"""The notebook's ends of the connections to its nodes, and the thread that looks after them.

ZeroMQ's sockets belong to one thread. `Relay` is that thread: it accepts the nodes, hands Jupyter's
messages to and fro, writes the ranks' files down (`nodes.files.Mirror`), answers the ranks' store, and
notices when a node is gone. The notebook's own thread gives it commands and gets a `Future` for each
answer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from workshop.launch.messages import RankDied
from workshop.launch.nodes import messages
from workshop.launch.nodes import wire as node_wire
from workshop.launch.nodes.files import Mirror
from workshop.launch.nodes.messages import Question, Reply, ToNode, ToNotebook
from workshop.launch.nodes.start import NodeProcess
from workshop.launch.nodes.store import StoreServer
from workshop.launch.session import EngineError

_COMMANDS = "inproc://commands"
_POLL_MS = 100


class Link:
    """One node: its program, its connection, and what is known of it."""

    def __init__(self, process: NodeProcess, socket: zmq.Socket, endpoint: str):
        self.process = process
        self.name = process.name
        self.socket = socket
        self.endpoint = endpoint
        self.host = ""
        self.gpus = 0
        self.ready: Future[None] = Future()
        self.heard_at = time.monotonic()
        self.lost = ""  # why the node is gone, once it is
        self.answers: dict[int, Future[Reply]] = {}
        self.mirrors: dict[int, Mirror] = {}
        self.shells: dict[int, zmq.Socket] = {}
        self.iopubs: dict[int, zmq.Socket] = {}
        self.deaths: deque[tuple[int, int | None]] = deque()
        self.clock_ahead = 0.0

    def lose(self, why: str) -> None:
        """The node is gone: whoever waits for it hears so."""
        self.lost = self.lost or why
        waiting, self.answers = list(self.answers.values()), {}
        for future in waiting:
            future.set_exception(NodeLost(f"node {self.name} is gone: {self.lost}"))
        if not self.ready.done():
            self.ready.set_exception(NodeLost(f"node {self.name} is gone: {self.lost}"))


class NodeLost(RuntimeError):
    """A node ended, or the network to it broke."""


class Relay:
    """See the module's docstring. ``store_path``: where this node's own ranks find their store."""

    def __init__(self, store_path: Path):
        self.context = zmq.Context()
        self.gate = node_wire.Gate(self.context)
        self.keys = zmq.curve_keypair()
        self.store_server = StoreServer()
        self.links: list[Link] = []
        self._numbers = itertools.count(1)
        self._store = self.context.socket(zmq.ROUTER)
        self._store.linger = 0
        self._store.bind(f"ipc://{store_path}")
        self._taking = self.context.socket(zmq.PULL)
        self._taking.bind(_COMMANDS)
        self._giving = self.context.socket(zmq.PUSH)
        self._giving.connect(_COMMANDS)
        self._lock = threading.Lock()
        self._queue: deque[Any] = deque()
        self._leaving = self._over = False
        self._thread = threading.Thread(target=self._serve, name="workshop-nodes", daemon=True)

    def open(self, process: NodeProcess, address: str, key: bytes) -> Link:
        """A listening socket for one node, which alone has ``key``'s secret half. Before `start`."""
        domain = f"node{len(self.links)}".encode()
        self.gate.allowed[domain] = key
        link = Link(process, *node_wire.listening(self.context, address, self.keys[1], domain))
        self.links.append(link)
        return link

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    # -- for the notebook's threads -----------------------------------------------------------

    def _do(self, act: Any) -> None:
        """Have the relay's thread call ``act``."""
        with self._lock:
            if self._over:
                raise EngineError(
                    "the connections to the other nodes are closed: `%ranks stop` and start again"
                )
            self._queue.append(act)
            self._giving.send(b"")

    def tell(self, link: Link, message: ToNode) -> None:
        """A message that has no answer."""
        self._do(lambda: node_wire.send(link.socket, message))

    def ask(self, link: Link, question: Question, *frames: bytes) -> Future[Reply]:
        """A message with an answer; the future raises `NodeLost` when the node goes first."""
        future: Future[Reply] = Future()
        number = next(self._numbers)

        def act() -> None:
            if link.lost:
                future.set_exception(NodeLost(f"node {link.name} is gone: {link.lost}"))
                return
            link.answers[number] = future
            node_wire.send(link.socket, replace(question, id=number), *frames)

        self._do(act)
        return future

    def carry(self, link: Link, rank: int, mirror: Mirror) -> str:
        """Give a rank of that node its ends and files here; the name under which the ends are found."""
        name = f"r{rank}-{next(self._numbers)}"
        done = threading.Event()

        def act() -> None:
            self._drop(link, rank)
            link.mirrors[rank] = mirror
            link.shells[rank] = self._bound(zmq.DEALER, f"inproc://{name}-1")
            link.iopubs[rank] = self._bound(zmq.PUB, f"inproc://{name}-2")
            done.set()

        self._do(act)
        done.wait(10)
        return name

    def _bound(self, kind: int, address: str) -> zmq.Socket:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.bind(address)
        return socket

    @staticmethod
    def _drop(link: Link, rank: int) -> None:
        for ends in (link.shells, link.iopubs):
            if rank in ends:
                ends.pop(rank).close()

    def close_store(self, prefix: str) -> None:
        """Nobody shall wait any more for a group that the others never make."""
        self._do(lambda: self.store_server.close(prefix))

    def close(self) -> None:
        """Say good-bye to every node and end the thread."""

        def act() -> None:
            for link in self.links:
                if not link.lost:
                    node_wire.send(link.socket, messages.Leave())
            self._leaving = True

        if self._thread.ident is None:  # never started: the sockets are still this thread's
            self._giving.close()
            self.context.destroy(linger=0)
            return
        with contextlib.suppress(EngineError):  # closed already
            self._do(act)
        self._thread.join(5)

    # -- the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._leaving:
                ready = dict(self._poller().poll(_POLL_MS))
                self.gate.answer()
                if self._taking in ready:
                    self._obey()
                for link in self.links:
                    self._hear(link, ready)
                while self._store.poll(0):
                    self._ask_store_here(*self._store.recv_multipart())
                self.store_server.look()
        except zmq.ZMQError:
            logging.getLogger(__name__).exception("the relay to the nodes stopped")
        finally:
            with self._lock:
                self._over = True
            for link in self.links:
                link.lose("the notebook has closed its connections")
            time.sleep(0.05)  # the good-byes leave by ZeroMQ's own thread
            self._giving.close()
            self.context.destroy(linger=100)

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        for one in (self.gate.socket, self._taking, self._store):
            poller.register(one, zmq.POLLIN)
        for link in self.links:
            poller.register(link.socket, zmq.POLLIN)
            for shell in link.shells.values():
                poller.register(shell, zmq.POLLIN)
        return poller

    def _obey(self) -> None:
        while self._taking.poll(0):
            self._taking.recv()
            self._queue.popleft()()

    def _hear(self, link: Link, ready: dict[Any, int]) -> None:
        for rank, shell in link.shells.items():
            while shell in ready and shell.poll(0):
                node_wire.send(link.socket, messages.Shell(rank), *shell.recv_multipart())
        while link.socket.poll(0):
            link.heard_at = time.monotonic()
            try:
                self._take(link, *node_wire.receive(link.socket, messages.TO_NOTEBOOK))
            except (ValueError, OSError) as error:
                link.lose(f"what it sent could not be used ({type(error).__name__}: {error})")
        if link.lost:
            return
        if link.process.ended():
            link.lose(f"its program has ended. {link.process.last_words()}")
        elif link.ready.done() and time.monotonic() - link.heard_at > node_wire.SILENCE_SECONDS:
            seconds = f"{node_wire.SILENCE_SECONDS:g} s"
            link.lose(
                f"nothing was heard of it for {seconds} (the network to it is cut, or the node is down)"
            )

    def _ask_store_here(self, identity: bytes, *question: bytes) -> None:
        """A rank of this node asks. What is no question gets no answer: the relay serves the others on."""

        def reply(frames: list[bytes]) -> None:
            self._store.send_multipart([identity, *frames])

        try:
            self.store_server.ask(list(question), reply)
        except ValueError as error:
            logging.getLogger(__name__).warning("a rank's question to the store was dropped: %s", error)

    def _take(self, link: Link, message: ToNotebook, frames: list[bytes]) -> None:
        """What a node has said. Ranks of a group that is over are nobody's: what they say late is dropped."""
        match message:
            case messages.Ready(gpus, host):
                link.gpus, link.host = gpus, host
                link.ready.set_result(None)
            case messages.Alive():  # it was heard; there is no more to it
                pass
            case messages.Answer(id=number) | messages.Time(id=number) | messages.Started(id=number):
                if number in link.answers:
                    link.answers.pop(number).set_result(message)
            case RankDied(rank=rank, exit_code=exit_code):
                link.deaths.append((rank, exit_code))
            case messages.Store():
                self._ask_store(link, frames)
            case messages.File() | messages.Shell() | messages.Iopub():
                self._hand_on(link, message, frames)

    @staticmethod
    def _hand_on(
        link: Link, message: messages.File | messages.Shell | messages.Iopub, frames: list[bytes]
    ) -> None:
        rank = message.rank
        if isinstance(message, messages.File):
            if rank in link.mirrors:
                link.mirrors[rank].take(message.name, b"".join(frames))
            return
        ends = link.shells if isinstance(message, messages.Shell) else link.iopubs
        if rank in ends:
            ends[rank].send_multipart(frames, zmq.NOBLOCK)

    def _ask_store(self, link: Link, frames: list[bytes]) -> None:
        identity, *question = frames
        self.store_server.ask(
            question, lambda reply: node_wire.send(link.socket, messages.Store(), identity, *reply)
        )


def connection_file(directory: Path, rank: int, name: str, key: str) -> None:
    """The notebook's connection file of a rank elsewhere: its ends are in this process (`Relay.carry`)."""
    path = directory / f"connection_{rank}.json"
    path.touch(0o600)
    content = {"transport": "inproc", "ip": name, "key": key, "shell_port": 1, "iopub_port": 2}
    path.write_text(json.dumps({**content, "signature_scheme": "hmac-sha256"}))
