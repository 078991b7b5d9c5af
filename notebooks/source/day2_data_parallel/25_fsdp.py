# %% [markdown]
# # Sharding with PyTorch: what to gather at once?
#
# - **You need** `24_zero` (what stage 3 does) and `21_collectives`.
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on CPU (gloo) or on GPUs (NCCL), with the same cells. The cells with 512 ranks are rehearsals.
# - **Model and text:** `TINY` and the reference manual, but with four layers instead of two: a layer is often what is gathered at once, and two
#   layers would make too short a picture. One cell uses the stack of layers from lesson 23, because it did not fit there. The last part uses
#   Llama 7B, because 512 ranks only make sense for a model that needs them.
# - **Links:** before this [24_zero](24_zero.ipynb), after it [26_accelerate](26_accelerate.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# In lesson 24 the training state was cut into N parts, and a library did the cutting for us. PyTorch does it with one function, `fully_shard`,
# and leaves one choice to you: **which modules are gathered at once?** What does a bad choice cost, and how do you notice that you made one?

# %%
# %load_ext workshop
import torch

from workshop import launch, show
from workshop.facts.units import format_bytes
from workshop.exercises import beside
from workshop.launch.device import choose, wants_to_share

folder = launch.Session.get().directory  # private; deleted when the kernel ends
four_ranks = choose(4, torch.accelerator.device_count(), wants_to_share(None))
on_gpus = four_ranks.kind == "cuda"  # one GPU per rank, or all ranks share one

# %% [markdown]
# ## Gathering is a function
#
# A rank holds only its shard of a weight. Before a layer computes, the rank calls `whole = gather(shard)`, and the layer computes with `whole`.
# All ranks use the same whole weight, each on its own part of the batch. After backward, each rank therefore has a gradient of the whole weight.
# What is the gradient of *this rank's shard*?

# %%
# %%guess derivative --choices all_gather,all_reduce,reduce_scatter,broadcast
# Forward is an all_gather. Which collective is its derivative in backward?
...

# %% [markdown]
# ### Exercise: the way back
#
# A gather copies a number to N places. The derivative of a copy is a sum: the gradients that all ranks computed for this shard are added up. The
# loss of the step is the mean of the ranks' losses, so the sum is then divided by N. Write this function:

# %%
# %%exercise gradient_of_shard
import torch
import torch.distributed as dist


