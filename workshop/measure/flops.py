"""FLOPs of the operators a step really calls, on this rank.

A matrix product of (m, k) by (k, n) costs 2 m k n: a multiply and an add each. Everything else (norms,
activations, softmax) is left out, as is the custom. torch keeps the formulas (`torch.utils.flop_counter`),
but not for the fused attention kernel of the CPU, so that its own `FlopCounterMode` silently counts attention
as zero on a laptop. We add it: forward two products over the full square, backward five (it recomputes the
scores), causal or not, as FlashAttention's authors count (arXiv:2205.14135). The same formula serves the
kernels of GPUs, because torch's refuses heads that share keys before 2.12. The experts' product of a mixture
(``grouped_mm``) is missing too.

Count *below* DTensor. Above it shapes are global, and a rank of a tensor-parallel group would be charged for
all.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, shape_wrapper


def _attention_forward(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Scores and their use. Shapes: query (batch, heads, queries, q_dim); key (batch, kv_heads, keys, q_dim);
    value (batch, kv_heads, keys, v_dim). Query heads that share a key head do their own products."""
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])


def _attention_backward(
    grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    """The scores again; gradients of queries and keys (q_dim each), of values and of the scores (v_dim)."""
    return 2 * prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3])


def _grouped_product(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Experts' products in one call: rows, columns or the summed dimension are cut into groups, each expert
    has one. Whatever is cut, all groups together do the work of the whole."""
    if len(first) == 2:
        return 2 * first[0] * first[1] * second[-1]
    groups = first[0] if len(second) == 3 else 1
    return 2 * groups * first[1] * first[2] * second[-1]


_aten = torch.ops.aten
_FORMULAS = dict(flop_registry)
for _kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"):
    _name = f"_scaled_dot_product_{_kernel}"
    _FORMULAS[getattr(_aten, _name)] = shape_wrapper(_attention_forward)
    _FORMULAS[getattr(_aten, f"{_name}_backward")] = shape_wrapper(_attention_backward)
_FORMULAS[_aten._grouped_mm] = shape_wrapper(_grouped_product)


def count(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """FLOPs of one call of `func`; 0 for operators that are no matrix product, convolution or attention."""
    formula = _FORMULAS.get(func._overloadpacket)
    return formula(*args, **kwargs, out_val=out) if formula is not None else 0


def is_product(func: torch._ops.OpOverload) -> bool:
    """Whether `count` has a formula for this operator."""
    return func._overloadpacket in _FORMULAS
