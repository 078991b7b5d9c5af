# %% [markdown]
# # How do N copies stay one model?
#
# - **You need** `00_welcome` and `21_collectives`; a training step in PyTorch.
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on two or four ranks, and unchanged on GPUs. One table of published figures comes from 256
#   GPUs. The last part rehearses 1,024 ranks on this machine.
# - **Model and text:** `TINY` and the Python reference manual, as on day 1. In the part on buckets the model is four times as wide and
#   twice as deep, because the gradients of `TINY`, half a MiB in all, would fit into one bucket. The script at the end trains a toy model
#   of its own.
# - **Links:** before this [21_collectives](21_collectives.ipynb), after it [23_ddp_limits](23_ddp_limits.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# The simplest way to use N devices is to give each of them a copy of the model and a part of the batch. Each copy then computes its own
# gradients. Yet we want to train *one* model, as if a single process had seen the whole batch. What has to be sent, when, and what goes
# wrong if it is not?

# %%
# %load_ext workshop
from workshop import show
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds
from workshop.exercises import beside

# %% [markdown]
# ## Four ranks, four models
#
# We use `TINY` and the text of day 1, the Python reference manual, with one byte per token. A step processes eight sequences, two on each
# rank. In the next cell every rank seeds its random generator with its own rank number, so each rank builds a different model.

# %%
# %%ranks -n 4
import torch

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

mine = TextBatches(seq_len=32, global_batch=8, rank=rank, num_ranks=world_size)


def fresh_model():
    torch.manual_seed(rank)  # each rank starts with different weights
    return GPT(TINY).to(device)


def train(model, after_backward=lambda: None, steps=20):
    """Mean loss over ranks, step by step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6)
    losses = []
    for step in range(steps):
        for tokens, targets in mine.step(step, device):
            loss = model(tokens, targets)
        loss.backward()
        after_backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / world_size)
    return losses


weight = fresh_model().model.embed_tokens.weight
first = [f"{value:+.3f}" for value in weight[0, :3].tolist()]
print("first weights:", ", ".join(first))

# %% [markdown]
# ## Step alike
#
# After `loss.backward()`, each rank holds the gradient of the mean loss over its own sequences. All ranks have the same number of
# sequences, so the *mean of these gradients* is the gradient over the whole batch. To compute it you need only `dist.all_reduce` from
# lesson 21.
#
# ### Exercise: one step for all
#
# The check compares your result with that of a single process that has the whole batch.

# %%
# %%exercise average_gradients
import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        ...


# %% [markdown]
# The cells below run your function. (Until it is right, they run the reference solution.) Before you continue, make a guess:

# %%
# %%guess copies --choices one,four
# The ranks average their gradients before every step, and do nothing else.
# After 20 steps, do the ranks hold one model or four? Write 'one' or 'four'.
...

# %%
# %%ranks --pass average_gradients --into apart
from workshop import report
from workshop.parallel.ddp import difference_between_ranks

model = fresh_model()
before = max(difference_between_ranks(model).values())
losses = train(model, lambda: average_gradients(model))
after = max(difference_between_ranks(model).values())
report(before=before, after=after, losses=losses)

# %%
first, last = apart[0].losses[0], apart[0].losses[-1]
before, after = apart[0].before, apart[0].after
print(f"mean loss: {first:.2f} in the first step, {last:.2f} in the last")
print(f"largest difference of a weight between ranks: {before:.3f}, then {after:.3f}")
assert last < first, "it looks as if it trained"
assert after > 0.5 * before, "and the copies never met"
beside("copies", measured="four" if after > 0 else "one")

# %% [markdown]
# The loss falls, and there is no error and no warning. Yet these are four different models, as far apart as at the start. They all took
# the same steps, but from different starting points. Nothing that a training loop usually prints would tell you.
#
# So taking the same steps is only half of what is needed. The copies must also **begin** alike.
#
# ### Exercise: the missing half

# %%
# %%exercise begin_alike
import torch
import torch.distributed as dist


def begin_alike(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place."""
    ...


# %% [markdown]
# The next cell compares three ways to train: your two functions; PyTorch's `DistributedDataParallel`, which does both halves by itself;
# and one process that has the whole batch. (That process is rank 0, while the other ranks wait.)

# %%
# %%ranks --pass average_gradients,begin_alike --into equal
from torch.nn.parallel import DistributedDataParallel

model = fresh_model()
begin_alike(model)
by_hand = train(model, lambda: average_gradients(model))
apart = max(difference_between_ranks(model).values())

ddp = DistributedDataParallel(fresh_model())  # broadcasts here, averages in backward
by_ddp = train(ddp)
report(by_hand=by_hand, ddp=by_ddp, apart=apart)

if rank == 0:
    model, losses = fresh_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6)
    batches = TextBatches(seq_len=32, global_batch=8)
    for step in range(20):
        for tokens, targets in batches.step(step, device):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report(one_process=losses)

# %%
single = equal[0].one_process
ways = (single, equal[0].by_hand, equal[0].ddp)
rows = [(f"{n + 1}", *(f"{way[n]:.5f}" for way in ways)) for n in (0, 1, 9, 19)]
assert equal[0].apart == 0, "not even the last bit differs between ranks"
head = ("step", "one process", "by hand, 4 ranks", "DistributedDataParallel")
Table(head, rows, "mean loss of a step")

# %% tags=["nbval-check-output"]
for way in ("by_hand", "ddp"):
    worst = max(abs(a - b) for a, b in zip(equal[0][way], single, strict=True))
    assert worst < 1e-5, (way, worst)
print("20 steps on 4 ranks, by hand and with DDP: the losses of one process, to 1e-5")

# %% [markdown]
# This is all of data parallelism: **begin alike, step alike**. The rest of the lesson is about doing it fast.
#
# ## Who gets which sample
#
# In the cells above, `TextBatches` gave every rank its own sequences. For a map-style dataset, PyTorch provides `DistributedSampler`. It
# shuffles the indices, and rank r takes every N-th index, beginning with the r-th.
#
# Ten samples cannot be divided evenly among four ranks. **Guess** what the sampler does about that:

# %%
# %%guess drawn
# Ten samples, four ranks, one epoch. How many samples do the ranks draw together?
...

