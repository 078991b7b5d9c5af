"""IBM's fms-fsdp: Llama 2 under FSDP or hybrid sharding (within nodes), compiled; its network is given per
node of 8 (github foundation-model-stack/fms-fsdp, README.md).
"""

from __future__ import annotations

import re

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import choice, data_parallel, plain, text, unused, whole
from workshop.published.names import named_device, named_model
from workshop.published.record import TOKENS, MeasuredRun, Row, Source, with_network


def describe(row: Row) -> MeasuredRun:
    """One row."""
    devices, device = whole(row, "gpus"), named_device(text(row, "gpu"))
    cluster = catalogue.cluster(f"{devices}x{device}")
    rate = re.match(r"([\d.]+) Gbps", text(row, "inter_node_network"))
    if rate is None:
        raise NotPredictable(
            f"inter_node_network is {text(row, 'inter_node_network')!r}, not such as '400 Gbps'"
        )
    shard = min(devices, choice(row, "sharding", {"HSDP": cluster.devices_per_node, "FSDP": devices}))
    used = stack("torchtitan-compile", time={"gradient_bytes": 2.0})
    run = Run(
        named_model(f"llama-2-{text(row, 'model')}"),
        with_network(cluster, float(rate[1]) / cluster.devices_per_node),
        Layout(
            shard=shard,
            replicate=data_parallel(devices, shard, 1),
            zero=3,
            recompute=choice(
                row,
                "activation_checkpointing",
                {"No AC": "none", "Selective AC": "selective", "Full AC": "full"},
            ),
            precision="fsdp-bf16",
        ),
        whole(row, "local_batch_size_seqs"),
        whole(row, "seq_len_tokens"),
        implementation=used.implementation,
    )
    assumed = (
        ("stack", "torchtitan-compile, gradients reduced in bf16: fms-fsdp has no constants of its own"),
        ("recompute", "selective is the core of attention: which share of blocks the row does not say"),
        ("network_gbps_per_device", "the row's rate is of a node of 8 devices"),
    )
    return MeasuredRun(
        f"Llama 2 {text(row, 'model')} on {devices}", device, run, used.software, assumed=assumed
    )


SOURCE = Source(
    ("ibm_fms_fsdp_llama2",),
    describe,
    {"tokens_per_s_per_gpu": plain(TOKENS), "mfu_fraction": unused, "hfu_fraction": unused},
)
