"""A training program with every layout, written as anyone would write it for torchrun.

    torchrun --standalone --nproc-per-node 2 train.py --layout fsdp --model gpt

`benchmarks/rehearse.py` runs it twice: on real gloo ranks, measured, and rehearsed as one of them. Nothing in
here knows which of the two is happening.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from workshop.models.gpt import GPT, GPTConfig

SIZES = {
    "small": {
        "vocab_size": 2048,
        "hidden_size": 192,
        "num_layers": 3,
        "num_heads": 8,
        "intermediate_size": 512,
    },
    "wide": {
        "vocab_size": 4096,
        "hidden_size": 384,
        "num_layers": 4,
        "num_heads": 8,
        "intermediate_size": 1024,
    },
    "deep": {
        "vocab_size": 1024,
        "hidden_size": 256,
        "num_layers": 8,
        "num_heads": 8,
        "intermediate_size": 704,
    },
}


def build(options: argparse.Namespace) -> nn.Module:
    """Our GPT, or Llama or GPT-2 as transformers writes them."""
    size = SIZES[options.size]
    if options.model == "gpt":
        model = GPT(GPTConfig(**size, num_kv_heads=size["num_heads"] // 2))
        model.model.recompute = options.recompute
        return model
    import transformers

    if options.model == "llama":
        config = transformers.LlamaConfig(
            **{
                name.replace("num_layers", "num_hidden_layers").replace(
                    "num_heads", "num_attention_heads"
                ): value
                for name, value in size.items()
            },
            num_key_value_heads=size["num_heads"] // 2,
            use_cache=False,
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=size["vocab_size"],
            n_embd=size["hidden_size"],
            n_layer=size["num_layers"],
            n_head=size["num_heads"],
            n_positions=512,
            use_cache=False,
        )
        model = transformers.GPT2LMHeadModel(config)
    if options.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def blocks_of(model: nn.Module) -> Any:
    """The repeated layers of any of the three."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of predicting each token from itself: what it learns does not matter here."""
    out = model(tokens)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def make_optimizer(options: argparse.Namespace, parameters: Any) -> torch.optim.Optimizer:
    """AdamW or SGD; sharded over the ranks for ZeRO stage 1."""
    kind, keywords = (
        (torch.optim.SGD, {"lr": 0.1}) if options.optimizer == "sgd" else (torch.optim.AdamW, {"lr": 1e-3})
    )
    if options.layout == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **keywords)
    return kind(parameters, **keywords)


def shard(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    """FSDP2 with a mesh: one axis, or two for hybrid sharding."""
    world = dist.get_world_size()
    if options.layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy()
    if options.dtype == "mixed":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    reshard = options.layout != "fsdp-zero2"
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(
        model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and not options.keep_root
    )


def tensor_parallel(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    """Columns then rows; with sequence parallelism the norms work on a slice of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    if options.layout == "tp":
        plan |= {name: RowwiseParallel() for name in rows}
        if options.cut_words:
            words = ColwiseParallel(output_layouts=Replicate())
            embedding = RowwiseParallel(input_layouts=Replicate())
            parallelize_module(model, mesh, {"model.embed_tokens": embedding, "lm_head": words})
    else:
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in rows}
        plan |= {name: SequenceParallel() for name in ("input_layernorm", "post_attention_layernorm")}
        inner = {"input_layouts": (Shard(1), None, None), "desired_input_layouts": (Replicate(), None, None)}
        plan["self_attn"] = PrepareModuleInput(**inner)
        plan["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        top = {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "model.norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, top)
    for block in blocks_of(model):
        parallelize_module(block, mesh, plan)
    return model


class Piece(nn.Module):
    """Some consecutive layers of our GPT, with the embedding at the first stage and the head at the last."""

    def __init__(self, model: GPT, stage: int, num_stages: int) -> None:
        super().__init__()
        per_stage = -(-len(model.model.layers) // num_stages)
        self.config = model.config
        self.embed = model.model.embed_tokens if stage == 0 else None
        self.layers = model.model.layers[stage * per_stage : (stage + 1) * per_stage]
        self.head = nn.Sequential(model.model.norm, model.lm_head) if stage == num_stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from workshop.models.gpt import rotary_table

        if self.embed is not None:
            x = self.embed(x)
        positions = torch.arange(x.shape[1])
        cos, sin = rotary_table(positions, self.config.head_dim, self.config.rope_theta)
        for layer in self.layers:
            x = layer(x, cos.to(x.dtype), sin.to(x.dtype))
        return self.head(x) if self.head is not None else x


def pipeline_step(options: argparse.Namespace) -> tuple[nn.Module, Callable[[torch.Tensor], None]]:
    """One stage of a pipeline, and what runs a batch through it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(options)
    piece = Piece(model, rank, world)
    del model
    stage = PipelineStage(piece, rank, world, torch.device("cpu"))
    kind = ScheduleGPipe if options.layout == "gpipe" else Schedule1F1B
    schedule = kind(
        stage, options.accumulate, loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1).float(), t.flatten())
    )

    def run(tokens: torch.Tensor) -> None:
        arguments = (tokens,) if rank == 0 else ()
        schedule.step(*arguments, target=tokens if rank == world - 1 else None)

    return piece, run


def lay_out(options: argparse.Namespace) -> nn.Module:
    """The model under the layout that was asked for."""
    model = build(options)
    if options.layout in ("ddp", "ddp-view", "zero1"):
        return DistributedDataParallel(model, gradient_as_bucket_view=options.layout == "ddp-view")
    if options.layout in ("fsdp", "fsdp-zero2", "hsdp"):
        return shard(model, options)
    if options.layout in ("tp", "tp-sp"):
        return tensor_parallel(model, options)
    return model


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt", choices=("gpt", "llama", "gpt2"))
    parser.add_argument("--size", default="small", choices=tuple(SIZES))
    parser.add_argument("--layout", default="ddp")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "mixed"))
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--keep-root", action="store_true", help="as torch does unless it is told")
    parser.add_argument("--cut-words", action="store_true", help="embedding and head, by tensor ranks")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


def main() -> None:
    """Some steps."""
    options = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    if options.dtype == "bf16":
        torch.set_default_dtype(torch.bfloat16)
    vocab = SIZES[options.size]["vocab_size"]
    is_pipeline = options.layout in ("gpipe", "1f1b")
    if is_pipeline:
        model, run = pipeline_step(options)
    else:
        model = lay_out(options)
    optimizer = make_optimizer(options, model.parameters())
    for _ in range(options.steps):
        for micro in range(1 if is_pipeline else options.accumulate):
            tokens = torch.randint(0, vocab, (options.batch, options.length))
            if is_pipeline:
                run(tokens)
                continue
            last = micro == options.accumulate - 1
            quiet = contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()
            with quiet:
                loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
