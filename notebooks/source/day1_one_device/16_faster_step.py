# %% [markdown]
# # Why is my GPU idle?
#
# - **You need** `12_flops_and_mfu` (rooflines), `13_memory_of_a_step` (what a step keeps) and `15_optimizers`.
# - **It takes** 45 minutes to read and try, about 20 seconds to run.
# - **What runs where:** everything runs here, on a CPU or unchanged on a GPU. For features that only a GPU has (pinned memory, a
#   flex_attention that skips blocks) the code checks the device.
# - **Model and text:** `TINY` with a vocabulary of 8,192 words instead of 256, because the loss is one of the slow parts. (The tokens are still
#   bytes. The other words never occur; they only make the loss as costly as in a larger model.) The text is Python's reference manual, cut into
#   paragraphs, because their different *lengths* also cost time.
# - **Links:** before this [15_optimizers](15_optimizers.ipynb), after it [17_profile_and_monitor](17_profile_and_monitor.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A GPU is idle when it **waits**: for data, for Python to hand over the next piece of work, or because Python stops to read a number. It
# might as well be idle when its work is **useless**: padding, or bytes that are written and read again without need.
#
# The training script below does all of this. We fix it in five steps: attention, padding, loss, data, optimizer. Before each step we predict
# how much it will gain, and then we measure it. (What is left then, short kernels and bytes that move without need, is the subject of
# `19_compile_and_kernels`.)

# %%
# %load_ext workshop
import math
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.jupyter.explorer import Control, explore
from workshop.models.gpt import GPT, TINY
from workshop.models.text import reference_manual
from workshop.show.style import Picture, new_figure

# %%
torch.set_num_threads(1)  # leaves the other cores to the data workers
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
on_gpu = device.type == "cuda"
folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # starts empty


