"""What some experts need beside their products: biases, clamps, and copies for a graph of the whole step."""

from __future__ import annotations

from typing import Any

from workshop.facts.model import Linear, ModelSpec
from workshop.facts.stack import Software
from workshop.predict.case import Machine

Numbers = Any
CLAMP_PASSES = (4.0, 5.0)
"""Reads and writes of an expert's gate and up to clamp them and join them again, forward and backward."""


def bias_and_clamp_seconds(
    model: ModelSpec, linears: list[Linear], tokens: Numbers, machine: Machine, stack: Software
) -> Any:
    """Seconds of a forward for `tokens` on a rank before they are routed; a third of a step's."""
    moved = _bias_bytes(model, machine, stack) + _clamp_bytes(model, linears, machine)
    return tokens * model.experts_per_token * moved / machine.bandwidth


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
    return sum(CLAMP_PASSES) / 3 * wide * machine.activation_bytes


def stash_seconds(model: ModelSpec, linears: list[Linear], tokens: Numbers, machine: Machine) -> Any:
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
