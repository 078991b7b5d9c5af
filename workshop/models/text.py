"""Real text on every machine: the Python reference manual as bytes, cut into batches for any number of ranks.

Each Python carries the prose of its own reference manual (`pydoc_data.topics`, what `help("for")` prints):
half a million characters of English that need no download. A token is a byte, so the vocabulary is 256 and
nothing has to be trained or fetched to make tokens.

Which sequence comes when is a pure function of its number. Sequence ``g`` (counted over the whole training)
lies in pass ``g // W`` over the ``W`` windows of the text, at place ``g % W`` of that pass's shuffle::

    step 0                        step 1
    g = 0  1  2  3 | 4  5  6  7   8  9 10 11 | 12 13 14 15        a global batch of 8
        rank 0     |    rank 1        rank 0 |    rank 1          on two ranks
    0 1 | 2 3 | 4 5 | 6 7         ...                             on four

From this follow the three things that distributed training asks of its data: the global batch of a step does
not depend on how many ranks share it; ranks read disjoint parts without talking; and to resume is to know
the number of the next step, on any number of ranks.

The text changes a little with every release of Python, so losses can be compared between runs of one Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from workshop.facts.checks import check_positive


@lru_cache(maxsize=1)
def reference_manual() -> Tensor:
    """The manual's topics in alphabetical order, as one uint8 tensor of UTF-8 bytes, (bytes,)."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)


def decode(tokens: Tensor) -> str:
    """Tokens, of any shape, as text; a character cut in half at an end shows as a replacement mark."""
    return bytes(tokens.flatten().tolist()).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class TextBatches:
    """The batches of one data-parallel rank; `TextBatches(seq_len, global_batch)` is a single process's.

    Args:
        seq_len: tokens in a sequence; the targets are the same sequence one byte later.
        global_batch: sequences of a step, over all ranks.
        rank, num_ranks: place among the ranks that see different sequences.
        accumulation: micro-batches in which a rank takes its share of the step.
        seed: of the shuffle.

    Raises ValueError where the batch does not divide or the text is shorter than a sequence.
    """

    seq_len: int
    global_batch: int
    rank: int = 0
    num_ranks: int = 1
    accumulation: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch", "num_ranks", "accumulation"):
            check_positive(name, getattr(self, name))
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.num_ranks} (0 to {self.num_ranks - 1})")
        pieces = self.num_ranks * self.accumulation
        if self.global_batch % pieces:
            raise ValueError(
                f"global_batch = {self.global_batch} sequences cannot be dealt to {self.num_ranks} ranks in "
                f"{self.accumulation} micro-batches: the nearest that can is "
                f"{max(1, round(self.global_batch / pieces)) * pieces}"
            )
        if self.num_windows < 1:
            raise ValueError(
                f"seq_len = {self.seq_len}: the text has {len(reference_manual()):,} bytes; a sequence and "
                "its target need one more than seq_len"
            )

    @property
    def num_windows(self) -> int:
        """Sequences in the text: windows that do not overlap."""
        return (len(reference_manual()) - 1) // self.seq_len

    @property
    def micro_batch(self) -> int:
        """Sequences in one micro-batch of this rank."""
        return self.global_batch // (self.num_ranks * self.accumulation)

    def step(self, step: int, device: torch.device | str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """The micro-batches of this rank in a step, each tokens and targets (micro_batch, seq_len) int64."""
        first = step * self.global_batch + self.rank * (self.global_batch // self.num_ranks)
        for micro in range(self.accumulation):
            begin = first + micro * self.micro_batch
            rows = torch.stack([self.sequence(begin + i) for i in range(self.micro_batch)])
            rows = rows.to(device, torch.int64, non_blocking=True)
            yield rows[:, :-1], rows[:, 1:]

    def sequence(self, number: int) -> Tensor:
        """Sequence ``number`` of the training: seq_len + 1 bytes."""
        done, place = divmod(number, self.num_windows)
        begin = int(_shuffle(self.num_windows, self.seed, done)[place]) * self.seq_len
        return reference_manual()[begin : begin + self.seq_len + 1]

    def position(self) -> dict[str, Any]:
        """What must be the same for a step's number to mean the same sequences; a checkpoint keeps it."""
        return {"seq_len": self.seq_len, "global_batch": self.global_batch, "seed": self.seed}


@lru_cache(maxsize=4)
def _shuffle(num_windows: int, seed: int, done: int) -> Tensor:
    """The order of the windows in pass ``done`` over the text."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + done)
    return torch.randperm(num_windows, generator=generator)
