"""torchtitan's own benchmarks: FSDP2 with tensor, asynchronous tensor and pipeline parallelism (github
pytorch/torchtitan, benchmarks/ and docs/). Memory is the largest **reserved** of all ranks, in GiB.

A local batch under a pipeline is cut into as many micro-batches as there are stages, torchtitan's default
of that time. Weights are not resharded after forward then, and gradients are reduced once a step
(torchtitan/models/llama/parallelize_llama.py, `apply_fsdp`). Row-wise FP8 is a recipe of its own: that it was
slower than bf16 is for the predictor to say.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import (
    check_devices,
    choice,
    data_parallel,
    flag,
    memory,
    plain,
    text,
    unused,
    whole,
)
from workshop.published.names import named_device, named_model
from workshop.published.record import RESERVED, TOKENS, MeasuredRun, Row, Source

FLOAT8 = {
    "": "",
    "0": "",
    "false": "",
    "1": "fp8",
    "true": "fp8",
    "tensorwise": "fp8",
    "rowwise": "fp8 rowwise",
}
PRECISIONS = {"": "fsdp-bf16", "fp8": "fsdp-fp8", "fp8 rowwise": "fsdp-fp8-rowwise"}
# What is recomputed, of which modules, and whether of every second layer only.
RECOMPUTE: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "": ("none", (), False),
    "none": ("none", (), False),
    "full": ("full", (), False),
    "selective": ("selective", ("ops",), False),
    "selective op": ("selective", ("ops",), False),
    "selective per-op": ("selective", ("ops",), False),
    "selective layer": ("full", (), True),
}
ASYNC_TENSOR = 0.5


def micro_batch(local: int, pipeline: int) -> int:
    """Sequences of a micro-batch: the local batch, cut into as many as stages."""
    if local % pipeline:
        raise NotPredictable(f"local batch {local} does not divide into pipeline {pipeline} micro-batches")
    return local // pipeline


def layout_of(row: Row, layers: int) -> Layout:
    """The layout of a row; devices beyond its degrees replicate."""
    shard, tp, pp, cp = (whole(row, axis, 1) for axis in ("fsdp", "tp", "pp", "cp"))
    devices = whole(row, "gpus")
    data = data_parallel(devices, tp, pp, cp)
    if data % shard:
        raise NotPredictable(f"fsdp {shard} does not divide {data} data-parallel ranks")
    check_devices(devices, replicate=data // shard, fsdp=shard, tp=tp, pp=pp, cp=cp)
    kind, modules, every_second = choice(row, "activation_checkpointing", RECOMPUTE)
    return Layout(
        shard=shard,
        replicate=data // shard,
        zero=(3 if pp == 1 else 2) if shard > 1 or data == 1 else 0,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        virtual_stages=2 if "interleaved" in text(row, "pp_schedule").lower() else 1,
        context=cp,
        recompute=kind,
        recompute_modules=modules,
        recompute_layers=layers // pp // 2 if every_second else 0,
        precision=PRECISIONS[choice(row, "float8", FLOAT8)],
    )


def describe(row: Row) -> MeasuredRun:
    """One row."""
    shape, device = named_model(text(row, "model")), named_device(text(row, "gpu"))
    layout, compiled = layout_of(row, shape.num_layers), flag(row, "compile")
    used = stack(
        "torchtitan-compile" if compiled else "torchtitan",
        memory={"loss": "loss-parallel" if layout.tensor > 1 else "eager"},
        time={"overlap_tensor": ASYNC_TENSOR} if flag(row, "async_tp") else None,
    )
    local = whole(row, "local_batch_size_seqs")
    micro = micro_batch(local, layout.pipeline)
    run = Run(
        shape,
        f"{layout.world_size}x{device}",
        layout,
        micro,
        whole(row, "seq_len_tokens"),
        accumulation=local // micro,
        implementation=used.implementation,
    )
    assumed = [("precision", f"{layout.precision}: the stack's defaults (fp32 shards, 16-bit compute)")]
    if flag(row, "async_tp"):
        assumed.append(
            ("stack", f"async TP hides {ASYNC_TENSOR:.0%} of its communication: no source measures it")
        )
    if not text(row, "compile"):
        assumed.append(("compile", "no: the row does not say"))
    if layout.pipeline > 1:
        assumed.append(("micro_batch_sequences", "the local batch over the stages: the stack's default"))
    group = f"{device} {choice(row, 'float8', FLOAT8) or 'bf16'}, tp {layout.tensor}"
    return MeasuredRun(
        f"{text(row, 'model')} on {layout.world_size}", group, run, used.software, assumed=tuple(assumed)
    )


SOURCE = Source(
    ("torchtitan_performance",),
    describe,
    {
        "tps_per_gpu_tokens_per_s": plain(TOKENS),
        "peak_memory_GiB": memory(RESERVED, "GiB"),
        "mfu_percent": unused,
    },
    kinds=("time", "memory"),
)
