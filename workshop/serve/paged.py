"""One forward pass over new tokens of many sequences at once, with the keys and values of all earlier
ones in blocks.

Everything but attention works on each token alone, so the new tokens of all sequences lie in one row of
(tokens, hidden): each weight is read once, for all of them. Attention gathers, for each sequence, what
its table names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from workshop.models.gpt import GPT, Layer, rotary_table, rotate
from workshop.serve.blocks import Blocks


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence, from position ``first`` on; token i is written to ``slots[i]``."""

    tokens: Sequence[int]
    first: int
    table: Sequence[int]
    slots: Sequence[int]


class PagedCache:
    """Keys and values of all layers, as slots for tokens: (layers, slots, kv heads, head_dim) each.

    ``blocks`` says who holds which of them; a block is ``block_size`` slots in a row.
    """

    def __init__(self, model: GPT, num_blocks: int, block_size: int = 16) -> None:
        config, weight = model.config, model.model.embed_tokens.weight
        shape = (config.num_layers, num_blocks * block_size, kv_heads(model), config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in "kv")
        self.blocks = Blocks(num_blocks, block_size, self._copy)

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def _copy(self, source: int, target: int) -> None:
        size = self.blocks.size
        for stored in (self.keys, self.values):
            stored[:, target * size : (target + 1) * size] = stored[:, source * size : (source + 1) * size]


def kv_heads(model: GPT) -> int:
    """Key and value heads that this model holds: under tensor parallelism, those of this rank."""
    first = cast("Layer", model.model.layers[0])
    return int(first.self_attn.k_proj.out_features) // model.config.head_dim


@dataclass(frozen=True)
class _Group:
    """Chunks of equal length, as one batch for attention: their rows, and what each of them may see."""

    rows: Tensor
    seen: Tensor
    mask: Tensor


def _groups(chunks: Sequence[Chunk], size: int, device: torch.device) -> list[_Group]:
    """Chunks by length; in a group shorter tables are filled up, and what fills them is masked."""
    places: dict[int, list[tuple[int, Chunk]]] = {}
    begin = 0
    for chunk in chunks:
        places.setdefault(len(chunk.tokens), []).append((begin, chunk))
        begin += len(chunk.tokens)
    groups = []
    for length, members in places.items():
        longest = max(chunk.first for _, chunk in members) + length
        columns = range(-(-longest // size))
        tables = [[chunk.table[i] if i < len(chunk.table) else 0 for i in columns] for _, chunk in members]
        slots = torch.tensor(tables)[:, :, None] * size + torch.arange(size)
        positions = torch.tensor([chunk.first for _, chunk in members])[:, None] + torch.arange(length)
        rows = torch.tensor([begin for begin, _ in members])[:, None] + torch.arange(length)
        mask = torch.arange(longest) <= positions[:, :, None]
        parts = (rows, slots.flatten(1)[:, :longest], mask)
        groups.append(_Group(*(part.to(device) for part in parts)))
    return groups


def _attend(query: Tensor, keys: Tensor, values: Tensor, group: _Group) -> Tensor:
    """Attention of a group: query (tokens, heads, head_dim), keys and values (slots, kv heads, head_dim).

    Heads that share a key are laid side by side as if they were further queries: none is copied.
    """
    batch, length = group.rows.shape
    sharing = query.shape[1] // keys.shape[1]
    wanted = query[group.rows].view(batch, length, keys.shape[1], sharing, -1).permute(0, 2, 3, 1, 4)
    key, value = (stored[group.seen].transpose(1, 2) for stored in (keys, values))
    mask = group.mask[:, None, None].expand(-1, -1, sharing, -1, -1).flatten(2, 3)
    mixed = F.scaled_dot_product_attention(wanted.flatten(2, 3), key, value, attn_mask=mask)
    return (
        mixed.view(batch, keys.shape[1], sharing, length, -1)
        .permute(0, 3, 1, 2, 4)
        .reshape(batch * length, -1)
    )


@torch.inference_mode()
def forward(model: GPT, cache: PagedCache, chunks: Sequence[Chunk], every: bool = False) -> Tensor:
    """Logits behind the last token of each chunk, (chunks, vocabulary), or behind ``every`` token."""
    device, decoder = cache.keys.device, model.model
    tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens], device=device)
    positions = torch.tensor([c.first + i for c in chunks for i in range(len(c.tokens))], device=device)
    slots = torch.tensor([slot for chunk in chunks for slot in chunk.slots], device=device)
    groups = _groups(chunks, cache.blocks.size, device)
    x = decoder.embed_tokens(tokens)
    table = rotary_table(positions, model.config.head_dim, model.config.rope_theta)
    cos, sin = (turn[:, None].to(x.dtype) for turn in table)
    for number, layer in enumerate(cast("list[Layer]", list(decoder.layers))):
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        projected = (project(normed) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        query, key, value = (p.view(len(x), -1, model.config.head_dim) for p in projected)
        keys, values = cache.keys[number], cache.values[number]
        keys[slots], values[slots] = rotate(key, cos, sin), value
        query, mixed = rotate(query, cos, sin), torch.empty_like(query.flatten(1))
        for group in groups:
            mixed[group.rows.flatten()] = _attend(query, keys, values, group)
        x = x + attention.o_proj(mixed)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    if not every:
        ends = [len(chunk.tokens) for chunk in chunks]
        x = x[torch.tensor(ends, device=device).cumsum(0) - 1]
    logits: Tensor = model.lm_head(decoder.norm(x))
    return logits
