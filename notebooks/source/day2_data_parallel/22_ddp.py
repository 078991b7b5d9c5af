# %% [markdown]
# # How do N copies stay one model?
#
# - **You need** `00_welcome` and `21_collectives`; a training step in PyTorch.
# - **It takes** 30 minutes to read and try, under a minute to run.
# - **What runs where:** all of it here, on two or four ranks, and unchanged on GPUs. One table of published figures comes from 256
#   GPUs. The last part rehearses 1,024 ranks on this machine.
#
# ## Question
#
# The simplest way to use N devices: N copies of the model, each with its own part of the batch. Each copy computes its own
# gradients. Yet it should be *one* model that is trained, as if one process had seen the whole batch. What has to be sent,
# when, and what goes wrong if it is not?

# %%
# %load_ext workshop
from workshop import show
from workshop.facts.units import format_bytes, format_seconds

# %% [markdown]
# ## Four ranks, four models
#
# A small language model, and real text: the Python reference manual, one byte a token. A step takes eight sequences, two for each
# rank. Every rank is seeded with its own number. So each builds another model.

# %%
# %%ranks -n 4
import torch

from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches

config = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=96
)
mine = TextBatches(seq_len=32, global_batch=8, rank=rank, num_ranks=world_size)


def fresh_model():
    torch.manual_seed(rank)  # each rank begins somewhere else
    return GPT(config).to(device)


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
print(f"first weights: {', '.join(f'{value:+.3f}' for value in weight[0, :3].tolist())}")

# %% [markdown]
# Lesson 23 asks you to write the averaging of gradients; here it is given, `average_gradients`, an all_reduce for each
# parameter. **Predict:** we average the gradients and nothing else. Will the loss fall? Are the four copies one model at the end?

# %%
# %%ranks --into apart
from workshop import report
from workshop.parallel.ddp import average_gradients, difference_between_ranks

model = fresh_model()
before = max(difference_between_ranks(model).values())
losses = train(model, lambda: average_gradients(model))
report(before=before, after=max(difference_between_ranks(model).values()), losses=losses)

# %%
print(
    f"largest difference of a weight between two ranks: {apart[0].before:.3f} before, {apart[0].after:.3f} after"
)
print(f"mean loss: {apart[0].losses[0]:.2f} in the first step, {apart[0].losses[-1]:.2f} in the last")
assert apart[0].losses[-1] < apart[0].losses[0], "it looks as if it trained"
assert apart[0].after > 0.5 * apart[0].before, "and the copies never met"

# %% [markdown]
# The loss falls. No error, no warning. Yet these are four models, as far apart as at the start. Each makes the others' step from
# its own place. Such a bug can live for months.
#
# Equal steps are half of it. The copies must also **begin** alike.
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
# Now both halves, beside one process that has the whole batch. (It is rank 0's, while the others wait.) And PyTorch's
# `DistributedDataParallel`, which does the two halves by itself.

# %%
# %%ranks --pass begin_alike --into equal
from workshop.parallel.ddp import check_alike, wrap_ddp


def by_hand():
    model = fresh_model()
    begin_alike(model)
    losses = train(model, lambda: average_gradients(model))
    check_alike(model)  # raises where ranks differ; here not even in the last bit
    return losses


def one_process(steps=20):
    """Rank 0 alone, with everybody's sequences."""
    model, losses = fresh_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6)
    for step in range(steps):
        for tokens, targets in TextBatches(seq_len=32, global_batch=8).step(step, device):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


report(one_process=one_process() if rank == 0 else None)
report(by_hand=by_hand(), ddp=train(wrap_ddp(fresh_model())))

# %%
single = equal[0].one_process
print("step   one process   by hand, 4 ranks   DistributedDataParallel")
for step in (0, 1, 9, 19):
    print(f"{step + 1:>4} {single[step]:>13.5f} {equal[0].by_hand[step]:>18.5f} {equal[0].ddp[step]:>25.5f}")

# %% tags=["nbval-check-output"]
for way in ("by_hand", "ddp"):
    worst = max(abs(a - b) for a, b in zip(equal[0][way], single, strict=True))
    assert worst < 1e-5, (way, worst)
