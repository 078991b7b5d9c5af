"""PyTorch's elastic agent, told to be quick and to remember how each rank ended.

`LocalElasticAgent` is what torchrun runs. We keep all of it (environment, restarts, monitoring,
shutdown) and change three things: the ranks come from a fork server that has torch imported, the
patience before SIGKILL is two seconds instead of thirty, and it is kept which ranks ended by themselves,
and how: the agent ends the others by the same SIGTERM by which a rank may have ended itself.

On several nodes there is an agent on each, and each tells the others when it gives up.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousHandler

from workshop.launch import messages
from workshop.launch.child import rank_script
from workshop.launch.child.rendezvous import LOOPBACK, NodesRendezvous, address_of, rendezvous_of
from workshop.launch.processes import ProcessId, end_all

# What failed is told in the notebook. torch's own log of it would first import torch._dynamo, which takes
# seconds: the first cell that fails would look hung.
logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)

PATIENCE_SECONDS = 2
LEAVE_SECONDS = 2.0
# The agent looks after its ranks a hundred times a second, so that a short launch ends at once. Each look
# takes a core from a rank for a moment; where all cores compute, a longer launch would feel that.
POLL_SECONDS = 0.01
LONG_LAUNCH_SECONDS, LONG_LAUNCH_PAUSE = 3.0, 0.04
# On several nodes: how often to look for word of another, how long ranks have to see for themselves that the
# launch is over, and how long an agent that gives up waits for the others.
LOOK_SECONDS, GRACE_SECONDS, LINGER_SECONDS = 0.25, 1.0, 4.0
OnStart = Callable[[int, dict[int, int], dict[int, int | None]], None]


class NoRedirect(LogsSpecs):
    """The ranks see to their own output (`rank_io`), so the agent redirects nothing."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Where to send output: nowhere."""
        nothing = dict.fromkeys(envs, "")
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(nothing, dict(nothing), {}, {}, dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        """No directory: nothing is logged by the agent."""
        return os.devnull


class CellAgent(LocalElasticAgent):
    """The agent of one launch. At each (re)start it calls
    ``on_start(attempt, {rank: pid}, {rank: exit code of the attempt before})``.
    """

    def __init__(self, spec: WorkerSpec, on_start: OnStart):
        super().__init__(spec, NoRedirect(), start_method="forkserver", exit_barrier_timeout=30)
        self._on_start = on_start
        self._began = time.monotonic()
        self.exit_codes: dict[int, int | None] = {}
        self.elsewhere: messages.Elsewhere | None = None
        self._own_ends: dict[int, int] | None = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids = super()._start_workers(worker_group)
        context = self._pcontext
        assert context is not None
        self._own_ends = None
        self._look_before_ending(context)
        attempt = worker_group.spec.max_restarts - self._remaining_restarts
        previous, self.exit_codes = self.exit_codes, {}
        pids_by_rank = {w.global_rank: pids[w.local_rank] for w in worker_group.workers}
        self._on_start(attempt, pids_by_rank, previous)
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if time.monotonic() - self._began > LONG_LAUNCH_SECONDS:
            time.sleep(LONG_LAUNCH_PAUSE)
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            self.remember_exit_codes()
        return result

    def _look_before_ending(self, context: Any) -> None:
        """torch ends all ranks in two places. Before either does, write down who had ended by itself.

        ``join`` is where it sees that a rank has failed: it would wait thirty seconds for one that does not
        heed SIGTERM. ``close`` is where it ends ranks for a restart, or because it was told to stop.

        Neither may keep the agent: it holds the rendezvous and so the store, and the next launch of the same
        name would meet in the old one.

        torch looks again before it ends the others. A rank that failed between our look and its own would not
        be written down, and the rank that torch then ends would pass for the first that died. So torch is
        asked only once there is an end that we have seen, or all have ended.
        """
        join, close, agent = context._pc.join, context.close, weakref.proxy(self)

        def join_ranks(timeout: float | None = None, grace_period: float | None = None) -> bool:
            processes = context._pc.processes
            if running := [process.sentinel for process in processes if process.exitcode is None]:
                wait(running, timeout)
            codes = [process.exitcode for process in processes]
            if any(codes):
                agent._note_own_ends()
                alive = [ProcessId.of(process.pid) for process in processes if process.exitcode is None]
                end_all([process for process in alive if process], PATIENCE_SECONDS)
            for local_rank, code in enumerate(codes):
                if code == 0:  # by os._exit(0): torch would wait for what it returns for ever
                    context._return_values.setdefault(local_rank, None)
            return False if None in codes and not any(codes) else join(timeout, grace_period)

        def close_ranks(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            agent._note_own_ends()
            close(death_sig or signal.SIGTERM, min(timeout, PATIENCE_SECONDS))

        context._pc.join, context.close = join_ranks, close_ranks

    def _note_own_ends(self) -> None:
        """How the ranks that are gone by now have ended; the first look counts."""
        if self._own_ends is None:
            self._own_ends = {rank: code for rank, code in self._codes().items() if code is not None}

    def _codes(self) -> dict[int, int | None]:
        processes = getattr(getattr(self._pcontext, "_pc", None), "processes", None) or []
        workers = self._worker_group.workers
        return {worker.global_rank: one.exitcode for worker, one in zip(workers, processes, strict=False)}

    def remember_exit_codes(self) -> None:
        """Keep how each rank ended by itself (negative is a signal); None for those that the agent ended."""
        own = self._own_ends or {}
        for rank, code in self._codes().items():
            # SIGSEGV too: a rank that runs Python as SIGTERM comes may stumble over its own last words
            # (`stack_dumps`).
            ended_here = rank not in own and code in (-signal.SIGTERM, -signal.SIGKILL, -signal.SIGSEGV)
            self.exit_codes[rank] = None if ended_here else code

    def leave(self) -> None:
        """Close the rendezvous, as torchrun does when it ends, and let go of its store (and of its port).

        The node that holds the store may have gone, so nobody waits for its answer for long.
        """
        rendezvous = self._worker_group.spec.rdzv_handler
        closing = threading.Thread(target=_close, args=(rendezvous,), daemon=True)
        closing.start()
        closing.join(LEAVE_SECONDS)


class NodesAgent(CellAgent):
    """The agent of one of several nodes: it leaves word when it gives up, and ends when another has.

    torch's agents hear of one another only to start again. Where no restart is left, the agent of the rank
    that failed goes without a word. The ranks of the other nodes lose their connections with it, if they had
    any: those that were about to meet the others, or compute for a while, would go on until the launch's time
    limit.
    """

    def __init__(self, spec: WorkerSpec, on_start: OnStart):
        super().__init__(spec, on_start)
        self._next_look, self._heard_at = 0.0, 0.0

    @property
    def _nodes(self) -> NodesRendezvous:
        handler = self._worker_group.spec.rdzv_handler
        assert isinstance(handler, NodesRendezvous)
        return handler

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # A restart is one on every node, whoever failed.
        self._remaining_restarts = max(0, worker_group.spec.max_restarts - self._nodes.attempt)
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.is_failed() and not self._remaining_restarts:
            failed = sorted(rank for rank, code in (self._own_ends or {}).items() if code)
            self.leave_word("failed", failed)
        elif result.state == WorkerState.HEALTHY and self._is_over_elsewhere():
            self._stop_workers(worker_group)
            self.remember_exit_codes()
            result = RunResult(state=WorkerState.FAILED)
            self._linger(LINGER_SECONDS)
        return result

    def _is_over_elsewhere(self) -> bool:
        """Has another node left word, and have the ranks here had their time to see for themselves?

        A rank that has lost its connection says on which line. That is worth more than our word.
        """
        now = time.monotonic()
        if self.elsewhere is None and now >= self._next_look:
            self._next_look, self._heard_at = now + LOOK_SECONDS, now
            self.elsewhere = self._nodes.word()
        return self.elsewhere is not None and now - self._heard_at > GRACE_SECONDS

    def leave_word(self, why: str, ranks: Sequence[int] = (), linger: float = LINGER_SECONDS) -> None:
        """Tell the other nodes that this one has given up, and give them time to hear it.

        The first word stays. Where another node was first, it is kept as `elsewhere`.
        """
        if self.elsewhere is None:
            self.elsewhere = self._nodes.leave_word(messages.Elsewhere(why, tuple(ranks)))
        self._linger(linger)

    def _linger(self, seconds: float) -> None:
        """Wait until all agents have ended their ranks, but not for long: the store may go with this one."""
        self._exit_barrier_timeout = seconds
        self._exit_barrier()  # it logs what keeps it from waiting


def _close(rendezvous: RendezvousHandler) -> None:
    with contextlib.suppress(RuntimeError, OSError):  # another node has closed it, or taken its store along
        rendezvous.shutdown()
    gc.collect()


def make_agent(
    request: messages.Launch, on_start: OnStart, entrypoint: Callable[..., None] = rank_script.run, *more: Any
) -> CellAgent:
    """The agent for one launch; its ranks run ``entrypoint(request, *more)``."""
    spec = WorkerSpec(
        role="default",
        local_world_size=request.n,
        entrypoint=entrypoint,
        args=(request, *more),
        rdzv_handler=rendezvous_of(request),
        max_restarts=request.max_restarts,
        monitor_interval=POLL_SECONDS,
        local_addr=address_of(request.nodes) if request.nodes else LOOPBACK,
    )
    return NodesAgent(spec, on_start) if request.nodes else CellAgent(spec, on_start)
