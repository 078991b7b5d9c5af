"""Kernels of a layer that only move memory: norms, activations, residuals, and what surrounds experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from workshop.facts.model import Linear, ModelSpec
from workshop.facts.stack import Software
from workshop.predict.case import Machine
from workshop.predict.layouts import Layouts

Numbers = Any
ALLTOALL_PASSES = 4.0
"""Reads and writes of a routed token to bring tokens into the order of ranks before an all-to-all, and out of
it after the one back."""
CLAMP_PASSES = 8.0
"""Reads and writes of one expert's inner width to clamp gate and up and join them again, forward."""
BIAS_KERNELS = 2.0
"""Of each expert whose second product has a bias: two forward, four backward; a third of them."""


def pointwise_seconds(
    model: ModelSpec, linears: list[Linear], kind: str, layouts: Layouts, machine: Machine, stack: Software
) -> np.ndarray:
    """Kernels that only move memory: as often as the stack's source has them, for experts as was measured.

    What was measured of experts (`facts/data/grouped_gemm.csv`) holds their activation as well, and that
    tokens are brought into the order of experts, and back. Products that are fused with their activation read
    what a dispatcher wrote in that order, so that none of it is left (arXiv 2603.07685, section 4.3.2); an
    all-to-all wants tokens in the order of ranks before (section 4.3.3).
    """
    t, tokens = np.asarray(layouts.tensor, float), layouts.tokens
    whole = stack.hidden_passes * model.hidden_size * model.norms_per_layer / 2
    alone = np.where(np.asarray(layouts.sequence_parallel), t, 1.0)
    plain = [x for x in linears if x.split == "column" and x.copies == 1]
    divided = sum(stack.width_passes * x.outputs * x.active for x in plain)
    moved = tokens * machine.activation_bytes * (whole / alone + divided / t)
    seconds = moved / machine.bandwidth + 6 * machine.rates.kernel_seconds
    if kind != "moe":
        return seconds
    rates = machine.rates
    each = 0.0 if stack.fused_experts else rates.routed_passes
    if stack.dispatcher == "alltoall":
        each = each + ALLTOALL_PASSES
    passes = each * model.experts_per_token + rates.token_passes
    routed = tokens / t * machine.activation_bytes * passes * model.hidden_size
    seconds = seconds + routed / machine.memory_bandwidth + rates.route_seconds
    if not stack.fused_experts:
        beside = _bias_bytes(model, machine, stack) + _clamp_bytes(model, linears, machine)
        seconds = seconds + tokens / t * model.experts_per_token * beside / machine.bandwidth
    return seconds + stack.stashed_experts * _stash_seconds(model, linears, tokens / t, machine)


def _bias_bytes(model: ModelSpec, machine: Machine, stack: Software) -> float:
    """Bytes of a routed token where the experts' second products have a bias; a third of a step's.

    Megatron-Core multiplies the bias by the token's weight, adds it, and joins the experts' tokens again,
    each in a kernel of its own (megatron/core/transformer/moe/experts.py: TEGroupedMLP._apply_bias). The
    weight is in 16 bits, or in 32 where tokens are sent one by one (moe/token_dispatcher.py), and with it
    all that comes of it. Bytes of an element, w the width of both:

        forward    b * p: w;  t + b p: 2 + 2 w;  joined: 2 w;  to 16 bits: w + 2
        backward   from 16 bits: 2 + w;  times p, and summed over tokens: 3 w;  times b, and summed over the
                   width: 3 w;  the tokens' own to 16 bits: w + 2, and joined: 4

    (nothing is cast where w is 2). The first product adds its bias as it writes.
    """
    if not model.mlp_bias:
        return 0.0
    narrow = machine.activation_bytes
    wide = 4.0 if stack.dispatcher == "tokens" else narrow
    cast = wide + narrow if wide > narrow else 0.0
    forward = wide + (narrow + 2 * wide) + 2 * wide + cast
    backward = cast + 6 * wide + cast + 2 * narrow
    return (forward + backward) / 3 * model.hidden_size


def _clamp_bytes(model: ModelSpec, linears: list[Linear], machine: Machine) -> float:
    """Bytes of a routed token where the inputs of a gate are clamped; a third of a step's.

    The halves are clamped and joined again before the fused activation reads them
    (megatron/core/fusions/fused_bias_geglu.py: weighted_bias_quick_geglu_impl): each is read and written
    twice; backward a mask moves three times, and they are joined once more.
    """
    if not model.clamped_experts:
        return 0.0
    wide = sum(x.outputs for x in linears if x.copies > 1 and x.split == "column")
    return (4 + 5) / 3 * wide * machine.activation_bytes


def _stash_seconds(model: ModelSpec, linears: list[Linear], tokens: Numbers, machine: Machine) -> Any:
    """A forward's share of copying what experts save out of buffers of fixed size and back.

    A graph of the whole step wants buffers for the most tokens that an expert may get. What backward needs is
    copied into pages, and back before it ("MoE Paged Stash", Megatron-Core's user guide; github
    NVIDIA/Megatron-LM pull request 4247): the inputs of both products as they were multiplied, and what the
    activation reads. Each copy reads and writes; a forward is counted three times in a step, so it bears a
    third of both.
    """
    inputs = sum(x.inputs for x in linears if x.copies > 1) * machine.element_bytes
    between = (
        sum(x.outputs for x in linears if x.copies > 1 and x.split == "column") * machine.activation_bytes
    )
    return tokens * model.experts_per_token * (4 / 3) * (inputs + between) / machine.bandwidth
