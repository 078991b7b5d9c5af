# %% [markdown]
# # What if nobody keeps everything?
#
# - **You need** `21_collectives` (reduce-scatter, all-gather) and `23_ddp_limits` (the model that did not fit).
# - **It takes** 55 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, by hand and with DeepSpeed, on CPU (gloo) or on GPUs (NCCL), with the same cells. The cells with
#   64 and 1,024 ranks are rehearsals: their bytes are exact, but the ranks do not exist.
# - **Model and text:** stage 1 trains `TINY` on the reference manual, as in lesson 22. Stages 2 and 3 by hand train a stack of three matrices. From
#   *Run: by hand* on, we use the stack of linear layers of lesson 23, whose bytes can be added up by hand. At the end come models of 7.5 billion
#   parameters, because the paper uses that size.
# - **Links:** before this [23_ddp_limits](23_ddp_limits.ipynb), after it [25_fsdp](25_fsdp.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# In `23_ddp_limits` a model did not fit, and more ranks did not help: every rank held the same numbers, so (N - 1) / N of all memory was spent on
# copies. Suppose instead that every rank keeps only an Nth. What must the ranks then send each other, and what does that cost?

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
# ## Stage 1: cut what the optimizer remembers
#
# An all-reduce is a reduce-scatter followed by an all-gather. Between the two, each rank has the summed gradient of **its part** of the weights, and
# of no other part. That is enough for an optimizer step on this part, so we let the optimizer step there:
#
# 1. Reduce-scatter the gradients. This rank now has the mean gradient of its Nth of the weights.
# 2. Update that Nth. The moments of all other weights are never created on this rank.
# 3. All-gather the weights.
#
# Done like this, the ranks send as many bytes as before, and the optimizer's memory is divided by N. This is stage 1 of ZeRO, the *zero redundancy
# optimizer* (Rajbhandari et al., 2020).
#
# ### Exercise: write it

# %%
# %%exercise zero_step
import torch
import torch.distributed as dist


