"""BLOOM's search for a layout: what the device showed, in GB, for 18B to 205B models on A100 80 GB.

Megatron-DeepSpeed: pipeline and tensor parallelism, ZeRO-1 with 16-bit gradients, every layer recomputed,
unfused attention, sequence 2,048, vocabulary 250,880 (arXiv 2211.05100, section 3.4).  Rows that leave out
the width or the depth cannot be predicted.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.validate.memory_cases import MemoryCase, NotPredictable, Row, amount, count, text

VOCAB = 250_880


def bloom(row: Row, number: int) -> MemoryCase:
    """One row of the sweep."""
    memory = text(row, "mem_max_GB_text")
    if memory in ("", "GB"):
        raise NotPredictable("mem_max_GB_text is not given")
    if text(row, "zero_stage"):
        raise NotPredictable("the source's ZeRO-stage rows have swapped columns")
    hidden, layers = count(row, "hidden_size"), count(row, "num_layers")
    heads = count(row, "attention_heads", 64 if hidden % 64 == 0 else hidden // 128)
    tp, pp = count(row, "tp"), count(row, "pp")
    devices = count(row, "gpus", 8 * count(row, "nodes_of_8", 0))
    dp = count(row, "dp", max(1, devices // (tp * pp)))
    model = shape(layers, hidden, heads)
    micro = count(row, "micro_batch_size_seqs")
    layout = Layout(shard=dp, zero=1, tensor=tp, pipeline=pp, recompute="full", precision="deepspeed-fp16")
    steps = max(1, count(row, "global_batch_size_seqs", micro * dp * pp) // (micro * dp))
    run = Run(
        model,
        f"{dp * tp * pp}xA100-80GB",
        layout,
        micro,
        2048,
        accumulation=steps,
        implementation="megatron-deepspeed",
    )
    return MemoryCase(
        "bloom_176b_layout_sweep_a100",
        text(row, "section"),
        number,
        f"{layers}x{hidden} {tp}/{pp}/{dp}",
        "device",
        amount(memory)[0],
        run,
    )


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
