"""Which device the ranks run on, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """``cuda`` with NCCL where every rank has a GPU of its own, else ``cpu`` with gloo."""

    kind: str
    sentence: str

    def environment(self) -> dict[str, str]:
        """Variables that hold the ranks to the choice: on CPU they see no GPU."""
        return {} if self.kind == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}


def choose(n: int, gpus: int) -> Device:
    """The device for ``n`` ranks on a node with ``gpus`` GPUs.

    NCCL wants one GPU for each rank, so with fewer GPUs than ranks all ranks go to the CPU.
    """
    ranks = f"{n} rank{'s' * (n > 1)}"
    if 0 < n <= gpus:
        return Device("cuda", f"{ranks} on {n} of {gpus} GPU{'s' * (gpus > 1)}, NCCL")
    if gpus:
        return Device("cpu", f"{ranks} on CPU, gloo (NCCL needs a GPU for each rank; {gpus} here)")
    return Device("cpu", f"{ranks} on CPU, gloo")


def choose_for_nodes(per_node: int, gpus: Sequence[int]) -> Device:
    """The device for ``per_node`` ranks on each of the nodes that have so many GPUs."""
    one = choose(per_node, min(gpus))
    if len(gpus) == 1:
        return one
    total = per_node * len(gpus)
    ranks = f"{total} ranks on {len(gpus)} nodes"
    return Device(one.kind, f"{ranks}, NCCL" if one.kind == "cuda" else f"{ranks}, CPU, gloo")
