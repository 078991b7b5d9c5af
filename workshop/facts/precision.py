"""How many bytes each number of a training step takes: precision recipes.

Training in 16 bits keeps several copies of every parameter (Micikevicius et al. 2018, arXiv 1710.03740).
Which copies, and how wide, differs between libraries, and this is where most arithmetic on "bytes per
parameter" goes wrong. A recipe states it once; the columns are bytes per parameter:

==================  ======  =====  ======  =======  ===  ============================================
recipe              params  grads  master  moments  sum  who does it
==================  ======  =====  ======  =======  ===  ============================================
``fp32``            4       4      0       8        16   plain PyTorch
``amp-bf16``        4       4      0       8        16   ``torch.autocast`` (and 2 more while it runs)
``bf16``            2       2      0       4        8    torchtune, litgpt ``bf16-true``
``fsdp-bf16``       4       4      0       8        16   FSDP2 ``MixedPrecisionPolicy``, sharded
``deepspeed-bf16``  2       2      4       8        16   DeepSpeed ZeRO (arXiv 1910.02054, section 3.1)
``megatron-bf16``   2       4      4       8        18   Megatron-LM: gradients are summed in fp32
==================  ======  =====  ======  =======  ===  ============================================

``compute`` is the width of activations and of the weights a kernel reads; ``unsharded_grads`` that of a
gradient before it is reduced. FP8 recipes add ``weight_cache`` bytes per weight of a linear map: a cast copy
and its transpose, which NVIDIA Transformer Engine keeps on Hopper, where the FP8 matmul wants one layout
only.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.checks import check_choice


@dataclass(frozen=True)
class Precision:
    """Bytes per element of everything that is kept for a parameter, and of activations (``compute``)."""

    name: str
    params: float
    grads: float
    master: float
    compute: float
    moments: float = 4.0  # per moment; AdamW has two
    unsharded_grads: float = 0.0
    weight_cache: float = 0.0
    saved_input: float = 0.0  # bytes per element of the input a linear map saves; 0: as ``compute``
    cast: float = 2.0  # bytes moved per element of what a map in 8 or 4 bits reads, to quantize it

    @property
    def is_fp8(self) -> bool:
        """Whether linear maps run in 8 bits."""
        return "fp8" in self.name

    @property
    def in_autocast(self) -> bool:
        """Whether `torch.autocast` chooses the format operator by operator, over weights in fp32."""
        return self.name.startswith("amp-")

    @property
    def dtype(self) -> str:
        """The format of the matmuls, as in ``DeviceSpec.peak_flops``."""
        if self.is_fp8:
            return "fp8"
        if "fp4" in self.name:
            return "fp4"
        return "fp16" if "fp16" in self.name else "bf16" if "bf16" in self.name else "fp32"


ROWWISE_CAST = 8.5
"""A scale for each row (torchao's "rowwise" FP8) quantizes every tensor twice, along its rows and along its
columns, as the three products of a map sum over different axes; a scale for the whole tensor once. How much
more that moves is what makes an 8B model's step on eight H100 8.1 % longer than with one scale a tensor
(7,190 and 6,649 tokens/s, github pytorch/ao pull request 1793)."""


def _recipes() -> dict[str, Precision]:
    base = [
        Precision("fp32", 4, 4, 0, 4, 4, 4),
        Precision("amp-bf16", 4, 4, 0, 2, 4, 4, weight_cache=2),
        Precision("amp-fp16", 4, 4, 0, 2, 4, 4, weight_cache=2),
        Precision("bf16", 2, 2, 0, 2, 2, 2),
        Precision("fsdp-bf16", 4, 4, 0, 2, 4, 2),
        Precision("fsdp-fp8", 4, 4, 0, 2, 4, 2, weight_cache=0, saved_input=2),
        Precision("fsdp-fp8-rowwise", 4, 4, 0, 2, 4, 2, weight_cache=0, saved_input=2, cast=ROWWISE_CAST),
        Precision("deepspeed-bf16", 2, 2, 4, 2, 4, 2),
        Precision("deepspeed-fp16", 2, 2, 4, 2, 4, 2),
        Precision("megatron-bf16", 2, 4, 4, 2, 4, 4),
        Precision("megatron-fp16", 2, 4, 4, 2, 4, 4),
        Precision("megatron-fp8", 2, 4, 4, 2, 4, 4, weight_cache=2, saved_input=1),
        Precision("megatron-fp8-params", 2, 4, 4, 2, 4, 4, weight_cache=0, saved_input=1),
        # NVFP4: 4 bits and an fp8 scale per 16 elements; weights are cast in both orientations.
        Precision("megatron-fp4", 2, 4, 4, 2, 4, 4, weight_cache=1.125, saved_input=0.5625),
    ]
    return {recipe.name: recipe for recipe in base}


RECIPES = _recipes()


def precision(name: str) -> Precision:
    """A recipe by name; ``ValueError`` with the nearest for an unknown one."""
    if name not in RECIPES:
        check_choice("precision", name, RECIPES)
    return RECIPES[name]


MOMENTS = {
    "adamw": 2,
    "adam": 2,
    "adamw-8bit": 2,
    "sgd": 0,
    "sgd-momentum": 1,
    "lion": 1,
    "muon": 1,
    "none": 0,
}
"""Optimizer moments kept per trainable parameter."""


def moment_bytes(optimizer: str, numbers: Precision) -> float:
    """Bytes of all moments of one trained parameter; an 8-bit optimizer keeps each in one byte."""
    return MOMENTS[optimizer] * (1.0 if optimizer.endswith("8bit") else numbers.moments)


def update_bytes(optimizer: str, numbers: Precision) -> float:
    """Bytes that one trained parameter's update reads and writes.

    The gradient is read; what is updated (the master copy, or the parameter itself) and each moment is read
    and written; where there is a master copy, the parameter that comes of it is written too. AdamW on
    Megatron-LM's recipe: 4 + 2 * 4 + 2 + 2 * 8 = 30.
    """
    if optimizer == "none":
        return 0.0
    updated = numbers.master or numbers.params
    written = numbers.params if numbers.master else 0.0
    return numbers.grads + 2 * updated + written + 2 * moment_bytes(optimizer, numbers)
