"""Readers of the tables of sharded data parallelism: MosaicML's FSDP on A100 and H100, InternEvo on A100.

What a table leaves unsaid and had to be assumed stands in its reader's docstring.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.predict.validate.cases import TOKENS, Case
from workshop.predict.validate.rows import FULL, NONE, CannotPredict, Row, columns, gpt, number, whole

_MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}


def mosaic(row: Row, table: str, index: int) -> Case:
    """llm-foundry's MPT models under FSDP; vocabulary 50,368. DEFAULT reduces gradients in fp32, PURE in
    bf16.
    """
    if row["model"] not in _MPT:
        raise CannotPredict(f"the shape of model {row['model']!r} is not known")
    if row.get("activation_cpu_offload") == "True":
        raise CannotPredict("activations go to the CPU, which the time model does not have")
    layers, hidden, heads = _MPT[row["model"]]
    seq, gpus = whole(row, "seq_len_tokens"), whole(row, "gpus")
    gpu = {"a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB", "h100_80gb": "H100"}.get(row["gpu"])
    if gpu is None:
        raise CannotPredict(f"unknown device {row['gpu']!r}")
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[row["sharding_strategy"]]
    fp8 = "fp8" in row["precision"]
    pure = row.get("mp_mode") == "PURE"
    kind = f"{row['gpu']} {'fp8' if fp8 else 'bf16'}"
    return Case(
        table,
        f"{kind}, {row['model']}",
        index,
        TOKENS,
        number(row, "throughput_tokens_per_s_per_gpu"),
        gpt(layers, hidden, heads, seq, 50368),
        f"{gpus}x{gpu}",
        seq,
        "composer",
        "bf16" if pure else "fsdp-bf16",
        columns(
            shard=gpus,
            zero=zero,
            micro_batch=whole(row, "micro_batch_size_seqs"),
            accumulation=whole(row, "grad_accum_steps", 1),
            recompute=FULL if row["activation_checkpointing"] == "True" else NONE,
        ),
        dtype="fp8" if fp8 else "",
        stack_changes=(("gradient_bytes", 2.0),) if pure else (),
    )


def internevo(row: Row, table: str, index: int) -> Case:
    """InternEvo's 7B, flash attention; ZeRO-1 in groups of a node, replicated across nodes."""
    gpus, tp, zero = whole(row, "gpus"), whole(row, "tp"), whole(row, "zero1_size")
    dp = gpus // tp
    flops = row["table"].startswith("FLOPS")
    if flops and row["packed"] != "TRUE" and number(row, "tokens_per_s_per_gpu") > 3800:
        raise CannotPredict(
            "the same measurement as in the other section, where recomputation is said to be off"
        )
    layout = columns(
        shard=min(zero, dp),
        replicate=max(1, dp // zero),
        zero=1,
        tensor=tp,
        micro_batch=whole(row, "micro_batch_size_seqs"),
        accumulation=whole(row, "grad_accum"),
        recompute=FULL if row["activation_checkpointing"] == "TRUE" else NONE,
    )
    return Case(
        table,
        f"tp {tp}, {'packed' if row['packed'] == 'TRUE' else 'not packed'}",
        index,
        TOKENS,
        number(row, "tokens_per_s_per_gpu"),
        catalogue.model("internlm-7b"),
        f"{gpus}xA100-80GB",
        whole(row, "seq_len_tokens"),
        "internevo",
        "deepspeed-bf16",
        layout,
        inter="roce-4x100-per-node",
    )
