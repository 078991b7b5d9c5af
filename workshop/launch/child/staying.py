"""``%%ranks`` in the supervisor: start the kernels, watch for deaths, stop them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import threading
from typing import Any

from workshop.launch import messages, processes
from workshop.launch.child import rank_kernel


class StayingRanks:
    """Groups of kernels by launch number."""

    def __init__(self, wire: Any):
        self.wire = wire
        self._groups: dict[int, list[processes.ProcessId]] = {}

    def start(self, request: messages.StartRanks) -> None:
        """Fork one kernel per rank; sends `RanksStarted` with their process numbers, or `RanksFailed`."""
        context = multiprocessing.get_context("forkserver")
        group: list[Any] = []
        first = request.ranks.first
        try:
            for rank in range(request.ranks.n):
                process = context.Process(
                    target=rank_kernel.main, args=(request, rank), name=f"rank {first + rank}"
                )
                process.start()
                group.append(process)
        except OSError as error:
            for process in group:
                process.kill()
            self.wire.send(messages.RanksFailed(request.id, f"{type(error).__name__}: {error}"))
            return
        started = [processes.ProcessId.of(process.pid) for process in group]
        self._groups[request.id] = [process for process in started if process]
        pids = {rank: process.pid for rank, process in enumerate(group, first)}
        self.wire.send(messages.RanksStarted(request.id, pids))
        threading.Thread(
            target=self._watch, args=(request.id, dict(enumerate(group, first))), daemon=True
        ).start()

    def _watch(self, command: int, group: dict[int, Any]) -> None:
        """Tell the notebook of each rank that ends, and how."""
        waiting = {process.sentinel: rank for rank, process in group.items()}
        while waiting:
            for sentinel in multiprocessing.connection.wait(list(waiting)):
                rank = waiting.pop(sentinel)
                group[rank].join(1.0)
                self.wire.send(messages.RankDied(command, rank, group[rank].exitcode))

    def stop(self, group: int) -> None:
        """End a group's kernels: SIGTERM, then SIGKILL."""
        processes.end_all(self._groups.pop(group, []), patience=0.5)
