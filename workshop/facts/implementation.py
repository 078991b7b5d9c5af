"""What a library's kernels keep: the part of memory that the mathematics does not decide.

Two programs that train the same model on the same layout may differ by a factor of two in saved
activations. An implementation states the choices that matter, each visible in the library's source.
``data/stacks.toml`` holds those of known libraries (`workshop.facts.stack`).

``attention``
    ``"flash"`` keeps queries, keys, values, output and one statistic per row (Dao et al. 2022, arXiv
    2205.14135). ``"flash-copy"`` keeps a transposed copy of the output too: Transformer Engine around
    FlashAttention-2, which is batch first while Megatron-LM is sequence first. ``"unfused"`` keeps the
    probabilities, quadratic in the sequence.
``norm``
    ``"fused"`` keeps a norm's input and two statistics per token. ``"eager"`` is a chain of PyTorch
    operations that computes in fp32 and keeps its intermediates, as Llama's RMSNorm does.
``loss``
    Decides the bytes alive per logit; see ``workshop.predict.memory.loss``.
``buffers``
    ``"contiguous"``: gradients live in one buffer for the whole run (Megatron-LM, DeepSpeed).
    ``"freed"``: they are born in backward and freed after the step (``zero_grad(set_to_none=True)``).
``reduces_once``
    Under a pipeline, FSDP2 sums gradients unsharded and reduces them after the last micro-batch; what a
    backward has gathered stays until then. That is `torch.distributed.pipelining` (its stage.py:
    ``backward_maybe_with_nosync``, ``perform_reduce_grad``). Without, each micro-batch is reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from workshop.facts.checks import check_choice, check_positive
from workshop.facts.tables import from_table, lookup, table

ATTENTION = ("flash", "flash-copy", "unfused")
LOSS = (
    "eager",
    "eager-kept",
    "loss-parallel",
    "vocab-parallel",
    "vocab-parallel-fused",
    "vocab-parallel-copy",
    "chunked",
    "fused",
)
NORM = ("fused", "eager")
BUFFERS = ("contiguous", "freed")


@dataclass(frozen=True)
class Implementation:
    """Choices of one library; see the module's docstring.

    ``vocab_multiple``: the vocabulary is padded to a multiple of this times ``tensor``. ``boundary_tensors``:
    stage inputs and outputs that a pipeline's schedule holds beside saved activations. ``fixed_workspace``:
    ``CUBLAS_WORKSPACE_CONFIG=:4096:8``, as deterministic runs must set it. ``step_room``: bytes of
    temporaries per trained parameter in AdamW's step with fp32 moments; 0 for a fused one. ``eager_gelu``:
    the tanh form of GELU is a chain of operations (GPT-2 in transformers), each keeping its input.
    ``fused_qkv_views``: values stay a view of the joint projection's result, which therefore stays whole; and
    LoRA's update of it is padded by an ``index_copy``, which keeps its source. ``gathered_inputs``: with
    sequence parallelism, column-parallel maps save their input gathered. ``bucket_bytes``: buffers in which
    gradients are collected for their reduction. ``adapter_dropout``: LoRA keeps its dropped input and the
    mask. ``four_bit_inputs``: 4-bit maps keep their input and unpack the next matrix while one is in use, as
    bitsandbytes once did; without, backward unpacks one matrix at a time. ``held_logit_grads``: logit
    gradients kept so that the head's weight gradient can be computed later. ``eager_context``: all CUDA
    kernels are loaded at the start, the only way before CUDA 11.7.
    """

    name: str = "torch"
    attention: str = "flash"
    norm: str = "fused"
    loss: str = "eager"
    loss_chunks: int = 1
    dropout: bool = False
    compile: bool = False
    buffers: str = "freed"
    reduces_once: bool = False
    vocab_multiple: int = 1
    boundary_tensors: int = 0
    fixed_workspace: bool = False
    transformer_engine: bool = False
    optimizer_in_backward: bool = False
    step_room: float = 0.0
    eager_gelu: bool = False
    fused_qkv_views: bool = False
    gathered_inputs: bool = False
    bucket_bytes: int = 0
    adapter_dropout: bool = True
    four_bit_inputs: bool = True
    held_logit_grads: int = 0
    expandable_segments: bool = False
    eager_context: bool = False
    source: str = ""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: predictors look specs up in caches."""
        return hash(tuple(getattr(self, f.name) for f in fields(self)))

    def __post_init__(self) -> None:
        check_choice("attention kernel", self.attention, ATTENTION)
        check_choice("loss", self.loss, LOSS)
        check_choice("norm", self.norm, NORM)
        check_choice("gradient buffers", self.buffers, BUFFERS)
        check_positive("loss_chunks", self.loss_chunks)


def own_tables() -> dict[str, Any]:
    """The table of every stack that keeps something of its own in memory, by name."""
    return {name: entry["memory"] for name, entry in table("stacks").items() if "like" not in entry["memory"]}


def implementation(name: str, **changes: Any) -> Implementation:
    """A known implementation, with some choices changed; an unknown name gets its nearest."""
    entry = lookup(name, own_tables(), "implementation")
    known = from_table(Implementation, {"name": name, **entry}, f"implementation {name!r}")
    return replace(known, **changes)
