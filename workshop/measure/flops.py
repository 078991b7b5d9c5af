"""FLOPs of the operators a step really calls, on this rank.

A matrix product of (m, k) by (k, n) costs 2 m k n: a multiply and an add each. Everything else (norms,
activations, softmax) is left out, as is the custom. torch keeps the formulas (`torch.utils.flop_counter`),
but not for the fused attention kernel of the CPU, so that its own `FlopCounterMode` silently counts attention
as zero on a laptop. We add it: forward two products over the full square, backward five (it recomputes the
scores), causal or not, as FlashAttention's authors count (arXiv:2205.14135). `grouped_mm`, the
experts' product of a mixture, is missing too.

Count *below* DTensor. Above it shapes are global, and a rank of a tensor-parallel group would be charged for
all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
    shape_wrapper,
)


def _attention_forward(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _grouped_product(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Experts' products in one call: rows, columns or the summed dimension are cut into groups, each expert
    has one. Whatever is cut, all groups together do the work of the whole."""
    if len(first) == 2:
        return 2 * first[0] * first[1] * second[-1]
    groups = first[0] if len(second) == 3 else 1
    return 2 * groups * first[1] * first[2] * second[-1]


_aten = torch.ops.aten
_FORMULAS = dict(flop_registry)
_FORMULAS[_aten._scaled_dot_product_flash_attention_for_cpu] = shape_wrapper(_attention_forward)
_FORMULAS[_aten._scaled_dot_product_flash_attention_for_cpu_backward] = shape_wrapper(_attention_backward)
_FORMULAS[_aten._grouped_mm] = shape_wrapper(_grouped_product)


def count(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """FLOPs of one call of `func`; 0 for operators that are no matrix product, convolution or attention."""
    formula = _FORMULAS.get(func._overloadpacket)
    return formula(*args, **kwargs, out_val=out) if formula is not None else 0


def is_product(func: torch._ops.OpOverload) -> bool:
    """Whether `count` has a formula for this operator."""
    return func._overloadpacket in _FORMULAS
