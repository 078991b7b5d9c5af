"""``--replicas`` in the supervisor: a lighthouse, and an agent for each replica, side by side.

A launch of fresh ranks is one agent, in the supervisor's main thread. Replicas are several, and one must be
able to start its ranks again while the others go on: each agent has a process of its own (`replica`), forked
where torch is loaded already. The main thread hears them all, and tells the notebook.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from workshop.launch import messages, processes, rank_folder
from workshop.launch.child import lighthouse, rank_script, replica
from workshop.launch.child.fresh import ask_for_stacks

READY_SECONDS = 30.0  # until the lighthouse is up
# An agent that was told to stop gives its ranks two seconds; one that has not stopped after this is ended.
STOP_SECONDS = 8.0
POLL_SECONDS = 0.1  # between two looks at whether somebody wants it to stop


@dataclass
class _Member:
    """A replica's agent, and the ranks of its present attempt."""

    connection: Connection
    process: Any
    directory: Path
    attempt: int = 0
    ranks: dict[int, processes.ProcessId] = field(default_factory=dict)
    ended: messages.LaunchEnd | None = None
    told_to_stop: bool = False

    def __post_init__(self) -> None:
        self.agent = processes.ProcessId.of(self.process.pid)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal the agent; a second SIGTERM would disturb it at its ending."""
        again, self.told_to_stop = self.told_to_stop, True
        if self.agent is not None and (number != signal.SIGTERM or not again):
            self.agent.signal(number)

    def end(self) -> None:
        """End what is left of it: the agent, and every rank that was ever started for it."""
        left = [
            rank_script.process_of(rank_dir)
            for rank_dir in rank_folder.of_every_rank(self.directory)
            if (rank_dir / rank_folder.PROCESS).exists()
        ]
        processes.end_all(
            [p for p in [self.agent, *self.ranks.values(), *left] if p and p.alive()], patience=0.2
        )


@dataclass
class _Launch:
    """One launch of replicas; ``why``: what stopped it, where something did."""

    request: messages.LaunchReplicas
    members: dict[int, _Member] = field(default_factory=dict)
    why: str | None = None
    stop_now: threading.Event = field(default_factory=threading.Event)  # set when all has been asked


class Replicas:
    """Runs one launch of replicas at a time and tells the notebook how it went."""

    def __init__(self, wire: Any):
        self.wire = wire
        self._context = multiprocessing.get_context("forkserver")
        self._lock = threading.Lock()
        self._running: _Launch | None = None

    def launch(self, request: messages.LaunchReplicas) -> None:
        """Run the request to its end; sends `Network`, `Started` at each replica's attempts, and at last
        `ReplicasDone`.
        """
        run, why = _Launch(request), None
        timer = threading.Timer(request.launch.timeout, self.cancel, (request.id, "timeout"))
        timer.daemon = True
        with self._lock:
            self._running = run
        timer.start()
        try:
            self._run(run)
        except (OSError, RuntimeError, EOFError) as error:
            logging.exception("a launch of replicas failed")
            why = f"{type(error).__name__}: {error}"
        finally:
            timer.cancel()
            with self._lock:
                self._running = None
            for member in run.members.values():
                member.end()
        ends = {number: member.ended for number, member in run.members.items()}
        stopped = not ends or any(end is None or end.state == "stopped" for end in ends.values())
        state = run.why if run.why and stopped else "ended"
        self.wire.send(messages.ReplicasDone(request.id, state, ends, why))

    def cancel(self, launch_id: int, why: str) -> None:
        """End a running launch: ask each rank where it is, then have every agent stop."""
        with self._lock:
            run = self._running
            if run is None or run.request.id != launch_id or run.why:
                return
            run.why = why
        if why == "timeout":
            for member in list(run.members.values()):
                ask_for_stacks(rank_folder.of_attempt(member.directory, member.attempt), member.ranks)
        run.stop_now.set()

    def _run(self, run: _Launch) -> None:
        connection, process = self._start(lighthouse.run, run.request.own_network)
        try:
            there = self._lighthouse(run, connection)
            if there is None:
                return
            self.wire.send(messages.Network(run.request.id, there.network is not None, there.why))
            for number in range(len(run.request.env_of)):
                if run.why:
                    break
                run.members[number] = self._member(run.request, number, there)
            self._follow(run, process)
        finally:
            connection.close()  # it ends when it sees this
            process.join(2.0)
            process.kill()

    def _start(self, main: Any, *arguments: Any) -> tuple[Connection, Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=main, args=(theirs, *arguments))
        process.start()
        theirs.close()
        return ours, process

    def _lighthouse(self, run: _Launch, connection: Connection) -> lighthouse.Lighthouse | None:
        """What the lighthouse says of itself when it is up; None where the launch was stopped before."""
        deadline = time.monotonic() + READY_SECONDS
        while not connection.poll(0.05):
            if run.why:
                return None
            if time.monotonic() > deadline:
                raise RuntimeError(f"the lighthouse was not up after {READY_SECONDS:g} s")
        there = connection.recv()
        if there.error:
            raise RuntimeError(f"the lighthouse could not be started: {there.error}")
        return there

    def _member(self, request: messages.LaunchReplicas, number: int, there: lighthouse.Lighthouse) -> _Member:
        """Start the agent of one replica."""
        directory = Path(request.launch.run_dir, f"replica_{number}")
        env = {
            **request.launch.env,
            **request.env_of[number],
            "REPLICA_GROUP_ID": str(number),
            "NUM_REPLICA_GROUPS": str(len(request.env_of)),
            "TORCHFT_LIGHTHOUSE": there.address,
        }
        own = replace(request.launch, env=env, run_dir=str(directory), id=request.id)
        return _Member(*self._start(replica.run, number, own, there.network), directory)

    def _follow(self, run: _Launch, beacon: Any) -> None:
        """Hear the agents until all have ended. Raises RuntimeError when the lighthouse ends before them."""
        stopped_at = None
        while left := {m.connection: n for n, m in run.members.items() if m.ended is None}:
            if run.stop_now.is_set():
                stopped_at = stopped_at or time.monotonic()
                late = time.monotonic() > stopped_at + STOP_SECONDS
                for number in left.values():
                    run.members[number].stop(signal.SIGKILL if late else signal.SIGTERM)
            for ready in wait([*left, beacon.sentinel], POLL_SECONDS):
                if ready == beacon.sentinel:
                    raise RuntimeError("the lighthouse ended before the replicas")
                self._hear(run, left[cast(Connection, ready)])

    def _hear(self, run: _Launch, number: int) -> None:
        member = run.members[number]
        try:
            message: messages.LaunchEnd | messages.Started = member.connection.recv()
        except (EOFError, ConnectionResetError):  # the agent was killed
            state, why = ("stopped", None) if run.why else ("broken", "its agent ended without a word")
            message = messages.LaunchEnd(state, {}, why)
            member.end()
        if isinstance(message, messages.LaunchEnd):
            member.ended = message
            return
        started = {rank: processes.ProcessId.of(pid) for rank, pid in message.pids.items()}
        member.ranks = {rank: process for rank, process in started.items() if process}
        member.attempt = message.attempt
        self.wire.send(message)
