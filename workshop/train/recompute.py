"""Recompute: drop a part's tensors after forward, and run its forward again when backward needs them.

``"full"`` keeps a layer's input alone (Chen et al. 2016, arXiv 1604.06174). ``"selective"`` drops what is
large and cheap to make again: by default the core of attention (Korthikanti et al. 2022, arXiv 2205.05198,
section 5); ``"mlp"`` the gated network; ``"ops"`` keeps the results of attention and of every second matrix
product and drops everything else, as torchtitan does (torchtitan/distributed/activation_checkpoint.py).
Parts are looked up by the names of `workshop.models.gpt`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from workshop.facts.checks import check_choice
from workshop.facts.layout import Layout
from workshop.parallel.wrapping import layers

PARTS = {"core_attn": "self_attn.core", "mlp": "mlp"}
"""Modules of a layer that `Layout.recompute_modules` may name, and where they are."""


def apply_recompute(model: nn.Module, layout: Layout) -> None:
    """Recompute as the layout says, in place; parameters keep their names.

    Raises:
        ValueError: a module that is not known or not there, or groups of several layers.
    """
    if layout.recompute == "none":
        return
    if layout.recompute_every > 1:
        raise ValueError(
            f"recompute_every = {layout.recompute_every}: here each layer keeps its own input; use 1, or "
            "recompute_layers to leave some layers alone"
        )
    chosen = layers(model)[: layout.recompute_layers or None]
    for layer in chosen:
        if layout.recompute == "full":
            _again(layer)
        elif "ops" in layout.recompute_modules:
            if len(layout.recompute_modules) > 1:
                raise ValueError(
                    f"recompute_modules = {layout.recompute_modules}: 'ops' is about the whole layer "
                    "and stands alone"
                )
            _again(layer, context_fn=_keep_dear_results)
        else:
            for name in layout.recompute_modules or ("core_attn",):
                _again(_part(layer, name))


def _part(layer: nn.Module, name: str) -> nn.Module:
    check_choice("module to recompute", name, [*PARTS, "ops"])
    try:
        return layer.get_submodule(PARTS[name])
    except AttributeError:
        raise ValueError(
            f"recompute {name!r}: a {type(layer).__name__} has no {PARTS[name]!r}, as layers of "
            "workshop.models.gpt have; use recompute='full', which works for any layer"
        ) from None


def _again(module: nn.Module, **options: Any) -> None:
    """Let the module's forward keep only its inputs."""
    module.forward = partial(checkpoint, module.forward, use_reentrant=False, **options)


def _keep_dear_results() -> tuple[Any, Any]:
    """Contexts in which attention's results and those of every second matrix product are kept."""
    ops = torch.ops.aten
    attention = {
        ops._scaled_dot_product_flash_attention_for_cpu.default,
        ops._scaled_dot_product_flash_attention.default,
        ops._scaled_dot_product_efficient_attention.default,
        ops._scaled_dot_product_cudnn_attention.default,
    }
    products = {"forward": 0, "again": 0}

    def policy(context: Any, op: Callable[..., Any], *_: Any, **__: Any) -> CheckpointPolicy:
        dear = op in attention
        if op is ops.mm.default:
            when = "again" if context.is_recompute else "forward"
            products[when] += 1
            dear = products[when] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
