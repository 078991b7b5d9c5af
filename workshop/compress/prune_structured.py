r"""Structured pruning: take out whole heads and whole columns of the feed-forward network. What is left is an
ordinary, smaller, dense model, and every kernel on every device is quicker with it.

A gated network is a sum over its inner neurons j, and attention a sum over its heads::

    mlp(x) = sum_j  down[:, j] * silu(gate[j] . x) * (up[j] . x)      attention(x) = sum_h  o[:, h] head_h(x)

So a neuron is a row of `gate`, a row of `up` and a column of `down`; a head is its rows of `q`, `k`, `v` and
its columns of `o`. Set the columns of `down` or `o` to zero, and the term has left the sum: then all of it
can be cut away, and the outputs stay the same (`tests/compress` holds that). Where several query heads share
key and value (GQA) they go together, so that every key keeps as many queries.

Which ones? The columns that add least: the score of a term is the norm of its columns, each times the norm of
what comes in there, so Wanda's score summed up (as FLAP does, An et al. 2023, arXiv 2312.11983, which adds
the spread of the inputs). Each layer loses the same number: then matrices stay alike, and the config can say
it.

What it saves is what it removes: a share s of the neurons is a share s of that network's FLOPs, bytes and
time. What it costs is more quality than zeros that may lie anywhere; it is as a rule followed by training
(Michel et al. 2019, arXiv 1905.10650, on heads; LLM-Pruner, Ma et al. 2023, arXiv 2305.11627).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from workshop.compress.layer_by_layer import layer_by_layer
from workshop.compress.prune import wanda
from workshop.models.gpt import GPT


@dataclass(frozen=True)
class Kept:
    """What stays in one layer: inner neurons, and key-value heads (each with its query heads), in order."""

    neurons: Tensor
    heads: Tensor


def highest(score: Tensor, num_kept: int) -> Tensor:
    """The indices of the highest of (n,) scores, ascending: (num_kept,).

    ValueError where none or more than all would stay.
    """
    if not 1 <= num_kept <= len(score):
        raise ValueError(f"{num_kept} of {len(score)} cannot stay: keep at least one and at most all")
    return score.topk(num_kept).indices.sort().values


def column_scores(linear: nn.Linear, input_norms: Tensor, width: int = 1) -> Tensor:
    """What each input adds to the output: norm of Wanda's score over its column, `width` columns together.

    ``linear`` (out, in); returns (in / width,).
    """
    squares = wanda(linear.weight, input_norms).square().sum(0)
    return squares.unflatten(0, (-1, width)).sum(-1).sqrt()


def choose(model: nn.Module, batches: Sequence[Tensor], ffn: float = 0.0, heads: float = 0.0) -> list[Kept]:
    """What to keep in each layer, when shares `ffn` of the neurons and `heads` of the key-value heads go.

    batches: tokens for calibration, each (batch, seq). The model is not changed. Errors are those of
    `highest` and `layer_by_layer`.
    """
    decoder: Any = model.model
    chosen = []
    for layer, seen in zip(decoder.layers, layer_by_layer(model, batches), strict=True):
        attention = layer.self_attn
        into = {name.rsplit(".", 1)[1]: hessian.input_norms for name, hessian in seen.items()}
        neurons = column_scores(layer.mlp.down_proj, into["down_proj"])
        num_heads = attention.k_proj.out_features // attention.head_dim
        width = attention.o_proj.in_features // num_heads
        together = column_scores(attention.o_proj, into["o_proj"], width)
        chosen.append(
            Kept(
                highest(neurons, len(neurons) - round(ffn * len(neurons))),
                highest(together, num_heads - round(heads * num_heads)),
            )
        )
    return chosen


def mask_structures(model: nn.Module, kept: Sequence[Kept]) -> nn.Module:
    """Zero the columns of `down` and `o` that do not stay, in place: as slow as before, for comparison."""
    with torch.no_grad():
        for layer, stays in zip(model.model.layers, kept, strict=True):  # type: ignore[union-attr, arg-type]
            down, out = layer.mlp.down_proj, layer.self_attn.o_proj
            gone = torch.ones(down.in_features, dtype=torch.bool, device=down.weight.device)
            gone[stays.neurons] = False
            down.weight[:, gone] = 0
            gone = torch.ones(out.in_features, dtype=torch.bool, device=out.weight.device)
            gone[_of_heads(layer.self_attn, stays.heads, out.in_features)] = False
            out.weight[:, gone] = 0
    return model


def cut_structures(model: nn.Module, kept: Sequence[Kept]) -> nn.Module:
    """Cut what does not stay out of the matrices, in place, and say so in the config. Outputs are the masked
    ones'.

    For `GPT` and transformers' Llama-like decoders. Where all layers keep as many, a transformers model built
    from the config takes the state dict. Optimizers made before hold the old tensors: make them after.
    """
    for layer, stays in zip(model.model.layers, kept, strict=True):  # type: ignore[union-attr, arg-type]
        mlp, attention = layer.mlp, layer.self_attn
        for linear in (mlp.gate_proj, mlp.up_proj):
            keep_outputs(linear, stays.neurons)
        keep_inputs(mlp.down_proj, stays.neurons)
        queries = _of_heads(attention, stays.heads, attention.q_proj.out_features)
        keys = _of_heads(attention, stays.heads, attention.k_proj.out_features)
        keep_outputs(attention.q_proj, queries)
        keep_outputs(attention.k_proj, keys)
        keep_outputs(attention.v_proj, keys)
        keep_inputs(attention.o_proj, queries)
    _tell_config(model, kept)
    return model


def keep_outputs(linear: nn.Linear, rows: Tensor) -> None:
    """Keep these outputs, in place: rows of the weight and of a bias, (num_kept,) indices."""
    linear.weight = nn.Parameter(linear.weight.data[rows].clone())
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.data[rows].clone())
    linear.out_features = len(rows)


def keep_inputs(linear: nn.Linear, columns: Tensor) -> None:
    """Keep these inputs, in place: columns of the weight, (num_kept,) indices. A bias stays whole."""
    linear.weight = nn.Parameter(linear.weight.data[:, columns].clone())
    linear.in_features = len(columns)


def _of_heads(attention: Any, heads: Tensor, width: int) -> Tensor:
    """The places, among `width`, that belong to these key-value heads."""
    num_heads = attention.k_proj.out_features // attention.head_dim
    return torch.arange(width).unflatten(0, (num_heads, -1))[heads.cpu()].flatten()


def _tell_config(model: nn.Module, kept: Sequence[Kept]) -> None:
    """Widths and heads of the config, where all layers are still alike."""
    if len({(len(stays.neurons), len(stays.heads)) for stays in kept}) > 1:
        return
    neurons, heads = len(kept[0].neurons), len(kept[0].heads)
    config: Any = model.config
    if isinstance(model, GPT):  # its heads are counted from the projections, its head_dim from the config
        model.config = replace(config, intermediate_size=neurons)
        return
    attention = model.model.layers[0].self_attn  # type: ignore[union-attr, index]
    config.head_dim = attention.head_dim
    config.intermediate_size = neurons
    config.num_key_value_heads = heads
    config.num_attention_heads = attention.q_proj.out_features // attention.head_dim
