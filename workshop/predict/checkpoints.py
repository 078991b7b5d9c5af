"""How large a checkpoint is, and how long it takes to write.

To go on exactly, a run needs its weights as the optimizer updates them, and what the optimizer remembers.
With AdamW in fp32 that is

    4 (weight) + 4 (first moment) + 4 (second moment) = 12 bytes a parameter

and 2 more where a copy in 16 bits is kept beside them. Gradients are made anew in each step and are not
saved. BLOOM's (176 billion parameters, bf16 and fp32 weights, fp32 moments: 14 bytes) took 2.3 TB, the bf16
weights alone 329 GB, counted in powers of two (github.com/bigscience-workshop/bigscience,
train/tr11-176B-ml/README.md).

Everything else that must be saved (the step, the position in the data, random generators, the rate) is a few
kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.checks import check_choice
from workshop.facts.precision import MOMENTS


@dataclass(frozen=True)
class CheckpointBytes:
    """Bytes of a checkpoint by part, over all ranks."""

    weights: float
    moments: float
    copies: float

    @property
    def total(self) -> float:
        """All parts."""
        return self.weights + self.moments + self.copies

    def per_rank(self, num_ranks: int) -> float:
        """What each rank writes where every byte is written once."""
        if num_ranks < 1:
            raise ValueError(f"num_ranks is {num_ranks}; it must be at least 1")
        return self.total / num_ranks


def checkpoint_bytes(
    num_params: float, optimizer: str = "adamw", weight_bytes: int = 4, copy_bytes: int = 0
) -> CheckpointBytes:
    """Bytes of a checkpoint of a model that is trained.

    optimizer: as in `Run`; its moments are in fp32, those of an 8-bit one in a byte. weight_bytes: of the
    weights that the optimizer updates. copy_bytes: 2 where 16-bit copies are saved too.
    Raises ValueError for an unknown optimizer or a count that is not positive.
    """
    check_choice("optimizer", optimizer, MOMENTS)
    if not num_params > 0:
        raise ValueError(f"num_params is {num_params}; it must be more than 0")
    each = 1.0 if optimizer.endswith("8bit") else 4.0
    moments = each * MOMENTS[optimizer] * num_params
    return CheckpointBytes(float(weight_bytes) * num_params, moments, float(copy_bytes) * num_params)


def write_seconds(num_bytes: float, bytes_per_second: float) -> float:
    """Seconds in which so many bytes are written. ValueError unless both are positive."""
    for name, value in (("num_bytes", num_bytes), ("bytes_per_second", bytes_per_second)):
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be more than 0")
    return num_bytes / bytes_per_second
