# %% [markdown]
# # Collectives: what do ranks send each other?
#
# - **You need** `00_welcome` (what a rank is, what a parallel cell is).
# - **It takes** 45 minutes to read and try, half a minute to run.
# - **What runs where:** everything runs on this machine, on CPU (gloo) or on GPUs (NCCL), with the same cells. One table of published
#   figures comes from a cluster.
# - **Model and text:** none. Ranks send each other plain numbers here, because the cost of a collective depends on how many numbers are
#   sent and not on what they mean. From the next lesson on, the numbers are the gradients of `TINY`.
# - **Links:** before this [19_compile_and_kernels](../day1_one_device/19_compile_and_kernels.ipynb), after it [22_ddp](22_ddp.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Every technique in this workshop is built from a few communication calls that all ranks make together, for example to add up their
# tensors. These calls are named **collectives**. Which ones are there, how many bytes does each of them send, and how long does that
# take?

# %%
# %load_ext workshop
import numpy as np

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds

folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% [markdown]
# ## Six collectives
#
# The next cells run one collective at a time on four ranks, with a few numbers per rank. Look at the colors in the pictures: a box has
# the color of the rank whose number it holds, and a white box is a sum over all ranks.
#
# - **Broadcast**: one rank sends its numbers, and afterwards all ranks have them.
# - **Reduce**: all ranks contribute, and one rank gets the sum. (What the other ranks hold afterwards is not defined. The picture shows
#   what they contributed.)
# - **All-reduce**: all ranks contribute, and all ranks get the sum.
# - **All-gather**: each rank contributes one piece, and all ranks get all the pieces.
# - **Reduce-scatter**: each rank contributes a full list, and gets the sum of one piece of it.
# - **All-to-all**: every rank holds one piece for every rank, and sends each piece to the rank it is meant for.
#
# You will also meet `dist.barrier()`. It carries no numbers: no rank leaves it before all have arrived. Below, it lets all ranks begin at
# the same time before we start a clock.

# %%
# %%guess two_make_one --choices gather+reduce,reduce_scatter+all_gather,broadcast+reduce
# Which two collectives, one after the other, make an all-reduce?
...

# %%
# %%torchrun -n 4 --into called
import torch
import torch.distributed as dist

from workshop import report

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")


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

exchanged = torch.empty(world_size, device=device)
dist.all_to_all_single(exchanged, mine(world_size))

both = [torch.empty(1, device=device) for _ in range(world_size)]
dist.all_gather(both, scattered)  # hand out what reduce_scatter gave each rank

report(one=mine(1), four=mine(4), broadcast=broadcast, all_reduce=all_reduced)
report(reduce=reduced if rank == 0 else mine(1), all_gather=torch.cat(gathered))
report(reduce_scatter=scattered, all_to_all=exchanged, both=torch.cat(both))
dist.destroy_process_group()

# %%
one = {rank: called[rank].one for rank in range(4)}
four = {rank: called[rank].four for rank in range(4)}
for name, before in [
    ("broadcast", one),
    ("reduce", one),
    ("all_reduce", one),
    ("all_gather", one),
    ("reduce_scatter", four),
    ("all_to_all", four),
]:
    after = {rank: called[rank][name] for rank in range(4)}
    display(show.before_and_after(before, after, name))

# %% tags=["nbval-check-output"]
total = sum(one.values())
assert all(called[rank].all_reduce == total for rank in range(4))
sums = [float(called[rank].reduce_scatter[0]) for rank in range(4)]
assert sums == list(sum(four.values()))
assert all(list(called[rank].both) == sums for rank in range(4)), "everybody has all"
print(f"all_reduce gave every rank the sum: {total[0]:.0f}")
print("reduce_scatter gave each rank one of:", ", ".join(f"{s:.0f}" for s in sums))

# %%
beside("two_make_one", measured="reduce_scatter+all_gather")

