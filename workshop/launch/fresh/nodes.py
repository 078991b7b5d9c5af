"""One launch of fresh ranks on several nodes: each node runs the same cell, and they meet at one address.

Who can connect: the nodes meet by torch's own rendezvous, whose store listens on the first node on every
network, without a key, as under torchrun. It holds short strings, and nothing in it is unpickled. The store
of the ranks (`child/rendezvous.py`) and their collectives stay on one network. All of this trusts that
network, as torch does wherever it runs; between a notebook and ranks that stay every connection is locked
(`nodes.wire`).
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.site.interfaces import collectives_on


@dataclass(frozen=True)
class Nodes:
    """Several nodes: this launch is one of ``count``; flags as torchrun's ``--nnodes``, ``--rdzv-*``.

    interface: the networks of the ranks, as in the site's file (`site.interfaces`); "" takes the one that
        leads to ``endpoint``.
    """

    count: int
    endpoint: str
    run_id: str = "workshop"
    backend: str = "c10d"
    timeout: int = 60
    interface: str = ""

    def environment(self) -> dict[str, str]:
        """What keeps the collectives on that network; ValueError when there is none such."""
        meeting = self.endpoint.rpartition(":")[0]
        if not meeting:
            raise ValueError(f"endpoint {self.endpoint!r}: write it as HOST:PORT, the same on every node")
        return collectives_on(self.interface, meeting)

    def note(self) -> str:
        """What to think of when ranks wait for those of another node."""
        return (
            f"These are the ranks of this node, one of {self.count}. If those of the others wait in the same "
            "call, look at the network between the nodes."
        )