def zero_step(weights: torch.Tensor, gradient: torch.Tensor, update) -> None:
    """ZeRO 1 on flat tensors, in place; update(part, its_gradient) is the optimizer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(weights.chunk(world_size))  # views: a change of one changes weights
    mine = torch.empty_like(parts[rank])  # for the mean gradient of this rank's part
    ...


# %% [markdown]
# Your `zero_step` now trains `TINY`. Adam is written out below, so that you see what it receives: a part of the weights, the mean gradient of
# that part, and moments that are no longer than the part.

# %%
# %%ranks -n 4 --pass zero_step
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

STEPS, LR, EPS = 10, 3e-3, 1e-6
mine = TextBatches(seq_len=32, global_batch=8, rank=rank, num_ranks=world_size)


def fresh_model():
    torch.manual_seed(0)
    return GPT(TINY).to(device)


def adam(part, gradient, moments, step):
    """Adam on a part, in place."""
    news = ((gradient, 0.9), (gradient**2, 0.999))
    for moment, (value, beta) in zip(moments, news, strict=True):
        moment.mul_(beta).add_((1 - beta) * value)
    mean, square = moments[0] / (1 - 0.9**step), moments[1] / (1 - 0.999**step)
    part -= LR * mean / (square.sqrt() + EPS)


def by_hand():
    """Losses of this rank, and its bytes of moments."""
    model, losses = fresh_model(), []
    weights = parameters_to_vector(model.parameters()).detach()
    moments = torch.zeros(2, len(weights) // world_size, device=device)
    for step in range(STEPS):
        loss = model(*next(mine.step(step, device)))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        gradient, number = parameters_to_vector(gradients), step + 1
        zero_step(weights, gradient, lambda *part: adam(*part, moments, number))
        vector_to_parameters(weights, model.parameters())
        losses.append(loss.detach())
    return losses, moments.nbytes


# %% [markdown]
# PyTorch also offers stage 1: `ZeroRedundancyOptimizer` wraps any optimizer, and is used together with DDP. DDP all-reduces the gradients, so every
# rank gets all of them, as without ZeRO. After the step, each rank broadcasts the weights that it has updated.

# %%
# %%ranks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def by_torch():
    """Losses of this rank, and its bytes of moments."""
    model, losses = DistributedDataParallel(fresh_model()), []
    how = {"optimizer_class": torch.optim.Adam, "lr": LR, "eps": EPS}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), **how)
    for step in range(STEPS):
        loss = model(*next(mine.step(step, device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    kept = [
        value for state in optimizer.optim.state.values() for value in state.values()
    ]
    return losses, sum(value.nbytes for value in kept if value.ndim)  # without `step`


# %% [markdown]
# The next cell runs both versions and counts the bytes that rank 0 sends. For comparison, it also trains in one process that sees the whole batch:

# %%
# %%ranks --into first
from workshop import report
from workshop.measure import measure


def alone():
    model, losses = fresh_model(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, eps=EPS)
    for step in range(STEPS):
        loss = model(*next(TextBatches(seq_len=32, global_batch=8).step(step, device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def over_ranks(losses):
    total = torch.stack(losses)
    dist.all_reduce(total)
    return (total / world_size).tolist()


for name, version in {"by hand": by_hand, "torch": by_torch}.items():
    with measure(memory=False) as measured:
        losses, moments = version()
    steps = STEPS if name == "by hand" else 1  # measure() knows torch's optimizers
    sent = {row.name: row.wire_bytes / steps for row in measured.traffic}
    losses = over_ranks(losses)
    report(**{name: {"losses": losses, "moments": moments, "sent": sent}})
report(alone=alone(), parameters=sum(p.numel() for p in fresh_model().parameters()))

# %%
from workshop.facts.tabular import Table

rows = []
for name in ("by hand", "torch"):
    pairs = zip(first[0][name]["losses"], first[0].alone, strict=True)
    off = [abs(a - b) for a, b in pairs]
    held = [first[rank][name]["moments"] for rank in range(4)]
    rows.append((name, *(f"{size:,} B" for size in held)))
    assert max(off) < 1e-5, max(off)
    assert sum(held) == 8 * first[0].parameters, "each moment is kept only once"
assert len(set(held)) > 1, "torch's ranks hold unequal amounts"
print("both versions give the losses of one process, to 1e-5")
head = ("", *(f"rank {rank}" for rank in range(4)))
Table(head, rows, "Bytes of moments that each rank keeps")

# %%
kinds = ("reduce_scatter", "all_reduce", "broadcast", "all_gather")
rows, together = [], {}
for name in ("by hand", "torch"):
    sent, weights = first[0][name]["sent"], 4 * first[0].parameters
    sizes = {kind: size / weights for kind, size in sent.items()}
    together[name] = sum(sizes.values())
    cells = [f"{sizes[kind]:.2f}" if kind in sizes else "-" for kind in kinds]
    rows.append((name, *cells, f"{together[name]:.2f}"))
    assert set(sizes) <= set(kinds)
assert together["by hand"] == 2 * 3 / 4
assert together["torch"] > 2.9 * 3 / 4
Table(("", *kinds, "together"), rows, "What rank 0 sends in a step, in weights' sizes")

# %% [markdown]
# Each moment is kept once, by one rank. Your version cuts the weights into equal parts. `ZeroRedundancyOptimizer` distributes whole tensors, as
# evenly as it can, which is why its ranks hold slightly unequal amounts.
#
# Your version sends 3/4 of the weights' size twice, which is what an all-reduce sends on four ranks. PyTorch's version all-reduces, and sends the
# weights on top. (The count takes each broadcast as sent on by every rank.) It saves memory, but it is not free.
#
# ## Predict: three cuts
#
# In mixed precision with Adam, a parameter needs 2 bytes for the weight, 2 for the gradient, and K bytes for what the optimizer keeps in fp32.
# These are a master copy and two moments of 4 bytes each, so K = 12. Each stage of ZeRO cuts one more of the three:
#
# | stage | cut | bytes a parameter |
# |---|---|---|
# | 0 | nothing (DDP) | 2 + 2 + K |
# | 1 | optimizer | 2 + 2 + K/N |
# | 2 | and gradients | 2 + (2 + K)/N |
# | 3 | and weights | (2 + 2 + K)/N |
#
# ### Exercise: the formula


# %%
# %%exercise zero_bytes
def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12):
    """Bytes of weights, gradients and optimizer on a rank, in mixed precision."""
    weights, gradients, state = (num_parameters * b for b in (2, 2, optimizer_bytes))
    ...
    return weights + gradients + state


# %% [markdown]
# The figure that made ZeRO known (figure 1 of the paper) shows 7.5 billion parameters on 64 GPUs. The next two cells compute it in two ways: with
# your formula, and with `predict_memory`, which does not use your formula but counts the parts of a real transformer of that size.

# %%
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

P, N = 7_500_000_000, 64
gpt = ModelSpec(
    "7.5B",
    num_layers=36,
    hidden_size=4_096,
    num_heads=32,
    vocab_size=50_304,
)
how = implementation("deepspeed")
STATE = ("weights", "gradients", "optimizer")


def predicted_state(stage, ranks=N, offload="none"):
    """Bytes of a rank's state, by part, scaled from this GPT's parameters to P."""
    layout = Layout(
        shard=ranks if stage else 1,
        replicate=1 if stage else ranks,
        zero=stage,
        precision="deepspeed-bf16",
        offload=offload,
    )
    run = Run(gpt, f"{ranks}xH100", layout, seq_len=128, implementation=how)
    parts, scale = predict_memory(run).parts, P / gpt.num_params
    return {part: float(parts[part][0]) * scale for part in STATE if part in parts}


# %% tags=["nbval-check-output"]
published, rows = (120, 31.4, 16.6, 1.9), []
for stage, figure in enumerate(published):
    by_formula, by_parts = zero_bytes(P, N, stage), sum(predicted_state(stage).values())
    sizes = [f"{size / 1e9:.1f} GB" for size in (by_formula, by_parts)]
    rows.append((f"{stage}", *sizes, f"{figure} GB"))
    assert abs(by_formula / 1e9 - figure) < 0.06
    assert abs(by_parts / by_formula - 1) < 0.01
head = ("stage", "your formula", "predict_memory", "published")
Table(head, rows, "State of one of 64 ranks, 7.5 billion parameters")

# %%
show.memory_by_part(
    {f"stage {stage}": predicted_state(stage) for stage in range(4)},
    cap=80e9,
    title="7.5 billion parameters, 64 ranks of 80 GB: state of one rank",
    compare=False,
)

# %% [markdown]
# (The picture counts in GiB: the paper's 120 GB are 111.8 GiB.) Most of the memory is the optimizer's, so the first cut already saves most. But only
# the last cut removes the limit: with stages 1 and 2, a rank still holds all weights, however many ranks there are. Under stage 3, **everything** is
# divided.
#
# ## Stage 2: cut the gradients too
#
# After stage 1, a rank still holds a whole gradient of every weight, although its optimizer reads only an Nth of it. Under stage 2, a gradient is
# reduced *as soon as it is complete*, and a rank drops at once what belongs to other ranks.
#
# How does a rank know that a gradient is complete? Autograd tells it: after backward has added the last part of a weight's gradient, it calls a
# **hook** of that weight. So stage 2 is a function that autograd calls for each weight, once in every backward.
#
# ### Exercise: the hook

# %%
# %%exercise keep_my_shard
import torch
import torch.distributed as dist


def keep_my_shard(weight: torch.Tensor, kept: dict) -> None:
    """The hook of a weight: kept[weight] is this rank's shard of the mean gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ...


# %% [markdown]
# We try your hook on a stack of three matrices that learns to copy its input. First, one process makes the step that the ranks have to
# reproduce:

# %%
# %%ranks
torch.manual_seed(0)
whole = [0.1 * torch.randn(64, 64).to(device) for _ in range(3)]
batch = torch.randn(8, 64).to(device)

