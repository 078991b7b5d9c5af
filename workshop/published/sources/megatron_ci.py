"""Megatron-LM's functional tests: peak allocated bytes of a real run, to the byte.

The table holds what NVIDIA's own CI recorded. The memory is that of the **last rank**, the only one that
writes to TensorBoard, hence of the last pipeline stage. What a row leaves out is Megatron-LM's default
(``megatron/training/arguments.py``), eight devices among it.

Attention is unfused where the row says so. Otherwise it is fused: on Hopper Transformer Engine picks
cuDNN's, elsewhere FlashAttention-2, whose output is copied once more. (Golden files of the retired cluster
"dracooci" hold the probabilities although no argument says so. The cluster's name decides nothing here, and
these rows are predicted too low.)
"""

from __future__ import annotations

from typing import Any

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import Stack, stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import choice, data_parallel, flag, plain, text, unused, virtual_stages
from workshop.published.cells import whole as count
from workshop.published.names import named_device
from workshop.published.record import ALLOCATED, MeasuredRun, Row, Source
from workshop.published.sources.megatron_arguments import arguments, model_of, option

ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
NOT_TRAINING = {
    "distill": "the teacher of a distillation is not in the row",
    "multimodal": "the vision model is not in the row",
    "grpo": "reinforcement learning: the inference engine's cache is in the figure, its size is not",
}
UNKNOWN = "unknown (no platform in file name)"


def device_of(row: Row) -> str:
    """The catalogue's name of the device; where the file's name has no platform, an A100 (an assumption)."""
    name = text(row, "gpu")
    return named_device("A100" if name == UNKNOWN else name, 80 if name in ("A100", UNKNOWN) else 0)


def kernels(row: Row, device: str) -> Stack:
    """What Megatron-LM's modules save under the row's arguments."""
    extra = arguments(row)
    local = text(row, "transformer_impl") == "local" or extra.get("--spec") == "local"
    if local or text(row, "attention_backend") in ("unfused", "local"):
        attention = "unfused"
    else:
        attention = "flash" if device.startswith("H") else "flash-copy"
    fused_loss = "--cross-entropy-loss-fusion" in extra
    choices: dict[str, Any] = {
        "attention": attention,
        "dropout": option(extra, "--hidden-dropout", 0.1) > 0,
        "vocab_multiple": int(option(extra, "--make-vocab-size-divisible-by", 128)),
        "loss": "vocab-parallel-fused" if fused_loss else "vocab-parallel",
        "held_logit_grads": int(option(extra, "--wgrad-deferral-limit", 0)),
        "fixed_workspace": "--deterministic-mode" in extra,
    }
    return stack("megatron-local" if local else "megatron-core", memory=choices)


def cut_of(row: Row) -> dict[str, Any]:
    """Sizes of the axes; data parallelism takes the devices that are left."""
    extra = arguments(row)
    t, p, c = count(row, "tp", 1), count(row, "pp", 1), count(row, "cp", 1)
    data = data_parallel(count(row, "gpus_from_recipe", max(8, t * p * c)), t, p, c)
    zero = choice(row, "dp_sharding", {**ZERO_STAGES, "": int(flag(row, "distributed_optimizer"))})
    instances = int(option(extra, "--num-distributed-optimizer-instances", 1))
    if data % instances:
        raise NotPredictable(f"{instances} distributed optimizers do not divide {data} data-parallel ranks")
    shard = data // instances if zero else 1
    return {
        "tensor": t,
        "pipeline": p,
        "context": c,
        "zero": zero,
        "shard": shard,
        "replicate": data // shard,
    }


def precision_of(row: Row) -> str:
    """The recipe that the row's switches mean."""
    if text(row, "fp8_format"):
        return "megatron-fp8-params" if "--fp8-param-gather" in arguments(row) else "megatron-fp8"
    return "megatron-fp16" if flag(row, "fp16") else "megatron-bf16"