def wait():
    """A GPU computes while Python goes on: wait for it before looking at the clock."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


# %% [markdown]
# ## A queue of kernels
#
# A **kernel** is a small program that runs on the GPU, for example one matrix product or one addition. Python does not run it. It *hands
# the kernel over* to the GPU, which takes a few microseconds, and continues without waiting. The GPU runs the kernels in its queue, one
# after the other. As long as the queue is not empty, the GPU has work.
#
# But `loss.item()` needs a number now. Python waits until the queue is empty, and only then starts to fill it again. The same happens
# with `print(loss)`, `.cpu()`, `.tolist()`, `if loss > 10`, and with `x[mask]`, whose shape depends on the values. It also happens with
# `.to(device)` of a tensor in ordinary memory, which returns only when the bytes have left.
#
# The picture shows six kernels three times. Handing one over takes 5 microseconds. **Where is the GPU idle, and why?**

# %%
queues = {
    "kernels of 3 µs": ([3] * 6, ()),
    "kernels of 8 µs": ([8] * 6, ()),
    "kernels of 8 µs, and Python waits after each third": ([8] * 6, (2, 5)),
}
show.kernel_queue(5, queues)

# %% [markdown]
# ### Exercise: how long is it idle?


# %%
# %%exercise idle_share
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    """Share of the time in which the device runs no kernel."""
    python = device = 0.0  # how far each of them has come
    for number, kernel in enumerate(kernels):
        python += launch
        device = ...
        if number in waits:
            ...
    return ...


# %% [markdown]
# Suppose that Python needs 5 microseconds to hand over a kernel. (This is an assumption. You can measure your own value with lesson 17.)

# %%
# %%guess waiting --unit %
# 600 kernels run for 6 µs each; to hand one over takes 5 µs. Python waits after every
# 20th. What share of the time is the GPU idle, in percent?
...

# %%
LAUNCH = 5.0


def idle(kernel, every, count=600):
    """In percent: kernels of so many microseconds, a wait after every so many."""
    waits = set(range(every - 1, count, every)) if every else set()
    return 100 * idle_share(LAUNCH, [kernel] * count, waits)


assert idle(2, 0) > 55 > 5 > idle(6, 0)
beside("waiting", calculated=idle(6, 20))

# %% [markdown]
# Move the sliders `kernel` and `every`. If kernels are **shorter than their launch**, the GPU is idle whatever else you do. Such a
# program is *launch-bound*, and it needs fewer and larger kernels. If kernels are longer, only the **waits** cost something. At each wait
# the queue becomes empty, and the GPU is idle for one launch, until Python has handed over the next kernel. The longer the kernels, the
# smaller this loss is in comparison. **How long must a kernel be so that a wait after every 20th one costs less than 2 %?**


# %%
def draw_idle(kernel, every):
    lengths = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 50, 64]
    figure, axis = new_figure(6.8, 3.0)
    axis.plot(lengths, [idle(x, 0) for x in lengths], color="#BBBBBB", label="no wait")
    if every:
        shares = [idle(x, every) for x in lengths]
        axis.plot(lengths, shares, color="#0072B2", label=f"a wait after each {every}")
    here = idle(kernel, every)
    axis.plot([kernel], [here], "o", color="#D55E00", label=f"here {here:.1f} %")
    axis.set(xlabel="microseconds of a kernel (launch: 5)", ylabel="idle, %")
    axis.set(xscale="log", ylim=(0, 100), xticks=[1, 2, 5, 10, 20, 50])
    axis.set_xticklabels([1, 2, 5, 10, 20, 50])
    axis.minorticks_off()
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    words = f"kernels of {kernel} µs, a wait after each {every}: idle {here:.1f} %"
    return Picture(figure, words)


waits_each = Control("every", 20, (0, 100, 20, 5, 1))
kernels = Control("kernel", 6, (2, 4, 6, 10, 12, 14, 16, 32, 64))
explore(draw_idle, [kernels, waits_each])

# %%
assert idle(12, 20) > 2 > idle(2.5 * LAUNCH, 20)
print(f"12 µs: {idle(12, 20):.2f} % idle, 12.5 µs: {idle(12.5, 20):.2f} %")

# %% [markdown]
# Here two and a half times the launch is enough. This is why the same loop can be fast enough with a large model, and too slow with a
# small one.
#
# ## The slow script
#
# The script trains on 32 paragraphs of the manual, at most 512 tokens each. They are on a file server, and each request takes 10 ms. Read
# the script as in a code review, and count what you would fix.

# %%
ROOM, IGNORED = 512, -100
CONFIG = replace(TINY, vocab_size=8_192)

text = bytes(reference_manual().tolist())
paragraphs = [part for part in text.split(b"\n\n") if len(part) > 16]
order = torch.randperm(len(paragraphs), generator=torch.Generator().manual_seed(0))
documents = [list(paragraphs[place][: ROOM + 1]) for place in order[:32].tolist()]
lengths = [len(document) - 1 for document in documents]  # pairs of token and target


class OnServer(Dataset):
    """Paragraphs by their number, each a request to a file server."""

    def __getitem__(self, number):
        time.sleep(0.010)
        return documents[number]


def pad_all(samples):
    """Tokens and targets, (samples, ROOM), filled up with zeros."""
    filled = [one + [0] * (ROOM + 1 - len(one)) for one in samples]
    tokens, targets = torch.tensor(filled)[:, :-1], torch.tensor(filled)[:, 1:].clone()
    for row, one in enumerate(samples):
        targets[row, len(one) - 1 :] = IGNORED
    return tokens, targets, None


mean = sum(lengths) / len(lengths)
print(f"paragraphs of {min(lengths)} to {max(lengths)} tokens, on average {mean:.0f}")

# %% [markdown]
# Attention is written as its formula, with a mask that is created again in each layer of each step:


# %%
class PlainAttention(nn.Module):
    """softmax(q k^T / sqrt(width)) v; `allowed`: who may look at whom. None: causal."""

    allowed = None  # (rows, 1, ROOM, ROOM)

    def forward(self, query, key, value):
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        allowed, length = self.allowed, query.shape[2]
        if allowed is None:
            allowed = torch.ones(length, length).tril().to(query.device) > 0
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value


def plain_loss(hidden, weight, targets):
    """Mean cross-entropy of the targets that count."""
    return F.cross_entropy(hidden @ weight.T, targets, ignore_index=IGNORED)


# %% [markdown]
# Next comes the loop. A `Recipe` contains the parts that we will replace one by one. (A batch has tokens, targets and a mask. The mask goes to
# the module that computes attention, as `core.allowed`.) The flag `watch` turns on what the colleague added to see whether all is well: in every
# step it reads the norm of each gradient and the loss. Later, `with part(name)` will time the lines inside it.


# %%
class Recipe(NamedTuple):
    core: nn.Module  # the module that computes attention
    loss_of: Callable
    watch: bool
    adamw: dict


def fresh(core):
    torch.manual_seed(0)
    model = GPT(CONFIG).to(device)
    for layer in model.model.layers:
        layer.self_attn.core = core
    return model


def one_step(model, optimizer, batch, recipe, part):
    core, loss_of, watch, _ = recipe
    tokens, targets, core.allowed = batch
    with part("model"):
        hidden = model.model(tokens).flatten(0, 1)
    with part("loss"):
        loss = loss_of(hidden, model.lm_head.weight, targets.flatten())
    with part("backward"):
        loss.backward()
    with part("optimizer"):
        if watch:
            norms = [weight.grad.norm().item() for weight in model.parameters()]
            if not math.isfinite(sum(norms)) or loss > 100:
                raise ValueError("diverged")
            with (folder / "log.txt").open("a") as log:
                print(f"loss {loss:.4f}", file=log)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


# %% [markdown]
# ## Count what a GPU would be handed
#
# On a CPU, Python and the computation take turns, so a wait costs nothing here, and no clock on this machine can show it. But waits can
# be *counted*. PyTorch calls each of its operators through a dispatcher, and a `TorchDispatchMode` can intercept these calls. (On a GPU
# you can use `torch.cuda.set_sync_debug_mode("warn")`, which names the line that waits.)


# %%
class Handed(TorchDispatchMode):
    """Counts operators that would start a kernel, and those that wait for a number."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select")
    NO_KERNEL = ("empty_like", "_unsafe_view")  # they compute nothing; nor do views

    def __init__(self, on_host=()):
        super().__init__()
        self.kernels, self.waits = 0, []
        self.on_host = {id(tensor) for tensor in on_host}  # CPU tensors, not counted

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if args and id(args[0]) in self.on_host:
            pass
        elif operator.overloadpacket.__name__ in self.WAITS:
            self.waits.append(self.kernels)
        elif operator.namespace == "profiler" or operator.is_view:
            pass
        elif operator.overloadpacket.__name__ not in self.NO_KERNEL:
            self.kernels += 1
        return operator(*args, **(kwargs or {}))


# %% [markdown]
# To count a step, we run two. The first creates the state of AdamW, and the second is counted. (AdamW keeps the number of its steps on the CPU,
# and arithmetic with it starts no kernel.)


# %%
@contextmanager
def nobody(name):
    yield


def handed_over(recipe, batch):
    """One step's kernels and waits."""
    model = fresh(recipe.core)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **recipe.adamw)
    one_step(model, optimizer, batch, recipe, nobody)
    counters = [state["step"] for state in optimizer.state.values()]  # kept by AdamW
    with Handed(counters) as handed:
        one_step(model, optimizer, batch, recipe, nobody)
    return handed


# %%
# %%guess syncs --unit waits
# The model has 21 parameter tensors. How often does a step of the slow script wait
# for a number from the GPU? (Look at `watch`.)
...

# %%
plain = PlainAttention()
first = [documents[number] for number in range(8)]
one_row = [x if x is None else x.to(device) for x in pad_all(first[:1])]
slow = Recipe(plain, plain_loss, watch=True, adamw={"foreach": False})
slow_handed = handed_over(slow, one_row)  # one row is enough to count
kernels, waits = slow_handed.kernels, len(slow_handed.waits)
num_tensors = len(list(fresh(plain).parameters()))
print(f"a step hands over {kernels} kernels and waits {waits} times")
assert waits == num_tensors + 2  # each norm, the comparison, the print
beside("syncs", predicted=num_tensors + 2, measured=waits)

