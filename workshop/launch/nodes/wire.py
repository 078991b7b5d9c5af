"""The one connection between a notebook and each further node: encrypted, and closed to everyone else.

Who can connect, and why
------------------------
CurveZMQ (https://rfc.zeromq.org/spec/26/) gives each end a pair of keys. A message is encrypted and signed
with the sender's secret key and the receiver's public one, over keys that are made new for each connection,
so that recorded bytes mean nothing on another. Here

* every group of ranks makes new pairs. A secret key never leaves the process that made it: it is on no
  command line, in no environment and in no file. Only public keys are exchanged, over the pipes of the
  starter (`srun`'s stdin and stdout; Slurm has checked whose they are);
* the notebook listens, on the address of the ranks' network alone, and accepts **one** public key for each
  node. `Gate` asks for it in every handshake (https://rfc.zeromq.org/spec/27/); who has another key or none
  never gets a message through. The node in turn knows the notebook by its key;
* what travels is JSON, bytes of files, and Jupyter's messages, which are signed once more from end to end
  (`channels`). Nothing is unpickled before it has come through this gate;
* a socket that listens but hears nobody it knows costs nothing: an intruder is not answered, and the work
  goes on.

What this does not cover: the collectives themselves. gloo and NCCL open connections of their own, on the
same network, without keys, and what they carry is not encrypted. While a group is being made, who is on
that network can break it, or get between its ranks. Once it is made, gloo's listening sockets let nobody in
any more (`child/cut.py`; not where a hardened kernel lets root alone filter a socket). Where the ranks find
one another is covered always: their store (`node_store`) is reached through this connection. So: a network
that only the job's nodes are on, as a centre gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils import z85

from workshop.launch.messages import parsed, to_json
from workshop.launch.nodes.messages import Message

HEARTBEAT_MS = 500
SILENCE_SECONDS = 3.0  # a node or a notebook of which nothing is heard for so long is gone
# A node connects once: a notebook that is busy for a moment must not have hung up meanwhile. An intruder who
# says nothing costs a descriptor for so long.
HANDSHAKE_MS = 30_000
_MOST_WAITING = 64  # messages (at most 256 KiB each) on their way before the sender has to wait
_ZAP = "inproc://zeromq.zap.01"


class Gate:
    """Answers ZeroMQ's question, at each handshake, whether this key may come in."""

    def __init__(self, context: zmq.Context):
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(_ZAP)
        self.allowed: dict[bytes, bytes] = {}  # a node's domain -> the only public key that may enter
        self.refused = 0

    def answer(self) -> None:
        """Answer every question that is waiting."""
        while self.socket.poll(0):
            asker, empty, _version, request, domain, _from, _identity, mechanism, *key = (
                self.socket.recv_multipart()
            )
            known = self.allowed.get(domain)
            welcome = mechanism == b"CURVE" and known is not None and key == [z85.decode(known)]
            self.refused += not welcome
            status = [b"200", b"welcome"] if welcome else [b"400", b"this key is not known here"]
            self.socket.send_multipart([asker, empty, b"1.0", request, *status, b"", b""])

    def close(self) -> None:
        """Give the socket back."""
        self.socket.close()


def listening(context: zmq.Context, address: str, secret: bytes, domain: bytes) -> tuple[zmq.Socket, str]:
    """A socket for one node on a free port of ``address``, and its endpoint; see `Gate` for who may enter."""
    link = context.socket(zmq.DEALER)
    link.linger = 0
    link.curve_server = True
    link.curve_secretkey = secret
    link.zap_domain = domain
    link.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a gate nobody comes in
    link.handshake_ivl = HANDSHAKE_MS
    link.sndhwm = link.rcvhwm = 0  # commands are few and small; the node holds its own output back
    _watch_the_line(link)
    port = link.bind_to_random_port(f"tcp://{address}")
    return link, f"tcp://{address}:{port}"


def connected(
    context: zmq.Context, endpoint: str, server_key: bytes, keys: tuple[bytes, bytes]
) -> zmq.Socket:
    """The node's end. It connects once: a line that broke means that the group is over."""
    link = context.socket(zmq.DEALER)
    link.linger = 1000
    link.curve_publickey, link.curve_secretkey = keys
    link.curve_serverkey = server_key
    link.reconnect_ivl = -1
    link.sndhwm = _MOST_WAITING
    link.sndtimeo = int(SILENCE_SECONDS * 1000)
    _watch_the_line(link)
    link.connect(endpoint)
    return link


def _watch_the_line(link: zmq.Socket) -> None:
    """ZeroMQ's own thread asks and answers "are you there", also while Python is busy."""
    link.heartbeat_ivl = HEARTBEAT_MS
    link.heartbeat_timeout = link.heartbeat_ttl = int(SILENCE_SECONDS * 1000)


def send(link: zmq.Socket, message: Message, *frames: bytes) -> None:
    """One message (`nodes.messages`), and frames of bytes beside it."""
    link.send_multipart([type(message).__name__.encode(), to_json(message).encode(), *frames])


def receive(link: zmq.Socket, known: Mapping[str, type]) -> tuple[Any, list[bytes]]:
    """The next message, which must be there, and its frames; ValueError for one that is not ``known``."""
    parts = link.recv_multipart(zmq.NOBLOCK)
    if len(parts) < 2:
        raise ValueError(f"a message of {len(parts)} parts; it has a name and its fields")
    return parsed(parts[0], parts[1], known), parts[2:]
