"""vTrain's ground truth: Megatron-DeepSpeed on A100, in one node and on many (github VIA-Research/vTrain).

The vocabulary is not in the tables. 51,200 is taken for every row: what the same authors' configurations
have.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.published.cells import accumulation as micro_batches
from workshop.published.cells import check_devices, choice, data_parallel, gpt, plain, text, whole
from workshop.published.names import named_device
from workshop.published.record import SECONDS, MeasuredRun, Row, Source, with_network

NETWORK = 100.0  # Gbit/s a device: 800 for the 8 of a node, config/validation of the same repository


def describe(row: Row) -> MeasuredRun:
    """One row: plain data, tensor and pipeline parallelism in fp16."""
    tp, dp, pp, devices = (whole(row, name) for name in ("tp", "dp", "pp", "gpus"))
    check_devices(devices, tp=tp, dp=dp, pp=pp)
    hidden, layers, seq = (whole(row, name) for name in ("hidden_size", "num_layers", "seq_len_tokens"))
    micro, data = whole(row, "micro_batch_size_seqs"), data_parallel(devices, tp, pp)
    used = stack("megatron-2022")
    cluster = catalogue.cluster(f"{devices}x{named_device(text(row, 'gpu'), 80)}")
    run = Run(
        gpt(layers, hidden, whole(row, "attention_heads"), seq),
        with_network(cluster, NETWORK),
        Layout(
            replicate=dp,
            tensor=tp,
            pipeline=pp,
            recompute=choice(
                {"recompute": text(row, "activation_recompute").split(" ")[0]},
                "recompute",
                {"full": "full", "none": "none", "selective": "selective"},
            ),
            precision="megatron-fp16",
        ),
        micro,
        seq,
        accumulation=micro_batches(whole(row, "global_batch_size_seqs"), micro, data),
        implementation=used.implementation,
    )
    return MeasuredRun(
        f"{layers}x{hidden} tp{tp} dp{dp} pp{pp} micro {micro}",
        f"hidden {hidden}, tp {tp}",
        run,
        used.software,
        assumed=(
            ("vocab_size", "51200: not in the table; the authors' configurations have it"),
            ("device", "A100 with 80 GB: the source says A100"),
            ("network_gbps_per_device", "100: the configurations say 800 Gbit/s for 8 devices"),
            ("precision", "megatron-fp16: not in the table"),
            ("stack", "megatron-2022, unfused attention: the version of Megatron-LM is not published"),
        ),
    )


SOURCE = Source(
    ("vtrain_ground_truth_multinode_a100", "vtrain_ground_truth_singlenode_a100"),
    describe,
    {"iteration_time_ms": plain(SECONDS, 1e-3)},
)