# %% [markdown]
# How long each kernel would run depends on the GPU and on the model. With your `idle_share`, we try three lengths:

# %%
HANDED = (
    "a step of",
    "kernels",
    "waits",
    "idle: kernels of 2 µs",
    "of 6 µs",
    "of 20 µs",
)


def idle_shares(handed):
    """If each kernel ran for so many microseconds: 2, 6, 20."""
    after = {count - 1 for count in handed.waits}
    lengths = ([kernel] * handed.kernels for kernel in (2.0, 6.0, 20.0))
    return [idle_share(LAUNCH, kernels, after) for kernels in lengths]


def handed_row(name, handed):
    counts = f"{handed.kernels}", f"{len(handed.waits)}"
    return name, *counts, *(f"{share:.1%}" for share in idle_shares(handed))


Table(HANDED, [handed_row("slow", slow_handed)])

# %% [markdown]
# (On a GPU the mask also causes a wait in each of the two layers, because it is copied from ordinary memory. Our counter cannot see this,
# because the name of the copy operator does not tell where the data comes from. With these two, a step waits 25 times.)
#
# ## Run it, and look where the time goes
#
# We time each part of a step. (Lesson 17 explains such clocks in detail.) The first step is a warm-up and is not counted. For the parts
# that compute, we take the median of the other steps, because a busy machine disturbs some of them. The time spent waiting for data is
# summed instead: some steps wait long and others not at all, so a median would hide it. What matters in the end are **real tokens per
# second**, that is, targets that are not padding.

# %%
PARTS = ("data", "model", "loss", "backward", "optimizer")


def train(loader, recipe, stops=PARTS):
    """Seconds by part, steps, real tokens; not the first. At `stops` it waits."""
    taken, model = defaultdict(list), fresh(recipe.core)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **recipe.adamw)

    @contextmanager
    def part(name):
        start = time.perf_counter()
        yield
        if name in stops:
            wait()
        taken[name].append(time.perf_counter() - start)

    batches, tokens = iter(loader), []
    while True:
        with part("data"):
            batch = next(batches, None)
            if batch is None:
                break
            tokens.append(int((batch[1] >= 0).sum()))  # still on the host: no wait
            batch = [x if x is None else x.to(device, non_blocking=True) for x in batch]
        one_step(model, optimizer, batch, recipe, part)
    steps = len(tokens) - 1
    counted = {name: took[1 : 1 + steps] for name, took in taken.items()}
    seconds = {name: steps * statistics.median(took) for name, took in counted.items()}
    seconds["data"] = sum(counted["data"])
    return seconds, steps, sum(tokens[1:])


# %%
# %%guess together --unit times
# Data, padding, attention, loss and optimizer will all be fixed. How many times as many
# real tokens per second as the slow script will it reach, here on the CPU?
...

# %%
warm = list(range(8))  # the first batch, not counted
slow_loader = DataLoader(
    OnServer(), 8, sampler=warm + list(range(32)), collate_fn=pad_all
)
runs = {"slow": train(slow_loader, slow)}


def rate(run):
    """Real tokens a second."""
    seconds, _, tokens = run
    return tokens / sum(seconds.values())


def speed(name):
    return rate(runs[name])


def step_parts(name):
    """Milliseconds of a step, by part."""
    seconds, steps, _ = runs[name]
    return {part: 1e3 * took / steps for part, took in seconds.items()}


def parts_table(*names):
    rows = []
    for name in names:
        parts = step_parts(name)
        took = (f"{parts[part]:.0f} ms" for part in PARTS)
        rows.append((name, *took, f"{parts['data'] / sum(parts.values()):.0%}"))
    return Table(("a step of", *PARTS, "share of data"), rows)


print(f"{speed('slow'):,.0f} real tokens a second")
parts_table("slow")

# %% [markdown]
# ## Fix the attention
#
# On a CPU, a large part of this time is `model` and its backward. (A GPU computes so much faster that most of its time is spent on the
# requests, 80 ms per step. We come to them below.)
#
# Plain attention writes the whole matrix of scores several times, and keeps it for backward. Its mask is created on the host, and copied,
# in every layer of every step. `F.scaled_dot_product_attention` instead processes the scores in tiles that fit into the cache, and
# computes them again in backward (FlashAttention). (Lesson 33 shows by hand how the softmax of a row is put together from such parts.)


# %%
class TiledAttention(PlainAttention):
    def forward(self, query, key, value):
        options = {"attn_mask": self.allowed, "is_causal": self.allowed is None}
        if query.is_cuda and query.dtype == torch.float32:  # see below
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        options["enable_gqa"] = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(query, key, value, **options)


# %% [markdown]
# (In this model two query heads share one head of keys and one of values, and `enable_gqa` tells PyTorch so. No tiled GPU kernel supports that in
# fp32: FlashAttention requires 16 bits, and the other tiled kernel requires as many key heads as query heads. PyTorch would then use plain attention
# without a warning. So on a GPU, the code gives each query head its own copy of the keys and values.)

# %% [markdown]
# To compare the two, we need two tools. `kept_bytes` asks autograd how many bytes a function keeps for backward, and `quickest` times a call.