def gradient_of_shard(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean over ranks; `gradient` is of the whole."""
    ranks = dist.get_world_size()
    mine = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
    ...
    return mine


# %% [markdown]
# Now we put both directions into one autograd function: forward is the gather, backward is your function. Fully sharded data parallelism is built
# on this pair.


# %%
# %%ranks -n 4 --pass gradient_of_shard
class Gather(torch.autograd.Function):
    """A shard to the whole; backward, its gradients to the shard's mean gradient."""

    @staticmethod
    def forward(ctx, shard):
        parts = [torch.empty_like(shard) for _ in range(world_size)]
        dist.all_gather(parts, shard)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient_of_shard(gradient)


# %% [markdown]
# We compute the gradient of one layer three times: by hand, with PyTorch's `fully_shard`, and in one process that sees the whole batch.

# %%
# %%ranks --into gathered
from torch import nn
from torch.distributed.fsdp import fully_shard

from workshop import report
from workshop.measure import measure

torch.manual_seed(0)
weight, batch = torch.randn(64, 32).to(device), torch.randn(8, 32).to(device)
mine = batch.chunk(world_size)[rank]

shard = weight.chunk(world_size)[rank].clone().requires_grad_()  # by hand
with measure(memory=False) as measured:
    (mine @ Gather.apply(shard).T).square().mean().backward()

layer = nn.Linear(32, 64, bias=False, device=device)  # PyTorch
with torch.no_grad():
    layer.weight.copy_(weight)
fully_shard(layer)
layer(mine).square().mean().backward()

alone = weight.clone().requires_grad_()  # one process, the whole batch
(batch @ alone.T).square().mean().backward()
expected = alone.grad.chunk(world_size)[rank]
torch.testing.assert_close(shard.grad, expected)
torch.testing.assert_close(layer.weight.grad.to_local(), expected)
report(used=[row.name for row in measured.traffic], kind=type(layer.weight).__name__)

# %%
assert sorted(gathered[0].used) == ["all_gather", "reduce_scatter"]
print("by hand, fully_shard and one process: the same gradient of each rank's shard")
beside("derivative", measured=gathered[0].used[-1])

# %% [markdown]
# `fully_shard` adds two things to the version by hand. It saves memory: the whole weight is dropped after forward, and gathered again for backward.
# It saves time: the next layer is gathered while this one computes. The layer is still a `Linear`, but its weight is now a `DTensor`, a tensor that
# knows that it is one part of four. (`HandSharded` in `workshop/parallel/fsdp.py` puts `Gather` around any module, in 50 lines.)
#
# ## The model that did not fit
#
# In lesson 23, eight layers of width 768 did not fit into 64 MiB, on any number of ranks. Here we train them under `fully_shard`. Each layer is
# sharded as soon as it is made, so that the whole model never exists on any rank.

# %%
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from workshop.facts.tabular import Table

WIDTH, DEPTH, CAP = (8_192, 8, 8 * 2**30) if on_gpus else (768, 8, 64 * 2**20)


def sharded_layer(width, device):
    """A linear layer, made alike on all ranks and then cut."""
    layer = nn.Linear(width, width, device=device)
    for parameter in layer.parameters():
        dist.broadcast(parameter.detach(), 0)  # fully_shard does not sync weights
    return fully_shard(layer)


# %%
# %%torchrun -n 4 --device-memory {CAP} --pass sharded_layer,WIDTH,DEPTH --into fits
import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from workshop import report
from workshop.measure import count_from_here, held_bytes

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(dist.get_rank())
count_from_here()


def train():
    layers = [sharded_layer(WIDTH, device) for _ in range(DEPTH)]
    model = fully_shard(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.randn(4, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    time.sleep(0.05)  # gloo's threads free their copies a moment late
    weight = model[0].weight
    report(held=held_bytes(), cut=weight.placements[0].dim)
    report(local=list(weight.to_local().shape))


train()
gc.collect()
dist.destroy_process_group()

# %%
P = DEPTH * (WIDTH * WIDTH + WIDTH)
predicted = 12 * P // 4  # weights and two moments, 4 bytes each; gradients are gone
held, (height, width) = fits[0].held, fits[0].local
print(f"of {WIDTH} x {WIDTH} weights, a rank holds {height} x {width}:", end=" ")
print(f"Shard(dim={fits[0].cut})")
assert (height, width) == (WIDTH // 4, WIDTH)
assert abs(held / predicted - 1) < 0.01
rows = [
    ("fully_shard", f"{predicted / 1e6:.2f} MB", f"{held / 1e6:.2f} MB"),
    ("DDP, with its buckets", f"{16 * P / 1e6:.2f} MB", "-"),
]
Table(("between steps, a rank holds", "predicted", "measured"), rows)

# %% [markdown]
# ## Predict: which modules are units?
#
# A *unit* is what is gathered at once. In our GPT you could make a unit of
#
# - **nothing but the model** ("root"): there is one unit;
# - **each layer** ("layers");
# - **every linear map** ("every-linear"): seven in each layer, and the head.
#
# Parameters outside all of these units belong to the root, and the root stays gathered from the start of forward to the end of backward. Let $P$ be
# the bytes of all weights, and $R$ the bytes of those in the root. In one step each rank sends, and receives, (N - 1)/N times
#
# $$\underbrace{R + 2\,(P - R)}_{\text{gathers}} + \underbrace{P}_{\text{reduce-scatter}}$$
#
# In code, a wrapping policy is a loop over the modules that calls `fully_shard` on each unit, the innermost first:
#
# ```python
# for layer in model.model.layers:
#     fully_shard(layer)
# fully_shard(model)  # the rest
# ```

# %%
# %%guess lowest_peak --choices root,layers,every-linear
# Which of the three has the lowest peak of memory?
...

# %% [markdown]
# ## Run
#
# `shard_model` runs this loop for any policy, after a broadcast that gives all ranks the same weights. It is one function, so that we can vary one
# choice at a time. Each variant trains `TINY` with four layers on four ranks. We compare its losses with those of a single process that has the same
# global batch. All ranks do the same work, so we measure only one of them.

# %%
wraps = {
    "root": {"wrap": "root"},
    "layers": {},
    "every linear": {"wrap": "every-linear"},
}
choices = {
    "keep weights": {"reshard": False},
    "keep in pairs": {"reshard": 2},
    "prefetch 2": {"prefetch": 2},
    "bf16": {"precision": "fsdp-bf16"},
    "offload": {"offload": True},
}


# %% [markdown]
# Model, text and training loop are those of lesson 22. These ranks stay alive for the cells that follow:

# %%
# %%ranks
from contextlib import nullcontext
from dataclasses import replace

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

four_layers = replace(TINY, num_layers=4)
mine = TextBatches(seq_len=32, global_batch=4, rank=rank, num_ranks=world_size)


def fresh_model(seed):
    torch.manual_seed(seed)
    return GPT(four_layers).to(device)


def train(model, text, steps=2):  # the second depends on the first one's update
    """Losses, step by step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for step in range(steps):
        loss = model(*next(text.step(step, device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
    return torch.stack(losses)


# %% [markdown]
# For each variant, the next cell cuts the model, trains it and measures rank 0. `shard_by_hand` puts `Gather` from above around each layer.

# %%
# %%ranks --pass wraps,choices --into tried
import gc

from workshop.measure import count_from_here
from workshop.parallel.fsdp import shard_by_hand, shard_model


def variant(shard):
    """Mean losses over ranks, and what rank 0 measured."""
    gc.collect()
    model = shard(fresh_model(rank))  # `shard` makes the ranks' weights equal
    with measure(model) if rank == 0 else nullcontext() as measured:
        losses = train(model, mine)
    dist.all_reduce(losses)
    return {"losses": (losses / world_size).tolist(), "measured": measured}


whole = TextBatches(seq_len=32, global_batch=4)
if rank == 0:
    report(alone=train(fresh_model(0), whole).tolist())
count_from_here()
report(**{"by hand": variant(shard_by_hand)})
for name, how in {**wraps, **choices}.items():
    report(**{name: variant(lambda model: shard_model(model, **how))})

# %% [markdown]
# ## Compare: the losses

# %% tags=["nbval-check-output"]
variants, rows = tried[0], []
for name in ("by hand", *wraps, *choices):
    pairs = zip(variants[name]["losses"], variants.alone, strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    allowed = 0.02 if name == "bf16" else 1e-5
    assert worst < allowed, (name, worst)
    rows.append((name, "0.02" if name == "bf16" else "0.00001"))
Table(("variant", "its losses are those of a single process, to"), rows)

# %% [markdown]
# For bf16 the cell only requires an agreement to 0.02, because bf16 is no more precise than that here. Eight significant bits mean a rounding error
# of up to 0.4 %, and 0.4 % of a loss near 5 is 0.02.
#
# ## Compare: three wraps

# %%
hidden, kv, inner, vocabulary, num_layers, N = 64, 2 * 16, 192, 256, 4, 4
maps = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner
layer = 4 * (maps + 2 * hidden)  # bytes: seven linear maps and two norms
ends = 4 * (2 * vocabulary * hidden + hidden)  # embedding, head and last norm
P = num_layers * layer + ends
embedding = head = 4 * vocabulary * hidden
norms = 4 * (2 * num_layers + 1) * hidden
in_root = {"root": P, "layers": ends, "every linear": embedding + norms}
largest = {"root": P, "layers": layer, "every linear": head}
counts = {}

# %%
peaks, rows = {}, []
for name in wraps:
    measured = variants[name]["measured"]
    gathers = next(row for row in measured.traffic if row.name == "all_gather")
    kinds = ("all_gather", "reduce_scatter")
    sent = sum(row.wire_bytes for row in measured.traffic if row.name in kinds)
    expected = (N - 1) / N * (in_root[name] + 2 * (P - in_root[name]) + P)
    counts[name] = gathers.count
    peaks[name] = measured.memory.peak_bytes
    sizes = (largest[name], peaks[name], expected, sent)
    rows.append((name, f"{gathers.count}", *map(format_bytes, sizes)))
    assert abs(sent / expected - 1) < 0.002, (sent, expected)
assert counts == {"root": 1, "layers": 2 * 4 + 1, "every linear": 2 * (4 * 7 + 1) + 1}
assert peaks["every linear"] <= peaks["layers"] < peaks["root"]
head = ("units", "gathers", "largest unit", "peak", "sent: predicted", "measured")
display(Table(head, rows))
beside("lowest_peak", measured=min(peaks, key=peaks.get).replace(" ", "-"))

# %% [markdown]
# The memory pictures show why the peaks differ. First the model as **one unit**. Look at the gathered weights: all of them are in memory from the
# first moment of forward to the last of backward. (The yellow area in forward is the flat tensor in which the weights arrived. In backward it is the
# whole gradients, before they are reduced.)

# %%
show.memory_timeline(variants["root"]["measured"])

# %% [markdown]
# The second picture has **a unit for each layer**. The root stays from forward to backward. On top of it, gathered weights come and go, layer by
# layer.

# %%
show.memory_timeline(variants["layers"]["measured"])

# %% [markdown]
# *Every linear* needs even less memory, but it makes more than six times as many gathers: 59 instead of 9. Each of them pays a start-up time, and a
# small message pays little else: in lesson 21, the knee of eight H200 lay at 4.5 MiB.
#
# ### Exercise: find the wrong wrap
#
# A colleague's `is_unit` says yes to `Attention` and to `Linear`. The model trains correctly, but slowly. Repair the function.


# %%
# %%exercise is_unit
def is_unit(module) -> bool:
    """Whether a module of our GPT is a unit of its own."""
    kind = type(module).__name__
    return ...  # this was: kind in ("Attention", "Linear")


# %% [markdown]
# The next cell uses your `is_unit` on the model of the table above. It should make as many gathers as the row *layers*:

# %%
# %%ranks --pass is_unit --into yours
model = fresh_model(0)  # the same weights on all ranks
for module in reversed(list(model.modules())):  # the innermost first
    if module is not model and is_unit(module):
        fully_shard(module)
fully_shard(model, reshard_after_forward=False)
with measure(memory=False) as measured:
    train(model, mine)
report(gathers=sum(row.count for row in measured.traffic if row.name == "all_gather"))

# %%
rows = variants["layers"]["measured"].traffic
wanted = sum(row.count for row in rows if row.name == "all_gather")
print(f"gathers in a step: {yours[0].gathers}, with a unit for each layer {wanted}")
assert yours[0].gathers == wanted

# %% [markdown]
# ## Compare: the other choices
#
# All of these variants have a unit for each layer:
#
# - **keep weights** (`reshard_after_forward=False`): the weights that were gathered for forward stay until backward. There is no second gather, but
#   after forward all weights are whole. The traffic is that of ZeRO-2.
# - **keep in pairs** (`reshard_after_forward=2`): between forward and backward, each weight is spread over a pair of ranks only. On a cluster you
#   would take a node instead of a pair, so that the gathers of backward stay inside the node.
# - **prefetch 2** (`set_modules_to_forward_prefetch`, and the same for backward): two layers are gathered ahead, not one. This helps where layers
#   take unequal times, and costs memory for one more layer.
# - **bf16** (`mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`): gathers are in 16 bits. Shards, the sum of
#   the gradients and the optimizer stay in fp32.
# - **offload** (`offload_policy=CPUOffloadPolicy()`): shards, gradients and moments lie in the host's memory. (On a CPU, host
#   and device are the same, so nothing is saved.)

# %%
by_name, rows = {}, []
for name in ("layers", *choices):
    measured = variants[name]["measured"]
    collectives = [row for row in measured.traffic if row.name in kinds]
    sent = sum(row.wire_bytes for row in collectives)
    over = {4: 0, 2: 0}
    for row in collectives:
        over[row.group_size] += row.count if row.name == "all_gather" else 0
    by_name[name] = (measured.memory.peak_bytes, sent)
    counts = [f"{count or '-'}" for count in over.values()]
    rows.append((name, *map(format_bytes, by_name[name]), *counts))
kept = by_name["keep weights"][1]
assert kept < by_name["layers"][1] < 1.6 * kept
assert by_name["bf16"][1] < 0.8 * by_name["layers"][1]
Table(("", "peak", "sent", "gathers over 4 ranks", "over 2 ranks"), rows)

# %% [markdown]
# The first three rows show the trade-off: the less memory a variant needs, the more bytes it sends. So do not ask which row saves most memory. Ask
# which row sends least **among those that fit**. The next cell finds it for the rows in fp32 (bf16 would win in both cases), first under a generous
# memory limit, and then under a limit that is just too small to keep all weights:

# %%
in_fp32 = {name: costs for name, costs in by_name.items() if name != "bf16"}
enough = by_name["keep weights"][0]  # bytes
limits, best = {"1 GiB": 2**30, f"just under {format_bytes(enough)}": enough - 1}, []
for cap in limits.values():
    fitting = [
        (sent, peak, name) for name, (peak, sent) in in_fp32.items() if peak <= cap
    ]
    best.append(min(fitting)[-1])
assert best == ["keep weights", "keep in pairs"]
Table(("memory limit", "sends least"), list(zip(limits, best, strict=True)))

# %% [markdown]
# ## When is a gather hidden?
#
# `fully_shard` gathers the next layer while the current one computes. This is called *prefetch*. When does each gather begin, and when each layer?
#
# - A gather waits for the gather before it, because both use the same wire. It also waits for room: with a prefetch of 1, only one gathered layer
#   may wait beside the one that computes.
# - A layer waits for its own gather and for the layer before it.


# %%
def forward_times(gather, computes, prefetch):
    """(begin, end) of each gather and of each layer, in seconds."""
    gathers, layers = [], []
    for number, compute in enumerate(computes):
        begin = gathers[-1][1] if gathers else 0.0
        if number > prefetch:  # room for the layer at work and the prefetched ones
            begin = max(begin, layers[number - 1 - prefetch][1])
        gathers.append((begin, begin + gather))
        begin = max(gathers[-1][1], layers[-1][1] if layers else 0.0)
        layers.append((begin, begin + compute))
    return gathers, layers


# %% [markdown]
# Does a running program follow this schedule? Below is a simulation: eight layers really compute, for about 20 ms each, but nothing is sent. A second
# thread plays the wire, and a gather is 20 ms of sleep on it. The program requests a layer's weights `prefetch` layers ahead.

# %%
# %%guess forward_ms --unit ms
# Eight layers of 20 ms each, with a gather of 20 ms before each. Without prefetch,
# this takes 320 ms. How long does it take with a prefetch of 1?
...

# %%
import time
from concurrent.futures import ThreadPoolExecutor

LAYERS, WIRE, COMPUTE = 8, 0.02, 0.02
matrix = torch.randn(64, 64)


def clocked_forward(prefetch):
    """Seconds of the whole forward, and of each layer's own computing."""
    start, gathers, computes = time.perf_counter(), [], []
    with ThreadPoolExecutor(1) as wire:
        for number in range(LAYERS):
            while len(gathers) < min(number + 1 + prefetch, LAYERS):
                gathers.append(wire.submit(time.sleep, WIRE))
            gathers[number].result()  # this layer's weights have arrived
            begin = time.perf_counter()
            while time.perf_counter() < begin + COMPUTE:
                (matrix @ matrix).trace().item()  # item() waits for the product
            computes.append(time.perf_counter() - begin)
        return time.perf_counter() - start, computes


clocked, rows = {}, []
for prefetch in (0, 1):
    tries = [clocked_forward(prefetch) for _ in range(3)]  # one may hit a busy moment
    clocked[prefetch], computes = min(tries)
    expected = forward_times(WIRE, computes, prefetch)[1][-1][1]
    times = [f"{1e3 * seconds:.0f} ms" for seconds in (expected, clocked[prefetch])]
    rows.append((f"{prefetch}", *times))
    assert 0.6 < expected / clocked[prefetch] < 1.05
assert clocked[1] < 0.8 * clocked[0]
display(Table(("prefetch", "forward: predicted", "clocked"), rows))
planned = forward_times(WIRE, LAYERS * [COMPUTE], 1)[1][-1][1]
beside("forward_ms", predicted=1e3 * planned, measured=1e3 * clocked[1])

# %% [markdown]
# The forward pass takes nine times 20 ms: the first gather takes 20 ms, and then the wire and the layers work at the same time. This only works if
# a layer computes for at least as long as a gather takes. A layer of $p$ weights in bf16 puts $2p$ bytes on the wire, and needs $2p$ FLOPs for each
# token in forward.

# %%
# %%guess tokens_to_hide
# A GPU computes 400 TFLOP/s and receives 50 GB/s. With how many tokens per rank
# does computing a layer take as long as gathering it? Does the layer's size matter?
...

# %% [markdown]
# Move the sliders. Without prefetch, each layer waits for its own gather. With prefetch and enough tokens, only the first gather is exposed.
# (On a web page you see the picture of the first values.)

# %%
FLOPS, LAYER = 400e12, 202_383_360  # one layer of Llama 7B; eight are drawn


def llama_times(tokens, gb_per_second, prefetch, layers_take="equal times"):
    """forward_times of eight layers of Llama 7B."""
    even, odd = (1, 1) if layers_take == "equal times" else (1.5, 0.5)
    mean = 2 * LAYER * tokens / FLOPS
    computes = [mean * (odd if number % 2 else even) for number in range(LAYERS)]
    return forward_times(10e-6 + 2 * LAYER / (gb_per_second * 1e9), computes, prefetch)


# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure, rank_colour


def forward_picture(tokens, gb_per_second, prefetch, layers_take):
    """Gathers above, layers below, over time."""
    figure, axis = new_figure(7.4, 2.2)
    rows = llama_times(tokens, gb_per_second, prefetch, layers_take)
    for place, spans in enumerate(rows):
        for number, (begin, end) in enumerate(spans):
            style = {"color": rank_colour(number), "edgecolor": "white"}
            axis.barh(place, 1e3 * (end - begin), 0.7, left=1e3 * begin, **style)
    total, busy = rows[1][-1][1], 2 * LAYER * tokens / FLOPS * LAYERS
    axis.set_yticks((0, 1), ("gather", "compute"))
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds; each color is a layer")
    share = f"computing {busy / total:.0%} of the time"
    title = f"{tokens:,} tokens, {gb_per_second} GB/s, prefetch {prefetch}: {share}"
    axis.set_title(title, fontsize=9)
    return Picture(figure, share)


controls = [
    Control("tokens", 4_096, (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)),
    Control("gb_per_second", 50, (12, 25, 50, 100, 450)),
    Control("prefetch", 1, (0, 1, 2)),
    Control("layers_take", "equal times", ("equal times", "unequal times")),
]
explore(forward_picture, controls)


# %%
def exposed(tokens, prefetch, gb_per_second=50, layers_take="equal times"):
    """Share of forward in which nothing is computed."""
    layers = llama_times(tokens, gb_per_second, prefetch, layers_take)[1]
    return 1 - 2 * LAYER * tokens / FLOPS * LAYERS / layers[-1][1]


rows = []
for tokens in (2_048, 8_192, 32_768):
    shares = [exposed(tokens, prefetch) for prefetch in (0, 1, 2)]
    rows.append((f"{tokens:,}", "equal", *(f"{share:.0%}" for share in shares)))
assert exposed(32_768, 1) < 0.05 < exposed(32_768, 0)
assert abs(exposed(2_048, 2) - exposed(2_048, 1)) < 0.01, "a slow wire stays slow"
uneven = [exposed(8_192, ahead, layers_take="unequal times") for ahead in (0, 1, 2)]
rows.append(("8,192", "unequal", *(f"{share:.0%}" for share in uneven)))
assert uneven[2] < 0.6 * uneven[1], "here the second one ahead helps"
head = ("tokens a rank", "layers take", "without prefetch", "one ahead", "two ahead")
display(Table(head, rows, "Share of forward in which nothing is computed"))
beside("tokens_to_hide", calculated=FLOPS / 50e9)

# %% [markdown]
# The layer's size cancels. With $t$ tokens, a device of $F$ FLOPs per second computes a layer in $2pt / F$ seconds, and a wire of $\beta$ bytes per
# second gathers it in $2p / \beta$. The two are equal at $t = F / \beta$, which is 8,000 tokens here. If the wire is too slow, more prefetch does not
# help; more tokens a rank or a faster wire do. More prefetch helps where layers take unequal times, as in the last row, where every other layer takes
# three times as long as its neighbors.
#
# Backward needs more tokens. There the same wire carries a gather of $2p$ bytes and a reduce-scatter of $4p$, if gradients are summed in fp32, while
# the layer computes $4pt$ FLOPs. Both are hidden from $t = 1.5\, F / \beta$ on. (With recomputation, backward computes $6pt$, and $F / \beta$ is
# enough again.)
#
# ## Accumulation and clipping
#
# Every real training loop accumulates and clips gradients, and both look different with sharded models:
#
# - **Accumulation**: DDP has `no_sync()`, and a sharded model has `set_requires_gradient_sync(False)`. With it, a rank keeps *whole* gradients until
#   the last micro-batch.
# - **Clipping**: the norm has to include the parts of all ranks. `clip_grad_norm_` does this, because the gradients are DTensors.

# %%
# %%ranks --into loops
whole = TextBatches(seq_len=32, global_batch=4 * world_size)
micro = replace(whole, rank=rank, num_ranks=world_size, accumulation=4)


def sharded():
    model = fresh_model(0)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def step(model, whole_gradients):
    """Four micro-batches; the gradient's norm before clipping."""
    for number, (tokens, targets) in enumerate(micro.step(0, device), 1):
        if whole_gradients:
            model.set_requires_gradient_sync(number == 4)
        (model(tokens, targets) / 4).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    return norm.full_tensor().item()


for name in ("each time", "at the end"):
    gc.collect()
    with measure() as measured:
        norm = step(sharded(), name == "at the end")
    sent = {row.name: row.wire_bytes for row in measured.traffic}
    peak = measured.memory.peak_bytes
    report(**{name: {"norm": norm, "sent": sent, "peak": peak}})
alone = fresh_model(0)
alone(*next(whole.step(0, device))).backward()
report(alone=torch.nn.utils.clip_grad_norm_(alone.parameters(), max_norm=1.0).item())

# %%
each, end = loops[0]["each time"], loops[0]["at the end"]
totals, rows = [], []
for name, loop in (("each time", each), ("at the end", end)):
    gathers, sums = (loop["sent"][kind] for kind in kinds)
    totals.append(gathers + sums)
    sizes = (gathers, sums, totals[-1], loop["peak"])
    norm = loop["norm"]
    rows.append((name, *map(format_bytes, sizes), f"{norm:.5f}"))
    assert abs(norm / loops[0].alone - 1) < 1e-4
assert each["sent"]["reduce_scatter"] == 4 * end["sent"]["reduce_scatter"]
assert 0.2 < 1 - totals[1] / totals[0] < 0.3, "a quarter less"
assert end["peak"] > each["peak"]
print(f"one process with the whole batch: norm {loops[0].alone:.5f}")
Table(("reduced", "gathers", "sums of gradients", "together", "peak", "norm"), rows)

# %% [markdown]
# When gradients are reduced only at the end, a rank sends a quarter of the gradients' bytes, but has to hold whole gradients. For 8 billion
# parameters these would take 32 GB, because with `reduce_dtype=float32` they are accumulated in fp32. The total falls by about a quarter only: every
# micro-batch still gathers the weights. `set_reshard_after_backward(False)` saves the next micro-batch's gathers for forward, and keeps weights
# whole in between.
#
# ## Compile, and recompute
#
# Both work layer by layer, and you choose them before the model is sharded: `layer.compile()` compiles one layer, and `model.model.recompute = True`
# turns on activation checkpointing for all layers. `torch.compile` needs a C++ compiler. On GPUs it uses Triton, which calls a C compiler as well. If
# there is none here, the cell tells you and continues. The first step takes seconds, because the compiler runs in it. To keep that short, `TINY` has
# one layer here.

# %%
import os
import shutil
import sys

usual = "clang++" if sys.platform == "darwin" else "g++"
can_compile = bool(shutil.which(os.environ.get("CXX", usual)))  # as Inductor does

# %%
# %ranks stop

# %%
# %%torchrun -n 2 --pass can_compile --into compiled
import gc
from dataclasses import replace

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches
from workshop.parallel.fsdp import shard_model

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
mine = TextBatches(16, 4, dist.get_rank(), 2)


def train(compile_layers):
    torch.manual_seed(0)
    model, losses = GPT(replace(TINY, num_layers=1)).to(device), []
    model.model.recompute = True
    for layer in model.model.layers if compile_layers else ():
        layer.compile()
    shard_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = model(*next(mine.step(step, device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


report(eager=train(False), compiled=train(True) if can_compile else None)
gc.collect()
dist.destroy_process_group()

# %%
if compiled[0].compiled is None:
    print("no C++ compiler here: torch.compile was left out")
else:
    pairs = zip(compiled[0].eager, compiled[0].compiled, strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    print("compiled and eager losses agree to 1e-5")
    assert worst < 1e-5, worst

# %% [markdown]
# ## Saved on four ranks, loaded on two
#
# A sharded model is saved in shards: every rank writes its own parts, and one file says where each part is. The number of ranks may therefore change
# between runs. Below, four ranks train four steps and save after the second. Then two ranks load that checkpoint and run the last two steps. The
# global batch stays the same, so the losses should be the same.

# %%
import os

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

checkpoint = folder / "checkpoint"


def save(step, model, optimizer):
    """Every rank writes its parts."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": step}
    dcp.save(state, checkpoint_id=checkpoint)


def load(model, optimizer):
    """In place, cut for this number of ranks; the step to go on with."""
    if not (checkpoint / ".metadata").exists():  # this file is written last
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=checkpoint)
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]


# %%
# %%torchrun -n 4 --pass save,load --into four --save {folder}/resume.py
import gc

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches
from workshop.parallel.fsdp import shard_model

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
mine = TextBatches(32, 4, rank, world_size)


def train():
    torch.manual_seed(10 * world_size + rank)
    model, losses = shard_model(GPT(TINY).to(device)), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(load(model, optimizer), 4):
        loss = model(*next(mine.step(step, device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[step] = loss.item()
        if step == 1:
            save(step + 1, model, optimizer)
    report(losses=losses)


train()
gc.collect()
dist.destroy_process_group()

# %%
two = launch.torchrun(launch.Script(folder / "resume.py"), 2)

# %%
assert list(two[0].losses) == [2, 3], "two steps were left"
rows = []
for step in (2, 3):
    on_four = sum(four[rank].losses[step] for rank in range(4)) / 4
    on_two = sum(two[rank].losses[step] for rank in range(2)) / 2
    rows.append((f"{step}", f"{on_four:.5f}", f"{on_two:.5f}"))
    assert abs(on_four - on_two) < 1e-5
Table(("step", "loss on four ranks", "on two, resumed"), rows)

# %% [markdown]
# In `workshop.train` the class `Checkpoints` does this. It also survives a save that is killed halfway.
#
# ## At scale
#
# Now we rehearse Llama 7B in bf16 as one of 512 ranks, with a unit for each layer and one sequence of 2,048 tokens a rank. The model is created on
# the meta device, where parameters have shapes but no bytes. `cut` says how the 512 ranks are arranged: in one row, or as a mesh of 64 x 8, in
# which the model is replicated 64 times and each replica is sharded over 8 ranks. (We rehearse both now, and discuss the second one further below.)


# %%
def llama_steps(cut):
    """Two steps of Llama 7B, sharded over the last axis of a mesh."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from workshop.facts import catalogue
    from workshop.models.from_spec import gpt_config
    from workshop.models.gpt import GPT
    from workshop.parallel.fsdp import shard_model

    def initialise(module):
        for parameter in module.parameters(recurse=False):
            torch.nn.init.normal_(parameter, std=0.02)

    kind = (torch.accelerator.current_accelerator(True) or torch.device("cpu")).type
    names = ("replicate", "shard")[-len(cut) :]
    mesh = init_device_mesh(kind, tuple(cut), mesh_dim_names=names)
    with torch.device("meta"):
        model = GPT(gpt_config(catalogue.model("llama-7b")))
    model.model.recompute = True
    shard_model(model, mesh, precision="fsdp-bf16", initialise=initialise)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(model.config.vocab_size, (1, 2_048))
    for _ in range(2):
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


# %%
from workshop.rehearse import rehearse

with ThreadPoolExecutor(2) as pool:  # side by side
    cuts = ([512], [64, 8])
    rehearsals = pool.map(
        lambda cut: rehearse(llama_steps, 512, arguments=(cut,)), cuts
    )
    flat, hybrid = rehearsals

# %% [markdown]
# We compare the rehearsal with two predictions. The first is the closed form for the traffic: gathers in 2 bytes, the sum of the gradients in 4, and
# the root gathered once. It needs one detail: `fully_shard` cuts each weight along its first dimension, and neither 11,008 nor 32,000 rows are
# divisible by 512, so they are padded to 11,264 and 32,256. The second is `predict_memory`, which computes the peak from formulas alone, without
# running this program.

# %%
from dataclasses import replace

from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

llama, N = catalogue.model("llama-7b"), 512


def padded(rows: int) -> int:
    """Rows as they travel: a multiple of the number of ranks."""
    return -(-rows // N) * N


h, inner, words = llama.hidden_size, llama.ffn_hidden_size, llama.vocab_size
one_layer = (4 * h + 2 * padded(inner)) * h + h * inner + 2 * h
root = 2 * padded(words) * h + h
count = llama.num_layers * one_layer + root
expected = (N - 1) / N * (2 * (root + 2 * (count - root)) + 4 * count)
sent = sum(row.wire_bytes for row in flat.traffic)
rows = [("sent", f"{expected / 1e9:.2f} GB", f"{sent / 1e9:.2f} GB")]
assert abs(sent / expected - 1) < 0.001

how = replace(implementation("torch"), norm="eager", step_room=0.0)
layout = Layout(shard=N, zero=3, recompute="full", precision="fsdp-bf16")
run = Run(llama, f"{N}xH100", layout, 1, 2_048, implementation=how)
predicted = predict_memory(run)
expected_peak, peak = predicted.peak_bytes, flat.peak_bytes
rows.append(("peak", f"{expected_peak / 1e9:.2f} GB", f"{peak / 1e9:.2f} GB"))
assert abs(expected_peak / peak - 1) < 0.1
display(Table(("", "predicted", "rehearsed"), rows, "One of 512 ranks, Llama 7B"))
show.memory_by_part({"predicted": predicted, "rehearsed": flat})

# %% [markdown]
# With DDP, seven billion parameters need 108 GB. Here a rank holds 0.2 GB of state. It also needs memory for the layers at work, the root and the
# logits.
#
# The two totals agree to a tenth, but their parts do not, because the two count differently. The rehearsal counts a layer's whole gradients as
# temporaries until they are reduced, and at its peak the root and one layer are gathered. The prediction counts these gradients as gradients. It
# also takes three layers as gathered beside the root, because a GPU fetches the next layers while one computes.
#
# ### What a cluster measured
#
# torchtitan, PyTorch's own trainer, is built on `fully_shard`. Its authors
# [published](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)
# the peak memory of Llama 3.1 8B on 8 GPUs and on 128, each time with two sequences of 8,192 tokens a GPU (tables 1 and 3). Weights, gradients and
# both moments are in fp32.

# %%
# %%guess on_128 --unit GiB
# On 8 GPUs, each GPU needs 82.4 GiB at its peak. How much does each of 128 need?
...

# %%
from workshop.facts.published import published_table

num_params = catalogue.model("llama-3.1-8b").num_params
saved = 16 * num_params * (1 / 8 - 1 / 128) / 2**30
peaks_of, rows = {}, []
for row in published_table("torchtitan_performance"):
    if row["model"] == "Llama3.1-8B" and row["local_batch_size_seqs"] == "2":
        case = row["compile"], row["float8"]
        peaks_of.setdefault(case, []).append(float(row["peak_memory_GiB"]))
for (compiled, in_8_bits), (on_8, on_128) in peaks_of.items():
    kind = "plain" if compiled == "0" else "compiled" + ", fp8" * (in_8_bits == "1")
    sizes = (on_8, on_128, on_8 - on_128, saved)
    rows.append((kind, *(f"{size:.1f} GiB" for size in sizes)))
    assert 0.9 < saved / (on_8 - on_128) < 1
head = ("Llama 3.1 8B", "peak on 8 GPUs", "on 128", "less", "less: predicted")
display(Table(head, rows))
on_8, on_128 = peaks_of["0", "0"]
beside("on_128", predicted=on_8 - saved, measured=on_128)

# %% [markdown]
# Sixteen times as many GPUs lower the peak by less than a fifth. N only divides the state, which is 16 bytes a parameter: each of 8 GPUs held 15
# GiB of it, and each of 128 GPUs holds one. Activations, logits and the gathered layers do not shrink. (The formula misses at most a tenth of the
# saving. The table shows what PyTorch's allocator reserved, which is more than the tensors take.)
#
# ### Shard inside a node
#
# With one ring over 512 ranks, the gathers of every layer cross many nodes. **Hybrid sharding** (HSDP) shards inside a node, over fast links, and
# replicates across nodes: this is the mesh of 64 x 8. Each rank holds more state. In return, no layer waits for another node: only gradients cross
# between nodes, once a step, while backward runs. Here are both rehearsals side by side, the flat ring and the hybrid:

# %%
show.traffic_table({"flat": flat, "hybrid": hybrid})

# %%
crossing = [row for row in hybrid.traffic if row.axis == "replicate"]
far = sum(row.wire_bytes for row in crossing)
calls = [sum(row.count for row in rows) for rows in (flat.traffic, crossing)]
peaks = (flat.peak_bytes, hybrid.peak_bytes)
# in a flat ring one rank in eight sends to another node; with 64 x 8, all eight do
leaves = (sent, 8 * far)
assert abs(far / (2 * 63 / 64 * 4 * llama.num_params / 8) - 1) < 0.01
assert abs(leaves[1] / leaves[0] - 1) < 0.02
assert calls == [98, 33], "two gathers a layer, sums, the root; sums alone"
assert abs(peaks[1] - peaks[0] - 12.5e9) < 0.5e9
rows = [
    ("a node sends to others", *(f"{size / 1e9:.1f} GB" for size in leaves)),
    ("collectives across nodes", *map(str, calls)),
    ("ranks in each of them", "512", "64"),
    ("peak of a rank", *(f"{size / 1e9:.1f} GB" for size in peaks)),
]
Table(("", "flat: 512", "hybrid: 64 x 8"), rows)

# %% [markdown]
# A node's network cards carry as many bytes as before. What changes is *when* they carry them: the gathers, for which a layer has to wait, stay
# inside the node. Each rank takes part in only a third as many collectives that cross between nodes, and each of these has 64 ranks instead of 512.
# With gradient accumulation, moreover, only the last micro-batch has to cross (`set_requires_all_reduce`). The price is twelve and a half gigabytes
# a rank.
#
# Zhao et al. count the traffic in a different way (3.2.2). Take M bytes of weights, all of one type, and W ranks with G of them in a node. In their
# count each GPU sends to other hosts $2M\,\frac{W-1}{W}$ when the model is replicated, $3M\,\frac{W-1}{W}$ when it is sharded, and
# $2M\,\frac{W-1}{GW}$ when it is hybrid:

# %% tags=["nbval-check-output"]
M, W, G = 4 * llama.num_params, 512, 8
paper = {
    "replicated": 2 * M * (W - 1) / W,
    "sharded": 3 * M * (W - 1) / W,
    "hybrid": 2 * M * (W - 1) / (G * W),
}
rows = [(name, f"{size / 1e9:.2f} GB", "-") for name, size in paper.items()]
rows[-1] = ("hybrid", f"{paper['hybrid'] / 1e9:.2f} GB", f"{far / 1e9:.2f} GB")
assert abs(far / paper["hybrid"] - 1) < 0.02
Table(("a GPU sends to other hosts", "by the paper's formula", "rehearsed"), rows)

# %% [markdown]
# For hybrid sharding, the formula and the rehearsal agree. For full sharding, the paper counts every byte as leaving the host. But in a ring that
# visits each node once, seven of eight ranks send to a neighbor in their own node. So where the paper sees "a drastic reduction", a *node* in a ring
# sends as much as before.
#
# ## Tomorrow's script
#
# This script uses `fully_shard`, also called FSDP2 (FSDP1 is the older class `FullyShardedDataParallel`), without this workshop: units, mixed
# precision, accumulation, clipping, and a checkpoint that any number of ranks can load. `torchrun --nproc-per-node 8 train_fsdp.py` runs it. Each
# rank makes the whole model in the host's memory, and `fully_shard` moves one unit after the other to the GPU. A model that is too large for the host
# is made on the meta device, as above.

# %%
os.environ["CHECKPOINT"] = str(folder / "train_fsdp")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_fsdp.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group()
device, policy = torch.device("cpu"), MixedPrecisionPolicy()
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
    kinds = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(**kinds)

inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) / 8)
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
torch.manual_seed(0)  # fully_shard does not copy rank 0's weights to the others
nn = torch.nn
blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(2)]
model = nn.Sequential(*blocks, nn.Linear(64, 1))  # on the CPU; a GPU gets parts
for block in model[:-1]:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # after sharding
saved, first, accumulation = Path(os.environ.get("CHECKPOINT", "train_fsdp")), 0, 2
whole = [int(path.parent.name) for path in saved.glob("*/.metadata")]  # written last
if whole:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=saved / str(max(whole)))
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = max(whole) + 1

for epoch in range(first, first + 3):
    sampler.set_epoch(epoch)
    total = torch.zeros(1, device=device)
    for number, (x, y) in enumerate(loader, 1):
        before = (number - 1) // accumulation * accumulation
        together = min(accumulation, len(loader) - before)  # fewer at the epoch's end
        last = number == before + together
        model.set_requires_gradient_sync(last)
        loss = (model(x.to(device)) - y.to(device)).float().square().mean()
        (loss / together).backward()
        total += loss.detach() / len(loader)
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {total.item() / dist.get_world_size():.3f}")
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=saved / str(epoch))
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("25_fsdp", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - The derivative of a gather is a reduce-scatter. FSDP is that, plus a second gather for backward.
# - **Wrap the repeated layer.** With the whole model as one unit, you save state only. With every matrix as a unit, each one pays the start-up time
#   of its own messages. Parameters that you leave out belong to the root and stay gathered.
# - Traffic: the root is gathered once, all other weights twice, and gradients are reduced once. `reshard_after_forward=False` saves a third of this
#   traffic, and needs memory for all weights.
# - From about $F / \beta$ tokens a rank on, a gather is hidden in forward, whatever the layer's size. Backward, with sums in fp32, needs 1.5 times as
#   many.
# - Accumulate with `set_requires_gradient_sync(False)` if there is room for whole gradients. Clip with `clip_grad_norm_`, which handles DTensors.
# - Gathers in bf16 halve the largest part of the traffic. Shards and optimizer stay in fp32.
# - `fully_shard` does not give all ranks the same weights. Broadcast them, seed all ranks alike, or use `shard_model`.
# - N divides the state and nothing else. From some N on, the peak consists of activations and the layers at work.
# - Where links differ in speed, shard inside a node and replicate across nodes. No layer then waits for a gather from far away, but each rank holds
#   more state.
#
# Next: [26_accelerate](26_accelerate.ipynb), one script for all of these.
#
# ## Sources
#
# - Y. Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, VLDB 2023,
#   [arXiv:2304.11277](https://arxiv.org/abs/2304.11277): 3.2 (units), 3.3 (prefetch), 3.2.2 (hybrid sharding, traffic between hosts).
# - S. Rajbhandari et al., *ZeRO*, SC 2020, [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), section 5.3.
# - The torchtitan team, *Llama 3 on H100, December 2024*,
#   [tables 1 and 3](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md).
# - PyTorch documentation, `torch.distributed.fsdp.fully_shard`, `torch.distributed.checkpoint`.
# - H. Touvron et al., *LLaMA: Open and Efficient Foundation Language Models*, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), table 2 (7B).
