"""CoAtNet: convolutions first, attention after.  (Dai et al. 2021, arXiv 2106.04803)

Attention over all pixels of a large map is dear, and convolutions are good at what is near. So CoAtNet halves
the map five times, with convolutions while it is large and attention once it is small::

    stem       two 3 x 3 convolutions                            side / 2
    stage 1    MBConv blocks, width D1                           side / 4
    stage 2    MBConv blocks, width D2                           side / 8
    stage 3    attention blocks, width D3                        side / 16
    stage 4    attention blocks, width D4                        side / 32
    head       mean over the map, norm, linear, tanh, linear

**MBConv** (Sandler et al. 2018, arXiv 1801.04381; Hu et al. 2017, arXiv 1709.01507 for squeeze-and-excite):
1 x 1 to four times the width, 3 x 3 on each channel alone, scale channels by what the whole map says, 1 x 1
back. **Relative attention** (equation 3): softmax(q k / sqrt(d) + w[i - j]) v, where w is one table for each
head, looked up by how far two positions lie apart, down and across.

The paper leaves open where norms stand and which maps have biases. Here, as in `facts.vision`, as in
huggingface/pytorch-image-models (``timm/models/maxxvit.py``): parameter counts are equal to the last one.
The stride of a stage's first block sits in its depthwise convolution, and pooling is by the mean.

**Batch norm under data parallelism.** MBConv normalises by mean and variance of the batch. Each rank has its
own batch, so N ranks compute what one process would if it took its batch in N parts, not what it would with
the whole. `parallel.batch_norm` makes the ranks share their statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.facts.vision import CoAtNetSpec
from workshop.models.vit import MLP


class Stem(nn.Module):
    """3 x 3 convolutions, the first with stride 2, a norm between them."""

    def __init__(self, spec: CoAtNetSpec) -> None:
        super().__init__()
        width, layers = spec.widths[0], list[nn.Module]()
        for number in range(spec.blocks[0]):
            if number:
                layers += [nn.BatchNorm2d(width), nn.GELU()]
            inputs, stride = (width, 1) if number else (spec.channels, 2)
            layers.append(nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, side, side) to (batch, width, side / 2, side / 2)."""
        return self.layers(images)


class SqueezeExcite(nn.Module):
    """Scale every channel by a number between 0 and 1 that the means of all channels decide."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(width, squeezed, 1)
        self.up = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width, side, side) to the same."""
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(F.silu(self.down(means))))


class Shortcut(nn.Module):
    """What is added to a block's result: its input, halved and of the new width where those change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.expand = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        x = F.avg_pool2d(x, self.stride) if self.stride > 1 else x
        return x if self.expand is None else self.expand(x)


class MBConv(nn.Module):
    """The inverted bottleneck: wide inside, narrow between blocks."""

    def __init__(self, spec: CoAtNetSpec, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = spec.expansion * outputs
        self.shortcut = Shortcut(inputs, outputs, stride)
        self.before = nn.BatchNorm2d(inputs)
        self.expand = nn.Conv2d(inputs, inner, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(inner)
        self.excite = SqueezeExcite(inner, int(spec.squeeze * outputs))
        self.project = nn.Conv2d(inner, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        wide = F.gelu(self.expand_norm(self.expand(self.before(x))))
        near = F.gelu(self.depthwise_norm(self.depthwise(wide)))
        return self.shortcut(x) + self.project(self.excite(near))


class RelativeBias(nn.Module):
    """w[i - j] of every head: a table of (2 side - 1)^2 offsets, looked up for all pairs of positions."""

    def __init__(self, heads: int, side: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(heads, (2 * side - 1) ** 2))
        place = torch.arange(side)
        row, column = (grid.flatten() for grid in torch.meshgrid(place, place, indexing="ij"))
        down = row[:, None] - row[None, :] + side - 1
        across = column[:, None] - column[None, :] + side - 1
        self.register_buffer("offset", down * (2 * side - 1) + across, persistent=False)
        self.offset: Tensor

    def forward(self) -> Tensor:
        """(heads, positions, positions); of a table that is cut by heads, this rank's heads."""
        local = getattr(self.table, "to_local", None)  # a DTensor, if parallel.vision_plans has cut it
        return (self.table if local is None else local())[:, self.offset]


