"""How long would it take? The roofline of every operator, summed.

An operator can be no faster than its FLOPs at the device's peak, and no faster than its bytes at the device's
memory bandwidth; the larger of the two is its roofline time (Williams, Waterman and Patterson, "Roofline",
CACM 2009). A collective takes at least its wire bytes at the rank's link. The sums are a lower bound for code
that overlaps nothing: no launch overheads, no latency, no tile quantisation. `workshop.predict` models those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from workshop.measure.comms import Collective
from workshop.rehearse.request import Roofline

_FREE = frozenset(
    "view _unsafe_view t transpose expand slice select split unbind detach alias as_strided permute "
    "unsqueeze squeeze reshape empty empty_like empty_strided new_empty lift_fresh split_with_sizes".split()
)
"""Operators that move no bytes."""


class RooflineClock:
    """Adds up roofline seconds until `take()` reads and resets them."""

    def __init__(self, roofline: Roofline) -> None:
        self._roofline = roofline
        self._compute = 0.0
        self._communication = 0.0

    def add_operator(self, func: torch._ops.OpOverload, flops: int, inputs: Any, out: Any) -> None:
        """One operator with its FLOPs, reading `inputs` and writing `out`."""
        if func._overloadpacket.__name__ in _FREE:
            return
        tensors = [leaf for leaf in tree_leaves((inputs, out)) if isinstance(leaf, torch.Tensor)]
        seconds = sum(t.numel() * t.element_size() for t in tensors) / self._roofline.bytes_per_second
        if flops:
            seconds = max(seconds, flops / self._rate(tensors[0].dtype))
        self._compute += seconds

    def add_call(self, call: Collective) -> None:
        """One collective."""
        self._communication += call.wire_bytes / self._roofline.wire_bytes_per_second

    def take(self) -> dict[str, float]:
        """Seconds since the last take."""
        taken = {"compute": self._compute, "communication": self._communication}
        self._compute = self._communication = 0.0
        return taken

    def _rate(self, dtype: torch.dtype) -> float:
        name = str(dtype).removeprefix("torch.")
        rates = self._roofline.flops_per_second
        if name not in rates:
            raise ValueError(f"the roofline has no rate for {name} products; it has {', '.join(rates)}")
        return rates[name]
