# %% [markdown]
# # When does data parallelism stop?
#
# - **You need** `22_ddp`.
# - **It takes** 30 minutes to read and try, half a minute to run.
# - **What runs where:** everything runs here. `--device-memory` gives each rank a small device, so that you really run out of memory.
#   With six GPUs or more, or where all ranks share one GPU, the same cells run on the GPUs, with a larger cap. The last part rehearses a
#   model of 3 billion parameters.
# - **Model and text:** not `TINY` but a stack of eight linear layers, fed with random numbers: its bytes can be added up by hand, and a
#   single number, the width, sets its size. The last part uses a Llama of 3 billion parameters, the same kind of model as `TINY` at full
#   size.
# - **Links:** before this [22_ddp](22_ddp.ipynb), after it [24_zero](24_zero.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Data parallelism is the first technique to try: N ranks, each with a full copy of the model and its own part of the batch. It makes
# training faster. Does it also make room for a larger model? If a model does not fit on one rank, does it fit on four?

# %%
# %load_ext workshop
import copy
import os

import torch

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes
from workshop.launch.device import choose, wants_to_share

folder = launch.Session.get().directory  # private; deleted when the kernel ends
grow = folder / "grow.py"

# %% [markdown]
# ## First, the one not to use
#
# PyTorch has a second class for data parallelism, and it looks easier: `torch.nn.DataParallel(model)`. It needs no `torchrun`, no process
# group and no sampler. A single process drives all GPUs, with one thread for each. In **every** step it
#
# 1. copies the model from GPU 0 to all others,
# 2. divides the batch among the GPUs,
# 3. lets each thread run its copy, and
# 4. brings all **outputs** back to GPU 0, where the loss is computed. In backward, the gradients come back to GPU 0 too.
#
# The next cell does the same by hand in ten lines. (Our four "GPUs" are four copies on one device.)


# %%
def data_parallel_step(model, batch, num_devices=4):
    """A step as DataParallel does it; bytes of outputs on GPU 0, and on GPU 1."""
    copies = [model, *(copy.deepcopy(model) for _ in range(num_devices - 1))]
    parts = batch.chunk(num_devices)
    outputs = [one(part) for one, part in zip(copies, parts, strict=True)]
    gathered = torch.cat(outputs)  # all of them, on GPU 0
    gathered.square().mean().backward()
    for one in copies[1:]:
        for mine, theirs in zip(model.parameters(), one.parameters(), strict=True):
            mine.grad += theirs.grad  # a sum: the mean was taken over the whole batch
    return gathered.nbytes, outputs[0].nbytes


torch.manual_seed(0)
single, batch = torch.nn.Linear(64, 1_000), torch.randn(32, 64)
by_hand = copy.deepcopy(single)
on_gpu_0, on_the_others = data_parallel_step(by_hand, batch)
single(batch).square().mean().backward()
torch.testing.assert_close(by_hand.weight.grad, single.weight.grad)
assert on_gpu_0 == 4 * len(batch) * 1_000, "all outputs, of 4 bytes each"
print(f"equal gradients; GPU 0 holds {on_gpu_0:,} B of outputs,", end=" ")
print(f"each of the others {on_the_others:,} B")

# %% [markdown]
# GPU 0 holds the outputs of all copies, so it is full long before the others. The outputs of a language model are its logits. With the
# vocabulary of Llama 3, the logits of one sequence of 8,192 tokens take 4.2 GB in fp32, and with one such sequence on each of eight GPUs,
# GPU 0 holds the logits of all eight.
#
# There are more disadvantages. The threads share one Python interpreter, which runs only one of them at a time, and `DataParallel` cannot
# use a second machine. Where there is no GPU, it just calls the model and divides nothing, without a warning. Here is the real class
# beside ours:

# %%
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
wrapped = torch.nn.DataParallel(copy.deepcopy(single).to(device))
wrapped(batch.to(device)).square().mean().backward()
theirs = wrapped.module.weight.grad.cpu()
torch.testing.assert_close(theirs, by_hand.weight.grad, rtol=1e-4, atol=1e-6)
print("the same gradients; devices that it uses here:", wrapped.device_ids or "none")
assert len(wrapped.device_ids) == torch.accelerator.device_count()
assert round(8_192 * 128_256 * 4 / 1e9, 1) == 4.2, "GB: the logits in the text above"