# %%
def kept_bytes(function, *given):
    """Bytes that autograd keeps for backward, without what it was given."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function(*given)
    own = {tensor.untyped_storage().data_ptr() for tensor in given}
    del result
    return sum(size for place, size in kept.items() if place not in own)


def quickest(call, times=5):
    """Milliseconds of the quickest of a few calls."""
    best = math.inf
    for _ in range(times):
        wait()
        start = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def both_passes(function, *given, times=5):
    """Milliseconds of forward and backward."""
    return quickest(lambda: function(*given).sum().backward(), times)


# %%
# %%guess scores --unit MiB
# Plain attention of one layer keeps the probabilities for backward: 8 rows, 4 heads,
# 512 x 512 numbers in fp32. How many MiB is that?
...

# %%
tiled = TiledAttention()
tiled.allowed = plain.allowed = None
shapes = [(8, heads, ROOM, 16) for heads in (4, 2, 2)]
qkv = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
assert torch.allclose(plain(*qkv), tiled(*qkv), atol=1e-4)
score_bytes = 8 * 4 * ROOM * ROOM * 4
attention, rows = {}, []
for name, core in (("plain", plain), ("tiled", tiled)):
    attention[name] = both_passes(core, *qkv)
    kept = kept_bytes(core, *qkv)
    assert (kept > score_bytes) == (name == "plain")
    rows.append((name, f"{attention[name]:.1f} ms", f"{kept / 2**20:.2f} MiB"))
assert kept < 0.2 * score_bytes
Table(("attention", "forward and backward", "kept for backward"), rows)

# %%
measured = kept_bytes(plain, *qkv)
beside("scores", predicted=score_bytes / 2**20, measured=measured / 2**20)

# %% [markdown]
# (The measured value is larger than the probabilities, because autograd also keeps the mask, and keys and values repeated for four
# heads.) **Prediction:** each of the two layers saves the time difference that we just measured.

# %%
predicted = {}


def predict(name, before, saved):
    """From what a step took before, and the milliseconds that we expect to save."""
    took = sum(step_parts(before).values())
    predicted[name] = speed(before) * took / (took - saved)


def so_far():
    """A line for each run; the factor is over the line above."""
    rows = [("slow", "-", f"{speed('slow'):,.0f}", "-")]
    for before, name in pairwise(runs):
        factor = f"{speed(name) / speed(before):.2f} x"
        rows.append((name, f"{predicted[name]:,.0f}", f"{speed(name):,.0f}", factor))
    return Table(("real tokens a second", "predicted", "measured", "factor"), rows)


predict("attention in tiles", "slow", 2 * (attention["plain"] - attention["tiled"]))
runs["attention in tiles"] = train(slow_loader, slow._replace(core=tiled))
so_far()

# %% [markdown]
# The prediction counts only attention, timed by itself. If a step gains more than that, its other parts have become faster, too. A possible
# reason is that 32 MiB of probabilities per layer no longer pass through the same caches. We have not tested this.
#
# ### Which kernel on a GPU?
#
# PyTorch has several kernels for attention that others have written. The next table compares them on an H200: causal, in bf16,
# 16 heads of 128, forward and backward. There are 16,384 tokens in all, and the number in the name says how many of them attend to each
# other. The prediction is the rate that the workshop's predictor assumes for such a kernel, from timings by its authors and others.

# %%
import json

from workshop.facts.tree import ROOT

record = ROOT / "data" / "measurements" / "gpu" / "kernels.json"
on_h200 = json.loads(record.read_text())["parts"]
for length in (1_024, 4_096, 16_384):
    lines = on_h200[f"attention {length}"]["rows"]
    rates = {line["what"]: line["measured"] for line in lines}
    expected = {line["what"]: line["predicted"] for line in lines}
    assert all(abs(rates[way] / expected[way] - 1) < 0.12 for way in ("flash", "cudnn"))
    assert 1.8 < rates["cudnn"] / rates["flash"] < 2
    assert "math" not in rates or rates["math"] < 0.1 * rates["flash"]
show.measured_on_gpu("kernels", "attention")

# %% [markdown]
# `math` is plain attention, which keeps the scores. It reaches less than a tenth of the rate of FlashAttention-2, which is called `flash`
# here. cuDNN's kernel was written for this GPU and is nearly twice as fast. Both are within 12 % of the prediction.
# `F.scaled_dot_product_attention` chooses a kernel by itself. The profiler shows which one it took (lesson 17), and with `sdpa_kernel`
# you choose one yourself.

# %% [markdown]
# ## Fix the padding
#
# Most of the remaining work is useless: zeros after short paragraphs. (Krell et al. found that up to half of all tokens are padding in
# common text datasets.) You do not need a run to find out how much padding there is, because it follows from the lengths. There are four
# ways to make batches: pad all paragraphs to 512; pad each batch to its **longest** paragraph; sort first, so that the paragraphs of a
# batch have similar lengths (**bucketing**); or put several documents into one row (**packing**).

# %%
# %%guess padding --unit %
# The average length of a paragraph was printed above, and each is padded to 512.
# What share of all positions is padding, in percent?
...

# %% [markdown]
# ### Exercise: pack


# %%
# %%exercise pack_documents
def pack_documents(lengths: list[int], room: int) -> list[list[int]]:
    """Rows of documents' numbers, none longer than room: first fit decreasing."""
    rows, left = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        ...
    return rows


# %%
def shares(lengths, room, batch=8):
    """Padding's share of all positions, each way; by the lengths alone."""
    kept = [min(length, room) for length in lengths]
    starts = range(0, len(kept), batch)
    longest = sum(batch * max(kept[start : start + batch]) for start in starts)
    by_length = sorted(kept)
    buckets = sum(batch * max(by_length[start : start + batch]) for start in starts)
    positions = {
        "all to the room": room * len(kept),
        "to the longest": longest,
        "buckets": buckets,
        "packed": room * len(pack_documents(kept, room)),
    }
    return {way: 1 - sum(kept) / total for way, total in positions.items()}


predicted_padding = shares(lengths, ROOM)
ways = list(predicted_padding.values())
assert ways[0] > ways[1] > max(ways[2:])
rows = [(way, f"{share:.1%}") for way, share in predicted_padding.items()]
Table(("32 paragraphs in batches", "padding"), rows)

# %% [markdown]
# Rows of packed documents have another advantage: they all have the same length. If shapes change from batch to batch, the allocator has
# to look for new blocks, and `torch.compile` has to compile again. (`19_compile_and_kernels` counts both.)
#
# How large must the pool of documents be from which the rows are filled? Move `pool` for the whole manual: **which pool brings packing
# below 2 %?** And **from which pool size on are buckets as good as packing, to within three percentage points?**


