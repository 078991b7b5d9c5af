r"""Context parallelism by hand: cut the sequence, and bring each query to every earlier key all the same.

Everything in a transformer but attention looks at one position at a time, so a rank can have a part of the
positions and needs nobody. Attention needs all keys and values. Two ways to get at them::

    ring      keys and values go round. In each of N steps a rank has its own queries and somebody's
              keys, adds what they give, and hands the keys on (Liu et al. 2023, arXiv 2310.01889).
    Ulysses   change what is cut. all_to_all turns "my positions, all heads" into "all positions, my
              heads", plain attention runs, and all_to_all turns it back (Jacobs et al. 2023,
              arXiv 2309.14509).

**How parts of a softmax add up.** Attention over some of the keys gives an output and the logarithm of its
denominator, ``lse``. Two such parts, (a, lse_a) and (b, lse_b), make the whole (Milakov and Gimelshein 2018,
arXiv 1805.02867)::

    lse = log(e^lse_a + e^lse_b)        out = a e^(lse_a - lse) + b e^(lse_b - lse)

**Backward** needs no stored probabilities: p = e^(score - lse) is computed again, block by block (Dao et al.
2022, arXiv 2205.14135, algorithm 4). Queries stay at home and collect their gradient; a block of keys and
values takes the gradients it has gathered along, and they are home after N - 1 hops: what its owner finds
for it, in the first step, need not travel.

**Balance.** Under a causal mask later queries have more keys. Cut in N plain parts, the last rank works N
times as long as the first, and the ring waits for it in every step. *Zigzag* gives rank r the parts r and
2N-1-r of 2N: an early and a late one, and the same work for all (`pairs_computed` counts it).

Bytes that a rank sends, for K and V of ``kv_bytes`` together on a rank::

    ring      forward   (N-1) kv_bytes
              backward  (N-1) kv_bytes for K and V, and (N-1) kv_bytes, in fp32, for their gradients
    Ulysses   (N-1)/N of its q, k, v and of its output, and the same again backward
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workshop.facts.fitting import ulysses_problems
from workshop.models.gpt import attend

Group = dist.ProcessGroup | None
ORDERS = ("contiguous", "zigzag")
TILE = 256
"""Scores that exist at once: of so many queries with so many keys, whatever the sequence."""


# -- who has which positions ---------------------------------------------------------------------------------


def positions_of(rank: int, ranks: int, seq_len: int, order: str = "zigzag") -> Tensor:
    """The positions that ``rank`` holds, ascending: (seq_len / ranks,).

    Raises ValueError for an unknown order, and where the sequence does not divide into the parts.
    """
    return torch.cat([torch.arange(*run) for run in chunks_of(rank, ranks, seq_len, order)])


def chunks_of(rank: int, ranks: int, seq_len: int, order: str) -> list[tuple[int, int]]:
    """The same positions as runs (first, end), in the order in which the rank holds them."""
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is not known; there are {', '.join(ORDERS)}")
    parts = ranks if order == "contiguous" else 2 * ranks
    if seq_len % parts:
        raise ValueError(
            f"a sequence of {seq_len} does not divide into {parts} parts ({order}, {ranks} ranks); "
            f"{max(seq_len // parts, 1) * parts} or {(seq_len // parts + 1) * parts} would"
        )
    length = seq_len // parts
    mine = [rank] if order == "contiguous" else [rank, parts - 1 - rank]
    return [(part * length, (part + 1) * length) for part in mine]


def pairs_computed(rank: int, ranks: int, order: str) -> list[int]:
    """How many (queries, keys) pairs of runs a rank works on in each step of the causal ring.

    Counted in pairs of the 2N small runs, so that both orders compare; a pair on the diagonal counts as one.
    """
    small = 2 * ranks  # as if the sequence had 2N positions
    mine = positions_of(rank, ranks, small, order)
    steps = []
    for step in range(ranks):
        theirs = positions_of((rank - step) % ranks, ranks, small, order)
        steps.append(int((mine[:, None] >= theirs[None, :]).sum()))
    return steps


# -- one block -----------------------------------------------------------------------------------------------


def _scores(query: Tensor, key: Tensor, first_query: int, first_key: int, causal: bool) -> Tensor:
    """q k^T / sqrt(d) in fp32, -inf where the key is later: (batch, kv_heads, shared, queries, keys).

    query: (batch, kv_heads, shared, queries, head_dim), where ``shared`` query heads use one key head (GQA).
    """
    scores = (query.float() @ key.float().unsqueeze(2).mT) * query.shape[-1] ** -0.5
    if causal and first_key + key.shape[2] - 1 > first_query:
        rows = torch.arange(first_query, first_query + query.shape[3], device=query.device)
        columns = torch.arange(first_key, first_key + key.shape[2], device=query.device)
        scores = scores.masked_fill(columns[None, :] > rows[:, None], float("-inf"))
    return scores


def _add_part(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """The softmax of two sets of keys from the softmax of each, in place."""
    both = torch.logaddexp(lse, part_lse)
    out.mul_((lse - both).exp().unsqueeze(-1)).add_(part * (part_lse - both).exp().unsqueeze(-1))
    lse.copy_(both)


def _tiles(runs: list[tuple[int, int]]) -> list[tuple[slice, int]]:
    """Runs cut to at most `TILE` positions: where a tile is in the rank's tensors, and its first position."""
    tiles, held = [], 0
    for first, end in runs:
        for begin in range(first, end, TILE):
            length = min(TILE, end - begin)
            tiles.append((slice(held, held + length), begin))
            held += length
    return tiles


