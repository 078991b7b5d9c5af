# %% [markdown]
# # What if the wire is slow?
#
# - **You need** `21_collectives` and `22_ddp`.
# - **It takes** 45 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on two ranks, and unchanged on GPUs. Published figures come from 64 GPUs.
# - **Model and text:** `TINY` on the reference manual, as in lesson 22. We first try error feedback on three numbers that you can follow by eye,
#   and PowerSGD on a single matrix, because there its answer is exact. The last part counts the bytes of Llama 3.2 1B.
# - **Links:** before this [26_accelerate](26_accelerate.ipynb), after it [31_tensor_parallel](../day3_model_parallel/31_tensor_parallel.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# In every step, a ring sends nearly eight bytes for each parameter: four in each of its two halves. Inside a machine the sending is hidden behind
# backward. Between buildings it is not. How few bytes can carry a gradient, and how does that change the loss?

# %%
# %load_ext workshop
import numpy as np

from workshop import show
from workshop.facts.tabular import Table
from workshop.facts.units import format_seconds
from workshop.exercises import beside

# %% [markdown]
# ## Four ways to send less
#
# | | what travels | what is lost |
# |---|---|---|
# | **narrower numbers** | 16 bits each | digits, and in fp16 whatever is too small or too large |
# | **fewer numbers**: top-k, or a matrix as two thin ones (PowerSGD) | k numbers, or r (rows + columns) | what is small |
# | **one bit**: the sign, and one scale for a block | 1.03 bits each | nearly everything |
# | **fewer meetings** (local SGD, DiLoCo) | everything, once in H steps | agreement in between |
#
# For the first way you have to know the range of your numbers. Gradients are often tiny, and fp16 has nothing below $6 \cdot 10^{-8}$ (lesson 14).
# bf16 has the range of fp32, but fewer digits:

# %% tags=["nbval-check-output"]
import torch

tiny, rows = torch.tensor([1e-8, 1e-5, 1e5]), []
for kind in (torch.float32, torch.float16, torch.bfloat16):
    values = (f"{value:.3g}" for value in tiny.to(kind).tolist())
    rows.append((str(kind).removeprefix("torch."), *values))
assert tiny.half()[0] == 0
assert tiny.half()[2].isinf()
assert torch.allclose(tiny.bfloat16().float(), tiny, rtol=2**-8)
Table(("", "1e-8", "1e-5", "1e5"), rows, "What three formats keep of three numbers")

# %% [markdown]
# The next two ways, fewer numbers and one bit, lose so much that they need a way to make up for it.
#
# ## Remember what you did not send
#
# The next cell has a gradient of three numbers, which is the same in each step. One bit can only say "plus" or "minus"; all three numbers share one
# size. So what arrives is the same in each step, and wrong in each step:


# %% tags=["nbval-check-output"]
def one_bit(x):
    """The sign of each number times the mean magnitude."""
    return np.where(x >= 0, 1.0, -1.0) * np.abs(x).mean()


def top_1(x):
    """The largest number, and zeros."""
    return np.where(np.abs(x) == np.abs(x).max(), x, 0.0)


gradient = np.array([4.0, -1.0, 1.5])
sent = {"gradient": gradient, "one bit": one_bit(gradient), "top-1": top_1(gradient)}
rows = [(name, *(f"{value:.2f}" for value in array)) for name, array in sent.items()]
Table(("", "first number", "second", "third"), rows)

# %% [markdown]
# **Error feedback** keeps what was lost, and adds it to the next message.
#
# ### Exercise: the memory


# %%
# %%exercise send_with_memory
def send_with_memory(gradient, memory, compress):
    """What is sent of a gradient; `memory`, of the same shape, is updated in place."""
    sent = ...
    ...
    return sent


# %%
# %%guess third_number
# One bit sends the gradient 4, -1, 1.5 a hundred times, with memory. What is the mean
# of what arrives for the third number, 1.5? (One message alone carries 2.17.)
...

# %% tags=["nbval-check-output"]
rows = [("gradient", *(f"{value:.2f}" for value in gradient))]
for name, compress in {"one bit": one_bit, "top-1": top_1}.items():
    memory, with_memory, without = np.zeros(3), np.zeros(3), np.zeros(3)
    for _ in range(100):
        with_memory += send_with_memory(gradient, memory, compress) / 100
        without += compress(gradient) / 100
    for way, array in (("with memory", with_memory), ("without", without)):
        rows.append((f"{name}, {way}", *(f"{value:.2f}" for value in array)))
    if compress is one_bit:
        third = with_memory[2]
    assert np.abs(with_memory - gradient).max() < 0.2 < np.abs(without - gradient).max()
Table(("mean of 100 steps", "first number", "second", "third"), rows)

# %%
beside("third_number", predicted=1.5, measured=third)

# %% [markdown]
# With memory, the mean of what was sent approaches the gradient itself. The next picture shows one bit, as sums over 20 steps. A solid line is the
# sum of the gradients, the dots are the sum of what your function sent, and the dotted line is what would be sent without memory. (The dotted lines
# of 4 and of 1.5 are the same, because one bit does not carry a size.)

# %%
from workshop.show.style import Picture, new_figure, rank_colour

steps, memory = np.arange(1, 21), np.zeros(3)
sums = {
    "given": [step * gradient for step in steps],
    "sent, with memory": np.cumsum(
        [send_with_memory(gradient, memory, one_bit) for _ in steps], axis=0
    ),
    "sent, without": [step * one_bit(gradient) for step in steps],
}
figure, axis = new_figure(7.0, 2.8)
for (name, lines), look in zip(sums.items(), ("-", "o", ":"), strict=True):
    for number, line in enumerate(np.array(lines).T):
        label = f"{gradient[number]:g}: {name}"
        style = {"color": rank_colour(number), "markersize": 4, "label": label}
        axis.plot(steps, line, look, **style)