# %%
def draw_padding(pool, room):
    some = [len(paragraphs[place]) - 1 for place in order[:pool].tolist()]
    padding = shares(some, room)
    figure, axis = new_figure(6.8, 2.2)
    names = list(padding)[::-1]
    bars = axis.barh(names, [100 * padding[name] for name in names], color="#0072B2")
    axis.bar_label(bars, fmt="%.1f", padding=3)
    axis.set(xlabel=f"% of padding, {pool} documents, room {room}", xlim=(0, 100))
    best = f"packed {padding['packed']:.1%}, buckets {padding['buckets']:.1%}"
    return Picture(figure, f"padding of {pool} documents in rows of {room}: {best}")


pools = Control("pool", 32, (16, 32, 128, 512, 2048))
explore(draw_padding, [pools, Control("room", ROOM, (256, 512, 1024))])

# %%
of_all = [len(part) - 1 for part in paragraphs]
pool_sizes = (16, 32, 128, 512, 2048)
by_pool = {pool: shares([of_all[n] for n in order[:pool]], ROOM) for pool in pool_sizes}
near = [p for p in pool_sizes if by_pool[p]["buckets"] - by_pool[p]["packed"] < 0.03]
assert near == [512, 2048]
assert by_pool[512]["packed"] < 0.02 < by_pool[16]["packed"]
rows = [
    (f"{pool:,}", *(f"{padding[way]:.1%}" for way in ("buckets", "packed")))
    for pool, padding in by_pool.items()
]
Table(("documents in the pool", "padding in buckets", "packed"), rows)

# %% [markdown]
# ## Packed, and still separate
#
# In a packed row, a token must not attend to the neighboring document. So the mask contains one block on its diagonal for each document
# (*block-diagonal*), and each block is causal. The targets stop at the end of each document. Positions need no change: rotary attention
# depends only on differences between positions, so they may continue through the row.


# %%
class Packed(Dataset):
    """Rows of documents, packed beforehand: only their lengths are needed for that."""

    def __init__(self, rows):
        self.rows, self.server = rows, OnServer()

    def __getitem__(self, row):
        return [self.server[number] for number in self.rows[row]]


def pack_rows(rows):
    """Tokens, targets and who may look at whom, for rows of documents."""
    shape = (len(rows), ROOM)
    tokens, targets = torch.zeros(shape).long(), torch.full(shape, IGNORED)
    owner = torch.full(shape, -1)  # padding belongs to no document
    for row, some in enumerate(rows):
        end = 0
        for number, document in enumerate(some):
            here = slice(end, end + len(document) - 1)
            tokens[row, here] = torch.tensor(document[:-1])
            targets[row, here] = torch.tensor(document[1:])
            owner[row, here], end = number, here.stop
    same = owner[:, :, None] == owner[:, None, :]
    return tokens, targets, (same & torch.ones(ROOM, ROOM, dtype=bool).tril())[:, None]


packed_rows = pack_documents(lengths, ROOM)
whole = pack_rows([[documents[number] for number in row] for row in packed_rows])
measured_padding = (whole[1] < 0).float().mean().item()
wasted = (pad_all(documents)[1] < 0).float().mean().item()
assert abs(measured_padding - predicted_padding["packed"]) < 1e-6
assert abs(wasted - predicted_padding["all to the room"]) < 1e-6
assert len(packed_rows) < len(documents) / 2
print(f"{len(packed_rows)} rows instead of {len(documents)}")
beside("padding", predicted=100 * ways[0], measured=100 * wasted)

# %% [markdown]
# The next picture shows what the model receives: eight paragraphs, padded and packed.

# %%
few = pack_documents(lengths[:8], ROOM)
small = pack_rows([[documents[number] for number in row] for row in few])
figure, axes = new_figure(6.8, 2.6, columns=2)
for axis, (tokens, targets, _), name in zip(
    axes, (pad_all(first), small), ("padded", "packed"), strict=True
):
    axis.imshow(
        targets >= 0,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0,
        vmax=1.6,
    )
    axis.set(title=f"{name}: {len(tokens)} rows", xlabel="position in the row")
    axis.set(ylabel="row", yticks=range(len(tokens)))
Picture(figure, f"8 paragraphs: 8 rows mostly of padding, or {len(few)} packed rows")

# %% [markdown]
# Is it still the same training? To be sure, we compare the gradients with those of the paragraphs, each in a row of its own:


# %%
def gradients(batch, recipe):
    """Of all parameters, in one vector."""
    batch = [x if x is None else x.to(device) for x in batch]
    tokens, targets, recipe.core.allowed = batch
    model = fresh(recipe.core)
    hidden = model.model(tokens).flatten(0, 1)
    recipe.loss_of(hidden, model.lm_head.weight, targets.flatten()).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def apart(one, other):
    return ((one - other).norm() / other.norm()).item()


separate = gradients(pad_all(first), slow)
together = gradients(small, slow)
across = gradients((*small[:2], None), slow)  # only causal, without the blocks
assert apart(together, separate) < 1e-4 < 0.01 < apart(across, separate)
rows = [
    ("packed", f"{apart(together, separate):.1e}"),
    ("packed, without the blocks", f"{apart(across, separate):.2f}"),
]
Table(("rows", "relative difference of the gradient"), rows)

# %% [markdown]
# Without the blocks there would be no error and no warning, only a different gradient.
#
# **flex_attention** accepts such a mask as a function of positions. If it is compiled, it skips the blocks of the score matrix in which
# nothing is allowed. On a CPU it has no backward. Its result is the same on both devices:

# %%
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

owner = (small[2][:, 0].int().argmax(-1)).to(
    device
)  # where each token's document begins


def same_document(row, head, query, key):
    return (owner[row, query] == owner[row, key]) & (query >= key)


blocks = create_block_mask(same_document, len(owner), None, ROOM, ROOM, device=device)
draw = torch.Generator().manual_seed(0)
shapes = [(len(owner), heads, ROOM, 16) for heads in (4, 2, 2)]
q, k, v = (torch.randn(shape, generator=draw).to(device) for shape in shapes)
attend = torch.compile(flex_attention) if device.type == "cuda" else flex_attention
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns that, uncompiled, it computes all scores
    flex = attend(q, k, v, block_mask=blocks, enable_gqa=True)
