"""What one layer keeps for backward, tensor by tensor.

Backward needs some of forward's intermediate results, and the sum of these over layers is usually the largest
part of a training step's memory.  Korthikanti et al. 2022 (arXiv 2205.05198) count them for GPT-3 in 16 bits:
with ``s`` tokens, ``b`` sequences, width ``h``, ``a`` heads::

    s*b*h * (34 + 5*a*s/h)   bytes a layer                          (their equation 1)
    s*b*h * (10 + 24/t + 5*a*s/(h*t))  with tensor parallelism t    (equation 2)
    s*b*h/t * (34 + 5*a*s/h)  and sequence parallelism              (equation 4)

This module writes the same count as a list, one line per tensor, so that it holds for any model: grouped
queries, gated MLPs, latent attention, experts, with dropout or without, flash attention or not. For GPT-3's
shape the list sums to the equations above (``tests/predict/memory/test_activations.py``). A linear map keeps
its input; a norm keeps its input; dropout keeps one byte of mask per element; a nonlinearity keeps its input;
flash attention keeps queries, keys, values, output and one fp32 statistic per row and head; unfused attention
keeps probabilities before and after dropout, and the mask.

Flash attention of a GPU takes heads of a multiple of 8 numbers. PyTorch pads others with zeros and cuts the
result (aten/src/ATen/native/transformers/attention.cpp: pad_last_dim<8>, post_process_flash_output). What it
keeps is padded, and the output is kept once more as it was cut: 3B with heads of 100, measured on an H200
(`data/measurements/gpu/memory.json`). On a CPU nothing is padded, and such heads are predicted a little high.
"""

from __future__ import annotations

from typing import NamedTuple

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision


class Saved(NamedTuple):
    """One saved tensor: ``width`` elements of ``num_bytes`` for every token.

    ``split``: ``"tensor"`` is divided over tensor ranks, ``"sequence"`` only with sequence parallelism,
    ``"whole"`` never; ``"traded"`` is like ``"tensor"``, of Ulysses alone; ``"expert"`` is like
    ``"sequence"``, times the ranks that share one expert and so see the same tokens. ``module`` is the
    name under which a recompute policy drops it. ``per_key`` tensors have ``width`` elements for every
    pair of token and key.
    """

    name: str
    width: float
    num_bytes: float
    split: str
    module: str
    per_key: bool = False
    only_for: tuple[str, ...] = ()  # linear maps whose weight gradient alone needs the tensor

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each token (and each key, if ``per_key``)."""
        return self.width * self.num_bytes


def layer_saved(model: ModelSpec, kind: str, how: Implementation, numbers: Precision) -> list[Saved]:
    """All tensors one layer saves for backward when nothing is recomputed."""
    return (
        norm_saved(model, how, numbers, "attention_norm", kind)
        + attention_saved(model, how, numbers)
        + (
            []
            if model.parallel_block and model.norms_per_layer == 1
            else norm_saved(model, how, numbers, "mlp_norm", kind)
        )
        + (
            mlp_saved(model, model.ffn_hidden_size, how, numbers)
            if kind == "dense"
            else moe_saved(model, how, numbers)
        )
    )


def stream_bytes(how: Implementation, numbers: Precision) -> float:
    """Width of the residual stream. Under autocast an embedding gives fp32, and fp32 plus 16 bits is fp32."""
    return 4 if numbers.in_autocast and not how.compile else numbers.compute


def norm_saved(
    model: ModelSpec, how: Implementation, numbers: Precision, name: str, kind: str = "dense"
) -> list[Saved]:
    """A norm's input and output.  The output is the next linear map's input.

    Eagerly, RMSNorm computes in fp32: it keeps the input cast to fp32 in place of the input, and the
    normalised value that its weight's gradient needs. Autocast keeps its copies of weights, and none of
    activations: each linear map that reads the norm makes, and saves, a copy of its own.
    """
    c, stream = numbers.compute, stream_bytes(how, numbers)
    readers = (
        ("q", "k", "v", "q_down", "kv_down")
        if name == "attention_norm"
        else ("gate", "up", "router", "expert_gate", "expert_up", "shared_gate", "shared_up")
    )
    reading = sum(linear.name in readers for linear in model.linears(kind)) if name != "final_norm" else 1
    copies = reading if stream != c else 1
    eager = how.norm == "eager" and not how.compile and model.norm == "rmsnorm"
    saved = [
        Saved(f"{name} input", model.hidden_size, 4 if eager else stream, "sequence", "norm_input"),
        Saved(
            f"{name} output",
            copies * model.hidden_size,
            numbers.saved_input or c,
            "whole" if how.gathered_inputs else "sequence",
            "layernorm",
            False,
            readers,
        ),
        Saved(f"{name} statistics", 2 if model.norm == "layernorm" else 1, 4, "sequence", "layernorm"),
    ]
    if eager:
        saved.append(
            Saved(
                f"{name} before its weight",
                model.hidden_size,
                stream,
                "sequence",
                "layernorm",
                only_for=("norm",),
            )
        )
    return saved


def attention_saved(model: ModelSpec, how: Implementation, numbers: Precision) -> list[Saved]:
    """Queries, keys, values, the core's own tensors, the output projection's input, and dropout's mask."""
    c, heads = numbers.compute, model.num_heads
    saved = [
        Saved("queries", model.q_width, c, "tensor", "qkv"),
        Saved("keys", model.kv_width, c, "tensor", "qkv"),
        Saved("values", model.v_width, c, "tensor", "qkv"),
        Saved("attention output", model.attention_width, c, "tensor", "attention_out"),
    ]
    if how.fused_qkv_views:
        both = model.q_width + model.kv_width
        saved.append(Saved("queries and keys in the joint projection", both, c, "tensor", "qkv"))
    if model.is_mla:
        latent = 2 * (model.q_lora_rank + model.kv_lora_rank) + model.qk_rope_head_dim
        saved.append(Saved("latent vectors and their norms", latent, c, "sequence", "latent"))
    if model.qk_norm != "none":
        saved.append(
            Saved("queries and keys before their norm", model.q_width + model.kv_width, c, "tensor", "qkv")
        )
    if how.attention == "unfused":
        saved.append(Saved("probabilities", heads, c, "tensor", "core_attn", per_key=True))
        if how.dropout and model.dropout:
            saved += [
                Saved("dropped probabilities", heads, c, "tensor", "core_attn", per_key=True),
                Saved("probabilities' mask", heads, 1, "tensor", "core_attn", per_key=True),
            ]
    else:
        saved.append(Saved("row statistics", heads, 4, "tensor", "core_attn"))
        saved += padded_heads(model, c)
    saved.append(
        Saved(
            "attention output, before heads are traded back", model.attention_width, c, "traded", "core_attn"
        )
    )
    if how.attention == "flash-copy":
        saved.append(
            Saved("attention output, transposed", model.attention_width, c, "tensor", "attention_out")
        )
    if how.dropout and model.dropout:
        saved.append(Saved("attention dropout's mask", model.hidden_size, 1, "sequence", "dropout"))
    return saved


