"""Ring attention and Ulysses beside attention in one process: output and all three gradients; what was sent."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.measure import measure
from workshop.parallel import context
from workshop.parallel.context import positions_of, ring_attention, ulysses_attention

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
BATCH, HEADS, SEQ_LEN, HEAD_DIM = 2, 4, 32, 8


def relative(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def compare(attention, order, causal, kv_heads):
    torch.manual_seed(5)  # the whole sequence is the same everywhere; a rank takes its positions
    whole = [
        torch.randn(BATCH, heads, SEQ_LEN, HEAD_DIM, requires_grad=True)
        for heads in (HEADS, kv_heads, kv_heads)
    ]
    upward = torch.randn(BATCH, HEADS, SEQ_LEN, HEAD_DIM)
    wanted = F.scaled_dot_product_attention(*whole, is_causal=causal, enable_gqa=True)
    wanted.backward(upward)
    mine = positions_of(rank, ranks, SEQ_LEN, order)
    parts = [x.detach()[:, :, mine].clone().requires_grad_() for x in whole]
    with measure(memory=False) as measured:
        out = attention(*parts)
        out.backward(upward[:, :, mine])
    errors = [relative(out, wanted[:, :, mine])]
    errors += [relative(part.grad, x.grad[:, :, mine]) for part, x in zip(parts, whole, strict=True)]
    return {"errors": errors, "wire": {row.name: row.wire_bytes for row in measured.traffic}}


for causal in (True, False):
    for kv_heads in (HEADS, 2, 1):
        for order in ("contiguous", "zigzag"):
            found = compare(
                lambda q, k, v, causal=causal, order=order: ring_attention(q, k, v, causal=causal, order=order),
                order, causal, kv_heads,
            )  # fmt: skip
            report(**{f"ring {order} causal={causal} kv_heads={kv_heads}": found})
        found = compare(
            lambda q, k, v, causal=causal: ulysses_attention(q, k, v, causal=causal),
            "contiguous", causal, kv_heads,
        )  # fmt: skip
        report(**{f"ulysses contiguous causal={causal} kv_heads={kv_heads}": found})

# runs that are longer than a tile, and do not divide by it
context.TILE = 3
report(tiled=[
    compare(lambda q, k, v, causal=causal: ring_attention(q, k, v, causal=causal), "zigzag", causal, 2)["errors"]
    for causal in (True, False)
])  # fmt: skip
context.TILE = 256

# bf16 in, bf16 out; the sums inside are fp32
torch.manual_seed(7)
q, k, v = (torch.randn(1, 2, SEQ_LEN, HEAD_DIM) for _ in range(3))
mine = positions_of(rank, ranks, SEQ_LEN)
half = ring_attention(*(x[:, :, mine].bfloat16() for x in (q, k, v)))
full = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, mine]
report(half=(str(half.dtype), relative(half.float(), full)))

# a pair of ranks inside a larger world
if ranks == 4:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair, place = pairs[rank // 2], rank % 2
    mine = positions_of(place, 2, SEQ_LEN)
    inside = ring_attention(*(x[:, :, mine] for x in (q, k, v)), group=pair)
    report(pair=relative(inside, F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, mine]))
try:
    ulysses_attention(q[:, :1], k[:, :1], v[:, :1])
except ValueError as error:
    report(said=str(error))
dist.destroy_process_group()
