"""What a measurement or a rehearsal brings back: plain data that can show itself. No torch.

Everything here converts to dicts of numbers and strings (`to_dict`), because it travels from rank processes
to a notebook, and into JSON files beside the lessons.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workshop.facts.measurement import Measurement
from workshop.facts.tabular import preformatted
from workshop.facts.traffic import Traffic
from workshop.facts.units import format_bytes


@dataclass(frozen=True)
class Timeline:
    """Live bytes at some moments of the run: in total, by part, and the phase each moment lies in."""

    total_bytes: list[int]
    part_bytes: dict[str, list[int]]
    phases: list[str]


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of live tensors on one rank. `peak_parts` sums to `peak_bytes` exactly.

    Args:
        peak_bytes: the largest balance over the whole run.
        peak_parts: who owned it, by part (see `workshop.facts.memory_parts`).
        peak_phase: forward, backward or optimizer.
        step_peaks: the largest balance within each step; the first is smaller, for the optimizer's state is
            born at its end.
        reserved_bytes: what PyTorch's caching allocator would have taken from the driver for these tensors,
            at most: a rehearsal of a program on GPUs says it; None where nobody does.
    """

    peak_bytes: int
    peak_parts: dict[str, int]
    peak_phase: str
    step_peaks: list[int]
    timeline: Timeline
    reserved_bytes: int | None = None


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step. `communication` is time the program stood and waited, wherever it fell; it is also
    inside the phase it fell in. `other` is what is left: data, logging, your own code between the phases."""

    total_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    communication_seconds: float

    @property
    def other_seconds(self) -> float:
        """The step minus its three phases."""
        return self.total_seconds - self.forward_seconds - self.backward_seconds - self.optimizer_seconds


@dataclass
class Measured:
    """One rank's measurement, filled in when its `with` block ends. Traffic and FLOPs are those of the last
    whole step.

    Args:
        rank, world_size: who measured.
        device: "cpu" or "cuda".
        memory: None if it was not asked for.
        traffic: rows of collectives of the last step.
        flops: FLOPs of the last step on this rank (a multiply-add counts as two).
        steps: seconds of every step.
    """

    rank: int
    world_size: int
    device: str
    memory: MemoryReport | None
    traffic: list[Traffic]
    flops: int
    steps: list[StepTime] = field(default_factory=list)

    def mfu(self, peak_flops_per_second: float) -> float:
        """FLOPs of the last step over what the device could have done in that time (PaLM, arXiv:2204.02311,
        B).

        With recompute the counted FLOPs include the repeated forward pass: that makes it a *hardware*
        utilisation.
        """
        if peak_flops_per_second <= 0:
            raise ValueError(f"peak_flops_per_second must be positive, got {peak_flops_per_second}")
        if not self.steps:
            raise ValueError("no whole step was measured: call optimizer.step() inside the with block")
        return self.flops / self.steps[-1].total_seconds / peak_flops_per_second

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return asdict(self)

    def to_measurement(self, **setting: Any) -> Measurement:
        """The record that outlives the program, with the last step's times; `setting` is kept beside it."""
        last = self.steps[-1] if self.steps else None
        phases = (
            {
                "forward": last.forward_seconds,
                "backward": last.backward_seconds,
                "optimizer": last.optimizer_seconds,
                "communication": last.communication_seconds,
            }
            if last
            else {}
        )
        return Measurement(
            rank=self.rank,
            world_size=self.world_size,
            allocated_bytes=self.memory.peak_bytes if self.memory else 0,
            parts=dict(self.memory.peak_parts) if self.memory else {},
            step_seconds=last.total_seconds if last else 0.0,
            phases=phases,
            flops=float(self.flops),
            traffic=tuple(self.traffic),
            setting={"by": "measure", "device": self.device, **setting},
        )

    def __str__(self) -> str:
        lines = [f"rank {self.rank} of {self.world_size}, {self.device}"]
        if self.memory is not None:
            lines += memory_lines(self.memory)
        lines += traffic_lines(self.traffic)
        if self.flops:
            lines.append(f"FLOPs per step: {self.flops:.4g}")
        lines += time_lines(self.steps)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def megabytes(num_bytes: float) -> str:
    """Bytes in decimal units with three digits: what a byte-exact comparison needs."""
    return format_bytes(num_bytes, decimals=3, binary=False)


def memory_lines(memory: MemoryReport) -> list[str]:
    """The peak and its parts, one a line."""
    lines = [f"peak memory: {megabytes(memory.peak_bytes)}, in the {memory.peak_phase} phase"]
    for part, value in sorted(memory.peak_parts.items(), key=lambda item: -item[1]):
        lines.append(f"  {part:<17} {megabytes(value):>12} {value / memory.peak_bytes:6.1%}")
    if memory.reserved_bytes is not None:
        lines.append(f"reserved by PyTorch's allocator for them: {megabytes(memory.reserved_bytes)}")
    return lines


def traffic_lines(traffic: list[Traffic]) -> list[str]:
    """One line per kind of collective and group."""
    if not traffic:
        return []
    lines = ["traffic per step:"]
    for row in traffic:
        lines.append(
            f"  {row.name:<15} over {row.axis} ({row.group_size}): {row.count} calls, "
            f"{megabytes(row.payload_bytes)}, {megabytes(row.wire_bytes)} on the wire"
        )
    return lines


def time_lines(steps: list[StepTime]) -> list[str]:
    """The last step's phases."""
    if not steps:
        return []
    last = steps[-1]
    text = (
        f"last of {len(steps)} steps: {last.total_seconds:.4f} s = forward {last.forward_seconds:.4f} "
        f"+ backward {last.backward_seconds:.4f} + optimizer {last.optimizer_seconds:.4f} "
        f"+ other {last.other_seconds:.4f}; "
        f"waiting for other ranks {last.communication_seconds:.4f}"
    )
    return [text]


def memory_from_dict(data: dict[str, Any]) -> MemoryReport:
    """The inverse of `asdict` for a MemoryReport."""
    return MemoryReport(**{**data, "timeline": Timeline(**data["timeline"])})
