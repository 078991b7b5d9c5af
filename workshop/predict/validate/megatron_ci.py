"""Megatron-LM's functional tests: peak allocated bytes of a real run, to the byte.

``megatron_lm_ci_golden_memory_time.csv`` holds what NVIDIA's own CI recorded.  The memory is that of the
**last rank**, the only one that writes to TensorBoard, hence of the last pipeline stage.  What a row leaves
out is Megatron-LM's default: GPT-2's vocabulary of 50,257 words padded to ``128 * tensor``, ``ffn = 4 *
hidden`` (with SwiGLU
``int(4 * hidden * 2 / 3 / 64) * 64``), dropout of 0.1, layers with biases, LayerNorm, learned positions,
eight devices.  All of it stands in ``megatron/training/arguments.py``.

Attention is unfused where the row says so, and in golden files of the retired cluster "dracooci", which were
recorded before the configuration beside them changed: every one of their deterministic rows holds the
probabilities. On Hopper Transformer Engine picks cuDNN's attention, elsewhere FlashAttention-2, whose output
is copied once more.
"""

from __future__ import annotations

from workshop.facts.checks import nearest
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.validate.megatron_arguments import arguments, model_of, option
from workshop.predict.validate.memory_cases import MemoryCase, NotPredictable, Row, count, flag, text

DEVICES = {
    "A100": "A100-80GB",
    "H100": "H100",
    "GB200": "GB200",
    "B200": "B200",
    "GB300": "GB300",
    "H200": "H200",
}
ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
NOT_TRAINING = {
    "distill": "the teacher of a distillation is not in the row",
    "multimodal": "the vision model is not in the row",
    "grpo": "reinforcement learning: the inference engine's cache is in the figure, its size is not",
}


def device_of(row: Row) -> str:
    """The catalogue's name of the device; files without a platform in their name are of the A100 cluster."""
    name = text(row, "gpu")
    if name.startswith("unknown"):
        return "A100-80GB"
    if name not in DEVICES:
        raise NotPredictable(f"device {name!r} is not known here{nearest(name, DEVICES)}")
    return DEVICES[name]


def kernels(row: Row, device: str) -> Implementation:
    """What Megatron-LM's modules save under the row's arguments."""
    extra = arguments(row)
    local = text(row, "transformer_impl") == "local" or extra.get("--spec") == "local"
    backend = text(row, "attention_backend")
    stale = "dracooci" in text(row, "platform_file") and not backend and "--deterministic-mode" in extra
    if local or stale or backend in ("unfused", "local"):
        attention = "unfused"
    else:
        attention = "flash" if device.startswith("H") else "flash-copy"
    deferred = int(option(extra, "--wgrad-deferral-limit", 0))
    fused_loss = "--cross-entropy-loss-fusion" in extra
    return implementation(
        "megatron-local" if local else "megatron",
        attention=attention,
        dropout=option(extra, "--hidden-dropout", 0.1) > 0,
        vocab_multiple=int(option(extra, "--make-vocab-size-divisible-by", 128)),
        loss="vocab-parallel-fused" if fused_loss else "vocab-parallel",
        held_logit_grads=deferred,
        fixed_workspace="--deterministic-mode" in extra,
    )


def layout_of(row: Row, num_layers: int) -> Layout:
    """The layout; data parallelism takes the devices that are left."""
    extra = arguments(row)
    t, p, c = count(row, "tp", 1), count(row, "pp", 1), count(row, "cp", 1)
    devices = count(row, "gpus_from_recipe", max(8, t * p * c))
    data = max(1, devices // (t * p * c))
    zero = ZERO_STAGES.get(text(row, "dp_sharding"), int(flag(row, "distributed_optimizer")))
    instances = int(option(extra, "--num-distributed-optimizer-instances", 1))
    sharded = data // instances if zero else 1
    per_chunk = count(row, "layers_per_virtual_stage", 0)
    chunks = int(option(extra, "--num-virtual-stages-per-pipeline-rank", 1))
    fp8 = "megatron-fp8-params" if "--fp8-param-gather" in extra else "megatron-fp8"
    routed = count(row, "num_experts", 0) > 0
    return Layout(
        replicate=data // sharded,
        shard=sharded,
        zero=zero,
        tensor=t,
        sequence_parallel=flag(row, "sequence_parallel") and t > 1,
        pipeline=p,
        virtual_stages=num_layers // p // per_chunk if per_chunk else chunks,
        context=c,
        expert=count(row, "ep", 1) if routed else 1,
        expert_tensor=count(row, "etp", 0) if routed else 0,
        recompute=text(row, "recompute_granularity") or "none",
        recompute_every=count(row, "recompute_num_layers", 1),
        recompute_modules=tuple(text(row, "recompute_modules").replace(",", " ").split()),
        precision=fp8 if text(row, "fp8_format") else "megatron-bf16",
        offload="optimizer" if flag(row, "optimizer_cpu_offload") else "none",
        first_stage_layers=int(option(extra, "--decoder-first-pipeline-num-layers", 0)),
        last_stage_layers=int(option(extra, "--decoder-last-pipeline-num-layers", 0)),
        embedding_in_stages="account_for_embedding_loss" in text(row, "test_case"),
    )


def case_of(row: Row, number: int) -> MemoryCase:
    """One row as a case of its peak."""
    for word, reason in NOT_TRAINING.items():
        if word in text(row, "test_case"):
            raise NotPredictable(reason)
    extra, model, device = arguments(row), model_of(row), device_of(row)
    layout = layout_of(row, model.num_layers)
    target = int(option(extra, "--decoder-seq-length", 0))
    run = Run(
        model,
        f"{layout.world_size}x{device}",
        layout,
        count(row, "micro_batch_size_seqs"),
        count(row, "seq_len_tokens", int(option(extra, "--encoder-seq-length", 0)) or None),
        global_batch=count(row, "global_batch_size_seqs"),
        optimizer="muon" if "muon" in str(extra.get("--optimizer")) else "adamw",
        target_len=target if model.num_encoder_layers else 0,
        implementation=kernels(row, device),
    )
    return MemoryCase(
        "megatron_lm_ci_golden_memory_time",
        text(row, "family"),
        number,
        text(row, "test_case"),
        "allocated",
        float(count(row, "peak_allocated_bytes")),
        run,
        -1,
        int(option(extra, "--microbatch-group-size-per-virtual-pipeline-stage", 0)),
    )