weights = [weight.clone().requires_grad_() for weight in whole]  # one process
truth = (batch @ weights[0] @ weights[1] @ weights[2] - batch).square().mean()
truth.backward()
new_weights = [(weight - 0.1 * weight.grad).detach() for weight in weights]

# %% [markdown]
# Now four ranks make the same step, each with a quarter of the batch. At each call of the hook we note how many bytes of whole gradients exist at
# that moment. After backward, each rank updates its quarter of each weight, and the quarters are gathered:

# %%
# %%ranks --pass keep_my_shard --into second
layers = [weight.clone().requires_grad_() for weight in whole]
kept, held = {}, []


def on_complete(weight):
    held.append(sum(w.grad.nbytes for w in layers if w.grad is not None))
    keep_my_shard(weight, kept)


for weight in layers:
    weight.register_post_accumulate_grad_hook(on_complete)
x = batch.chunk(world_size)[rank]
(x @ layers[0] @ layers[1] @ layers[2] - x).square().mean().backward()
for weight, right in zip(layers, new_weights, strict=True):
    quarter = weight.detach().chunk(world_size)[rank] - 0.1 * kept[weight]
    dist.all_gather(list(weight.data.chunk(world_size)), quarter)
    torch.testing.assert_close(weight.detach(), right)
report(held=held, kept=sum(shard.nbytes for shard in kept.values()))

# %% tags=["nbval-check-output"]
one = 64 * 64 * 4
rows = [(f"call {n} of the hook", f"{b:,} B") for n, b in enumerate(second[0].held, 1)]
rows.append(("after backward, in shards", f"{second[0].kept:,} B"))
rows.append(("for comparison: all whole gradients", f"{3 * one:,} B"))
assert second[0].held == [one] * 3, "one layer's, never three"
assert second[0].kept * 4 == 3 * one
Table(("", "gradients that a rank holds"), rows)

# %% [markdown]
# The new weights are those of the single process. Whole gradients existed for only one layer at a time, and a quarter of them stayed. (Four ranks
# divide our 64 rows. If the rows of a weight do not divide, libraries pad them, as lesson 25 shows, or cut one long flat tensor.)
#
# ## Stage 3: cut the weights too
#
# If no rank has the whole layer, how can it compute the layer? It gathers the layer just before it needs it, and drops it right afterwards: once in
# forward, and again in backward. This function gathers, and counts how often it is called:

# %%
# %%ranks
gathers = 0


def gather(shard):
    """All ranks' rows: the whole matrix, for a moment."""
    global gathers
    gathers += 1
    rows = [torch.empty_like(shard) for _ in range(world_size)]
    dist.all_gather(rows, shard)
    return torch.cat(rows)


# %% [markdown]
# Now you write the step in which every rank keeps a quarter of each matrix, and nothing else. We do without autograd, so that you see
# every gather. Forward is in the cell. Backward goes through the layers from the last to the first. A layer has computed $Y = X W$ from its input
# $X$, and receives the gradient $G$ of $Y$. By the chain rule, the gradients of its weight and of its input are
#
# $$\frac{\partial L}{\partial W} = X^\top G, \qquad \frac{\partial L}{\partial X} = G\, W^\top$$
#
# The first is of the whole matrix, from this rank's part of the batch. The second is the $G$ of the layer before.
#
# ### Exercise: backward, with a quarter of each matrix

# %%
# %%exercise sharded_step
import torch
import torch.distributed as dist


def sharded_step(shards: list, x: torch.Tensor, gather, lr: float) -> None:
    """One step of SGD on shards, in place: the stack of matrices learns to copy x."""
    world_size = dist.get_world_size()
    wanted, inputs = x, []
    for shard in shards:  # forward
        inputs.append(x)
        x = x @ gather(shard)  # gathered, used, gone
    gradient = 2 * (x - wanted) / x.numel()  # the loss is the mean square
    for shard, x in zip(reversed(shards), reversed(inputs), strict=True):
        ...  # backward


# %% [markdown]
# The next cell makes your step on four ranks, and each rank compares its quarter with the new weights of the single process:

# %%
# %%ranks --pass sharded_step --into third
shards = [weight.chunk(world_size)[rank].clone() for weight in whole]
gathers = 0
sharded_step(shards, batch.chunk(world_size)[rank], gather, 0.1)
for shard, right in zip(shards, new_weights, strict=True):
    torch.testing.assert_close(shard, right.chunk(world_size)[rank])
report(gathers=gathers, held=sum(shard.nbytes for shard in shards))

# %% tags=["nbval-check-output"]
print(f"a rank holds {third[0].held:,} B of {3 * one:,} B, and steps like one process")
print(f"it has gathered {third[0].gathers} times, for three layers")
assert third[0].held * 4 == 3 * one
assert third[0].gathers == 6

# %% [markdown]
# Each layer was gathered twice, once for forward and once for backward.
#
# `workshop/parallel/zero.py` implements the three stages for any model, with hooks like yours. (Stage 3 also needs hooks on the modules, to gather
# before forward and before backward.) Each stage is a small class that adds a few lines to the stage before. We use this file from here on.
#
# ## What does it send?
#
# In a ring's all-gather, a rank sends (N - 1)/N of the weights' bytes. We call this one **pass**. A reduce-scatter of gradients is one pass too,
# and an all-reduce is two. If a step is one micro-batch, a rank sends:
#
# | stage | what is sent | passes |
# |---|---|---|
# | 0 | all-reduce of gradients | 2 |
# | 1 | reduce-scatter, all-gather of weights | 1 + 1 |
# | 2 | the same, earlier | 1 + 1 |
# | 3 | all-gather for forward, all-gather for backward, reduce-scatter | 1 + 1 + 1 |
#
# So stage 2 seems to cost nothing extra. Is that always true? With gradient accumulation, a step consists of A micro-batches. Stages 0 and 1 add up
# whole gradients on each rank and send them once. Stage 2 does not have memory for whole gradients.

# %%
# %%guess free_stage_2
# A step has four micro-batches. Stage 1 sends 2 passes, just as with one.
# How many passes does stage 2 send?
...