# %%
# %%ranks --into drawn
from torch.utils.data import DataLoader, DistributedSampler

samples = list(range(10))
sampler = DistributedSampler(samples, shuffle=True, seed=0)
loader = DataLoader(samples, batch_size=2, sampler=sampler)


def one_epoch():
    return [sample for batch in loader for sample in batch.tolist()]


first, second = one_epoch(), one_epoch()
sampler.set_epoch(1)
report(first=first, second=second, after_set_epoch=one_epoch())

# %%
rows = []
for rank in range(4):
    mine = drawn[rank]
    epochs = (mine.first, mine.second, mine.after_set_epoch)
    rows.append((f"{rank}", *(" ".join(map(str, epoch)) for epoch in epochs)))
    assert mine.first == mine.second != mine.after_set_epoch
together = [sample for rank in range(4) for sample in drawn[rank].first]
assert set(together) == set(range(10))
display(Table(("rank", "first epoch", "second epoch", "after set_epoch(1)"), rows))
beside("drawn", measured=len(together))

# %% [markdown]
# The ranks draw twelve samples. Every rank needs the same number of steps; otherwise some ranks would wait in an all_reduce for ranks
# that have already finished. So two of the samples are drawn twice. (`drop_last=True` leaves two out instead.) An evaluation that counts
# samples has to take this into account.
#
# Without `set_epoch`, every epoch uses the same order. There is no warning about this either.
#
# ## Three traps
#
# **A mean of means.** Real sequences differ in length, and padding does not count toward the loss. In the next cell, the four ranks have
# 24, 8, 16 and 16 tokens. If each rank takes the mean over its own tokens, and DDP then takes the mean over the ranks, a token of rank 1
# counts three times as much as a token of rank 0. In one process with all 64 tokens, all would count the same.

# %%
# %%guess mean_of_means --unit %
# How far off is the gradient, in percent of its norm, if you do nothing about it?
...

# %%
# %%ranks --into weighed
import torch.nn.functional as F

counts = (24, 8, 16, 16)  # tokens of each rank; the rest of a row is padding
draw = torch.Generator().manual_seed(5)
x = torch.randn(4, 24, 6, generator=draw).to(device)
y = torch.randn(4, 24, 1, generator=draw).to(device)
real = (torch.arange(24) < torch.tensor(counts)[:, None]).to(device)


def gradient(wrap, rows, loss_of):
    """Of a linear model: the gradient of a loss of the tokens that are real."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, 1).to(device)
    model = wrap(linear)
    by_token = F.mse_loss(model(x[rows]), y[rows], reduction="none")
    loss_of(by_token.squeeze(-1)[real[rows]]).backward()
    return linear.weight.grad


whole = gradient(lambda model: model, slice(None), torch.mean)  # one process
of_means = gradient(DistributedDataParallel, rank, torch.mean)

total = real[rank].sum().float()
dist.all_reduce(total)  # tokens of all ranks; DDP will divide by world_size
of_tokens = gradient(
    DistributedDataParallel, rank, lambda own: own.sum() * world_size / total
)
off = [((g - whole).norm() / whole.norm()).item() for g in (of_means, of_tokens)]
report(of_means=off[0], of_tokens=off[1])

# %%
for rank in range(4):
    assert weighed[rank].of_tokens < 1e-5 < 0.05 < weighed[rank].of_means
off = (weighed[0].of_means, weighed[0].of_tokens)
rows = zip(("mean of means", "over all tokens"), (f"{o:.2%}" for o in off), strict=True)
display(Table(("how the loss is averaged", "gradient off by"), list(rows)))
beside("mean_of_means", measured=100 * weighed[0].of_means)

# %% [markdown]
# One extra message solves this, as the second line of the table shows: sum the token counts of all ranks, and let every rank divide its
# sum of losses by this total. (Also multiply by the number of ranks, because DDP divides by it.) The same holds for gradient
# accumulation, because micro-batches are parts of the batch as well.
#
# **A parameter without a gradient.** DDP packs parameters into *buckets* (more on them below), and sends a bucket when the gradients of
# *all* its parameters are ready. But `forward` may leave a layer out, for example because of an early exit or a second head. Then the
# gradient of that layer never arrives, and its bucket is never sent. The buckets behind it wait too, because all ranks send their buckets
# in the same order. The second step then stops with an error:


# %% tags=["raises-exception"]
# %%ranks
class TwoHeads(torch.nn.Module):
    """A body and two heads, of which only one is used."""

    def __init__(self):
        super().__init__()
        layers = (torch.nn.Linear(6, 6) for _ in range(3))
        self.body, self.used, self.unused = layers

    def forward(self, x):
        return self.used(self.body(x)).sum()


def two_steps(**options):
    ddp = DistributedDataParallel(TwoHeads().to(device), **options)
    for _ in range(2):
        ddp(x[rank]).backward()


two_steps()

# %%
# %%ranks
two_steps(find_unused_parameters=True)
print("two steps, although a head has no gradient")

# %% [markdown]
# With `find_unused_parameters=True`, DDP searches the graph after each forward, and marks the parameters that are missing from it as
# ready. This takes time in every step, so use it only if some steps really leave a part of the model unused.
# (If the graph is the same in every step, `static_graph=True` tells DDP so, and it does not have to search each time.)

# %% [markdown]
# **Batch norm** takes its mean and variance over the samples of its own rank, so under DDP it sees the per-rank batch and not the global
# one. `torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` takes them over all ranks, and sends messages in every forward and backward
# for that. The running means are buffers: before each forward, DDP broadcasts those of rank 0, unless you pass `broadcast_buffers=False`.
# (`36_vision_lab` trains a model with batch norm, and comes back to this.)

# %% [markdown]
# ## While backward runs
#
# Our averaging waits for the end of backward before it sends anything. But the gradient of the last layer is complete long before the
# gradient of the first layer. It could already be on its way.
#
# ### Exercise: start early

# %%
# %%exercise overlapped_average
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        # Called by autograd: parameter.grad is complete.
        ...

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        # Called by you: wait for what was started, make means of sums.
        ...

    return finish


# %% [markdown]
# ## Four ways to send the same gradients
#
# We compare four ways:
#
# - Your `average_gradients` waits for the end of backward, and sends one message per parameter.
# - *Flat* also waits, but packs all gradients into a single message.
# - Your `overlapped_average` starts early, again with one message per parameter.
# - `DistributedDataParallel` starts early and packs: it collects gradients in **buckets**, and sends each bucket as soon as it is full.
#
# We time each of them on two ranks. The model must have something to send, so here it is larger: four times as wide as `TINY`, and twice
# as deep. The first backward of each is not counted. DDP does not know yet in which order the gradients come, and sends all of them in a
# single bucket.

# %%
# %ranks stop

# %%
# %%ranks -n 2 --into larger_sizes
import time
from dataclasses import replace
from functools import partial

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

larger = replace(TINY, hidden_size=256, intermediate_size=768, num_layers=4)
((tokens, targets),) = TextBatches(64, 4, rank, world_size).step(0, device)


def larger_model():
    torch.manual_seed(0)
    return GPT(larger).to(device)


def fastest(prepares, tries=6):
    """Seconds of each one's fastest call; in turns, so that a busy moment hits all."""
    seconds = {name: [] for name in prepares}
    for name, prepare in list(prepares.items()) * (1 + tries):
        call = prepare()
        dist.barrier()  # all ranks begin together
        start = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds[name].append(time.perf_counter() - start)
    return {name: min(tried[1:]) for name, tried in seconds.items()}  # not the first


