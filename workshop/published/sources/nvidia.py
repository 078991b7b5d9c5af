"""NVIDIA's own performance tables: Megatron-Bridge and NeMo, H100 and Blackwell (github
NVIDIA-NeMo/Megatron-Bridge and NVIDIA/NeMo, their performance summaries).

Of two configurations "a (b)" the first. The release of the container decides nothing. What Megatron-Bridge's
tables do not say of a configuration stands in its published recipe (the repository's `scripts/performance`
and `perf_recipes`): who dispatches tokens, what is recomputed, captured, fused and overlapped. Those columns
were filled in from the recipe whose layout is the row's, which the column `recipe` names.
"""

from __future__ import annotations

import re
from typing import Any

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import Stack, stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import check_devices, choice, data_parallel, flag, plain, text, unused, whole
from workshop.published.micro_batch import ASSUMED as MICRO_BATCH
from workshop.published.micro_batch import fastest_that_fits
from workshop.published.names import named_device, named_model
from workshop.published.record import MODEL, TOKENS, MeasuredRun, Row, Source

FORMATS = {
    "BF16": "megatron-bf16",
    **dict.fromkeys(("FP8", "FP8-CS", "FP8-DS", "FP8-MX", "FP8-SC", "FP8-BLOCK", "MXFP8"), "megatron-fp8"),
    "NVFP4": "megatron-fp4",
}
USUAL = (
    ("zero_stage", "1, over all data-parallel ranks: the recipes' default"),
    ("sequence_parallel", "with tensor parallelism: the recipes' default"),
    ("schedule", "embedding and loss count as layers where layers alone do not divide: the recipes' option"),
)


ASSUMED = {
    "recompute": "none: not in the table",
    "stack": "captured as CUDA graphs, experts are not: no recipe in the row",
}
OVERLAPPED = 0.93
"""Share of the exchange between experts that merged passes hide (arXiv 2603.07685, section 4.2.3)."""
HYBRID_EP_MULTIPROCESSORS = 32.0
"""`moe_hybridep_num_sms` of the recipes (scripts/performance/utils/overrides.py)."""
DISPATCHERS = {"hybridep": "tokens", "deepep": "tokens", "alltoall": "alltoall", "": "tokens"}
NO_BUFFERS: dict[str, Any] = {"overlap_tensor": 0.0, "overlap_input_gradient": True}
"""Without buffers tensor parallelism does not hide, but Transformer Engine still sums an input's gradient
while it computes the weight's (pytorch/module/linear.py, the backward pass of `_Linear`)."""
BUFFERLESS = ("NVFP4",)
"""Formats whose recipes switch the buffers off: `tp_comm_overlap = False if precision == "nvfp4"`
(Megatron-Bridge scripts/performance/configs/llama/llama31_llm_pretrain.py @ 0013c9a; NCCL's kernels stand in
a profile of it)."""
GATHERED = ("FP8", "FP8-CS", "FP8-DS")
"""Formats whose weights are gathered in 8 bits: `fp8_param_gather` of delayed and of current scaling, one of
which an "FP8" is (Megatron-Bridge src/megatron/bridge/training/mixed_precision.py @ 0509780, NVIDIA/NeMo
nemo/collections/llm/recipes/precision/mixed_precision.py @ 0a07447). MXFP8, which needs both orientations,
gathers 16 bits: in the gradients' buffer (`reuse_grad_buf_for_mxfp8_param_ag`), in NeMo at all."""
GRAPHS = ("none", "full_iteration", "attn", "mlp", "moe_router", "moe_preprocess")


def stated_format(row: Row) -> tuple[str, str]:
    """The row's word for its format, and the recipe."""
    word = text(row, "precision").split("(")[0].strip()
    if not word:
        raise NotPredictable("precision is not given")
    return word, choice({"precision": word}, "precision", FORMATS)


