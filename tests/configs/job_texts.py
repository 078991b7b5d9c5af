"""A run written as a job file of torchtitan, Megatron-LM or NeMo: for the tests that read it back."""

from __future__ import annotations

import yaml

from workshop.facts.run import Run


def torchtitan(run: Run) -> str:
    """Llama 3 8B; `run` as `titan_grid` makes it."""
    layout, how = run.layout, run.implementation
    local = run.micro_batch * (run.accumulation if layout.pipeline > 1 else 1)
    schedule = {"interleaved": "Interleaved1F1B", "1f1b": "1F1B", "gpipe": "GPipe", "zbv": "ZBVZeroBubble"}
    mode = {"none": "none", "full": "full", "selective": "selective"}[layout.recompute]
    option = "op" if layout.recompute == "selective" else "2"
    if layout.recompute_layers:
        mode, option = "selective", str(run.model.num_layers // layout.pipeline // layout.recompute_layers)
    return f"""
[job]
description = "a round"
[model]
name = "llama3"
flavor = "8B"
converters = [{'"float8"' if layout.precision == "fsdp-fp8" else ""}]
[optimizer]
name = "AdamW"
lr = 0.001
implementation = "{"foreach" if how.step_room else "fused"}"
[training]
local_batch_size = {local}
global_batch_size = {-1 if layout.pipeline > 1 else run.global_batch}
seq_len = {run.seq_len}
enable_cpu_offload = {str(layout.offload == "params").lower()}
mixed_precision_param = "{"float32" if layout.precision == "fp32" else "bfloat16"}"
[parallelism]
data_parallel_replicate_degree = {layout.replicate}
data_parallel_shard_degree = {layout.shard}
fsdp_reshard_after_forward = "{"always" if layout.zero == 3 else "never"}"
tensor_parallel_degree = {layout.tensor}
disable_loss_parallel = {str(how.loss == "eager").lower()}
context_parallel_degree = {layout.context}
context_parallel_rotate_method = "{"alltoall" if layout.context_method == "ring" else "allgather"}"
pipeline_parallel_degree = {layout.pipeline}
pipeline_parallel_schedule = "{schedule[layout.schedule]}"
pipeline_parallel_microbatch_size = {run.micro_batch}
[activation_checkpoint]
mode = "{mode}"
selective_ac_option = "{option}"
[compile]
enable = {str(how.compile).lower()}
"""


def megatron(run: Run) -> str:
    """As a script that holds its arguments in arrays."""
    model, layout, how = run.model, run.layout, run.implementation
    words = [
        f"--num-layers {model.num_layers} --hidden-size {model.hidden_size}",
        f"--num-attention-heads {model.num_heads} --ffn-hidden-size {model.ffn_hidden_size}",
        f"--group-query-attention --num-query-groups {model.num_kv_heads} --kv-channels {model.head_dim}",
        f"--vocab-size {model.vocab_size} --position-embedding-type rope --normalization RMSNorm --swiglu",
        "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0",
        f"--seq-length {run.seq_len} --max-position-embeddings {run.seq_len}",
        f"--micro-batch-size {run.micro_batch} --global-batch-size {run.global_batch}",
        f"--tensor-model-parallel-size $TP --context-parallel-size {layout.context}",
        f"--pipeline-model-parallel-size {layout.pipeline}",
        f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}",
        "--sequence-parallel" if layout.sequence_parallel else "",
        "--use-distributed-optimizer" if layout.zero == 1 else "",
        f"--num-distributed-optimizer-instances {layout.replicate}" if layout.zero == 1 else "",
        "--cross-entropy-loss-fusion" if how.loss == "vocab-parallel-fused" else "",
        "--optimizer-cpu-offload" if layout.offload == "optimizer" else "",
        *_recompute(run),
        {
            "megatron-bf16": "--bf16",
            "megatron-fp8": "--bf16 --fp8-format hybrid",
            "megatron-fp8-params": "--bf16 --fp8-format hybrid --fp8-param-gather",
            "deepspeed-bf16": "--bf16 --grad-reduce-in-bf16",
            "fp32": "",
        }[layout.precision],
    ]
    if model.is_moe:
        words += [
            f"--num-experts {model.num_experts} --moe-router-topk {model.experts_per_token}",
            f"--moe-ffn-hidden-size {model.moe_ffn_hidden_size}",
            f"--expert-model-parallel-size {layout.expert} --expert-tensor-parallel-size {layout.expert_tensor}",
        ]
    inside = "\n    ".join(word for word in words if word)
    return (
        f"#!/bin/bash\nTP={layout.tensor}\nNODES={layout.world_size // 8}\n"
        f"ARGS=(\n    {inside}\n)\n"
        "torchrun --nproc-per-node 8 --nnodes $NODES pretrain_gpt.py ${ARGS[@]} --lr 1e-4 --save there\n"
    )


def _recompute(run: Run) -> list[str]:
    layout = run.layout
    if layout.recompute == "none":
        return []
    if layout.recompute == "selective":
        return ["--recompute-granularity selective"]
    method, number = (
        ("block", layout.recompute_layers) if layout.recompute_layers else ("uniform", layout.recompute_every)
    )
    return [f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {number}"]


def nemo(run: Run) -> str:
    model, layout, how = run.model, run.layout, run.implementation
    full = layout.recompute == "full"
    block = full and bool(layout.recompute_layers)
    return yaml.safe_dump(
        {
            "name": "a round",
            "trainer": {
                "devices": 8,
                "num_nodes": layout.world_size // 8,
                "precision": "32" if layout.precision == "fp32" else "bf16",
                "max_steps": 3,
            },
            "model": {
                "micro_batch_size": run.micro_batch,
                "global_batch_size": run.global_batch,
                "tensor_model_parallel_size": layout.tensor,
                "pipeline_model_parallel_size": layout.pipeline,
                "virtual_pipeline_model_parallel_size": layout.virtual_stages
                if layout.virtual_stages > 1
                else None,
                "context_parallel_size": layout.context,
                "sequence_parallel": layout.sequence_parallel,
                "encoder_seq_length": run.seq_len,
                "max_position_embeddings": "${.encoder_seq_length}",
                "num_layers": model.num_layers,
                "hidden_size": model.hidden_size,
                "ffn_hidden_size": model.ffn_hidden_size,
                "num_attention_heads": model.num_heads,
                "num_query_groups": model.num_kv_heads,
                "override_vocab_size": model.vocab_size,
                "normalization": "rmsnorm",
                "activation": "fast-swiglu",
                "bias": False,
                "position_embedding_type": "rope",
                "share_embeddings_and_output_weights": False,
                "hidden_dropout": 0.0,
                "megatron_amp_O2": not layout.precision.startswith("amp"),
                "fp8": layout.precision == "megatron-fp8",
                "cross_entropy_loss_fusion": how.loss == "vocab-parallel-fused",
                "activations_checkpoint_granularity": None
                if layout.recompute == "none"
                else layout.recompute,
                "activations_checkpoint_method": "block" if block else "uniform" if full else None,
                "activations_checkpoint_num_layers": (layout.recompute_layers or layout.recompute_every)
                if full
                else None,
                "optim": {
                    "name": "distributed_fused_adam" if layout.zero else "fused_adam",
                    "lr": 1e-4,
                    "grad_sync_dtype": "bf16" if layout.precision == "deepspeed-bf16" else "fp32",
                },
            },
        }
    )
