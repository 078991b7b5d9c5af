"""Measured memory of a small mixture of experts under Megatron-LM (github ISEEKYAN/mbridge,
memory_estimator).

The table gives layers, tensor parallelism, micro-batch and sequence; the model is the estimator's test
model, a Mixtral of width 2,048 with 8 experts of 5,440, 16 heads, 8 key-value heads and 32,000 words, on
one node of 8 devices (README and model_configs of the same folder). `Real` is in GiB.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.published.cells import data_parallel, memory, unused, whole
from workshop.published.record import ALLOCATED, MeasuredRun, Row, Source

DEVICES = 8


def describe(row: Row) -> MeasuredRun:
    """One row: bf16, distributed optimizer, sequence parallelism with tensor parallelism, flash attention."""
    tp, used = whole(row, "TP"), stack("megatron-core", memory={"dropout": False})
    shape = ModelSpec(
        "mixtral-8x2b",
        whole(row, "nlayers"),
        2048,
        16,
        32000,
        num_kv_heads=8,
        num_experts=8,
        experts_per_token=2,
        moe_ffn_hidden_size=5440,
    )
    run = Run(
        shape,
        f"{DEVICES}xA100-80GB",
        Layout(
            shard=data_parallel(DEVICES, tp, 1),
            zero=1,
            tensor=tp,
            sequence_parallel=tp > 1,
            precision="megatron-bf16",
        ),
        whole(row, "MBS"),
        whole(row, "SEQ_LEN"),
        implementation=used.implementation,
    )
    assumed = (
        ("model", "mixtral-8x2b, the estimator's test model: its name is not in the table"),
        ("device", "A100-80GB: not in the table"),
        ("num_devices", "8: the README beside it"),
        ("zero_stage", "1, the distributed optimizer: the README beside it"),
        ("precision", "megatron-bf16: the README beside it"),
    )
    return MeasuredRun(f"tp{tp}", "mixtral-8x2b", run, used.software, assumed=assumed)


SOURCE = Source(
    ("mbridge_moe_memory_estimator_real_vs_est",),
    describe,
    {
        "Real": memory(ALLOCATED, "GiB"),
        **dict.fromkeys(("Allocated_GB", "Real_Model", "Real_act"), unused),
    },
)