class _Ring:
    """One pass round the ring: who has which runs, and how a block is handed on."""

    def __init__(self, group: Group, seq_len: int, order: str, causal: bool) -> None:
        self.group, self.causal = group, causal
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.runs = [chunks_of(rank, self.ranks, seq_len, order) for rank in range(self.ranks)]

    def hand_on(self, block: Tensor) -> tuple[Tensor, list[Any]]:
        """Begin to send ``block`` to the next rank; what comes from the one before, and what to wait for."""
        arriving = torch.empty_like(block)
        ring: Any = dist.group.WORLD if self.group is None else self.group
        after, before = (
            dist.get_global_rank(ring, (self.rank + by) % self.ranks) for by in (1, self.ranks - 1)
        )
        sends = [
            dist.P2POp(dist.isend, block.contiguous(), after, self.group),
            dist.P2POp(dist.irecv, arriving, before, self.group),
        ]
        return arriving, dist.batch_isend_irecv(sends)

    def pairs(self, step: int) -> list[tuple[slice, int, slice, int]]:
        """Tiles of queries and of the keys that are here in this step, where not all keys are later.

        As (queries' slice of what the rank holds, first position, keys' slice, first position).
        """
        here, there = (_tiles(self.runs[rank]) for rank in (self.rank, (self.rank - step) % self.ranks))
        return [
            (rows, query, columns, key)
            for rows, query in here
            for columns, key in there
            if not self.causal or key <= query  # tiles on the diagonal begin at the same position
        ]