plain.allowed = small[2].to(device)
real = (small[1] >= 0)[:, None, :, None].to(device)
worst = ((flex - plain(q, k, v)) * real).abs().max().item()
print(
    f"largest difference {worst:.0e}; blocks without a score: {blocks.sparsity():.0f} %"
)
print("They were skipped." if on_gpu else "Uncompiled, as here, nothing is skipped.")
assert worst < 1e-4
assert blocks.sparsity() > 20

# %% [markdown]
# A step of the slow script processed 8 of the 32 paragraphs. A step now processes three of the packed rows. (How many rows there are
# depends on the manual of your Python version: 8 on this page, with 4 paragraphs each on average.) **Prediction:** a pass over the whole
# text has 8 rows instead of 32, so everything except the data takes a quarter of the time. The data takes as long as before, because each
# paragraph is still one request.

# %%
ROWS = 3
row_numbers = list(range(len(packed_rows)))


def packed_loader(**options):
    passes = 8 if on_gpu else 2  # on a GPU, two end before its workers are up to speed
    order = (
        row_numbers[:ROWS] + row_numbers * passes
    )  # a step to warm up, then all rows
    options |= {"collate_fn": pack_rows, "drop_last": True}
    return DataLoader(Packed(packed_rows), ROWS, sampler=order, **options)


# A step now holds a different number of real tokens, so compare whole passes.
before = runs["attention in tiles"][0]
at_work = sum(took for part, took in before.items() if part != "data")
pass_seconds = at_work * len(packed_rows) / len(documents) + before["data"]
predicted["packed"] = sum(lengths) / pass_seconds
runs["packed"] = train(packed_loader(), slow._replace(core=tiled))
so_far()

# %% [markdown]
# ## Fix the loss
#
# The logits are the largest tensor of the step: tokens x words. They are written, turned into log-probabilities, kept for backward,
# turned into their own gradient, and read again by two matrix products. But the loss of a token needs only the logits of that token. So
# we can process a few hundred tokens at a time: compute their loss *and gradients*, and discard their logits.

# %%
# %%guess logits --unit MiB
# A step has 3 x 512 tokens, and the vocabulary has 8,192 words, in fp32. How many MiB
# does the plain loss keep for backward?
...

# %% [markdown]
# ### Exercise: a chunk's loss and its gradients

# %%
# %%exercise chunk_loss
import torch


def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = ...
    error = ...  # the gradient by the logits, (tokens, words)
    return loss, ..., ...


# %% [markdown]
# The next cell wraps your function in an `autograd.Function`. Its forward already computes the gradients, and its backward only passes
# them on.


# %%
class ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy; holds the logits of one chunk at a time."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk):
        count = (targets >= 0).sum().clamp(min=1)  # a tensor: no wait
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for start in range(0, len(targets), chunk):
            some = slice(start, start + chunk)
            loss, by_hidden[some], more = chunk_loss(
                hidden[some], weight, targets[some]
            )
            total += loss
            by_weight += more
        ctx.save_for_backward(by_hidden.div_(count), by_weight.div_(count))
        return total / count

    @staticmethod
    def backward(ctx, upstream):
        by_hidden, by_weight = ctx.saved_tensors
        return upstream * by_hidden, upstream * by_weight, None, None


def chunked_loss(hidden, weight, targets):
    return ChunkedLoss.apply(hidden, weight, targets, 256)


# %% [markdown]
# PyTorch 2.13 provides this as `F.linear_cross_entropy` with options. (It keeps the same two gradients, but in a place that autograd does
# not show to hooks, so its bytes are a dash below.) We check that all three losses have equal gradients:

# %%
losses = {"plain": plain_loss, "chunked": chunked_loss}
if hasattr(F, "linear_cross_entropy") and hasattr(nn, "LinearCrossEntropyOptions"):
    chunks = nn.LinearCrossEntropyOptions(batch_chunk_size=256)

    def library_loss(hidden, weight, targets):
        options = {"ignore_index": IGNORED, "options": chunks}
        return F.linear_cross_entropy(hidden, weight, targets, **options)

    losses["linear_cross_entropy"] = library_loss
else:
    print("this PyTorch has no linear_cross_entropy (2.13 has)")

targets = whole[1][:ROWS].flatten().to(device)
hidden = torch.randn(
    len(targets), CONFIG.hidden_size, device=device, requires_grad=True
)
weight = torch.randn(CONFIG.vocab_size, CONFIG.hidden_size, device=device) / 8
weight.requires_grad = True

# %%
given, took, kept, rows = (hidden, weight, targets), {}, {}, []
wanted = torch.autograd.grad(plain_loss(*given), (hidden, weight))
for name, loss_of in losses.items():
    ours = torch.autograd.grad(loss_of(*given), (hidden, weight))
    assert all(apart(*pair) < 1e-4 for pair in zip(ours, wanted, strict=True))
    took[name] = both_passes(loss_of, *given, times=3)
    kept[name] = kept_bytes(loss_of, *given)
    seen = f"{kept[name] / 2**20:.1f} MiB" if kept[name] > 2**16 else "-"
    rows.append((name, f"{took[name]:.0f} ms", seen))
Table(("loss", "forward and backward", "kept for backward"), rows)


# %%
def loss_bytes(tokens, words, width, each=4):
    """What must be kept: a number for each logit, or the two gradients."""
    return {
        "plain": each * tokens * words,
        "chunked": each * width * (tokens + words),
    }


formulas = loss_bytes(len(targets), *weight.shape)
for name, formula in formulas.items():
    assert abs(kept[name] / formula - 1) < 0.02, (name, kept[name], formula)
beside("logits", predicted=formulas["plain"] / 2**20, measured=kept["plain"] / 2**20)

# %% [markdown]
# Do the same two formulas hold for a real model? Wijmans et al. (2025) measured the loss of **Gemma 2 (2B)**: 256,000 words, 2,304
# numbers per token, and a batch of 8,192 tokens in bf16, on an A100. Two of their figures are for the forward: PyTorch's plain loss takes
# 24,000 MiB, and the same loss compiled takes 4,000 MiB. The third figure is for the backward of their own loss (*cut cross-entropy*),
# which never holds all logits. The next cell compares our formulas, with two bytes per number, with their figures:

# %% tags=["nbval-check-output"]
gemma, rows = loss_bytes(8_192, 256_000, 2_304, each=2), []
for what, ours, theirs in (
    ("compiled loss, forward: logits once", gemma["plain"], 4_000.1),
    ("plain loss, forward: six times as much", 6 * gemma["plain"], 24_000.0),
    ("cut cross-entropy, backward: gradients", gemma["chunked"], 1_163.0),
):
    rows.append((what, f"{ours / 2**20:,.0f} MiB", f"{theirs:,.0f} MiB"))
    assert abs(ours / 2**20 / theirs - 1) < 0.003
Table(("the loss of Gemma 2 (2B)", "our formula", "published"), rows)

# %% [markdown]
# The first and the third agree to 0.3 %. The factor of six in the second is taken from their figure, not predicted: the plain loss holds several
# copies of the logits at the same time, some of them in fp32. So in a model of two billion parameters, the loss alone needs more than 23 GiB, for
# numbers that nobody looks at afterwards.
#
# Now we use the new loss in our script:

# %%
better = slow._replace(core=tiled, loss_of=chunked_loss)
predict("loss in chunks", "packed", took["plain"] - took["chunked"])
runs["loss in chunks"] = train(packed_loader(), better)
so_far()

# %% [markdown]
# ## Fix the data
#
# Look at the parts of a step again:

# %%
before, after = (step_parts(name) for name in ("slow", "loss in chunks"))
assert before["data"] / sum(before.values()) < after["data"] / sum(after.values())
parts_table("slow", "loss in chunks")

# %% [markdown]
# The server is as slow as before. A step now takes longer to fetch its data, because three packed rows hold more paragraphs. But above all the share
# of the data has grown because the rest has shrunk (on a CPU, from a small part of the step to a large one). This is Amdahl's law, and it is the
# reason to look again after each fix.
#
# `num_workers=2` starts two processes that fetch data while the model computes. With `persistent_workers=True` they are kept from one epoch to
# the next, and not started again. On a GPU, add two options: `pin_memory=True` puts batches where the GPU can fetch them by itself, and with
# `.to(device, non_blocking=True)` Python then does not wait for the copy.
#
# **Prediction:** k workers prepare k times as many batches per second as one. Fetching and computing now run side by side, so a step
# takes as long as the slower of the two. If computing is slower, as on most CPUs, the time spent waiting for data disappears. A GPU needs
# more workers, so the code uses eight there.

# %%
num_workers = 8 if on_gpu else 2
parts = step_parts("loss in chunks")
computing = sum(parts.values()) - parts["data"]
still_waits = max(0, parts["data"] / num_workers - computing)
predict("workers", "loss in chunks", parts["data"] - still_waits)
ahead = {"num_workers": num_workers, "prefetch_factor": 4, "pin_memory": on_gpu}
runs["workers"] = train(packed_loader(**ahead), better)
so_far()

# %% [markdown]
# ## Fix the optimizer, and look less often
#
# Two items are left on the list: AdamW as a loop over tensors, and `watch`. We use the fused AdamW of lesson 15, and we switch `watch` off. (If you
# want to monitor the gradients, compute the norm of all of them with one call of `nn.utils.get_total_norm`, or, if you clip anyway, keep what
# `nn.utils.clip_grad_norm_` returns. Both stay on the device. Print the norm every hundred steps.) In kernels and waits this means (the slow script
# was counted with one row, the mended one with a packed batch, for whose loss it hands over some kernels per chunk):

# %%
packed = tuple(one.to(device) for one in small)
mended = better._replace(watch=False, adamw={"fused": True})
mended_handed = handed_over(mended, packed)
assert not mended_handed.waits
assert mended_handed.kernels < 0.9 * slow_handed.kernels
both = {"slow": slow_handed, "mended": mended_handed}
before, after = (idle_shares(handed) for handed in both.values())
assert all(now < then for now, then in zip(after, before, strict=True))
Table(HANDED, [handed_row(name, handed) for name, handed in both.items()])

# %% [markdown]
# Next we time AdamW's step alone, as a loop and fused, to predict what a step of training gains:

# %%
seconds = {}
for name, options in {"loop": {"foreach": False}, "fused": {"fused": True}}.items():
    model = fresh(tiled)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    seconds[name] = quickest(optimizer.step)
rows = [(name, f"{took:.2f} ms") for name, took in seconds.items()]
Table(("AdamW", "a step"), rows)

# %%
for name, recipe in (("workers", better), ("fused, no waits", mended)) * 2:
    # alternate, and keep the faster run of each; a wait after each part hides the gain
    run = train(packed_loader(**ahead), recipe, stops=("optimizer",))
    runs[name] = max(runs.get(name, run), run, key=rate)
predict("fused, no waits", "workers", seconds["loop"] - seconds["fused"])
so_far()

# %% [markdown]
# On this CPU the difference is too small for a clock to see on a busy machine. On a GPU, according to our model, the waits cost a few
# percent of a step, and these disappear. If kernels are shorter than their launch, the launches themselves remain, and they are the
# larger part. Only fewer kernels help there (`torch.compile`, a CUDA graph).
#
# (A real wait costs more than our model says, because Python also has to wake up. And on a GPU, our clock waits only at the end of a
# step, because otherwise it would do itself what `watch` did. The other parts then show how long Python needs to hand over their work.)
#
# ## Compare: all steps together
#
# The last table has all steps. (Its cell ran `workers` again, alternating with the last step, and kept the fastest run, so that line may
# differ slightly from what was printed first.) How much do they bring together?

# %%
names = list(runs)
total = speed(names[-1]) / speed("slow")
assert total > 3
hits = [speed(name) / value for name, value in predicted.items()]
assert on_gpu or all(1 / 3 < hit < 3 for hit in hits)
print(f"all together: {total:.1f} times")
print(f"measured over predicted: {min(hits):.2f} to {max(hits):.2f}")
product = math.prod(predicted[b] / speed(a) for a, b in pairwise(names))
beside("together", predicted=product, measured=total)

