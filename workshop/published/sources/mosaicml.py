"""llm-foundry's MPT models under FSDP on A100 and H100 (github mosaicml/llm-foundry,
scripts/train/benchmarking).

DEFAULT reduces gradients in fp32, PURE in bf16. Shapes are those of the same folder's configurations.
"""

from __future__ import annotations

from typing import Any

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.published.cells import choice, flag, gpt, plain, text, unused, whole
from workshop.published.names import named_device
from workshop.published.record import TOKENS, MeasuredRun, Row, Source

VOCAB = 50368
SHAPES = {
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
PRECISIONS = {"bf16": "16", "amp_bf16": "16", "fp8": "8", "amp_fp8": "8"}


def attention_of(gpu: str) -> dict[str, Any]:
    """Which attention kernel: the script's default was Triton's when A100 was measured, and later
    FlashAttention's, when it also knew H100 (submit_benchmarks.py of that folder @ 12a6319 and @ 51652ea).
    """
    return {"attention": "flash-triton"} if gpu.startswith("a100") else {}


def describe(row: Row) -> MeasuredRun:
    """One row: one sharding group over all devices."""
    seq, devices, size = whole(row, "seq_len_tokens"), whole(row, "gpus"), text(row, "model")
    model = gpt(*choice(row, "model", SHAPES), seq, VOCAB)
    eight = choice(row, "precision", PRECISIONS) == "8"
    pure = choice(row, "mp_mode", {"PURE": True, "DEFAULT": False})
    used = stack("composer", time=attention_of(text(row, "gpu")) | ({"gradient_bytes": 2.0} if pure else {}))
    layout = Layout(
        shard=devices,
        zero=choice(row, "sharding_strategy", {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}),
        recompute="full" if flag(row, "activation_checkpointing") else "none",
        precision="fsdp-fp8" if eight else "bf16" if pure else "fsdp-bf16",
        offload="activations" if flag(row, "activation_cpu_offload") else "none",
    )
    run = Run(
        model,
        f"{devices}x{named_device(text(row, 'gpu'))}",
        layout,
        whole(row, "micro_batch_size_seqs"),
        seq,
        accumulation=whole(row, "grad_accum_steps", 1),
        implementation=used.implementation,
    )
    kind = f"{text(row, 'gpu')} {'fp8' if eight else 'bf16'}"
    return MeasuredRun(
        f"{size} seq {seq} on {devices}",
        f"{kind}, {size}",
        run,
        used.software,
        assumed=(
            ("num_layers", "with hidden_size and num_heads: the same folder's configurations, by name"),
        ),
    )


SOURCE = Source(
    ("mosaicml_llm_foundry_throughput",),
    describe,
    {
        "throughput_tokens_per_s_per_gpu": plain(TOKENS),
        "throughput_tokens_per_s": unused,
        "throughput_seqs_per_s": unused,
        "model_tflops_per_gpu": unused,
        "mfu_percent": unused,
        "hfu_percent": unused,
    },
)
