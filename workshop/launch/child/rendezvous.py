"""Where the ranks find one another: a store on loopback, or on the nodes' network; a fresh one an attempt.

torchrun's c10d rendezvous opens its store on every interface of the machine and keeps it through
restarts, so that a restarted gloo group meets the dead attempt's addresses (seen with torch 2.13:
0 of 6 restarts recovered). Here the agent binds 127.0.0.1 on a port that the system picks, and
hands the ranks a new store each time. The store speaks torch's own TCPStore protocol, as under
torchrun: it keeps short byte strings and unpickles nothing.

On several nodes the agents meet by torch's rendezvous, each round of which they all take part in. The first
node's agent then opens a store on the address of the ranks' network. torch counts restarts on each node by
itself: the node whose rank died counts one, the others none, and a group whose nodes disagree about their
number looks in its store under different names and waits for ever. Here the number is the round's.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from torch.distributed import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from workshop.launch import messages
from workshop.launch.fresh.nodes import Nodes
from workshop.site.interfaces import address_on, is_own

LOOPBACK = "127.0.0.1"
WORD = "workshop/word"


def store_on(address: str) -> TCPStore:
    """A TCPStore that listens on this address alone, on a free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return TCPStore(
        address, port, 1, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


class LoopbackRendezvous(RendezvousHandler):
    """One agent, one node: the rendezvous that is over before it begins."""

    def __init__(self, run_id: str):
        self._run_id = run_id
        self._closed = False
        self._stores: list[Store] = []  # an old attempt's store lives until the run ends

    def get_backend(self) -> str:
        """The name under which torch knows this rendezvous."""
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks use the store that the agent opened."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A fresh store for this attempt, with one node in it."""
        store = store_on(LOOPBACK)
        self._stores.append(store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, store.port))

    def is_closed(self) -> bool:
        """Has the agent closed it?"""
        return self._closed

    def set_closed(self) -> None:
        """No further attempt will follow."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Nobody joins a single node."""
        return 0

    def get_run_id(self) -> str:
        """The name of this launch."""
        return self._run_id

    def shutdown(self) -> bool:
        """Let go of every attempt's store."""
        self._stores.clear()
        return True


class NodesRendezvous(RendezvousHandler):
    """torch's own rendezvous, with a fresh store at each round and the same attempt number on every node."""

    def __init__(self, torchs: Any, address: str):
        self._torchs = torchs
        self._address = address
        self._rounds = 0
        self._stores: list[Store] = []
        self._met: Store | None = None
        self._gone = False
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # it would open one on every network

    def get_backend(self) -> str:
        """The name of torch's rendezvous."""
        return self._torchs.get_backend()

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks use the store that the first node's agent opened."""
        return True

    @property
    def attempt(self) -> int:
        """How many rounds there were before this one."""
        holder = getattr(self._torchs, "_state_holder", None)  # also right for an agent that joined later
        return self._rounds - 1 if holder is None else holder.state.round

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes; then a store for this round."""
        met = self._torchs.next_rendezvous()
        self._rounds += 1
        self._met = met.store
        if met.rank == 0:
            store = store_on(self._address)
            self._stores.append(store)
            met.store.set("workshop/store", f"{self._address} {store.port}")
        address, port = met.store.get("workshop/store").decode().split()
        return RendezvousInfo(met.store, met.rank, met.world_size, RendezvousStoreInfo(address, int(port)))

    def is_closed(self) -> bool:
        """Has an agent closed it?"""
        return self._torchs.is_closed()

    def set_closed(self) -> None:
        """No further attempt will follow."""
        self._torchs.set_closed()

    def num_nodes_waiting(self) -> int:
        """Nodes that want a new round: one of their ranks has failed."""
        try:
            return self._torchs.num_nodes_waiting()
        except RendezvousConnectionError as error:  # `word` says it
            logging.info("the agents' store has gone: %s", error)
            self._gone = True
            return 0

    def leave_word(self, word: messages.Elsewhere) -> messages.Elsewhere | None:
        """Tell the other nodes how this one ended; the word of one that was first, None where none was."""
        assert self._met is not None
        try:
            there = self._met.compare_set(WORD, "", messages.to_json(word)).decode()
        except RuntimeError as error:
            logging.info("no word could be left: %s", error)
            return self.word()
        return None if there == messages.to_json(word) else messages.from_json(messages.Elsewhere, there)

    def word(self) -> messages.Elsewhere | None:
        """How another node has ended, if one has said so, or has gone with the store."""
        assert self._met is not None
        try:
            if not self._gone and self._met.check([WORD]):
                return messages.from_json(messages.Elsewhere, self._met.get(WORD))
        except RuntimeError as error:
            logging.info("the agents' store has gone: %s", error)
            self._gone = True
        return messages.Elsewhere("gone") if self._gone else None

    def get_run_id(self) -> str:
        """The name of this launch."""
        return self._torchs.get_run_id()

    def shutdown(self) -> bool:
        """Leave, and let go of every attempt's store."""
        self._stores.clear()
        torchs, self._torchs = self._torchs, None
        return torchs.shutdown() if torchs is not None else True


def address_of(nodes: Nodes) -> str:
    """This node's address on the ranks' network."""
    return address_on(nodes.interface, nodes.endpoint.rpartition(":")[0])


def rendezvous_of(request: messages.Launch) -> RendezvousHandler:
    """Where the agent of this launch meets those of its other nodes, if it has any."""
    nodes = request.nodes
    if not nodes:
        return LoopbackRendezvous(request.run_id)
    address = address_of(nodes)

    def meet(**more: Any) -> RendezvousHandler:
        return rendezvous_registry.get_rendezvous_handler(
            RendezvousParameters(
                backend=nodes.backend,
                endpoint=nodes.endpoint,
                run_id=nodes.run_id,
                min_nodes=nodes.count,
                max_nodes=nodes.count,
                timeout=nodes.timeout,
                local_addr=address,
                **more,
            )
        )

    if nodes.backend != "c10d":
        return NodesRendezvous(meet(), address)
    # torch compares the endpoint with the host's name alone: where it is the address of a second card, each
    # node takes another for the host, and all wait for a store that nobody opens.
    host = is_own(nodes.endpoint.rpartition(":")[0])
    try:
        return NodesRendezvous(meet(is_host=host), address)
    except RendezvousConnectionError:
        if not host:
            raise
        return NodesRendezvous(meet(is_host=False), address)  # two launches on one machine: the other has it