# %% [markdown]
# PyTorch's documentation recommends `DistributedDataParallel` even on one machine. From here on, *data parallel* means
# `DistributedDataParallel`, or DDP.
#
# ## Predict
#
# What must one rank hold to train with AdamW in fp32, without any activations? Go through a step (`15_optimizers` explains what AdamW
# keeps), and note what is still in memory when `optimizer.step()` returns. One thing comes from DDP: it sends gradients from *buckets*.
# Buckets take memory of their own, unless you set `gradient_as_bucket_view=True`, which stores the gradients in the buckets.
#
# ### Exercise: the arithmetic


# %%
# %%exercise ddp_bytes
def ddp_bytes(num_parameters: int, bytes_per_value: int = 4, bucket_view: bool = True):
    """Bytes a rank holds when `optimizer.step()` returns."""
    return ...


# %% [markdown]
# Our model is a stack of eight square layers, and its width determines its size. A rank may hold 64 MiB.
#
# **On a GPU** the cap is larger, whether each rank has a GPU of its own or all ranks share one, because PyTorch reserves GPU memory in
# larger pieces: 20 MiB at a time for tensors of 1 to 10 MiB. A rank on a GPU also needs more than the formula counts:
#
# - workspaces of cuBLAS, the library of matrix products (65 MiB on a Hopper GPU),
# - the gradient of a layer on its way into its bucket (about 127 MiB), and
# - the unused ends of blocks.
#
# We add 224 MiB to the limit for these, so that the cap itself is available for what the formula counts.

# %%
DEPTH = 8
six_ranks = choose(6, torch.accelerator.device_count(), wants_to_share(None))
on_gpus = six_ranks.kind == "cuda"  # one GPU per rank, or all ranks share one
CAP = 4 * 2**30 if on_gpus else 64 * 2**20  # bytes for tensors
LIMIT = CAP + (224 * 2**20 if on_gpus else 0)  # plus what the text above lists
if not on_gpus:  # the six ranks have no GPU, so smaller runs must not use one either
    os.environ.update(six_ranks.environment())


def parameters(width: int) -> int:
    """Weights and biases of DEPTH linear layers."""
    return DEPTH * (width * width + width)


rows = []
for width in (256, 512, 768, 1024):
    needed, count = ddp_bytes(parameters(width)), f"{parameters(width):,}"
    fits = "yes" if needed <= CAP else "no"
    rows.append((f"{width}", count, format_bytes(needed), fits))
head = ("width", "parameters", "needed by a rank", f"fits under {format_bytes(CAP)}")
Table(head, rows)

# %% [markdown]
# ### Exercise: the largest that fits


