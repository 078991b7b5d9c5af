"""Failures that have been met before, in programs that are right by their own lights: what to do about them.

A program that fails or hangs like this under plain torchrun does so here too. The message then says what is
known, because neither the exception nor the place where a rank waits would lead there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workshop.launch.failures import RankEnd


@dataclass(frozen=True)
class KnownCause:
    """``fits`` tells by how a rank ended whether it is this one; ``advice`` is what the reader is told."""

    fits: Callable[[RankEnd], bool]
    advice: str


def _stuck_in(name: str, file: str) -> Callable[[RankEnd], bool]:
    def fits(end: RankEnd) -> bool:
        return end.kind == "stuck" and any(
            frame.name == name and frame.file.endswith(file) for frame in end.frames
        )

    return fits


def _raised(pattern: str) -> Callable[[RankEnd], bool]:
    return lambda end: end.kind == "raised" and re.search(pattern, end.message) is not None


KNOWN = (
    KnownCause(
        _stuck_in("destroy_process_group", "torch/distributed/distributed_c10d.py"),
        "Known of gloo, under plain torchrun too: a DDP model that outlives its group can hold up its end. "
        "Delete the model before destroy_process_group() (or end_training()), or leave that call out: "
        "the end of the program ends the group.",
    ),
    KnownCause(
        _stuck_in("start_processes", "torch/multiprocessing/spawn.py"),
        "The program starts ranks of its own with torch.multiprocessing.spawn, once in every rank here, and "
        "they wait for one another. Let one of the two do it: `-n 1` for the program as it is, or call its "
        "function without spawn and read RANK and WORLD_SIZE from the environment.",
    ),
    KnownCause(
        _raised(r"_scaled_dot_product_flash_attention_for_cpu\S* does not have a sharding strategy"),
        "torch cannot cut its flash attention for CPUs. Wrap the step: `with torch.nn.attention.sdpa_kernel("
        "torch.nn.attention.SDPBackend.MATH):`; on GPUs it runs as it is.",
    ),
    KnownCause(
        _raised(r"\.so: (file too short|invalid ELF header)"),
        "A kernel in torch's cache of compiled code is incomplete: something stopped while it was written. "
        "Delete the file that the message names; torch compiles it again.",
    ),
)


def advice(ends: Sequence[RankEnd]) -> list[str]:
    """What is known about how these ranks ended: a sentence or two for each cause that fits one of them."""
    return [known.advice for known in KNOWN if any(known.fits(end) for end in ends)]
