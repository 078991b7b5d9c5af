"""Where to cut a vision model in stages, and the stages of a ViT or a CoAtNet.

The layers of a ViT are alike; a CoAtNet's blocks are not. Its early blocks work on maps of many pixels and
few channels, its late ones on few pixels and many channels: the early ones hold the activations, the late
ones the weights. So blocks are no measure, and neither are parameters: cut by what each piece costs
(`stages.split_by_cost`, with `predict.vision.pieces` or with measured seconds).

What goes between two stages has another shape at every cut; `boundary_shape` says which.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from workshop.facts.vision import CoAtNetSpec, ViTSpec
from workshop.models.coatnet import CoAtNet
from workshop.models.vit import ViT

Spec = ViTSpec | CoAtNetSpec
Vision = ViT | CoAtNet


def build_vision(spec: Spec) -> Vision:
    """The model of a spec."""
    return ViT(spec) if isinstance(spec, ViTSpec) else CoAtNet(spec)


class VisionStage(nn.Module):
    """Some consecutive pieces of a model, called one after the other.

    Names of parameters are those of the whole model. A stage takes images if it is the first, else what the
    piece before gives; the last gives logits.
    """

    def __init__(self, whole: Vision, numbers: range) -> None:
        super().__init__()
        pieces = whole.pieces()
        self.names = [name for number in numbers for name in pieces[number]]
        for name in self.names:
            _put(self, name, whole.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x


def _put(holder: nn.Module, name: str, module: nn.Module) -> None:
    """Hold a module under a dotted name, with empty modules on the way."""
    *path, last = name.split(".")
    for part in path:
        if part not in holder._modules:
            holder.add_module(part, nn.Module())
        holder = holder.get_submodule(part)
    holder.add_module(last, module)


def cut_vision(whole: Vision, cuts: Sequence[range], mine: Sequence[int]) -> dict[int, VisionStage]:
    """The stages of this rank, by number.

    Raises ValueError where the cuts leave out a piece, or have one twice.
    """
    numbers = [number for cut in cuts for number in cut]
    if numbers != list(range(len(whole.pieces()))):
        raise ValueError(
            f"the cuts hold pieces {numbers}, and {whole.spec.name} has 0 to {len(whole.pieces()) - 1}: "
            "each must be in one stage, in order (split_by_cost gives such cuts)"
        )
    return {number: VisionStage(whole, cuts[number]) for number in mine}


def boundary_shape(spec: Spec, piece: int, batch: int) -> tuple[int, ...]:
    """Shape of what goes out of a piece, by its number, for so many images."""
    if isinstance(spec, ViTSpec):
        return batch, spec.num_tokens, spec.hidden_size
    stages = [stage for stage in range(5) for _ in range(spec.blocks[stage] if stage else 1)]
    if not 0 <= piece < len(stages):
        raise ValueError(f"{spec.name}: piece {piece} hands nothing to another; 0 to {len(stages) - 1} do")
    stage = stages[piece]
    return batch, spec.widths[stage], spec.side(stage), spec.side(stage)