# %% [markdown]
# ## Run: by hand
#
# We train the stack of square layers from lesson 23 on four ranks with different seeds. Each stage must give the losses of a single process that
# sees all the data. We also measure what a rank holds after backward, before the optimizer steps. In fp32 a parameter takes 4 + 4 + 8 bytes:
# weight, gradient and two moments.


# %%
def train(stage, shape=(256, 8), steps=6, accumulation=1, dtype="float32", watch=int):
    """Train linear layers under ZeRO: losses, and what watch() gave at the end."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from workshop.parallel.zero import zero

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kind, (width, depth) = getattr(torch, dtype), shape
    with torch.device("meta"):  # `zero` allocates memory, layer by layer
        layers = [nn.Linear(width, width, dtype=kind) for _ in range(depth)]
    model = nn.Sequential(*layers)
    optimizer = zero(model, stage, lr=1e-3, fused=True)
    losses, seen = [], 0
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        size = (world_size * accumulation, width)
        batch = torch.randn(size, generator=generator, dtype=kind)
        for mine in batch[rank::world_size].to(device).split(1):
            loss = (model(mine) - mine).square().mean() / accumulation
            loss.backward()
        seen = watch()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return [value / world_size for value in total.tolist()], seen


# %% [markdown]
# Next come the single process, and a function that waits a moment before it counts bytes, because gloo's threads free their copies a little late.

# %%
import time

import torch.distributed as dist

from workshop.measure import held_bytes


def alone(world_size, device, width=256, depth=8, steps=6):
    """Losses of one process with the whole batch, in plain PyTorch."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width, device=device) for _ in range(depth)]
    model = torch.nn.Sequential(*layers)  # on `device`: a GPU draws other numbers
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(world_size, width, generator=generator).to(device)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def settled():
    """Bytes held, a moment after the last collective."""
    dist.barrier()
    time.sleep(0.05)
    return held_bytes()


# %%
# %%torchrun -n 4 --pass train,alone,settled --into by_hand
import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import count_from_here, measure

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
report(alone=alone(world_size, device))
for stage in range(4):
    gc.collect()
    settled()
    count_from_here()
    torch.manual_seed(rank)  # ranks draw different weights; `zero` sends rank 0's
    with measure() if rank == 0 else nullcontext() as measured:  # one rank is enough
        losses, held = train(stage, watch=settled)
    report(**{f"stage_{stage}": {"losses": losses, "held": held, "measured": measured}})
    with measure(memory=False) as accumulated:
        train(stage, steps=2, accumulation=4)
    report(**{f"four_{stage}": sum(row.wire_bytes for row in accumulated.traffic)})
gc.collect()
dist.destroy_process_group()

# %% [markdown]
# ## Compare
#
# We compare the losses first: if they differ, the other numbers mean nothing.