def stated_adapter(row: Row) -> tuple[Adapter | None, tuple[tuple[str, str], ...]]:
    """LoRA where the task says so; its rank and targets are not in the tables. The recipes adapt `linear_qkv`
    alone (Megatron-Bridge scripts/performance/configs/llama/llama3_llm_finetune.py, and NeMo's before it).
    """
    if "lora" not in text(row, "task").lower():
        return None, ()
    words = "16, on queries, keys and values, as the recipes adapt: not in the table"
    return Adapter("lora", 16, ("q", "k", "v")), (("adapter_rank", words),)


def with_prediction_block(name: str, shape: ModelSpec) -> tuple[ModelSpec, tuple[tuple[str, str], ...]]:
    """DeepSeek-V3's block of multi-token prediction is a layer more, unless the name says "w/o MTP"."""
    if shape.name != "deepseek-v3" or "w/o MTP" in name:
        return shape, ()
    words = f"{shape.num_layers + 1}: the block of multi-token prediction counted as a layer"
    return shape.resized(num_layers=shape.num_layers + 1), (("num_layers", words),)


def ends_count(layers: int, total_chunks: int) -> bool:
    """Whether embedding and loss count as layers when stages are cut: where layers alone do not divide."""
    return layers % total_chunks > 0 and (layers + 2) % total_chunks == 0


def layout_of(row: Row, shape: ModelSpec, precision: str) -> Layout:
    """A row of "fsdp" ranks is fully sharded over them, else the optimizer is sharded over all."""
    devices = whole(row, "gpus")
    tp, pp, cp, ep = (whole(row, name, 1) for name in ("tp", "pp", "cp", "ep"))
    data, fsdp = data_parallel(devices, tp, pp, cp), whole(row, "fsdp", 0)
    virtual = whole(row, "vp", 1) if pp > 1 else 1
    modules = tuple(filter(None, text(row, "recompute_modules").split("+")))
    shard = fsdp if fsdp > 1 else data
    if data % shard:
        raise NotPredictable(f"fsdp {fsdp} does not divide {data} data-parallel ranks")
    return Layout(
        shard=shard,
        replicate=data // shard,
        zero=3 if fsdp > 1 else 1,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        context=cp,
        virtual_stages=virtual,
        embedding_in_stages=ends_count(shape.num_layers, pp * virtual),
        expert=ep if shape.is_moe else 1,
        expert_tensor=1 if shape.is_moe else 0,
        precision=precision,
        recompute="full" if modules == ("full",) else "selective" if modules else "none",
        recompute_modules=() if modules == ("full",) else modules,
    )


def stated_stack(row: Row, moe: bool, name: str = "megatron-bridge") -> Stack:
    """What the row's recipe says of the stack. A layer is captured where its attention and dense MLP are;
    experts only where the whole iteration is, as their shapes depend on the data.
    """
    scope = text(row, "cuda_graphs").split("+")
    if scope == [""]:
        return stack(name)
    for part in scope:
        choice({"cuda_graphs": part}, "cuda_graphs", dict.fromkeys(GRAPHS, part))
    whole_step = scope == ["full_iteration"]
    dispatcher, hidden = choice(row, "dispatcher", DISPATCHERS), flag(row, "a2a_overlap")
    return stack(
        name,
        time={
            "captured": whole_step or ("attn" in scope and (moe or "mlp" in scope)),
            "captured_experts": whole_step,
            "dispatcher": dispatcher,
            "overlap_expert": OVERLAPPED * hidden,
            "dispatch_multiprocessors": HYBRID_EP_MULTIPROCESSORS * hidden,
            "fused_experts": flag(row, "fused_experts"),
            "stashed_experts": flag(row, "paged_stash"),
            "attention_bits": 8 if flag(row, "fp8_attention") else 16,
            "head_bits": 8 if flag(row, "fp8_head") else 16,
            "gathers_quantized": stated_format(row)[0] in GATHERED,
            **(NO_BUFFERS if stated_format(row)[0] in BUFFERLESS else {}),
        },
    )


def run_of(row: Row, shape: ModelSpec, layout: Layout, used: Stack, adapter: Adapter | None = None) -> Run:
    """The run of a row, from what was read of it."""
    micro = whole(row, "micro_batch_size_seqs")
    return Run(
        shape,
        f"{layout.world_size}x{named_device(text(row, 'system'))}",
        layout,
        micro,
        whole(row, "seq_len_tokens"),
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), micro, layout.data_parallel),
        adapter=adapter,
        implementation=used.implementation,
    )


