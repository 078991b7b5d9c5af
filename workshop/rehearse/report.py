"""What a rehearsal brings back. Plain data, no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from workshop.facts.measurement import Measurement
from workshop.facts.tabular import preformatted
from workshop.measure.report import (
    MemoryReport,
    Traffic,
    memory_from_dict,
    memory_lines,
    traffic_lines,
)


class RehearsalError(RuntimeError):
    """The program could not be rehearsed; the message says where and why. `output` is what it had printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class Rehearsal:
    """One rank of a world that was never started.

    Args:
        rank, world_size: which rank of how many.
        memory: peak, parts and timeline over all rehearsed steps, exact bytes of tensors.
        traffic: collectives of the last whole step.
        flops: FLOPs of the last whole step on this rank.
        roofline_seconds: if a device was given: each operator at the device's peak or bandwidth, one after
            the other; a lower bound without overlap, split into `compute` and `communication`.
        steps: whole steps rehearsed.
        operators: operators executed.
        seconds: wall time of the rehearsal's parts in the child: `import`, `run`.
        child_peak_bytes: largest resident size of the child process.
        alarms: why this report is probably not one of the training that was meant.
        notes: what was assumed or estimated on the way, in words.
        output: what the program printed.
    """

    rank: int
    world_size: int
    memory: MemoryReport
    traffic: list[Traffic]
    flops: int
    roofline_seconds: dict[str, float] | None
    steps: int
    operators: int
    seconds: dict[str, float]
    child_peak_bytes: int
    alarms: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def peak_bytes(self) -> int:
        """The largest balance of live tensor bytes over the rehearsed steps."""
        return self.memory.peak_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """What PyTorch's caching allocator takes from the driver for these tensors, at most; None on a CPU.

        Its rule (``c10/cuda/CUDACachingAllocator.cpp``) is played with each tensor in its turn, on one
        stream, without `expandable_segments`. cuBLAS's workspaces come on top
        (`workshop.predict.memory.allocator.workspace_bytes`), and the CUDA context is no part of it.
        """
        return self.memory.reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Rehearsal:
        """The inverse of `to_dict`."""
        traffic = [Traffic(**row) for row in data["traffic"]]
        return cls(**{**data, "memory": memory_from_dict(data["memory"]), "traffic": traffic})

    def to_measurement(self, **setting: Any) -> Measurement:
        """The record that `measure` brings back too, so that one stands beside the other; `setting` is kept
        with it. `step_seconds` stays 0: a rehearsal times nothing, and its roofline is a bound.
        """
        return Measurement(
            rank=self.rank,
            world_size=self.world_size,
            allocated_bytes=self.peak_bytes,
            parts=dict(self.memory.peak_parts),
            flops=float(self.flops),
            traffic=tuple(self.traffic),
            setting={"by": "rehearse", "notes": [*self.alarms, *self.notes], **setting},
        )

    def __str__(self) -> str:
        first = (
            f"rehearsed rank {self.rank} of {self.world_size:,}: {self.steps} steps, {self.operators:,} "
            f"operators in {self.seconds.get('run', 0):.1f} s"
        )
        lines = [first, *[f"ALARM: {alarm}" for alarm in self.alarms], *memory_lines(self.memory)]
        lines += traffic_lines(self.traffic)
        if self.flops:
            lines.append(f"FLOPs per step on this rank: {self.flops:.4g}")
        if self.roofline_seconds is not None:
            parts = ", ".join(f"{name} {value:.4f} s" for name, value in self.roofline_seconds.items())
            lines.append(f"roofline of one step, without overlap: {parts}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))
