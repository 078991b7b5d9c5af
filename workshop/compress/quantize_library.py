"""The same by libraries, each behind one call on a model's layers: what our own numbers are held against.

=============  =====================  ========================================================================
library        what it does           how close ours is to it
=============  =====================  ========================================================================
modelopt       GPTQ, AWQ ("lite")     the same algorithms on the same grid: with ``static_groups`` and
                                      ``by_weight`` ours gives the same weights, up to rounding ties
bitsandbytes   LLM.int8(), NF4        int8 codes are the same; NF4 is another kind of grid, not evenly spaced
torchao        int8, int4 by groups   a slightly other scale: symmetric grids are 2^bits - 1 steps wide, ours
                                      2^bits - 2, so that the largest number is a value of the grid
=============  =====================  ========================================================================

NVIDIA's Model Optimizer (``pip install nvidia-modelopt``, optional here) runs GPTQ and AWQ on a CPU. It
calibrates with *fake* quantization: weights keep their type and only take values of the grid. Its
``awq_lite`` is AWQ's search of scales without the clipping of weights that the authors' code adds. Others
were tried: ``auto-round`` runs on a CPU too, but is an algorithm of its own (it trains the roundings);
``llmcompressor`` and ``gptqmodel`` wanted other versions of transformers or torch than the rest.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workshop.compress.quantize import Grid, round_to_nearest
from workshop.compress.quantize_model import layer_linears, swap_linears
from workshop.process.quiet import quietly


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
    count = len(model.model.layers) if num_layers is None else num_layers  # type: ignore[union-attr,arg-type]
    names = [f"*layers.{number}.*weight_quantizer" for number in range(count)]
    _modelopt(model, method, grid, batches, names)


def modelopt_linear(linear: nn.Linear, method: str, grid: Grid, inputs: Tensor) -> Tensor:
    """One linear layer's weights as modelopt quantizes them, as they act on the inputs: (rows, columns),
    fp32.

    ``inputs``: (positions, columns). The layer is left as it was. ValueError as in `modelopt_layers`.
    """
    model = nn.Sequential(copy.deepcopy(linear))
    _modelopt(model, method, grid, [inputs], ["*weight_quantizer"])
    with torch.no_grad():
        seen = torch.eye(linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)
        outputs = model(seen) - (0 if linear.bias is None else linear.bias)
    return outputs.T.float()


def _modelopt(
    model: nn.Module, method: str, grid: Grid, batches: Sequence[Tensor], quantizers: Sequence[str]
) -> None:
    """Quantize where the quantizers of these names stand."""
    if not has_modelopt():
        raise ValueError("modelopt is not installed: pip install nvidia-modelopt")
    if not grid.symmetric or grid.group_size is None:
        raise ValueError(f"{grid}: modelopt's GPTQ and AWQ are asked for symmetric groups here")
    layerwise = {"enable": hasattr(model, "model")}
    algorithms: dict[str, dict[str, Any]] = {
        "max": {"method": "max"},
        "gptq": {"method": "gptq", "layerwise": layerwise},
        "awq": {"method": "awq_lite", "alpha_step": 0.1},
    }
    if method not in algorithms:
        raise ValueError(f"method = {method!r}: one of {', '.join(algorithms)}")

    def run(inner: nn.Module) -> None:
        for batch in batches:
            inner(batch)

    how = {"num_bits": grid.bits, "block_sizes": {-1: grid.group_size, "type": "static"}}
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    rules += [{"quantizer_name": name, "cfg": how, "enable": True} for name in quantizers]
    with quietly(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import modelopt.torch.quantization as mtq

        mtq.quantize(model, {"quant_cfg": rules, "algorithm": algorithms[method]}, run)


def bitsandbytes_layers(model: nn.Module, kind: str, num_layers: int | None = None) -> None:
    """Put bitsandbytes' layers in the place of the linear maps: ``"int8"`` (LLM.int8()) or ``"nf4"``.

    NF4 has blocks of 64 with a scale of 32 bits each; its double quantization is off.
    """
    if kind not in ("int8", "nf4"):
        raise ValueError(f"kind = {kind!r}: int8 or nf4")
    with quietly():
        swap_linears(model, _int8_linear if kind == "int8" else _nf4_linear, num_layers)


def _int8_linear(linear: nn.Linear) -> nn.Module:
    import bitsandbytes as bnb

    sizes = linear.in_features, linear.out_features
    made = bnb.nn.Linear8bitLt(*sizes, bias=linear.bias is not None, has_fp16_weights=False, threshold=6.0)
    made.weight = bnb.nn.Int8Params(linear.weight.detach(), requires_grad=False, has_fp16_weights=False)
    made.bias = linear.bias
    return made.to(linear.weight.device)


def _nf4_linear(linear: nn.Linear) -> nn.Module:
    import bitsandbytes as bnb

    made = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=linear.weight.dtype,
        compress_statistics=False,
        quant_type="nf4",
    )
    made.weight = bnb.nn.Params4bit(
        linear.weight.detach(), requires_grad=False, compress_statistics=False, quant_type="nf4"
    )
    made.bias = linear.bias
    return made.to(linear.weight.device)


def bitsandbytes_bytes_per_weight(model: nn.Module) -> float:
    """Bytes of codes and scales in bitsandbytes' layers, for each of their weights."""
    import bitsandbytes as bnb

    held, count = 0, 0
    for layer in model.modules():
        weight: Any = getattr(layer, "weight", None)
        if isinstance(layer, bnb.nn.Linear4bit):
            held += weight.nbytes + weight.quant_state.absmax.nbytes
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            scales: Any = layer.state.SCB if weight.SCB is None else weight.SCB
            held += weight.nbytes + scales.nbytes
        else:
            continue
        count += layer.in_features * layer.out_features
    if not count:
        raise ValueError("the model has no layer of bitsandbytes")
    return held / count


