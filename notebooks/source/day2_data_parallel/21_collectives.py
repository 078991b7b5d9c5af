# %% [markdown]
# # Collectives: what ranks say to one another
#
# - **You need** `00_welcome` (what a rank is, what a parallel cell is).
# - **It takes** 25 minutes to read and try, under half a minute to run.
# - **What runs where:** all of it on this machine, on CPU (gloo) or on GPUs (NCCL), with the same cells. One table of
# published figures comes from a cluster.
#
# ## Question
#
# Every technique of this workshop is a sequence of a few sentences that ranks say together: "take
# mine", "give me yours", "let us add up". They are called **collectives**. What are they, how many bytes does each send, and
# how long does that take?

# %%
# %load_ext workshop
import numpy as np

from workshop import show

# %% [markdown]
# ## The five sentences
#
# Four ranks, a few numbers each, one collective at a time. Look at the colours: a box has the colour of the rank
# whose number it holds; a white box is a sum over all ranks.
#
# **Broadcast**: one speaks, all have it. **Reduce**: all give, one has the sum. **All-reduce**: all give, all have
# the sum. **All-gather**: each gives a piece, all have all pieces. **Reduce-scatter**: each gives a full list,
# each has the sum of one piece of it. (After a reduce, what the others hold is not defined; we draw what they gave.)
#
# Before you run the cell: which two of them, one after the other, make an all-reduce?

# %%
# %%torchrun -n 4 --into spoken
import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator() or torch.device("cpu")


def mine(length: int) -> torch.Tensor:
    """This rank's numbers: 10, 11, 12, 13 on rank 0, 20, 21, 22, 23 on rank 1, ..."""
    return torch.arange(length, device=device) + 10.0 * (rank + 1)


broadcast = mine(1)
dist.broadcast(broadcast, src=2)

reduced = mine(1)
dist.reduce(reduced, dst=0)

all_reduced = mine(1)
dist.all_reduce(all_reduced)

gathered = [torch.empty(1, device=device) for _ in range(world_size)]
dist.all_gather(gathered, mine(1))

scattered = torch.empty(1, device=device)
dist.reduce_scatter(scattered, list(mine(world_size).split(1)))

report(one=mine(1), four=mine(4), broadcast=broadcast, all_reduce=all_reduced)
report(reduce=reduced if rank == 0 else mine(1), all_gather=torch.cat(gathered), reduce_scatter=scattered)
dist.destroy_process_group()

# %%
one = {rank: spoken[rank].one for rank in range(4)}
four = {rank: spoken[rank].four for rank in range(4)}
for name, before in [
    ("broadcast", one),
    ("reduce", one),
    ("all_reduce", one),
    ("all_gather", one),
    ("reduce_scatter", four),
]:
    display(show.before_and_after(before, {rank: spoken[rank][name] for rank in range(4)}, name))

# %% tags=["nbval-check-output"]
total = sum(one.values())
assert all(spoken[rank].all_reduce == total for rank in range(4))
assert [float(spoken[rank].reduce_scatter[0]) for rank in range(4)] == list(sum(four.values()))
print("the sum that all_reduce gave everybody:", total.tolist())
print("the sums of which reduce_scatter gave each rank one:", sum(four.values()).tolist())

# %% [markdown]
# A **reduce-scatter followed by an all-gather is an all-reduce**: first each rank gets the full sum of one piece, then
# everybody gets all pieces. Keep that in mind. It is how libraries do it for large tensors, and it is the whole idea of
# ZeRO and FSDP (lessons 24 and 25): do the two halves at different times, and in between hold only
# your piece.
#
# ## All-reduce by hand: the ring
#
# How would you add up a tensor over N ranks? Send everything to rank 0, add, send back: then rank 0 receives N - 1
# tensors and sends N - 1, and the others look on. The ring shares the work. Cut the tensor into N chunks and put the ranks in a
# circle. In each step every rank passes one chunk to the right and takes one from the left.
#
# - N - 1 steps of **adding**: after them each rank has the full sum of one chunk.
# - N - 1 steps of **handing out**: after them everybody has all of them.
#
# Here it is, in full. Nothing else is needed but `isend` and `recv`.

