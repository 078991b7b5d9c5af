"""Meshes: which ranks talk to each other about what, when several cuts are combined.

A layout has up to five axes (`facts.layout.Layout`). Every rank has a place on each, and a group of its own
for each: the ranks that differ from it in that one place. Rank numbers run through the tensor axis first, so
that its groups are neighbours, and through the pipeline last::

    pipeline 2, shard 2, tensor 2 on 8 ranks         rank   pipeline shard tensor
                                                       0       0       0      0
        tensor groups    01  23  45  67                1       0       0      1
        shard groups     02  13  46  57                2       0       1      0
        pipeline groups  04  15  26  37                ...

The order matters where links differ. An axis whose groups lie within a node talks over the fast links inside
it; an axis beyond goes over the network (`nodes_touched`). Tensor parallelism talks most, in the middle of
every layer, and nothing hides it: it belongs inside. A pipeline sends one activation between stages: it can
live with the slow ones (Narayanan et al. 2021, arXiv 2104.04473, section 3; Takeaway 1 and 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workshop.facts.layout import AXES, Layout


def mesh_of(layout: Layout, device_type: str = "", keep: Sequence[str] = ()) -> DeviceMesh:
    """The layout's device mesh: its axes with more than one rank, the slowest first, named as in the layout.

    ``keep``: axes that are wanted though they are of one rank.

    ``mesh["tensor"]`` is the axis of one cut, ``mesh["replicate", "shard"]`` what `fully_shard` wants for
    hybrid sharding. A layout of one rank gives an axis "shard" of size one. All ranks must call it.

    Raises ValueError where there are not as many ranks as the layout has.
    """
    if layout.world_size != dist.get_world_size():
        cuts = ", ".join(f"{axis} {size}" for axis, size in layout.sizes().items() if size > 1)
        raise ValueError(
            f"the layout is for {layout.world_size} ranks, and there are {dist.get_world_size()}: "
            f"{cuts or 'one rank'}"
        )
    axes = [axis for axis in reversed(AXES) if layout.sizes()[axis] > 1 or axis in keep] or ["shard"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = device_type or (accelerator.type if accelerator else "cpu")
    return init_device_mesh(device, tuple(layout.sizes()[axis] for axis in axes), mesh_dim_names=tuple(axes))


def group_along(layout: Layout, axes: Sequence[str], name: str) -> dist.ProcessGroup | None:
    """A group of its own for the ranks that differ from this one only along ``axes``; all ranks must call it.

    `workshop.measure` counts what it carries under ``name``. None where such a group would be one rank.
    """
    members = sorted({layout.group(rank, *axes) for rank in range(layout.world_size)})
    return new_group_of(members, name) if len(members[0]) > 1 else None


def new_group_of(members: Sequence[Sequence[int]], name: str) -> dist.ProcessGroup | None:
    """That one of several new groups which has this rank; None where none has. All ranks must call it."""
    mine = None
    for ranks in members:
        group = dist.new_group(list(ranks), group_desc=f"mesh_{name}")
        if dist.get_rank() in ranks:
            mine = group
    return mine


def nodes_touched(layout: Layout, ranks_per_node: int) -> dict[str, int]:
    """For each axis: over how many nodes its groups reach, at most. 1 means that it stays inside.

    Raises ValueError for fewer than one rank a node.
    """
    if ranks_per_node < 1:
        raise ValueError(f"ranks_per_node is {ranks_per_node}; a node has at least one")
    return {
        axis: max(
            len({member // ranks_per_node for member in layout.group(rank, axis)})
            for rank in range(layout.world_size)
        )
        for axis in AXES
    }
