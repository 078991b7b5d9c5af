"""Vision models: ViT, and CoAtNet, which puts convolutions before attention.

**ViT** (Dosovitskiy et al. 2020, arXiv 2010.11929) cuts an image of side ``i`` into ``(i / p)**2`` patches of
side ``p``, maps each to a token, adds a class token and learned positions, and runs a plain transformer
encoder over them::

    embedding    3 * p**2 * h + h        positions  ((i / p)**2 + 1) * h
    class token  h                       head       h * classes + classes

**CoAtNet** (Dai et al. 2021, arXiv 2106.04803) has five stages, each at half the resolution of the one
before: a stem of two convolutions, two stages of inverted-bottleneck convolutions (MBConv: expand 4 times,
depthwise 3 x 3, squeeze-and-excite, project), and two of transformer blocks with relative attention, whose
bias is one table of ``(2 s - 1)**2`` entries per head for an ``s x s`` map.  The paper leaves norms and
biases open; counts are those of ``coatnet_0_224`` and its kin in huggingface/pytorch-image-models
(``timm/models/maxxvit.py``), to the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts.checks import check_positive


@dataclass(frozen=True)
class ViTSpec:
    """A vision transformer for square images.  Raises ``ValueError`` when patches do not tile the image."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    patch_size: int = 16
    image_size: int = 224
    num_classes: int = 1000
    channels: int = 3
    ffn_hidden_size: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "patch_size", "image_size", "channels"):
            check_positive(f"{self.name}: {field}", getattr(self, field))
        if self.image_size % self.patch_size:
            below = self.image_size // self.patch_size * self.patch_size
            raise ValueError(
                f"{self.name}: patches of {self.patch_size} do not tile an image of {self.image_size}; "
                f"the nearest that would do is {below}"
            )
        if not self.ffn_hidden_size:
            object.__setattr__(self, "ffn_hidden_size", 4 * self.hidden_size)

    @property
    def num_tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def params_by_part(self) -> dict[str, int]:
        """Parameters by part; the values sum to :attr:`num_params`."""
        h, f, layers = self.hidden_size, self.ffn_hidden_size, self.num_layers
        return {
            "embedding": self.channels * self.patch_size**2 * h + h,
            "class token": h,
            "positions": self.num_tokens * h,
            "attention": layers * (4 * h * h + 4 * h),
            "mlp": layers * (2 * h * f + f + h),
            "norms": (2 * layers + 1) * 2 * h,
            "head": h * self.num_classes + self.num_classes,
        }

    @property
    def num_params(self) -> int:
        """All parameters."""
        return sum(self.params_by_part().values())


@dataclass(frozen=True)
class CoAtNetSpec:
    """A CoAtNet: blocks and widths of its five stages (the stem, two of MBConv, two of attention)."""

    name: str
    blocks: tuple[int, int, int, int, int]
    widths: tuple[int, int, int, int, int]
    image_size: int = 224
    num_classes: int = 1000
    channels: int = 3
    head_dim: int = 32
    expansion: int = 4
    squeeze: float = 0.25
    source: str = ""

    def __post_init__(self) -> None:
        check_positive(f"{self.name}: image_size", self.image_size)
        if self.image_size % 32:
            below = max(32, self.image_size // 32 * 32)
            raise ValueError(
                f"{self.name}: an image of {self.image_size} is not halved five times; "
                f"the nearest that would do is {below}"
            )
        for width in self.widths[3:]:
            if width % self.head_dim:
                raise ValueError(f"{self.name}: width {width} is not a multiple of head_dim {self.head_dim}")

    def side(self, stage: int) -> int:
        """Side of the map after a stage: half of it with every stage."""
        return self.image_size // 2 ** (stage + 1)

    def stem_params(self) -> int:
        """3 x 3 convolutions without biases, a norm between them."""
        width, convolutions = self.widths[0], self.blocks[0]
        return 9 * width * (self.channels + (convolutions - 1) * width) + 2 * width * (convolutions - 1)

    def mbconv_params(self, inputs: int, outputs: int) -> int:
        """Norm, expand, depthwise, squeeze-and-excite, project; a 1 x 1 shortcut where the width changes."""
        inner, squeezed = self.expansion * outputs, int(self.squeeze * outputs)
        convolutions = inputs * inner + 9 * inner + inner * outputs + outputs
        excite = 2 * inner * squeezed + squeezed + inner
        norms = 2 * inputs + 2 * inner + 2 * inner
        return convolutions + excite + norms + (inputs * outputs + outputs if inputs != outputs else 0)

    def attention_params(self, inputs: int, outputs: int, side: int) -> int:
        """Norm, relative attention, norm, MLP of four times the width; a 1 x 1 shortcut where the width
        changes.
        """
        heads = outputs // self.head_dim
        attention = (
            3 * inputs * outputs + 3 * outputs + outputs * outputs + outputs + heads * (2 * side - 1) ** 2
        )
        mlp = 2 * outputs * 4 * outputs + 5 * outputs
        return (
            attention
            + mlp
            + 2 * inputs
            + 2 * outputs
            + (inputs * outputs + outputs if inputs != outputs else 0)
        )

    def params_by_part(self) -> dict[str, int]:
        """Parameters by stage; the values sum to :attr:`num_params`."""
        parts = {"stem": self.stem_params()}
        for stage in range(1, 5):
            total, width = 0, self.widths[stage]
            for block in range(self.blocks[stage]):
                inputs = self.widths[stage - 1] if block == 0 else width
                if stage < 3:
                    total += self.mbconv_params(inputs, width)
                else:
                    total += self.attention_params(inputs, width, self.side(stage))
            parts[f"stage {stage}"] = total
        last = self.widths[4]
        parts["head"] = 2 * last + last * last + last + last * self.num_classes + self.num_classes
        return parts

    @property
    def num_params(self) -> int:
        """All parameters."""
        return sum(self.params_by_part().values())
