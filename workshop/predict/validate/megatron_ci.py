"""Megatron-LM's functional tests: peak allocated bytes of a real run, to the byte.

``megatron_lm_ci_golden_memory_time.csv`` holds what NVIDIA's own CI recorded.  The memory is that of the **last
rank**, the only one that writes to TensorBoard, hence of the last pipeline stage.  What a row leaves out is
Megatron-LM's default: GPT-2's vocabulary of 50,257 words padded to ``128 * tensor``, ``ffn = 4 * hidden`` (with SwiGLU
``int(4 * hidden * 2 / 3 / 64) * 64``), dropout of 0.1, layers with biases, LayerNorm, learned positions, eight
devices.  All of it stands in ``megatron/training/arguments.py``.

Attention is unfused where the row says so, and in golden files of the retired cluster "dracooci", which were
recorded before the configuration beside them changed: every one of their deterministic rows holds the probabilities.
On Hopper Transformer Engine picks cuDNN's attention, elsewhere FlashAttention-2, whose output is copied once more.
"""

from __future__ import annotations

import json
from typing import Any

from workshop.facts.checks import nearest
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.validate.memory_cases import MemoryCase, NotPredictable, Row, count, flag, text

GPT2_VOCAB = 50257
DEVICES = {"A100": "A100-80GB", "H100": "H100", "GB200": "GB200", "B200": "B200", "GB300": "GB300", "H200": "H200"}
NOT_TRAINING = {"distill": "the teacher of a distillation is not in the row",
                "grpo": "reinforcement learning: the inference engine's cache is in the figure, its size is not"}


def arguments(row: Row) -> dict[str, Any]:
    """The arguments that have no column of their own."""
    return json.loads(text(row, "other_args_json") or "{}")


def gpt_model(row: Row) -> ModelSpec:
    """The GPT that a row's arguments describe."""
    extra, hidden = arguments(row), count(row, "hidden_size")
    heads, gated = count(row, "attention_heads"), flag(row, "swiglu")
    bias = "--disable-bias-linear" not in extra
    usual_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    rotary = extra.get("--position-embedding-type", "learned_absolute") == "rope"
    latent = {}
    if extra.get("--multi-latent-attention"):
        latent = {"kv_lora_rank": extra["--kv-lora-rank"], "q_lora_rank": extra.get("--q-lora-rank", 0),
                  "qk_nope_head_dim": extra["--qk-head-dim"], "qk_rope_head_dim": extra["--qk-pos-emb-head-dim"],
                  "v_head_dim": extra["--v-head-dim"], "head_dim": extra["--v-head-dim"]}
    experts = count(row, "num_experts", 0)
    routed = {"num_experts": experts, "experts_per_token": count(row, "moe_topk", 2),
              "moe_ffn_hidden_size": count(row, "moe_ffn_hidden_size", 0)} if experts else {}
    return ModelSpec(
        text(row, "test_case"), count(row, "num_layers"), hidden, heads, count(row, "vocab_size", GPT2_VOCAB),
        ffn_hidden_size=count(row, "ffn_hidden_size", usual_ffn), num_kv_heads=count(row, "kv_groups", heads),
        positions="rotary" if rotary or latent else "learned", max_positions=extra["--max-position-embeddings"],
        norm="rmsnorm" if extra.get("--normalization") == "RMSNorm" else "layernorm", gated_mlp=gated,
        qkv_bias=bias, attention_out_bias=bias, mlp_bias=bias, tied_embeddings=not flag(row, "untie_embeddings"),
        qk_norm="head" if "--qk-layernorm" in extra and not latent else "none", **latent, **routed)


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
    deferred = extra.get("--wgrad-deferral-limit", 0) if "--defer-embedding-wgrad-compute" in extra else 0
    fused_loss = "--cross-entropy-loss-fusion" in extra
    return implementation("megatron-local" if local else "megatron", attention=attention,
                          dropout=extra.get("--hidden-dropout", 0.1) > 0,
                          loss="vocab-parallel-fused" if fused_loss else "vocab-parallel",
                          held_logit_grads=deferred, fixed_workspace="--deterministic-mode" in extra)


def layout_of(row: Row, num_layers: int) -> tuple[Layout, int]:
    """The layout, and the number of devices."""
    extra = arguments(row)
    t, p, c = count(row, "tp", 1), count(row, "pp", 1), count(row, "cp", 1)
    devices = count(row, "gpus_from_recipe", max(8, t * p * c))
    data = max(1, devices // (t * p * c))
    zero = 3 if text(row, "dp_sharding") == "optim_grads_params" else int(flag(row, "distributed_optimizer"))
    instances = extra.get("--num-distributed-optimizer-instances", 1)
    sharded = data // instances if zero else 1
    per_chunk = count(row, "layers_per_virtual_stage", 0)
    virtual = num_layers // p // per_chunk if per_chunk else extra.get("--num-virtual-stages-per-pipeline-rank", 1)
    fp8 = "megatron-fp8-params" if "--fp8-param-gather" in extra else "megatron-fp8"
    layout = Layout(
        replicate=data // sharded, shard=sharded, zero=zero, tensor=t, sequence_parallel=flag(row, "sequence_parallel")
        and t > 1, pipeline=p, virtual_stages=virtual, context=c, expert=count(row, "ep", 1),
        recompute=text(row, "recompute_granularity") or "none", recompute_every=count(row, "recompute_num_layers", 1),
        recompute_modules=tuple(text(row, "recompute_modules").split()),
        precision=fp8 if text(row, "fp8_format") else "megatron-bf16",
        first_stage_layers=extra.get("--decoder-first-pipeline-num-layers", 0),
        last_stage_layers=extra.get("--decoder-last-pipeline-num-layers", 0),
        embedding_in_stages="account_for_embedding_loss" in text(row, "test_case"))
    return layout, t * p * c * data


def case_of(row: Row, number: int) -> MemoryCase:
    """One row as a case of its peak."""
    for word, reason in NOT_TRAINING.items():
        if word in text(row, "test_case"):
            raise NotPredictable(reason)
    if text(row, "family") != "gpt":
        raise NotPredictable(f"family {text(row, 'family')!r}: its second stack is not in the row's columns")
    model, device = gpt_model(row), device_of(row)
    layout, devices = layout_of(row, model.num_layers)
    run = Run(model, f"{devices}x{device}", layout, count(row, "micro_batch_size_seqs"), count(row, "seq_len_tokens"),
              global_batch=count(row, "global_batch_size_seqs"), implementation=kernels(row, device))
    group = arguments(row).get("--microbatch-group-size-per-virtual-pipeline-stage", 0)
    return MemoryCase("megatron_lm_ci_golden_memory_time", text(row, "family"), number, text(row, "test_case"),
                      "allocated", float(count(row, "peak_allocated_bytes")), run, -1, group)
