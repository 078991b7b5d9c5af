"""Bytes of a weight in each format, and how fast a model could then speak.

A quantized weight is a code, its share of a scale, and its share of a zero point where there is one::

    bytes a weight = bits / 8 + (scale_bits + zero_bits) / 8 / group

``group`` is how many weights share them; for a scale a row, as many as the layer has inputs. What is
quantized are the linear maps of the layers. Embedding, output head and norms stay at 16 bits.

A decoder that serves one text reads every weight once for each new token and does two FLOPs with it: far
fewer than a device can do while it reads. So memory's bandwidth bounds its speed::

    tokens a second <= bandwidth / bytes read a token

Bytes read: all weights but the embedding table, of which one row is looked up, and the keys and values of the
text so far, which are left out here. (Pope et al. 2022, arXiv 2211.05102, section 2; the roofline of Williams
et al. 2009.) Fewer bits a weight is then more tokens a second, where a kernel unpacks as fast as it reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from workshop.facts.checks import check_choice
from workshop.facts.device import DeviceSpec
from workshop.facts.model import ModelSpec
from workshop.facts.nf4 import BLOCK, nf4_bits


@dataclass(frozen=True)
class WeightFormat:
    """How a linear map's weights are kept. ``group``: weights that share a scale; 0: the row of an output."""

    name: str
    bits: float
    group: int = 0
    scale_bits: float = 0
    zero_bits: float = 0

    def bytes_per_weight(self, inputs: int) -> float:
        """Bytes of one weight in a layer with so many inputs; ValueError where groups do not divide them."""
        group = self.group or inputs
        if self.group and inputs % self.group:
            raise ValueError(f"{self.name}: {inputs} inputs do not divide into groups of {self.group}")
        return (self.bits + (self.scale_bits + self.zero_bits) / group) / 8


def _formats() -> dict[str, WeightFormat]:
    listed = [
        WeightFormat("bf16", 16),
        WeightFormat("fp16", 16),
        WeightFormat("fp32", 32),
        WeightFormat("fp8", 8, 0, 16),
        WeightFormat("int8", 8, 0, 16),
        WeightFormat("int4", 4, 64, 16),
        WeightFormat("int4-128", 4, 128, 16),
        WeightFormat("int4-asymmetric", 4, 64, 16, 4),
        WeightFormat("int4-32", 4, 32, 16, 16),  # gpt-fast's G=32: scale and zero point in 16 bits each
        WeightFormat("q8_0", 8, 32, 16),  # llama.cpp's blocks of 32 with one 16-bit scale
        WeightFormat("q4_0", 4, 32, 16),
        WeightFormat("int3", 3, 64, 16),
        WeightFormat("nf4", 4, BLOCK, (nf4_bits(double=False) - 4) * BLOCK),
        WeightFormat("nf4-double", 4, BLOCK, (nf4_bits(double=True) - 4) * BLOCK),
    ]
    return {each.name: each for each in listed}


FORMATS = _formats()


def weight_format(name: str) -> WeightFormat:
    """A format by name; ValueError with the nearest for an unknown one."""
    check_choice("weight format", name, tuple(FORMATS))
    return FORMATS[name]


def weight_bytes(model: ModelSpec, form: str | WeightFormat, other_bytes: float = 2.0) -> float:
    """Bytes of all weights of a model: the layers' linear maps in a format, the rest in ``other_bytes``."""
    form = weight_format(form) if isinstance(form, str) else form
    quantized, held = 0, 0.0
    for kind, layers in Counter(model.layer_kinds()).items():
        for linear in model.linears(kind):
            count = layers * linear.copies * linear.weights
            quantized += count
            held += count * form.bytes_per_weight(linear.inputs)
    return held + (model.num_params - quantized) * other_bytes


def bytes_read_per_token(model: ModelSpec, form: str | WeightFormat, other_bytes: float = 2.0) -> float:
    """Bytes of weights that one new token of one text needs: all but the embedding table, if it is not the
    head.

    ValueError for a mixture of experts, of which a token reads only a part.
    """
    if model.is_moe:
        raise ValueError(f"{model.name}: a token reads only some experts; this bound is for dense models")
    table = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return weight_bytes(model, form, other_bytes) - table * other_bytes


def most_tokens_per_second(model: ModelSpec, form: str | WeightFormat, device: DeviceSpec) -> float:
    """Upper bound for one text on one device that holds the whole model: bandwidth over bytes read."""
    if not device.memory_bandwidth:
        raise ValueError(f"{device.name}: no memory bandwidth is known")
    return device.memory_bandwidth / bytes_read_per_token(model, form)
