# %% [markdown]
# # Cut the sequence: how can ranks share one long text?
#
# - **You need** `21_collectives`; `31_tensor_parallel`; softmax attention, and that its scores are a matrix of positions x positions.
# - **It takes** 45 minutes to read and try, half a minute to run.
# - **What runs where:** everything runs here on four ranks, on the CPU. The same cells are meant for GPUs too, but no run there has reached its
#   end yet (see the end of the lesson). On GPUs, the sequence that one device cannot hold is 16 times longer, because a GPU's allocator reserves
#   20 MiB at a time and a cap of 30 MiB would measure only that. The last part rehearses one rank of 256.
# - **Model and text:** `TINY` and one sequence of 256 bytes of the reference manual, as in the lessons before. Where we measure attention by
#   itself, we use random numbers, because only the sizes matter. The last part uses one layer with the widths of Llama 70B.
# - **Links:** before this [32_pipeline](32_pipeline.ipynb), after it [34_experts](34_experts.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Data parallelism gives each rank different sequences. That does not help with a single *long* sequence: the activations
# that a layer keeps grow with every position, and one device has to hold them all. Can each of four ranks take a quarter of the positions?
#
# Norms, matrix products and the loss treat every position separately, so cutting the sequence changes nothing for them. Attention is the
# exception: each position looks at all positions before it.

# %%
# %load_ext workshop
from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes

# %% [markdown]
# ## One way: pass keys and values around a ring
#
# Each rank keeps its own queries. In N steps it sees the keys and values of all ranks, one block at a time, and passes each
# block on to the next rank. No rank ever holds all keys at once. Keys that belong to a later rank are masked, so a rank skips their block:

# %%
show.ring_blocks(4)

# %% [markdown]
# But softmax divides by a sum over **all** keys. How can we compute it in parts? Next to each output we keep `lse`, the logarithm of the sum
# that the output was divided by. Two parts $(a, \ell_a)$ and $(b, \ell_b)$ can then be merged into one:
#
# $$\ell = \log(e^{\ell_a} + e^{\ell_b}) \qquad o = a\,e^{\ell_a - \ell} + b\,e^{\ell_b - \ell}$$
#
# Only differences of `lse` may be exponentiated: with large scores, $e^{\ell_a}$ itself overflows. `logaddexp` computes $\ell$ safely. The next
# cell tests this on six keys in two parts.

# %% tags=["nbval-check-output"]
import numpy as np

rng = np.random.default_rng(0)
scores, values = rng.normal(size=6), rng.normal(size=6)


def part(which):
    """Softmax average of the values over some of the keys, and its lse."""
    lse = np.log(np.exp(scores[which]).sum())
    return (np.exp(scores[which] - lse) * values[which]).sum(), lse


(a, lse_a), (b, lse_b) = part(slice(0, 2)), part(slice(2, 6))
lse = np.logaddexp(lse_a, lse_b)
merged = a * np.exp(lse_a - lse) + b * np.exp(lse_b - lse)
at_once, _ = part(slice(0, 6))
assert np.isclose(merged, at_once)
outputs = {
    "all keys at once": at_once,
    "two parts, merged by their lse": merged,
    "two parts, plain mean": (a + b) / 2,
}
Table(("", "output"), [(name, f"{x:.6f}") for name, x in outputs.items()])

# %% [markdown]
# ### Exercise: rotate the ring

# %%
# %%exercise rotate_the_ring
import torch
import torch.distributed as dist


def merge(out, lse, part, part_lse):
    """Two sets of keys as one: the output, (queries, head_dim), and lse, (queries,)."""
    return ..., ...


def rotate_the_ring(query, key, value, attend):
    """Causal attention of this rank's queries over the keys of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # its own keys: the block on the diagonal
    out, lse = attend(query, key, value, causal=True)
    block = torch.stack((key, value))
    for step in range(1, world_size):
        block = ...  # send it to the rank on the right, take what comes from the left
        owner = ...  # whose keys are these?
        if owner < rank:  # later keys are not for us
            out, lse = merge(out, lse, *attend(query, block[0], block[1], causal=False))
    return out


# %% [markdown]
# Now your ring replaces the attention in every layer of `TINY`. Each rank reads 64 of the 256 bytes. The rotary embedding has to know where
# these bytes stand in the whole text; nothing else changes. (We only run forward, because your messages have no backward.)

# %%
# %%torchrun -n 4 --pass rotate_the_ring --into yours
import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches


def attend(query, key, value, causal):
    """One block: what the queries get from these keys, and their lse."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


class YourAttention(torch.nn.Module):
    def forward(self, query, key, value):
        shared = query.shape[1] // key.shape[1]  # query heads per key head
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
        heads = zip(query[0], key[0], value[0], strict=True)
        return torch.stack([rotate_the_ring(*head, attend) for head in heads])[None]


dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)  # the same model on every rank
model = GPT(TINY).to(device).requires_grad_(False)
((tokens, _),) = TextBatches(seq_len=256, global_batch=1).step(0, device)
whole = model(tokens)

mine = torch.arange(256, device=device).chunk(dist.get_world_size())[dist.get_rank()]
for layer in model.model.layers:
    layer.self_attn.core = YourAttention()
model.model.positions = lambda count, device: mine
report(apart=(model(tokens[:, mine]) - whole[:, mine]).abs().max().item())
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
assert all(yours[rank].apart < 1e-4 for rank in range(4))
print("TINY with your ring, 64 bytes a rank: the logits of one process, to 1e-4")

# %% [markdown]
# ## Another way: change what is cut
#
# Attention never mixes heads. So an **all_to_all** before attention can change what each rank holds, from "my positions, all heads" to "all
# positions, my heads". Each rank then runs ordinary attention on its heads, and a second all_to_all changes the result back. This is
# *Ulysses* (Jacobs et al., 2023). Four tensors travel: q, k and v there, and the output back.

# %%
show.positions_for_heads(4)

# %% [markdown]
# By hand: cut a tensor along one dim, send one part to each rank, and join the parts that arrive along another dim.

# %%
# %%ranks -n 4
import torch
import torch.nn.functional as F

BY_HEADS, BY_POSITIONS = 1, 2  # dims of (batch, heads, positions, head_dim)
# the same seed on all ranks, so that each can check its part against the whole
torch.manual_seed(0)
whole = [torch.randn(1, 8, 256, 16, device=device) for _ in range(4)]
*qkv, upward = whole  # queries, keys, values; and a gradient of the output
wanted = F.scaled_dot_product_attention(*qkv, is_causal=True)


def mine_of(x):
    return x.chunk(world_size, BY_POSITIONS)[rank].contiguous()


def exchange(x, split, join):
    sent = torch.stack(x.chunk(world_size, split))  # a part for each rank
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    return torch.cat(came.unbind(), join)


heads = [exchange(mine_of(x), BY_HEADS, BY_POSITIONS) for x in qkv]  # all positions
attended = F.scaled_dot_product_attention(*heads, is_causal=True)
by_hand = exchange(attended, BY_POSITIONS, BY_HEADS)
torch.testing.assert_close(by_hand, mine_of(wanted))
if rank == 0:
    for when, x in (("between the exchanges", heads[0]), ("after them", by_hand)):
        print(f"{when}: {x.shape[1]} heads of {x.shape[2]} positions")

# %% [markdown]
# PyTorch can do this exchange for you. A `DTensor` is a tensor that knows how it is cut over the ranks, and its method `redistribute` changes
# the cut. `redistribute` also has a backward, so attention can be trained this way.

# %%
# %%ranks
import logging

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

mesh = init_device_mesh(device.type, (world_size,))
logging.getLogger("torch.distributed.tensor").setLevel("ERROR")  # explained below


def cut_anew(x, held, wanted):
    """What this rank has of x when it is cut along another dim."""
    x = DTensor.from_local(x, mesh, [Shard(held)])
    return x.redistribute(placements=[Shard(wanted)]).to_local()


mine = [mine_of(x).requires_grad_() for x in qkv]
heads = [cut_anew(x, BY_POSITIONS, BY_HEADS) for x in mine]
attended = F.scaled_dot_product_attention(*heads, is_causal=True)
by_library = cut_anew(attended, BY_HEADS, BY_POSITIONS)
torch.testing.assert_close(by_library, by_hand)

by_library.backward(mine_of(upward))
alone = [x.clone().requires_grad_() for x in qkv]  # as one process, with whole tensors
F.scaled_dot_product_attention(*alone, is_causal=True).backward(upward)
for own, x in zip(mine, alone, strict=True):
    torch.testing.assert_close(own.grad, mine_of(x.grad))
if rank == 0:
    print("by hand and by redistribute: the same output; gradients as in one process")

# %%
# %ranks stop

# %% [markdown]
# (On GPUs `redistribute` sends an all_to_all. On CPUs it gathers the whole tensor, keeps the rank's part, and warns about it. The result is
# the same, but more bytes are sent.)
#
# ## Predict
#
# A rank has 1 / N of the positions. How many bytes does it send in the forward of one layer? How does that change with N?


# %%
# %%exercise context_bytes
def context_bytes(
    method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int
) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return ...
    return ...


# %% [markdown]
# We apply your function to the attention of Llama 3 70B (64 query heads, 8 heads for keys and values, width 128) with 131,072 positions:

# %% tags=["nbval-check-output"]
rows = []
for n in (2, 4, 8, 16):
    by_ring = context_bytes("ring", 131_072, 64, 8, 128, n)
    # if there are too few key heads, they are copied so that each rank has one
    by_ulysses = context_bytes("ulysses", 131_072, 64, max(8, n), 128, n)
    rows.append((str(n), format_bytes(by_ring), format_bytes(by_ulysses)))
    assert (by_ring < by_ulysses) == (n <= 8)
