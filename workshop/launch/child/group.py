"""The process group of ranks that stay: made, looked at between cells, and made again after a cut."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from workshop.launch.child import staged_group
from workshop.launch.child.cut import GroupSockets
from workshop.launch.child.held_groups import forget_groups_of_deepspeed
from workshop.launch.child.node_store import NodeStore
from workshop.launch.device import SHARED_GPUS
from workshop.launch.messages import GroupState, StartRanks, to_json
from workshop.launch.request import unpickled


class Group:
    """The default process group of this rank; the notebook calls it as ``__workshop__``."""

    def __init__(self, request: StartRanks, rank: int, sockets: GroupSockets):
        self.rank = rank
        self.world_size = request.ranks.world_size
        kind, local_rank = request.ranks.device, rank - request.ranks.first
        self.shares = int(request.ranks.env.get(SHARED_GPUS, "0"))
        number = local_rank % self.shares if self.shares else local_rank
        self.device = torch.device(kind, number) if kind == "cuda" else torch.device("cpu")
        self.directory = Path(request.directory)
        self.nodes_store = request.store
        self.sockets = sockets
        self.cap: Any = None
        self._init = dist.init_process_group
        dist.init_process_group = self._already_made

    def names(self) -> dict[str, Any]:
        """What a cell finds defined: torch, dist, rank, world_size, device."""
        return {
            "torch": torch,
            "dist": dist,
            "rank": self.rank,
            "world_size": self.world_size,
            "device": self.device,
        }

    def _already_made(self, *args: Any, **kwargs: Any) -> None:
        """A program that begins with `dist.init_process_group()` runs as it is: the group is there."""
        if not dist.is_initialized():
            self._init(*args, **kwargs)

    def _store(self, name: str) -> dist.Store:
        """Where the ranks meet: a file that only their user can open; on several nodes, their own store."""
        if self.nodes_store is None:
            return dist.FileStore(str(self.directory / name), self.world_size)
        self.met_in = NodeStore(self.nodes_store)  # C++ holds on to its half of the object only
        return dist.PrefixStore(name, self.met_in)

    def join(self, name: str) -> str:
        """Make the default group; ``name`` is new for each generation. Returns as `state`."""
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"
        store = self._store(name)
        alone = self.device.type == "cuda" and not self.shares
        backend = staged_group.NAME if self.shares else "nccl" if alone else "gloo"
        self._init(
            backend,
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(minutes=30),
            device_id=self.device if alone else None,
        )
        return self.state()

    def has_group(self) -> bool:
        """Every cell's reply says this: a cell may have destroyed the group."""
        return dist.is_initialized()

    def state(self, stale: tuple[str, ...] = ()) -> str:
        """A `GroupState` as JSON: is there a group, and how many collectives has this rank entered in it?"""
        if not dist.is_initialized():
            return to_json(GroupState(False, -1, stale))
        return to_json(GroupState(True, _sequence(c10d._get_default_group()), stale))

    def heal(self, name: str, user_names: dict[str, Any]) -> str:
        """Leave the cut group and join a new one. Variables stay; those that hold the old group are named.

        Returns as `state`.
        """
        stale = sorted(own for own, value in user_names.items() if self._holds_group(own, value))
        if dist.is_initialized():
            dist.destroy_process_group()
        forget_groups_of_deepspeed()
        self.sockets.forget()
        self.join(name)
        return self.state(tuple(stale))

    def _holds_group(self, name: str, value: Any) -> bool:
        """Does this variable of the learner's hold a process group (DDP, FSDP, a mesh, a sub-group)?"""
        if name.startswith("_") or isinstance(value, type):
            return False
        if isinstance(value, dist.ProcessGroup | dist.DeviceMesh):
            return True
        if isinstance(value, torch.nn.Module):
            return any(self._is_distributed(module) for module in value.modules())
        return False

    @staticmethod
    def _is_distributed(module: torch.nn.Module) -> bool:
        if isinstance(getattr(module, "process_group", None), dist.ProcessGroup):
            return True
        return any(hasattr(p, "device_mesh") for p in module.parameters(recurse=False))

    def receive(self, file: str, names: dict[str, Any]) -> None:
        """Values that the notebook passed with ``--pass`` become variables of the rank."""
        names.update(unpickled(self.directory / file))


def _sequence(group: Any) -> int:
    """How many collectives this rank has entered in the group."""
    return group._get_sequence_number_for_group()
