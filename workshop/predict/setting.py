"""What stays the same while layouts vary: model, cluster, sequence, formats, constants, training stack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.predict.collectives import Wires
from workshop.predict.grid import Grid
from workshop.predict.layer import Cut, Machine
from workshop.predict.rates import Rates, Software


@dataclass(frozen=True)
class Setting:
    """Everything a step's time depends on but the layout and the batch.

    seq_len: tokens of a sequence. dtype: the format of linear maps, where it is not that of `precision`.
    """

    model: ModelSpec
    cluster: ClusterSpec
    seq_len: int
    precision: Precision
    rates: Rates
    stack: Software
    dtype: str = ""

    @cached_property
    def machine(self) -> Machine:
        """The device of the cluster as the layer model sees it."""
        device, rates, dtype = self.cluster.device, self.rates, self.dtype or self.precision.dtype
        sixteen = "bf16" if "bf16" in device.peak_flops else "fp16"
        eight = dtype in ("fp8", "fp4")
        return Machine(
            rates,
            reachable(self.cluster, dtype) * (rates.sustained_fp8 if eight else rates.sustained),
            reachable(self.cluster, sixteen if eight else dtype) * rates.sustained,
            device.memory_bandwidth * rates.memory,
            Wires.of(self.cluster, rates, self.stack.adapters),
            element_bytes=1.0 if eight else 2.0,
            cast_bytes=2.0 if eight else 0.0,
        )

    def cut(self, grid: Grid) -> Cut:
        """How a layer is cut by every layout of a grid."""
        return Cut(
            grid.micro_batch, self.seq_len, grid.tensor, grid.sequence_parallel, grid.context, grid.expert
        )


def reachable(cluster: ClusterSpec, dtype: str) -> float:
    """Best matmul rate known for a format; for one never measured, its peak times the share 16 bits reach."""
    device = cluster.device
    if dtype in device.reachable_flops:
        return device.reachable_flops[dtype]
    known = [d for d in ("bf16", "fp16") if d in device.reachable_flops]
    share = device.reachable_flops[known[0]] / device.peak(known[0]) if known else 0.85
    return device.peak(dtype) * share
