"""A large Llama-style model under tensor, pipeline and sharded data parallelism, as one would write it for a
cluster.

    torchrun ... large.py --size 405b --tensor 8 --pipeline 16 --micro-batches 32

The data axis takes the rest of the world. Weights are bf16 in use and fp32 in the optimizer (FSDP2's mixed
precision), tensor parallelism is with sequence parallelism, the pipeline is PyTorch's own 1F1B.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from workshop.models.gpt import GPTConfig, Layer, RMSNorm, rotary_table


@dataclass(frozen=True)
class Size:
    """Published shapes: Llama 2 7B (arXiv:2307.09288) and Llama 3.1 70B and 405B (arXiv:2407.21783, table
    3)."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


SIZES = {
    "7b": Size(32_000, 4096, 32, 32, 32, 11_008),
    "70b": Size(128_256, 8192, 80, 64, 8, 28_672),
    "405b": Size(128_256, 16_384, 126, 128, 8, 53_248),
}


class Piece(nn.Module):
    """The layers of one pipeline stage."""

    def __init__(self, size: Size, stage: int, num_stages: int, length: int, recompute: bool) -> None:
        super().__init__()
        config = GPTConfig(
            size.vocab,
            size.hidden,
            size.layers,
            size.heads,
            size.kv_heads,
            size.intermediate,
            rope_theta=500_000.0,
        )
        count = size.layers // num_stages + (1 if stage < size.layers % num_stages else 0)
        self.config, self.length, self.recompute = config, length, recompute
        self.embed = nn.Embedding(size.vocab, size.hidden) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(count))
        self.norm = RMSNorm(size.hidden, config.norm_eps) if stage == num_stages - 1 else None
        self.head = nn.Linear(size.hidden, size.vocab, bias=False) if stage == num_stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: tokens (batch, length) at the first stage, else (batch, this rank's part of length, hidden)."""
        if self.embed is not None:
            x = self.embed(x)
        cos, sin = rotary_table(torch.arange(self.length), self.config.head_dim, self.config.rope_theta)
        cos, sin = cos.bfloat16(), sin.bfloat16()
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        if self.head is not None:
            x = self.head(self.norm(x))
        return x


def parallelize(piece: Piece, tp: DeviceMesh, dp: DeviceMesh) -> None:
    """Tensor parallelism inside every layer, then FSDP2 around it."""
    if tp.size() > 1:
        whole, slices = Replicate(), Shard(1)
        plan: dict[str, Any] = {
            "input_layernorm": SequenceParallel(),
            "post_attention_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(
                input_layouts=(slices, None, None), desired_input_layouts=(whole, None, None)
            ),
            "mlp": PrepareModuleInput(input_layouts=(slices,), desired_input_layouts=(whole,)),
            "self_attn.o_proj": RowwiseParallel(output_layouts=slices),
            "mlp.down_proj": RowwiseParallel(output_layouts=slices),
        }
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        ):
            plan[name] = ColwiseParallel()
        for layer in piece.layers:
            parallelize_module(layer, tp, plan)
        ends: dict[str, Any] = {}
        if piece.embed is not None:
            ends["embed"] = RowwiseParallel(input_layouts=whole, output_layouts=slices)
        if piece.head is not None:
            ends["norm"] = SequenceParallel()
            ends["head"] = ColwiseParallel(input_layouts=slices, output_layouts=whole)
        parallelize_module(piece, tp, ends)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in piece.layers:
        fully_shard(layer, mesh=dp, mp_policy=policy, reshard_after_forward=False)
    fully_shard(piece, mesh=dp, mp_policy=policy, reshard_after_forward=False)


def main() -> None:
    """Two optimizer steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="7b", choices=tuple(SIZES))
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--recompute", action="store_true")
    options = parser.parse_args()
    dist.init_process_group()
    size, stages, micro_batches = SIZES[options.size], options.pipeline, options.micro_batches
    data = dist.get_world_size() // (stages * options.tensor)
    mesh = init_device_mesh("cpu", (stages, data, options.tensor), mesh_dim_names=("pp", "dp", "tp"))
    stage = mesh["pp"].get_local_rank()
    with torch.device("meta"):  # nobody ever holds the whole stage: shapes first, memory after sharding
        piece = Piece(size, stage, stages, options.length, options.recompute)
    parallelize(piece, mesh["tp"], mesh["dp"])
    piece.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(piece.parameters())

    def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    if stages > 1:
        flow = torch.empty(
            1, options.length // options.tensor, size.hidden, dtype=torch.bfloat16, requires_grad=True
        )
        tokens = torch.empty(1, options.length, dtype=torch.int64)
        end = torch.empty(1, options.length, size.vocab, dtype=torch.bfloat16, requires_grad=True)
        section = PipelineStage(
            piece,
            stage,
            stages,
            torch.device("cpu"),
            input_args=tokens if stage == 0 else flow,
            output_args=end if stage == stages - 1 else flow,
            group=mesh["pp"].get_group(),
        )
        del flow, tokens, end
        schedule = Schedule1F1B(section, micro_batches, loss_fn=loss_of)
    for _ in range(2):
        batch = torch.randint(0, size.vocab, (micro_batches, options.length))
        if stages > 1:
            schedule.step(*((batch,) if stage == 0 else ()), target=batch if stage == stages - 1 else None)
        else:
            loss_of(piece(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
