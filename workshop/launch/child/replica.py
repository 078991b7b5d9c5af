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

from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing import SignalException

from workshop.launch.child import own_network, rank_script
from workshop.launch.child.agent import CellAgent, make_agent
from workshop.launch.child.torchft_on_loopback import hold_to_loopback
from workshop.launch.messages import Launch, LaunchEnd, Started
from workshop.launch.processes import die_with_parent
from workshop.launch.rank_folder import of_ranks


def run(connection: Connection, number: int, request: Launch, network: int | None) -> None:
    """Run a replica to its end; ``connection`` is sent `Started` at each attempt, and then a `LaunchEnd`.

    network: the process whose network is this launch's (`own_network`).
    """
    die_with_parent()
    _enter(network)
    # A process that a fork server has forked knows its server, and would start another one all the same.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]

    def on_start(attempt: int, pids: dict[int, int], previous: dict[int, int | None]) -> None:
        folders = of_ranks(request.run_dir, attempt, pids)
        connection.send(Started(request.id, attempt, pids, folders, previous, number))

    try:
        agent = make_agent(request, on_start, run_rank, network)
        end = LaunchEnd(_to_the_end(agent), agent.exit_codes)
    except Exception as error:  # anything the agent could not do is told in the notebook
        logging.exception("the agent of a replica failed")
        end = LaunchEnd("broken", {}, f"{type(error).__name__}: {error}")
    connection.send(end)


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


def run_rank(request: Launch, network: int | None) -> None:
    """What the agent starts as each rank."""
    _enter(network)
    os.environ["RUST_LOG"] = request.env["RUST_LOG"]  # torchft reads it once, when it is loaded
    hold_to_loopback()
    rank_script.run(request)


def _enter(network: int | None) -> None:
    if network is not None:
        own_network.join(network)