print("20 steps, 4 ranks: by hand and with DistributedDataParallel the losses of one process, to 1e-5")

# %% [markdown]
# That is all of data parallelism: **begin alike, step alike**. What follows is about doing it fast.
#
# ## While backward runs
#
# Our averaging waits for the end of backward, and then sends. But the last layer's gradient is complete long before the first
# layer's. It could be on its way already.
#
# ### Exercise: start early

# %%
# %%exercise overlapped_average
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
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
# One thing is still missing. A message has a price before its first byte, $\alpha$, and this sends one for each parameter. So DDP packs
# gradients into **buckets**, in the order in which backward brings them: from the last layer to the first. A full bucket is sent at
# once. `BucketedDDP` in `workshop/parallel/ddp.py` is that, in a hundred lines of Python, and lets us watch. Two ranks, four layers,
# buckets of 2 MiB:

# %%
# %ranks stop

# %%
# %%torchrun -n 2 --into watched
import gc
import time

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.ddp import BucketedDDP, bucket_bytes, wrap_ddp

dist.init_process_group()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
config = GPTConfig(vocab_size=1024, hidden_size=256, num_layers=4)
tokens = torch.randint(1024, (2, 64), device=device)
events = []


def now():
    """Seconds; on a GPU after all that was handed to it is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def backward(model):
    """One step's gradients; when each event of backward happened, and when it ended."""
    loss = model(tokens, tokens)
    dist.barrier()
    events.clear()
    start = now()
    loss.backward()
    end = now() - start
    for parameter in model.parameters():
        parameter.grad = None
    return [(what, bucket, name, when - start) for what, bucket, name, when in events], end


def fastest(call, tries=6):
    return min((call() for _ in range(tries)), key=lambda found: found[1])


def all_reduce(values):
    def call():
        dist.barrier()
        start = now()
        dist.all_reduce(values)
        return None, now() - start

    return fastest(call)[1]


def watch_buckets():
    by_hand = BucketedDDP(
        GPT(config).to(device),
        bucket_cap_mb=2,
        watch=lambda *what: events.append((*what, time.perf_counter())),
    )
    seen, seconds = fastest(lambda: backward(by_hand))
    with by_hand.no_sync():
        _, alone = fastest(lambda: backward(by_hand))
    sizes = [sum(p.nbytes for p in bucket) for bucket in by_hand.buckets]
    report(events=seen, seconds=seconds, alone=alone, sizes=sizes)
    ddp = wrap_ddp(GPT(config).to(device), bucket_cap_mb=2)
    for _ in range(3):
        backward(ddp)
    report(torch_sizes=bucket_bytes(ddp), small=all_reduce(torch.ones(1024, device=device)))
    report(large=all_reduce(torch.ones(2**21, device=device)))


watch_buckets()
gc.collect()  # DDP holds the group, so the models go first
dist.destroy_process_group()

# %%
seen = watched[0]
show.bucket_timeline(seen.events, seen.seconds)

# %% [markdown]
# Each tick is a gradient that became complete. Its colour is its bucket. A bar is that bucket on the wire. The first buckets travel
# while the rest is still being computed. What lies right of the dotted line is *exposed*: nothing hides it.
#
# (The buckets are a little larger than 2 MiB: one is closed when it *reaches* its size, not before it passes it. On a GPU the
# ticks say when work was handed to the device, which is earlier.)

# %% tags=["nbval-check-output"]
sent = [bucket for what, bucket, _, _ in seen.events if what == "sent"]
assert seen.sizes == seen.torch_sizes, (seen.sizes, seen.torch_sizes)
assert sent == sorted(sent), "all ranks send in one order, whichever bucket is full first"
print("buckets, in the order of sending:", ", ".join(format_bytes(size) for size in seen.sizes))
print("DistributedDataParallel has made the same ones")

