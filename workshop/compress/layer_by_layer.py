"""Compress a decoder one layer at a time: each sees the inputs that the compressed layers before it make.

Calibration by hooks on the whole model would keep every layer's statistics at once, and all of them of the
*unharmed* model. Instead: run the embedding once, keep what enters the first layer, and then go down: run a
layer with a watcher on each of its linear maps, compress it, run it again for what enters the next one
(SparseGPT, arXiv 2301.00774, section 3.3; GPTQ, arXiv 2210.17323, section 4). One layer's statistics in
memory at a time, two forward passes of the layers in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from workshop.compress.hessian import Hessian


class _Entered(Exception):
    """The first layer has been reached: what follows need not run."""


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear maps of the layers, by their full name; never the head. For a layer, all of its own."""
    return {
        name: inner
        for name, inner in module.named_modules()
        if isinstance(inner, nn.Linear) and not name.endswith("lm_head")
    }


class Entry:
    """What enters the first layer of a decoder with `model.layers`, for each batch of tokens."""

    def __init__(self, model: nn.Module, batches: Sequence[Tensor]) -> None:
        decoder: Any = model.model
        self.layers = decoder.layers
        self.hidden: list[Tensor] = []
        self.rest: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        hook = self.layers[0].register_forward_pre_hook(self._keep, with_kwargs=True)
        try:
            for batch in batches:
                try:
                    model(batch)
                except _Entered:
                    continue
        finally:
            hook.remove()

    def _keep(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cacheless = {
            name: value for name, value in kwargs.items() if name not in ("past_key_values", "use_cache")
        }
        self.hidden.append(args[0])
        self.rest.append((args[1:], cacheless))
        raise _Entered

    def run(self, layer: nn.Module) -> list[Tensor]:
        """The layer's outputs for what is in `hidden` now: for each batch (batch, seq, hidden)."""
        outputs = []
        for hidden, (args, kwargs) in zip(self.hidden, self.rest, strict=True):
            output = layer(hidden, *args, **kwargs)
            outputs.append(output[0] if isinstance(output, tuple) else output)
        return outputs


@torch.no_grad()
def layer_by_layer(model: nn.Module, batches: Sequence[Tensor]) -> Iterator[dict[str, Hessian]]:
    """Yield for each layer its linear maps' Hessians by full name; change the weights before asking for the
    next.

    batches: tokens, each (batch, seq). ``seen.linear`` is the layer to change, in place. Works for `GPT` and
    for transformers' decoders with `model.layers`. ValueError where there is no batch.
    """
    if not batches:
        raise ValueError("no batches: calibration needs some text, a few hundred tokens at least")
    was_training = model.training
    entry = Entry(model.eval(), batches)
    try:
        for number, layer in enumerate(entry.layers):
            with ExitStack() as watching:
                seen = {
                    f"model.layers.{number}.{name}": watching.enter_context(Hessian(linear))
                    for name, linear in linears(layer).items()
                }
                entry.run(layer)
            yield seen
            if number + 1 < len(entry.layers):
                entry.hidden = entry.run(layer)
    finally:  # also where only the first layers were asked for
        model.train(was_training)
