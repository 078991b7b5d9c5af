"""Megatron-Core 0.8 on H100, weak scaling (github NVIDIA/Megatron-LM, images/model_table.png), bf16.

Sequence parallelism with tensor parallelism, distributed optimizer, overlapped reductions. The micro-batch
is not given: `published.micro_batch` takes one. Pipelines are interleaved, with two layers a chunk where they
divide, as in the README's command.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import check_devices, gpt, plain, text, unused, whole
from workshop.published.micro_batch import ASSUMED, fastest_that_fits
from workshop.published.names import named_device
from workshop.published.record import MODEL, MeasuredRun, Row, Source


def chunks(layers: int, pipeline: int) -> int:
    """Chunks of a stage: of two layers each, else of one; 1 without a pipeline."""
    if pipeline == 1 or layers % pipeline:
        return 1
    each = layers // pipeline
    return each // 2 if each % 2 == 0 else each


def describe(row: Row) -> MeasuredRun:
    """One row of the table of models."""
    tp, pp, dp, devices = (whole(row, name) for name in ("tp", "pp", "dp", "gpus"))
    check_devices(devices, tp=tp, pp=pp, dp=dp)
    seq, layers = whole(row, "seq_len_tokens"), whole(row, "num_layers")
    shape = gpt(
        layers, whole(row, "hidden_size"), whole(row, "attention_heads"), seq, whole(row, "vocab")
    ).resized(tied_embeddings=False)
    used = stack("megatron-core")
    run = Run(
        shape,
        f"{devices}x{named_device(text(row, 'gpu'))}",
        Layout(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=tp > 1,
            pipeline=pp,
            virtual_stages=chunks(layers, pp),
            precision="megatron-bf16",
        ),
        1,
        seq,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), 1, dp),
        implementation=used.implementation,
    )
    run = fastest_that_fits(run, used.software)
    assumed = [
        ("micro_batch_sequences", f"{run.micro_batch}, {ASSUMED}"),
        ("precision", "megatron-bf16: the README of the release"),
        ("sequence_parallel", "with tensor parallelism: the README's command"),
        ("zero_stage", "1, the distributed optimizer: the README of the release"),
        ("tied_embeddings", "no: the README's command unties them"),
    ]
    if pp > 1:
        assumed.append(("virtual_stages", f"{chunks(layers, pp)}: two layers a chunk, not in the table"))
    return MeasuredRun(
        text(row, "model"), f"tp {tp}", run, used.software, assumed=tuple(assumed), megatron_count=True
    )


SOURCE = Source(
    ("megatron_core_h100_weak_scaling",),
    describe,
    {"tflops_per_gpu": plain(MODEL), "mfu_percent": unused, "aggregate_pflops": unused},
)
