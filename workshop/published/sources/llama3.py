"""Llama 3 405B in training (arXiv 2407.21783, table 4).

Sequence 8,192, and 131,072 with context parallelism. Section 3.3.2 takes one layer each from the first and
the last stage, so that embedding and head count as layers, and gives each stage chunks of a single layer: 8
of them on 16 stages.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import check_devices, number, plain, text, unused, whole
from workshop.published.names import named_device, named_model
from workshop.published.record import MODEL, MeasuredRun, Row, Source


def describe(row: Row) -> MeasuredRun:
    """One row."""
    tp, cp, pp, dp, devices = (whole(row, name) for name in ("tp", "cp", "pp", "dp_derived", "gpus"))
    check_devices(devices, tp=tp, cp=cp, pp=pp, dp=dp)
    shape, seq = named_model(text(row, "model")), 131072 if cp > 1 else 8192
    chunks = max(1, (shape.num_layers + 2) // pp) if pp > 1 else 1
    used = stack("megatron-core")
    run = Run(
        shape,
        f"{devices}x{named_device(text(row, 'gpu'))}",
        Layout(
            shard=dp,
            zero=1,
            tensor=tp,
            sequence_parallel=True,
            pipeline=pp,
            context=cp,
            virtual_stages=chunks,
            embedding_in_stages=pp > 1,
            precision="megatron-bf16",
        ),
        1,
        seq,
        accumulation=micro_batches(int(number(row, "tokens_per_batch_M") * 2**20) // seq, 1, dp),
        implementation=used.implementation,
    )
    assumed = (
        ("seq_len", f"{seq}: table 4 of the paper"),
        ("micro_batch_sequences", "1: not in the table"),
        ("virtual_stages", f"{chunks}, one layer a chunk: section 3.3.2 of the paper"),
        ("zero_stage", "1: section 3.3.2; its FSDP shards optimizer and gradients"),
        ("stack", "megatron-core: the paper's own framework is not published"),
        ("recompute", "none: section 3.3.2"),
    )
    return MeasuredRun(f"{devices} cp{cp}", f"cp {cp}", run, used.software, assumed=assumed)


SOURCE = Source(
    ("llama3_405b_layouts",),
    describe,
    {"tflops_per_gpu": plain(MODEL), "mfu_percent_derived_vs_989": unused},
)