S, h = 131_072, 64 * 128  # as the paper counts: a key head for each query head
for n in (2, 4, 8, 16):
    papers = 2 * 4 * S * h / n  # bf16
    assert context_bytes("ulysses", S, 64, 64, 128, n) == papers * (n - 1) / n
Table(("ranks", "ring", "Ulysses"), rows, "sent by a rank in the forward of one layer")

# %% [markdown]
# With few key heads the ring is cheap at first. But nearly all keys and values pass every rank, however many ranks there are. With Ulysses,
# a rank sends only its own positions, so it sends less if there are more ranks. (With 16 ranks, each key head goes to two ranks; the table
# counts that.)
# Ulysses also has a limit: **every rank needs a head.** With 64 heads, it cannot use more than 64 ranks.
#
# The second loop compares with the paper, where keys have as many heads as queries. It counts $4Sh/N$ numbers for a rank, with S
# positions, width h and N ranks. (The paper writes N for positions and P for ranks.) An N-th of these numbers stays on the rank: hence the
# factor $(N-1)/N$ in the assert.
#
# ## Run: forward and backward on four ranks
#
# `workshop/parallel/context.py` contains both methods, forward and backward, in fewer than 300 lines. In the ring's backward, the keys and values
# go around once more, together with their gradients, to which each rank adds. The gradient of a rank's own queries stays on the rank.
#
# The next cell compares both methods with plain attention over the whole sequence, and counts bytes and FLOPs. Positions can be dealt out in
# order (*contiguous*) or *zigzag*; you will soon see why.

# %%
# %%torchrun -n 4 --into ran

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.measure import measure
from workshop.parallel.context import positions_of, ring_attention, ulysses_attention

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
# the same seed on all ranks, so that each can check its part against the whole
torch.manual_seed(0)
whole = [
    torch.randn(1, heads, 256, 16, device=device, requires_grad=True)
    for heads in (8, 4, 4)
]
upward = torch.randn(1, 8, 256, 16, device=device)
wanted = F.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
wanted.backward(upward)

for name, order in (
    ("ring", "contiguous"),
    ("ring", "zigzag"),
    ("ulysses", "contiguous"),
):
    mine = positions_of(rank, world_size, 256, order).to(device)
    parts = [x.detach()[:, :, mine].requires_grad_() for x in whole]
    with measure(memory=False) as forward:
        out = (
            ring_attention(*parts, order=order)
            if name == "ring"
            else ulysses_attention(*parts)
        )
    with measure(memory=False) as backward:
        out.backward(upward[:, :, mine])
    pairs = [
        (out, wanted),
        *((part.grad, x.grad) for part, x in zip(parts, whole, strict=True)),
    ]
    errors = [
        ((x - w[:, :, mine]).norm() / w[:, :, mine].norm()).item() for x, w in pairs
    ]
    sent = [sum(row.wire_bytes for row in way.traffic) for way in (forward, backward)]
    report(
        **{
            f"{name}, {order}": {
                "error": max(errors),
                "sent": sent,
                "flops": forward.flops,
            }
        }
    )
dist.destroy_process_group()

# %% [markdown]
# ## Compare

# %% tags=["nbval-check-output"]
rows = []
for name in ("ring, contiguous", "ring, zigzag", "ulysses, contiguous"):
    # the ranks used fp32, which takes twice as many bytes as bf16
    wanted = 2 * context_bytes(name.split(",")[0], 256, 8, 4, 16, 4)
    forward, backward = ran[0][name]["sent"]
    rows.append((name, f"{wanted:,.0f} B", f"{forward:,} B", f"{backward:,} B"))
    assert forward == wanted
    assert backward == (2 if name.startswith("ring") else 1) * wanted
    assert all(ran[rank][name]["error"] < 1e-5 for rank in range(4))
Table(
    ("", "forward, predicted", "forward", "backward"),
    rows,
    "sent by a rank",
    "Output and gradients of q, k, v are those of one process, to 1e-5.",
)

# %% [markdown]
# The prediction is exact to the byte. The ring's backward sends twice as much as its forward: the keys and values once more, and their
# gradients. (In 16 bits it sends three times as much, because our gradients are sums and travel in fp32.) With Ulysses, the gradients of the
# same four tensors travel back.
#
# ## Who works, and who waits?
#
# Under a causal mask the last query sees all keys, and the first sees only one. If positions are dealt out in order, the last rank has the
# most work. *Zigzag* cuts the sequence into 2N runs and gives rank r the runs r and 2N-1-r, an early one and a late one.

# %%
show.causal_work({"contiguous": [0, 1, 2, 3], "zigzag": [0, 1, 2, 3, 3, 2, 1, 0]})

# %% [markdown]
# **Predict:** the picture counts only the pairs that are not masked. But our ring computes whole blocks, also those on the diagonal, and skips
# only the blocks that are completely masked. Does that make the work of the ranks more even, or less?