# %%
# %%exercise largest_under_cap
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest multiple of 64 with ddp_bytes of at most cap_bytes; 0 if none."""
    width = 0
    ...
    return width


# %%
predicted_width = largest_under_cap(CAP, parameters)
print(f"width {predicted_width} should fit, and {predicted_width + 64} should not")

# %% [markdown]
# ## Run
#
# We start four ranks with this much memory each. The program makes the model wider step by step, and trains two steps with DDP at each
# width. (AdamW creates its moments in the first step, so only in the second is everything in memory.) It stops at the first width that
# does not fit.
#
# Before the next width, the program must free everything. DDP contains references to itself, so only the garbage collector frees it. And
# on a GPU, PyTorch keeps blocks of the old sizes, into which the new tensors do not fit. `--save` writes the cell to a file, because we
# need it again.
#
# **On a GPU**, with NCCL, the program also waits a moment after each step. An NCCL group keeps what it has sent until one of its threads,
# which checks ten times a second, has seen that it arrived. In its second step, DDP creates new buckets, in the order in which the
# gradients came. If this happens too soon, the old buckets are still in memory: 4,701 MiB on an H200 where 3,772 are needed (torch 2.11,
# width 5,504, November 2026). The wait should prevent this, but it has not been tried on a GPU yet.
#
# The program first trains one small model without `gradient_as_bucket_view`, to see what the second copy of the gradients, in the
# buckets, costs. It also computes a checksum of each rank's weights and moments: are they the same, bit by bit?

# %%
first = -1 if on_gpus else -4  # fewer widths, because each sends gigabytes
widths = [predicted_width + 64 * step for step in range(first, 3)]

# %%
# %%torchrun -n 4 --device-memory {LIMIT} --pass widths,DEPTH --into grown --save {grow}
import gc
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.measure import count_from_here, held_bytes

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(dist.get_rank())  # DDP sends rank 0's weights to the others
count_from_here()


def bytes_after_two_steps(width, view=True):
    global checksum
    stack = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(DEPTH)))
    model = DistributedDataParallel(stack.to(device), gradient_as_bucket_view=view)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, width, device=device)).square().mean().backward()
        optimizer.step()
        if dist.get_backend() == "nccl":  # wait until it frees the buckets it sent
            torch.cuda.synchronize()
            time.sleep(0.3)
    state = [value for kept in optimizer.state.values() for value in kept.values()]
    checksum = 0
    for tensor in (*model.parameters(), *state):
        checksum = zlib.crc32(tensor.detach().cpu().numpy(), checksum)
    return held_bytes()


second_copy, held = bytes_after_two_steps(256, view=False), {}
try:
    for width in widths:
        gc.collect()
        torch.cuda.empty_cache()  # the next width must not find old blocks
        held[width] = None  # replaced once it has trained
        held[width] = bytes_after_two_steps(width)
except torch.OutOfMemoryError:
    print("out of memory at width", width)
report(held=held, second_copy=second_copy, checksum=checksum)
dist.destroy_process_group()

# %% [markdown]
# ## Compare

# %%
held = grown[0].held
tried = [width for width in widths if width in held]
show.predicted_and_measured(
    [f"width {width}" for width in tried],
    [ddp_bytes(parameters(width)) for width in tried],
    [held[width] for width in tried],
    cap=CAP,
)

# %%
fitted = [width for width in tried if held[width] is not None]
needed = {width: ddp_bytes(parameters(width)) for width in fitted}
worst = max(abs(held[width] / needed[width] - 1) for width in fitted)
print(f"the largest that trained: {max(fitted)}, predicted: {predicted_width}")
one_more = 64 if on_gpus else 0  # some GPUs need less than the 224 MiB
assert 0 <= max(fitted) - predicted_width <= one_more
assert all(grown[rank].held.keys() == held.keys() for rank in range(4)), "alike on all"
assert worst < 0.02, worst
second_copy = grown[0].second_copy / parameters(256)
print(f"without gradient_as_bucket_view: {second_copy:.1f} bytes a parameter")
separate = ddp_bytes(parameters(256), bucket_view=False) / parameters(256)
assert abs(second_copy / separate - 1) < 0.02
print("checksums of four ranks:", *(f"{grown[rank].checksum:x}" for rank in range(4)))
assert len({grown[rank].checksum for rank in range(4)}) == 1

# %% [markdown]
# The arithmetic is correct to within two percent, with the second copy and without. And after the last step that succeeded, weights and
# moments were the same on all ranks, to the last bit.
#
# The next cell shows what the error looks like when the program does not catch it. Read the message: how much memory was requested, how
# much was free, and how much was in use? (On a GPU, this run gets no memory in addition to the cap, so that the tensors are what does not
# fit.)

# %% tags=["raises-exception"]
# %%torchrun -n 4 --device-memory {CAP} --pass predicted_width,DEPTH
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
width = predicted_width + 64
layers = [torch.nn.Linear(width, width, device=device) for _ in range(DEPTH)]
stack = torch.nn.Sequential(*layers)
model = DistributedDataParallel(stack, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.randn(4, width, device=device)).square().mean().backward()
print("forward and backward are through")
optimizer.step()

# %% [markdown]
# Forward and backward succeeded, and the first step of the optimizer failed. This is when AdamW creates its moments, and they are half of
# all the memory.
#
# ## More ranks
#
# Do more ranks help? We run the same program on one, two and six ranks, each with its own memory.

# %%
# %%guess six_ranks
# Four ranks stopped at the width above. Six ranks have 1.5 times as much memory
# in total. What is the largest width that six ranks can train?
...

# %%
stopped = {4: max(fitted)}
for n in (1, 2, 6):
    script = launch.Script(grow)
    limits = launch.Limits(device_memory=LIMIT, timeout=300)
    held = launch.torchrun(script, n, limits=limits)[0].held
    stopped[n] = max(width for width, size in held.items() if size is not None)
rows = [(f"{n}", format_bytes(n * CAP), f"{stopped[n]}") for n in sorted(stopped)]
display(Table(("ranks", "memory in all", "largest width that trained"), rows))
assert set(stopped.values()) == {max(fitted)}
beside("six_ranks", predicted=predicted_width, measured=stopped[6])

# %% [markdown]
# With six times the memory, the largest model is still the same. The next picture shows why. Each column is what one rank holds, and the
# pale columns are copies of the first: the four checksums above were equal. Move `ranks`: columns are added, but none of them becomes
# shorter. Move `width` one step up: all columns pass the cap at the same time.

# %%
from workshop.jupyter.explorer import Control, explore


def copies(ranks, width):
    """What each of the ranks holds, by part, and the cap of each."""
    P = parameters(width)
    state = {"weights": 4 * P, "gradients": 4 * P, "moments": 8 * P}
    assert sum(state.values()) == ddp_bytes(P)
    return show.replicas(state, ranks=ranks, cap=CAP)


wider = [predicted_width + 64 * step for step in range(-4, 3)]
explore(copies, [Control("ranks", 4, (1, 2, 4, 6)), Control("width", wider[4], wider)])

# %% [markdown]
# With N ranks, **(N - 1) / N of all this memory holds only copies of what the first rank holds**. On 1,024 GPUs that is 99.9 %. This is
# not a mistake in DDP: DDP divides the *data*, and nothing else.
#
# ## The real thing: Llama 3.2 3B on 80 GB
#
# The next cell counts the parameters from the published configuration: 28 layers of width 3,072, keys and values of 8 heads of 128, a
# feed-forward width of 8,192, a vocabulary of 128,256, and a single matrix for input and output embeddings.

# %% tags=["nbval-check-output"]
vocabulary, hidden, layers, feed_forward, kv = 128_256, 3_072, 28, 8_192, 8 * 128
attention = 2 * hidden * hidden + 2 * hidden * kv  # queries and output, keys and values
mlp = 3 * hidden * feed_forward  # SwiGLU has three matrices
one_layer = attention + mlp + 2 * hidden  # and two norms
llama = vocabulary * hidden + layers * one_layer + hidden
states = ddp_bytes(llama, bucket_view=True)
print(f"{llama:,} parameters, {states / 1e9:.1f} GB of state on every rank")
assert round(llama / 1e9, 2) == 3.21, "as Meta's model card says: 3.21B"

# %% [markdown]
# A GPU sold as 80 GB reports a little more: an A100 has 79.1 GiB, which is 85 GB. 51 of these are used before the first token. The rest
# is left for activations. How many tokens is that enough for?

# %%
# %%guess sequences
# Llama 3.2 3B in fp32, AdamW, DDP, 80 GB per GPU. Sequences have 1,024 tokens.
# How many of them fit on one GPU in a step?
...

# %% [markdown]
# You do not have to rent a GPU to find out. `rehearse` runs real training code as one of 64 ranks, on tensors that have shapes but occupy
# no memory, and records every allocation. So this is the real model under the real DDP.
#
# The code says `"cuda"`, so the rehearsal counts what a GPU would need. GPUs have no fast fp32 attention for query heads that share a key
# (`16_faster_step`). On a GPU, our model therefore copies the keys, one copy for each query head, and these copies stay in memory until
# backward.


# %%
def two_steps(sequences, seq_len=1_024, name="llama-3.2-3b"):
    """Two steps under DDP, in fp32."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from workshop.facts import catalogue
    from workshop.models.from_spec import gpt_config
    from workshop.models.gpt import GPT

    dist.init_process_group()
    config = gpt_config(catalogue.model(name))
    network = GPT(config).to("cuda")
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        tokens = torch.randint(config.vocab_size, (sequences, seq_len), device="cuda")
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# We start with two sequences. The memory beyond the state grows in proportion to their number, so one run predicts where the limit is:

# %%
from workshop.facts import catalogue
from workshop.rehearse import rehearse

GPU = catalogue.device("A100-80GB").memory_bytes
two = rehearse(two_steps, 64, arguments=(2,))
peaks = {2: two.peak_bytes}
per_sequence = (peaks[2] - states) / 2
predicted = int((GPU - states) / per_sequence)
rows = [(part, f"{n / 1e9:.1f} GB") for part, n in two.memory.peak_parts.items()]
display(Table(("part", "two sequences"), [*rows, ("all", f"{peaks[2] / 1e9:.1f} GB")]))
print(f"beyond the state, {per_sequence / 1e9:.1f} GB for each sequence;", end=" ")
print(f"{GPU / 1e9:.1f} GB should have room for {predicted}, not for {predicted + 1}")
temporary = two.memory.peak_parts["temporaries"] / 2
logits = 1_024 * vocabulary * 4
assert round(temporary / logits, 2) == 2
assert round(logits / 1e9, 2) == 0.53
in_layers = two.memory.peak_parts["activations"] / 2 - logits
assert 0.25e9 < in_layers / layers < 0.275e9, "a good quarter of a GB"

# %% [markdown]
# Where do the bytes beyond the state come from? Each of the 28 layers keeps a good quarter of a GB per sequence for backward. A tensor in
# the shape of the logits takes another 0.53 GB, and at the peak there are three of them: one that the loss keeps for backward, and two
# temporaries as backward begins.

