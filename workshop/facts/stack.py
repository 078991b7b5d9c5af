"""Training stacks: one program by one name, what it keeps in memory and what its steps take.

Memory is decided by an `Implementation`, time by `Software`; both are visible in a library's source.
``data/stacks.toml`` has the known ones, with sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from workshop.facts.checks import nearest
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.tables import from_table, table

FUSED_LOSS_BYTES = 6.0
"""Moved per logit of 16 bits by a loss in one kernel each way: forward reads it, backward reads it and writes
its gradient, as Triton's in flash-attention do (flash_attn/ops/triton/cross_entropy.py). The same is taken
for what `torch.compile` makes of `F.cross_entropy`. Seen of that is only what it saves: nothing else as wide
as the vocabulary (tests/predict/memory/test_compiled_loss.py)."""


@dataclass(frozen=True)
class Software:
    """What a training stack does about it; visible in its source, not fitted, except `kernels` by count.

    `kernels`: kernels of one layer's forward (backward has twice as many).
    """

    name: str
    attention: str = "flash-2"  # "flash-1", "flash-triton", "flash-2", "flash-3" (or cuDNN's), "unfused"
    kernels: float = 30
    expert_kernels: float = 21  # more of them in a layer with experts: route, permute, gather back ...
    kernels_per_expert: float = 3.4  # ... and for each local expert in 16 bits: what a host took for them,
    # in units of a launch (data/host_experts.csv); launches alone are 2, two products forward, four backward
    host_in_8_bits: float = (
        1.82  # what a host takes for a layer in 8 bits, of 16 bits (data/host_formats.csv)
    )
    adapters: float = 64  # network adapters of a node that one collective uses, at most
    hidden_passes: float = 11  # reads and writes of [tokens, hidden] in one layer's forward
    width_passes: float = 2  # reads and writes of each linear map's output besides the product itself
    logit_bytes: float = 24  # bytes moved per logit, forward and backward, besides the products
    dropout: bool = False
    plain_scaled_rotary: bool = False  # scaled cosines and sines are taken by no fused kernel of its own
    captured: bool = False  # CUDA graphs or compiled: the host does not matter
    blocking_launches: bool = False  # CUDA_LAUNCH_BLOCKING=1: the host waits for each kernel before the next
    captured_experts: bool = False  # experts as well, though their shapes depend on the data
    early_stop: bool = False  # recomputation ends before a layer's last product, whose result nobody saved
    overlap_gradients: bool = False  # reduce while the last backward runs
    gathers_at_once: bool = False  # new parameters that ZeRO-1 shared out, before the next forward begins
    overlap_input_gradient: bool = False  # all-reduce it while the weights' gradient is computed
    overlap_shard: bool = False  # gather tokens while a rank multiplies its own; with the line above, if cut
    overlap_tensor: float = 0.0  # share of tensor-parallel communication that can hide
    overlap_expert: float = 0.0  # ... of the exchange between experts
    dispatcher: str = "tokens"  # who sends them to experts: "tokens" (DeepEP, HybridEP), "alltoall" (NCCL)
    dispatch_multiprocessors: float = 0.0  # that the exchange takes away from what it hides under
    fused_experts: bool = False  # a group of products activates, weighs and quantizes what it writes
    stashed_experts: bool = False  # what they save is copied out of buffers of fixed size, and back
    attention_bits: int = 16  # 8: fused attention multiplies in 8 bits, where that was timed
    head_bits: int = 16  # 8: the output head multiplies in 8 bits, where linear maps do
    overlap_pipeline: bool = False
    balanced_stages: bool = False  # the last stage has fewer layers, to make up for the output head
    gradient_bytes: float = 4.0  # of a gradient on the wire
    gathers_quantized: bool = False  # new and sharded weights of linear maps in 8 bits, where maps are
    library: str = "nccl-2025"  # whose collectives within a node: "nccl-2025" or "nccl-2022"
    network_share: float = 1.0  # of what collectives usually reach between nodes, with its library and fabric
    passes_rate: float = (
        0.0  # bytes/s that a stage's sends reach between nodes, where timed; 0: as collectives
    )
    accumulate_bytes: float = 0.0  # moved per parameter and micro-batch to add its gradient to what is there
    source: str = ""


class Stack(NamedTuple):
    """What decides a program's time, and what decides its memory."""

    software: Software
    implementation: Implementation


@cache
def stacks() -> dict[str, Stack]:
    """Every known stack by name. A half that is like another stack's, unchanged, keeps that one's name."""
    tables = table("stacks")
    software: dict[str, Software] = {}
    for name, entry in tables.items():
        if "like" not in entry["time"]:
            software[name] = from_table(Software, {"name": name, **entry["time"]}, f"stack {name!r}: time")
    halves = {}
    for name, entry in tables.items():
        memory = dict(entry["memory"])
        kept = implementation(memory.pop("like", name), **(memory if "like" in entry["memory"] else {}))
        halves[name] = Stack(software[entry["time"].get("like", name)], kept)
    return halves


def stack(name: str, memory: Mapping[str, Any] | None = None, time: Mapping[str, Any] | None = None) -> Stack:
    """A stack by name, with choices of its implementation (`memory`) and its software (`time`) changed.

    A loss that is changed to a fused one moves fewer bytes as well, and one that no longer is moves as many
    as usual, unless `time` says how many.

    Raises ValueError for an unknown name, with the nearest and the known ones.
    """
    known = stacks()
    if name not in known:
        raise ValueError(f"unknown training stack {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    base, time = known[name], dict(time or {})
    before, after = base.implementation.loss, (memory or {}).get("loss", base.implementation.loss)
    if before != after and "fused" in (before, after):
        time.setdefault("logit_bytes", FUSED_LOSS_BYTES if after == "fused" else Software.logit_bytes)
    return Stack(
        replace(base.software, **time) if time else base.software,
        replace(base.implementation, **memory) if memory else base.implementation,
    )


def software(name: str) -> Software:
    """What decides the time of a stack by name; ValueError with the nearest for an unknown one."""
    return stack(name).software
