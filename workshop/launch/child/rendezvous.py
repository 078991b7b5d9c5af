"""Where the ranks of one node find one another: a store on loopback, a fresh one for each attempt.

torchrun's c10d rendezvous opens its store on every interface of the machine and keeps it through
restarts, so that a restarted gloo group meets the dead attempt's addresses (seen with torch 2.13:
0 of 6 restarts recovered). Here the agent binds 127.0.0.1 on a port that the system picks, and
hands the ranks a new store each time. The store speaks torch's own TCPStore protocol, as under
torchrun: it keeps short byte strings and unpickles nothing.
"""

from __future__ import annotations

import socket

from torch.distributed import Store, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

LOOPBACK = "127.0.0.1"


def loopback_store() -> TCPStore:
    """A TCPStore that listens on 127.0.0.1 alone, on a free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK, port, 1, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
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
        store = loopback_store()
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
