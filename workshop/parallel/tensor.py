r"""Tensor parallelism by hand: cut the matrices of a layer, and give each rank a part of them.

A block of a transformer is two matrix products with something in between that acts on every column alone (the
activation function, or one head of attention)::

    y = act(x A) B        A = [A_0 A_1]  cut in columns         B = [B_0]  cut in rows
                                                                    [B_1]

    rank 0:  act(x A_0) B_0  \
                              + = y       (Shoeybi et al. 2019, arXiv 1909.08053, section 3)
    rank 1:  act(x A_1) B_1  /

Columns first, then rows: the sum comes after the last product, and nothing is said in between. Rows first
would need the sum *before* the activation, for act(a + b) is not act(a) + act(b). So each block talks twice:
all ranks need the same x at its entrance, and the sum at its exit. Two autograd functions say it, each the
other's mirror::

    f   at the entrance:  forward nothing,     backward all_reduce     (all used x: gradients add)
    g   at the exit:      forward all_reduce,  backward nothing        (each part gets the sum's gradient)

What lies between blocks (norms, residuals) is then computed by every rank again, on the same numbers.
Sequence parallelism cuts that along the sequence (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2):
between blocks a rank has a slice of the positions, and f and g become ::

    f   forward all_gather,      backward reduce_scatter
    g   forward reduce_scatter,  backward all_gather

A ring all_reduce is a reduce_scatter and an all_gather, so this sends no byte more, and keeps 1/t of the
activations.

The vocabulary is cut too: a rank looks up the words it has and adds zeros for the others, and the loss is
computed without ever bringing the logits of one position together (`vocab_parallel_cross_entropy`).

`cut_tensor` does all of it to `models.gpt.GPT`. What PyTorch makes of the same idea is in
`parallel.tensor_plans`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.models.gpt import GPT, MLP, Attention, Layer
from workshop.parallel.tensor_collectives import all_gather, all_reduce, reduce_scatter, slice_of

Group = dist.ProcessGroup | None
SEQUENCE = 1  # the dim of positions in (batch, sequence, hidden)


# -- f and g -----------------------------------------------------------------------------------------------


class Copy(torch.autograd.Function):
    """f: the same x, (batch, sequence, hidden), for every rank. Its gradients, one from each rank, add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """Nothing: every rank has x already."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """all_reduce."""
        return all_reduce(gradient, ctx.group), None


class Sum(torch.autograd.Function):
    """g: the sum of the ranks' parts, each (batch, sequence, hidden).

    Each part moves the sum one to one, so the gradient is simply theirs.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:  # noqa: ARG004 - autograd gives it
        """all_reduce."""
        return all_reduce(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        """Nothing."""
        return gradient, None


class Gather(torch.autograd.Function):
    """f under sequence parallelism: from a slice of the positions to all of them.

    (batch, sequence / ranks, hidden) to (batch, sequence, hidden).
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        """all_gather."""
        ctx.group = group
        return all_gather(part, SEQUENCE, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """reduce_scatter."""
        return reduce_scatter(gradient, SEQUENCE, ctx.group), None


class SumSlice(torch.autograd.Function):
    """g under sequence parallelism: the sum of the parts, of which each rank keeps its positions.

    (batch, sequence, hidden) to (batch, sequence / ranks, hidden).
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        """reduce_scatter."""
        ctx.group = group
        return reduce_scatter(part, SEQUENCE, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """all_gather."""
        return all_gather(gradient, SEQUENCE, ctx.group), None


# -- cut matrices --------------------------------------------------------------------------------------------


def cut_columns(linear: nn.Linear, group: Group = None) -> None:
    """Keep this rank's columns of A in ``x A``, in place. (PyTorch stores A transposed: they are its rows.)

    Raises ValueError where the outputs do not divide by the ranks.
    """
    linear.weight = nn.Parameter(slice_of(linear.weight.data, 0, group, "output features").clone())
    if linear.bias is not None:
        linear.bias = nn.Parameter(slice_of(linear.bias.data, 0, group, "output features").clone())
    linear.out_features = linear.weight.shape[0]


def cut_rows(linear: nn.Linear, group: Group = None) -> None:
    """Keep this rank's rows of B in ``h B``, in place: its part of a sum over the ranks.

    Raises ValueError where the inputs do not divide by the ranks, and for a bias, which the sum would add
    once for every rank.
    """
    if linear.bias is not None:
        raise ValueError("a linear layer cut in rows is one part of a sum: add its bias after the sum")
    linear.weight = nn.Parameter(slice_of(linear.weight.data, 1, group, "input features").clone())
    linear.in_features = linear.weight.shape[1]


def cut_mlp(mlp: MLP, group: Group = None) -> None:
    """Columns, columns, rows: gate and up act on the same slice of the inner width, down sums over slices."""
    cut_columns(mlp.gate_proj, group)
    cut_columns(mlp.up_proj, group)
    cut_rows(mlp.down_proj, group)


def cut_attention(attention: Attention, group: Group = None) -> None:
    """A rank gets whole heads: the columns of q, k and v that make them, and their rows of o.

    Raises ValueError where key and value heads do not divide by the ranks.
    """
    kv_heads = attention.k_proj.out_features // attention.head_dim
    ranks = dist.get_world_size(group)
    if kv_heads % ranks:
        raise ValueError(
            f"{kv_heads} key and value heads cannot be dealt out to {ranks} ranks as whole heads"
        )
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        cut_columns(projection, group)
    cut_rows(attention.o_proj, group)


class Between(nn.Module):
    """A block between its f and its g."""

    def __init__(self, inner: nn.Module, group: Group, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.inner, self.group = inner, group
        self.f: Any = Gather if sequence_parallel else Copy
        self.g: Any = SumSlice if sequence_parallel else Sum

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """x: (batch, sequence or a slice of it, hidden), and the same comes back."""
        return self.g.apply(self.inner(self.f.apply(x, self.group), *rest), self.group)


# -- the vocabulary ------------------------------------------------------------------------------------------


class VocabParallelEmbedding(nn.Module):
    """A rank holds the vectors of its words; for the others it adds zeros, and the sum has all."""

    def __init__(self, whole: nn.Embedding, group: Group, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(slice_of(whole.weight.data, 0, group, "words").clone())
        self.first = dist.get_rank(group) * self.weight.shape[0]
        self.group, self.g = group, SumSlice if sequence_parallel else Sum

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) whole numbers to (batch, sequence or a slice of it, hidden)."""
        mine = (tokens >= self.first) & (tokens < self.first + self.weight.shape[0])
        embedded = F.embedding((tokens - self.first).where(mine, 0), self.weight)
        return self.g.apply(embedded.where(mine.unsqueeze(-1), 0), self.group)


class _CrossEntropy(torch.autograd.Function):
    """See `vocab_parallel_cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        """Three numbers a position travel: the largest logit, the sum of exponentials, the target's logit."""
        largest = all_reduce(logits.max(-1).values, group, dist.ReduceOp.MAX)
        shifted = logits - largest.unsqueeze(-1)
        words, first = logits.shape[-1], dist.get_rank(group) * logits.shape[-1]
        mine = (targets >= first) & (targets < first + words)
        local = (targets - first).where(mine, 0).unsqueeze(-1)
        chosen = shifted.gather(-1, local).squeeze(-1).where(mine, 0)
        exponentials = shifted.exp()
        chosen, total = all_reduce(torch.stack((chosen, exponentials.sum(-1))), group)
        ctx.save_for_backward(exponentials / total.unsqueeze(-1), mine, local)
        return (total.log() - chosen).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """softmax minus one at the target, each rank for its own words: nothing is sent."""
        probabilities, mine, local = ctx.saved_tensors
        one = mine.unsqueeze(-1).to(probabilities.dtype)
        return (probabilities.scatter_add(-1, local, -one)) * (gradient / mine.numel()), None, None


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group = None) -> Tensor:
    """Mean cross-entropy of logits whose last dim, the vocabulary, is cut over ranks.

    ``logits``: (..., words / ranks), in fp32; ``targets``: (...), whole numbers below the whole vocabulary,
    the same on every rank. Three numbers a position are sent, never the logits (arXiv 1909.08053, section 3).
    """
    return _CrossEntropy.apply(logits, targets, group)


# -- the whole model -----------------------------------------------------------------------------------------


class TensorParallelGPT(nn.Module):
    """What `cut_tensor` returns: called like `GPT`, with the same tokens and targets on every rank of the
    group.

    ``model(tokens)`` gives this rank's words' logits, (batch, sequence, words / ranks).
    """

    def __init__(self, model: GPT, group: Group, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.decoder, self.lm_head, self.group = model.model, model.lm_head, group
        self.f = Gather if sequence_parallel else Copy

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens, targets: (batch, sequence)."""
        logits = self.lm_head(self.f.apply(self.decoder(tokens), self.group))
        if targets is None:
            return logits
        return vocab_parallel_cross_entropy(logits.float(), targets, self.group)


def cut_tensor(model: GPT, group: Group = None, *, sequence_parallel: bool = False) -> TensorParallelGPT:
    """Cut a GPT over the ranks of a group. All ranks must come with the same weights; each keeps its part.

    Under sequence parallelism a norm sees only this rank's positions. Its weight is held by all, so its
    gradient is summed over ranks as soon as it is there. The sequence must divide by the ranks.

    Raises ValueError where heads, widths or the vocabulary do not divide by the ranks.
    """
    decoder, head = model.model, model.lm_head
    if model.config.tied:
        head.weight = nn.Parameter(head.weight.data)
    cut_columns(head, group)
    decoder.embed_tokens = VocabParallelEmbedding(  # type: ignore[assignment]
        decoder.embed_tokens, group, sequence_parallel=sequence_parallel
    )
    if model.config.tied:  # both are cut by words: still one matrix, with both gradients
        head.weight = decoder.embed_tokens.weight
    norms = [decoder.norm]
    for layer in cast("list[Layer]", list(decoder.layers)):
        cut_attention(layer.self_attn, group)
        cut_mlp(layer.mlp, group)
        layer.self_attn = Between(  # type: ignore[assignment]
            layer.self_attn, group, sequence_parallel=sequence_parallel
        )
        layer.mlp = Between(  # type: ignore[assignment]
            layer.mlp, group, sequence_parallel=sequence_parallel
        )
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
    if sequence_parallel:
        for norm in norms:
            norm.weight.register_hook(lambda gradient: all_reduce(gradient, group))
    return TensorParallelGPT(model, group, sequence_parallel=sequence_parallel)