# %% tags=["nbval-check-output"]
stages = [by_hand[0][f"stage_{stage}"] for stage in range(4)]
for measured in stages:
    pairs = zip(measured["losses"], by_hand[0].alone, strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    assert worst < 1e-5, worst
print("stages 0 to 3: the losses of a single process, to 1e-5")

# %% tags=["nbval-check-output"]
weights = 4 * 8 * (256 * 256 + 256)  # bytes
N = 4
ring = (N - 1) / N * weights  # one pass
sent, rows = [], []
for stage, measured in enumerate(stages):
    parts = (1 if stage < 3 else N, 1 if stage < 2 else N, 1 if stage < 1 else N)
    held = weights / parts[0] + weights / parts[1] + 2 * weights / parts[2]
    times = 3 if stage == 3 else 2
    sent.append(sum(row.wire_bytes for row in measured["measured"].traffic))
    sizes = (held, measured["held"], times * ring, sent[stage])
    rows.append((f"{stage}", *(f"{size / 1e6:.2f} MB" for size in sizes)))
    assert sent[stage] == times * ring
    assert abs(measured["held"] / held - 1) < 0.01
head = ("stage", "held: predicted", "measured", "sent: predicted", "measured")
Table(head, rows)

# %%
A, rows = 4, []
for stage, times in enumerate((2, 2, A + 1, 3 * A)):
    with_four = by_hand[0][f"four_{stage}"]
    rows.append((f"{stage}", f"{sent[stage] / ring:.2f}", f"{with_four / ring:.2f}"))
    assert with_four == times * ring
display(Table(("stage", "one micro-batch", f"{A} micro-batches"), rows, "Passes sent"))
beside("free_stage_2", predicted=A + 1, measured=by_hand[0].four_2 / ring)

# %% [markdown]
# The bytes sent agree exactly, and the bytes held to 1 %. With one micro-batch, stages 1 and 2 send no more than stage 0. With A micro-batches,
# stage 1 still sends **2** passes, stage 2 sends **A + 1** (gradients leave after every micro-batch), and stage 3 sends **3 A**. So stage 1 is
# free with and without accumulation, and stage 2 only without it.
#
# The next picture shows the peak of each stage, by part, measured with one micro-batch:

# %%
show.memory_by_part(
    {f"stage {stage}": each["measured"] for stage, each in enumerate(stages)},
    compare=False,
)

# %% [markdown]
# The part called *temporaries* is the layer at work: its gathered weights (stage 3), and its whole gradients until they are reduced. This part does
# not shrink with N. The smaller the layer, the smaller the part that every rank must hold.
#
# ## Decide
#
# Now we look at memory and traffic together. The left panel is your `zero_bytes`, and the right panel is the table of passes above. In JupyterLab
# there are sliders. On a web page you see only their first values: the paper's 7.5 billion parameters on 64 GPUs, eight micro-batches, and 20 GB of
# memory for the state. (An offloaded optimizer lies in the host's memory. Its gradients and weights then travel over PCIe; from stage 1 on, each rank
# moves only an Nth of them. From stage 2 on, a reduced gradient goes to the host after each micro-batch. For the next one the sum comes back, is
# added to, and leaves again; the picture counts one trip.)

# %%
# %%guess stage_to_take --choices 0,1,2,3
# 7.5B parameters, 64 GPUs, 8 micro-batches per step, 20 GB for the state.
# Of the stages that fit, which sends least? Answer with text: '0', '1', '2' or '3'.
...


# %%
def costs(stage, ranks, billions, micro_batches, offload):
    """What a rank holds and sends, by part, in bytes."""
    count, share = billions * 1e9, (ranks - 1) / ranks
    without_optimizer = zero_bytes(count, ranks, stage, optimizer_bytes=0)
    held = {"weights": 2 * count / (ranks if stage == 3 else 1)}
    held["gradients"] = without_optimizer - held["weights"]
    held["optimizer"] = zero_bytes(count, ranks, stage) - without_optimizer
    passes = {  # of gradients and of weights; an all-reduce counts as two
        0: (2, 0),
        1: (1, 1),
        2: (micro_batches, 1),
        3: (micro_batches, 2 * micro_batches),
    }
    one = share * 2 * count
    gradients, weights = passes[stage]
    sent = {"weights": weights * one, "gradients": gradients * one}
    if offload == "optimizer":
        if stage >= 2:  # a reduced gradient goes to the host at once
            held["gradients"] = 0.0
        held["optimizer"], over_pcie = 0.0, 4 * count
        sent["PCIe"] = over_pcie / ranks if stage else over_pcie
    return held, sent


def all_stages(ranks, billions, micro_batches, offload, room_gb):
    """All stages of ZeRO under these circumstances."""
    held, sent = {}, {}
    for stage in range(4):
        name = f"stage {stage}"
        held[name], sent[name] = costs(stage, ranks, billions, micro_batches, offload)
    title = f"{billions:g}B parameters, {ranks} ranks, {micro_batches} micro-batches"
    return show.held_and_sent(held, sent, room_gb * 1e9, title)


# %%
from workshop.jupyter.explorer import Control, explore

explore(
    all_stages,
    [
        Control("ranks", 64, (2, 4, 8, 16, 64, 256, 1_024)),
        Control("billions", 7.5, (0.5, 1.0, 3.0, 7.5, 13.0, 70.0, 175.0)),
        Control("micro_batches", 8, (1, 2, 4, 8, 16)),
        Control("offload", "none", ("none", "optimizer")),
        Control("room_gb", 20, (10, 20, 40, 80, 140)),
    ],
)


# %%
def best(**circumstances):
    """The stage that fits and sends least."""
    room = circumstances.pop("room_gb") * 1e9
    fitting = {}
    for stage in range(4):
        held, sent = costs(stage, **circumstances)
        if sum(held.values()) <= room:
            fitting[str(stage)] = sum(sent.values())
    return min(fitting, key=fitting.get)


paper = {"ranks": 64, "billions": 7.5, "micro_batches": 8, "offload": "none"}
assert best(**paper, room_gb=40) == "1", "whole gradients have room: send once"
costs_of_two, costs_of_three = (costs(stage, 64, 7.5, 8, "none")[1] for stage in (2, 3))
one_pass = 63 / 64 * 2 * 7.5e9
assert round(sum(costs_of_two.values()) / one_pass, 6) == 9
assert round(sum(costs_of_three.values()) / one_pass, 6) == 24
beside("stage_to_take", calculated=best(**paper, room_gb=20))

# %% [markdown]
# Here stage 2 sends 9 passes, which is 133 GB, and stage 3 would send 24. With 40 GB of memory instead of 20, stage 1 fits and sends only 2. Now
# move `ranks` up to 1,024 and watch which stages still shrink.
#
# ## The same with DeepSpeed
#
# For a real run, nobody writes this by hand. DeepSpeed, by the authors of the paper, is configured with a JSON file. Our function `deepspeed_json`
# writes this file from a `Run`. The file below would train a 7B model on eight H100s. It uses stage 1, because the run accumulates eight
# micro-batches:

# %% tags=["nbval-check-output"]
from workshop.configs import deepspeed_json

layout = Layout(shard=8, zero=1, precision="deepspeed-bf16", recompute="full")
run = Run("llama-7b", "8xH100", layout, micro_batch=1, seq_len=4_096, accumulation=8)
print(deepspeed_json(run, lr=3e-4))

# %% [markdown]
# A program can use such a file, or a dictionary of the same shape. `deepspeed.initialize` returns an engine, and the training loop calls
# `engine.backward(loss)` and `engine.step()`. Stack, data and the four ranks are the same as above.

# %%
# %%ranks
from workshop.measure import count_from_here, held_bytes, measure
from workshop.parallel.deepspeed_zero import load_deepspeed

deepspeed = load_deepspeed()  # it also calls init_distributed()


def trained(config, steps=6, width=256):
    """Losses, bytes held after the last backward, and bytes sent."""
    stage, losses = config["zero_optimization"]["stage"], []
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        layers = [torch.nn.Linear(width, width, device=device) for _ in range(8)]
        model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    with measure(memory=False) as measured:
        for step in range(steps):
            generator = torch.Generator().manual_seed(step)
            batch = torch.randn(world_size, width, generator=generator)
            mine = batch[rank : rank + 1].to(device)
            loss = (engine(mine) - mine).square().mean()
            engine.backward(loss)
            dist.barrier()
            held = held_bytes()
            engine.step()
            losses.append(loss.detach())
    engine.destroy()
    sent = sum(row.wire_bytes for row in measured.traffic)
    return {"losses": over_ranks(losses), "held": held, "sent": sent}


# %% [markdown]
# The configuration contains the stage, and what is offloaded to the host. The next cell makes six runs, two of them with offloading:

# %%
# %%ranks --into by_deepspeed
import gc


def configuration(stage, offload=()):
    """What would stand in the JSON file."""
    zero = {"stage": stage, "reduce_bucket_size": 500_000, "overlap_comm": False}
    if stage == 3:  # drop each layer after its use; the defaults suit large models
        zero |= {
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 0,
        }
    for what in offload:
        zero[f"offload_{what}"] = {"device": "cpu", "pin_memory": device.type != "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # for torch's own AdamW
        "zero_force_ds_cpu_optimizer": False,
    }


runs = {f"stage {stage}": (stage, []) for stage in range(4)}
runs["stage 2, optimizer offloaded"] = (2, ["optimizer"])
runs["stage 3, all offloaded"] = (3, ["optimizer", "param"])
for name, choices in runs.items():
    gc.collect()
    count_from_here()
    torch.manual_seed(rank)
    report(**{name: trained(configuration(*choices))})

# %% [markdown]
# The JSON file above accumulates gradients. What does DeepSpeed send then? This cell runs stages 1 and 2 once more, with four micro-batches in a
# step:

# %%
# %%ranks --into accumulating
for stage in (1, 2):
    gc.collect()
    config = configuration(stage) | {"gradient_accumulation_steps": 4}
    report(**{f"stage {stage}": trained(config, steps=8)["sent"]})

# %%
engines, count = by_deepspeed[0], 8 * (256 * 256 + 256)
cut_in_four = 4 * count + (4 + 4 + 8) * count / 4  # gradients, a master copy, moments
predicted = {
    "stage 0": (4 + 4 + 8) * count,
    "stage 1": cut_in_four,
    "stage 2": cut_in_four,
    "stage 3": (4 + 4 + 4 + 8) * count / 4 + 4 * 500_000,  # plus a bucket
}
passes, rows = {}, []
for name, engine in engines.items():
    pairs = zip(engine["losses"], by_hand[0].alone, strict=True)
    worst = max(abs(a - b) for a, b in pairs)
    assert worst < 1e-5, (name, worst)
    expected = f"{predicted[name] / 1e6:.1f} MB" if name in predicted else "-"
    passes[name] = engine["sent"] / ring
    four = f"{accumulating[0][name] / ring:.2f}" if name in accumulating[0] else "-"
    held = f"{engine['held'] / 1e6:.1f} MB"
    rows.append((name, expected, held, f"{passes[name]:.2f}", four))
for name, size in predicted.items():
    assert abs(engines[name]["held"] / size - 1) < 0.03, name
for stage in (1, 2, 3):
    assert abs(passes[f"stage {stage}"] - 3) < 0.1, stage
assert abs(accumulating[0]["stage 1"] / ring - 3) < 0.1
assert abs(accumulating[0]["stage 2"] / ring - (2 * 4 + 1)) < 0.1
head = ("", "held after backward: predicted", "measured", "passes sent")
Table((*head, "with four micro-batches"), rows)

# %% [markdown]
# The losses are again those of one process, to 1e-5. The bytes differ somewhat from the paper's, and DeepSpeed's source explains why:
#
# - **Stages 1 and 2 send 3 passes, not 2.** DeepSpeed 0.19 reduces gradients with an all-reduce of each bucket, and a rank then keeps only its part
#   (`use_multi_rank_bucket_allreduce`, on by default). The paper's 2 passes need a reduce-scatter. With A micro-batches, stage 1 still sends 3,
#   and stage 2 sends 2 A + 1, because it reduces after each of them: 9 in the last column.
# - **`"reduce_scatter": true`**, as in the file above, does not call that collective. It makes DeepSpeed note which rank owns which slice of a
#   bucket. The slices are then all-reduced together, or, with `use_multi_rank_bucket_allreduce` off, each is reduced to its owner.
# - **A master copy** of the weights in fp32 is kept, although the weights are in fp32 already. It takes 4 bytes a parameter, divided by N.
# - **Stage 1 keeps only its part of the gradients** once the last backward of a step has ended. At that moment it holds what stage 2 holds.
# - **Stage 3 has a bucket** of 500,000 numbers, `reduce_bucket_size`, through which gradients pass. For a model as small as ours that is much.
# - **Stage 3 sends 3 passes** because our `configuration` makes it drop each layer at once. By default it keeps up to a billion gathered parameters
#   for their next use. That is right for a large model. Our model would be gathered once a step and never freed.
#
# Offloading saves nothing here, because on a CPU the device *is* the host: nothing leaves this memory, and the transfer buffers come on top. On a
# GPU the offloaded parts leave the device. With an offloaded optimizer, DeepSpeed's stages 2 and 3 copy each gradient to the host as soon as it is
# reduced, so the gradients leave as well.
#
# If stage 3 offloads everything, of the state only the layer at work stays. (Activations stay as well; the picture leaves them out.) In backward,
# this is its gathered weights and twice its gradients: once as autograd hands them over, and once in the flat tensor or bucket from which they are
# reduced. Under stage 2, its gradients are there twice as well, while its weights belong to the state. The picture shows the layer at work as
# *temporaries*:

# %%
layer = 2 * P / gpt.num_layers  # bytes of one layer's weights in bf16, or gradients
stage_2, stage_3 = {"temporaries": 2 * layer}, {"temporaries": 3 * layer}
away = predicted_state(2, 8, "optimizer")
assert [part for part, size in away.items() if size] == ["weights"]
assert not any(predicted_state(3, 8, "params").values()), "no state is left"
show.memory_by_part(
    {
        "stage 2": predicted_state(2, 8) | stage_2,
        "stage 2, optimizer offloaded": away | stage_2,
        "stage 3": predicted_state(3, 8) | stage_3,
        "stage 3, all offloaded": stage_3,
    },
    cap=80e9,
    title="7.5 billion parameters on 8 ranks of 80 GB: what stays on the device",
    compare=False,
)

# %% [markdown]
# What leaves the device must come back. In each step an offloaded optimizer moves all gradients to the host and all weights back, over PCIe, and it
# steps at the CPU's speed. Offload only if nothing else makes the model fit: how much time it costs depends on the model and the machine, and we
# have not measured it.
#
# ## The model that did not fit
#
# Lesson 23 ended with eight layers of width 768 under a limit of 64 MiB. DDP needs 16 bytes for each of the 4.7 million parameters, which is 72
# MiB, and more ranks did not help. On the same four ranks, stage 3 needs only 4 bytes a parameter. What does it need at its peak? Add the layer at
# work, four times: its gathered weights, its gradients in one flat tensor, the gradient that autograd is just handing over, and a copy that gloo
# makes while it sends:
#
# $$\text{peak} = \frac{16\,P}{N} + 4 \cdot 4\,p, \qquad p = \text{parameters of one layer}$$
#
# (On GPUs, add it three times: NCCL makes no copy, and ranks that share a GPU make theirs in the host's memory. On GPUs the workspaces of the matrix
# products, 64 MiB on a Hopper, need memory as well.)

# %%
# %ranks stop

# %%
WIDTH, DEPTH, CAP = (8_192, 8, 8 * 2**30) if on_gpus else (768, 8, 64 * 2**20)
layer = WIDTH * WIDTH + WIDTH
copies = 3 if on_gpus else 4
predicted_peak = 16 * DEPTH * layer // 4 + copies * 4 * layer
ROOM = 96 * 2**20 if on_gpus else 0  # for workspaces and unused ends of blocks
print(f"DDP needs {format_bytes(16 * DEPTH * layer)} a rank, of {format_bytes(CAP)}")
print(f"stage 3 on four ranks needs {format_bytes(predicted_peak)}")

# %%
# %%torchrun -n 4 --device-memory {CAP} --pass train,WIDTH,DEPTH --into fits
import gc

import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group()
losses, held = train(3, (WIDTH, DEPTH), steps=2)
report(losses=losses)
gc.collect()
dist.destroy_process_group()

# %% [markdown]
# The model now trains. How good is the prediction? The next two cells run the same program under two limits, 5 % above the predicted peak and 5 %
# below. (The run above the peak may need a second try. gloo's threads free their copies a moment late, so one run may fail although the prediction
# is right. The opposite cannot happen: no run succeeds by luck.)

# %%
PROGRAM = """
import gc
import torch
import torch.distributed as dist
dist.init_process_group()
train(3, (WIDTH, DEPTH), steps=2)
gc.collect()
dist.destroy_process_group()
"""


def trains_under(cap: float) -> bool:
    """Whether four ranks train the model with so many bytes each."""
    limits = launch.Limits(device_memory=int(cap) + ROOM, timeout=300)
    try:
        variables = {"train": train, "WIDTH": WIDTH, "DEPTH": DEPTH}
        launch.torchrun(PROGRAM, 4, variables=variables, limits=limits)
    except launch.RankFailed as error:
        if "out of memory" not in str(error):
            raise
        return False
    return True


# %% tags=["nbval-check-output"]
rows = []
for share, tries in ((1.05, 5), (0.95, 2)):
    fits = any(trains_under(share * predicted_peak) for _ in range(tries))
    rows.append((f"{share:.0%}", "trains" if fits else "out of memory"))
    assert fits == (share > 1)
Table(("limit, of the predicted peak", "four ranks"), rows)

# %% [markdown]
# ## At scale
#
# Now we rehearse the `train` function from above on 64 ranks that do not exist, with the paper's 7.5 billion parameters in bf16: 32 layers of width
# 15,309. This is not a model of the program: the code itself runs on fake tensors, and each allocation is recorded.

# %%
from concurrent.futures import ThreadPoolExecutor

from workshop.rehearse import rehearse


def at_scale(stage):
    how = {"shape": (15_309, 32), "dtype": "bfloat16", "steps": 2}
    return rehearse(train, 64, keywords={"stage": stage, **how})


with ThreadPoolExecutor(2) as pool:  # two at a time
    rehearsed = list(pool.map(at_scale, range(4)))


def state_of(rehearsal) -> float:
    """Live bytes when the optimizer begins its last step."""
    timeline = rehearsal.memory.timeline
    moments = enumerate(timeline.phases)
    last = max(moment for moment, phase in moments if phase == "backward")
    return timeline.total_bytes[last + 1]


# %% tags=["nbval-check-output"]
count, N, rows = 32 * (15_309**2 + 15_309), 64, []
for stage, rehearsal in enumerate(rehearsed):
    formula, state = zero_bytes(count, N, stage), state_of(rehearsal)
    sent = sum(row.wire_bytes for row in rehearsal.traffic)
    times = sent / ((N - 1) / N * 2 * count)
    sizes = [f"{size / 1e9:.1f} GB" for size in (formula, state, rehearsal.peak_bytes)]
    rows.append((f"{stage}", *sizes, f"{times:.2f}"))
    assert abs(times - (3 if stage == 3 else 2)) < 0.001
    assert abs(state / formula - 1) < 0.01
for stage, times in ((2, 2), (3, 3)):  # gradients twice, and gathered weights
    at_work = rehearsed[stage].peak_bytes - state_of(rehearsed[stage])
    assert abs(at_work / (times * 2 * count / 32) - 1) < 0.05
head = ("stage", "state: your formula", "rehearsed", "peak", "passes sent")
Table(head, rows, f"{count:,} parameters on {N} ranks")

# %% [markdown]
# Formula and code agree: 120, 31.4, 16.6 and 1.9 GB. (The code holds a little more: one layer's gradient in fp32, which the optimizer is about
# to use.)
#
# The paper's figure does not show the *peak*. Under stage 3 the layer at work needs 1.4 GB: its 234 million weights and, twice, their gradients. That
# is three quarters of the 1.9 GB of state. More ranks shrink the 1.9 GB further, but not these 1.4 GB. (Under stage 2, the layer at work needs 0.9
# GB, because the weights are there anyway.)
#
# So what would a thousand ranks save? We rehearse that in a cell of its own, this time with a transformer of about as many parameters: 18
# wide layers, an embedding and a head.

# %%
# %%rehearse -n 1024 --into thousand
import torch
import torch.distributed as dist

from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.zero import zero

dist.init_process_group()
with torch.device("meta"):
    model = GPT(
        GPTConfig(
            vocab_size=50_304,
            hidden_size=5_760,
            num_layers=18,
            num_heads=45,
            num_kv_heads=45,
            intermediate_size=15_360,
        )
    ).bfloat16()


def initialise(module):
    for parameter in module.parameters(recurse=False):
        torch.nn.init.normal_(parameter, std=0.02)


optimizer = zero(model, 3, lr=3e-4, fused=True, initialise=initialise)
tokens = torch.randint(50_304, (1, 256))
for _ in range(2):
    model(tokens, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["nbval-check-output"]
h, layers, vocabulary, N = 5_760, 18, 50_304, 1024
one_layer = 4 * h * h + 3 * h * 15_360 + 2 * h
ends = 2 * vocabulary * h + h  # embedding, head and last norm: the root
count = layers * one_layer + ends
state = zero_bytes(count, N, 3)
sent = sum(row.wire_bytes for row in thousand.traffic)
expected = (N - 1) / N * 2 * (3 * count - ends)  # the root is gathered once
held, peak = state_of(thousand), thousand.peak_bytes
rows = [
    ("state", f"{state / 1e9:.2f} GB", f"{held / 1e9:.2f} GB"),
    ("peak", "-", f"{peak / 1e9:.2f} GB"),
    ("sent in a step", f"{expected / 1e9:.2f} GB", f"{sent / 1e9:.2f} GB"),
]
assert abs(held / state - 1) < 0.02
assert abs(sent / expected - 1) < 0.001
assert peak > 10 * state, "N no longer decides"
Table(("", "formula", "rehearsed"), rows, f"{count:,} parameters on {N:,} ranks")

# %% [markdown]
# The state of 7.7 billion parameters has shrunk to a tenth of a gigabyte, but the peak has not followed. What does it consist of?

# %% tags=["nbval-check-output"]
gathered = 2 * (ends + one_layer)  # the root and the layer at work, in bf16
matrix = 2 * h * 15_360  # a gradient that autograd is passing on
saved = thousand.memory.peak_parts["activations"] - gathered  # counted there, too
parts = {
    "gathered weights: root and a layer": gathered,
    "their gradients": gathered,
    f"activations of {layers} layers": saved,
    "one more gradient": matrix,
    "state": state,
}
assert abs(sum(parts.values()) / peak - 1) < 0.02
rows = [(part, f"{size / 1e9:.2f} GB") for part, size in parts.items()]
rows.append(("together", f"{sum(parts.values()) / 1e9:.2f} GB"))
Table(("part of the peak", "size"), rows)

# %% [markdown]
# Most of the peak is weights and gradients of one layer and of the root (embedding and head, which this code keeps gathered from forward to
# backward). The activations are those of 256 tokens, without recomputation. From here on, more ranks save next to nothing.
#
# And each of the thousand ranks still sends 45 GB in every step, however large N is. If there are many ranks and each has little to compute, the
# wire decides how long a step takes. Day 3 cuts the layer itself, and day 4 the bytes.
#
# ## Tomorrow's script
#
# This script uses DeepSpeed without this workshop: a configuration, `deepspeed.initialize`, and checkpoints of which every rank writes a part.
# `torchrun --nproc-per-node 8 train_zero.py` runs it, and so does DeepSpeed's own `deepspeed train_zero.py`.

# %%
import os

os.environ["CHECKPOINT"] = f"{folder}/train_zero"

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_zero.py
import os
import warnings
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
warnings.filterwarnings("ignore", category=FutureWarning)
import deepspeed
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if not torch.cuda.is_available():  # an inference kernel that takes a minute to compile
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
backend = "nccl" if torch.cuda.is_available() else "gloo"
deepspeed.init_distributed(backend, verbose=False)
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}

inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)]
network = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
saved, first = Path(os.environ.get("CHECKPOINT", "train_zero")), 0
if saved.exists():
    _, state = engine.load_checkpoint(saved)
    first = state["epoch"] + 1

