"""Readers of the tables measured on H100 and Blackwell.

What a table leaves unsaid and had to be assumed stands in its reader's docstring.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.model import ModelSpec
from workshop.predict.validate.cases import MFU, MODEL, TOKENS, Case
from workshop.predict.validate.memory_pretraining import nanotron_model
from workshop.predict.validate.rows import (
    FULL,
    NONE,
    SELECTIVE,
    CannotPredict,
    Row,
    batches,
    columns,
    gpt,
    number,
    whole,
)


def megatron_core(row: Row, table: str, index: int) -> Case:
    """Megatron-Core 0.8 on H100, bf16: flash attention, selective recomputation none, sequence parallel,
    distributed optimizer, overlapped reductions; micro-batch not given, 1 assumed from two on, pipelines interleaved
    (the README's command has the layers of a virtual stage at 2 and 4).
    """
    tp, pp, dp, gpus = (whole(row, x) for x in ("tp", "pp", "dp", "gpus"))
    seq, layers = whole(row, "seq_len_tokens"), whole(row, "num_layers")
    total = whole(row, "global_batch_size_seqs")
    model = gpt(
        layers, whole(row, "hidden_size"), whole(row, "attention_heads"), seq, whole(row, "vocab")
    ).resized(tied_embeddings=False)
    count = total // dp
    return Case(
        table,
        f"tp {tp}",
        index,
        MODEL,
        number(row, "tflops_per_gpu"),
        model,
        f"{gpus}xH100",
        seq,
        "megatron-core",
        "megatron-bf16",
        columns(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            virtual_stages=_virtual(layers, pp),
            micro_batch=1,
            accumulation=count,
        ),
        megatron_count=True,
    )


def _virtual(layers: int, pipeline: int) -> int:
    """Chunks per stage when the source interleaves and does not say how much: one layer or two each."""
    if pipeline == 1 or layers % pipeline:
        return 1
    each = layers // pipeline
    return next(v for v in (each // 2, each, 1) if v and each % v == 0)


_NAMES = {
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "llama3-8b": "llama-3-8b",
    "llama3.1-8b": "llama-3.1-8b",
    "llama3-70b": "llama-3-70b",
    "llama3.1-70b": "llama-3.1-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3-405b": "llama-3.1-405b",
    "mixtral-8x7b": "mixtral-8x7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "deepseekv3": "deepseek-v3",
    "deepseek-v3": "deepseek-v3",
    "deepseekv2": "deepseek-v2",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "kimi-k2": "kimi-k2",
    "grok1": "grok-1",
    "nemotron4-15b": "nemotron-4-15b",
    "nemotron-15b": "nemotron-4-15b",
    "nemotron4-340b": "nemotron-4-340b",
    "nemotron-340b": "nemotron-4-340b",
    "gpt3-175b": "gpt3-175b",
    "llama-2-7b": "llama-2-7b",
    "kimi-k2-1t": "kimi-k2",
    "qwen3-32b": "qwen3-32b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
}
# NeMo's own recipes (github NVIDIA/NeMo, nemo/collections/llm/recipes): layers, hidden, heads.
_NEMO = {"gpt3-5b": (24, 4096, 32), "gpt3-20b": (44, 6144, 48)}
_HYBRID = ("nemotron-3", "nemotronh", "nemotron-h")


def named_model(name: str, seq_len: int) -> ModelSpec:
    """A model by the name NVIDIA's tables give it."""
    plain = name.split("(")[0].strip().lower().replace("_", "-").replace(" ", "-")
    if plain.startswith(_HYBRID):
        raise CannotPredict(f"{name}: state-space layers, which the time model does not have")
    if plain in _NEMO:
        return gpt(*_NEMO[plain], seq_len)
    if plain not in _NAMES:
        raise CannotPredict(f"the shape of model {name!r} is not known")
    return catalogue.model(_NAMES[plain])


_FORMATS = {
    "BF16": "",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "FP8-DS": "fp8",
    "FP8-MX": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "fp4",
    "FP8-SC": "fp8",
    "FP8-BLOCK": "fp8",
}


def bridge(row: Row, table: str, index: int) -> Case:
    """Megatron-Bridge's performance summary. Of two configurations "a (b)" the first.

    A row of "fsdp" ranks is fully sharded over them, else the optimizer is sharded over all data-parallel ranks
    (the recipes' default). Tensor parallelism comes with sequence parallelism.
    """
    text = (row.get("precision") or "").split("(")[0].strip()
    if text not in _FORMATS:
        raise CannotPredict(f"precision is {text or 'not stated'!r}")
    task = row.get("task") or ""
    if "LoRA" in task:
        raise CannotPredict("LoRA: most weights have no gradient, which the time model does not have")
    gpus, seq = whole(row, "gpus"), whole(row, "seq_len_tokens")
    tp, pp, cp, ep = whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "cp", 1), whole(row, "ep", 1)
    dp = gpus // (tp * pp * cp)
    model = named_model(row["model"], seq)
    micro, count = batches(row, dp)
    fsdp = whole(row, "fsdp", 0)
    layout = columns(
        shard=dp,
        zero=3 if fsdp > 1 else 1,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        context=cp,
        virtual_stages=whole(row, "vp", 1) if pp > 1 else 1,
        expert=ep if model.is_moe else 1,
        micro_batch=micro,
        accumulation=count,
    )
    changes = (("captured_experts", True),) if release(row) >= (26, 6) else ()
    system = row["system"].replace("DGX-", "")
    return Case(
        table,
        f"{system} {'MoE' if model.is_moe else 'dense'} {text}",
        index,
        TOKENS,
        number(row, "tokens_per_s_per_gpu"),
        model,
        f"{gpus}x{system}",
        seq,
        "megatron-bridge",
        "megatron-bf16",
        layout,
        dtype=_FORMATS[text],
        stack_changes=changes,
    )


