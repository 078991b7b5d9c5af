"""One measured run: what was run, what was measured, and what had to be assumed.

The measured cells of a row never reach the code that says what was run: a source names them
(:attr:`Source.measured`), and `tables` takes them out of the row before `describe` sees it. So no measured
value can decide what is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from workshop.facts.device import ClusterSpec, LinkSpec
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stack import Software
from workshop.predict.case import NotPredictable as NotPredictable  # the name's old place

Row = Mapping[str, str]

SECONDS = "seconds_per_step"
TOKENS = "tokens_per_second_per_device"
MODEL = "model_tflops_per_device"
HARDWARE = "hardware_tflops_per_device"
MFU = "mfu"
TIMES = (SECONDS, TOKENS, MODEL, HARDWARE, MFU)
"""Quantities of time. HARDWARE counts recomputed FLOPs as well; MFU is a share of the 16-bit peak, 0 to 1."""

ALLOCATED, RESERVED, DEVICE, ACTIVATIONS, OUT_OF_MEMORY = (
    "memory_allocated",
    "memory_reserved",
    "memory_device",
    "memory_activations",
    "out_of_memory",
)
MEMORIES = (ALLOCATED, RESERVED, DEVICE, ACTIVATIONS, OUT_OF_MEMORY)
"""Quantities of memory, in bytes of one rank; OUT_OF_MEMORY is 1 where the run failed. ACTIVATIONS are
computed figures of what the layers save for backward."""


@dataclass(frozen=True)
class MeasuredRun:
    """One row.

    Args:
        name: what the source calls it. group: rows that are fitted on, or held back, together.
        run: model, cluster, layout, batch, and the implementation that decides memory.
        software: the training stack that decides time.
        quantities: what was measured, by name (`TIMES`, `MEMORIES`).
        assumed: what the source leaves open: the column of `canonical` and what was assumed, with the reason.
        without: "time" or "memory", and why it is not predicted although the source measured it.
        stage: the pipeline stage whose memory was measured; -1 the last, None the one that needs most.
        pass_group: micro-batches of a virtual stage's turn; 0 as many as stages.
        megatron_count: the source counts FLOPs by Megatron-LM's formula.
        flops_per_token: what the source counts for its MFU and TFLOP/s, in a count of its own; 0: the usual.
    """

    name: str
    group: str
    run: Run
    software: Software
    quantities: tuple[tuple[str, float], ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()
    without: tuple[tuple[str, str], ...] = ()
    stage: int | None = None
    pass_group: int = 0
    megatron_count: bool = False
    flops_per_token: float = 0.0
    note: str = ""
    table: str = ""
    row: int = 0
    source: str = ""

    @property
    def measured(self) -> dict[str, float]:
        """What was measured, by quantity."""
        return dict(self.quantities)

    def observations(self, kinds: tuple[str, ...] = (*TIMES, *MEMORIES)) -> list[Observation]:
        """One for each quantity that was measured; of several times only the first of `TIMES`."""
        values = self.measured
        times = [name for name in TIMES if name in values][:1]
        return [
            Observation(self, name)
            for name in (*times, *(m for m in MEMORIES if m in values))
            if name in kinds
        ]


@dataclass(frozen=True)
class Observation:
    """One quantity of one run: what is predicted and compared."""

    record: MeasuredRun
    quantity: str

    @property
    def measured(self) -> float:
        """The published value, in the quantity's unit."""
        return self.record.measured[self.quantity]

    @property
    def table(self) -> str:
        """The table that the row stands in."""
        return self.record.table

    @property
    def group(self) -> str:
        """Rows that are fitted on, or held back, together."""
        return self.record.group

    @property
    def row(self) -> int:
        """Line of the file; the header is line 1."""
        return self.record.row

    @property
    def model(self) -> ModelSpec:
        """The model's shape."""
        return self.record.run.model

    @property
    def column(self) -> dict[str, int]:
        """The layout and batch, by the names of `predict.layouts.Layouts`."""
        layout, run = self.record.run.layout, self.record.run
        names = ("replicate", "shard", "zero", "tensor", "pipeline", "virtual_stages", "context", "expert")
        sizes = {name: int(getattr(layout, name)) for name in names}
        return {**sizes, "micro_batch": run.micro_batch, "accumulation": run.accumulation}


@dataclass(frozen=True)
class Skipped:
    """A row that is not predicted, and why. `kind`: "time", "memory", or both when empty."""

    table: str
    row: int
    reason: str
    kind: str = ""


Measure = Callable[[str], dict[str, float]]
"""From a cell to quantities."""


@dataclass(frozen=True)
class Source:
    """Who reads which tables. `measured`: a column that holds a measurement, and how it is read. `kinds`: of
    what ("time", "memory") every row could say something.
    """

    tables: tuple[str, ...]
    describe: Callable[[Row], MeasuredRun]
    measured: Mapping[str, Measure] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    time_unread: str = ""
    """Why the source's times are not predicted, where it has some."""


def with_network(cluster: ClusterSpec, gigabits_per_device: float) -> ClusterSpec:
    """The cluster with so many Gbit/s of network for each device, one way."""
    rate = gigabits_per_device * 1e9 / 8
    return replace(cluster, inter=LinkSpec(f"{gigabits_per_device:g} Gbit/s a device", rate))
