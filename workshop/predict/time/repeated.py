"""What selective recomputation repeats, module by module.

The modules are those of `facts.layout.RECOMPUTE_MODULES`. What the memory model drops under their names
(`saved.Saved.module`) must be made again. Linear maps cost what their shape costs; what lies between them
costs the bytes it reads and writes. "ops" is PyTorch's checkpointing by operation as torchtitan sets it:
attention and every second product are kept, all else is repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workshop.predict.case import Setting
from workshop.predict.layouts import Layouts
from workshop.predict.time.layer import Costs, kind_shares, linear_seconds

MAPS = {
    "mlp": ("gate", "up", "down"),
    "mlp_up": ("gate", "up"),
    "moe": ("router", "expert_gate", "expert_up", "expert_down", "shared_gate", "shared_up", "shared_down"),
    "shared_experts": ("shared_gate", "shared_up", "shared_down", "shared_expert_gate"),
    "router": ("router",),
    "qkv": ("q", "k", "v", "q_up", "kv_up"),
    "mla_up_proj": ("q_up", "kv_up"),
    "attention_out": ("attention_out",),
    "latent": ("q_down", "kv_down"),
}
"""Linear maps that a module repeats."""
HIDDEN = {"layernorm": 2.0, "norm_input": 3.0, "dropout": 2.0}
"""Reads and writes of [tokens, hidden], for each of a layer's norms."""
ACTIVATIONS = {
    "mlp": "up",
    "mlp_act": "up",
    "moe": "expert_up",
    "moe_act": "expert_up",
    "shared_experts": "shared_up",
}
"""The map whose output a module's nonlinearity reads (twice, where it is gated) and writes."""


def selective_seconds(setting: Setting, layouts: Layouts, forward: Costs) -> np.ndarray:
    """Seconds per average layer that the setting's modules take again.

    Without modules, what the stack usually repeats: the core of attention where it keeps the scores; else
    attention and half of what only moves memory.
    """
    modules = setting.recompute_modules
    if not modules:
        usual = 0.0 if setting.stack.attention == "unfused" else forward.pointwise / 2
        return forward.attention + usual
    kinds = kind_shares(setting.model)
    return np.asarray(
        sum(share * _repeated(setting, layouts, forward, kind, modules) for kind, share in kinds)
    )


def _repeated(setting: Setting, layouts: Layouts, forward: Costs, kind: str, modules: tuple[str, ...]) -> Any:
    model, machine = setting.model, setting.machine
    linears = model.linears(kind)
    if "ops" in modules:
        return linear_seconds(list(linears[1::2]), layouts, machine).forward + forward.pointwise
    names = {name for module in modules for name in MAPS.get(module, ())}
    again = [x for x in linears if x.name in names]
    seconds = linear_seconds(again, layouts, machine).forward if again else 0.0 * forward.matmul
    seconds = seconds + ("core_attn" in modules) * forward.attention
    seconds = seconds + ("moe" in modules and kind == "moe") * forward.expert
    seconds = seconds + ("mlp" in modules and kind == "dense") * forward.tensor / 2
    t = np.asarray(layouts.tensor, float)
    passes = sum(HIDDEN.get(module, 0.0) for module in modules) * model.norms_per_layer * model.hidden_size
    elements = passes / np.where(np.asarray(layouts.sequence_parallel), t, 1.0)
    gates = 3 if model.gated_mlp else 2
    for module in modules:
        wide = [x for x in linears if x.name == ACTIVATIONS.get(module)]
        elements = elements + sum(gates * x.outputs * x.active for x in wide) / t
    return seconds + layouts.tokens * machine.activation_bytes * elements / machine.bandwidth
