"""InternEvo: throughput of 7B on A100 up to 512 devices, and memory on one to six A800 (github
InternLM/InternEvo, doc/en/train_performance.md).

Hybrid ZeRO: bf16 weights and gradients, fp32 master weights sharded over `zero1` ranks and replicated
beyond; -1 means all data-parallel ranks. configs/7B_sft.py of the same repository gives sequence and
vocabulary. Memory is what the device shows, in GB.
"""

from __future__ import annotations

import re

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import data_parallel, flag, memory, plain, text, unused, whole
from workshop.published.names import named_device, named_model
from workshop.published.record import DEVICE, TOKENS, MeasuredRun, Row, Source, with_network


def shards(zero1: int, data: int) -> int:
    """Ranks that share the optimizer's state: `zero1`, or all of them where it is -1 or more than there
    are.
    """
    if zero1 == -1:
        return data
    if zero1 < 1:
        raise NotPredictable(f"zero1 is {zero1}: give -1 (all data-parallel ranks) or at least 1")
    shard = min(zero1, data)
    if data % shard:
        raise NotPredictable(f"zero1 {zero1} does not divide {data} data-parallel ranks")
    return shard


def network(row: Row) -> float:
    """Gbit/s a device from a cell such as "4x100Gb RoCE": links of a node of 8."""
    links = re.match(r"(\d+)x(\d+)Gb", text(row, "network"))
    if links is None:
        raise NotPredictable(
            f"network is {text(row, 'network')!r}, not links of a node such as '4x100Gb RoCE'"
        )
    return int(links[1]) * int(links[2]) / 8


def throughput(row: Row) -> MeasuredRun:
    """One row of the scaling tables, with and without packing and recomputation."""
    devices, tp = whole(row, "gpus"), whole(row, "tp")
    dp, packed = data_parallel(devices, tp, 1), flag(row, "packed")
    shard = shards(whole(row, "zero1_size"), dp)
    used = stack("internevo")
    cluster = catalogue.cluster(f"{devices}x{named_device(text(row, 'gpu'))}")
    run = Run(
        named_model(f"internlm-{text(row, 'model')}"),
        with_network(cluster, network(row)),
        Layout(
            shard=shard,
            replicate=dp // shard,
            zero=1,
            tensor=tp,
            recompute="full" if flag(row, "activation_checkpointing") else "none",
            precision="deepspeed-bf16",
        ),
        whole(row, "micro_batch_size_seqs"),
        whole(row, "seq_len_tokens"),
        accumulation=whole(row, "grad_accum"),
        implementation=used.implementation,
    )
    assumed = [
        ("precision", "deepspeed-bf16: the repository's optimizer"),
        ("network_gbps_per_device", "8 devices a node"),
    ]
    if packed:
        assumed.append(
            ("attention", "over whole sequences: the lengths of what was packed are not in the table")
        )
    group = f"tp {tp}, {'packed' if packed else 'not packed'}"
    return MeasuredRun(
        f"7B on {devices} tp{tp}".replace("7B", text(row, "model")),
        group,
        run,
        used.software,
        assumed=tuple(assumed),
    )


def on_few(row: Row) -> MeasuredRun:
    """One row of the memory table: full recomputation; FSDP instead of ZeRO-1 where the row says so."""
    tp, pp, devices = whole(row, "tp"), whole(row, "pp"), whole(row, "gpus")
    fsdp, dp = flag(row, "fsdp"), data_parallel(devices, tp, pp)
    settings = text(row, "settings").lower()
    shard = dp if fsdp else shards(whole(row, "zero1"), dp)
    # FSDP's shards are flat already: only the cast to fp32 and the optimizer's two temporaries remain.
    used = stack("internevo", memory={"step_room": 12.0} if fsdp else None)
    run = Run(
        named_model(f"internlm-{text(row, 'model')}"),
        f"{devices}x{named_device(text(row, 'gpu'))}",
        Layout(
            shard=shard,
            replicate=dp // shard,
            zero=3 if fsdp else 1,
            tensor=tp,
            pipeline=pp,
            recompute="full" if "checkpoint true" in settings else "none",
            precision="deepspeed-bf16",
        ),
        whole(row, "micro_batch_size_seqs"),
        2048,
        accumulation=whole(row, "micro_num"),
        implementation=used.implementation,
    )
    return MeasuredRun(
        f"tp{tp} pp{pp} fsdp {fsdp} on {devices}",
        text(row, "model"),
        run,
        used.software,
        assumed=(("seq_len", "2048: configs/7B_sft.py, not in the table"),),
    )


SOURCES = (
    Source(
        ("internevo_7b_scaling_a100",),
        throughput,
        {"tokens_per_s_per_gpu": plain(TOKENS), "tflops_per_gpu": unused},
    ),
    Source(("internevo_memory_a800",), on_few, {"gpu_memory_GB": memory(DEVICE, "GB")}),
)
