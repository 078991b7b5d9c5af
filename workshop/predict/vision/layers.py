"""What each piece of a vision model costs: parameters, FLOPs, what it keeps for backward, what it hands on.

The transformer predictor (`layer`, `saved`) knows layers that are all alike. A CoAtNet's are not, so here a
model is a list of pieces, in the order in which a pipeline could cut it, each with its own numbers, for **one
image** and in closed form. FLOPs: a linear map or convolution of w weights at n places costs 2 w n
forward, twice that backward; attention between n places of width d costs 4 n^2 d.

**Kept** are the numbers that torch's autograd keeps between forward and backward, each storage once
(tests/predict/vision/test_layers.py asks autograd itself). With t places of width h, f wide inside::

    ViT layer       8 t h + 2 t f + t heads   two norms' inputs and outputs, q, k, v, mixed, around GELU
    MBConv          2 p i + 3 p w + 4 q w     p, q places before and after, i channels in, w inside
    attention of    2 p i + 2 q i [stride]    the norm's input and output, pooled and not; q and k
      a CoAtNet     + 14 q d + q^2 heads      scaled, v, mixed, sum, norm, around GELU; softmax's result

A bias with a gradient keeps torch from its fused attention: hence q^2 for CoAtNet, and none for ViT.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.vision import CoAtNetSpec, ViTSpec

Spec = ViTSpec | CoAtNetSpec


@dataclass(frozen=True)
class Piece:
    """A piece of a model, for one image.

    params: its parameters; cut_params: those that the tensor plan deals out to ranks. flops: forward;
    cut_flops: what of them tensor parallelism divides. kept: numbers kept for backward; cut_kept: what of
    them tensor parallelism divides. handed: numbers that go to the next piece.
    """

    name: str
    params: int
    flops: float
    kept: int
    handed: int
    cut_params: int = 0
    cut_flops: float = 0.0
    cut_kept: int = 0


def pieces(spec: Spec) -> list[Piece]:
    """The pieces of a model in order; as many as the model's own ``pieces()``."""
    return _vit(spec) if isinstance(spec, ViTSpec) else _coatnet(spec)


def _vit(spec: ViTSpec) -> list[Piece]:
    t, h, f, layers = spec.num_tokens, spec.hidden_size, spec.ffn_hidden_size, spec.num_layers
    count, image = spec.params_by_part(), spec.channels * spec.image_size**2
    first = count["embedding"] + count["class token"] + count["positions"]
    embedding = Piece("embedding", first, 2.0 * (t - 1) * (count["embedding"] - h), image, t * h)
    matrices = 4 * h * h + 2 * h * f
    flops = 2.0 * t * matrices + 4.0 * t * t * h
    layer = Piece(
        "layer",
        matrices + 5 * h + f + 4 * h,
        flops,
        t * (8 * h + 2 * f + spec.num_heads),
        t * h,
        matrices + 3 * h + f,
        flops,
        t * (4 * h + 2 * f),
    )
    head = Piece("head", count["head"] + 2 * h, 2.0 * h * spec.num_classes, 2 * t * h, spec.num_classes)
    return [embedding, *(layer for _ in range(layers)), head]


def _coatnet(spec: CoAtNetSpec) -> list[Piece]:
    width, side = spec.widths[0], spec.image_size // 2
    weights = 9 * width * (spec.channels + (spec.blocks[0] - 1) * width)
    kept = spec.channels * spec.image_size**2 + 3 * (spec.blocks[0] - 1) * width * side**2
    pieces = [Piece("stem", spec.stem_params(), 2.0 * weights * side**2, kept, width * side**2)]
    for stage in range(1, 5):
        for block in range(spec.blocks[stage]):
            inputs = spec.widths[stage - 1] if block == 0 else spec.widths[stage]
            make = _mbconv if stage < 3 else _attention
            pieces.append(make(spec, stage, inputs, 2 if block == 0 else 1))
    last = spec.widths[4]
    params, flops = spec.params_by_part()["head"], 2.0 * last * (last + spec.num_classes)
    return [*pieces, Piece("head", params, flops, 3 * last, spec.num_classes)]


def _mbconv(spec: CoAtNetSpec, stage: int, inputs: int, stride: int) -> Piece:
    outputs = spec.widths[stage]
    inner, after = spec.expansion * outputs, spec.side(stage) ** 2
    before, wider = after * stride**2, inputs != outputs
    flops = 2.0 * (inputs * inner * before + 9 * inner * after + inner * outputs * after)
    flops += 4.0 * inner * int(spec.squeeze * outputs) + 2.0 * inputs * outputs * after * wider
    kept = 2 * inputs * before + 3 * inner * before + 4 * inner * after
    kept += inputs * after * (wider and stride > 1)
    params = spec.mbconv_params(inputs, outputs)
    return Piece(f"MBConv {outputs}", params, flops, kept, outputs * after)


def _attention(spec: CoAtNetSpec, stage: int, inputs: int, stride: int) -> Piece:
    outputs, side = spec.widths[stage], spec.side(stage)
    after, before, heads = side**2, side**2 * stride**2, outputs // spec.head_dim
    wider = inputs != outputs
    cut = 3 * inputs * outputs + outputs**2 + 8 * outputs**2
    cut_flops = 2.0 * cut * after + 4.0 * after**2 * outputs
    inside = 14 * outputs * after + heads * after**2
    kept = 2 * inputs * before + inside + inputs * after * ((stride > 1) + (stride > 1 and wider))
    return Piece(
        f"attention {outputs}",
        spec.attention_params(inputs, outputs, side),
        cut_flops + 2.0 * inputs * outputs * after * wider,
        kept,
        outputs * after,
        cut + 3 * outputs + 4 * outputs + heads * (2 * side - 1) ** 2,
        cut_flops,
        inside - 2 * outputs * after,
    )
