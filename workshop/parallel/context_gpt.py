"""A GPT whose sequence is cut over ranks.

Embedding, norms, the gated network, the head and the loss look at one position at a time: a rank runs them on
its own positions and nothing changes. Two things must know. The rotary embedding turns a key by its place in
the whole sequence, not in the rank's part of it. And attention needs everybody's keys. So `cut_context`
changes those two and nothing else: the weights, their names and the state dict are those of the model. ::

    model = cut_context(GPT(config), group, method="ring")            # in place; all ranks, same weights
    tokens, targets = cut_sequence(tokens, targets, group=group)      # this rank's positions of the batch
    loss = model(tokens, targets)                                     # the mean over this rank's positions
    loss.backward()

Each rank has as many positions as any other, so the mean over all of them is the **mean of the ranks'
losses**, and the gradient of that is the **mean of the ranks' gradients**: what data parallelism does too.
DDP or FSDP over the context ranks (and the data-parallel ones with them) finishes the step; nothing else is
needed. Megatron-LM joins the two groups for the same reason ("dp-cp").

What is kept for backward, and every activation, is the rank's share of the positions: 1/N of one device's.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from workshop.facts.checks import check_choice
from workshop.facts.fitting import ulysses_problems
from workshop.models.gpt import Attention, Decoder
from workshop.parallel.context import Group, positions_of, ring_attention, ulysses_attention
from workshop.parallel.context_torch import check_device, torch_attention
from workshop.parallel.stages import GPTStage

Model = TypeVar("Model", bound=nn.Module)
ORDER_OF = {"ring": "zigzag", "ulysses": "contiguous", "torch": "zigzag"}
"""Ways to attend over a cut sequence, and the order in which each wants the positions dealt out."""


def context_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    method: str = "ring",
    order: str = "",
    group: Group = None,
) -> Tensor:
    """Causal attention over a sequence cut over the ranks of ``group``; all of them call it.

    Args:
        query: (batch, heads, positions of this rank, head_dim).
        key, value: (batch, kv_heads, positions of this rank, head_dim).
        method: "ring", "ulysses", or "torch": PyTorch's own ring, on GPUs (`parallel.context_torch`).
        order: how positions were dealt out, where it is not the method's own (`ORDER_OF`).
        group: the ranks that share the sequence; None: all.

    Returns the attended values, as ``query``. Raises ValueError, before anything is sent, for an unknown
    method or order, where heads or positions do not divide, and for "torch" on a CPU.
    """
    order = _order(method, order)
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads cannot share {key.shape[1]} key and value heads evenly"
        )
    if method == "ulysses":
        return ulysses_attention(query, key, value, group=group)
    if method == "torch":
        return torch_attention(query, key, value, group=group)
    return ring_attention(query, key, value, order=order, group=group)


def _order(method: str, order: str) -> str:
    """The order asked for, or the method's own."""
    check_choice("method", method, ORDER_OF)
    if order and method != "ring" and order != ORDER_OF[method]:
        raise ValueError(
            f"order {order!r}: {method} wants its positions {ORDER_OF[method]!r}; only the ring takes others"
        )
    return order or ORDER_OF[method]


class ContextAttention(nn.Module):
    """Takes the place of `CoreAttention` in a layer: `context_attention` with these settings."""

    def __init__(self, method: str, order: str, group: Group) -> None:
        super().__init__()
        self.method, self.order, self.group = method, order, group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query (batch, heads, own positions, head_dim), key and value with kv_heads, to query's shape."""
        return context_attention(query, key, value, method=self.method, order=self.order, group=self.group)

    def extra_repr(self) -> str:
        """What `print(model)` says."""
        return f"method={self.method!r}, order={self.order!r}"


def own_positions(length: int, *, device: torch.device, group: Group, order: str) -> Tensor:
    """Which places of the whole sequence this rank's ``length`` tokens are: (length,)."""
    ranks = dist.get_world_size(group)
    return positions_of(dist.get_rank(group), ranks, length * ranks, order).to(device)


def _heads(linear: nn.Linear, head_dim: int) -> int:
    """Heads that a projection makes on this rank, also where a plan has cut it."""
    weight = linear.weight
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    return local.shape[0] // head_dim


def cut_context(model: Model, group: Group = None, *, method: str = "ring", order: str = "") -> Model:
    """Let a GPT run on this rank's positions of a sequence; changed in place, and returned.

    Matrices (`cut_tensor`, `cut_by_plan`) and stages (`cut_stages`) may be cut before or after; Ulysses comes
    after matrices, for it deals out the heads that a rank has. All before anything wraps the layers
    (recompute, compile, DDP, FSDP). Batches are cut by `cut_sequence` with the same group,
    method and order.

    Args:
        model: a GPT, what tensor parallelism has made of it, or a stage of a pipeline. State dict and
            parameters stay as they are.
        group: the ranks that share a sequence; None: all.
        method, order: see `context_attention`.

    Raises ValueError for an unknown method or order, where Ulysses cannot deal out the heads of a rank, for
    "torch" on a CPU, and for a model in which there is nothing to change.
    """
    order, ranks = _order(method, order), dist.get_world_size(group)
    blocks = [module for module in model.modules() if isinstance(module, Attention)]
    tables = [module for module in model.modules() if isinstance(module, Decoder | GPTStage)]
    if not blocks or not tables:
        raise ValueError(f"a {type(model).__name__} has no attention as workshop.models.gpt's: cut a GPT")
    if method == "torch":
        check_device(blocks[0].q_proj.weight.device)
    for block in blocks if method == "ulysses" else []:
        heads, kv_heads = (_heads(linear, block.head_dim) for linear in (block.q_proj, block.k_proj))
        for problem in ulysses_problems(heads, kv_heads, ranks):
            raise ValueError(problem)
    for block in blocks:
        block.core = ContextAttention(method, order, group)  # type: ignore[assignment]
    for table in tables:
        table.positions = partial(own_positions, group=group, order=order)
    return model


def cut_sequence(
    *batch: Tensor, group: Group = None, method: str = "ring", order: str = ""
) -> tuple[Tensor, ...]:
    """This rank's positions of tensors that are whole on every rank of the group.

    Args:
        batch: tensors (batch, sequence, ...), such as tokens and targets. Targets must be shifted before: a
            rank's last token has its target on another rank.
        group, method, order: as in `cut_context`.

    Raises ValueError where the sequence does not divide: by twice the ranks for a ring, by the ranks for
    Ulysses.
    """
    order, ranks = _order(method, order), dist.get_world_size(group)
    return tuple(
        whole[:, positions_of(dist.get_rank(group), ranks, whole.shape[1], order).to(whole.device)]
        for whole in batch
    )
