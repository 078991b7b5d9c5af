r"""QLoRA: the frozen base in four bits, the trained change in full precision (Dettmers et al. 2023, arXiv
2305.14314).

LoRA freezes W but keeps it in 16 or 32 bits, and that is now nearly all that a rank holds. A frozen weight is
never stepped, so it need not survive a step of 1e-5: it only has to be near enough, and four bits are
(equation 5)::

    h = dequant(W₄) x + (α / r) B A x

The four-bit numbers are what is *stored*; every product is computed in 16 or 32 bits. Forward unpacks one
matrix, uses it and drops it. Backward needs that matrix again for the gradient of x, and must not have kept
it: it keeps the codes and unpacks once more. That is `NF4Product`, and it is the whole trick.

`quantize_base` puts a model's linear maps into four bits, by hand or by bitsandbytes, which must first be
kept from harm: on CPUs with AVX512-BF16 its ``Linear4bit`` repacks the weight in place at the first
evaluation, and from then on backward gives LoRA **no gradients**, without a word. Which CPU is used is the
learner's chance, so `guard` switches that path off, everywhere.

On several ranks, first `take_from_rank_0`; then DDP needs nothing new. FSDP shards parameters of one floating
dtype, so the packed bytes are *stored* as that dtype (``storage=torch.float32`` or ``bfloat16``: the bytes
are the same, only their label differs).

Paged optimizers (section 3) put AdamW's moments into memory that the GPU's driver moves to the host under
pressure; they exist on NVIDIA GPUs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.adapt.nf4 import NF4, DoubleQuantized, quantize_nf4
from workshop.facts.checks import check_choice
from workshop.process.quiet import quietly

WAYS = ("bitsandbytes", "hand")


class NF4Product(torch.autograd.Function):
    """x Wᵀ for a W in NF4, which exists only while it is used; only x has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: NF4) -> Tensor:
        """(..., in) -> (..., out)."""
        ctx.weight = weight  # the codes, which stay anyway
        return F.linear(x, weight.dequantize().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """(..., out) -> (..., in), from the codes again."""
        (gradient,) = gradients
        return gradient @ ctx.weight.dequantize().to(gradient.dtype), None


class NF4Linear(nn.Module):
    """A frozen linear map kept in NF4: (..., in) -> (..., out)."""

    def __init__(self, plain: nn.Linear, double: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        quantized = quantize_nf4(plain.weight, double)
        self.shape, self.dtype = quantized.shape, quantized.dtype
        self.register_buffer("packed", quantized.packed)
        scales = quantized.scales
        parts = (
            {"scale_codes": scales.codes, "scales": scales.scales, "offset": scales.offset}
            if isinstance(scales, DoubleQuantized)
            else {"scales": scales}
        )
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)
        self.bias = plain.bias

    def nf4(self) -> NF4:
        """The weight with its scales, as they are kept."""
        buffers = dict(self.named_buffers())
        scales: Tensor | DoubleQuantized = buffers["scales"]
        if "scale_codes" in buffers:
            scales = DoubleQuantized(buffers["scale_codes"], buffers["scales"], buffers["offset"])
        return NF4(buffers["packed"], scales, self.shape, self.dtype)

    def dequantized_weight(self) -> Tensor:
        """(out, in), in the dtype that the weight had."""
        return self.nf4().dequantize()

    def forward(self, x: Tensor) -> Tensor:
        """W x, W unpacked for the moment."""
        product: Tensor = NF4Product.apply(x, self.nf4())
        return product if self.bias is None else product + self.bias


def quantize_base(
    model: nn.Module,
    way: str = "bitsandbytes",
    double: bool = True,
    keep: Sequence[str] = ("lm_head",),
    storage: torch.dtype = torch.uint8,
) -> nn.Module:
    """Put a model's linear maps into NF4, one after the other, in place; the model is frozen.

    Args:
        model: with plain ``nn.Linear``.
        way: ``"bitsandbytes"`` or ``"hand"``.
        double: the scales in 8 bits too.
        keep: last names of maps that stay as they are. An output head gains least and loses most.
        storage: the dtype that bitsandbytes says its bytes are; FSDP needs that of the other parameters.

    Raises ValueError: an unknown way, or there is no linear map to quantize.
    """
    check_choice("way", way, WAYS)
    model.requires_grad_(False)
    names = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name.rpartition(".")[2] not in keep
    ]
    if not names:
        raise ValueError("there is no plain nn.Linear to quantize: is the model quantized already?")
    for name in names:
        plain: nn.Linear = model.get_submodule(name)  # type: ignore[assignment]
        model.set_submodule(
            name, NF4Linear(plain, double) if way == "hand" else _linear4bit(plain, double, storage)
        )
    return model