def release(row: Row) -> tuple[int, int]:
    """Year and month of the container; from 26.06 on, whole steps with experts are captured as CUDA graphs."""
    year, month = (row.get("release") or "0.0").split()[0].split(".")[:2]
    return int(year), int(month)


def nemo(row: Row, table: str, index: int) -> Case:
    """NeMo 24.07 on DGX H100 in FP8."""
    if row["task"] != "pretrain" and "LoRA" in row["task"]:
        raise CannotPredict("LoRA: most weights have no gradient, which the time model does not have")
    gpus, seq = whole(row, "gpus"), whole(row, "seq_len_tokens")
    tp, pp, cp = whole(row, "tp"), whole(row, "pp"), whole(row, "cp", 1)
    dp = gpus // (tp * pp * cp)
    micro, count = batches(row, dp)
    return Case(
        table,
        f"tp {tp}",
        index,
        TOKENS,
        number(row, "tokens_per_s_per_gpu"),
        named_model(row["model"], seq),
        f"{gpus}xH100",
        seq,
        "nemo",
        "megatron-bf16",
        columns(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            context=cp,
            virtual_stages=whole(row, "vp", 1) if pp > 1 else 1,
            micro_batch=micro,
            accumulation=count,
        ),
        dtype="fp8" if row["precision"] == "FP8" else "",
    )


def nemo_long(row: Row, table: str, index: int) -> Case:
    """Llama 2 7B on long sequences with context parallelism, FP8; micro-batch 1, layouts of the runs with CP."""
    seq = whole(row, "seq_len_k_tokens") * 1024
    tp, pp, dp, cp = (whole(row, x) for x in ("tp", "pp", "dp", "cp"))
    gpus = whole(row, "gpus")
    if tp * pp * dp * cp != gpus:
        raise CannotPredict(f"tp {tp} x pp {pp} x dp {dp} x cp {cp} is not {gpus} devices")
    count = whole(row, "global_batch_size_seqs") // dp
    return Case(
        table,
        f"cp {cp}",
        index,
        MODEL,
        number(row, "tflops_per_gpu_with_cp"),
        catalogue.model("llama-2-7b"),
        f"{gpus}xH100",
        seq,
        "nemo",
        "megatron-bf16",
        columns(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            context=cp,
            micro_batch=1,
            accumulation=count,
        ),
        dtype="fp8",
    )


