"""Megatron-LM's own papers: tensor parallelism of 2020, SC'21 (arXiv 2104.04473), and selective
recomputation with sequence parallelism (arXiv 2205.05198).

Sequence and vocabulary of SC'21 are from the text of the paper; its TFLOP/s count recomputation by
Megatron-LM's own formula. The memory of arXiv 2205.05198, figure 1, follows from the paper's equations: it
tests the count of saved activations on the first stage and not a machine.
"""

from __future__ import annotations

import re

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import (
    check_devices,
    choice,
    data_parallel,
    gpt,
    memory,
    number,
    plain,
    text,
    virtual_stages,
    whole,
)
from workshop.published.names import named_device
from workshop.published.record import ACTIVATIONS, HARDWARE, SECONDS, MeasuredRun, Row, Source

SC21 = (
    ("seq_len", "2048: section 5.1 of the paper, not in the table"),
    ("vocab_size", "51200: section 5.1 of the paper, not in the table"),
    ("precision", "megatron-fp16: section 5 of the paper, not in the table"),
)


def sc21(row: Row) -> MeasuredRun:
    """Weak scaling on Selene, 1.7 billion parameters to a trillion."""
    tp, pp, devices = whole(row, "tp"), whole(row, "pp"), whole(row, "gpus")
    layers, hidden = whole(row, "num_layers"), whole(row, "hidden_size")
    dp, micro = data_parallel(devices, tp, pp), whole(row, "micro_batch_size_seqs")
    used = stack("megatron-2021")
    layout = Layout(
        replicate=dp,
        tensor=tp,
        pipeline=pp,
        virtual_stages=virtual_stages(layers, pp, whole(row, "layers_per_virtual_stage", 0)),
        recompute=text(row, "activation_recompute").split(" ")[0] or "none",
        precision="megatron-fp16",
    )
    run = Run(
        gpt(layers, hidden, whole(row, "attention_heads"), 2048),
        f"{devices}x{named_device(text(row, 'gpu'))}",
        layout,
        micro,
        2048,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), micro, dp),
        implementation=used.implementation,
    )
    return MeasuredRun(text(row, "model"), f"tp {tp}", run, used.software, assumed=SC21, megatron_count=True)


ZERO3_SHAPES = {174.6: (96, 12288, 96), 529.6: (105, 20480, 128)}


def sc21_zero3(row: Row) -> MeasuredRun:
    """GPT-3 and a 530B model by ZeRO-3 alone, or by tensor 8 and the rest pipeline (section 5.2)."""
    size, devices, ways = number(row, "params_billion"), whole(row, "gpus"), whole(row, "model_parallel_size")
    near = [shape for known, shape in ZERO3_SHAPES.items() if abs(size / known - 1) < 0.02]
    if not near:
        raise NotPredictable(f"no model of {size} billion parameters is in the paper (known: 174.6, 529.6)")
    sharded = text(row, "scheme").startswith("ZeRO-3")
    tp = 1 if sharded else min(8, ways)
    pp = 1 if sharded else ways // tp
    dp, micro = data_parallel(devices, tp, pp), whole(row, "micro_batch_size_seqs")
    used = stack("deepspeed-2021" if sharded else "megatron-2021")
    layout = Layout(
        shard=dp if sharded else 1,
        replicate=1 if sharded else dp,
        zero=3 if sharded else 0,
        tensor=tp,
        pipeline=pp,
        recompute="full",
        precision="deepspeed-fp16" if sharded else "megatron-fp16",
    )
    run = Run(
        gpt(*near[0], 2048),
        f"{devices}x{named_device(text(row, 'gpu'))}",
        layout,
        micro,
        2048,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), micro, dp),
        implementation=used.implementation,
    )
    left_open = (
        ("num_layers", "96 or 105, with hidden_size and num_heads: section 5.2, not in the table"),
        ("tensor", "8 at most within model_parallel_size: section 5.2"),
        ("recompute", "full: section 5.1"),
    )
    group = "ZeRO-3" if sharded else "PTD-P"
    return MeasuredRun(
        f"{size:g}B {group}", group, run, used.software, assumed=(*SC21, *left_open), megatron_count=True
    )


