"""Readers of NVIDIA's own performance tables: NeMo and Megatron-Bridge, H100 and Blackwell.

What a table leaves unsaid and had to be assumed stands in its reader's docstring.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.model import ModelSpec
from workshop.predict.validate.cases import MODEL, TOKENS, Case
from workshop.predict.validate.rows import CannotPredict, Row, batches, columns, gpt, number, whole

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
    if plain in catalogue.models():
        return catalogue.model(plain)
    if plain not in _NAMES:
        raise CannotPredict(f"the shape of model {name!r} is not known")
    model = catalogue.model(_NAMES[plain])
    if plain in ("deepseekv3", "deepseek-v3") and "w/o MTP" not in name:
        # Its block of multi-token prediction is a layer more.
        return model.resized(num_layers=model.num_layers + 1)
    return model


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


def _format(row: Row) -> str:
    """The format a row states, if it trains all weights."""
    text = (row.get("precision") or "").split("(")[0].strip()
    if text not in _FORMATS:
        raise CannotPredict(f"precision is {text or 'not stated'!r}")
    if "LoRA" in (row.get("task") or ""):
        raise CannotPredict("LoRA: most weights have no gradient, which the time model does not have")
    return text


def bridge(row: Row, table: str, index: int) -> Case:
    """Megatron-Bridge's performance summary. Of two configurations "a (b)" the first.

    A row of "fsdp" ranks is fully sharded over them, else the optimizer is sharded over all data-parallel
    ranks (the recipes' default). Tensor parallelism comes with sequence parallelism.
    """
    text = _format(row)
    gpus, seq = whole(row, "gpus"), whole(row, "seq_len_tokens")
    tp, pp, cp, ep = whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "cp", 1), whole(row, "ep", 1)
    dp = gpus // (tp * pp * cp)
    model = named_model(row["model"], seq)
    micro, count = batches(row, dp)
    layout = columns(
        shard=dp,
        zero=3 if whole(row, "fsdp", 0) > 1 else 1,
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
    """Year and month of the container; from 26.06 on, whole steps with experts are captured as CUDA
    graphs.
    """
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
    """Llama 2 7B on long sequences with context parallelism, FP8; micro-batch 1, layouts of the runs with
    CP.
    """
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
