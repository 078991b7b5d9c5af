"""Kernels and collectives that others timed alone: `data/*.csv`, the source in each row.

===============================  =============================================================================
`attention.csv`                  TFLOP/s of fused attention by device, kernel, pass, width of a head, length
`attention_windows.csv`          the same where a query sees so many keys at most
`gemm.csv`                       seconds of matrix products by device, format and shape
`grouped_gemm.csv`               seconds of a gated MLP of experts, each with as many tokens as the others
`collectives_in_node.csv`        seconds of NCCL's collectives by device, ranks and bytes, within one node
`collectives_between_nodes.csv`  the same between nodes, by nodes and bytes
`dispatch.csv`                   seconds in which tokens reach their experts, or come back, by dispatcher
`host.csv`                       seconds of a program whose device waits for its host, and its kernels
`host_experts.csv`               seconds of a host in a layer of experts, forward, under a profiler
`host_formats.csv`               seconds of a host for one model's forward pass, in 16 bits and in 8
`expert_launches.csv`            launches of some kernels in layers with experts and without
`step_kernels.csv`               seconds of kernels within steps of training, and bytes where they only move
===============================  =============================================================================

All but the last three are no runs of training: the curves of `workshop.predict` come from them. What a step
makes of those curves is fitted elsewhere, or, on B200 and its relatives, what the last one says. Bytes of a
collective are those of the whole tensor (of `all_gather` the gathered one, of `all_to_all` what one rank
holds). FLOPs of attention count half for a causal mask, and two and a half times the forward ones for
backward, as the sources count them.

`library` says whose time it is: "nccl-2025" is NCCL 2.27 to 2.29, "nccl-2022" what vTrain's authors ran.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

TABLES = (
    "attention",
    "attention_windows",
    "gemm",
    "grouped_gemm",
    "collectives_in_node",
    "collectives_between_nodes",
    "dispatch",
    "host",
    "host_experts",
    "host_formats",
    "expert_launches",
    "step_kernels",
)
_WORDS = {
    *("device", "kernel", "dtype", "causal", "pass", "library", "collective", "program", "source"),
    *("dispatcher", "direction", "model", "part"),
}
_FLOATS = {"seconds", "profiled_step", "plain_step", "seconds_16_bits", "seconds_8_bits"}


class Attention(NamedTuple):
    """One row of `attention.csv`. `pass_`: "forward" or "backward"."""

    device: str
    kernel: str
    dtype: str
    head_dim: int
    causal: bool
    pass_: str
    seq_len: int
    tflops: float


class WindowedAttention(NamedTuple):
    """One row of `attention_windows.csv`: causal, FLOPs counted for the keys that a query sees."""

    device: str
    kernel: str
    dtype: str
    head_dim: int
    window: int
    pass_: str
    seq_len: int
    tflops: float


class Gemm(NamedTuple):
    """One row of `gemm.csv`: C[rows, cols] = A[rows, depth] B[depth, cols]."""

    device: str
    dtype: str
    rows: int
    cols: int
    depth: int
    seconds: float


class GroupedGemm(NamedTuple):
    """One row of `grouped_gemm.csv`: a layer's routed experts on one of `expert` ranks, forward."""

    device: str
    dtype: str
    tokens: int
    hidden_size: int
    expert_ffn_hidden_size: int
    experts_per_token: int
    num_experts: int
    expert: int
    seconds: float

    @property
    def local_experts(self) -> int:
        """Experts of the rank."""
        return self.num_experts // self.expert

    @property
    def tokens_per_expert(self) -> float:
        """Rows of each expert's products."""
        return self.tokens * self.experts_per_token / self.num_experts


class InNode(NamedTuple):
    """One row of `collectives_in_node.csv`."""

    device: str
    library: str
    collective: str
    ranks: int
    num_bytes: int
    seconds: float


class Dispatch(NamedTuple):
    """One row of `dispatch.csv`: `tokens` of each of `ranks`, in 16 bits, to their experts ("dispatch") or
    back ("combine"); `per_node` ranks share a link.
    """

    device: str
    dispatcher: str
    direction: str
    ranks: int
    per_node: int
    tokens: int
    hidden_size: int
    experts_per_token: int
    num_experts: int
    seconds: float


class Host(NamedTuple):
    """One row of `host.csv`."""

    device: str
    program: str
    kernels: int
    seconds: float


class HostOfExperts(NamedTuple):
    """One row of `host_experts.csv`. `part`: of a mixture layer's forward, "layer", its "experts" alone, or
    the launches of one grouped "product". Steps: seconds of one under the profiler, and of one without.
    """

    device: str
    dtype: str
    part: str
    experts: int
    seconds: float
    profiled_step: float
    plain_step: float

    @property
    def unprofiled(self) -> float:
        """Seconds less the profiler's share, which is taken to be that of a whole step."""
        return self.seconds * self.plain_step / self.profiled_step