def torchao_layers(model: nn.Module, bits: int, group_size: int = 64, num_layers: int | None = None) -> None:
    """Round the linear maps' weights with torchao: 8 bits with a scale a row, fewer with one a group.

    Below 8 bits its generic tensors, which run on any device, keep each code in a byte.
    """
    named = {id(linear) for linear in layer_linears(model, num_layers).values()}
    with quietly():
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        if bits == 8:
            config: Any = Int8WeightOnlyConfig()
        else:
            dtype = getattr(torch, f"int{bits}")
            config = IntxWeightOnlyConfig(weight_dtype=dtype, granularity=PerGroup(group_size))
        quantize_(model, config, filter_fn=lambda module, _: id(module) in named)


def torch_dynamic_linear(linear: nn.Linear) -> nn.Module:
    """PyTorch's own dynamic int8 layer: FBGEMM's or oneDNN's kernels on x86; one scale for all inputs of a
    call.

    PyTorch calls this part deprecated and points to torchao, whose layers are quick only when compiled.
    """
    with quietly():
        from torch.ao.quantization import quantize_dynamic

        return quantize_dynamic(nn.Sequential(linear), {nn.Linear}, dtype=torch.qint8)[0]


def int4_product(linear: nn.Linear, group_size: int = 64) -> Callable[[Tensor], Tensor]:
    """A function from inputs (positions, in_features) in bf16 to outputs, by PyTorch's int4 kernel for CPUs.

    It reads 4 bits a weight and multiplies in bf16: round to nearest on `Grid(4, group_size)`'s codes.
    """
    quantized = round_to_nearest(linear.weight.detach(), Grid(4, group_size))
    codes = quantized.codes.to(torch.int32) + 8
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales_and_zeros = torch.stack((quantized.scales, torch.zeros_like(quantized.scales)), -1)
    by_group = scales_and_zeros.transpose(0, 1).contiguous().bfloat16()

    def product(x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group_size, by_group)

    return product