def padded_heads(model: ModelSpec, element_bytes: float) -> list[Saved]:
    """What flash attention keeps more where the width of a head is no multiple of 8, in 16 bits."""
    zeros = -model.head_dim % 8
    if model.is_mla or element_bytes != 2 or not zeros:
        return []
    heads = 2 * (model.num_heads + model.num_kv_heads)  # of queries, keys, values and the output
    return [
        Saved("zeros at the ends of heads", zeros * heads, element_bytes, "tensor", "core_attn"),
        Saved("output with these zeros cut", model.attention_width, element_bytes, "tensor", "attention_out"),
    ]


def mlp_saved(
    model: ModelSpec,
    width: int,
    how: Implementation,
    numbers: Precision,
    split: str = "tensor",
) -> list[Saved]:
    """What the nonlinearity reads and what the last linear map reads."""
    c, gates = numbers.compute, 2 if model.gated_mlp else 1
    saved = [
        Saved("mlp before its nonlinearity", gates * width, c, split, "mlp_up"),
        Saved(
            "mlp after its nonlinearity",
            width,
            numbers.saved_input or c,
            split,
            "mlp_act",
            False,
            ("down", "expert_down", "shared_down"),
        ),
    ]
    if model.gated_mlp and not how.transformer_engine and not how.compile:
        saved.append(Saved("nonlinearity's result before the gate", width, c, split, "mlp_act"))
    if not model.gated_mlp and how.eager_gelu and not how.compile:
        # 0.5 * x * (1 + tanh(...)): half the input, the tanh and one more than it.
        saved.append(Saved("parts of the nonlinearity", 3 * width, c, split, "mlp_act"))
    if how.dropout and model.dropout and split == "tensor":
        saved.append(Saved("mlp dropout's mask", model.hidden_size, 1, "sequence", "dropout"))
    return saved


def cross_attention_saved(model: ModelSpec, how: Implementation, numbers: Precision) -> list[Saved]:
    """Cross attention's tensors that are as long as the decoder's sequence; keys are the encoder's."""
    return [
        tensor
        for tensor in norm_saved(model, how, numbers, "attention_norm") + attention_saved(model, how, numbers)
        if tensor.name not in ("keys", "values")
    ]


def moe_saved(model: ModelSpec, how: Implementation, numbers: Precision) -> list[Saved]:
    """Router, dispatched tokens and the experts' own tensors.

    Every token is copied to ``experts_per_token`` experts, so the experts' part counts that many tokens; on
    average as many tokens come to a rank's experts as leave its own.  The permuted input is saved by the
    first linear map; its output is saved again for weighting it with the router's probability.
    """
    c, k = numbers.compute, model.experts_per_token
    saved = [
        Saved("router's probabilities", 3 * model.num_experts, 4, "sequence", "router"),
        Saved("dispatched tokens", k * model.hidden_size, numbers.saved_input or c, "expert", "moe"),
        Saved("experts' output", k * model.hidden_size, c, "expert", "moe"),
    ]
    saved += [
        tensor._replace(width=tensor.width * k, module="moe_act" if "after" in tensor.name else "moe")
        for tensor in mlp_saved(model, model.moe_ffn_hidden_size, how, numbers, "sequence")
    ]
    if model.clamped_experts:
        gates = 2 if model.gated_mlp else 1
        wide = k * gates * model.moe_ffn_hidden_size
        saved.append(Saved("experts' gate and up, clamped", wide, c, "sequence", "moe_act"))
    if model.shared_ffn_hidden_size:
        saved += [
            tensor._replace(name="shared " + tensor.name, module="shared_experts")
            for tensor in mlp_saved(model, model.shared_ffn_hidden_size, how, numbers)
        ]
    return saved
