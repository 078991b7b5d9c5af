"""What a library's kernels keep: the part of memory that the mathematics does not decide.

Two programs that train the same model on the same layout may differ by a factor of two in saved activations.
An implementation states the choices that matter, each visible in the library's source:

``attention``   ``"flash"`` keeps queries, keys, values, output and one statistic per row (Dao et al. 2022, arXiv
                2205.14135); ``"unfused"`` keeps the scores and probabilities as well, quadratic in the sequence.
``activation``  how an MLP's nonlinearity saves its input.
``loss``        ``"fp32"`` casts all logits to 32 bits; ``"chunked"`` does so for a slice at a time; ``"fused"`` never
                keeps a second copy.
``dropout``     whether masks are drawn and kept.
``compile``     whether torch.compile fuses pointwise operations, which then keep only what they must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workshop.facts.checks import check_choice, check_positive

ATTENTION = ("flash", "unfused")
LOSS = ("fp32", "fp32-cast", "chunked", "fused")


@dataclass(frozen=True)
class Implementation:
    """Choices of one library; see the module's docstring."""

    name: str = "torch"
    attention: str = "flash"
    loss: str = "fp32"
    loss_chunks: int = 1
    dropout: bool = False
    compile: bool = False
    megatron: bool = False  # contiguous gradient buffers, deallocated stage outputs, vocabulary-parallel loss
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        check_choice("attention kernel", self.attention, ATTENTION)
        check_choice("loss", self.loss, LOSS)
        check_positive("loss_chunks", self.loss_chunks)


_KNOWN = {
    "torch": Implementation("torch"),
    "megatron": Implementation("megatron", megatron=True),
}


def implementation(name: str, **changes: object) -> Implementation:
    """A known implementation, with some choices changed; ``ValueError`` with the nearest for an unknown name."""
    check_choice("implementation", name, _KNOWN)
    return replace(_KNOWN[name], **changes)  # type: ignore[arg-type]