class RelativeAttention(nn.Module):
    """Attention of all positions to all, with the bias; heads are counted from the projections."""

    def __init__(self, spec: CoAtNetSpec, inputs: int, outputs: int, side: int) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.q_proj = nn.Linear(inputs, outputs)
        self.k_proj = nn.Linear(inputs, outputs)
        self.v_proj = nn.Linear(inputs, outputs)
        self.o_proj = nn.Linear(outputs, outputs)
        self.bias = RelativeBias(outputs // spec.head_dim, side)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, positions, inputs) to (batch, positions, outputs)."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias().to(query.dtype))
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class AttentionBlock(nn.Module):
    """Relative attention and an MLP, each on a normalised copy and added back, over a map of pixels."""

    def __init__(self, spec: CoAtNetSpec, inputs: int, outputs: int, stage: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.shortcut = Shortcut(inputs, outputs, stride)
        self.attention_norm = nn.LayerNorm(inputs)
        self.attention = RelativeAttention(spec, inputs, outputs, spec.side(stage))
        self.mlp_norm = nn.LayerNorm(outputs)
        self.mlp = MLP(outputs, 4 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        rest = self.shortcut(x)
        side, pooled = rest.shape[-1], self.attention_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.stride > 1:
            pooled = F.avg_pool2d(pooled, self.stride)
        tokens = rest.flatten(2).transpose(1, 2) + self.attention(pooled.flatten(2).transpose(1, 2))
        tokens = tokens + self.mlp(self.mlp_norm(tokens))
        return tokens.transpose(1, 2).unflatten(2, (side, side)).contiguous()


class Head(nn.Module):
    """Mean over the map, norm, linear, tanh, classifier."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.before = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width, side, side) to (batch, classes)."""
        return self.classifier(torch.tanh(self.before(self.norm(x.mean((2, 3))))))


class CoAtNet(nn.Module):
    """``model(images)`` gives logits, ``model(images, labels)`` the mean cross-entropy."""

    def __init__(self, spec: CoAtNetSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = Stem(spec)
        self.convolutions = nn.ModuleList(
            MBConv(spec, inputs, outputs, stride) for inputs, outputs, stride, _ in _blocks(spec, (1, 2))
        )
        self.transformers = nn.ModuleList(
            AttentionBlock(spec, inputs, outputs, stage, stride)
            for inputs, outputs, stride, stage in _blocks(spec, (3, 4))
        )
        self.head = Head(spec.widths[4], spec.num_classes)
        self.apply(initialise)

    def pieces(self) -> list[tuple[str, ...]]:
        """Where a pipeline may cut: the stem, every block, the head."""
        lists = (("convolutions", self.convolutions), ("transformers", self.transformers))
        blocks = [(f"{name}.{number}",) for name, members in lists for number in range(len(members))]
        return [("stem",), *blocks, ("head",)]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """images: (batch, channels, side, side); labels: (batch,) whole numbers below num_classes."""
        x = images
        for piece in self.pieces():
            for name in piece:
                x = self.get_submodule(name)(x)
        return x if labels is None else F.cross_entropy(x.float(), labels)


def _blocks(spec: CoAtNetSpec, stages: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """(inputs, outputs, stride, stage) of every block of some stages."""
    for stage in stages:
        for block in range(spec.blocks[stage]):
            first = block == 0
            yield spec.widths[stage - 1 if first else stage], spec.widths[stage], 2 if first else 1, stage


def initialise(module: nn.Module) -> None:
    """First values of what one module itself holds; convolutions keep torch's own."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, RelativeBias):
        nn.init.normal_(module.table, std=0.02)
    elif isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.LayerNorm):
        module.reset_parameters()
