"""BigScience's search for BLOOM's layout: 18B to 205B models on A100 of 80 GB (arXiv 2211.05100, section
3.4).

Megatron-DeepSpeed: tensor and pipeline parallelism, ZeRO-1 with 16-bit gradients, every layer recomputed,
unfused attention, ALiBi, sequence 2,048, vocabulary 250,880; fp16, a host that waits for each kernel, and a
network that reaches little of its links (`facts/data/stacks.toml`). "Memory" is what the device showed, in
GB.

Where a row's caveat says that the hidden width was fixed at 14,400, it is. Layers that are not given are
what the parameters of the row leave, as the nearest multiple of the stages. Where the heading of a table of
the source names another global batch than the table's column, the row's caveat has both, and the heading
counts: the column repeats that of the tables around it.
"""

from __future__ import annotations

import re

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import check_devices, data_parallel, memory, number, plain, text, unused, whole
from workshop.published.names import named_device
from workshop.published.record import DEVICE, SECONDS, MeasuredRun, Row, Source, with_network

VOCAB, NETWORK = 250_880, 50.0  # four links of 100 Gbit/s for 8 devices


def shape(layers: int, hidden: int, heads: int) -> ModelSpec:
    """BLOOM's architecture in another size: ALiBi, LayerNorm, biases everywhere, tied embeddings."""
    return ModelSpec(
        f"bloom-{layers}x{hidden}",
        layers,
        hidden,
        heads,
        VOCAB,
        positions="alibi",
        norm="layernorm",
        embedding_norm=True,
        gated_mlp=False,
        qkv_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
        dropout=True,
        head_dim=0 if hidden % heads == 0 else hidden // heads,
    )


def described_model(row: Row, pipeline: int) -> tuple[ModelSpec, list[tuple[str, str]]]:
    """The row's model, and what of it had to be assumed."""
    assumed = []
    fixed = re.search(r"hidden fixed at (\d+)", text(row, "caveat"))
    if not text(row, "hidden_size") and not fixed:
        raise NotPredictable("hidden_size is not given")
    hidden = whole(row, "hidden_size", int(fixed[1]) if fixed else 0)
    if not text(row, "hidden_size"):
        assumed.append(("hidden_size", f"{hidden}: the source's caveat"))
    layers = whole(row, "num_layers", 0)
    if not layers:
        size = number({"params_B_text": text(row, "params_B_text").rstrip("B")}, "params_B_text")
        layers = round((size * 1e9 / hidden - VOCAB) / (12 * hidden) / pipeline) * pipeline
        assumed.append(("num_layers", f"{layers}: what {size:g} billion parameters leave"))
    if layers <= 0:
        raise NotPredictable(f"{text(row, 'params_B_text')} parameters leave no layer of width {hidden}")
    heads = whole(row, "attention_heads", 0)
    if not heads:
        heads = 96 if hidden == 14400 else 64
        assumed.append(("num_heads", f"{heads}: what rows of this source have that give it"))
    return shape(layers, hidden, heads), assumed


def global_batch(row: Row, usual: int) -> tuple[int, list[tuple[str, str]]]:
    """Sequences of a step, and what of it had to be assumed; `usual`: as many micro-batches as stages."""
    headed = re.search(r"GBS=(\d+)", text(row, "caveat"))
    if headed:
        total = int(headed[1])
        return total, [("global_batch_sequences", f"{total}: the heading of the source's table")]
    if total := whole(row, "global_batch_size_seqs", 0):
        return total, []
    return usual, [("global_batch_sequences", f"{usual}: as many micro-batches as stages")]


def describe(row: Row) -> MeasuredRun:
    """One row of the sweep."""
    if text(row, "zero_stage"):
        raise NotPredictable("the source's ZeRO-stage rows have swapped columns")
    tp, pp = whole(row, "tp"), whole(row, "pp")
    model, assumed = described_model(row, pp)
    nodes = whole(row, "nodes_of_8", 0)
    devices = whole(row, "gpus", 0) or 8 * nodes
    dp = whole(row, "dp", 0) or data_parallel(devices, tp, pp)
    check_devices(devices, dp=dp, tp=tp, pp=pp)
    micro, used = whole(row, "micro_batch_size_seqs"), stack("megatron-deepspeed-bloom")
    total, batch = global_batch(row, micro * dp * pp)
    cluster = catalogue.cluster(f"{devices}x{named_device(text(row, 'gpu'))}")
    run = Run(
        model,
        with_network(cluster, NETWORK),
        Layout(shard=dp, zero=1, tensor=tp, pipeline=pp, recompute="full", precision="deepspeed-fp16"),
        micro,
        2048,
        accumulation=micro_batches(total, micro, dp),
        implementation=used.implementation,
    )
    assumed += [
        *batch,
        ("precision", "deepspeed-fp16: the source's note of 28 February, when bf16 began"),
        ("network_gbps_per_device", "50: the paper's four links of 100 Gbit/s for 8 devices"),
        ("recompute", "full: section 3.4 of the paper"),
        ("zero_stage", "1: section 3.4 of the paper"),
    ]
    name = f"{model.num_layers}x{model.hidden_size} {tp}/{pp}/{dp}"
    return MeasuredRun(
        name,
        f"hidden {model.hidden_size}, pp {pp}",
        run,
        used.software,
        assumed=tuple(assumed),
        note="; ".join(filter(None, (text(row, "notes"), text(row, "caveat")))),
    )


def _shown(cell: str) -> dict[str, float]:
    """A cell "GB" without a number says nothing."""
    return {} if cell == "GB" else memory(DEVICE)(cell)


SOURCE = Source(
    ("bloom_176b_layout_sweep_a100",),
    describe,
    {"iteration_time_s": plain(SECONDS), "mem_max_GB_text": _shown, "tflops_per_gpu_hardware": unused},
    kinds=("time", "memory"),
)