def torchtitan(row: Row, table: str, index: int) -> Case:
    """torchtitan: FSDP2, with tensor and asynchronous tensor parallelism."""
    model = row["model"].lower().replace("llama3.1", "llama-3.1").replace("llama3-", "llama-3-")
    gpus, tp, pp, cp = (whole(row, x) for x in ("gpus", "tp", "pp", "cp"))
    shard, seq = whole(row, "fsdp"), whole(row, "seq_len_tokens")
    checkpointing = row["activation_checkpointing"]
    recompute = (
        FULL if checkpointing == "full" else SELECTIVE if checkpointing.startswith("selective") else NONE
    )
    fp8 = row["float8"] not in ("0", "", "False")
    if row["float8"] == "rowwise":
        raise CannotPredict("rowwise FP8 was slower than bf16: its kernels, not the device, set the time")
    if model not in catalogue.models():
        raise CannotPredict(f"the shape of model {row['model']!r} is not known")
    device = "H100-96GB" if row["gpu"].startswith("H100") else "A100-80GB"
    stack = "torchtitan-compile" if row["compile"] == "1" else "torchtitan"
    changes: tuple[tuple[str, object], ...] = (("overlap_tensor", 0.5),) if row["async_tp"] == "1" else ()
    replicate = gpus // (shard * tp * pp * cp)
    return Case(
        table,
        f"{device} {'fp8' if fp8 else 'bf16'}, tp {tp}",
        index,
        TOKENS,
        number(row, "tps_per_gpu_tokens_per_s"),
        catalogue.model(model),
        f"{gpus}x{device}",
        seq,
        stack,
        "fsdp-bf16",
        columns(
            replicate=replicate,
            shard=shard,
            zero=3,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            context=cp,
            micro_batch=whole(row, "local_batch_size_seqs"),
            recompute=recompute,
            recompute_share=0.5 if checkpointing == "selective layer" else 1.0,
        ),
        dtype="fp8" if fp8 else "",
        stack_changes=changes,
    )


def fms(row: Row, table: str, index: int) -> Case:
    """IBM's fms-fsdp: Llama 2 under FSDP or hybrid sharding (within nodes), compiled; the network is per node."""
    gpus, seq = whole(row, "gpus"), whole(row, "seq_len_tokens")
    device = "A100-80GB" if row["gpu"].startswith("A100") else "H100"
    shard = 8 if row["sharding"] == "HSDP" else gpus
    inter = {"400 Gbps": "roce-4x100-per-node", "800 Gbps": "infiniband-edr"}.get(
        row["inter_node_network"], ""
    )
    return Case(
        table,
        device,
        index,
        TOKENS,
        number(row, "tokens_per_s_per_gpu"),
        catalogue.model(f"llama-2-{row['model']}"),
        f"{gpus}x{device}",
        seq,
        "torchtitan-compile",
        "fsdp-bf16",
        columns(
            shard=shard,
            replicate=gpus // shard,
            zero=3,
            micro_batch=whole(row, "local_batch_size_seqs"),
            recompute=SELECTIVE if row["activation_checkpointing"].startswith("Sel") else NONE,
        ),
        inter=inter,
        stack_changes=(("gradient_bytes", 2.0),),
    )


def llama3(row: Row, table: str, index: int) -> Case:
    """Llama 3 405B in training (arXiv 2407.21783, table 4): sequence 8,192, and 131,072 with context parallelism."""
    tp, cp, pp, dp = (whole(row, x) for x in ("tp", "cp", "pp", "dp_derived"))
    seq = 131072 if cp > 1 else 8192
    sequences = int(number(row, "tokens_per_batch_M") * 2**20) // seq
    return Case(
        table,
        f"cp {cp}",
        index,
        MODEL,
        number(row, "tflops_per_gpu"),
        catalogue.model("llama-3.1-405b"),
        f"{tp * cp * pp * dp}xH100",
        seq,
        "megatron-core",
        "megatron-bf16",
        columns(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=True,
            pipeline=pp,
            context=cp,
            virtual_stages=4,
            micro_batch=1,
            accumulation=max(1, sequences // dp),
        ),
    )


def nanotron(row: Row, table: str, index: int) -> Case:
    """The Ultra-Scale Playbook's best layouts: bf16, FlashAttention-2, sequence 4,096; MFU against 989 TFLOP/s."""
    dp, tp, pp = (whole(row, x) for x in ("dp", "tp", "pp"))
    model = nanotron_model(float(row["model_params"].rstrip("B")))
    zero = whole(row, "zero_stage", 0)
    return Case(
        table,
        f"{row['model_params']}",
        index,
        MFU,
        number(row, "mfu_percent"),
        model,
        f"{dp * tp * pp}xH100",
        4096,
        "nanotron",
        "megatron-bf16",
        columns(
            shard=dp if zero else 1,
            replicate=1 if zero else dp,
            zero=zero,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            micro_batch=whole(row, "micro_batch_size_seqs"),
            accumulation=whole(row, "grad_accum"),
        ),
    )
