"""How ranks that stay are started: a kernel for each, on every node, and a first group between them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from workshop.launch import device, rank_folder
from workshop.launch.messages import NodeRanks, RanksFailed, RanksStarted, StartRanks
from workshop.launch.nodes.ranks import RemoteNodes, RemoteProcess
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError
from workshop.launch.staying.channels import Channel, write_connection_files
from workshop.launch.staying.rank_set import RankSet
from workshop.site.current import rank_environment

START_SECONDS = 60.0


def start(ranks: RankSet) -> None:
    """Take the device, start the nodes' programs and a kernel for each rank, and have the ranks meet.

    Raises EngineError where they cannot be started; what was begun by then is the caller's to end.
    """
    if ranks.nodes is not None and ranks.remote is None:
        ranks.remote = RemoteNodes(ranks.nodes, ranks.session.directory)
    ranks.session.wait_ready()
    if ranks.remote is None:
        ranks.device = device.take(ranks.n, ranks.session, ranks.limits.share_gpu)
    else:  # nodes that a scheduler gave out are this user's alone: no leases
        ranks.remote.wait_ready()
        gpus = [ranks.session.gpus] if ranks.local else []
        counts = [*gpus, *ranks.remote.gpus()]
        ranks.device = device.choose_for_nodes(ranks.per_node, counts, ranks.limits.share_gpu)
    _start_processes(ranks)
    _await_kernels(ranks)
    refusals = [answer for answer in ranks.join().values() if isinstance(answer, str)]
    if refusals:
        raise EngineError(f"the ranks could not form a group: {refusals[0]}")


def _start_processes(ranks: RankSet) -> None:
    """A kernel for each rank, and a channel to each kernel; EngineError where they cannot be started."""
    try:
        ranks.directory.mkdir()
        connections = write_connection_files(ranks.directory, len(ranks.local))
    except OSError as error:
        where = ranks.session.directory
        raise EngineError(f"cannot write to {where} ({error.strerror}): free some room") from None
    request = _request(ranks, connections)
    ranks.number = ranks.session.send(request)
    remote: dict[int, ProcessId | RemoteProcess] = {}
    if ranks.remote is not None:
        hidden = ranks.device.environment()
        remote |= ranks.remote.start(ranks.directory, len(ranks.local), ranks.per_node, request.ranks, hidden)
    ranks.processes = {**_await_processes(ranks), **remote}
    ranks.channels = [Channel(ranks.context, path, rank) for rank, path in enumerate(connections)]
    if ranks.remote is not None:
        ranks.channels += [ranks.remote.channel(ranks.directory, rank) for rank in sorted(ranks.remote.ranks)]


def _request(ranks: RankSet, connections: list[str]) -> StartRanks:
    network = ranks.nodes.environment() if ranks.nodes else {}
    ours = rank_environment(os.environ, one_node=not network, ranks=ranks.per_node)
    here = NodeRanks(
        first=0,
        n=len(ranks.local),
        world_size=ranks.n,
        device=ranks.device.kind,
        device_memory=ranks.limits.memory_bytes(),
        cwd=str(Path.cwd()),
        sys_path=(*[p for p in sys.path if p], str(Path.cwd())),
        env={**ours, **network, **ranks.device.environment()},
    )
    store = ranks.remote.store_path if ranks.remote else None
    return StartRanks(here, str(ranks.directory), tuple(connections), store)


def _await_processes(ranks: RankSet) -> dict[int, ProcessId]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for event in ranks.session.events(ranks.number, 0.5):
            if isinstance(event, RanksFailed):
                raise EngineError(f"the ranks could not be started: {event.why}. Run `workshop doctor`.")
            if isinstance(event, RanksStarted):
                return {rank: ProcessId.of(pid) or ProcessId(-1, -1) for rank, pid in event.pids.items()}
    raise EngineError(f"the ranks were not started within {START_SECONDS:.0f} s")


def _await_kernels(ranks: RankSet) -> None:
    """A request waits in the socket until the rank's kernel is up."""
    deadline = time.monotonic() + START_SECONDS
    for channel in ranks.channels:  # iopub drops what is sent before the subscription has arrived
        while not channel.iopub.poll(20):
            channel.send(channel.request("", silent=True))
            ranks.note_deaths()
            if ranks.deaths or time.monotonic() > deadline:
                raise EngineError(f"the ranks did not start. {_last_words(ranks)}")


def _last_words(ranks: RankSet) -> str:
    """Why the ranks did not come up: how they ended, and the end of what one of them wrote."""
    log = ranks.rank_dir(min(ranks.deaths, default=0)) / rank_folder.LOG
    tail = log.read_text(errors="replace").strip().splitlines()[-6:] if log.exists() else []
    return "\n".join([ranks.deaths_in_words() or "no answer", *tail])
