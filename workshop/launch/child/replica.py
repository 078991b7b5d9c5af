"""One replica: an elastic agent in a process of its own, with its own ranks, as its own torchrun would be.

Its ranks find one another in a store of their own, and start again, all of this replica's and no other's, as
often as ``--max-restarts`` says. Ranks that start again are fresh processes at step 0; what the run has
learned they take from a peer (torchft), not from a disk.
"""

from __future__ import annotations

import logging
import os
import signal
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing import SignalException

from workshop.launch.child import own_network, rank_script
from workshop.launch.child.agent import CellAgent, make_agent
from workshop.launch.child.torchft_on_loopback import hold_to_loopback
from workshop.launch.processes import die_with_parent


def run(connection: Connection, request: dict[str, Any]) -> None:
    """Run the replica of ``request`` to its end; tells ``connection`` of each attempt, and how it ended."""
    die_with_parent()
    _enter(request)
    # A process that a fork server has forked knows its server, and would start another one all the same.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]

    def on_start(attempt: int, pids: dict[int, int], previous: dict[int, int | None]) -> None:
        connection.send({"event": "started", "attempt": attempt, "pids": pids, "previous": previous})

    try:
        agent = make_agent(request, on_start, run_rank)
        ended = {"state": _to_the_end(agent), "exit_codes": agent.exit_codes, "why": None}
    except Exception as error:  # anything the agent could not do is told in the notebook
        logging.exception("the agent of a replica failed")
        ended = {"state": "broken", "exit_codes": {}, "why": f"{type(error).__name__}: {error}"}
    connection.send({"event": "ended", **ended})


def _to_the_end(agent: CellAgent) -> str:
    """``succeeded``, ``failed`` or ``stopped`` (by a signal to this process, which has ended the ranks)."""
    try:
        result = agent.run()
        state = "succeeded" if result.state == WorkerState.SUCCEEDED else "failed"
    except SignalException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # late is void
        agent.remember_exit_codes()
        state = "stopped"
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        agent.leave()
    return state


def run_rank(request: dict[str, Any]) -> None:
    """What the agent starts as each rank."""
    _enter(request)
    os.environ["RUST_LOG"] = request["env"]["RUST_LOG"]  # torchft reads it once, when it is loaded
    hold_to_loopback()
    rank_script.run(request)


def _enter(request: dict[str, Any]) -> None:
    if request["network"] is not None:
        own_network.join(request["network"])
