"""``%%torchrun`` in the supervisor: one elastic agent for each launch, with a clock beside it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing import SignalException

from workshop.launch import messages, processes, rank_folder, stack_dumps
from workshop.launch.child.agent import make_agent
from workshop.launch.child.rank_script import hang_up

CANCEL_LINGER_SECONDS = 0.5  # for the other nodes to hear of it: they look four times a second
HEARS_WITHIN_SECONDS = 1.0  # an agent that was told to stop and is still there then waits for another node


@dataclass
class _Running:
    """A launch under way. why: what stopped it, where something did. ranks: those of its present attempt."""

    request: messages.Launch
    why: str | None = None
    attempt: int = 0
    ranks: dict[int, processes.ProcessId] = field(default_factory=dict)


class FreshRanks:
    """Runs one launch at a time and tells the notebook how it went."""

    def __init__(self, wire: Any):
        self.wire = wire
        self._lock = threading.Lock()
        self._running: _Running | None = None

    @staticmethod
    def gpu_count() -> int:
        """GPUs of this node, counted without touching one."""
        return torch.cuda.device_count()

    def launch(self, request: messages.Launch) -> None:
        """Run the request to its end; sends `Started` at each attempt and `Done` once."""
        run = _Running(request)

        def on_start(attempt: int, pids: dict[int, int], previous: dict[int, int | None]) -> None:
            started = {rank: processes.ProcessId.of(pid) for rank, pid in pids.items()}
            run.ranks = {rank: process for rank, process in started.items() if process}
            run.attempt = attempt
            if run.why:  # cancelled before there was anything to cancel
                os.kill(os.getpid(), signal.SIGTERM)
            folders = rank_folder.of_ranks(request.run_dir, attempt, pids)
            self.wire.send(messages.Started(request.id, attempt, pids, folders, previous))

        timer = threading.Timer(request.timeout, self.cancel, (request.id, "timeout"))
        timer.daemon = True
        with self._lock:
            self._running = run
        timer.start()
        try:
            agent = make_agent(request, on_start)
            end = self._run(agent, run)
        except Exception as error:  # anything the agent could not do is told in the notebook
            logging.exception("a launch failed in the agent")
            end = messages.LaunchEnd("failed", {}, f"{type(error).__name__}: {error}")
        finally:
            timer.cancel()
            with self._lock:
                self._running = None
            processes.end_all([p for p in run.ranks.values() if p.alive()], patience=0.2)
        self.wire.send(messages.Done(request.id, end))

    def _run(self, agent: Any, run: _Running) -> messages.LaunchEnd:
        try:
            result = agent.run()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # late is void
            state = "succeeded" if result.state == WorkerState.SUCCEEDED else "failed"
        except SignalException:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            agent.remember_exit_codes()
            state = run.why or "cancelled"
            if run.request.nodes and state == "cancelled":
                agent.leave_word(state, linger=CANCEL_LINGER_SECONDS)
        except (RuntimeError, OSError) as error:  # what its store or its rendezvous has raised
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if not run.why:
                raise
            logging.info("the agent was torn from another node: %s", error)
            agent.remember_exit_codes()
            state = run.why
        finally:
            agent.leave()
        return messages.LaunchEnd(state, agent.exit_codes, elsewhere=agent.elsewhere)

    def cancel(self, launch_id: int, why: str) -> None:
        """End a running launch: ask each rank where it is, then stop the agent (SIGTERM to us)."""
        with self._lock:
            run = self._running
            if run is None or run.request.id != launch_id or run.why:
                return
            run.why = why
        ask_for_stacks(rank_folder.of_attempt(Path(run.request.run_dir), run.attempt), run.ranks)
        with self._lock:
            if self._running is not run:  # it may have ended by itself meanwhile
                return
            os.kill(os.getpid(), signal.SIGTERM)
        if run.request.nodes:
            threading.Thread(target=self._tear, args=(run,), daemon=True).start()

    def _tear(self, run: _Running) -> None:
        """An agent that asks a node which is gone waits in C++ and hears no signal: end its connections."""
        while True:
            time.sleep(HEARS_WITHIN_SECONDS)
            with self._lock:
                if self._running is not run:
                    return
                hang_up()


def ask_for_stacks(attempt_dir: Path, ranks: dict[int, processes.ProcessId], patience: float = 1.0) -> None:
    """Have every rank that is still at work write its stacks; wait until it has."""
    at_work: dict[Path, stack_dumps.Signalled] = {}
    for rank, process in ranks.items():
        rank_dir = rank_folder.of_rank(attempt_dir, rank)
        ended = any((rank_dir / name).exists() for name in (rank_folder.DONE, rank_folder.FAILURE))
        if not ended and (rank_dir / rank_folder.STACKS).exists():
            at_work[rank_dir / rank_folder.STACKS] = process
    stack_dumps.request_dumps(at_work, patience)