# %%
# %%ranks -n 4 --into stepped
from workshop import report


def ring_by_hand(tensor, watch=lambda: None):
    """Sum `tensor` over all ranks, in place (Patarasuk and Yuan, 2009)."""
    chunks = tensor.chunk(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    arriving = torch.empty_like(chunks[0])
    for step in range(2 * (world_size - 1)):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(arriving, left)
        target = chunks[(rank - step - 1) % world_size]
        target.copy_(target + arriving if step < world_size - 1 else arriving)
        sending.wait()
        watch()


# Each rank gives ones, so a number says how many ranks are summed in it.
ones = torch.ones(world_size, device=device)
history = [ones.tolist()]
ring_by_hand(ones, watch=lambda: history.append(ones.tolist()))
report(history=history)

# %% [markdown]
# A box is one chunk on one rank. The fuller it is, the more ranks are summed in it. Follow one diagonal.

# %%
steps = [[stepped[rank].history[step] for rank in range(4)] for step in range(7)]
show.ring_steps(steps)

# %% [markdown]
# Ones prove little. The same on random numbers, other ones on each rank, beside the library's:

# %% tags=["nbval-check-output"]
# %%ranks
torch.manual_seed(rank)
by_hand = torch.randn(4_096, device=device)
by_library = by_hand.clone()
ring_by_hand(by_hand)
dist.all_reduce(by_library)
torch.testing.assert_close(by_hand, by_library)
print("by hand and by the library: equal")

# %% [markdown]
# ## Predict the bytes
#
# Count what one rank sends. A chunk is an Nth of the tensor. It sends one chunk in each of 2 (N - 1) steps:
#
# $$\text{bytes sent by a rank} = 2\,\frac{N-1}{N}\,n$$
#
# With 4 ranks that is 1.5 times the tensor; with 1,024 ranks, 1.998 times. **The traffic of a rank hardly grows with the number of
# ranks.** That is why data parallelism scales as far as it does. (The number of *steps* does grow.)
#
# ### Exercise: write that down


# %%
# %%exercise ring_bytes
def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of a tensor of num_bytes."""
    return ...


# %% [markdown]
# And is it true? We count what `ring_by_hand` really sends, by putting a counter around `isend`.

# %% tags=["nbval-check-output"]
# %%ranks --pass ring_bytes
sent = 0
plain_isend = dist.isend


def counting_isend(tensor, dst):
    global sent
    sent += tensor.nbytes
    return plain_isend(tensor, dst)


dist.isend = counting_isend
tensor = torch.ones(1_000_000, device=device)
ring_by_hand(tensor)
dist.isend = plain_isend
print(f"predicted {ring_bytes(tensor.nbytes, world_size):,.0f} bytes, sent {sent:,} bytes")
assert sent == ring_bytes(tensor.nbytes, world_size)

# %% [markdown]
# ### Exercise: the ring, by you
#
# You have read it; now write it, from the idea and not from the cell above. The check compares with `dist.all_reduce` on
# four real ranks, for several sizes, and counts your bytes.

# %%
# %%exercise ring_all_reduce
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)  # views: what is written to a chunk is written to the tensor
    # Reduce-scatter: pass a chunk to the right, add the one from the left, world_size - 1 times.
    ...
    # All-gather: pass on the chunk that is complete, world_size - 1 times.
    ...


# %% [markdown]
# ## Predict the time
#
# A message of n bytes takes
#
# $$t = \alpha + \frac{n}{\beta}$$
#
# where $\alpha$ is the price of sending anything at all and $\beta$ the bytes per second of the link
# (Hockney, 1994). Two numbers describe a link. Let us have this machine's, by ping-pong between two ranks: out and back, halved.
# We take the fastest of several tries: noise only ever adds.

# %%
# %ranks stop

# %%
# %%torchrun -n 2 --into clocked
import time

import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group()
rank = dist.get_rank()
device = torch.accelerator.current_accelerator() or torch.device("cpu")
sizes = [2**k for k in range(12, 25)]


def fastest(call, tries):
    """Seconds of the fastest try, ranks lined up before each."""
    seconds = []
    for _ in range(tries):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def ping_pong():
    if rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    else:
        dist.recv(message, 0)
        dist.send(message, 0)


one_way, all_reduce = [], []
for size in sizes:
    message = torch.ones(size // 4, device=device)
    one_way.append(fastest(ping_pong, 15) / 2)
    all_reduce.append(fastest(lambda: dist.all_reduce(message), 15))
report(sizes=sizes, one_way=one_way, all_reduce=all_reduce)
dist.destroy_process_group()

# %% [markdown]
# ### Exercise: two numbers from thirteen points
#
# Find $\alpha$ and $\beta$ from the measured points. Timings are off by a share of themselves, so 5 % on a small message must count as
# much as 5 % on a large one.

# %%
# %%exercise alpha_beta
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha in seconds and beta in bytes per second of t = alpha + n / beta, by relative least squares."""
    ...
    return alpha, beta


# %%
sizes, one_way = np.array(clocked[0].sizes), np.array(clocked[0].one_way)
alpha, beta = fit(sizes, one_way)
print(f"this machine, one way: alpha {alpha * 1e6:.0f} microseconds, beta {beta / 1e9:.1f} GB/s")
print(
    f"a message of alpha x beta = {alpha * beta / 1e3:,.0f} kB costs as much for its start as for its bytes"
)

# %% [markdown]
# ## Compare: does ping-pong predict the all-reduce?
#
# The ring has 2 (N - 1) steps, each with a message of n / N bytes:
#
# $$t_{\text{all-reduce}} = 2\,(N-1)\left(\alpha + \frac{n}{N\beta}\right)$$
#
# Nothing is fitted here: $\alpha$ and $\beta$ come from the ping-pong. Grey is the prediction, the dots are the all-reduces that
# were measured.

# %%
N = 2
predicted = 2 * (N - 1) * (alpha + sizes / N / beta)
measured = np.array(clocked[0].all_reduce)
ring = (2 * (N - 1) * alpha, N * beta / (2 * (N - 1)))
show.message_curve(sizes, {"all_reduce, measured": measured}, {"ring, predicted from ping-pong": ring})

# %%
for size, seconds, guess in zip(sizes[::3], measured[::3], predicted[::3], strict=True):
    print(
        f"{size / 1024:8,.0f} KiB   predicted {guess * 1e3:7.2f} ms   measured {seconds * 1e3:7.2f} ms   ratio {seconds / guess:.1f}"
    )
assert measured[-1] > measured[0], "sixteen megabytes take longer than four kilobytes"

# %% [markdown]
# The shape is right: flat while $\alpha$ rules, then straight while $\beta$ does. The measured points lie above the
# prediction, often by a factor of two or three on a small machine. Three things are missing from the formula, and it is worth
# knowing them by name:
#
# - somebody has to **add** the numbers: each byte is read twice and written once;
# - a collective has **software** around it: a queue, a thread that wakes up, a buffer that is filled;
# - our two ranks **share** two cores with everything else. On a cluster, ranks share links in the same way.
#
# This is the use of a prediction: what it leaves out becomes visible.
#
# ## The same curve on a cluster
#
# Measured by others with NCCL, on one node with eight H200 and over four nodes with eight B200 each (source in the table and
# below). They report bus bandwidth, $2\frac{N-1}{N}\frac{n}{t}$, so that it can be held against the link's own rate. We turn
# it back into seconds and use **your** `fit`.

# %%
from workshop.facts.published import published_table

curves, lines = {}, {}
for row in published_table("allreduce_busbw_by_payload"):
    payload, ranks = int(row["payload_bytes"]), int(row["ranks"])
    on_the_wire = 2 * (ranks - 1) / ranks * payload
    curves.setdefault(row["device"], []).append(
        (payload, on_the_wire / (float(row["busbw_gb_per_second"]) * 1e9))
    )

for device, points in curves.items():
    payloads, seconds = np.array(points).T
    curves[device] = seconds
    start, rate = lines[f"your fit, {device}"] = fit(payloads, seconds)
    print(
        f"{device:<22} alpha {start * 1e6:4.0f} microseconds, beta {rate / 1e9:4.0f} GB/s, knee at {start * rate / 2**20:5.1f} MiB"
    )

show.message_curve(payloads, curves, lines)

# %% [markdown]
# Two numbers each, and the line passes through five decades of sizes. Only the knee has moved: with such links a message of
# a few megabytes still costs mostly its start.
#
# Whoever sends many small gradients one by one pays $\alpha$ each time and never sees the link's rate. So DDP packs them
# into buckets of 25 MB. You now know why 25 and not 0.25.
#
# ## Who carries it?
#
# | | gloo | NCCL | MPI |
# |---|---|---|---|
# | made for | CPUs, and as a fallback | NVIDIA GPUs (RCCL: the same for AMD) | supercomputers, CPUs and GPUs |
# | goes through | TCP, shared memory | NVLink, InfiniBand, straight from GPU memory | whatever the centre has tuned |
# | waits | on the CPU, in the call | on the GPU's stream: the call returns at once | on the CPU, in the call |
# | in PyTorch | always there | with a CUDA build | only if you build PyTorch from source with MPI |
# | in this workshop | without GPUs | with GPUs | not used |
#
# The functions are the same, so are their meanings. What differs is when a call has *finished*: with NCCL `all_reduce` comes back
# before the numbers are there, and the GPU waits for them, not you. That is why the cell above calls
# `torch.cuda.synchronize()` before it stops the clock.
#
# ## At scale
#
# How long does one all-reduce of a 7-billion-parameter gradient in bf16 (14 GB) take over 1,024 ranks? Each rank sends
# 2 (N - 1) / N times 14 GB. With 50 GB/s for each GPU (a 400 Gbit/s link) and an $\alpha$ of 10 microseconds:

# %% tags=["nbval-check-output"]
gradient_bytes, N, link_bytes_per_second, start_seconds = 14e9, 1024, 50e9, 10e-6
seconds = 2 * (N - 1) * (start_seconds + gradient_bytes / N / link_bytes_per_second)
print(
    f"each rank sends {2 * (N - 1) / N * gradient_bytes / 1e9:.1f} GB; the ring takes {seconds * 1e3:.0f} ms"
)

# %% [markdown]
# Half a second, in every step, unless it is hidden behind the backward pass. Most of it is bytes (560 ms); the
# 2,046 starts cost 20 ms. With 100,000 ranks the starts would rule, and libraries change from rings to trees.
#
# ## What to take away
#
# - Five collectives carry almost everything: broadcast, reduce, all-reduce, all-gather, reduce-scatter.
# - All-reduce = reduce-scatter + all-gather. The two halves will be pulled apart in ZeRO and FSDP.
# - In a ring each rank sends 2 (N - 1) / N times the tensor, however many ranks there are.
# - t = alpha + n / beta. Below alpha x beta bytes you pay for the start: send few large messages.
# - All ranks must call the same collectives in the same order. One that does not makes the others wait for ever.
#
# ## Sources
#
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel Distrib. Comput. 69 (2009).
# - R. Hockney, *The communication challenge for MPP: Intel Paragon and Meiko CS-2*, Parallel Computing 20 (1994).
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020, arXiv:2006.15704 (buckets).
# - All-reduce bandwidth by payload: S. Bekman, *Machine Learning Engineering*, github.com/stas00/ml-engineering, network/benchmarks.
# - PyTorch documentation, *Distributed communication package*: backends.
