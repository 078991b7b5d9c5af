"""How ranks that stay are started: a kernel for each, on every node, and a first group between them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.launch import rank_folder
from workshop.launch.environment import rank_environment
from workshop.launch.nodes.ranks import RemoteProcess
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError
from workshop.launch.staying import recovery
from workshop.launch.staying.channels import Channel, write_connection_files

if TYPE_CHECKING:
    from workshop.launch.staying.ranks import Ranks

START_SECONDS = 60.0


def start_processes(ranks: Ranks) -> None:
    """A kernel for each rank, and a channel to each kernel; EngineError where they cannot be started."""
    try:
        ranks.directory.mkdir()
        connections = write_connection_files(ranks.directory, len(ranks.local))
    except OSError as error:
        where = ranks.session.directory
        raise EngineError(f"cannot write to {where} ({error.strerror}): free some room") from None
    plain = {
        "world_size": ranks.n,
        "device": ranks.device.kind,
        "device_memory": ranks.limits.memory_bytes(),
        "sys_path": [*[p for p in sys.path if p], str(Path.cwd())],
    }
    network = ranks.nodes.environment() if ranks.nodes else {}
    ours = rank_environment(os.environ, one_node=not network, ranks=ranks.per_node)
    env = {**ours, **network, **ranks.device.environment()}
    ranks.number = ranks.session.send(
        "ranks_start",
        **plain,
        n=len(ranks.local),
        first=0,
        dir=str(ranks.directory),
        connections=connections,
        env=env,
        cwd=str(Path.cwd()),
        store=ranks.remote.store_path if ranks.remote else None,
    )
    remote: dict[int, ProcessId | RemoteProcess] = {}
    if ranks.remote is not None:
        hidden = ranks.device.environment()
        remote |= ranks.remote.start(ranks.directory, len(ranks.local), ranks.per_node, plain, hidden)
    ranks.processes = {**_await_processes(ranks), **remote}
    ranks.channels = [Channel(ranks._context, path, rank) for rank, path in enumerate(connections)]
    if ranks.remote is not None:
        ranks.channels += [ranks.remote.channel(ranks.directory, rank) for rank in sorted(ranks.remote.ranks)]


def _await_processes(ranks: Ranks) -> dict[int, ProcessId]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for event in ranks.session.events(ranks.number, 0.5):
            if event["event"] == "ranks_failed":
                raise EngineError(f"the ranks could not be started: {event['why']}. Run `workshop doctor`.")
            if event["event"] == "ranks_started":
                found = {int(rank): ProcessId.of(pid) for rank, pid in event["pids"].items()}
                return {rank: process or ProcessId(-1, -1) for rank, process in found.items()}
    raise EngineError(f"the ranks were not started within {START_SECONDS:.0f} s")


def await_ready(ranks: Ranks) -> None:
    """The first request waits in the socket until the rank's kernel is up; the second makes the group."""
    deadline = time.monotonic() + START_SECONDS
    for channel in ranks.channels:  # iopub drops what is sent before the subscription has arrived
        while not channel.iopub.poll(20):
            channel.ask("", silent=True)
            ranks.note_deaths()
            if ranks.deaths or time.monotonic() > deadline:
                raise EngineError(f"the ranks did not start. {_last_words(ranks)}")
    ranks.generation += 1
    replies = recovery.call_each(ranks, f"join({ranks.meeting()!r})")
    bad = [str(reply) for reply in replies.values() if "error" in reply]
    if bad:
        raise EngineError(f"the ranks could not form a group: {bad[0]}")


def _last_words(ranks: Ranks) -> str:
    """Why the ranks did not come up: how they ended, and the end of what one of them wrote."""
    log = ranks.rank_dir(min(ranks.deaths, default=0)) / rank_folder.LOG
    tail = log.read_text(errors="replace").strip().splitlines()[-6:] if log.exists() else []
    return "\n".join([ranks.deaths_in_words() or "no answer", *tail])