axis.set(xlabel="steps", ylabel="sum of a number", xticks=range(0, 21, 5))
figure.legend(loc="outside right center", fontsize=8, frameon=False)
given, with_memory, without = (np.array(lines) for lines in sums.values())
assert np.abs(given - with_memory).max() < 5 < np.abs(given - without)[2].max()
Picture(figure, "sums of what was given, and of what was sent with memory and without")

# %% [markdown]
# Nothing is lost. It only arrives late (Karimireddy et al., 2019): the dots stay within 5 of their line. Without memory all three gaps keep growing,
# and the gap of the 4 is larger than 5 after only three steps.
#
# ## Two thin matrices
#
# **PowerSGD** (Vogels et al., 2019) sends a matrix $G$ of n x m numbers as $P Q^T$, where $P$ and $Q$ have r columns each. $P$ is $G Q$, averaged
# over ranks and made orthogonal. $Q$ is $G^T P$, averaged. This is one step of the power iteration, the classical method to find the largest
# directions of a matrix. Both steps are linear in $G$, so plain all_reduces are enough. The part of $G$ that $P Q^T$ misses goes into the memory,
# with **your** `send_with_memory`.

# %%
# %%ranks -n 2 --pass send_with_memory
ranks = world_size


def mean(tensor):
    dist.all_reduce(tensor)
    return tensor.div_(ranks)


class LowRank:
    """PowerSGD for one matrix."""

    def __init__(self, matrix, r):
        generator = torch.Generator().manual_seed(0)  # the same Q on all ranks
        self.Q = torch.randn(matrix.shape[1], r, generator=generator).to(matrix)
        self.memory = torch.zeros_like(matrix)

    def compress(self, matrix):
        P, _ = torch.linalg.qr(mean(matrix @ self.Q))
        self.Q = mean(matrix.T @ P)  # kept: the next step continues from it
        return P @ self.Q.T

    def __call__(self, matrix):
        return send_with_memory(matrix, self.memory, self.compress)


# %% [markdown]
# We compare this class with PyTorch's own hook and with plain DDP. With two samples on each of two ranks, a linear layer's gradient has at most
# rank 4 (as a matrix). So with r = 4 nothing should be missing.

# %%
# %%ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def gradient(hook=None, state=None):
    """The layer's averaged gradient in the fourth step, under DDP."""
    torch.manual_seed(0)
    layer = nn.Linear(48, 32, bias=False).to(device)
    model = DistributedDataParallel(layer)
    if hook is not None:
        model.register_comm_hook(state, hook)
    inputs = torch.randn(ranks, 2, 48)[rank].to(device)
    for _ in range(4):
        layer.weight.grad = None
        model(inputs).pow(3).sum().backward()
    return layer.weight.grad


whole = gradient()
options = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}
state = powerSGD_hook.PowerSGDState(None, min_compression_rate=1, **options)
by_torch = gradient(powerSGD_hook.powerSGD_hook, state)

torch.manual_seed(0)
layer = nn.Linear(48, 32, bias=False).to(device)
layer(torch.randn(ranks, 2, 48)[rank].to(device)).pow(3).sum().backward()
by_hand = LowRank(layer.weight.grad, 4)(layer.weight.grad)
size = whole.abs().max()
assert (by_torch - whole).abs().max() < 1e-3 * size
assert (by_hand - whole).abs().max() < 1e-3 * size
print(f"{4 * (48 + 32)} numbers instead of {48 * 32}: by hand, torch and DDP agree")

# %% [markdown]
# Now a case in which much is lost: r = 1, and random matrices that differ in each step and on each rank. What was sent, together with what is still
# in memory, must be equal to all that was given:

# %%
# %%ranks
torch.manual_seed(rank)
thin, sent, given = LowRank(whole, 1), torch.zeros_like(whole), torch.zeros_like(whole)
for _ in range(5):
    drawn = torch.randn_like(whole)
    sent += thin(drawn)
    given += mean(drawn)
missing = mean(thin.memory.clone())
assert missing.norm() > 0.5 * given.norm(), "r = 1 is far from enough"
torch.testing.assert_close(sent + missing, given, rtol=1e-4, atol=1e-4)
print("sent and remembered are all that was given, to 1e-4")

# %% [markdown]
# ## One bit on a wire
#
# To send signs over a real wire, we have to solve two problems. First, `torch` has no type of one bit. So we pack eight signs into a byte, and add
# one scale for each block of 1,024 numbers:

# %%
# %%ranks
BLOCK = 1_024


