"""What a library's kernels keep: the part of memory that the mathematics does not decide.

Two programs that train the same model on the same layout may differ by a factor of two in saved activations.
An implementation states the choices that matter, each visible in the library's source:

``attention``
    ``"flash"`` keeps queries, keys, values, output and one statistic per row (Dao et al. 2022, arXiv 2205.14135);
    ``"flash-copy"`` also a transposed copy of the output (Transformer Engine around FlashAttention-2, whose layout
    is batch first while Megatron's is sequence first); ``"unfused"`` keeps the probabilities too, quadratic in the
    sequence.
``norm``
    ``"fused"`` keeps a norm's input (and two statistics per token); ``"eager"`` a chain of PyTorch operations that
    computes in fp32 and keeps its intermediates, as Llama's RMSNorm does in ``transformers``.
``loss``
    Bytes alive per logit at the loss; see ``workshop.predict.loss``.
``dropout``
    whether masks are drawn and kept (one byte per element).
``compile``
    whether torch.compile fuses pointwise operations, which then keep only what they must.
``buffers``
    ``"contiguous"``: gradients live in one buffer for the whole run (Megatron-LM, DeepSpeed); ``"freed"``: they are
    born in backward and freed after the optimizer's step (``zero_grad(set_to_none=True)``).
``boundary_tensors``
    stage inputs and outputs that a pipeline's schedule holds beside saved activations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workshop.facts.checks import check_choice, check_positive

ATTENTION = ("flash", "flash-copy", "unfused")
LOSS = ("eager", "eager-kept", "loss-parallel", "vocab-parallel", "vocab-parallel-fused", "vocab-parallel-copy",
        "chunked", "fused")
NORM = ("fused", "eager")
BUFFERS = ("contiguous", "freed")


@dataclass(frozen=True)
class Implementation:
    """Choices of one library; see the module's docstring."""

    name: str = "torch"
    attention: str = "flash"
    norm: str = "fused"
    loss: str = "eager"
    loss_chunks: int = 1
    dropout: bool = False
    compile: bool = False
    buffers: str = "freed"
    vocab_multiple: int = 1  # the vocabulary is padded to a multiple of this times ``tensor``
    boundary_tensors: int = 0
    fixed_workspace: bool = False  # CUBLAS_WORKSPACE_CONFIG=:4096:8, for deterministic runs
    transformer_engine: bool = False
    optimizer_in_backward: bool = False
    step_room: float = 0.0  # bytes of temporaries per trained parameter in the optimizer's step; 0: fused
    fused_qkv_views: bool = False  # values stay a view of the joint projection, which therefore stays whole; and
    #                                LoRA's update of it is padded by an index_copy that keeps its source
    gathered_inputs: bool = False  # with sequence parallelism, column-parallel maps save their gathered input
    bucket_bytes: int = 0  # buffers in which gradients are gathered for their reduction
    held_logit_grads: int = 0  # logit gradients kept so that the head's weight gradient can be computed later
    expandable_segments: bool = False
    eager_context: bool = False  # all CUDA kernels loaded at the start, the only way before CUDA 11.7

    def __post_init__(self) -> None:
        check_choice("attention kernel", self.attention, ATTENTION)
        check_choice("loss", self.loss, LOSS)
        check_choice("norm", self.norm, NORM)
        check_choice("buffers", self.buffers, BUFFERS)
        check_positive("loss_chunks", self.loss_chunks)


_KNOWN = {
    "torch": Implementation("torch", step_room=4),
    "megatron": Implementation("megatron", loss="vocab-parallel", buffers="contiguous", vocab_multiple=128,
                               boundary_tensors=3, transformer_engine=True, dropout=True),
    "megatron-local": Implementation("megatron-local", attention="unfused", loss="vocab-parallel",
                                     buffers="contiguous", vocab_multiple=128, boundary_tensors=3, dropout=True),
    "deepspeed": Implementation("deepspeed", buffers="contiguous"),
    "torchtitan": Implementation("torchtitan", norm="eager", gathered_inputs=True),
    "nanotron": Implementation("nanotron", loss="vocab-parallel-copy", buffers="contiguous", boundary_tensors=2,
                               gathered_inputs=True),
    # DeepSpeed ZeRO-1: the step casts its part of the gradients to fp32; reduce and all-gather buckets of 5e8
    # elements each (deepspeed/runtime/zero/config.py). InternEvo's hybrid ZeRO flattens gradients (2), casts them to fp32 (4), and torch 1.13's AdamW makes two
    # temporaries (4 + 4): internlm/solver/optimizer/hybrid_zero_optim.py. Buckets of 512 MiB in configs/7B_sft.py.
    "megatron-deepspeed": Implementation("megatron-deepspeed", attention="unfused", loss="vocab-parallel",
                                         buffers="contiguous", vocab_multiple=128, boundary_tensors=3, dropout=True,
                                         step_room=4, bucket_bytes=2 * 10**9, eager_context=True),
    "internevo": Implementation("internevo", buffers="contiguous", step_room=14, bucket_bytes=2**29),
    "torchtune": Implementation("torchtune", norm="eager"),
    "litgpt": Implementation("litgpt", norm="eager", step_room=4, fused_qkv_views=True),
    "transformers": Implementation("transformers", norm="eager", loss="eager-kept", step_room=4),
}


def implementation(name: str, **changes: Any) -> Implementation:
    """A known implementation, with some choices changed; ``ValueError`` with the nearest for an unknown name."""
    check_choice("implementation", name, _KNOWN)
    return replace(_KNOWN[name], **changes)