# %%
figure, axis = new_figure(7.2, 3.2)
left, per = [0.0] * len(names), {}
for part, color in zip(
    PARTS,
    ("#E69F00", "#0072B2", "#009E73", "#56B4E9", "#CC79A7"),
    strict=True,
):
    widths = [1e6 * runs[name][0][part] / runs[name][2] for name in names]
    axis.barh(names, widths, left=left, color=color, label=part)
    left = [start + width for start, width in zip(left, widths, strict=True)]
axis.invert_yaxis()
axis.set_xlabel("milliseconds for 1,000 real tokens")
figure.legend(loc="outside upper center", ncols=5, frameon=False)
Picture(
    figure,
    f"each mended script, from {left[0]:.0f} to {left[-1]:.0f} ms a thousand tokens",
)

# %% [markdown]
# (The prediction for all steps together is the product of the predicted factors, so their errors multiply, too.)
#
# The mathematics has not changed: from the same weights, the fixed step computes the same gradient as the slow one.

# %%
off = apart(gradients(small, mended), separate)
print(f"gradient of the mended step, against the slow one: off by {off:.0e}")
assert off < 1e-4

# %% [markdown]
# ## Tomorrow's script
#
# This is the fixed loop without this workshop: packed rows of one shape, attention that depends on the device, a loss in chunks if
# PyTorch provides it, fused AdamW, and losses that stay on the device until the epoch ends.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/fast_loop.py
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
ROOM, WORDS, WIDTH = 128, 512, 64
draw = random.Random(0)
texts = [[i % 50 for i in range(draw.randint(9, ROOM + 1))] for _ in range(96)]

rows, left = [], []  # first fit decreasing
for text in sorted(texts, key=len, reverse=True):
    fits = (row for row, room in enumerate(left) if room >= len(text) - 1)
    if (row := next(fits, len(rows))) == len(rows):
        rows.append([])
        left.append(ROOM)
    rows[row].append(text)
    left[row] -= len(text) - 1
tokens = torch.zeros(len(rows), ROOM, dtype=torch.long)
targets, owner = torch.full_like(tokens, -100), torch.full_like(tokens, -1)
for row, some in enumerate(rows):
    end = 0
    for number, text in enumerate(some):
        here = slice(end, end + len(text) - 1)
        tokens[row, here], targets[row, here] = torch.tensor([text[:-1], text[1:]])
        owner[row, here], end = number, here.stop
allowed = (owner[:, :, None] == owner[:, None, :]).tril()[:, None]
before = 1 - (targets >= 0).sum().item() / (len(texts) * ROOM)
print(f"padding {(targets < 0).float().mean():.1%} instead of {before:.1%}")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def loss_of(hidden, weight, targets):
    if hasattr(nn, "LinearCrossEntropyOptions"):  # PyTorch 2.13
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=256)
        return F.linear_cross_entropy(hidden, weight, targets, options=options)
    return F.cross_entropy(hidden @ weight.T, targets)


embed, block = nn.Embedding(WORDS, WIDTH).to(device), Block().to(device)
nn.init.normal_(embed.weight, std=0.1)  # it is also the output head
model = nn.ModuleList([embed, block])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
batches = [
    (tokens[n : n + 8], targets[n : n + 8], allowed[n : n + 8])
    for n in range(0, len(rows), 8)
]
if device.type == "cuda":
    batches = [[tensor.pin_memory() for tensor in batch] for batch in batches]
for epoch in range(3):
    total, start = torch.zeros((), device=device), time.perf_counter()
    for batch in batches:
        some, right, mask = (one.to(device, non_blocking=True) for one in batch)
        loss = loss_of(
            block(embed(some), mask).flatten(0, 1), embed.weight, right.flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
    mean = total.item() / len(batches)  # the only wait
    speed = int((targets >= 0).sum()) / (time.perf_counter() - start)
    print(f"epoch {epoch}: mean loss {mean:.3f}, {speed:,.0f} real tokens/s")

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("16_faster_step")

# %% [markdown]
# ## What to take away
#
# - A GPU is idle when kernels are shorter than their launch, when Python waits for a number, or when data comes late. Count kernels and
#   waits.
# - The share of padding follows from the lengths. Pack documents, with a block for each document in the mask, and check the gradient.
# - Do not write to memory what you can compute again in the cache: attention in tiles, a loss in chunks, fused kernels. Predict from
#   bytes.
# - After each fix, look again: a part that was small may now be large.
#
# Next: [17_profile_and_monitor](17_profile_and_monitor.ipynb), how to see all this in a program that you do not know.
#
# ## Sources
#
# - T. Dao et al., *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, 2022,
#   [arXiv:2205.14135](https://arxiv.org/abs/2205.14135).
# - J. Dong et al., *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*, 2024,
#   [arXiv:2412.05496](https://arxiv.org/abs/2412.05496).
# - P.-L. Hsu et al., *Liger Kernel: Efficient Triton Kernels for LLM Training*, 2024,
#   [arXiv:2410.10989](https://arxiv.org/abs/2410.10989): the fused linear cross-entropy.
# - M. M. Krell et al., *Efficient Sequence Packing without Cross-contamination*, 2021,
#   [arXiv:2107.02027](https://arxiv.org/abs/2107.02027).
# - E. Wijmans et al., *Cut Your Losses in Large-Vocabulary Language Models*, ICLR 2025,
#   [arXiv:2411.09009](https://arxiv.org/abs/2411.09009) (from 24 GB to 1 MB, abstract); the three numbers to one decimal, there called
#   MB, are in its [README](https://github.com/apple/ml-cross-entropy/blob/18e76ada05706ad9bc672804a35a940a07a21a13/README.md),
#   "Benchmarking". Gemma 2's sizes: `Gemma2Config` of transformers.
# - PyTorch documentation: `linear_cross_entropy`, `flex_attention`, *Performance Tuning Guide*.