sizes = [parameter.nbytes for parameter in larger_model().parameters()]
print(f"{len(sizes)} parameters' gradients are {sum(sizes) / 2**20:.1f} MiB")
report(sizes=sizes)

# %%
# %%guess messages
# This model has 39 parameter tensors, 12.5 MiB in all. In how many all_reduces does
# DistributedDataParallel send their gradients, with buckets of 2 MiB?
...

# %%
# %%ranks --pass average_gradients,overlapped_average --into ways
from torch.nn.parallel import DistributedDataParallel


def average_flat(model):
    """All gradients in one message, when backward is over."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    means = (flat / world_size).split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def backward(model, finish=lambda: None):
    """What is clocked: a backward, with everything that it sends."""
    model.zero_grad()
    loss = model(tokens, targets)
    return lambda: (loss.backward(), finish())


plain, flat, early = larger_model(), larger_model(), larger_model()
cases = {
    "one by one, after backward": (plain, lambda: average_gradients(plain)),
    "flat, after backward": (flat, lambda: average_flat(flat)),
    "one by one, during backward": (early, overlapped_average(early)),
    "DDP": (DistributedDataParallel(larger_model(), bucket_cap_mb=2),),
}
seconds = fastest({name: partial(backward, *case) for name, case in cases.items()})
for name, (model, *finish) in cases.items():
    with measure(memory=False) as measured:
        backward(model, *finish)()
    messages = sum(row.count for row in measured.traffic if row.wire_bytes > 8)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    report(**{name: {"seconds": seconds[name], "messages": messages, "norm": norm}})

# %% [markdown]
# How does DDP fill its buckets? It takes the gradients in the order in which backward produces them, from the last layer to the first, and
# closes a bucket as soon as it has *reached* its size:


# %%
def fill_buckets(sizes, cap):
    """Cut sizes (bytes of gradients, in the order of backward) into buckets."""
    buckets = [[]]
    for size in sizes:
        if sum(buckets[-1]) >= cap:
            buckets.append([])
        buckets[-1].append(size)
    return [sum(bucket) for bucket in buckets]


filled = fill_buckets(reversed(larger_sizes[0].sizes), 2 * 2**20)

# %%
norm, rows = ways[0]["DDP"]["norm"], []
for name, way in ways[0].items():
    rows.append((name, str(way["messages"]), format_seconds(way["seconds"])))
    assert abs(way["norm"] - norm) < 1e-5 * norm, "the same gradients, whichever way"
assert ways[0]["one by one, after backward"]["messages"] == 39
display(Table(("how gradients are sent", "messages", "one backward"), rows))
beside("messages", predicted=len(filled), measured=ways[0]["DDP"]["messages"])

# %% [markdown]
# (Messages of 8 bytes or less are not counted, because they contain no gradients.)
#
# Every message has a fixed cost $\alpha$ before its first byte moves. Sending gradients one by one pays this cost for every parameter.
# Sending only after backward makes all ranks wait until everything has been sent. Buckets avoid both: there are few messages, and most of
# them leave during backward.
#
# The times above are not a test of this. On two CPU cores the sending and the backward compete for the same cores, so any of the four
# ways may come out first here, and DDP may be slower than sending one by one. GPUs compute while their links send.
#
# ### Look inside
#
# What happens when? `BucketedDDP` in `workshop/parallel/ddp.py` puts the hooks of your `overlapped_average` and the buckets of
# `fill_buckets` together. It does the same as DDP in a hundred lines of Python, so that we can watch it.

# %%
# %%ranks --into watched
from workshop.parallel.ddp import BucketedDDP, bucket_bytes, wrap_ddp

events = []


def watch(*what):
    events.append((*what, time.perf_counter()))


def watched_backward(model):
    """Seconds of one backward, and what happened when, in seconds from its start."""
    run = backward(model)
    dist.barrier()
    events.clear()
    start = time.perf_counter()
    run()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    seconds = time.perf_counter() - start
    return seconds, [(*what, when - start) for *what, when in events]


by_hand = BucketedDDP(larger_model(), bucket_cap_mb=2, watch=watch)
seconds, seen = min(watched_backward(by_hand) for _ in range(6))
sizes = [sum(p.nbytes for p in bucket) for bucket in by_hand.buckets]
ddp = wrap_ddp(larger_model(), bucket_cap_mb=2)
for _ in range(3):  # DDP rearranges its buckets after the first step
    backward(ddp)()
report(events=seen, seconds=seconds, sizes=sizes, torch_sizes=bucket_bytes(ddp))

# %%
seen = watched[0]
show.bucket_timeline(seen.events, seen.seconds)

# %% [markdown]
# Each tick marks the moment at which a gradient was complete, and its color shows its bucket. A bar begins when that bucket is handed
# over for sending, and ends when its sum has come back. The first buckets are on their way while the remaining gradients are still being
# computed. The part to the right of the dotted line is *exposed*: no computation hides it.
#
# The bytes alone would need less time than the bars show, as the next section measures. The rest of a bar is waiting, because here two
# ranks and the threads that send for them share two cores.
#
# (All buckets but the last have 2 MiB or a little more, because a bucket is closed only when it has reached its size; the last one holds
# what is left. On a GPU, ticks and bars show when work was handed to the device, not when it was done.)

# %% tags=["nbval-check-output"]
sent = [bucket for what, bucket, _, _ in seen.events if what == "sent"]
assert filled == seen.sizes == seen.torch_sizes, (seen.sizes, seen.torch_sizes)
assert round(sum(seen.sizes) / 2**20, 1) == 12.5
assert sent == sorted(sent), "one order on all ranks, whichever bucket is full first"
sizes = [format_bytes(size) for size in seen.sizes]
print("buckets, in the order of sending:", ", ".join(sizes))
print("the same sizes by fill_buckets, BucketedDDP and DistributedDataParallel")

# %% [markdown]
# ### How large should a bucket be?
#
# Many small buckets start early, but pay $\alpha$ many times. One large bucket pays it once, but starts only when backward is over. Which
# size is best? Suppose the gradients become ready at a constant rate during backward. Then a bucket is full when its share of them is
# ready, and it is sent as soon as the wire is free:

# %%
from itertools import accumulate


def arrivals(sizes, backward, alpha, beta):
    """When each bucket is full and when its mean is back, in seconds of backward."""
    whole = sum(sizes)
    full = [backward * done / whole for done in accumulate(sizes)]
    arrived = []
    for size, ready in zip(sizes, full, strict=True):
        free = arrived[-1] if arrived else 0.0  # one after the other
        arrived.append(max(ready, free) + alpha + size / beta)
    return full, arrived


# %% [markdown]
# On a CPU the same cores send and compute, so little of the sending can be hidden. A GPU's links send almost by themselves. We imitate such a link on
# this machine, a slow one. `register_comm_hook` lets us replace what DDP does with a full bucket: our hook hands the bucket to a second thread, which
# sleeps for $\alpha + n / \beta$ and then runs the all_reduce. Sleeping does not need a core.

# %%
ALPHA, BETA = 0.002, 1e9  # seconds per message, bytes per second

# %%
# %%guess backward_ms --unit ms --points 0.1MiB,2MiB,100MiB
# 12.5 MiB of gradients over this wire, at 2 ms per message and 1 GB/s. How long is
# the backward of the picture above with DDP's buckets of each size, sends included?
# Write a list of three numbers.
...

# %%
# %%ranks --pass ALPHA,BETA
from concurrent.futures import ThreadPoolExecutor

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

wire = ThreadPoolExecutor(1)  # one message after the other


def send(values):
    """A message over the slow wire: the mean over ranks, in place."""
    time.sleep(ALPHA + values.nbytes / BETA)
    dist.all_reduce(values)
    return values.div_(world_size)


def slow_wire(_, bucket):
    """Hand a full bucket to the wire; DDP waits for what this returns."""
    values = bucket.buffer()
    arrived = torch.futures.Future(devices=[values.device] if values.is_cuda else None)
    wire.submit(lambda: arrived.set_result(send(values)))
    return arrived


# %% [markdown]
# For the prediction we time the two parts separately: a backward that copies gradients into buckets and sends nothing, and the slow wire.
# The $\alpha$ and $\beta$ of the wire follow from messages of 4 KiB and of 8 MiB, as in lesson 21.

# %%
# %%ranks --into swept
caps = (0.1, 0.5, 2, 8, 100)
models = {
    mib: DistributedDataParallel(larger_model(), bucket_cap_mb=mib) for mib in caps
}
for model in models.values():
    model.register_comm_hook(None, slow_wire)
prepares = {str(mib): partial(backward, model) for mib, model in models.items()}
copying = DistributedDataParallel(larger_model(), bucket_cap_mb=100)
copying.register_comm_hook(None, noop_hook)  # buckets are filled, but nothing is sent
prepares["copies"] = partial(backward, copying)


def over_the_wire(size):
    values = torch.ones(size, device=device)
    return lambda: wire.submit(send, values).result()


prepares |= {
    "small": lambda: over_the_wire(2**10),
    "large": lambda: over_the_wire(2**21),
}
plain = torch.ones(2**19, device=device)  # 2 MiB, without the sleep
prepares["plain"] = lambda: partial(dist.all_reduce, plain)
report(seconds=fastest(prepares), kind=device.type)
report(sizes={str(mib): bucket_bytes(model) for mib, model in models.items()})
gradients = torch.cat([p.grad.flatten() for p in models[2].parameters()])
report(norm=gradients.norm().item())

# %%
import matplotlib.pyplot as plt

seconds, sizes, caps = swept[0].seconds, swept[0].sizes, (0.1, 0.5, 2, 8, 100)
print(f"2 MiB without the sleep: {format_seconds(seconds['plain'])}")
alpha, beta = seconds["small"], 2**23 / (seconds["large"] - seconds["small"])
print(f"this wire: alpha {alpha * 1e3:.1f} ms, beta {beta / 1e9:.2f} GB/s;", end=" ")
print(f"alpha times beta is {alpha * beta / 2**20:.1f} MiB")
predicted, measured, rows = [], [], []
for cap in map(str, caps):
    by_hand = fill_buckets(reversed(larger_sizes[0].sizes), float(cap) * 2**20)
    assert by_hand == sizes[cap], "DDP's buckets"
    predicted.append(1e3 * arrivals(sizes[cap], seconds["copies"], alpha, beta)[1][-1])
    measured.append(1e3 * seconds[cap])
    times = (f"{predicted[-1]:.1f} ms", f"{measured[-1]:.1f} ms")
    rows.append((f"{cap} MiB", str(len(sizes[cap])), *times))
    assert 0.2 < measured[-1] / predicted[-1] < 5  # loose: other programs may run
    slept = len(sizes[cap]) * ALPHA + sum(sizes[cap]) / BETA
    assert seconds[cap] > slept, "one message after the other"
assert predicted[2] < predicted[0], "an alpha for each of many"
if seconds["copies"] > 7 * alpha:  # long enough to hide much of the sending
    assert predicted[2] < predicted[4]
if swept[0].kind == "cpu":
    sent = {bucket: when for what, bucket, _, when in seen.events if what == "sent"}
    ended = {bucket: when for what, bucket, _, when in seen.events if what == "arrived"}
    assert seconds["plain"] < max(ended[bucket] - sent[bucket] for bucket in ended)
assert abs(swept[0].norm / norm - 1) < 1e-5, "the mean, by any wire"
assert alpha * beta < 8 * 2**20
Table(("bucket size", "buckets", "predicted", "measured"), rows)

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
axes.plot(caps, predicted, "--", color="gray", label="predicted")
axes.plot(caps, measured, "o", color="black", label="measured")
label = "backward, nothing sent"
axes.axhline(1e3 * seconds["copies"], linestyle=":", color="gray", label=label)
for cap in caps:
    words = f"{len(sizes[str(cap)])} buckets" if cap < 100 else "1 bucket"
    axes.text(cap, 3, words, ha="center", fontsize=9)
axes.set(xscale="log", xlabel="bucket size (MiB)", ylabel="one backward (ms)")
axes.set_ylim(0, 1.1 * max(measured + predicted))
axes.set_xlim(0.04, 250)
figure.legend(loc="outside upper center", ncols=3, frameon=False)
plt.show()

# %%
beside(
    "backward_ms",
    predicted=[predicted[place] for place in (0, 2, 4)],
    measured=[measured[place] for place in (0, 2, 4)],
)

# %% [markdown]
# On the left of the plot, each of thirty buckets pays its $\alpha$. On the right, the single bucket waits until backward is over, so
# nothing is hidden. In between, a part of the sending happens during backward. It can never be all of it, because the last bucket is full
# only when backward ends.
#
# Compare the points with the line. The prediction assumes that sending does not slow down backward. For the single bucket this is true,
# because it leaves after backward. With more buckets, the thread that sends and its all_reduces may take time from the cores that compute
# backward. So points to the left may lie well above the line, and the bucket size that is best in the measurement may be larger than the
# one that is best in the prediction.
#
# (The wire is slower than the 2 ms and 1 GB/s that we set, because each message also pays for its all_reduce, and for waking a thread.
# If other programs compute at the same time, points can lie anywhere: run the cell again.)
#
# At a size of $n = \alpha\beta$, printed above, the bytes of a bucket take as long as its $\alpha$. A bucket should be larger, so that
# $\alpha$ is a small part of its time. It should also be small compared to the model, so that most buckets can be hidden. PyTorch uses 25
# MiB, and 1 MiB for the first bucket. A model with 5 GB of gradients then still has dozens of buckets (65 in the rehearsal below).
#
# ### A slider that decides
#
# The next cells use the same `arrivals`, now with the sizes of a GPU: 5 GB of gradients, a backward of 400 ms, and a wire that carries 25
# GB per second. **Which bucket size leaves the shortest wait after backward?** Find it for an $\alpha$ of 30 microseconds, and then for
# one of 3,000.

# %%
import math

from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure

GRADIENTS, BACKWARD, FAST = 5e9, 0.4, 25e9  # bytes, seconds, bytes per second
SIZES, ALPHAS = (0.1, 1, 5, 25, 100, 500, 5_000), (5, 30, 300, 3_000)


def buckets_on_the_wire(bucket_mib, alpha_us):
    """`arrivals` of buckets of one size."""
    count = math.ceil(GRADIENTS / (bucket_mib * 2**20))
    return arrivals([GRADIENTS / count] * count, BACKWARD, alpha_us * 1e-6, FAST)


def left_to_wait(bucket_mib, alpha_us):
    """Milliseconds after backward until the last bucket has arrived."""
    return 1e3 * (buckets_on_the_wire(bucket_mib, alpha_us)[1][-1] - BACKWARD)


# %%
def draw(bucket_mib, alpha_us):
    """Gradients that are complete, and gradients that have arrived, over time."""
    figure, axis = new_figure(7.0, 3.0)
    share = GRADIENTS / len(buckets_on_the_wire(bucket_mib, alpha_us)[0]) / 1e9
    for label, times in zip(
        ("complete", "arrived"), buckets_on_the_wire(bucket_mib, alpha_us), strict=True
    ):
        gigabytes = [share * (number + 1) for number in range(len(times))]
        axis.step([1e3 * t for t in times], gigabytes, where="post", label=label)
    axis.axvline(1e3 * BACKWARD, color="gray", linestyle=":", label="end of backward")
    axis.set(xlabel="milliseconds since backward began", ylabel="gradients (GB)")
    waits = f"{left_to_wait(bucket_mib, alpha_us):,.1f} ms left to wait"
    axis.set_title(f"{bucket_mib} MiB, alpha {alpha_us} us: {waits}", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return Picture(figure, waits)


explore(draw, [Control("bucket_mib", 25, SIZES), Control("alpha_us", 3_000, ALPHAS)])

# %% tags=["nbval-check-output"]
best, rows = {}, []
for alpha_us in ALPHAS:
    waits = [left_to_wait(size, alpha_us) for size in SIZES]
    best[alpha_us] = SIZES[waits.index(min(waits))]
    times = [format_seconds(wait / 1e3) for wait in waits]
    rows.append((f"{alpha_us:,} µs", f"{best[alpha_us]} MiB", *times))
assert [best[alpha_us] for alpha_us in (30, 300, 3_000)] == [1, 25, 100]
at_30 = {size: left_to_wait(size, 30) for size in (1, 5, 25, 100)}
at_3000 = {size: left_to_wait(size, 3_000) for size in (25, 100)}
assert max(at_30.values()) < 5
assert round(at_30[25]) == 1
assert at_3000[100] < 10 < 300 < at_3000[25]
head = ("alpha", "best size", *(f"{size:,} MiB" for size in SIZES))
Table(head, rows, "What is left to wait after backward, by bucket size")

# %% [markdown]
# The best bucket size grows with $\alpha$: 1 MiB at 30 microseconds, 25 at 300, 100 at 3,000. When $\alpha$ is small, the choice matters
# little: at 30 microseconds, any size from 1 to 100 MiB leaves a wait of less than 5 ms after a backward of 400 ms, and PyTorch's 25 MiB
# leaves 1 ms. At 3,000 microseconds, the choice is decisive: 25 MiB leaves hundreds of milliseconds, and 100 MiB fewer than ten.
#
# ## Predict the bytes
#
# Packing does not change the number of bytes. In a ring, each rank sends
#
# $$2\,\frac{N-1}{N} \times \text{gradient bytes}$$
#
# in each step. With **gradient accumulation**, a step consists of several micro-batches, and each of them has its own backward. Only the
# last backward has to send: `no_sync()` tells DDP to send nothing in the others. The forward has to be inside `no_sync()` too, because DDP
# decides there what its backward will do.
#
# The steps are written as a function, because we run them twice: on four ranks now, and as one of 1,024 ranks at the end. (Three steps,
# because DDP rearranges its buckets after the first step, and the ranks agree on them in the second. We count the bytes of the third.)
# `gradient_as_bucket_view=True` makes each gradient a view into its bucket, which saves a copy, and as much memory as all gradients take.


# %%
def three_steps(accumulation=1, quiet=True, batch=1, seq_len=64, **shape):
    """Three steps of a Llama under DDP, each of `accumulation` micro-batches.

    Returns how many parameters it has.
    """
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from workshop.models.gpt import GPT, GPTConfig

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    config = GPTConfig(**shape)
    network = GPT(config).to(device)
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        for micro in range(accumulation):
            tokens = torch.randint(config.vocab_size, (batch, seq_len), device=device)
            stays_quiet = quiet and micro < accumulation - 1
            with model.no_sync() if stays_quiet else contextlib.nullcontext():
                (model(tokens, tokens) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(parameter.numel() for parameter in model.parameters())


# %%
# %%guess wire_bytes --unit B
# 4 ranks, TINY's 131,392 parameters in fp32, 4 micro-batches with no_sync.
# How many bytes does one rank send in a step? A formula will do.
...

# %%
# %ranks stop

# %%
# %%ranks -n 4 --pass three_steps --into counted
import gc
from dataclasses import asdict

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import TINY

cases = {
    "one": {},
    "four, with no_sync": {"accumulation": 4},
    "four, without": {"accumulation": 4, "quiet": False},
}
for name, options in cases.items():
    with measure(memory=False) as measured:
        num_params = three_steps(**options, **asdict(TINY))
    sent = sum(row.wire_bytes for row in measured.traffic)
    report(num_params=num_params, **{name: sent})
    gc.collect()

# %% tags=["nbval-check-output"]
N, gradient_bytes = 4, 4 * counted[0].num_params
all_reduces = {"one": 1, "four, with no_sync": 1, "four, without": 4}
rows = []
for name, times in all_reduces.items():
    predicted = times * 2 * (N - 1) / N * gradient_bytes
    rows.append((name, f"{predicted:,.0f} B", f"{counted[0][name]:,} B"))
    assert all(counted[rank][name] == predicted for rank in range(N))
Table(("micro-batches", "predicted", "measured"), rows, "sent by a rank in one step")

# %%
formula = 2 * (N - 1) / N * gradient_bytes
beside("wire_bytes", predicted=formula, measured=counted[0]["four, with no_sync"])

# %% [markdown]
# The prediction is right to the byte. Without `no_sync`, four micro-batches cost four times the traffic for the same step.
#
# ### Which network do you need?
#
# Goyal et al. (2017) calculated this for ResNet-50 on 32 servers (section 4.3). Its backward takes 120 ms on a P100, and the gradients
# have to be sent in this time. According to the paper, a server needs 12.8 Gbit/s for that. (The paper rounds the time to 125 ms, and so
# do we.) The next cell counts the parameters and applies the formula:


# %% tags=["nbval-check-output"]
def resnet_50():
    """Parameters: convolutions, two numbers a channel for each norm, the last layer."""
    count, channels = 7 * 7 * 3 * 64 + 2 * 64, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            count += channels * width + 9 * width**2 + width * 4 * width
            count += 2 * (width + width + 4 * width)
            if block == 0:  # the shortcut around the block changes width, too
                count += channels * 4 * width + 2 * 4 * width
            channels = 4 * width
    return count + channels * 1_000 + 1_000


per_step = 2 * (32 - 1) / 32 * 4 * resnet_50()
gigabits = 8 * per_step / 0.125 / 1e9
print(
    f"{resnet_50():,} parameters, {per_step / 1e6:.0f} MB a server and step:", end=" "
)
print(f"{gigabits:.1f} Gbit/s")
assert resnet_50() == 25_557_032, "as torchvision's documentation has it"
assert abs(gigabits / 12.8 - 1) < 0.02, (
    "the paper counts 25 million, and 2 for 2 x 31/32"
)

# %% [markdown]
# The authors had a network of 50 Gbit/s, and trained at about 90 % of perfect scaling.
#
# ## A larger batch needs a different learning rate
#
# With N ranks, a step processes N times as many samples: **global batch = per-rank batch x N** (x accumulation). The gradient is a mean,
# so it does not grow with N; it only becomes less noisy. If you keep the learning rate, N times as many samples still give only one step,
# and this step is no longer than before.
#
# Goyal et al. (2017) argue as follows. N small steps in a row, all from nearly the same place, add up to about one step with the mean of
# their gradients and **N times the learning rate**. We test this with three seeds. One process takes four SGD steps, with one batch each,
# and we compare them with one step of four ranks that use these four batches.

# %%
# %%ranks --pass average_gradients --into steps
import copy

from workshop.models.gpt import GPT
from workshop.models.text import TextBatches


def moved(model, from_model):
    pairs = zip(model.parameters(), from_model.parameters(), strict=True)
    return torch.cat([(a - b).detach().flatten() for a, b in pairs])


def stepped(start, lr, batches, average=lambda model: None):
    """A copy of the model after a step of SGD with each of the batches."""
    model = copy.deepcopy(start)
    for tokens, targets in batches:
        model.zero_grad()
        model(tokens, targets).backward()
        average(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= lr * parameter.grad
    return model


def miss(seed, lr, factor):
    """Distance of one large step from four small ones, in lengths of their way."""
    torch.manual_seed(seed)
    start = GPT(TINY).to(device)
    parts = [TextBatches(32, 32, place, 4, seed=seed) for place in range(4)]
    batches = [next(part.step(0, device)) for part in parts]
    small = stepped(start, lr, batches)
    large = stepped(start, factor * lr, [batches[rank]], average_gradients)
    return (moved(large, small).norm() / moved(small, start).norm()).item()


cases = [(lr, factor) for lr in (0.001, 0.05) for factor in (1, 4)]
report(missed={case: [miss(seed, *case) for seed in range(3)] for case in cases})

# %%
missed = steps[0].missed
rows = []
for lr in (0.001, 0.05):
    same, four = (", ".join(f"{m:.0%}" for m in missed[lr, f]) for f in (1, 4))
    rows.append((f"{lr}", same, four))
assert max(missed[0.001, 4]) < 0.1 < 0.7 < min(missed[0.001, 1])
assert min(missed[0.05, 4]) > 0.3, "no seed arrives"
title = "How much of the way one large step misses, for three seeds"
Table(
    ("rate of the small steps", "at that rate", "at four times the rate"), rows, title
)

# %% [markdown]
# At the same rate, the one step is as long as a quarter of the four steps, so three quarters of the way are missing. At four times the
# rate, it arrives at the same place, as long as the steps are so small that the gradient hardly changes. With large steps the rule breaks
# down.
#
# The rule also fails early in training, where the gradient changes quickly, so one begins with a small rate and raises it over the first
# epochs (*warm-up*). And beyond some batch size (the *critical batch size* of `18_scale_the_recipe`) no rate helps: the gradient is
# almost exact, and more samples add little to it. With Adam, whose steps do not grow with the gradient, the rule is $\sqrt{N}$ instead of
# N (Malladi et al., 2022).
#
# **Published** (Goyal et al., ResNet-50 on ImageNet, learning rate 0.1 x batch / 256):
#
# | GPUs | batch | learning rate | top-1 error |
# |---|---|---|---|
# | 8 | 256 | 0.1 | 23.60 % |
# | 256 | 8,192 | 3.2, after a warm-up | 23.74 % |
#
# The training took one hour instead of more than a day.
#
# ## When a rank dies
#
# N copies also mean N chances that one fails, and then the others wait for it. `torchrun --max-restarts 1` ends all ranks and starts them
# again, at most once. It restarts the *program*, so everything that was not saved is lost. Therefore save regularly, and compute from the
# number of a step which samples belong to it. The next cell defines `save` and `go_on`:

# %%
import os

import torch

from workshop import launch

folder = str(launch.Session.get().directory)  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = f"{folder}/train_ddp.pt"


def save(path, step, model, optimizer):
    """First beside it, then in its place: the last file stays whole until then."""
    partial = path.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({"step": step, **state}, partial)
    partial.replace(path)


def go_on(path, model, optimizer):
    """Load what was saved, if anything was; the number of the next step."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