# %% [markdown]
# ### Predict the time, and compare
#
# On these two ranks we clocked backward without any sending (`no_sync`), an all_reduce of 4 KiB, and one of 8 MiB. The small one gives
# $\alpha$, the large one $\beta$: two numbers, as in lesson 21. Then
#
# - **nothing hidden**: backward, and after it each bucket for $\alpha + n / \beta$;
# - **all hidden** but the last bucket, which nobody can hide: it is full only when backward is over.

# %%
alpha = seen.small
beta = 2**23 / (seen.large - alpha)
on_the_wire = [alpha + size / beta for size in seen.sizes]
print(f"all_reduce on this machine: alpha {alpha * 1e6:.0f} microseconds, beta {beta / 1e9:.2f} GB/s")
print(f"predicted, all hidden but the last bucket  {format_seconds(seen.alone + on_the_wire[-1])}")
print(f"measured                                   {format_seconds(seen.seconds)}")
print(f"predicted, nothing hidden                  {format_seconds(seen.alone + sum(on_the_wire))}")
assert seen.seconds > 0.5 * seen.alone

# %% [markdown]
# On a CPU the bytes are moved by the same cores that compute. So hiding is not free here, and the measured time may even lie above
# the second line: two ranks and their communication threads share two cores. On a GPU the copy engines and the network move the
# bytes, and the first line is what one gets.
#
# ## Predict the bytes
#
# How they are packed does not change how many there are. In a ring each rank sends
#
# $$2\,\frac{N-1}{N} \times \text{gradient bytes}$$
#
# in each step. With **gradient accumulation** a step has several micro-batches, and several backwards. Only the last one has to
# send: `no_sync()` tells DDP to stay quiet. The steps are a function here, because we will run them in two ways. (Three steps, for DDP
# settles its buckets after the first, and ranks agree on them in the second. We count the third.)


