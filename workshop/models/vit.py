"""A vision transformer, to be read from top to bottom.  (Dosovitskiy et al. 2020, arXiv 2010.11929)

An image is cut into square patches; each becomes a token, by one matrix. A learned class token goes first,
learned positions are added, and a plain transformer encoder does the rest. The class is read off the first
token::

    x = [class; E patch_1; ...; E patch_n] + positions           (batch, 1 + patches, hidden)   equation 1
    for each layer:   x = x + attention(norm(x))                                                equation 2
                      x = x + mlp(norm(x))                       GELU between two matrices      equation 3
    logits = classifier(norm(x)[first token])                    (batch, classes)               equation 4

No mask, no rotary positions, biases everywhere, LayerNorm. LayerNorm looks at one token alone, so what ranks
of a data-parallel group see does not mix: N ranks compute what one process computes. (A BatchNorm does mix:
`models.coatnet`.) Names are those of `transformers.ViTForImageClassification`, release 5: state dicts load
both ways.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.facts.vision import ViTSpec

NORM_EPS = 1e-12  # what transformers adds to a variance; the paper does not say


class PatchEmbeddings(nn.Module):
    """One matrix for every patch, as a convolution whose stride is its kernel."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        size = spec.patch_size
        self.projection = nn.Conv2d(spec.channels, spec.hidden_size, kernel_size=size, stride=size)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, side, side) to (batch, patches, hidden), row by row."""
        return self.projection(images).flatten(2).transpose(1, 2)


class Embeddings(nn.Module):
    """Patches, the class token before them, and positions."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.cls_token = nn.Parameter(torch.empty(1, 1, spec.hidden_size))
        self.position_embeddings = nn.Parameter(torch.empty(1, spec.num_tokens, spec.hidden_size))
        self.patch_embeddings = PatchEmbeddings(spec)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, side, side) to (batch, tokens, hidden)."""
        wanted = (self.spec.channels, self.spec.image_size, self.spec.image_size)
        if images.shape[1:] != wanted:
            raise ValueError(
                f"{self.spec.name} takes images (batch, {', '.join(map(str, wanted))}), "
                f"and got {tuple(images.shape)}: resize or pad them"
            )
        patches = self.patch_embeddings(images)
        first = self.cls_token.expand(len(images), -1, -1)
        return torch.cat((first, patches), dim=1) + self.position_embeddings


class Attention(nn.Module):
    """Attention of all tokens to all; heads are counted from the projections, so a tensor-parallel rank runs
    the same.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.head_dim = spec.hidden_size // spec.num_heads
        self.q_proj = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.k_proj = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.v_proj = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.o_proj = nn.Linear(spec.hidden_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to the same."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """fc2(gelu(fc1(x)))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to the same."""
        return self.fc2(F.gelu(self.fc1(x)))


class Layer(nn.Module):
    """Attention, then the MLP, each on a normalised copy and added back."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(spec.hidden_size, NORM_EPS)
        self.attention = Attention(spec)
        self.layernorm_after = nn.LayerNorm(spec.hidden_size, NORM_EPS)
        self.mlp = MLP(spec.hidden_size, spec.ffn_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to the same."""
        x = x + self.attention(self.layernorm_before(x))
        return x + self.mlp(self.layernorm_after(x))


class FirstToken(nn.Module):
    """What the class is read from."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to (batch, hidden)."""
        return x[:, 0]


class Encoder(nn.Module):
    """What lies between images and the classifier; it only holds its modules, `ViT` calls them."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        self.embeddings = Embeddings(spec)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.layernorm = nn.LayerNorm(spec.hidden_size, NORM_EPS)
        self.first_token = FirstToken()


class ViT(nn.Module):
    """``model(images)`` gives logits, ``model(images, labels)`` the mean cross-entropy.

    Raises ValueError where heads do not divide the width.
    """

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__()
        if spec.hidden_size % spec.num_heads:
            raise ValueError(
                f"{spec.name}: hidden_size {spec.hidden_size} does not give {spec.num_heads} heads of equal "
                f"width; {spec.hidden_size // spec.num_heads * spec.num_heads} would"
            )
        self.spec = spec
        self.vit = Encoder(spec)
        self.classifier = nn.Linear(spec.hidden_size, spec.num_classes)
        self.apply(initialise)

    def pieces(self) -> list[tuple[str, ...]]:
        """Where a pipeline may cut: names of modules, called one after the other, in pieces that stay
        whole. The first embeds, the last has norm and classifier.
        """
        layers = [(f"vit.layers.{number}",) for number in range(len(self.vit.layers))]
        return [("vit.embeddings",), *layers, ("vit.layernorm", "vit.first_token", "classifier")]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """images: (batch, channels, side, side); labels: (batch,) whole numbers below num_classes."""
        x = images
        for piece in self.pieces():
            for name in piece:
                x = self.get_submodule(name)(x)
        return x if labels is None else F.cross_entropy(x.float(), labels)


def initialise(module: nn.Module) -> None:
    """First values of what one module itself holds: matrices and positions from a normal of 0.02."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif isinstance(module, Embeddings):
        nn.init.normal_(module.cls_token, std=0.02)
        nn.init.normal_(module.position_embeddings, std=0.02)