def encode(values):
    """A row for each block: the scale's four bytes, then the signs, eight to a byte."""
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().mean(dim=1, keepdim=True)
    places = 2 ** torch.arange(8, dtype=torch.uint8, device=device)
    signs = (blocks >= 0).view(-1, BLOCK // 8, 8)
    packed = (signs * places).sum(dim=2, dtype=torch.uint8)
    return torch.cat([scales.view(torch.uint8), packed], dim=1)


def decode(message):
    """Plus or minus the block's scale, for each number."""
    scales = message[:, :4].contiguous().view(torch.float32)
    places = torch.arange(8, dtype=torch.uint8, device=device)
    signs = (message[:, 4:, None] >> places) & 1
    return ((2.0 * signs.view(-1, BLOCK) - 1) * scales).flatten()


# %% [markdown]
# Second, signs cannot be added on the way, as a ring does. So each rank is the *server* for an Nth of the vector. An **all_to_all** brings it this
# part from every rank. It averages them, and an **all_gather** distributes the averages, again as signs. The ranks compress twice, and both times
# they use your `send_with_memory`.

# %%
# %%ranks --pass send_with_memory
import torch.nn.functional as F

from workshop.parallel.signs import SignMean


def one_bit(values):
    return decode(encode(values))


class Signs:
    """The mean over ranks of a vector, one bit a number."""

    def __init__(self, size, memory=True):
        self.padding, self.remembers = -size % (ranks * BLOCK), memory
        self.of_mine = torch.zeros(size + self.padding, device=device)
        self.of_served = torch.zeros((size + self.padding) // ranks, device=device)

    def compress(self, values, memory):
        if self.remembers:
            values = send_with_memory(values, memory, one_bit)
        return encode(values)

    def __call__(self, values):
        packed = self.compress(F.pad(values, (0, self.padding)), self.of_mine)
        received = torch.empty_like(packed)
        dist.all_to_all_single(received, packed)  # part j goes to rank j
        served = decode(received).view(ranks, -1).mean(dim=0)
        packed = self.compress(served, self.of_served)
        parts = [torch.empty_like(packed) for _ in range(ranks)]
        dist.all_gather(parts, packed)
        return decode(torch.cat(parts))[: len(values)]


by_hand, by_package = Signs(5_000), SignMean(5_000)
for _ in range(3):
    vector = torch.randn(5_000, device=device)
    torch.testing.assert_close(by_hand(vector), by_package(vector))
print("by hand and in the package: equal, over three rounds of memory")

# %% [markdown]
# ### Why not signs into Adam?
#
# With memory, what was left out of one step is sent in a later step. This does no harm to an optimizer that only adds up gradients, such as SGD
# with or without momentum. But Adam divides by the root of the *squared* gradients. The squares of signs do not tell it how large each gradient is:
# within a block they are all equal.
#
# PowerSGD breaks this rule below, because its gradients go into Adam. (The algorithm in the paper uses SGD with momentum.) The gradient that
# PowerSGD delivers still has large and small numbers where the true gradient has them, and you will see that it works.
#
# Tang et al. (2021) observed that the second moment hardly changes after the first part of training. **1-bit Adam** starts as
# plain Adam. Then it freezes the second moment, and from then on it sends only the momentum, as signs with memory.
#
# ## Meet rarely
#
# The fourth way is the opposite: send everything, but rarely. Each rank is an *island*. It trains alone for H steps with its own Adam. Then the
# islands meet. If they take the plain mean of their weights, this is **local SGD**. **DiLoCo** (Douillard et al., 2023) treats the mean change of
# the islands' weights as a *gradient* for an outer optimizer: SGD with Nesterov momentum 0.9 and a learning rate of 0.7.
#
# ### Exercise: the meeting

# %%
# %%exercise outer_step
import torch.distributed as dist


def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    """DiLoCo's meeting of islands; updates the three 1-D tensors in place."""
    mean = weights.clone()
    ...
    moved = anchor - mean
    ...


# %% [markdown]
# With `lr=1, beta=0` your function takes the plain mean. So it can do both, local SGD and DiLoCo.
#
# ## Predict
#
# We train `TINY` on two ranks for 40 steps, with three seeds, in each of these ways:
#
# - **fp32** and **fp16**: DDP, for fp16 with PyTorch's `fp16_compress_hook`;
# - **PowerSGD**, rank 4, as above, but the first two steps send everything;
# - **1-bit Adam**, after 10 steps of plain Adam, with memory and without;
# - **mean of 5** and **DiLoCo**: a meeting every five steps, with your `outer_step`;
# - **alone**: the ranks never meet.

# %%
# %%guess onebit_share --unit %
# 1-bit Adam sends 32 bits a number in 10 steps and 1.03 bits in the other 30. What
# share of the bytes of fp32, which sends 32 bits in all 40 steps, is that?
...

# %%
# %%guess highest_loss --choices fp16,PowerSGD,1-bit,mean,DiLoCo,alone
# Which way ends with the highest loss on unseen text? (1-bit here is the one with
# memory; "mean" is the mean of 5, and "alone" never sends anything.)
...

# %%
# %%guess best_at_10 --choices fp32,fp16,PowerSGD,1-bit,mean
# The link between the ranks carries 10 Mbit/s. Which way is the first to reach the
# loss that fp32 has after 30 steps?
...

# %%
STEPS, WARMUP, H, R, SEEDS = 40, 10, 5, 4, 3

# %% [markdown]
# In the code, a way is an object with a `model` and a `step`. The next two cells define the functions that all ways share, and the first three ways:
# DDP (plain for fp32, with a hook for fp16), and PowerSGD with your memory in `LowRank`.

# %%
# %%ranks
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

text = TextBatches(seq_len=32, global_batch=16, rank=rank, num_ranks=ranks)
LR = 4e-3


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@torch.no_grad()
def put(vector, tensors):
    pieces = vector.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


class WithDDP:
    """Adam under DDP; a hook decides how gradients travel."""

    def __init__(self, model, hook=None):
        self.model = DistributedDataParallel(model)
        if hook is not None:
            self.model.register_comm_hook(None, hook)
        self.step = torch.optim.Adam(model.parameters(), lr=LR, fused=True).step


# %%
# %%ranks --pass R
class WithPowerSGD:
    """Adam; matrices travel as two thin ones, from the third step on."""

    def __init__(self, model):
        self.model, self.steps = model, 0
        self.parameters = list(model.parameters())
        self.adam = torch.optim.Adam(self.parameters, lr=LR, fused=True)
        self.low_rank = {p: LowRank(p.data, R) for p in self.parameters if p.ndim == 2}

    def step(self):
        self.steps += 1
        in_full = [p.grad for p in self.parameters if p.ndim == 1 or self.steps <= 2]
        put(mean(flat(in_full)), in_full)  # one message for all of these
        for parameter, low_rank in self.low_rank.items():
            if self.steps > 2:
                parameter.grad = low_rank(parameter.grad)
        self.adam.step()


# %% [markdown]
# Next is 1-bit Adam by hand, with your memory in `Signs`:


# %%
# %%ranks --pass WARMUP
class OneBitAdam:
    """Adam for WARMUP steps; then the second moment is frozen, the momentum travels."""

    def __init__(self, model, memory=True):
        self.model, self.parameters, self.steps = model, list(model.parameters()), 0
        self.weights = flat(self.parameters)
        self.m, self.v = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.signs = Signs(len(self.weights), memory)

    def step(self):
        self.steps += 1
        gradient = flat([parameter.grad for parameter in self.parameters])
        if self.steps <= WARMUP:
            gradient = mean(gradient)
            self.v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            self.scale = (self.v / (1 - 0.999**self.steps)).sqrt() + 1e-8
        self.m.mul_(0.9).add_(0.1 * gradient)
        if self.steps > WARMUP:
            self.m = self.signs(self.m)
        self.weights -= LR * self.m / (1 - 0.9**self.steps) / self.scale
        put(self.weights, self.parameters)


# %% [markdown]
# The last class is an island, which meets the others with your `outer_step`:


# %%
# %%ranks --pass outer_step,H
class Island(torch.optim.Optimizer):
    """An Adam of one's own; every so many steps a meeting, which is your outer_step."""

    def __init__(self, model, every, lr=1.0, beta=0.0):
        super().__init__(model.parameters(), {})
        self.model, self.every, self.outer, self.steps = model, every, (lr, beta), 0
        self.parameters = list(model.parameters())
        self.adam = torch.optim.Adam(self.parameters, lr=LR, fused=True)
        self.anchor = flat(self.parameters)
        self.momentum = torch.zeros_like(self.anchor)

    def step(self):
        self.adam.step()
        self.steps += 1
        if self.steps % self.every == 0:
            weights = flat(self.parameters)
            outer_step(self.anchor, weights, self.momentum, *self.outer)
            put(weights, self.parameters)


# %% [markdown]
# ## Run
#
# The next cells name the eight ways and define one training function for all of them. The function records the loss on unseen text, and for each
# step how many bytes it sent and how long it took. Bytes are counted only on rank 0 and only with the first seed: they do not depend on the seed,
# and counting takes as long as the step itself. Times are therefore taken from the other seeds. (`wire` is for later: seconds to sleep after each
# step.)

# %%
# %%ranks --pass STEPS
import time
from contextlib import nullcontext

from workshop.measure import measure

WAYS = {
    "fp32": WithDDP,
    "fp16": lambda model: WithDDP(model, default_hooks.fp16_compress_hook),
    "PowerSGD": WithPowerSGD,
    "1-bit, no memory": lambda model: OneBitAdam(model, memory=False),
    "1-bit": OneBitAdam,
    "mean of 5": lambda model: Island(model, H),
    "DiLoCo": lambda model: Island(model, H, lr=0.7, beta=0.9),
    "alone": lambda model: Island(model, 10**9),
}


# %%
# %%ranks
@torch.no_grad()
def unseen_loss(model):
    """On text that training does not reach, the mean over ranks."""
    losses = [model(*batch) for step in (600, 601) for batch in text.step(step, device)]
    return mean(torch.stack(losses).mean()).item()


def train(way, seed, wire=None):
    """Unseen loss after every 5 steps; bytes sent and seconds of each step."""
    torch.manual_seed(seed)  # the same on all ranks
    trainer = way(GPT(TINY).to(device))
    losses, sent, seconds = [], [], []
    for step in range(len(wire) if wire else STEPS):
        counted = seed == 0 and rank == 0
        with measure(memory=False) if counted else nullcontext() as measured:
            start = time.perf_counter()
            for batch in text.step(step + 50 * seed, device):
                loss = trainer.model(*batch)
            trainer.model.zero_grad()
            loss.backward()
            trainer.step()
            if device.type != "cpu":
                torch.accelerator.synchronize()
        sent.append(sum(row.wire_bytes for row in measured.traffic) if measured else 0)
        if wire:
            time.sleep(wire[step])
        seconds.append(time.perf_counter() - start)
        if step % 5 == 4:
            losses.append(unseen_loss(trainer.model))
    return {"losses": losses, "sent": sent, "seconds": seconds}


# %%
# %%ranks --pass SEEDS --into trained
import gc

from workshop import report

for name, way in WAYS.items():
    runs = [train(way, seed) for seed in range(SEEDS)]
    report(**{name: [run | {"sent": runs[0]["sent"]} for run in runs]})
    gc.collect()
report(shapes=[tuple(p.shape) for p in GPT(TINY).parameters()])

# %% [markdown]
# ## Compare: bytes
#
# Each way has a closed form, in which nothing is fitted.


# %%
def ring(payload, ranks):
    """Bytes a rank sends in an all_reduce, or in the two phases of signs."""
    return 2 * (ranks - 1) / ranks * payload


def sign_payload(values, ranks, block=1_024):
    """Bytes of a vector as signs: whole blocks, with a 4-byte scale in each."""
    blocks = -(-values // (ranks * block)) * ranks
    return blocks * (block // 8 + 4)


shapes = trained[0].shapes
num_params = sum(int(np.prod(size)) for size in shapes)
matrices = [size for size in shapes if len(size) == 2]
factors = sum(R * (rows + columns) for rows, columns in matrices)
vectors = num_params - sum(rows * columns for rows, columns in matrices)
full, signs = ring(4 * num_params, 2), ring(sign_payload(num_params, 2), 2)
low_rank = ring(4 * (factors + vectors), 2)
one_bit_adam = WARMUP * full + (STEPS - WARMUP) * signs
predicted = {
    "fp32": STEPS * full,
    "fp16": STEPS * full / 2,
    "PowerSGD": 2 * full + (STEPS - 2) * low_rank,
    "1-bit, no memory": one_bit_adam,
    "1-bit": one_bit_adam,
    "mean of 5": STEPS // H * full,
    "DiLoCo": STEPS // H * full,
    "alone": 0,
}

# %% tags=["nbval-check-output"]
rows = []
for name, expected in predicted.items():
    measured = sum(trained[0][name][0]["sent"])
    share = measured / predicted["fp32"]
    rows.append((name, f"{expected:,.0f}", f"{measured:,}", f"{share:.1%}"))
    assert 0 <= measured - expected < 200, name
title = f"{num_params:,} parameters, {STEPS} steps, bytes sent by rank 0"
Table(("", "predicted", "measured", "share of fp32"), rows, title)

# %%
share = 100 * sum(trained[0]["1-bit"][0]["sent"]) / predicted["fp32"]
by_hand = 100 * (WARMUP + (STEPS - WARMUP) * 1.03 / 32) / STEPS
assert abs(share - by_hand) < 0.1
beside("onebit_share", predicted=by_hand, measured=share)

# %% [markdown]
# The bytes agree exactly, except for a few under DDP: after its first step DDP tells all ranks, once, which gradient lies in which bucket. (Bytes
# are counted as in a ring. Gloo and NCCL may choose other routes.) Nine tenths of what 1-bit Adam sends here is its warm-up.
#
# ## Compare: loss
#
# We use three seeds, because one would mislead: look at how much the results of one way vary.

# %%
ends = {name: [run["losses"][-1] for run in trained[0][name]] for name in predicted}
means = {name: float(np.mean(values)) for name, values in ends.items()}
rows = [
    (name, *(f"{value:.2f}" for value in (*values, means[name])))
    for name, values in ends.items()
]
spread = max(ends["fp32"]) - min(ends["fp32"])
note = f"The seeds of fp32 spread over {spread:.2f}."
Table(("", "seed 0", "seed 1", "seed 2", "mean"), rows, "Loss on unseen text", note)

# %%
assert abs(means["fp16"] - means["fp32"]) < max(spread, 0.1), "not told apart"
assert means["1-bit"] < means["1-bit, no memory"] - 0.05, "memory pays"
assert means["mean of 5"] < means["DiLoCo"] - 0.1, "eight meetings are few"
assert means["fp32"] < means["alone"] - 0.03, "meeting pays"
assert means["PowerSGD"] < means["fp32"] + 0.1, "although it feeds Adam"
for name in predicted:
    assert means[name] < 0.8 * np.log(256), "all of them learn"
worse = min(means["DiLoCo"], means["1-bit, no memory"])
better = max(means[name] for name in ("fp32", "fp16", "PowerSGD", "mean of 5"))
assert better < means["alone"] < worse, "not every way repays its bytes"
assert WARMUP * full > 0.9 * one_bit_adam, "most of its bytes are the warm-up's"
asked_for = ("fp16", "PowerSGD", "1-bit", "mean of 5", "DiLoCo", "alone")
beside("highest_loss", measured=max(asked_for, key=means.get).split()[0])

# %% [markdown]
# This is what three seeds can show, and no more:
#
# - **fp16** cannot be distinguished from fp32 here: they differ by less than the seeds of fp32 differ from each other. And fp16 sends half of the
#   bytes.
# - **Memory pays.** 1-bit Adam without memory ends clearly higher, with the same bytes.
# - **DiLoCo is behind the plain mean here**, and even behind ranks that never meet. We look for the reason below.
# - **Compare with *alone*.** DiLoCo and 1-bit without memory end above ranks that never met. Here their bytes bought nothing. 1-bit with memory ends
#   close to *alone*, and three seeds are too few to rank the two. fp32, fp16, PowerSGD and the mean of 5 end below *alone*.

# %% [markdown]
# ### Why is DiLoCo behind?
#
# With 0.7 and Nesterov 0.9, its first outer step is $0.7 \cdot (1 + 0.9) = 1.33$ times as long as the islands' mean move, and later steps carry the
# momentum of all earlier ones as well. So it may overshoot. Your `outer_step` has two arguments that make the steps shorter: half the rate
# (`lr=0.35`, with the same momentum), or no momentum (`beta=0`, with the same rate).

# %%
# %%guess remedy --choices rate,momentum
# Which change brings DiLoCo closer to the plain mean: half the rate, or no momentum?
...

# %%
# %%ranks --pass SEEDS --into shorter
for name, outer in {"half the rate": (0.35, 0.9), "no momentum": (0.7, 0.0)}.items():

    def way(model, outer=outer):
        return Island(model, H, *outer)

    runs = [train(way, seed) for seed in range(SEEDS)]
    report(**{name: [run["losses"][-1] for run in runs]})

# %%
settings = {
    "mean of 5 (lr 1, beta 0)": ends["mean of 5"],
    "no momentum (lr 0.7, beta 0)": shorter[0]["no momentum"],
    "half the rate (lr 0.35, beta 0.9)": shorter[0]["half the rate"],
    "DiLoCo (lr 0.7, beta 0.9)": ends["DiLoCo"],
}
rows = [
    (name, *(f"{value:.2f}" for value in (*values, np.mean(values))))
    for name, values in settings.items()
]
plain, without, half, diloco = (np.mean(values) for values in settings.values())
assert abs(without - plain) < 0.06 < half - without, "the momentum overshoots"
assert half < diloco - 0.03
display(Table(("", "seed 0", "seed 1", "seed 2", "mean"), rows, "Loss on unseen text"))
beside("remedy", measured="momentum" if without < half else "rate")

# %% [markdown]
# It was the momentum: half the rate helps, but without momentum DiLoCo is as good as the plain mean. The paper trains under other circumstances: it
# starts from a pretrained model, and lets islands train 500 steps before each of more than a hundred meetings. Its settings need not suit eight
# meetings that are five steps apart.
#
# A tiny model in its first steps is an illustration, not a verdict. The long runs are in the papers:
#
# | | published | source |
# |---|---|---|
# | 1-bit Adam | BERT-Large at Adam's convergence, up to 5 times less volume, up to 3.3 times the throughput | Tang et al., abstract |
# | DiLoCo | 8 workers on C4 as good as fully synchronous training, with 500 times less communication | Douillard et al., abstract |
#
# ## Loss against the clock
#
# Bytes only matter because they take time, and compressing takes time as well. First we look at each way's own time, without a slow wire. For each
# step we take the quicker of two runs, so that one busy moment of this machine does not count. Then we simulate a slow wire: after each step both
# ranks sleep for as long as the step's bytes would take at 25 Mbit/s. Nothing overlaps here, so the clock should show the sum of own time and wire
# time:

# %%
own = {
    name: np.min([run["seconds"] for run in trained[0][name][1:]], axis=0)
    for name in predicted
}
assert own["PowerSGD"].sum() > 1.2 * own["alone"].sum(), "compressing takes time"
wires = {
    name: [8 * sent / 25e6 for sent in trained[0][name][0]["sent"][:10]]
    for name in ("fp32", "PowerSGD")
}
rows = [(name, f"{1000 * seconds.mean():.1f} ms") for name, seconds in own.items()]
Table(("", "a step by itself"), rows)

# %%
# %%ranks --pass wires --into slow
for name, wire in wires.items():
    runs = [train(WAYS[name], seed, wire) for seed in (1, 2)]
    report(**{name: [run["seconds"] for run in runs]})

# %%
rows = []
for name, wire in wires.items():
    of_ten, on_wire = own[name][:10].sum(), sum(wire)
    clocked = np.min(slow[0][name], axis=0).sum()
    seconds = (of_ten, on_wire, of_ten + on_wire, clocked)
    rows.append((name, *(f"{each:.2f} s" for each in seconds)))
    assert on_wire < clocked < 2 * (of_ten + on_wire)
assert sum(wires["PowerSGD"]) < 0.4 * sum(wires["fp32"])
head = ("ten steps", "own time", "wire at 25 Mbit/s", "together", "on the clock")
Table(head, rows)

# %% [markdown]
# It does, except for the time that other programs on this machine take. With each step's bytes and own time we now calculate the clock for any wire,
# as such a sum. (On a real wire, DDP sends during backward and hides a part; the sum leaves that out.) Move the slider: from which rate on does it no
# longer matter how much is sent? Each line is the mean of three seeds. The dotted line is the loss that fp32 reaches with every seed after 30 steps.

# %%
from workshop.jupyter.explorer import Control, explore

goal = max(run["losses"][5] for run in trained[0]["fp32"])  # after 30 steps
names = ("fp32", "fp16", "PowerSGD", "1-bit", "mean of 5")


def clock(name, mbit):
    """Seconds since the start, after every 5 steps, at so many Mbit/s."""
    wire = 8 * np.array(trained[0][name][0]["sent"]) / (mbit * 1e6)
    return np.cumsum(own[name] + wire)[4::5]


def reached(name, mbit):
    """Seconds until a way is at the goal, mean over seeds; infinite if one is not."""
    times = []
    for run in trained[0][name]:
        points = zip(clock(name, mbit), run["losses"], strict=True)
        there = [seconds for seconds, loss in points if loss <= goal]
        times.append(there[0] if there else float("inf"))
    return float(np.mean(times))


# %%
def loss_by_time(mbit_per_second, ways):
    """Loss of each way over seconds."""
    figure, axis = new_figure(7.4, 3.6)
    drawn = names if ways == "five" else (*names, "DiLoCo", "alone")
    for place, name in enumerate(drawn):
        losses = np.mean([run["losses"] for run in trained[0][name]], axis=0)
        line = "o-" if name in names else "o--"
        style = {"color": rank_colour(place), "markersize": 3, "zorder": 9 - place}
        axis.plot(clock(name, mbit_per_second), losses, line, label=name, **style)
    label = "fp32 after 30 steps"
    axis.axhline(goal, color="gray", linestyle=":", label=label)
    axis.set(xscale="log", xlabel="seconds", ylabel="loss on unseen text")
    axis.set_title(f"a wire of {mbit_per_second:,} Mbit/s", fontsize=9)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return Picture(figure, f"loss over seconds at {mbit_per_second:,} Mbit/s")


rates = Control("mbit_per_second", 10, (1, 10, 100, 1_000, 10_000, 100_000))
explore(loss_by_time, [rates, Control("ways", "five", ("five", "all seven"))])

# %%
best, rows = {}, []
for mbit in (1, 10, 1_000, 100_000):
    times = {name: reached(name, mbit) for name in names}
    best[mbit] = min(times, key=times.get)
    rows.append((f"{mbit:,} Mbit/s", *(f"{took:.2f} s" for took in times.values())))
assert clock("PowerSGD", 1)[-1] < 0.2 * clock("fp32", 1)[-1]
assert signs < 0.4 * low_rank
assert reached("1-bit", 1) > reached("PowerSGD", 1), "in spite of its small steps"
assert best[10] in ("PowerSGD", "mean of 5"), "who sends least until then"
display(Table(("wire", *names), rows, "Time until the loss of fp32 after 30 steps"))
beside("best_at_10", calculated=best[10].split()[0])

# %% [markdown]
# On a slow wire, the total number of bytes that a way sends until it reaches the goal decides. After its warm-up, 1-bit Adam sends a third of what
# PowerSGD sends in a step, and still arrives later, because its first ten steps were sent in full. On a fast wire, bytes no longer matter. There
# each way's own time decides, and PowerSGD pays for its many small messages and products. (A way that does not reach the goal in 40 steps shows
# `inf`.)
#
# And what about *alone*, which sends nothing? (Set `ways` to "all seven".) Its line begins far to the left, and may even reach the dotted line
# first. But two ranks that never meet are two models, each trained on half of the data, and after 40 steps they are behind. If one rank by itself
# reaches your goal, you need no network.
#
# ## Where does it pay on a cluster?
#
# Compressing takes time, so it helps only where ranks wait for the wire. Tang et al. timed BERT-Large on 64 V100 GPUs: in 16 nodes connected by
# Ethernet, and in 8 nodes connected by InfiniBand (their table 1, in milliseconds, with fp16 gradients). As signs, a gradient takes 16 / 1.03 = 15.5
# times fewer bytes than in fp16. The next cell makes the all_reduce shorter by this factor:

# %% tags=["nbval-check-output"]
smaller = 16 / (8 * sign_payload(2**30, 64) / 2**30)
clocked = {  # milliseconds: forward, all_reduce, the rest of backward, step
    "Ethernet, batch 64": (36.65, 2205.86, 33.63, 74.96),
    "Ethernet, batch 4,096": (137.80, 2259.36, 243.72, 74.92),
    "InfiniBand, batch 4,096": (131.04, 339.52, 237.92, 56.91),
}
rows = []
for name, (forward, all_reduce, backward, step) in clocked.items():
    now = forward + all_reduce + backward + step
    then = now - all_reduce + all_reduce / smaller
    share = f"{all_reduce / now:.0%}"
    rows.append(
        (name, f"{now:,.0f} ms", share, f"{then:.0f} ms", f"{now / then:.1f} x")
    )
Table(("", "a step", "of it all_reduce", "with signs", "as fast"), rows)

# %% [markdown]
# On Ethernet with a large batch, the steps after the warm-up would be 4.5 times as fast. But the warm-up is sent in full. DeepSpeed's
# [tutorial](https://www.deepspeed.ai/tutorials/onebit-adam/) recommends a warm-up of 15 to 25 % of all steps. How much less volume does 1-bit Adam
# then send, and how much faster is the whole run?

# %% tags=["nbval-check-output"]
times = clocked["Ethernet, batch 4,096"]
share = times[1] / sum(times)  # of all_reduce
after = 1 - share + share / smaller  # a step with signs takes this part of a full one
less, rows = {}, []
for warmup in (0.0, 0.15, 0.25):
    less[warmup] = 1 / (warmup + (1 - warmup) / smaller)
    faster = 1 / (warmup + (1 - warmup) * after)
    rows.append((f"{warmup:.0%}", f"{less[warmup]:.1f} x", f"{faster:.1f} x"))
assert round(less[0.15]) == 5, "the abstract's up to 5 times"
assert 0.85 / smaller < 0.15, "most of it is the warm-up"
Table(("warm-up", "less volume", "as fast"), rows)

# %% [markdown]
# With a warm-up of 15 %, we get the paper's "up to 5 times" less volume. So most of what 1-bit Adam sends is its warm-up, not its signs. For the
# speed, the authors report "up to 3.3 times". Our estimate is of that order, but it uses one row of their table, not a whole run.
#
# **ZeRO++** (Wang et al., 2023) does something similar for ZeRO's stage 3, which sends three passes of the weights (lesson 24). In forward, weights
# are gathered in 8 bits instead of 16, half a pass. For backward they are kept inside each node, so no pass leaves it. Gradients are reduced in 4
# bits, a quarter of a pass. Together these are 0.75 passes in place of 3: the "4x" of the paper's abstract.
#
# ## Slow links: predict a step
#
# Imagine eight islands that are connected by a slow link. Each is a cluster of its own, and needs 1 second for a step of a model of 8 billion
# parameters. How long does a step take in each way? Start with the question that decides whether such training is possible at all.

# %%
# %%guess meetings --unit steps
# The link carries 1 Gbit/s, and a meeting is an all_reduce of 4 bytes a parameter. How
# many steps must lie between two meetings if the islands shall work 95 % of the time?
...

# %% tags=["nbval-check-output"]
from workshop.facts.device import LinkSpec
from workshop.predict.diloco import Islands, fewest_inner_steps

ways = {
    "fp32, every step": (1, 4.0),
    "fp16, every step": (1, 2.0),
    "signs, every step": (1, 1.03 / 8),
    "fp32, every 100": (100, 4.0),
    "fp32, every 500": (500, 4.0),
}
rows = []
for name, (inner_steps, outer_bytes) in ways.items():
    times = []
    for gigabits in (1, 10, 100, 400):
        link = LinkSpec(f"{gigabits} Gbit/s", gigabits * 1e9 / 8)
        apart = Islands(8, link, inner_steps, outer_bytes)
        times.append(apart.seconds_per_step(inner_seconds=1.0, num_params=8e9))
    rows.append((name, *(format_seconds(seconds) for seconds in times)))
Table(("", *(f"{rate} Gbit/s" for rate in (1, 10, 100, 400))), rows, "A step takes")

# %% tags=["nbval-check-output"]
fewest, rows = {}, []
for gigabits in (1, 10, 100):
    meeting = ring(4 * 8e9, 8) / (gigabits * 1e9 / 8)  # seconds
    fewest[gigabits] = int(np.ceil(meeting * 19))  # work : wait = 95 : 5 = 19 : 1
    apart = Islands(8, LinkSpec("between islands", gigabits * 1e9 / 8))
    assert abs(fewest[gigabits] - fewest_inner_steps(apart, 1.0, 8e9)) <= 1
    shown = (format_seconds(meeting), f"{fewest[gigabits]:,}")
    rows.append((f"{gigabits} Gbit/s", *shown))
Table(("link", "a meeting takes", "steps between two, for 95 % of work"), rows)

# %%
beside("meetings", calculated=fewest[1])

# %% [markdown]
# Over a home connection of 1 Gbit/s, full gradients take minutes for each second of work, and even signs take longer than the work. Rare
# meetings help: with H = 500, the islands train half of the time at 1 Gbit/s, and nine tenths of the time at 10 Gbit/s.
#
# ## At scale: 1,024 ranks
#
# Does our count of bytes also hold with many ranks? The next cell rehearses the package's 1-bit Adam as rank 0 of 1,024, with the sizes of Llama
# 3.2 1B. Nothing is sent, but the bits are packed, and every collective is recorded.


# %%
def one_bit_steps(**shape):
    """Three steps of 1-bit Adam, one of them warm-up."""
    import torch
    import torch.distributed as dist

    from workshop.models.gpt import GPT, GPTConfig
    from workshop.parallel.ddp import begin_together
    from workshop.parallel.onebit_adam import OneBitAdam

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    model = GPT(GPTConfig(**shape)).to(device)
    begin_together(model)
    optimizer = OneBitAdam(model.parameters(), warmup=1)
    for _ in range(3):
        tokens = torch.randint(shape["vocab_size"], (1, 64), device=device)
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


# %%
from dataclasses import asdict

from workshop.facts import catalogue
from workshop.models.from_spec import gpt_config
from workshop.rehearse import rehearse

llama = catalogue.model("llama-3.2-1b")
shape = asdict(gpt_config(llama))
large = rehearse(one_bit_steps, world_size=1_024, steps=3, keywords=shape)
show.traffic_table(large)

# %% tags=["nbval-check-output"]
assert trained[0]["1-bit"][0]["sent"][-1] == signs, "on two real ranks"
wire = sum(row.wire_bytes for row in large.traffic)
closed_form = ring(sign_payload(llama.num_params, 1_024), 1_024)
assert abs(wire - closed_form) <= 2
in_full = ring(4 * llama.num_params, 1_024)
rows = [
    ("TINY, 2 ranks", f"{full:,.0f}", f"{signs:,.0f}", f"{signs:,.0f} measured"),
    (
        "Llama 3.2 1B, 1,024 ranks",
        f"{in_full:,.0f}",
        f"{closed_form:,.0f}",
        f"{wire:,} rehearsed",
    ),
]
Table(("bytes a step", "fp32", "signs, predicted", "signs"), rows)

# %% [markdown]
# ## Tomorrow's script
#
# This script contains the two ways that take one line each: a hook that sends 16 bits, and PyTorch's PowerSGD. You call `register_comm_hook` on the
# model that DDP has wrapped. `torchrun --nproc-per-node 8 train_powersgd.py` runs the script with PowerSGD, and `WIRE=fp16 torchrun ...` with 16
# bits. (If gradients may exceed the range of fp16, use `bf16_compress_hook`; it needs NCCL.)
#
# PowerSGD's memory belongs to the training state, and each rank has its own. So every rank saves a file. Memory is kept by bucket, and DDP decides on
# its buckets after the first backward. A resumed run therefore begins with a backward that nobody uses.

# %%
import os

from workshop import launch

folder = str(launch.Session.get().directory)  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = f"{folder}/train_powersgd"

# %%
# %ranks stop

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/train_powersgd.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) / 8)
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)]
network = torch.nn.Sequential(*layers)
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = None
if os.environ.get("WIRE") == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
else:
    options = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 4}
    state = powerSGD_hook.PowerSGDState(None, **options)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