# %% [markdown]
# The training is the same as above, except that it continues from the last saved step. We save `model.module`, the model inside DDP. The
# keys of the wrapper's own `state_dict()` all begin with `module.`, and a model without DDP could not load them. We can also tell rank 1 to
# die in the first attempt.

# %%
import signal

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches


def ten_steps(path, rank, attempt, dies_at=None):
    """Ten steps on two ranks, saved after every third; the mean of the last losses."""
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    torch.manual_seed(rank)
    model = DistributedDataParallel(GPT(TINY).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = go_on(path, model.module, optimizer)
    if first:
        print(f"restart {attempt}: goes on after step {first}")
    for step in range(first, 10):
        if step + 1 == dies_at and attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for tokens, targets in TextBatches(32, 8, rank, 2).step(step, device):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 3 == 0:
            if rank == 0:
                save(path, step + 1, model.module, optimizer)
            dist.barrier()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / 2


# %% [markdown]
# Rank 1 is killed in step 7 of 10. Afterwards the program trains once more without a death, for comparison.

# %%
# %ranks stop

# %%
# %%torchrun -n 2 --max-restarts 1 --pass folder,ten_steps --into survived
import gc
import os
from pathlib import Path

import torch.distributed as dist

from workshop import report

dist.init_process_group()
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
broken = ten_steps(Path(folder, "broken.pt"), rank, attempt, dies_at=7)
unbroken = ten_steps(Path(folder, f"{attempt}.pt"), rank, attempt)
report(broken=broken, unbroken=unbroken)
gc.collect()
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
assert survived[0].broken == survived[0].unbroken
print("killed in step 7, restarted after 6: the unbroken run's loss, to the last bit")

# %% [markdown]
# `workshop.train.checkpoint` does the same for models that no single rank holds completely.
#
# ## At scale: 1,024 ranks
#
# Now we run `three_steps` once more, with the sizes of Llama 3.2 1B, as rank 0 of 1,024. Nothing is sent and no weight occupies memory,
# but PyTorch's DDP runs as it would on a real cluster, and every collective is recorded.

# %%
from dataclasses import asdict

from workshop.facts import catalogue
from workshop.models.from_spec import gpt_config
from workshop.rehearse import rehearse

llama = catalogue.model("llama-3.2-1b")
sizes = {"accumulation": 2, "seq_len": 4_096, **asdict(gpt_config(llama))}
rehearsed = rehearse(three_steps, world_size=1_024, steps=3, keywords=sizes)
show.traffic_table({"rehearsed": rehearsed})

# %% tags=["nbval-check-output"]
closed_form = 2 * 1_023 / 1_024 * 4 * llama.num_params
(row,) = rehearsed.traffic
print(f"rehearsed   {row.wire_bytes:>14,} B a rank and step, in {row.count} buckets")
print(f"closed form {closed_form:>14,.0f} B: 2 (N - 1) / N times 4 for each parameter")
assert abs(row.wire_bytes - closed_form) <= row.count
on_four, on_many = (2 * (n - 1) / n * 4e-9 * llama.num_params for n in (4, 100_000))
assert (round(on_four), round(closed_form / 1e9), round(on_many)) == (7, 10, 10)
shape = gpt_config(llama)
matrix = 4 * shape.hidden_size * shape.intermediate_size  # of the feed-forward layers
assert (row.count, round(matrix / 1e6)) == (65, 67), "larger than a bucket of 25 MiB"
assert math.ceil(4 * llama.num_params / (25 * 2**20)) == 189

# %% [markdown]
# (Cut into pieces of exactly 25 MiB, these gradients would make 189 buckets. There are only 65, because a single matrix of a feed-forward
# layer has 67 MB, and DDP does not cut it.)
#
# Each rank sends ten gigabytes in each step, whether there are a thousand ranks or a hundred thousand (with four ranks it would be seven). Is there
# enough time to hide this? Backward has to take at least as long as the sending, and its time grows with the number of tokens. So the question is
# **how many tokens a rank processes in a step**:

# %%
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop import predict_step

efficiency, wire, slowest, rows = {}, [], {}, []
for sequences in (1, 2, 4, 8):
    one = Layout(precision="amp-bf16", recompute="full")
    all_ranks = Layout(replicate=1_024, precision="amp-bf16", recompute="full")
    run = Run(llama, "1024xH100", all_ranks, sequences, 4_096)
    step = predict_step(run)
    together = step.seconds
    wire.append(step.causes["data"])  # communication that nothing hides
    slowest[sequences] = step.causes["skew"] / together  # waiting for other ranks
    single = predict_step(Run(llama, "1xH100", one, sequences, 4_096)).seconds
    efficiency[sequences] = single / together
    times = [format_seconds(seconds) for seconds in (single, together, wire[-1])]
    parts = (efficiency[sequences], wire[-1] / together, slowest[sequences])
    shares = [f"{part:.1%}" for part in parts]
    rows.append((f"{sequences * 4_096:,}", *times, *shares))
assert list(efficiency.values()) == sorted(efficiency.values())
assert max(wire) - min(wire) < 1e-4, "the same in each row"
assert rows[0][3] == "22.5 ms", "and a share of 13 % in the first row, 2 % in the last"
assert [round(float(row[5].rstrip("%"))) for row in (rows[0], rows[-1])] == [13, 2]
assert all(0.09 < share < 0.1 for share in slowest.values())
head = ("tokens a rank", "a step alone", "of 1,024", "wait for the wire")
head += ("efficiency", "wire's share", "share of waiting for the slowest")
Table(head, rows, "1,024 H100, Llama 3.2 1B, fp32 gradients")

# %% [markdown]
# The wait for the wire is the same 22.5 ms in each row, so the all_reduce is already hidden behind backward in the first row. Two things cannot be
# hidden: the last gradients, and the computing time that NCCL's kernels take away. More tokens do not reduce these 22.5 ms, but they make them a
# smaller share of the step: 13 % with 4,096 tokens, and 2 % with 32,768. Another tenth of the step is spent waiting for the slowest of 1,024 ranks.
# So data parallelism scales well to many ranks, but it needs a large batch to do so.
#
# ## Tomorrow's script
#
# This is everything from this lesson in one program that does not need the workshop: `DistributedDataParallel`, a sampler with
# `set_epoch`, accumulation with `no_sync`, a mean loss that one rank prints, and a checkpoint from which training can continue. The last
# group of an epoch may have fewer micro-batches than the others, and still has to be sent and stepped. `--save` writes the cell to a file;
# `torchrun --nproc-per-node 8 train_ddp.py` runs it on your GPUs.

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_ddp.py
import contextlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)]
network = torch.nn.Sequential(*layers)
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
saved, first, accumulation = Path(os.environ.get("CHECKPOINT", "train_ddp.pt")), 0, 2
if saved.exists():
    state = torch.load(saved, map_location=device)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

