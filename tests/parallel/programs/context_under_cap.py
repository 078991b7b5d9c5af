"""Attention, forward and backward, over a sequence whose tensors one capped rank cannot hold."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.parallel.context import positions_of, ring_attention, ulysses_attention

way, saved = sys.argv[1:]
POSITIONS, HEADS, WIDTH = 8192, 4, 32
dist.init_process_group()
mine = positions_of(
    dist.get_rank(), dist.get_world_size(), POSITIONS, "zigzag" if way == "ring" else "contiguous"
)


def own(seed):
    """Numbers that follow from the position: nobody ever makes the whole."""
    table = (mine[:, None] * 0.37 + seed * torch.arange(1, HEADS * WIDTH + 1)).sin()
    return table.view(1, -1, HEADS, WIDTH).transpose(1, 2).contiguous()


def one_device(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


query, key, value = (own(seed).requires_grad_() for seed in (1, 2, 3))
out = {"ring": ring_attention, "ulysses": ulysses_attention}.get(way, one_device)(query, key, value)
out.backward(own(4))
found = [out.detach(), query.grad, key.grad, value.grad]
if way == "large":
    torch.save(found, saved)
elif way != "small":
    wanted = (x[:, :, mine] for x in torch.load(saved, mmap=True))
    report(error=max(((f - w).norm() / w.norm()).item() for f, w in zip(found, wanted, strict=True)))
dist.destroy_process_group()
