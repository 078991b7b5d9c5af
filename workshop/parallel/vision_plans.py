"""How a ViT and a CoAtNet are cut by tensor parallelism, and which of their modules are units of sharding.

**Tensor.** A layer is cut as in `tensor_plans`: q, k, v and fc1 by columns, o and fc2 by rows, two
all-reduces forward and two backward. All of them have biases: a column's bias goes with the column, a row's
is added once, after the sum. DTensor does both. CoAtNet's table of relative positions has a row for each
head, and goes with the heads. The rest stays whole on every rank: patches, positions, norms, classifier, and
all of CoAtNet's convolutions. Every rank does those in full, so a CoAtNet gains less from this plan than a
ViT: `predict.vision.ways` says how much before anybody tries.

**Sharding.** Units are layers (`wrapping.units`, ``"layers"``): ViT's layers, CoAtNet's MBConv and attention
blocks. Buffers (running means of batch norm) are not sharded: every rank keeps its own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from workshop.models.coatnet import AttentionBlock, MBConv
from workshop.models.vit import Layer

COLUMNS = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.fc1")
ROWS = ("attention.o_proj", "mlp.fc2")


class ByHeads(ParallelStyle):
    """Cut a module's parameters along dim 0, where the heads are; it takes its own part in forward."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            cut = distribute_tensor(parameter.detach(), device_mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(cut))
        return module


def layer_plan(layer: nn.Module) -> dict[str, Any]:
    """How to cut one layer of a ViT, or one attention block of a CoAtNet."""
    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
    plan |= {name: RowwiseParallel() for name in ROWS}
    return plan | ({"attention.bias": ByHeads()} if isinstance(layer, AttentionBlock) else {})


def cut_vision_by_plan(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Cut a ViT, a CoAtNet, or a stage of one, over a one-dimensional mesh, in place.

    All ranks must come with the same weights, and see the same images. Gradients of what stays whole come
    out equal on all ranks.

    Raises ValueError where the mesh has several axes, the model nothing to cut, or heads do not divide.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"the mesh has axes {mesh.mesh_dim_names}: give one of them, for example mesh['tensor']"
        )
    layers: list[Any] = [module for module in model.modules() if isinstance(module, Layer | AttentionBlock)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layer here: this plan cuts nothing else")
    for layer in layers:
        heads = layer.attention.q_proj.out_features // layer.attention.head_dim
        if heads % mesh.size():
            raise ValueError(f"{heads} heads cannot be dealt out to {mesh.size()} ranks as whole heads")
    for layer in layers:
        parallelize_module(layer, mesh, layer_plan(layer))
    return model


def is_unit(module: nn.Module) -> bool:
    """Whether a module is a unit of sharding: for `wrapping.units` and FSDP's auto wrap policies."""
    return isinstance(module, Layer | AttentionBlock | MBConv)