for epoch in range(first, first + 3):
    sampler.set_epoch(epoch)
    total = torch.zeros(1, device=engine.device)
    for x, y in loader:
        loss = (engine(x.to(engine.device)) - y.to(engine.device)).square().mean()
        engine.backward(loss)  # it divides the loss by the number of micro-batches
        engine.step()  # updates only after every second micro-batch
        total += loss.detach() / len(loader)
    torch.distributed.all_reduce(total)
    if torch.distributed.get_rank() == 0:
        mean = total.item() / torch.distributed.get_world_size()
        print(f"epoch {epoch}: mean loss {mean:.3f}")
    engine.save_checkpoint(saved, client_state={"epoch": epoch})
torch.distributed.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("24_zero", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Data-parallel ranks hold N copies of the training state. ZeRO keeps one copy, in N parts: stage 1 cuts the optimizer's state, stage 2 also the
#   gradients, stage 3 also the weights.
# - 7.5 billion parameters, K = 12, 64 GPUs, stages 0 to 3: **120, 31.4, 16.6, 1.9 GB**.
# - Passes sent, each (N - 1)/N of the weights: **2, 2, 2, 3** with one micro-batch, **2, 2, A + 1, 3 A** with A of them. Stage 1 is free.
#   Go on to stage 2 or 3 only if the state does not fit.
# - In addition to the state, a rank holds the layer at work, which N does not divide.
# - Measure your library: with one micro-batch, DeepSpeed's stages 1 and 2 send 3 passes (with A of them, stage 2 sends 2 A + 1), and its stage 3
#   keeps small models whole unless you configure it otherwise.
# - Offloading moves state to the host, and costs transfers over PCIe.
#
# Next: [25_fsdp](25_fsdp.ipynb), the same idea in PyTorch itself, and the choice that is left to you: what to gather at once.
#
# ## Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020,
#   [arXiv:1910.02054](https://arxiv.org/abs/1910.02054): section 3.1 (K = 12), figure 1, section 7 (traffic).
# - J. Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, USENIX ATC 2021, [arXiv:2101.06840](https://arxiv.org/abs/2101.06840).
# - S. Rajbhandari et al., *ZeRO-Infinity*, SC 2021, [arXiv:2104.07857](https://arxiv.org/abs/2104.07857) (parameters offloaded).
# - DeepSpeed 0.19: github.com/deepspeedai/DeepSpeed, `deepspeed/runtime/zero/config.py`, `stage_1_and_2.py`.
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, JPDC 2009.