for epoch in range(first, first + 3):
    sampler.set_epoch(epoch)
    total = torch.zeros(1, device=device)
    for number, (x, y) in enumerate(loader, 1):
        last = number % accumulation == 0 or number == len(loader)
        begun = (number - 1) // accumulation * accumulation  # batches before this group
        group = min(accumulation, len(loader) - begun)  # the last one may be smaller
        with contextlib.nullcontext() if last else model.no_sync():
            loss = (model(x.to(device)) - y.to(device)).square().mean()
            (loss / group).backward()
        total += loss.detach() / len(loader)
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {total.item() / dist.get_world_size():.3f}")
        weights = model.module.state_dict()  # keys without DDP's "module."
        state = {"model": weights, "optimizer": optimizer.state_dict()}
        torch.save({"epoch": epoch, **state}, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)
dist.barrier()  # nobody leaves before the file is written
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("22_ddp", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - **Begin alike** (broadcast parameters and buffers) and **step alike** (average gradients). Then N copies stay one model to the bit.
# - If the broadcast is missing, there is no error, and the loss falls. Compare the copies once. (Here
#   `difference_between_ranks` did this. In a program, `check_alike(model)` of `workshop.parallel.ddp` raises an error if they differ.)
# - `DistributedSampler` pads so that all ranks get the same number of samples. Call `set_epoch` in every epoch.
# - DDP packs gradients into buckets, last layer first, and sends each bucket while backward continues. Only the end is exposed.
# - A rank sends 2 (N - 1) / N times the bytes of the gradients, whatever the bucket size. With accumulation, use `no_sync()`.
# - Global batch = per-rank batch x N. With SGD, scale the learning rate with the batch, and warm up.
# - `--max-restarts` restarts the program. Save regularly, and derive the data from the step number.
# - With enough tokens per rank, communication is a small share of the step.
#
# Next: [23_ddp_limits](23_ddp_limits.ipynb). Every rank still holds everything.
#
# ## Sources
#
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   [arXiv:2006.15704](https://arxiv.org/abs/2006.15704).
# - P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017,
#   [arXiv:1706.02677](https://arxiv.org/abs/1706.02677): sections 2.1 and 4.3, table 1.
# - torchvision documentation, [resnet50](https://pytorch.org/vision/stable/models/generated/torchvision.models.resnet50.html):
#   `num_params`.
# - S. Malladi et al., *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*, NeurIPS 2022,
#   [arXiv:2205.10287](https://arxiv.org/abs/2205.10287).
# - P. Patarasuk, X. Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009.
# - A. Dubey et al., *The Llama 3 Herd of Models*, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783); the published configuration of
#   Llama 3.2 1B.
# - PyTorch documentation, `DistributedDataParallel`, `torchrun`.
