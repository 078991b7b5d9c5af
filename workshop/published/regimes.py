"""The regimes that rows belong to: what is left out, whole, when the predictor is judged.

Rows of one source resemble each other, and so do rows of one device. A predictor that is judged on rows drawn
at random has seen their neighbours. So each axis here cuts all rows into a few regimes, and every regime is
predicted once by constants that were fitted on all the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from workshop.facts.precision import precision
from workshop.published.record import MeasuredRun, Observation

PUBLICATIONS = {
    "vtrain_ground_truth_multinode_a100": "vtrain",
    "vtrain_ground_truth_singlenode_a100": "vtrain",
    "megatron_sc21_table1_a100": "megatron_sc21",
    "megatron_sc21_table2_zero3_vs_ptd_a100": "megatron_sc21",
    "internevo_7b_scaling_a100": "internevo",
    "internevo_memory_a800": "internevo",
    "nvidia_nemo_2407_h100_fp8": "nvidia_nemo",
    "nvidia_nemo_long_sequence_cp": "nvidia_nemo",
    "dgxc_benchmarking": "nvidia_nemo",
    "dgxc_benchmarking_bridge": "nvidia_megatron_bridge_performance",
}
"""Tables of one publisher, on one stack, that count as one source; any other table is a source."""


def source(record: MeasuredRun) -> str:
    """Who measured it."""
    return PUBLICATIONS.get(record.table, record.table)


def nodes(record: MeasuredRun) -> str:
    """How many nodes it took."""
    count = -(-record.run.layout.world_size // record.run.cluster.devices_per_node)
    return "1" if count == 1 else "2 to 8" if count <= 8 else "9 to 64" if count <= 64 else "more than 64"


AXES: dict[str, Callable[[MeasuredRun], str]] = {
    "source": source,
    "device": lambda record: record.run.cluster.device.name,
    "nodes": nodes,
    "pipeline": lambda record: "with stages" if record.run.layout.pipeline > 1 else "without",
    "experts": lambda record: "mixture of experts" if record.run.model.is_moe else "dense",
    "precision": lambda record: precision(record.run.layout.precision).dtype,
    "adapter": lambda record: record.run.adapter.method if record.run.adapter else "none",
}
"""What is left out in turn: axis -> the regime of a record."""


def configuration(one: Observation) -> Hashable:
    """What was run and measured, but for what came out."""
    return one.record.run, one.record.software, one.record.stage, one.quantity


def unique_weights(observations: Sequence[Observation]) -> np.ndarray:
    """The weight of each row: one for every configuration, however often it was measured."""
    keys = [configuration(one) for one in observations]
    counts = Counter(keys)
    return np.array([1 / counts[key] for key in keys])