def _linear4bit(plain: nn.Linear, double: bool, storage: torch.dtype) -> nn.Module:
    """bitsandbytes' map with the same weight; it quantizes when it is moved to a device, the CPU included."""
    with quietly():
        from bitsandbytes.nn import Linear4bit, Params4bit

    shape = (plain.in_features, plain.out_features, plain.bias is not None)
    made = Linear4bit(*shape, plain.weight.dtype, double, "nf4", storage, "meta")
    made.weight = Params4bit(
        plain.weight.detach().clone(), requires_grad=False, compress_statistics=double, quant_type="nf4",
        quant_storage=storage, module=made,
    )  # fmt: skip
    made.bias = plain.bias
    guard(made)
    return made.to(plain.weight.device)


def guard(model: nn.Module) -> nn.Module:
    """Keep bitsandbytes' 4-bit maps from repacking themselves at the first evaluation; in place.

    Call it right after loading a model with a ``BitsAndBytesConfig``. `quantize_base` has done it.

    Raises ValueError: a map was repacked already, and would train nothing.
    """
    for name, module in model.named_modules():
        if not hasattr(module, "support_avx512bf16_for_cpu"):
            continue
        module.support_avx512bf16_for_cpu = False
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if getattr(state, "packing_format_for_cpu", False):
            raise ValueError(
                f"{name or 'this map'} was evaluated before it was guarded, and bitsandbytes has repacked "
                f"its weight: "
                "training would give no gradients and merging garbage. Load the model again and call "
                "guard() first"
            )
    return model


def take_from_rank_0(model: nn.Module) -> None:
    """Every rank takes rank 0's numbers: parameters, buffers, scales of 4-bit maps. All ranks must call it.

    DDP sends parameters and buffers at its start, and bitsandbytes keeps the scales in neither: codes of
    rank 0 with a rank's own scales would be a third model that nobody made. FSDP sends nothing.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None:
            inner = [state.offset, state.state2.absmax] if state.nested else []
            tensors |= {id(t): t for t in (state.absmax, *inner)}
    for tensor in tensors.values():
        dist.broadcast(tensor.detach(), 0)


def check_gradients(model: nn.Module) -> None:
    """After a backward: every trained parameter has a gradient.

    Raises ValueError: some have none, so an optimizer would step over them in silence.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    without = [name for name, parameter in trained.items() if parameter.grad is None]
    if without or not trained:
        raise ValueError(
            f"{len(without)} of {len(trained)} trained parameters have no gradient after backward"
            f"{', the first is ' + without[0] if without else ': nothing is trained'}. With a 4-bit base "
            f"on a CPU: "
            "was the model evaluated before guard(model)?"
        )


def packed_bytes(model: nn.Module) -> int:
    """Bytes of all 4-bit maps, scales included (transformers' get_memory_footprint leaves the scales out)."""
    total = 0
    for module in model.modules():
        if isinstance(module, NF4Linear):
            total += module.nf4().num_bytes
        elif (state := getattr(getattr(module, "weight", None), "quant_state", None)) is not None:
            tensors = [module.weight, state.absmax]
            if state.nested:
                tensors += [state.state2.absmax, state.offset]
            total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return total


def paged_adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW whose moments the GPU's driver may move to the host (8 bits each).

    Raises ValueError: there is no NVIDIA GPU; untested here, where there is none.
    """
    if not torch.cuda.is_available():
        raise ValueError(
            "a paged optimizer lives in memory that an NVIDIA GPU's driver moves to the host, and there "
            "is no such "
            "GPU here: take torch.optim.AdamW"
        )
    with quietly():
        from bitsandbytes.optim import PagedAdamW8bit

    return PagedAdamW8bit(parameters, lr=lr)