class _RingAttention(torch.autograd.Function):
    """See `ring_attention`. Tensors are (batch, kv_heads, shared, positions, head_dim) for queries."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: _Ring) -> Tensor:
        """Send the block on, work on it meanwhile, take the next."""
        out = torch.zeros_like(query, dtype=torch.float32)
        lse = out.new_full(query.shape[:-1], float("-inf"))
        block = torch.stack((key, value))
        for step in range(ring.ranks):
            last = step == ring.ranks - 1
            arriving, waits = (block, []) if last else ring.hand_on(block)
            for here, first_query, there, first_key in ring.pairs(step):
                k, v = block[:, :, :, there].unbind()
                scores = _scores(query[..., here, :], k, first_query, first_key, ring.causal)
                part = scores.softmax(-1) @ v.float().unsqueeze(2)
                _add_part(out[..., here, :], lse[..., here], part, scores.logsumexp(-1))
            for wait in waits:
                wait.wait()
            block = arriving
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.ring = ring
        return out.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The same round; a block's gradients travel one step behind it, and the last hop brings them
        home."""
        query, key, value, out, lse = ctx.saved_tensors
        ring, wide = ctx.ring, gradient.float()
        delta = (wide * out).sum(-1, keepdim=True)
        to_query, block = torch.zeros_like(out), torch.stack((key, value))
        gathered = torch.zeros_like(block, dtype=torch.float32)
        for step in range(ring.ranks):
            last = step == ring.ranks - 1
            arriving, waits = (block, []) if last else ring.hand_on(block)
            for here, first_query, there, first_key in ring.pairs(step):
                k, v = block[:, :, :, there].unbind()
                scores = _scores(query[..., here, :], k, first_query, first_key, ring.causal)
                weights = (scores - lse[..., here].unsqueeze(-1)).exp()
                upward = wide[..., here, :]
                to_weights = upward @ v.float().unsqueeze(2).mT - delta[..., here, :]
                to_scores = weights * to_weights * query.shape[-1] ** -0.5
                to_query[..., here, :] += to_scores @ k.float().unsqueeze(2)
                gathered[0, :, :, there] += (to_scores.mT @ query[..., here, :].float()).sum(2)
                gathered[1, :, :, there] += (weights.mT @ upward).sum(2)
            if step == 0:  # what this rank finds for its own keys stays here
                own, gathered = gathered, torch.zeros_like(gathered)
            else:
                gathered, hops = ring.hand_on(gathered)
                waits += hops
            for wait in waits:
                wait.wait()
            block = arriving
        to_key, to_value = (own + gathered).unbind()
        return to_query.to(query.dtype), to_key.to(key.dtype), to_value.to(value.dtype), None


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = True,
    order: str = "zigzag",
    group: Group = None,
) -> Tensor:
    """Attention over a sequence cut over the ranks of ``group``; each rank calls it with its own positions.

    Args:
        query: (batch, heads, positions of this rank, head_dim).
        key, value: (batch, kv_heads, positions of this rank, head_dim); kv_heads divides heads.
        causal: no query sees a later key.
        order: which positions a rank has; see `positions_of`.
        group: the ranks that share the sequence; None: all.

    Returns the attended values, as ``query``. Raises ValueError for an unknown order or uneven parts.
    """
    batch, heads, length, head_dim = query.shape
    shared = heads // key.shape[1]
    ring = _Ring(group, length * dist.get_world_size(group), order, causal)
    grouped = query.reshape(batch, key.shape[1], shared, length, head_dim)
    return _RingAttention.apply(grouped, key, value, ring).reshape(batch, heads, length, head_dim)


# -- Ulysses -------------------------------------------------------------------------------------------------


class _Trade(torch.autograd.Function):
    """all_to_all: cut dim ``split`` in N, give a part to each rank, and join what comes along dim
    ``join``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: Group) -> Tensor:
        """One all_to_all."""
        ctx.split, ctx.join, ctx.group = split, join, group
        going = torch.stack(x.chunk(dist.get_world_size(group), split))
        coming = torch.empty_like(going)
        dist.all_to_all_single(coming, going, group=group)
        return torch.cat(coming.unbind(), join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The trade back."""
        return _Trade.apply(gradient, ctx.join, ctx.split, ctx.group), None, None, None


def ulysses_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True, group: Group = None
) -> Tensor:
    """As `ring_attention` with ``order="contiguous"``, by trading heads for positions.

    The shapes are those of `ring_attention`. With fewer key heads than ranks, each is sent to all ranks whose
    query heads use it.

    Raises ValueError where the heads do not divide by the ranks: there is nothing left to cut.
    """
    ranks, heads, kv_heads = dist.get_world_size(group), query.shape[1], key.shape[1]
    for problem in ulysses_problems(heads, kv_heads, ranks):
        raise ValueError(problem)
    if kv_heads % ranks:
        key, value = (x.repeat_interleave(ranks // kv_heads, 1) for x in (key, value))
    q, k, v = (_Trade.apply(x, 1, 2, group) for x in (query, key, value))
    mixed = attend(q, k, v, is_causal=causal)
    return _Trade.apply(mixed, 2, 1, group)