class HostOfFormats(NamedTuple):
    """One row of `host_formats.csv`: a forward pass of which the device waits for its host in 8 bits."""

    device: str
    program: str
    seconds_16_bits: float
    seconds_8_bits: float


class ExpertLaunches(NamedTuple):
    """One row of `expert_launches.csv`: launches in `layers`, forward and backward, of which
    `mixture_layers` have `experts` local experts.
    """

    device: str
    dtype: str
    kernel: str
    stage: int
    layers: int
    mixture_layers: int
    experts: int
    launches: int


class StepKernel(NamedTuple):
    """One row of `step_kernels.csv`. `seconds` and `bytes` of one call; `calls`: in a layer."""

    device: str
    model: str
    dtype: str
    part: str
    kernel: str
    calls: int
    seconds: float
    bytes: int


@cache
def host_of_experts() -> tuple[HostOfExperts, ...]:
    """Every measured part of a host's time in a layer of experts."""
    return tuple(HostOfExperts(**_numbers(row)) for row in rows("host_experts"))


@cache
def host_of_formats() -> tuple[HostOfFormats, ...]:
    """Every measured forward pass in two formats."""
    return tuple(HostOfFormats(**_numbers(row)) for row in rows("host_formats"))


@cache
def expert_launches() -> tuple[ExpertLaunches, ...]:
    """Every count of launches in layers of experts."""
    return tuple(ExpertLaunches(**_numbers(row)) for row in rows("expert_launches"))


@cache
def step_kernels() -> tuple[StepKernel, ...]:
    """Every kernel that was timed within a step of training."""
    return tuple(StepKernel(**_numbers(row)) for row in rows("step_kernels"))


@cache
def rows(name: str) -> list[dict[str, str]]:
    """A table's rows as they stand in the file; ValueError for an unknown table."""
    if name not in TABLES:
        raise ValueError(f"unknown microbenchmarks {name!r} (known: {', '.join(TABLES)})")
    text = (resources.files("workshop.facts") / "data" / f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def attention() -> tuple[Attention, ...]:
    """Every measured rate of attention."""
    return tuple(
        Attention(
            row["device"],
            row["kernel"],
            row["dtype"],
            int(row["head_dim"]),
            row["causal"] == "yes",
            row["pass"],
            int(row["seq_len"]),
            float(row["tflops"]),
        )
        for row in rows("attention")
    )


@cache
def windowed_attention() -> tuple[WindowedAttention, ...]:
    """Every measured rate of attention with a window."""
    return tuple(
        WindowedAttention(
            row["device"],
            row["kernel"],
            row["dtype"],
            int(row["head_dim"]),
            int(row["window"]),
            row["pass"],
            int(row["seq_len"]),
            float(row["tflops"]),
        )
        for row in rows("attention_windows")
    )


@cache
def gemm() -> tuple[Gemm, ...]:
    """Every measured product."""
    return tuple(Gemm(**_numbers(row)) for row in rows("gemm"))


@cache
def grouped_gemm() -> tuple[GroupedGemm, ...]:
    """Every measured group of experts."""
    return tuple(GroupedGemm(**_numbers(row)) for row in rows("grouped_gemm"))


@cache
def in_node() -> tuple[InNode, ...]:
    """Every measured collective within a node."""
    return tuple(
        InNode(
            row["device"],
            row["library"],
            row["collective"],
            int(row["ranks"]),
            int(row["bytes"]),
            float(row["seconds"]),
        )
        for row in rows("collectives_in_node")
    )


@cache
def dispatch() -> tuple[Dispatch, ...]:
    """Every exchange of tokens between experts that was timed."""
    return tuple(Dispatch(**_numbers(row)) for row in rows("dispatch"))


@cache
def host() -> tuple[Host, ...]:
    """Every program that was timed waiting for its host."""
    return tuple(Host(**_numbers(row)) for row in rows("host"))


class BetweenNodes(NamedTuple):
    """One row of `collectives_between_nodes.csv`."""

    device: str
    nodes: int
    per_node: int
    network_gbps_per_device: int
    collective: str
    num_bytes: int
    seconds: float


@cache
def between_nodes() -> tuple[BetweenNodes, ...]:
    """Every measured collective that crosses the network."""
    return tuple(
        BetweenNodes(
            row["device"],
            int(row["nodes"]),
            int(row["per_node"]),
            int(row["network_gbps_per_device"]),
            row["collective"],
            int(row["bytes"]),
            float(row["seconds"]),
        )
        for row in rows("collectives_between_nodes")
    )


def _numbers(row: dict[str, str]) -> dict[str, Any]:
    """A row without its source, with numbers where the column holds numbers."""
    return {
        key: value if key in _WORDS else float(value) if key in _FLOATS else int(value)
        for key, value in row.items()
        if key != "source"
    }
