"""The loss: a few tensors as wide as the vocabulary, often the peak of the whole step.

For ``T`` tokens and a vocabulary of ``V``, logits are ``T * V`` numbers: at 16,384 tokens and 128,256 words,
4.2 GB in 16 bits. What is alive at once, in bytes per logit, with logits in ``c`` bytes:

``eager``: 12
    ``F.cross_entropy(logits.float(), labels)``. Forward holds logits, their fp32 copy and the log
    probabilities (c + 8); backward the log probabilities, their gradient and that of the fp32 logits (12).
``eager-kept``: 12 + c
    The same while a variable of the caller still holds the logits.
``loss-parallel``: 16
    DTensor's loss over sharded logits: log-softmax as separate operations, whose backward holds the log
    probabilities, their exponentials, the gradient and the result.
``vocab-parallel``: c + 4
    Megatron-LM: logits, and one fp32 copy that becomes exponentials, then probabilities, then the gradient in
    place; each rank has ``V / tensor`` of them.
``vocab-parallel-fused``: c + 8
    The same in one compiled function, which keeps one more fp32 copy.
``vocab-parallel-copy``: 2c + 8
    nanotron: logits and their fp32 copy stay with the caller while a second fp32 copy becomes the gradient,
    which is then cast.
``chunked``: c + 12 / chunks
    Logits stay in ``c``; fp32 copies and gradients exist for one chunk at a time, since each chunk has its
    own head product. Compiled, there is one fp32 copy: c + 4 / chunks.
``fused``: 2c
    Logits, and their gradient beside them.

The head's input (after the final norm) is saved too.
"""

from __future__ import annotations

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.predict.layouts import Array, Layouts
from workshop.predict.memory.activations import total
from workshop.predict.memory.saved import norm_saved


def bytes_per_logit(how: Implementation, compute: float) -> float:
    """Bytes alive for each logit at the worst moment of the loss."""
    return {
        "eager": 12.0,
        "eager-kept": 12 + compute,
        "loss-parallel": 16.0,
        "vocab-parallel": compute + 4,
        "vocab-parallel-fused": compute + 8,
        "vocab-parallel-copy": 2 * compute + 8,
        "chunked": compute + (4 if how.compile else 12) / how.loss_chunks,
        "fused": 2 * compute,
    }[how.loss]


def loss_bytes(
    model: ModelSpec, how: Implementation, numbers: Precision, layouts: Layouts, forward: bool = False
) -> Array:
    """Bytes alive on the last stage at the loss, logits and all; zero elsewhere.

    forward: at the end of forward, which for the eager loss is less than what its backward needs.
    """
    logits = layouts.tokens * model.padded_vocab(how.vocab_multiple, layouts.tensor) / layouts.tensor
    # Losses of multi-token prediction come first and keep their fp32 probabilities for backward.
    held = how.held_logit_grads * numbers.compute + 4 * model.num_mtp_layers
    eager = forward and how.loss == "eager"
    each = numbers.compute + 8 if eager else bytes_per_logit(how, numbers.compute)
    return layouts.is_last * logits * (each + held)


def head_gradients(model: ModelSpec, how: Implementation, numbers: Precision, layouts: Layouts) -> Array:
    """The head's weight gradient while it is summed over the loss's chunks: the sum and the newest part."""
    matrix = model.padded_vocab(how.vocab_multiple, layouts.tensor) * model.hidden_size / layouts.tensor
    return layouts.is_last * 2 * matrix * numbers.unsharded_grads


def ends_saved(model: ModelSpec, how: Implementation, numbers: Precision, layouts: Layouts) -> Array:
    """Saved outside the layers: the final norm's tensors and the head's input; embedding dropout's mask."""
    parts = total(norm_saved(model, how, numbers, "final_norm")).on(layouts)
    mask = model.hidden_size * layouts.tokens / layouts.along if how.dropout and model.dropout else 0
    return layouts.is_last * parts + layouts.is_first * mask
