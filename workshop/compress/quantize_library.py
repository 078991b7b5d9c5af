"""The same by libraries, each behind one call on a model's layers: what our own numbers are held against.

=============  =====================  ========================================================================
library        what it does           how close ours is to it
=============  =====================  ========================================================================
modelopt       GPTQ, AWQ ("lite")     the same algorithm on the same grid: with ``static_groups`` and
                                      ``by_weight`` ours gives the same weights, up to rounding ties
bitsandbytes   LLM.int8(), NF4        int8 codes are the same; NF4 is another kind of grid, not evenly spaced
torchao        int8, int4 by groups   the same codes as round to nearest, for the same scales
=============  =====================  ========================================================================

NVIDIA's Model Optimizer (``pip install nvidia-modelopt``, optional here) runs GPTQ and AWQ on a CPU. It
calibrates with *fake* quantization: weights keep their type and only take values of the grid. Its ``awq_lite`` is
AWQ's search of scales without the clipping of weights that the authors' code adds. Others were tried:
``auto-round`` runs on a CPU too, but is an algorithm of its own (it trains the roundings); ``llmcompressor`` and
``gptqmodel`` wanted other versions of transformers or torch than the rest.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workshop.compress.quantize import Grid


def has_modelopt() -> bool:
    """Whether NVIDIA's Model Optimizer can be imported."""
    return importlib.util.find_spec("modelopt") is not None


def modelopt_layers(
    model: nn.Module, method: str, grid: Grid, batches: Sequence[Tensor], num_layers: int | None = None
) -> None:
    """Quantize layers in place with modelopt's ``"max"`` (round to nearest), ``"gptq"`` or ``"awq"``.

    Symmetric grids only; scales in fp32, and weights stay in their own type. The other arguments are those of
    `quantize_model.calibrate_layers`. ValueError where the library is missing, or does not know the grid.
    """
    if not has_modelopt():
        raise ValueError("modelopt is not installed: pip install nvidia-modelopt")
    if not grid.symmetric or grid.group_size is None:
        raise ValueError(f"{grid}: modelopt's GPTQ and AWQ are asked for symmetric groups here")
    algorithms: dict[str, dict[str, Any]] = {
        "max": {"method": "max"},
        "gptq": {"method": "gptq", "layerwise": {"enable": True}},
        "awq": {"method": "awq_lite", "alpha_step": 0.1},
    }
    if method not in algorithms:
        raise ValueError(f"method = {method!r}: one of {', '.join(algorithms)}")
    import modelopt.torch.quantization as mtq

    def run(inner: nn.Module) -> None:
        for batch in batches:
            inner(batch)

    config = {"quant_cfg": _rules(model, grid, num_layers), "algorithm": algorithms[method]}
    mtq.quantize(model, config, run)


def _rules(model: nn.Module, grid: Grid, num_layers: int | None) -> list[dict[str, Any]]:
    count = len(model.model.layers) if num_layers is None else num_layers  # type: ignore[union-attr,arg-type]
    how = {"num_bits": grid.bits, "block_sizes": {-1: grid.group_size, "type": "static"}}
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    return rules + [
        {"quantizer_name": f"*layers.{number}.*weight_quantizer", "cfg": how, "enable": True}
        for number in range(count)
    ]