MODES = {
    "full": ("full", False),
    "none": ("none", False),
    "seq": ("none", True),
    "sel": ("selective", False),
    "seqsel": ("selective", True),
}
"""What is recomputed, and whether the sequence is parallel too."""


def korthikanti(row: Row) -> MeasuredRun:
    """Full recomputation against sequence parallelism with selective recomputation; figures of memory."""
    tp, pp, dp, devices = (whole(row, name) for name in ("tp", "pp", "dp", "gpus"))
    check_devices(devices, tp=tp, pp=pp, dp=dp)
    layers, hidden, seq = (whole(row, name) for name in ("num_layers", "hidden_size", "seq_len_tokens"))
    micro, mode = whole(row, "micro_batch_size_seqs"), text(row, "mode")
    recompute, sequence = choice(row, "mode", MODES)
    used = stack("megatron-2022")
    layout = Layout(
        replicate=dp,
        tensor=tp,
        sequence_parallel=sequence,
        pipeline=pp,
        virtual_stages=whole(row, "pp_interleave_stages") if pp > 1 else 1,
        recompute=recompute,
        precision="megatron-fp16",
    )
    run = Run(
        gpt(layers, hidden, whole(row, "attention_heads"), seq),
        f"{devices}xA100-80GB",
        layout,
        micro,
        seq,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), micro, dp),
        implementation=used.implementation,
    )
    assumed = (
        ("device", "A100-80GB: section 6 of the paper, not in the table"),
        ("vocab_size", "51200: section 6 of the paper, not in the table"),
        ("precision", "megatron-fp16: section 6 of the paper"),
    )
    return MeasuredRun(text(row, "model"), mode, run, used.software, assumed=assumed, stage=0)


SETTINGS = {"DGX-2 V100": "V100-32GB", "DGX-A100": "A100-40GB"}


def of_2020(row: Row) -> MeasuredRun:
    """Tensor-parallel weak scaling on DGX-2 (V100) and DGX A100."""
    tp, devices = whole(row, "tp"), whole(row, "gpus")
    setting = re.fullmatch(r"(.+?), batch (\d+)(?: \(MP\+DP\))?", text(row, "setting"))
    if setting is None:
        raise NotPredictable(f"setting is {text(row, 'setting')!r}, not 'MACHINE, batch N'")
    device = choice({"setting": setting[1]}, "setting", SETTINGS)
    dp, batch = data_parallel(devices, tp, 1), int(setting[2])
    layers, hidden, heads = (whole(row, name) for name in ("num_layers", "hidden_size", "attention_heads"))
    used = stack("megatron-2021")
    run = Run(
        gpt(layers, hidden, heads, 1024),
        f"{devices}x{device}",
        Layout(replicate=dp, tensor=tp, recompute="full", precision="megatron-fp16"),
        micro_batches(batch, 1, dp),
        1024,
        accumulation=1,
        implementation=used.implementation,
    )
    assumed = (
        ("seq_len", "1024: README of the same repository, not in the table"),
        ("vocab_size", "51200: README of the same repository, not in the table"),
        ("micro_batch_sequences", "the whole batch of a rank at once: not in the table"),
        ("recompute", "full: README of the same repository, not in the table"),
        ("device", "V100 with 32 GB in a DGX-2, A100 with 40 GB in the DGX A100 of 2020"),
    )
    return MeasuredRun(text(row, "case"), f"{device[:4]} tp {tp}", run, used.software, assumed=assumed)


SOURCES = (
    Source(
        ("megatron_sc21_table1_a100",),
        sc21,
        {"achieved_tflops_per_gpu": plain(HARDWARE)},
    ),
    Source(
        ("megatron_sc21_table2_zero3_vs_ptd_a100",),
        sc21_zero3,
        {"achieved_tflops_per_gpu": plain(HARDWARE)},
    ),
    Source(
        ("korthikanti_2022_seqpar_selective",),
        korthikanti,
        {"iteration_time_s": plain(SECONDS), "activations_GiB": memory(ACTIVATIONS, "GiB")},
    ),
    Source(("megatron_2020_tp_scaling",), of_2020, {"iteration_time_ms": plain(SECONDS, 1e-3)}),
)