# %%
rows = []
for sequences in (predicted, predicted + 1):
    rehearsed = rehearse(two_steps, 64, arguments=(sequences,))
    peaks[sequences] = rehearsed.peak_bytes
    verdict = "fits" if rehearsed.peak_bytes <= GPU else "out of memory"
    rows.append((f"{sequences}", f"{rehearsed.peak_bytes / 1e9:.1f} GB", verdict))
    assert (rehearsed.peak_bytes <= GPU) == (sequences == predicted)
display(Table(("sequences", "peak", f"on {GPU / 1e9:.1f} GB"), rows))
fitting = [sequences for sequences in peaks if peaks[sequences] <= GPU]
assert 3e9 < GPU - peaks[max(fitting)] - 2e9 < 6e9, "beside 2 GB for the context"
beside("sequences", predicted=predicted, calculated=max(fitting))

# %% [markdown]
# (*Calculated* is what the rehearsal found.) These numbers count only tensors. A real GPU also holds the CUDA context and its libraries,
# about 2 GB, and blocks that the allocator keeps (lesson 13). With three sequences, some 5 GB are left for such blocks. So three fit, but
# the margin is small.
#
# The next picture shows the run that fails, moment by moment. In the first step, AdamW has no moments yet. In the second step, everything
# that the layers keep for backward is added to the full state, and the sum exceeds the cap. (The picture counts in GiB: the cap is 79.1
# GiB.)

# %%
show.memory_timeline(rehearsed, cap=GPU)

# %% [markdown]
# So there is room for about three thousand tokens, on a GPU of 80 GB, with a small model. The next larger one does not even start: Llama
# 3.1 8B has 8.03 billion parameters, and 16 bytes for each of them are 128 GB. More GPUs do not help. Each of 8, 64 or 1,024 GPUs would
# have to hold all of it.
#
# Mixed precision does not change this. Weights and gradients in 16 bits take 2 + 2 bytes per parameter, and the fp32 master copy and the
# two moments take 4 + 8, so the sum is 16 again.
#
# The authors of ZeRO give two examples (Rajbhandari et al., 2020). GPT-2 with its 1.5 billion parameters needs "at least 24 GB" (section
# 3.1). And plain data parallelism "runs out of memory for models with more than 1.4B parameters" on GPUs with 32 GB (section 1). The next
# cell checks both: it counts GPT-2's parameters from the published sizes (48 layers of width 1,600, 1,024 positions and 50,257 tokens),
# and calls your function:

# %% tags=["nbval-check-output"]
width = 1_600
one_layer = 12 * width**2 + 13 * width  # attention 4, MLP 8; biases and two norms
gpt_2 = (50_257 + 1_024) * width + 48 * one_layer + 2 * width
assert ddp_bytes(gpt_2) == (2 + 2 + 4 + 8) * gpt_2, "in mixed precision, too"
print(f"GPT-2: {gpt_2:,} parameters, {ddp_bytes(gpt_2) / 1e9:.1f} GB of state")
left = 32e9 - ddp_bytes(1_400_000_000)
print(f"1.4 billion: {left / 1e9:.1f} of 32 GB are left for activations")
assert 24 <= ddp_bytes(gpt_2) / 1e9 < 25, "at least 24 GB"

# %% [markdown]
# The first example agrees with the formula. In the second, the state fills more than two thirds of a GPU, however many GPUs there are.
# Whether the remaining 9.6 GB are enough depends on the activations. Recomputing activations (lesson 13) makes room for more tokens, but
# the state itself does not shrink: 32 GB are full at 2 billion parameters, even without any activations.
#
# ## The way out
#
# Nearly all of this memory holds copies, and we can do without them. Instead of the same 16 bytes for each parameter, every rank can hold
# only a **part** of them, and get the rest from the other ranks when it needs it. You know the two collectives for this: reduce-scatter
# and all-gather.
#
# ## Tomorrow's script
#
# Before you queue a large job, find out how many bytes a parameter costs in *your* training loop, with your optimizer. This program
# measures it under DDP, from the tensors themselves, and prints how large a model could be at most, with no room left for activations.
# `--save` writes the script; `torchrun --nproc-per-node 8 will_it_fit.py` runs it.

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/will_it_fit.py
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

network = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])  # yours
model = DistributedDataParallel(network.to(device), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters())  # use your own here
model(torch.randn(8, 512, device=device)).square().mean().backward()
optimizer.step()


def total_bytes(tensors):
    return sum(tensor.nbytes for tensor in tensors if torch.is_tensor(tensor))


state = [value for kept in optimizer.state.values() for value in kept.values()]
held = {
    "weights": total_bytes(model.parameters()),
    "gradients": total_bytes(p.grad for p in model.parameters()),
    "optimizer": total_bytes(state),
}
count = sum(parameter.numel() for parameter in model.parameters())
if dist.get_rank() == 0:
    for name, size in held.items():
        print(f"{name}: {size / count:.2f} bytes a parameter")
    each = sum(held.values()) / count
    gpu = torch.cuda.mem_get_info()[1] if device.type == "cuda" else 80e9
    most = gpu / each / 1e9
    print(f"a GPU of {gpu / 1e9:.0f} GB is full at {most:.1f} billion parameters")
    if device.type == "cuda":
        print(f"the peak was {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("23_ddp_limits", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Do not use `DataParallel`. All its outputs end up on GPU 0, its threads share one interpreter, and it is limited to one machine.
# - In fp32 with AdamW, a DDP rank holds 16 bytes per parameter, or 20 if the buckets are a second copy. Activations come on top.
# - None of this is divided by the number of ranks. **More ranks make training faster, but they do not make room for a larger model.**
# - If memory runs out in the first `optimizer.step()`, the moments are the reason.
# - (N - 1) / N of the memory that a data-parallel group uses for weights, gradients and moments holds copies. Sharding makes use of this
#   memory.
#
# Next: [24_zero](24_zero.ipynb). What if nobody keeps everything?
#
# ## Sources
#
# - PyTorch documentation, `torch.nn.DataParallel`; *CUDA semantics*, "Use nn.parallel.DistributedDataParallel instead of multiprocessing
#   or nn.DataParallel".
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   [arXiv:2006.15704](https://arxiv.org/abs/2006.15704).
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020,
#   [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), sections 1 and 3.1.
# - I. Loshchilov, F. Hutter, *Decoupled Weight Decay Regularization*, ICLR 2019, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101)
#   (AdamW).
# - A. Dubey et al., *The Llama 3 Herd of Models*, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783); the published configuration of
#   Llama 3.2 3B, and the number of parameters in its model card.
