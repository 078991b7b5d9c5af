"""The lighthouse of replicas, in a process of its own; for a launch here, also the network of them all.

    python -m workshop.launch.child.lighthouse FOLDER nodes|loopback

is that of a job: its batch script starts it, and its address goes into ``FOLDER/lighthouse``.

torchft's lighthouse answers one question, at each step of each replica: who takes part? A replica that has
sent no sign of life for `HEARTBEAT_MS` counts as gone; the others go on without it. It keeps no weights and
computes nothing. For a launch it listens on loopback only, on a port that the system picks, in the network
that this process makes (`own_network`), and it ends when the supervisor lets go of it. For a job on several
nodes it listens under this node's name, to everybody who reaches the nodes' network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workshop.launch.child import own_network
from workshop.launch.child.torchft_on_loopback import LOOPBACK
from workshop.launch.processes import die_with_parent

# A replica sends ten signs of life a second, from a thread that Python cannot hold up. After one second
# without any it counts as dead: that is what a death costs those who live.
HEARTBEAT_MS = 1000
JOIN_MS = 1000  # how long those who are ready for a step wait for one that is alive and not ready
TICK_MS = 50
ADDRESS = "lighthouse"  # the file that holds it, for the replicas of a job


@dataclass(frozen=True)
class Lighthouse:
    """Where it is, and the process whose network is the launch's: None, and why, where there is no such.

    error: why there is no lighthouse.
    """

    address: str = ""
    network: int | None = None
    why: str = ""
    error: str = ""


def run(connection: Connection, own: bool) -> None:
    """Open the network and the lighthouse, say where they are, and stay until the other end closes.

    own: make a network of its own where this machine allows it; else share the machine's loopback.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    why = own_network.refusal() if own else "as asked"
    if not why:
        own_network.make()
    try:
        server = _server()
    except (ImportError, RuntimeError) as error:
        connection.send(Lighthouse(error=f"{type(error).__name__}: {error}"))
        return
    port = server.address().rpartition(":")[2]
    connection.send(Lighthouse(f"http://{LOOPBACK}:{port}", None if why else os.getpid(), why))
    with contextlib.suppress(EOFError, ConnectionResetError):
        connection.recv()
    os._exit(0)


def main() -> None:
    """See above; it runs until it is ended."""
    folder, host = Path(sys.argv[1]), LOOPBACK if sys.argv[2] == "loopback" else socket.gethostname()
    die_with_parent()
    server = _server(host)
    partial = folder / f"{ADDRESS}.part"
    partial.write_text(f"http://{host}:{server.address().rpartition(':')[2]}", encoding="utf-8")
    partial.rename(folder / ADDRESS)
    signal.pause()


def _server(host: str = LOOPBACK) -> Any:
    os.environ.setdefault("RUST_LOG", "warn")  # else each step of each replica is told
    from torchft.coordination import LighthouseServer

    return LighthouseServer(
        bind=f"{host}:0",
        min_replicas=1,
        join_timeout_ms=JOIN_MS,
        quorum_tick_ms=TICK_MS,
        heartbeat_timeout_ms=HEARTBEAT_MS,
    )


if __name__ == "__main__":
    main()
