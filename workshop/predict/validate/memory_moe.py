"""Measured memory of a small mixture of experts under Megatron-LM.

``mbridge_moe_memory_estimator_real_vs_est.csv`` gives layers, tensor parallelism, micro-batch and sequence;
the model is the estimator's test model, a Mixtral of width 2,048 with 8 experts of 5,440, 16 heads, 8
key-value heads and 32,000 words, on one node of 8 devices (README and model_configs of the same folder).
``Real`` is in GiB.
"""

from __future__ import annotations

from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.validate.memory_cases import GIB, MemoryCase, NotPredictable, Row, count, text

DEVICES = 8


def mbridge(row: Row, number: int) -> MemoryCase:
    """One row: bf16, distributed optimizer, sequence parallelism with tensor parallelism, flash attention."""
    if not text(row, "Real"):
        raise NotPredictable("Real is not given")
    tp = count(row, "TP")
    model = ModelSpec(
        "mixtral-8x2b",
        count(row, "nlayers"),
        2048,
        16,
        32000,
        num_kv_heads=8,
        num_experts=8,
        experts_per_token=2,
        moe_ffn_hidden_size=5440,
    )
    layout = Layout(
        shard=DEVICES // tp, zero=1, tensor=tp, sequence_parallel=tp > 1, precision="megatron-bf16"
    )
    run = Run(
        model,
        f"{DEVICES}xA100-80GB",
        layout,
        count(row, "MBS"),
        count(row, "SEQ_LEN"),
        implementation=implementation("megatron", dropout=False),
    )
    return MemoryCase(
        "mbridge_moe_memory_estimator_real_vs_est",
        "mixtral-8x2b",
        number,
        f"tp{tp}",
        "allocated",
        float(text(row, "Real")) * GIB,
        run,
    )
