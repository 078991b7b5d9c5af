r"""What pruning saves: bytes, FLOPs and, on a device whose kernels know the pattern, seconds.

Bytes of a matrix of n weights, b bytes each, of which a share s is zero:

==============  ============================================  ===========================================
pattern         kept                                          source
==============  ============================================  ===========================================
unstructured    (1 - s) n values, and a bit for every weight  a bit mask, the least that says where
2:4             n / 2 values, and 2 bits for each             Mishra et al. 2021, arXiv 2104.08378, sec. 3.2
structured      (1 - s) n values, nothing else                a smaller dense matrix
==============  ============================================  ===========================================

So 2:4 in 16 bits takes 9/16 of the bytes, not half. FLOPs that a kernel does: all of them for unstructured
zeros in a dense kernel (it multiplies by zero), half for 2:4 on sparse tensor cores, 1 - s for a smaller
matrix.

A matrix product on t tokens takes at least max(FLOPs / peak, bytes / bandwidth) (the roofline of Williams,
Waterman and Patterson 2009). Few tokens, as in generating text, wait for the weights: there 2:4 saves 7/16.
Many tokens compute: there it saves half. Both are floors: published end-to-end gains are smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.checks import check_choice, check_positive
from workshop.facts.device import DeviceSpec
from workshop.facts.model import ModelSpec

PATTERNS = ("dense", "unstructured", "2:4", "structured")


def pruned_bytes(num_weights: float, pattern: str, sparsity: float = 0.5, weight_bytes: float = 2.0) -> float:
    """Bytes of the weights as the pattern stores them.

    ValueError for unknown patterns and a sparsity outside 0 to 1.
    """
    _check(pattern, sparsity)
    if pattern == "dense":
        return num_weights * weight_bytes
    if pattern == "2:4":
        return num_weights / 2 * (weight_bytes + 2 / 8)
    mask = num_weights / 8 if pattern == "unstructured" else 0.0
    return num_weights * (1 - sparsity) * weight_bytes + mask


def done_flops(num_weights: float, pattern: str, sparsity: float = 0.5) -> float:
    """FLOPs that a kernel does for a token; those of unstructured zeros are done all the same."""
    _check(pattern, sparsity)
    share = {"2:4": 0.5, "structured": 1 - sparsity}.get(pattern, 1.0)
    return 2.0 * num_weights * share


def _check(pattern: str, sparsity: float) -> None:
    check_choice("pattern", pattern, PATTERNS)
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity is {sparsity}; it is the share of zeros, from 0 to 1")


@dataclass(frozen=True)
class Forward:
    """One forward pass of all linear maps: bytes of weights, FLOPs done, and the least seconds for both."""

    weight_bytes: float
    flops: float
    seconds: float


def forward_floor(model: ModelSpec, device: DeviceSpec, tokens: int, pattern: str = "dense") -> Forward:
    """Linear maps of the layers pruned to `pattern` (half of each), the head dense, in bf16, on `tokens`
    tokens.

    Activations, attention scores and launches are left out: a floor. ValueError where the device has no peak
    for bf16 or its bandwidth is not known.
    """
    check_positive("tokens", tokens)
    peak, bandwidth = device.peak("bf16"), device.memory_bandwidth
    if not bandwidth:
        raise ValueError(f"the memory bandwidth of {device.name} is not known")
    kinds = model.layer_kinds()
    maps = [
        (linear.weights * linear.copies, linear.weights * linear.active, pattern)
        for kind in kinds
        for linear in model.linears(kind)
    ]
    head = model.hidden_size * model.vocab_size
    maps.append((head, head, "dense"))
    num_bytes = flops = seconds = 0.0
    for held, active, how in maps:
        part_bytes, part_flops = pruned_bytes(held, how), tokens * done_flops(active, how)
        num_bytes, flops = num_bytes + part_bytes, flops + part_flops
        seconds += max(part_flops / peak, part_bytes / bandwidth)
    return Forward(num_bytes, flops, seconds)