def bridge(row: Row) -> MeasuredRun:
    """Megatron-Bridge's performance summary."""
    word, precision = stated_format(row)
    name = text(row, "model")
    shape, predicts = with_prediction_block(name, named_model(name, whole(row, "seq_len_tokens")))
    layout, (adapter, rank) = layout_of(row, shape, precision), stated_adapter(row)
    used = stated_stack(row, shape.is_moe)
    run = run_of(row, shape, layout, used, adapter)
    left = () if text(row, "recipe") else tuple(ASSUMED.items())
    group = f"{run.cluster.device.name} {'MoE' if shape.is_moe else 'dense'} {word}"
    note = "; ".join(filter(None, (text(row, "release"), text(row, "note"))))
    return MeasuredRun(
        f"{name} on {layout.world_size}",
        group,
        run,
        used.software,
        assumed=(*USUAL, *left, *predicts, *rank),
        note=note,
    )


def nemo(row: Row) -> MeasuredRun:
    """NeMo 24.07 on DGX H100."""
    _, precision = stated_format(row)
    name = text(row, "model")
    shape, used = named_model(name, whole(row, "seq_len_tokens")), stack("nemo")
    layout, (adapter, rank) = layout_of(row, shape, precision), stated_adapter(row)
    run = run_of(row, shape, layout, used, adapter)
    return MeasuredRun(
        f"{name} on {layout.world_size}",
        f"tp {layout.tensor}",
        run,
        used.software,
        assumed=(*USUAL, ("recompute", ASSUMED["recompute"]), *rank),
    )


def nemo_long(row: Row) -> MeasuredRun:
    """One model on ever longer sequences with context parallelism; layouts of the runs with it."""
    title = text(row, "model_precision_gpu")
    parts = re.fullmatch(r"(.+?) \((\w+)\) - (.+)", title)
    if parts is None:
        raise NotPredictable(f"model_precision_gpu is {title!r}, not 'MODEL (FORMAT) - DEVICE'")
    tp, pp, dp, cp, devices = (whole(row, name) for name in ("tp", "pp", "dp", "cp", "gpus"))
    check_devices(devices, tp=tp, pp=pp, dp=dp, cp=cp)
    seq, used = whole(row, "seq_len_k_tokens") * 1024, stack("nemo")
    layout = Layout(
        shard=dp,
        zero=1,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        context=cp,
        precision=choice({"precision": parts[2]}, "precision", FORMATS),
    )
    run = Run(
        named_model(parts[1], seq),
        f"{devices}x{named_device(parts[3])}",
        layout,
        1,
        seq,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), 1, dp),
        implementation=used.implementation,
    )
    run = fastest_that_fits(run, used.software)
    micro = f"{run.micro_batch}, {MICRO_BATCH}"
    assumed = (*USUAL, ("recompute", ASSUMED["recompute"]), ("micro_batch_sequences", micro))
    return MeasuredRun(f"seq {seq} on {devices}", f"cp {cp}", run, used.software, assumed=assumed)


SOURCES = (
    Source(
        ("nvidia_megatron_bridge_performance",),
        bridge,
        {"tokens_per_s_per_gpu": plain(TOKENS), "model_tflops_per_gpu": unused},
    ),
    Source(
        ("nvidia_nemo_2407_h100_fp8",),
        nemo,
        {
            "tokens_per_s_per_gpu": plain(TOKENS),
            "model_tflops_per_gpu": unused,
            "est_days_10T_tokens_1k_gpus": unused,
            "est_minutes_10M_tokens": unused,
        },
    ),
    Source(
        ("nvidia_nemo_long_sequence_cp",),
        nemo_long,
        {
            "tflops_per_gpu_with_cp": plain(MODEL),
            "tflops_per_gpu_without_cp": unused,
            "speedup_cp": unused,
        },
    ),
)