# %% [markdown]
# A **reduce-scatter followed by an all-gather is an all-reduce**: first each rank gets the full sum of one piece, and then every rank
# gets all the pieces. Libraries implement the all-reduce of a large tensor in this way.
#
# (A reduce followed by a broadcast is an all-reduce as well, but then all numbers have to pass through one rank. In the opposite order,
# as in the third choice, the two do not make an all-reduce. The *gather* of the first choice is an all-gather of which only one rank gets
# the result. After a gather and a reduce, all other ranks are still without a sum.)
#
# Keep this in mind, because it is the whole idea of ZeRO and FSDP (lessons 24 and 25): they do the two halves at different times, and in
# between each rank holds only its own piece.
#
# ## Not all ranks at once: groups
#
# A collective does not have to include all ranks. `dist.new_group` creates a group of some of them. *All* ranks must call it, including
# those that will not be in the group. Day 3 uses such groups throughout.

# %%
# %%ranks -n 4 --into grouped
from workshop import report

pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
total = torch.tensor([10.0 * (rank + 1)], device=device)
dist.all_reduce(total, group=pairs[rank // 2])
report(total=total)

# %% tags=["nbval-check-output"]
totals = [float(grouped[rank].total[0]) for rank in range(4)]
print("sums within pairs:", ", ".join(f"{total:.0f}" for total in totals))
assert totals == [30.0, 30.0, 70.0, 70.0]

# %% [markdown]
# ## All-reduce by hand: the ring
#
# How would you add up a tensor over N ranks? If all ranks send to rank 0, which adds and sends the sum back, rank 0 receives N - 1
# tensors and sends N - 1 while the others wait. The ring shares this work. We cut the tensor into N chunks and arrange the ranks in a
# circle. In each step, every rank passes one chunk to its right neighbor and receives one from its left neighbor.
#
# - The first N - 1 steps **add**: after them, each rank has the full sum of one chunk.
# - The next N - 1 steps **hand out** the sums: after them, every rank has all the chunks.
#
# The next cell shows the first half. It starts the send and the receive of a step together, in one `batch_isend_irecv`. This matters on GPUs: NCCL
# carries out a rank's calls one after the other, so if every rank sent first and received afterwards, every rank would be waiting for another rank to
# receive.

# %%
# %%ranks --into half


def pass_on(outgoing, incoming):
    """Send to the right and receive from the left, at the same time."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    to_right = dist.P2POp(dist.isend, outgoing, right)
    from_left = dist.P2POp(dist.irecv, incoming, left)
    for request in dist.batch_isend_irecv([to_right, from_left]):
        request.wait()


def add_round_the_ring(tensor):
    """Afterwards this rank has the full sum of one chunk."""
    chunks = tensor.chunk(world_size)
    arriving = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        pass_on(chunks[(rank - step) % world_size], arriving)
        chunks[(rank - step - 1) % world_size].add_(arriving)


torch.manual_seed(rank)
mine = torch.randn(world_size, device=device)
total = mine.clone()
dist.all_reduce(total)
add_round_the_ring(mine)
complete = [c for c in range(world_size) if torch.isclose(mine[c], total[c])]
report(complete=complete)

# %%
for rank in range(4):
    (chunk,) = half[rank].complete
    print(f"rank {rank} has the full sum of chunk {chunk}")
    assert chunk == (rank + 1) % 4

# %% [markdown]
# ### Exercise: the ring, by you
#
# Now write the complete ring: the first half, as above, and the handing out, which you have not seen. The check compares your result with
# `dist.all_reduce` on four real ranks, for several sizes, and counts the bytes you send.
#
# On CPUs `dist.isend`, `dist.recv` and `wait` are enough; `batch_isend_irecv` works everywhere. Your function cannot use `pass_on` from
# the cell above: it exists only on the ranks of this notebook, and the check starts ranks of its own.

# %%
# %%exercise ring_all_reduce
import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum a 1-D tensor over all ranks, in place."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.chunk(world_size)  # views: to write to one is to write there
    # Reduce-scatter, world_size - 1 times: pass one to the right, add what arrives.
    ...
    # All-gather: pass on the chunk that is complete, world_size - 1 times.
    ...


# %% [markdown]
# Now watch the ring. Each rank starts with ones, so a number tells how many ranks are summed in it. The next cell records the tensor each
# time your function sends a message. (Until your function is right, the reference solution runs.)

# %%
# %%ranks --pass ring_all_reduce --into stepped
from torch.distributed import ProcessGroup

from workshop import report

ones = torch.ones(world_size, device=device)
looks, sent, send = [], [0], vars(ProcessGroup)["send"]


def watched(group, tensors, *rest):
    looks.append(ones.tolist())
    sent[0] += sum(tensor.nbytes for tensor in tensors)
    return send.__get__(group)(tensors, *rest)


ProcessGroup.send = watched
ring_all_reduce(ones)
looks.append(ones.tolist())
sent[0], million = 0, torch.ones(1_000_000, device=device)
ring_all_reduce(million)
ProcessGroup.send = send
report(looks=looks[: 2 * world_size - 1], sent=sent[0], tensor_bytes=million.nbytes)
torch.manual_seed(rank)  # random numbers test more than ones do
by_you = torch.randn(4_096, device=device)
by_library = by_you.clone()
ring_all_reduce(by_you)
dist.all_reduce(by_library)
torch.testing.assert_close(by_you, by_library)
print("yours and the library's: equal")

# %% [markdown]
# In the picture, a box is one chunk on one rank. The fuller the box, the more ranks are summed in it. An arrow marks a chunk that has
# just arrived from the left. Follow one chunk through the rows.

# %%
steps = [[stepped[rank].looks[step] for rank in range(4)] for step in range(7)]
assert steps[-1] == [[4.0] * 4] * 4
show.ring_steps(steps)

# %% [markdown]
# ## Predict the bytes
#
# How many bytes does one rank send? A chunk is one Nth of the tensor, and a rank sends one chunk in each step.
#
# ### Exercise: write that down


# %%
# %%exercise ring_bytes
def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of a tensor of num_bytes."""
    return ...


# %%
# %%guess sent_by_1024 --unit GB
# 14 GB of gradients, 1,024 ranks: how many GB does a rank send in a ring all-reduce?
...

# %% tags=["nbval-check-output"]
case = stepped[0]
predicted = ring_bytes(case.tensor_bytes, 4)
print(f"4 ranks: predicted {predicted:,.0f} bytes, your ring sent {case.sent:,} bytes")
assert case.sent == predicted
assert ring_bytes(14e9, 1_024) < 1.999 * 14e9
print(f"1,024 ranks: {2 * (1_024 - 1):,} steps")

# %%
beside("sent_by_1024", calculated=ring_bytes(14e9, 1_024) / 1e9)

# %% [markdown]
# $$\text{bytes sent by a rank} = 2\,\frac{N-1}{N}\,n$$
#
# With 4 ranks that is 1.5 times the tensor; with 1,024 ranks, 1.998 times. **The traffic of a rank hardly grows with the number of
# ranks.** This is why data parallelism scales as far as it does.
#
# The number of *steps* does grow: a ring makes 2 (N - 1) of them, and each has a fixed cost. Further down we measure this cost, and
# ask when it makes the ring the wrong choice.
#
# ## What if one rank does not come?
#
# All ranks must make the same calls in the same order. In the next cell, rank 3 is alive but busy with something else, and never calls
# the all_reduce. By default, the other ranks would wait for half an hour with gloo, or for ten minutes with NCCL. We set the timeout to
# three seconds.

# %%
# %ranks stop

# %% tags=["raises-exception"]
# %%torchrun -n 4
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group(timeout=timedelta(seconds=3))
rank = dist.get_rank()
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
loss = torch.ones(1, device=device)
if rank < 3:  # an "if rank ..." around a collective: the classic mistake
    dist.all_reduce(loss)
    loss.item()
else:
    time.sleep(10)

# %% [markdown]
# The error message shows where each rank was when it ended. Three ranks were in the line of the `all_reduce` (with NCCL it can be the
# line after it, where they wait for the result), and rank 3 was in a different line. When a program hangs, look for such a difference.
#
# ## Predict the time
#
# A message of n bytes takes
#
# $$t = \alpha + \frac{n}{\beta}$$
#
# Here $\alpha$ is the fixed cost of sending a message, however short, and $\beta$ is the rate of the link in bytes per second (Hockney,
# 1994). These two numbers describe a link. We measure them on this machine with a ping-pong: one rank sends a message to the other, gets
# it back, and we halve the time. A try is over when its slower rank is done, so in each try the slower rank counts. Of all tries we take
# the fastest, because noise can only make a try slower.
#
# In a ring, every rank sends *and* receives at the same time, and then adds. A ping-pong does neither, so we also time these two parts:
# an **exchange**, in which half a message travels in each direction at once, and the addition of one half to the other. We time the
# exchange twice, because it can make a difference whether the half arrives in memory that is in use already or in new memory, which the
# system has to provide first (the page faults of `16_faster_step`). Last come the two times that we want to predict: the library's
# all-reduce, and the ring that you wrote.

# %%
# %%ranks -n 2
import time

from workshop import report


def fastest(call, tries):
    """Seconds of the fastest try; in each, the slowest rank counts."""
    seconds = []
    for _ in range(tries):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device.type != "cpu":  # the call has returned; the GPU may still be busy
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    slowest = torch.tensor(seconds, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # of the ranks, for each try
    return slowest.min().item()


def ping_pong():
    if rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    else:
        dist.recv(message, 0)
        dist.send(message, 0)


def exchange(arriving):
    first, _ = message.chunk(2)
    there = dist.P2POp(dist.isend, first, 1 - rank)
    back = dist.P2POp(dist.irecv, arriving, 1 - rank)
    for request in dist.batch_isend_irecv([there, back]):
        request.wait()


# %%
# %%ranks --pass ring_all_reduce --into clocked
def add():
    first, second = message.chunk(2)
    first.add_(second)


sizes = [2**k for k in range(12, 25)]
one_way, all_reduce, into_new, exchanged, added, yours = [], [], [], [], [], []
for size in sizes:
    message = torch.ones(size // 4, device=device)
    one_way.append(fastest(ping_pong, 15) / 2)
    _, second = message.chunk(2)
    into_new.append(fastest(lambda: exchange(torch.empty_like(second)), 15))
    exchanged.append(fastest(lambda: exchange(second), 15))
    added.append(fastest(add, 15))
    all_reduce.append(fastest(lambda: dist.all_reduce(message), 15))
    yours.append(fastest(lambda: ring_all_reduce(message), 15))
report(sizes=sizes, one_way=one_way, all_reduce=all_reduce)
report(into_new=into_new, exchanged=exchanged, added=added, yours=yours)
report(on_cpu=device.type == "cpu")

# %% [markdown]
# ### Exercise: two numbers from thirteen points
#
# Find $\alpha$ and $\beta$ from the measured points. Timing errors grow with the time itself, so an error of 5 % on a small message must
# count as much as one of 5 % on a large message.

# %%
# %%exercise alpha_beta
import numpy as np


def fit(message_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """alpha (s) and beta (bytes/s) of t = alpha + n / beta: relative least squares."""
    ...
    return alpha, beta


# %%
sizes, one_way = np.array(clocked[0].sizes), np.array(clocked[0].one_way)
alpha, beta = fit(sizes, one_way)
print(f"one way: alpha {alpha * 1e6:.0f} microseconds, beta {beta / 1e9:.1f} GB/s")
print(f"for a message of {alpha * beta / 1e3:,.0f} kB (alpha x beta)", end=" ")
print("half of the time is the start and half is the bytes")

# %% [markdown]
# ## Compare: which clock predicts the all-reduce?

# %%
# %%guess of_16_mib --unit ms
# How many milliseconds does an all-reduce of 16 MiB take on two ranks here? (A message
# of n bytes takes alpha + n / beta. How many messages are there, and how large?)
...

# %% [markdown]
# We make two predictions. Neither of them is fitted to an all-reduce.
#
# The first one uses $\alpha$ and $\beta$ from the ping-pong. The ring has 2 (N - 1) steps, each with a message of n / N bytes:
#
# $$t_{\text{all-reduce}} = 2\,(N-1)\left(\alpha + \frac{n}{N\beta}\right)$$
#
# The second one uses the parts that a ring consists of. With two ranks, these are **two exchanges and one addition** of half the message:
# what arrives in the first exchange is added, so it needs memory of its own, and what arrives in the second replaces a chunk. (Further down,
# your guess is shown beside this second prediction.)
#
# In the figure, lines are predictions and dots are measured all-reduces. The *knee* is the message size at which the fixed start costs as
# much time as the bytes.

# %%
N = 2
by_ping_pong = 2 * (N - 1) * (alpha + sizes / N / beta)
parts = (clocked[0].into_new, clocked[0].added, clocked[0].exchanged)
by_exchange = np.sum(parts, axis=0)  # the steps of a ring of two
ring = (2 * (N - 1) * alpha, N * beta / (2 * (N - 1)))
library, yours = np.array(clocked[0].all_reduce), np.array(clocked[0].yours)
points = {"the library's all-reduce": library, "your ring": yours}
lines = {"from ping-pong": ring, "from exchanges, adding": fit(sizes, by_exchange)}
show.message_curve(sizes, points, lines)

# %%
each, rows = (by_ping_pong, by_exchange, library, yours), []
for place in range(0, len(sizes), 3):
    times = [f"{1e3 * curve[place]:.2f} ms" for curve in each]
    rows.append((format_bytes(sizes[place]), *times))
head = ("message", "from ping-pong", "from exchanges", "the library", "your ring")
display(Table(head, rows, "One all-reduce: two predictions, two measurements"))


def times_as_long(measured, predicted):
    """The geometric mean over all sizes."""
    return np.exp(np.log(measured / predicted).mean())


most = 4 if clocked[0].on_cpu else 10  # loose: other programs may run
for name, measured in points.items():
    first, second = (times_as_long(measured, p) for p in (by_ping_pong, by_exchange))
    print(f"{name} takes {first:.1f} times the first, {second:.1f} times the second")
    assert 1 / most < second < most
assert np.corrcoef(np.log(library), np.log(by_exchange))[0, 1] > 0.8, "the shape"
assert clocked[0].added[-1] < clocked[0].exchanged[-1]
beside("of_16_mib", predicted=1e3 * by_exchange[-1], measured=1e3 * library[-1])

# %% [markdown]
# Both predictions have the right shape: flat while $\alpha$ dominates, and rising in proportion to the size once $\beta$ does. In the second
# prediction, the addition is the smaller part.
#
# In the run on this page, the prediction from the ping-pong is far too low for large messages. The one from exchanges is higher and comes
# closer there, though not all the way. (Another run or another machine may compare differently.) The ping-pong leaves out what it costs to send and receive
# **at the same time**. A real network link has separate wires for each direction. Between two processes on a CPU there are no wires: in both
# directions a message is a copy in memory, and the same few cores make all the copies. On GPUs the two predictions may differ less. So
# measure a link in the way you will use it.
#
# ## A ring or a tree?
#
# A ring has 2 (N - 1) steps, and each of them costs an $\alpha$. In a **tree**, every second rank sends its whole tensor to a partner, who
# adds it. Then every second one of the partners does the same, until one rank has the full sum, and the sum comes back down in the same
# way. That takes only $2 \log_2 N$ steps, but in each of them the whole tensor travels, and not an Nth of it:
#
# $$t_{\text{tree}} = 2 \log_2 N \left(\alpha + \frac{n}{\beta}\right)$$
#
# When is the tree faster? Guess first. Then move the number of ranks and $\alpha$ in the picture, and watch where the two lines cross.

# %%
# %%guess tree_up_to --unit MiB
# 1,024 ranks, an alpha of 10 microseconds, and links of 50 GB/s: up to which message
# size is the tree faster than the ring? (Set the two formulas equal.)
...

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure

LINK = 50e9  # bytes per second: a network adapter of 400 Gbit/s


def ring_seconds(num_bytes, ranks, alpha):
    return 2 * (ranks - 1) * (alpha + num_bytes / ranks / LINK)


def tree_seconds(num_bytes, ranks, alpha):
    return 2 * np.log2(ranks) * (alpha + num_bytes / LINK)


def tree_up_to(ranks, alpha=10e-6):
    """The bytes for which ring and tree take equally long."""
    steps_saved = 2 * (ranks - 1) - 2 * np.log2(ranks)
    more_bytes = 2 * np.log2(ranks) - 2 * (ranks - 1) / ranks  # in tensors
    return steps_saved * alpha * LINK / more_bytes


# %%
def draw(ranks, alpha_us):
    """Both algorithms by message size, and where they change places."""
    figure, axis = new_figure(6.4, 3.0)
    messages, alpha = 2.0 ** np.arange(10, 35), alpha_us * 1e-6
    axis.loglog(messages, ring_seconds(messages, ranks, alpha), label="ring")
    axis.loglog(messages, tree_seconds(messages, ranks, alpha), "--", label="tree")
    equal = tree_up_to(ranks, alpha)
    axis.axvline(equal, color="gray", linestyle=":", label="equally long")
    axis.set(xlabel="message (bytes)", ylabel="seconds")
    words = f"{ranks:,} ranks, alpha {alpha_us} us: a tree up to {format_bytes(equal)}"
    axis.set_title(words, fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return Picture(figure, words)


moves = [Control("ranks", 1_024, (4, 16, 64, 256, 1_024))]
explore(draw, [*moves, Control("alpha_us", 10, (1, 10, 100))])

# %%
crossing = {ranks: tree_up_to(ranks) for ranks in (4, 64, 1_024)}
for ranks, size in crossing.items():
    same = (ring_seconds(size, ranks, 10e-6), tree_seconds(size, ranks, 10e-6))
    assert np.isclose(*same), "here they change places"
    assert ring_seconds(size / 2, ranks, 10e-6) > tree_seconds(size / 2, ranks, 10e-6)
assert crossing[4] < 2**20 < crossing[64] < 25 * 2**20 < crossing[1_024]
assert np.isclose(tree_up_to(64, 1e-4), 10 * crossing[64]), "in proportion to alpha"
rows = [(f"{ranks:,}", format_bytes(size)) for ranks, size in crossing.items()]
display(Table(("ranks", "a tree is faster up to"), rows))
beside("tree_up_to", calculated=crossing[1_024] / 2**20)

# %% [markdown]
# The more ranks there are, the longer the messages for which the tree is faster: less than a MiB among 4 ranks, but more than 50 MiB
# among 1,024. The limit also grows in proportion to $\alpha$. This is why NCCL has both, and chooses. (Ours is the plainest tree. With two
# trees at the same time, through which the message travels in pieces, all links are used at nearly their full rate: Sanders et al., 2009.)
#
# ## The same curve on a cluster
#
# Others have measured the same curve with NCCL, on one node with eight H200 and on four nodes with eight B200 each (the source is in the
# table and below). They report two rates:
#
# - `algbw`: the bytes *of the tensor* that are summed per second.
# - The bus bandwidth, $2\frac{N-1}{N}\frac{n}{t}$: the bytes per second that a rank would send in a ring, as **your** `ring_bytes` counts
#   them. It can be compared with the rate of the link itself.
#
# The next cell turns the bus bandwidth back into seconds. For the 32 B200 the table has both rates: does your function lead from one to
# the other?

# %% tags=["nbval-check-output"]
from workshop.facts.published import published_table

curves, num_ranks = {}, {}
for row in published_table("allreduce_busbw_by_payload"):
    payload, ranks = int(row["payload_bytes"]), int(row["ranks"])
    seconds = ring_bytes(payload, ranks) / (float(row["busbw_gb_per_second"]) * 1e9)
    curves.setdefault(row["device"], {})[payload] = seconds
    num_ranks[row["device"]] = ranks
on_b200 = curves["32 x B200 (four nodes)"]
algbw, rows = {2**20: 6.44, 2**25: 73.76, 2**30: 188.90, 2**34: 194.43}, []
for payload, published in algbw.items():
    ours = payload / on_b200[payload] / 1e9
    rates = (f"{ours:.2f} GB/s", f"{published:.2f} GB/s")
    rows.append((f"{payload / 2**20:,.0f} MiB", *rates))
    assert abs(ours - published) < 0.006  # the table has two decimals
Table(("message", "by ring_bytes", "published algbw"), rows)

# %% [markdown]
# All four agree to a hundredth, which is the precision of the table. So your function is the formula that they used. (They did not count
# any bytes on the wire. We come back to that.)
#
# Now apply **your** `fit` to all sizes:

# %%
points, lines, rows = {}, {}, []
for device, curve in curves.items():
    payloads, seconds = np.array(list(curve)), np.array(list(curve.values()))
    points[device] = seconds
    start, rate = lines[f"your fit, {device}"] = fit(payloads, seconds)
    wire = ring_bytes(1, num_ranks[device])  # bytes on the wire per byte of the tensor
    top = max(wire * payloads / seconds) / 1e9
    rates = [f"{r:.0f} GB/s" for r in (rate / 1e9, wire * rate / 1e9, top)]
    ratio = (start + payloads / rate) / seconds
    within = f"{ratio.min():.2f} to {ratio.max():.2f}"
    knee = f"{start * rate / 2**20:.1f} MiB"
    rows.append((device, f"{start * 1e6:.0f} µs", knee, *rates, within))
    assert 0.45 < ratio.min() < ratio.max() < 1.5
    assert 2**21 <= payloads[ratio.argmin()] <= 2**24
head = ("", "alpha", "knee", "beta, of the tensor", "beta, on the wire")
head += ("fastest size, on the wire", "fit / measured")
display(Table(head, rows))
show.message_curve(payloads, points, lines)

# %% [markdown]
# The meaning of $\beta$ has changed: it is now the bytes *of the tensor* per second, for a whole all-reduce. Multiplied by
# $2\frac{N-1}{N}$, it is the rate on the wire, which can be compared with the rate of the link.
#
# Two numbers describe more than five decades of sizes, and are never off by much more than a factor of two. The fit is worst between 2
# and 16 MiB. A likely reason is that NCCL chooses its algorithm (a ring, a tree, the switch) and its protocol by size, so no single line
# fits all sizes. (With the environment variable `NCCL_ALGO` you can make it use one of them.) Four nodes have a longer start and a lower
# rate than one, so their knee lies farther to the right. Below the knee, most of the time goes into the start.
#
# One number looks impossible. The eight H200 reach 482 GB/s on the wire, but their NVLink sends only 450 GB/s in one direction. A ring
# cannot do that. The source explains that this is not a ring: the switch between the GPUs does the adding (*SHARP*), so a rank sends
# fewer bytes than `ring_bytes` counts.
#
# If you send many small gradients one at a time, you pay $\alpha$ for each of them and never reach the full rate of the link. So DDP
# packs gradients into buckets of 25 MiB. You now know why it uses 25 and not 0.25. (Why it does not use 2,500 is a question of the next
# lesson.)

# %% [markdown]
# ## Who carries it?
#
# | | gloo | NCCL | MPI |
# |---|---|---|---|
# | made for | CPUs, and as a fallback | NVIDIA GPUs (RCCL: the same for AMD) | supercomputers, CPUs and GPUs |
# | goes through | TCP, also within a machine | NVLink or InfiniBand, straight from GPU memory; otherwise TCP | whatever the computing center has tuned |
# | waits | on the CPU, in the call | on the GPU's stream: the call returns at once | on the CPU, in the call |
# | in PyTorch | always available | with a CUDA build | only if you build PyTorch from source with MPI |
# | in this workshop | without GPUs | with GPUs | not used |
#
# The functions and their meanings are the same. What differs is when a call has *finished*: with NCCL, `all_reduce` returns before the result is
# there, and the GPU waits for it while Python continues. That is why `fastest`, further above, calls `torch.accelerator.synchronize()` before it
# stops the clock.

# %% [markdown]
# ## At scale
#
# How long does one all-reduce of a 7-billion-parameter gradient in bf16 (14 GB) take over 1,024 GPUs? Each GPU sends nearly 28 GB.
#
# Here is a first estimate. Each GPU has a network adapter of 400 Gbit/s, which is 50 GB/s, so 28 GB would take 560 ms. But inside a node
# of eight GPUs the ring runs over NVLink. It leaves each node only once, through one of eight adapters, and the other seven would be
# idle. So libraries run eight rings at the same time, one through each adapter, and each ring carries an eighth of the tensor:

# %% tags=["nbval-check-output"]
gradient_bytes, N, adapter, per_node = 14e9, 1024, 50e9, 8
one_adapter = ring_bytes(gradient_bytes, N) / adapter
eight_adapters = one_adapter / per_node
print(f"a rank sends {ring_bytes(gradient_bytes, N) / 1e9:.1f} GB")
print(f"through one adapter {one_adapter * 1e3:.0f} ms,", end=" ")
print(f"through eight {eight_adapters * 1e3:.0f} ms")

# %%
from workshop.facts import catalogue
from workshop.predict.collectives import Wires
from workshop.predict.time.rates import rates_for

cluster = catalogue.cluster("1024xH100")
wires = Wires.of(cluster, rates_for(cluster.device))
predicted = float(wires.seconds("all_reduce", gradient_bytes, N))
rows = [("the predictor, with measured rates and hops", format_seconds(predicted))]
for device, (start, rate) in lines.items():
    seconds = start + gradient_bytes / rate
    rows.append((f"{device}, extended to 14 GB", format_seconds(seconds)))
    assert eight_adapters / 2 < seconds < 2 * eight_adapters
assert eight_adapters < predicted < one_adapter / 3
assert 0.08 < predicted < 0.125, "about a tenth of a second"
Table(("estimate", "one all-reduce"), rows)

# %% [markdown]
# The predictor's time is longer than that of the ideal eight rings for two reasons: no network reaches its nominal rate, and the start takes longer
# the more nodes there are. Your fits come from one node and from four, so they give only the order of magnitude. The all-reduce adds about a tenth of
# a second to every step, unless it is hidden behind backward.
#
# ## Tomorrow's script
#
# Before you trust a new cluster, measure it: time all-reduces of growing size, and derive alpha and beta. You can run the script with
# `torchrun --nproc-per-node 8 bench_all_reduce.py`; on several nodes, add `--nnodes`.
#
# An all-reduce is over when its slowest rank is done, so the script takes the slowest rank of each try, and then the fastest try. It takes
# alpha from the shortest message and beta from the slope up to the longest, and fits nothing. Sizes in between, where the library changes
# its algorithm, do not bend these two numbers; you see them in the list.

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/bench_all_reduce.py
import os
import time

import torch
import torch.distributed as dist

device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
dist.init_process_group()
ranks = dist.get_world_size()


def seconds_of(tensor, tries=10):
    """The fastest of some all-reduces; in each, the slowest rank counts."""
    times = []
    for _ in range(tries):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # of the ranks, for each try
    return slowest.min().item()


largest = 30 if device.type == "cuda" else 24
measured = {}
for power in range(12, largest + 1, 4):
    tensor = torch.ones(2**power // 4, device=device)
    measured[2**power] = seconds_of(tensor)
    bus = 2 * (ranks - 1) / ranks * 2**power / measured[2**power]
    if dist.get_rank() == 0:
        print(f"{2**power:>13,} B {measured[2**power] * 1e6:>10,.0f} us", end=" ")
        print(f"bus bandwidth {bus / 1e9:.2f} GB/s")
if dist.get_rank() == 0:
    small, large = min(measured), max(measured)
    beta = (large - small) / (measured[large] - measured[small])
    wire = 2 * (ranks - 1) / ranks * beta
    print(f"alpha {measured[small] * 1e6:.0f} us, beta {beta / 1e9:.2f} GB/s", end=" ")
    print(f"of tensor, {wire / 1e9:.2f} GB/s on the wire")
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("21_collectives", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Six collectives carry almost all traffic: broadcast, reduce, all-reduce, all-gather, reduce-scatter, all-to-all.
# - All-reduce = reduce-scatter + all-gather. ZeRO and FSDP will use the two halves separately.
# - In a ring each rank sends 2 (N - 1) / N times the tensor: less than twice the tensor, however many ranks there are.
# - t = alpha + n / beta. Below alpha x beta bytes you pay mostly for the start, so send few large messages.
# - A tree has far fewer steps than a ring. The more ranks there are, the longer the messages for which it is faster.
# - Measure a link in the way you will use it: sending and receiving at the same time is not the same as a ping-pong.
# - All ranks must call the same collectives in the same order. If one rank does not, the others wait.
# - Between GPUs, start sends and receives together with `batch_isend_irecv`.
#
# Next: [22_ddp](22_ddp.ipynb). How do N copies stay one model?
#
# ## Sources
#
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel Distrib. Comput. 69 (2009).
# - R. Hockney, *The communication challenge for MPP: Intel Paragon and Meiko CS-2*, Parallel Computing 20 (1994).
# - P. Sanders, J. Speck, J. L. Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*, Parallel Computing 35
#   (2009).
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   [arXiv:2006.15704](https://arxiv.org/abs/2006.15704) (buckets).
# - All-reduce bandwidth by payload, `algbw`, and why 482 GB/s are more than NVLink's 450: S. Bekman, *Machine Learning Engineering*,
#   [network/benchmarks](https://github.com/stas00/ml-engineering/blob/0cc3de50b2dd083c34d848a1dcb5bfe65fe3dace/network/benchmarks/README.md).
# - PyTorch documentation, *Distributed communication package*: backends. NVIDIA, *NCCL documentation*, environment variables
#   (`NCCL_ALGO`, `NCCL_PROTO`).
