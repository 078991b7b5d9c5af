"""The process group of ranks that stay: made, looked at between cells, and made again after a cut."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from workshop.launch.child.cut import GroupSockets
from workshop.launch.passing import unpickled


class Group:
    """The default process group of this rank; the notebook calls it as ``__workshop__``."""

    def __init__(self, rank: int, world_size: int, device: str, sockets: GroupSockets):
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
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

    def join(self, store_file: str) -> dict[str, Any]:
        """Make the default group; the ranks meet in a file that only their user can open."""
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"
        store = dist.FileStore(store_file, self.world_size)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        self._init(
            backend,
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(minutes=30),
            device_id=self.device if self.device.type == "cuda" else None,
        )
        return self.state()

    def state(self) -> dict[str, Any]:
        """Is there a group, and how many collectives has this rank entered in it?"""
        if not dist.is_initialized():
            return {"group": False, "sequence": -1}
        return {"group": True, "sequence": _sequence(c10d._get_default_group())}

    def heal(self, store_file: str, user_names: dict[str, Any]) -> dict[str, Any]:
        """Leave the cut group and join a new one. Variables stay; those that hold the old group are named."""
        stale = sorted(name for name, value in user_names.items() if self._holds_group(name, value))
        if dist.is_initialized():
            dist.destroy_process_group()
        self.sockets.forget()
        return {**self.join(store_file), "stale": stale}

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

    @staticmethod
    def receive(path: str, names: dict[str, Any]) -> None:
        """Values that the notebook passed with ``--pass`` become variables of the rank."""
        names.update(unpickled(Path(path)))


def _sequence(group: Any) -> int:
    """How many collectives this rank has entered in the group."""
    return group._get_sequence_number_for_group()