# %%
def three_steps(accumulation=1, quiet=True, batch=1, seq_len=64, **shape):
    """Three steps of a Llama under DDP; `accumulation` micro-batches each. Returns how many parameters it has."""
    import contextlib

    import torch
    import torch.distributed as dist

    from workshop.models.gpt import GPT, GPTConfig
    from workshop.parallel.ddp import wrap_ddp

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    config = GPTConfig(**shape)
    model = wrap_ddp(GPT(config).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        for micro in range(accumulation):
            tokens = torch.randint(config.vocab_size, (batch, seq_len), device=device)
            more_to_come = quiet and micro < accumulation - 1
            with model.no_sync() if more_to_come else contextlib.nullcontext():
                (model(tokens, tokens) / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(parameter.numel() for parameter in model.parameters())


# %%
# %%torchrun -n 4 --pass three_steps --into counted
import gc

import torch.distributed as dist

from workshop import report
from workshop.measure import measure

dist.init_process_group()
cases = {
    "one micro-batch": {},
    "four, with no_sync": {"accumulation": 4},
    "four, without": {"accumulation": 4, "quiet": False},
}
for name, options in cases.items():
    with measure(memory=False) as measured:
        num_params = three_steps(
            **options, vocab_size=1024, hidden_size=128, num_layers=2, intermediate_size=352
        )
    report(num_params=num_params, **{name: sum(row.wire_bytes for row in measured.traffic)})
    gc.collect()
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
N, gradient_bytes = 4, 4 * counted[0].num_params
for name, times in {"one micro-batch": 1, "four, with no_sync": 1, "four, without": 4}.items():
    predicted = times * 2 * (N - 1) / N * gradient_bytes
    print(f"{name:<20} predicted {predicted:>12,.0f} bytes a rank and step, measured {counted[0][name]:>12,}")
    assert all(counted[rank][name] == predicted for rank in range(N))

# %% [markdown]
# To the byte. Four micro-batches without `no_sync` cost four times the traffic for the same step.
#
# ## A larger batch wants another learning rate
#
# N ranks see N times the samples in a step: **global batch = per-rank batch x N** (x accumulation). The gradient is a mean, so
# it does not grow. It is only less noisy. With the learning rate as before, N times the samples buy one step of the old size.
#
# Goyal et al. (2017) argue like this. N small steps in a row, from nearly the same place, add up to about one step with the mean of
# their gradients and **N times the learning rate**. Let us look: four SGD steps by one process, one batch each; against one step of four
# ranks with these four batches.

# %%
# %%torchrun -n 4 --into steps
import copy

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.parallel.ddp import average_gradients

dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(0)
config = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=96
)
model = GPT(config)
batches = [next(TextBatches(32, 32, place, 4).step(0)) for place in range(4)]


def moved(model, from_model):
    pairs = zip(model.parameters(), from_model.parameters(), strict=True)
    return torch.cat([(a - b).detach().flatten() for a, b in pairs])


def stepped(lr, batches, average=lambda model: None):
    """A copy of the model after a step of SGD with each of the batches."""
    trained = copy.deepcopy(model)
    for tokens, targets in batches:
        trained.zero_grad()
        trained(tokens, targets).backward()
        average(trained)
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter -= lr * parameter.grad
    return trained


missed = {}
for lr in (0.001, 0.05):
    small = stepped(lr, batches)
    way = moved(small, model).norm()
    for factor in (1, 4):
        large = stepped(factor * lr, [batches[rank]], average_gradients)
        missed[lr, factor] = (moved(large, small).norm() / way).item()
report(missed=missed)
dist.destroy_process_group()

# %%
missed = steps[0].missed
print("                          one step of four ranks misses the four small steps by")
for lr in (0.001, 0.05):
    print(
        f"rate of the small {lr:<5}   with the same rate {missed[lr, 1]:.0%}, with 4 times the rate {missed[lr, 4]:.0%} of their way"
    )
assert missed[0.001, 4] < 0.05 < 0.7 < missed[0.001, 1]
assert missed[0.05, 4] > 0.3

# %% [markdown]
# With the same rate one step is a quarter of four: three quarters of the way are missing. With four times the rate it arrives, as
# long as steps are small enough for the gradient to stay what it was. With large steps the rule breaks. That is the case early in
# training, so one begins with a small rate and raises it over the first epochs (*warm-up*). And beyond some batch nothing helps: more
# samples then tell the same. With Adam, whose steps do not grow with the gradient, people scale by $\sqrt{N}$, or tune.
#
# **Published** (Goyal et al., ResNet-50 on ImageNet, learning rate 0.1 x batch / 256):
#
# | GPUs | batch | learning rate | top-1 error |
# |---|---|---|---|
# | 8 | 256 | 0.1 | 23.60 % |
# | 256 | 8,192 | 3.2, after a warm-up | 23.74 % |
#
# One hour instead of more than a day, at about 90 % scaling efficiency from 8 to 256 GPUs.
#
# ## When a rank dies
#
# N copies also mean N chances that one fails, and the others then wait for it. `torchrun --max-restarts 1` ends them and starts all again, once. It
# restarts the *program*: what is not on disk is lost. So save now and then, and make the data a function of the step.
# Below, rank 1 is killed in step 7 of 10.

# %%
from workshop import launch

folder = str(launch.Session.get().directory)  # a private folder that goes when the kernel goes

# %%
# %%torchrun -n 2 --max-restarts 1 --pass folder --into survived
import gc
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.parallel.ddp import wrap_ddp

dist.init_process_group()
rank = dist.get_rank()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
config = GPTConfig(
    vocab_size=256, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=96
)


def save(path, step, model, optimizer):
    """First beside it, then in its place: who dies while writing leaves the last good one whole."""
    partial = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def train(path, dies_at=None):
    """Ten steps, from where the last attempt saved; the last loss, averaged over ranks."""
    torch.manual_seed(rank)
    model = wrap_ddp(GPT(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"restart {attempt}: goes on after step {first}")
    for step in range(first, 10):
        if step + 1 == dies_at and attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for tokens, targets in TextBatches(32, 8, rank, 2).step(step):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 3 == 0:
            if rank == 0:
                save(path, step + 1, model, optimizer)
            dist.barrier()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / 2


report(broken=train(Path(folder, "broken.pt"), dies_at=7), unbroken=train(Path(folder, f"{attempt}.pt")))
gc.collect()
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
assert survived[0].broken == survived[0].unbroken
print("killed in step 7, restarted after step 6: the loss of the unbroken run, to the last bit")

# %% [markdown]
# `workshop.train.checkpoint` does this for models that no rank holds whole.
#
# ## At scale: 1,024 ranks
#
# The very function from above, now with the sizes of Llama 3.2 1B, as rank 0 of 1,024. Nothing is sent and no weight has a byte, but
# PyTorch's DDP runs, and every collective is written down.

# %%
from workshop.facts import catalogue
from workshop.rehearse import rehearse

llama = catalogue.model("llama-3.2-1b")
sizes = {
    "accumulation": 2,
    "seq_len": 4_096,
    "vocab_size": llama.vocab_size,
    "hidden_size": llama.hidden_size,
    "num_layers": llama.num_layers,
    "num_heads": llama.num_heads,
    "num_kv_heads": llama.num_kv_heads,
    "intermediate_size": llama.ffn_hidden_size,
    "tied": llama.tied_embeddings,
}
rehearsed = rehearse(three_steps, world_size=1_024, steps=3, keywords=sizes)
show.traffic_table({"rehearsed": rehearsed})

# %% tags=["nbval-check-output"]
closed_form = 2 * 1_023 / 1_024 * 4 * llama.num_params
(row,) = rehearsed.traffic
print(f"rehearsed   {row.wire_bytes:>14,} bytes a rank and step, in {row.count} buckets")
print(
    f"closed form {closed_form:>14,.0f} bytes: 2 (N - 1) / N times 4 bytes for each of {llama.num_params:,}"
)
assert abs(row.wire_bytes - closed_form) <= row.count

# %% [markdown]
# Ten gigabytes for each rank in each step, on four ranks or on a hundred thousand. Is there time to hide them? Backward has to take
# as long as the wire does. Its time is counted in tokens. So what decides is **how many tokens a rank has in a step**:

# %%
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop import predict_step

print("1,024 H100, Llama 3.2 1B, fp32 gradients")
efficiency = {}
for sequences in (1, 2, 4, 8):
    layout = Layout(replicate=1_024, precision="amp-bf16", recompute="full")
    run = Run(llama, "1024xH100", layout, sequences, 4_096)
    alone = Run(llama, "1xH100", Layout(precision="amp-bf16", recompute="full"), sequences, 4_096)
    together, single = predict_step(run).seconds, predict_step(alone).seconds
    efficiency[sequences] = single / together
    print(
        f"{sequences * 4_096:>7,} tokens a rank: alone {format_seconds(single):>7}, with 1,024 ranks {format_seconds(together):>7},"
        f" efficiency {efficiency[sequences]:.0%}"
    )
assert list(efficiency.values()) == sorted(efficiency.values())

# %% [markdown]
# With few tokens a rank waits for the wire. With many, the all_reduce disappears behind backward. (What is left then is mostly
# waiting for the slowest of so many.) That is why data parallelism scales so well, and why it needs a large batch to do so.
#
# ## What to take away
#
# - **Begin alike** (broadcast parameters and buffers), **step alike** (average gradients). Then N copies stay one model to the bit.
# - A missing broadcast raises no error, and the loss falls. `check_alike` finds it.
# - DDP packs gradients into buckets, last layer first, and sends each while backward goes on. Only the end is exposed.
# - A rank sends 2 (N - 1) / N times the gradients' bytes, whatever the buckets. With accumulation use `no_sync()`.
# - Global batch = per-rank batch x N. For SGD scale the learning rate with it, and warm up.
# - `--max-restarts` restarts the program. Save, and let the data follow from the step.
# - Enough tokens for each rank, and the wire is hidden.
#
# Next: `23_ddp_limits`. Every rank still holds everything.
#
# ## Sources
#
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020, arXiv:2006.15704.
# - P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017, arXiv:1706.02677: section 2.1, table 1.
# - P. Patarasuk, X. Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, 2009.
# - A. Dubey et al., *The Llama 3 Herd of Models*, arXiv:2407.21783; the published configuration of Llama 3.2 1B.
# - PyTorch documentation, `DistributedDataParallel`, `torchrun`.