# %%
# %%guess busiest --unit times
# Four ranks, positions dealt out in order, whole blocks: how many times the mean of
# all ranks does the busiest rank compute?
...

# %% [markdown]
# The next cell predicts the FLOPs of each rank in the forward, and compares them with those that were counted. Each pair of a query and a key
# that is computed takes $4 \cdot$ heads $\cdot$ head_dim FLOPs.
#
# - If positions are dealt out in order, rank r computes $r + 1$ blocks of $(S/N)^2$.
# - With zigzag, every rank computes three blocks in its first step and two in every other step: $2N + 1$ blocks of $(S/2N)^2$.

# %% tags=["nbval-check-output"]
a_pair, S, N = 4 * 8 * 16, 256, 4
predicted = {
    "ring, contiguous": [a_pair * (rank + 1) * (S // N) ** 2 for rank in range(N)],
    "ring, zigzag": [a_pair * (2 * N + 1) * (S // (2 * N)) ** 2] * N,
}
rows, uneven = [], {}
for name, wanted in predicted.items():
    measured = [ran[rank][name]["flops"] for rank in range(N)]
    uneven[name] = max(measured) / (sum(measured) / N)
    megaflops = (f"{flops / 1e6:.2f}" for flops in measured)
    rows.append((name, *megaflops, f"{uneven[name]:.2f}"))
    assert measured == wanted
head = (*(f"rank {rank}" for rank in range(N)), "busiest / mean")
Table(("", *head), rows, "MFLOP in the forward, as predicted")

# %%
beside("busiest", predicted=N / ((N + 1) / 2), measured=uneven["ring, contiguous"])

# %% [markdown]
# The work is a little more even than in the picture, because every rank also computes the masked half of its block on the diagonal. With zigzag it
# is the same for all.
#
# In **every** step the ring waits for its slowest rank. So if positions are dealt out in order, skipping masked blocks saves work but should
# save no time: the other three ranks wait for the last one. (This follows from the FLOPs. We have not timed it.)
#
# Megatron-LM, Llama 3 and PyTorch cut the sequence into 2N runs as we do. Striped Attention (Brandon et al., 2023) deals out single
# positions in turn, for the same reason, and reports up to 1.45 times the throughput at 256k positions.
# Ulysses does not have this problem, because all heads have the same work.
#
# ## A whole GPT
#
# What else depends on the position? Only the rotary embedding, which turns queries and keys by their place in the *whole* sequence. So
# `cut_context` changes just two things: each layer gets the attention from above, and the decoder gets its positions.
#
# Each rank's loss is the mean over its own positions. Here all ranks count equally many targets. So the whole loss is the mean over ranks, and
# gradients are averaged **just as in data parallelism**. DDP or FSDP over these ranks can do that.
#
# With padding, or a prompt whose tokens do not count, ranks count different numbers of targets. Is the mean over ranks still right?

# %% tags=["nbval-check-output"]
import torch
from torch.nn.functional import cross_entropy, one_hot

targets = torch.arange(256) % 10
logits = 4 * one_hot(targets) * torch.linspace(0, 1, 256)[:, None]  # later is easier
targets[:50] = -100  # a prompt: cross_entropy ignores it
by_rank = list(zip(logits.chunk(4), targets.chunk(4), strict=True))
wanted = cross_entropy(logits, targets)
of_means = sum(cross_entropy(*own) for own in by_rank) / 4
total = sum(cross_entropy(*own, reduction="sum") for own in by_rank)
counted = sum((own != -100).sum() for _, own in by_rank)  # on ranks, an all_reduce
assert abs(of_means - wanted) > 0.1
assert torch.isclose(total / counted, wanted)
losses = {
    "one process": wanted,
    "mean of the ranks' means": of_means,
    "sum over all ranks / count over all ranks": total / counted,
}
Table(("", "loss"), [(name, f"{loss:.4f}") for name, loss in losses.items()])

# %% [markdown]
# It is not: a rank with few targets counts as much as the others. (A rank without any would even get NaN.) So if the counts differ, each rank
# divides the sum of its own losses by the number of counted targets of *all ranks together*. Its gradients are then **added up** over the ranks,
# not averaged.
#
# The next cell trains nothing. It compares the loss and the gradients of four ranks with those of one process:

# %%
# %%torchrun -n 4 --into gpt

from dataclasses import replace

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches
from workshop.parallel.context_gpt import cut_context, cut_sequence

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(10 + rank)
# on GPUs, fused attention in fp32 does not support shared key heads
config = replace(TINY, num_kv_heads=4)
plain = GPT(config).to(device)
for parameter in plain.parameters():
    dist.broadcast(parameter.data, 0)
((tokens, targets),) = TextBatches(seq_len=256, global_batch=1).step(0, device)


def kept_in_forward(model, *batch):
    """The loss, and the bytes that autograd keeps for backward: each storage once,
    without the weights.
    """
    weights, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(*batch)
    return loss, sum(size for place, size in kept.items() if place not in weights)


loss, kept = kept_in_forward(plain, tokens, targets)
loss.backward()
report(whole=kept)
for method in ("ring", "ulysses"):
    model = GPT(config).to(device)
    model.load_state_dict(plain.state_dict())
    model = cut_context(model, method=method)
    own, own_kept = kept_in_forward(
        model, *cut_sequence(tokens, targets, method=method)
    )
    own.backward()
    own = own.detach()
    for tensor in (own, *(parameter.grad for parameter in model.parameters())):
        dist.all_reduce(tensor)
        tensor /= world_size
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    errors = [((p.grad - q.grad).norm() / q.grad.norm()).item() for p, q in pairs]
    report(
        **{
            method: {
                "loss": abs(own - loss).item(),
                "gradients": errors,
                "kept": own_kept,
            }
        }
    )
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
rows = []
for method in ("ring", "ulysses"):
    for rank in range(4):
        apart = gpt[rank][method]["loss"], *gpt[rank][method]["gradients"]
        assert max(apart) < 1e-5, (method, rank, apart)
    share = gpt[0][method]["kept"] / gpt[0].whole
    rows.append((method, f"{share:.0%}"))
    assert 0.22 < share < 0.3
note = f"The loss and all {len(apart) - 1} gradients are those of one process, to 1e-5."
Table(("", "of what one process keeps"), rows, "kept on a rank for backward", note)

# %% [markdown]
# Each rank keeps about a quarter of what one process keeps for backward, and no weight has been cut. (With Ulysses it is a little more,
# because the output is kept before and after the all_to_all.) Weights, gradients and optimizer states are **not** divided. ZeRO can divide
# those, over the same ranks.
#
# ## A sequence that one device cannot hold
#
# Now we take 8,192 positions (16 times as many on GPUs) and four heads of width 32. Two kinds of memory have to be told apart:
#
# - **The scores**, heads x positions². Plain attention writes them to memory. Fused kernels (FlashAttention) never do, even on one device. So
#   the scores are no reason to use several ranks.
# - **Everything that is proportional to the positions:** q, k, v, the output, and the gradients of these four. No kernel can avoid
#   them. Context parallelism divides them.

# %%
import os

import torch

from workshop import launch
from workshop.launch.device import choose, wants_to_share

four_ranks = choose(4, torch.accelerator.device_count(), wants_to_share(None))
on_gpus = four_ranks.kind == "cuda"  # each rank has its own GPU, or they share
if not on_gpus:
    # runs with one rank must use the same kind of device as runs with four
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
folder = str(launch.Session.get().directory)

# %% tags=["nbval-check-output"]
scale = 16 if on_gpus else 1
POSITIONS, HEADS, WIDTH = scale * 8_192, 4, 32
CAP = scale * 30 * 2**20  # bytes that a rank may hold at most
tensor = 4 * POSITIONS * HEADS * WIDTH
sizes = {
    "the scores, written down": 4 * HEADS * POSITIONS**2,
    "8 tensors and lse, on one device": 8 * tensor + 4 * HEADS * POSITIONS,
    "one of these tensors": tensor,
    "a quarter of the 8 tensors, on each of four ranks": 8 * tensor // 4,
    "the cap: what a rank may hold": CAP,
}
assert 8 * tensor // 4 < CAP < 8 * tensor < 4 * HEADS * POSITIONS**2
Table(("", "memory"), [(name, format_bytes(size)) for name, size in sizes.items()])

# %% [markdown]
# The next cell saves one program for all cases and runs it without a cap, as on a device that is large enough. It saves its results, and the
# other runs are compared with them, number by number.

# %%
# %%torchrun -n 1 --pass POSITIONS,HEADS,WIDTH,folder --save {folder}/attend.py
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from workshop import report
from workshop.parallel.context import positions_of, ring_attention, ulysses_attention

dist.init_process_group()
way = sys.argv[1] if len(sys.argv) > 1 else "reference"
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
order = "zigzag" if way == "ring" else "contiguous"
mine = positions_of(dist.get_rank(), dist.get_world_size(), POSITIONS, order).to(device)


def own(seed):
    """Numbers that follow from the position, so that nobody ever makes the whole."""
    table = (
        mine[:, None] * 0.37 + seed * torch.arange(1, HEADS * WIDTH + 1, device=device)
    ).sin()
    return table.view(1, -1, HEADS, WIDTH).transpose(1, 2).contiguous()


def plain(query, key, value):
    scores = query @ key.mT * WIDTH**-0.5
    later = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool, device=device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ value


def fused(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


query, key, value = (own(seed).requires_grad_() for seed in (1, 2, 3))
ways = {"ring": ring_attention, "ulysses": ulysses_attention, "plain": plain}
out = ways.get(way, fused)(query, key, value)
out.backward(own(4))
results = [out.detach(), query.grad, key.grad, value.grad]
place = os.path.join(folder, "reference.pt")
if way == "reference":
    torch.save([x.cpu() for x in results], place)
elif way != "fused":
    wanted = [x[:, :, mine.cpu()].to(device) for x in torch.load(place, mmap=True)]
    report(
        error=max(
            ((x - w).norm() / w.norm()).item()
            for x, w in zip(results, wanted, strict=True)
        )
    )
dist.destroy_process_group()

# %% [markdown]
# Four ways get the same cap: plain and fused attention on one rank, ring and Ulysses on four ranks.
#
# **Predict:** plain attention has to write down its scores, which are far too large. How far does fused attention come on one rank?

# %%
# %%guess fused_stops_in --choices forward,backward,nowhere
# Fused attention on one rank, with a cap of seven and a half tensors of the size of q:
# in which part of the step does it run out of memory?
...

# %%
import re
from pathlib import Path

ranks_of = {"plain": 1, "fused": 1, "ring": 4, "ulysses": 4}
errors, messages = {}, {}
for way, ranks in ranks_of.items():
    limits = launch.Limits(device_memory=CAP, timeout=600)
    try:
        result = launch.torchrun(
            launch.Script(Path(folder) / "attend.py", [way]), ranks, limits=limits
        )
        errors[way] = max(result[rank].error for rank in range(ranks))
    except launch.RankFailed as failure:
        messages[way] = str(failure)

# %% tags=["nbval-check-output"]
rows, stops_in = [], {}
for way, message in messages.items():
    assert "OutOfMemoryError" in message, message
    size = re.search(r"Tried to allocate ([\d.]+ \w+)", message)[1]
    # the message quotes the line that failed
    stops_in[way] = "backward" if ".backward(" in message else "forward"
    stop = f"out of memory, asking for {size}"
    parts = ("runs", stop) if stops_in[way] == "backward" else (stop, "")
    rows.append((way, str(ranks_of[way]), *parts))
for way, error in errors.items():
    rows.append((way, str(ranks_of[way]), "runs", "runs"))
    assert error < 1e-5
assert list(messages) == ["plain", "fused"]
note = "Ring and Ulysses: output and gradients of the large device, to 1e-5."
Table(("attention", "ranks", "forward", "backward"), rows, note=note)

# %%
beside("fused_stops_in", measured=stops_in["fused"])

# %% [markdown]
# Plain attention fails when it writes the scores to memory. The fused kernel finishes its forward, with four tensors in memory. Backward starts
# with a fifth, the gradient of the output, and asks for three more at once. There it fails. Four ranks, each under the same cap, finish both.
#
# Our ring computes tiles of 256 x 256 scores in Python, on GPUs too. A ring for real work calls a fused kernel for each block.
#
# ## At scale: 131,072 positions
#
# We rehearse one training step of one layer with the widths of Llama 3 70B in bf16. For the ring, we rehearse the last of 256 ranks, with 512
# positions each, and for Ulysses the last of 64 ranks, with 2,048 positions each (64 heads are enough for 64 ranks). This function is a complete
# program: to start it on real ranks, add your data, a seed, and `.to(device)`.


# %%
def one_step(method, seq_len=131_072):
    """One training step of a rank that has its part of one sequence."""
    import torch
    import torch.distributed as dist

    from workshop.models.gpt import GPT, GPTConfig
    from workshop.parallel.context_gpt import cut_context

    dist.init_process_group()
    config = GPTConfig(
        vocab_size=1_024, hidden_size=8_192, num_layers=1, num_heads=64,
        num_kv_heads=8, intermediate_size=28_672,
    )  # fmt: skip
    model = cut_context(GPT(config).bfloat16(), method=method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # random tokens, as many as cut_sequence would give this rank
    own = torch.randint(1_024, (1, seq_len // dist.get_world_size()))
    model(own, own).backward()
    for parameter in model.parameters():  # DDP would do this during backward
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()


# %%
from workshop.rehearse import rehearse

world_sizes = {"ring": 256, "ulysses": 64}
rehearsed = {
    name: rehearse(one_step, n, rank=n - 1, steps=1, keywords={"method": name})
    for name, n in world_sizes.items()
}

# %% tags=["nbval-check-output"]
from workshop.predict.collectives import wire_bytes

forward = {
    "ring": context_bytes("ring", 131_072, 64, 8, 128, 256),
    "ulysses": context_bytes(
        "ulysses", 131_072, 64, 64, 128, 64
    ),  # each of the 8 key heads goes to 8 ranks: 64 copies
}
closed_form = {
    # forward 1; backward 1 for keys and values again, and 2 for gradients in fp32
    "ring": (1 + 1 + 2) * forward["ring"],
    "ulysses": 2 * forward["ulysses"],
}
layer = 2 * 8_192**2 + 2 * 8_192 * 1_024 + 3 * 8_192 * 28_672 + 2 * 8_192
weights = layer + 2 * 1_024 * 8_192 + 8_192  # embedding, head, last norm
rows = []
for name, n in world_sizes.items():
    sent = {row.name: row.wire_bytes for row in rehearsed[name].traffic}
    averaging = sent.pop("all_reduce")
    attention = sum(sent.values())
    by_form = f"{closed_form[name]:,.0f} B"
    rows.append((name, str(n), by_form, f"{attention:,} B", f"{averaging:,} B"))
    assert attention == closed_form[name]
    assert averaging == wire_bytes("all_reduce", 2 * weights, n)
head = ("ranks", "attention, closed form", "attention, rehearsed", "gradients")
Table(("", *head), rows, "sent by a rank in one training step of one layer")

# %% [markdown]
# Again exact to the byte. Averaging the gradients, as in data parallelism, sends 3.4 to 3.5 GB, however many positions there are. That happens once
# a step, and DDP can hide it behind backward. What attention sends grows with the positions, and it is sent again for every sequence of the step.
# (Both grow with the number of layers; here there is only one.)
#
# Can we hide that as well? While one block travels, a rank can compute with the block before it. In bf16, a block of $c$ positions takes
# $4 c d$ bytes (keys and values of width $d$), and computing with it takes $4 c^2 d$ FLOPs. If a device does $F$ FLOPs a second and its link
# carries $B$ bytes a second, sending takes no longer than computing when $c \ge F/B$ (Liu et al., section 3). Their table 2 gives this
# smallest $c$ for five devices, at their peak:


# %% tags=["nbval-check-output"]
def hidden_from(flops, bandwidth, kv_share=1, masked=False):
    """Positions of a rank from which on a block travels no longer than it works."""
    return flops / bandwidth * kv_share * (2 if masked else 1)


rows = []
for name, teraflops, gigabytes, in_the_paper in [
    ("A100, NVLink", 312, 300, 1.0),
    ("A100, InfiniBand", 312, 12.5, 24.5),
    ("TPU v3", 123, 112, 1.1),
    ("TPU v4", 275, 268, 1.0),
    ("TPU v5e", 196, 186, 1.1),
]:
    block = hidden_from(teraflops * 1e12, gigabytes * 1e9) / 1e3
    rows.append((name, f"{block:.1f}", f"{in_the_paper:.1f}"))
    assert abs(block - in_the_paper) < max(0.05, 0.02 * in_the_paper)
head = ("device, link", "by the formula", "in the paper")
Table(head, rows, "smallest block, in thousands of positions")

# %% [markdown]
# (For InfiniBand the paper prints 24.5, but 312 / 12.5 is 25.0.)
#
# Our layer of Llama 70B differs from the paper's formula in two ways. Its keys and values are an eighth as wide as its queries, so there is
# less to send. And under a causal mask, a rank computes half as much. The next cell also shows what a key head for each query head would
# change.

# %% tags=["nbval-check-output"]
flops = 400e12  # about what a GPU reached when Llama 3 was trained
links = {"NVLink, 450 GB/s": 450e9, "400 Gbit/s InfiniBand": 50e9}
rows = []
for kv_heads in (8, 64):
    for link, bandwidth in links.items():
        forward = hidden_from(flops, bandwidth, kv_share=kv_heads / 64, masked=True)
        # backward sends three times as much, and computes five products, not two
        backward = forward * 3 / (5 / 2)
        rows.append((str(kv_heads), link, f"{forward:,.0f}", f"{backward:,.0f}"))
        assert (backward < 512) == (kv_heads == 8 and "NVLink" in link)
Table(
    ("key heads", "link", "forward", "backward"),
    rows,
    "positions of a rank from which on sending is hidden",
)

# %% [markdown]
# This is calculated from an assumed rate, not measured: 400 TFLOP/s is a rate of the whole model, and attention alone has another one. With 512
# positions on each rank, sending would be hidden inside a node, thanks to the few key heads, but **not** between nodes. So 131,072 positions
# are too few for 256 ranks.
#
# Llama 3 used 16 ranks for that length, 8,192 positions each (Dubey et al., table 4), and an all_gather of its few keys and values instead of a
# ring. With all keys at hand, other masks are easy as well, such as a *document mask*: a token sees only the document that it belongs to. Our ring
# knows only the causal mask.
#
# (Your ring hides nothing, because it computes nothing while a block travels. To hide the messages, start sending the block that you have, attend
# to it, and only then wait. `_RingAttention` in `workshop/parallel/context.py` does this.)

# %% [markdown]
# ## Tomorrow's script
#
# This script trains with Ulysses, without this workshop. Only the class `Exchange` (twelve lines of code) makes the model parallel: it is the
# exchange from above, now with a backward. (For the ring, PyTorch has `context_parallel` in `torch.distributed.tensor.experimental`, which
# needs a GPU's attention kernels.) The optimizer is SGD, because an update of Adam would hide a gradient that is twice as large as it should be.
#
# `torchrun --nproc-per-node 4 train_context.py` runs the script. If you run it again, it continues from its checkpoint.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_context.pt")

# %% tags=["script"]
# %%torchrun -n 2 --into in_parts --save {folder}/train_context.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")


class Exchange(torch.autograd.Function):
    """Cut along `split`, join along `join`; backward the other way round."""

    @staticmethod
    def forward(ctx, x, split, join):
        ctx.way = split, join
        sent = torch.stack(x.chunk(ranks, split))  # a part for each rank
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent)
        return torch.cat(came.unbind(), join)

    @staticmethod
    def backward(ctx, gradient):
        split, join = ctx.way
        return Exchange.apply(gradient, join, split), None, None


class Attention(nn.Module):
    """Four heads of 16. `here` has this rank's positions, attention all of them."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 3 * 64), nn.Linear(64, 64)

    def forward(self, here):
        qkv = self.qkv(here).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        # from all heads of some positions to some heads of all positions
        q, k, v = (Exchange.apply(t, 1, 2) for t in qkv.unbind())
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mine = Exchange.apply(heads, 2, 1)
        return here + self.out(mine.transpose(1, 2).flatten(2))


torch.manual_seed(0)
model = nn.Sequential(Attention(), Attention(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
inputs = torch.randn(256, 16, 64, generator=torch.Generator().manual_seed(0))
targets = inputs.cumsum(1).mean(dim=-1, keepdim=True)
# all layers but attention treat positions separately, so a rank needs only its own
inputs, targets = (t.chunk(ranks, 1)[rank].to(device) for t in (inputs, targets))
saved, first = Path(os.environ.get("CHECKPOINT", "train_context.pt")), 0
if saved.exists():
    state = torch.load(saved, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

for epoch in range(first, first + 3):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(1, device=device)
    for batch in order.to(device).split(32):  # the same sequences on all ranks
        loss = (model(inputs[batch]) - targets[batch]).square().mean()
        loss.backward()
        # DDP would do this during backward. The mean is right because every rank
        # counts equally many targets; with padding, divide sums by a common count.
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() / 8
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {total.item() / ranks:.3f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, saved)
dist.barrier()  # no rank exits before the file is written
dist.destroy_process_group()

# %% [markdown]
# The same script on one rank, with whole sequences, gives the same losses:

# %%
os.environ["CHECKPOINT"] = str(folder / "alone")
alone = launch.torchrun(launch.Script(folder / "train_context.py"), 1).text
print(alone, end="")
losses = [
    [line for line in text.splitlines() if "epoch" in line]  # GPUs may print warnings
    for text in (alone, in_parts.text)
]
assert len(losses[0]) == 3
assert losses[0] == losses[1]

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("33_context_parallel", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Only attention looks across positions. Cut the sequence, and everything else runs unchanged; the loss and the gradients are averaged, as
#   in data parallelism, if all ranks count equally many targets.
# - **Ring:** keys and values go around, and each rank merges the parts of its softmax by their lse. A rank sends nearly all keys and
#   values, whatever N is.
# - **Ulysses:** one all_to_all swaps positions for heads, and another swaps them back. A rank sends about 1 / N of the four tensors, and
#   each rank needs at least one head.
# - Under a causal mask, give each rank an early run and a late run of positions. Otherwise all ranks wait for the last one.
# - A fused kernel removes the scores. Context parallelism divides everything else that grows with the positions.
#
# Next: [34_experts](34_experts.ipynb) adds parameters without adding FLOPs.
#
# ## Sources
#
# - H. Liu, M. Zaharia, P. Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*, 2023,
#   [arXiv:2310.01889](https://arxiv.org/abs/2310.01889): section 3, table 2.
# - S. A. Jacobs et al., *DeepSpeed Ulysses*, 2023, [arXiv:2309.14509](https://arxiv.org/abs/2309.14509): section 3.2 (4Nh/P).
# - W. Brandon et al., *Striped Attention: Faster Ring Attention for Causal Transformers*, 2023,
#   [arXiv:2311.09431](https://arxiv.org/abs/2311.09431): abstract.
# - M. Milakov, N. Gimelshein, *Online normalizer calculation for softmax*, 2018, [arXiv:1805.02867](https://arxiv.org/abs/1805.02867); T. Dao et
#   al., *FlashAttention*, 2022, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135): algorithm 4, which the backward follows.
# - *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783): section 3.3.2 (2 x CP chunks, all_gather), table 4 (16
#   context ranks; TFLOP/s).
# - NVIDIA Megatron-LM, `megatron/core/utils.py`, `get_batch_on_this_cp_rank`: 2 x CP chunks; PyTorch:
#   `torch/distributed/tensor/experimental/_context_parallel`, "head-tail" (`context_attention(method="torch")` calls it on GPUs).
