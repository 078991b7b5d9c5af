"""Quantize the linear maps of a decoder's layers, and see what it has cost.

Embedding, head and norms stay as they are, as nearly all published figures have it: they are few, and the
head is sensitive. So "a model in int4" is one whose layers are. `round_layers` needs no text.
`calibrate_layers` runs some text through: down the layers, each quantized with the inputs that the quantized
layers before it produce (`compress.layer_by_layer`), so a layer can make up for what those have done.

The cost is told by *perplexity* on other text: e to the mean cross-entropy, the number of words between which
the model is as undecided as if it threw a fair die.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.compress.hessian import Hessian
from workshop.compress.layer_by_layer import layer_by_layer, linears
from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_awq import awq
from workshop.compress.quantize_gptq import gptq
from workshop.compress.quantize_packed import PackedLinear

Method = Callable[[Hessian], PackedLinear]  # ``seen.linear`` is the layer, ``seen`` what entered it


def layer_linears(model: nn.Module, num_layers: int | None = None) -> dict[str, nn.Linear]:
    """The linear maps of the first ``num_layers`` layers (all by default) of a decoder."""
    layers = model.model.layers  # type: ignore[union-attr]
    return {
        f"model.layers.{number}.{name}": linear
        for number, layer in enumerate(islice(layers, num_layers))  # type: ignore[arg-type]
        for name, linear in linears(layer).items()
    }


def swap_linears(
    model: nn.Module, made: Callable[[nn.Linear], nn.Module], num_layers: int | None = None
) -> None:
    """Put ``made(linear)`` in the place of each linear map of the layers."""
    for name, linear in layer_linears(model, num_layers).items():
        model.set_submodule(name, made(linear))


def round_layers(model: nn.Module, grid: Grid, num_layers: int | None = None) -> None:
    """Round to nearest, in place."""

    def rounded(linear: nn.Linear) -> PackedLinear:
        return PackedLinear(round_to_nearest(linear.weight.detach(), grid), _bias(linear))

    swap_linears(model, rounded, num_layers)


def with_gptq(grid: Grid, static_groups: bool = False) -> Method:
    """GPTQ as a method for `calibrate_layers`."""

    def quantize(seen: Hessian) -> PackedLinear:
        quantized = gptq(seen.linear.weight.detach(), seen.matrix, grid, static_groups=static_groups)
        return PackedLinear(quantized, _bias(seen.linear))

    return quantize


def with_awq(grid: Grid, num_steps: int = 20, by_weight: bool = False) -> Method:
    """AWQ as a method for `calibrate_layers`."""

    def quantize(seen: Hessian) -> PackedLinear:
        weight = seen.linear.weight.detach()
        quantized = awq(weight, seen.matrix, seen.mean_magnitude, grid, num_steps, by_weight)
        return PackedLinear(quantized.quantized, _bias(seen.linear), 1 / quantized.scale)

    return quantize


@torch.no_grad()
def calibrate_layers(
    model: nn.Module, method: Method, batches: Sequence[Tensor], num_layers: int | None = None
) -> None:
    """Quantize the first ``num_layers`` layers in place with what enters them.

    batches: tokens, each (batch, seq), of text like that on which the model is to be good.
    """
    for seen in islice(layer_by_layer(model, batches), num_layers):
        for name, inputs in seen.items():
            model.set_submodule(name, method(inputs))


@torch.no_grad()
def perplexity(model: nn.Module, batches: Sequence[Tensor]) -> float:
    """e to the mean cross-entropy of each next token. batches: each (batch, seq)."""
    total, count = 0.0, 0
    for batch in batches:
        logits = model(batch)
        logits = getattr(logits, "logits", logits)[:, :-1].flatten(0, 1).float()
        total += float(F.cross_entropy(logits, batch[:, 1:].flatten(), reduction="sum"))
        count += len(logits)
    return math.exp(total / count)


def packed_layers(model: nn.Module) -> Iterator[PackedLinear]:
    """All packed layers of a model."""
    return (module for module in model.modules() if isinstance(module, PackedLinear))


def bytes_per_weight(model: nn.Module) -> float:
    """Bytes that the packed layers hold, for each of their weights."""
    held = sum(layer.bytes_held for layer in packed_layers(model))
    return held / sum(layer.out_features * layer.in_features for layer in packed_layers(model))


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()