def layout_of(row: Row, num_layers: int) -> Layout:
    """The layout of a row."""
    extra, sizes = arguments(row), cut_of(row)
    routed = count(row, "num_experts", 0) > 0
    by_chunk = virtual_stages(num_layers, sizes["pipeline"], count(row, "layers_per_virtual_stage", 0))
    by_option = int(option(extra, "--num-virtual-stages-per-pipeline-rank", 1))
    recompute = text(row, "recompute_granularity") or "none"
    selected = text(row, "recompute_modules").replace(",", " ").split() if recompute == "selective" else ()
    return Layout(
        **sizes,
        sequence_parallel=flag(row, "sequence_parallel") and sizes["tensor"] > 1,
        virtual_stages=by_chunk if text(row, "layers_per_virtual_stage") else by_option,
        expert=count(row, "ep", 1) if routed else 1,
        expert_tensor=count(row, "etp", 0) if routed else 0,
        recompute=recompute,
        recompute_every=count(row, "recompute_num_layers", 1),
        recompute_modules=tuple(selected),
        precision=precision_of(row),
        offload="optimizer" if flag(row, "optimizer_cpu_offload") else "none",
        **ends_of(row) if sizes["pipeline"] > 1 else {},
    )


def ends_of(row: Row) -> dict[str, Any]:
    """How long the first and the last stage are, where that is said."""
    extra = arguments(row)
    named = "--account-for-embedding-in-pipeline-split" in extra
    if named or "account_for_embedding_loss" in text(row, "test_case"):
        return {"embedding_in_stages": True}
    return {
        "first_stage_layers": int(option(extra, "--decoder-first-pipeline-num-layers", 0)),
        "last_stage_layers": int(option(extra, "--decoder-last-pipeline-num-layers", 0)),
    }


def assumptions(row: Row) -> tuple[tuple[str, str], ...]:
    """What the row leaves to Megatron-LM's defaults, or to us."""
    assumed = []
    if text(row, "gpu") == UNKNOWN:
        assumed.append(("device", "A100-80GB: the file's name has no platform"))
    elif text(row, "gpu") == "A100":
        assumed.append(("device", "A100 with 80 GB: the source says A100"))
    if not text(row, "gpus_from_recipe"):
        assumed.append(("num_devices", "8: the test's recipe is not in the table"))
    if not text(row, "vocab_size"):
        assumed.append(("vocab_size", "that of the script's tokenizer (GPT-2, BERT or T5)"))
    return tuple(assumed)


def describe(row: Row) -> MeasuredRun:
    """One row as a run."""
    for word, reason in NOT_TRAINING.items():
        if word in text(row, "test_case"):
            raise NotPredictable(reason)
    extra, shape, device = arguments(row), model_of(row), device_of(row)
    layout, used = layout_of(row, shape.num_layers), kernels(row, device)
    target = int(option(extra, "--decoder-seq-length", 0))
    run = Run(
        shape,
        f"{layout.world_size}x{device}",
        layout,
        count(row, "micro_batch_size_seqs"),
        count(row, "seq_len_tokens", int(option(extra, "--encoder-seq-length", 0)) or None),
        global_batch=count(row, "global_batch_size_seqs"),
        optimizer="muon" if "muon" in str(extra.get("--optimizer")) else "adamw",
        target_len=target if shape.num_encoder_layers else 0,
        implementation=used.implementation,
    )
    return MeasuredRun(
        text(row, "test_case"),
        text(row, "family"),
        run,
        used.software,
        assumed=assumptions(row),
        stage=-1,
        pass_group=int(option(extra, "--microbatch-group-size-per-virtual-pipeline-stage", 0)),
    )


SOURCE = Source(
    ("megatron_lm_ci_golden_memory_time",),
    describe,
    {
        "peak_allocated_bytes": plain(ALLOCATED),
        "steady_allocated_bytes": unused,
        "iteration_time_s_median_after_first": unused,
        "iteration_time_points": unused,
    },
    time_unread="deterministic test mode with mock data: not the times of training",
)