names = [name for name in getattr(state, "__slots__", ()) if name != "process_group"]
own = f"rank_{dist.get_rank()}_of_{dist.get_world_size()}.pt"
saved, first = Path(os.environ.get("CHECKPOINT", "train_powersgd")), 0
whole = [int(path.parent.name) for path in saved.glob("*/complete")]
if whole:
    old = saved / str(max(whole))
    kept = torch.load(old / "model.pt", map_location=device)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    first = max(whole) + 1
    if state and (old / own).exists():  # not after a change of the number of ranks
        model(inputs[:1].to(device)).sum().backward()  # settles DDP's buckets
        memory = torch.load(old / own, map_location=device, weights_only=False)
        for name in names:
            setattr(state, name, memory[name])

for epoch in range(first, first + 3):
    sampler.set_epoch(epoch)
    total = torch.zeros(1, device=device)
    for x, y in loader:
        loss = (model(x.to(device)) - y.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() / len(loader)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {total.item() / dist.get_world_size():.3f}")
    new = saved / str(epoch)
    new.mkdir(parents=True, exist_ok=True)
    if state:
        torch.save({name: getattr(state, name) for name in names}, new / own)
    if dist.get_rank() == 0:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(kept, new / "model.pt")
    dist.barrier()  # all files are written
    if dist.get_rank() == 0:
        (new / "complete").touch()
dist.barrier()  # no rank exits before the last file is written
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("27_fewer_bytes", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Try 16 bits first: they halve the bytes with one line. Watch the range of fp16, or use bf16.
# - If you throw much away, you must remember it: **error feedback**. Then nothing is lost, it only arrives late. The theory behind it holds for
#   optimizers that are linear in the gradient. Here PowerSGD worked with Adam all the same.
# - **PowerSGD** sends two thin matrices, with plain all_reduces. **Signs** need two phases, all_to_all and all_gather.
# - **1-bit Adam** freezes the second moment. Most of its bytes are then those of its warm-up.
# - The plain mean of weights every H steps is **local SGD**. **DiLoCo** adds an outer step with momentum, which overshot in our eight meetings; the
#   paper has more than a hundred. Both divide the bytes by H.
# - Count first. Where the wire is hidden behind backward, sending fewer bytes gains nothing.
#
# Next: [31_tensor_parallel](../day3_model_parallel/31_tensor_parallel.ipynb). Cut the model itself.
#
# ## Sources
#
# - T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD*, NeurIPS 2019, [arXiv:1905.13727](https://arxiv.org/abs/1905.13727), algorithm 1.
# - S. P. Karimireddy et al., *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, ICML 2019,
#   [arXiv:1901.09847](https://arxiv.org/abs/1901.09847).
# - H. Tang et al., *1-bit Adam*, ICML 2021, [arXiv:2102.02888](https://arxiv.org/abs/2102.02888): algorithm 1, table 1.
# - A. Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023,
#   [arXiv:2311.08105](https://arxiv.org/abs/2311.08105), algorithm 1.
# - G. Wang et al., *ZeRO++: Extremely Efficient Collective Communication for Giant Model Training*, 2023,
#   [arXiv:2306.10209](https://arxiv.org/abs/2306.10209), abstract.
# - DeepSpeed, *1-bit Adam*, [tutorial](https://www.deepspeed.ai/tutorials/onebit-adam/), section 1.4 (`freeze_step`).
# - PyTorch documentation, *DDP Communication Hooks*.
