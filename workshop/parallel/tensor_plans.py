"""Tensor parallelism by PyTorch's DTensor: the cut is written down as a plan, and the model stays as it is.

A plan names modules and says how each is cut. `ColwiseParallel` and `RowwiseParallel` turn the weight into a
DTensor, a tensor that knows which part of it this rank has; every operation on DTensors knows what it must
send. f and g of `parallel.tensor` are not written anywhere: they follow from "the input is replicated" and
"the output is a partial sum that should be replicated".

The names are those of Llama in transformers, which `models.gpt.GPT` shares. So one plan cuts both.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from workshop.parallel.stages import GPTStage

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def layer_plan(*, sequence_parallel: bool = False) -> dict[str, Any]:
    """How to cut one layer. Under sequence parallelism the norms work on positions, Shard(1)."""
    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
    if not sequence_parallel:
        return plan | {name: RowwiseParallel() for name in ROWS}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ROWS}
    plan |= {name: SequenceParallel() for name in NORMS}
    # Gather before the block, once for q, k and v; what else it gets (cos and sin) is left alone.
    return plan | {
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    }


def _is_transformers(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("transformers.")


def _attention_input(layer: nn.Module) -> PrepareModuleInput:
    """Our attention is called with x first; transformers calls its own with ``hidden_states=``."""
    if _is_transformers(layer):
        return PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
    return PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    )


def top_plan(*, sequence_parallel: bool = False) -> dict[str, Any]:
    """How to cut what is around the layers: the embedding by words, the head by words; whole logits come
    out."""
    if not sequence_parallel:
        return {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Replicate()),
        }
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def cut_by_plan(model: nn.Module, mesh: DeviceMesh, *, sequence_parallel: bool = False) -> nn.Module:
    """Cut a `GPT`, a stage of one (`parallel.stages`) or a transformers Llama over a one-dimensional mesh, in
    place.

    All ranks must come with the same weights. transformers looks at a layer's heads by its weights, as ours
    does.

    Raises ValueError where the mesh has several axes (give ``mesh["tensor"]``), or heads do not divide by its
    ranks.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"the mesh has axes {mesh.mesh_dim_names}: give one of them, for example mesh['tensor']"
        )
    decoder: Any = model.model
    layers: list[Any] = list(decoder.layers.children())
    heads = layers[0].self_attn.k_proj.out_features // layers[0].self_attn.head_dim
    if heads % mesh.size():
        raise ValueError(
            f"{heads} key and value heads cannot be dealt out to {mesh.size()} ranks as whole heads"
        )
    top = top_plan(sequence_parallel=sequence_parallel)
    if sequence_parallel and _is_transformers(layers[0]):
        # It counts positions on what the embedding gives, so that comes whole, and is sliced after.
        top["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        top["model.layers.0"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        )
    there = {name for name, _ in model.named_modules()}  # a stage may have neither embedding nor head
    whole: Any = model
    tied = {"lm_head", "model.embed_tokens"} <= there and whole.lm_head.weight is decoder.embed_tokens.weight
    parallelize_module(model, mesh, {name: cut for name, cut in top.items() if name in there})
    if tied:  # both are cut by words: still one matrix, with both gradients
        whole.lm_head.weight = decoder.embed_tokens.weight
    if sequence_parallel and isinstance(model, GPTStage):
        model.sequence_ranks = mesh.size()
    for layer in layers:
        plan = layer_plan(sequence_parallel=sequence_parallel)
        if sequence_parallel:
            plan["self_attn"] = _attention_input(layer)
        parallelize_module(layer, mesh, plan)
    return model
