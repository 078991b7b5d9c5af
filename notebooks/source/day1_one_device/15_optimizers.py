# %% [markdown]
# # What does the optimizer remember?
#
# - **You need** `13_memory_of_a_step` (weights, gradients, optimizer).
# - **It takes** 35 minutes to read and try, about half a minute to run.
# - **What runs where:** everything runs here, on a CPU or without changes on a GPU.
# - **Model and text:** `TINY` on its text, Python's reference manual, as in the lesson before. Where updates are timed, the model is twice
#   as wide and three times as deep, so that there is enough work to time.
# - **Links:** before this [14_mixed_precision](14_mixed_precision.ipynb), after it [16_faster_step](16_faster_step.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A gradient tells you which way is down at this moment. An optimizer also *remembers*: it keeps the directions of earlier steps and
# the size of the gradients. In fp32, each number that it keeps for a weight takes 4 bytes. AdamW keeps two numbers a weight, so its state is
# twice as large as the model. For a model of 70 billion parameters, that is more than six H100s can hold, and not a single weight is stored yet.
# Does it have to be so large?

# %%
# %load_ext workshop
import math
import time
from dataclasses import replace
from itertools import product

import torch

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.jupyter.explorer import Control, explore
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches
from workshop.process.quiet import quietly
from workshop.show.style import Picture, new_figure
from workshop.train.optimizers import STATE, build_optimizers

with quietly():  # the import may complain about missing GPU kernels
    import bitsandbytes

torch.set_num_threads(1)  # the matrices are too small for more threads to help
folder = launch.Session.get().directory  # private; deleted when the kernel ends
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")


def fresh(config=TINY):
    torch.manual_seed(0)
    return GPT(config).to(device)


num_params = sum(parameter.numel() for parameter in fresh().parameters())
print(f"{num_params:,} parameters")

# %% [markdown]
# ## AdamW, by hand
#
# For each weight $w$, AdamW keeps two **moments**: a running mean $m$ of the gradient $g$, and a running mean $v$ of its square. Step $t$
# is
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# $$w \leftarrow (1 - \eta\lambda)\, w \;-\; \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$
#
# The mean is divided by the root of the mean square. So every weight moves about as far as the rate $\eta$ says, whether its gradient is
# large or small. Both moments start at zero, so after $t$ steps they contain only the fraction $1 - \beta^t$ of the true mean. Dividing by
# that fraction corrects this. The decay $\lambda$ shrinks the weight itself and is not part of the gradient (Loshchilov and Hutter, 2017).
#
# ### Exercise: one step


# %%
# %%exercise adamw_step
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight, not the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = ...
    corrected_first, corrected_second = ..., ...  # both begin at zero
    weight = ...
    return weight, first, second


# %% [markdown]
# Here is your function beside PyTorch's AdamW, for ten steps:

# %% tags=["nbval-check-output"]
import numpy as np

generator = np.random.default_rng(0)
mine, first, second = generator.normal(size=8), np.zeros(8), np.zeros(8)
theirs = torch.nn.Parameter(torch.tensor(mine))
options = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
optimizer = torch.optim.AdamW([theirs], lr=0.01, **options)
for step in range(1, 11):
    gradient = generator.normal(size=8)
    mine, first, second = adamw_step(mine, gradient, first, second, step)
    theirs.grad = torch.tensor(gradient)
    optimizer.step()
assert np.allclose(mine, theirs.detach().numpy(), atol=1e-12)
print("ten steps by hand and torch.optim.AdamW: equal to 1e-12")

# %% [markdown]
# ## What others remember
#
# - **SGD with momentum** and **Lion** keep one moment. Lion steps by the *sign* of a mix of this moment and the newest gradient (Chen et al., 2023).
# - **Muon** keeps one moment for each matrix. It steps by the nearest matrix whose singular values are all 1, so that no direction is
#   favored (Jordan et al., 2024). The embedding, the head and the norms still use AdamW.
# - **Adafactor** keeps only the sums of the squares in each row and each column of a matrix (Shazeer and Stern, 2018).
# - **8-bit AdamW** keeps both moments in one byte each, with a scale of 4 bytes for every block of numbers. A block has 2,048 numbers in
#   the paper (Dettmers et al., 2021) and 256 in today's bitsandbytes.
#
# ## Muon, by hand
#
# How do you make all singular values 1? The exact way is a singular value decomposition, which is slow on a GPU. Muon does it nearly, and much
# faster, by a polynomial that is applied five times to every singular value (*Newton-Schulz*):
#
# $$s \;\leftarrow\; 3.4445\, s - 4.7750\, s^3 + 2.0315\, s^5$$
#
# A value below 0.3 grows about threefold or more in each round. Once a value is near 1, it stays near 1. The picture shows what becomes of every
# value between 0.0001 and 1. **Move `rounds`: how many does a singular value of 0.001 need?** And can a value that is already near 1 be spoiled by
# more rounds?


# %%
def one_round(s):
    return 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5


def draw_rounds(rounds):
    start = s = np.logspace(-4, 0, 400)
    figure, axis = new_figure(6.4, 2.8)
    axis.axhspan(0.6, 1.3, color="#0072B2", alpha=0.12, linewidth=0)
    for _ in range(rounds):
        axis.plot(start, s, color="#BBBBBB", linewidth=1)
        s = one_round(s)
    axis.plot(start, s, color="#0072B2")
    axis.set(xscale="log", xlabel="singular value before", ylim=(0, 1.4))
    axis.set_ylabel(f"after {rounds} rounds")
    least = start[s > 0.6].min()
    assert 0.6 < s[start >= least].min() < s.max() < 1.3
    return Picture(figure, f"from {least:.4f} up, all are between 0.6 and 1.3 (blue)")


explore(draw_rounds, [Control("rounds", 5, range(9))])

# %% [markdown]
# After Muon's five rounds, all values from 0.0013 up are between 0.6 and 1.3, and for a step of training that is near enough. A value of 0.001
# needs a sixth round. More rounds spoil nothing: the values move to and fro between 0.6 and 1.3. But these were numbers. A matrix does not show
# its singular values, and nobody wants to compute them.
#
# ### Exercise: every singular value at once


# %%
# %%exercise equalised
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def equalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with all its singular values brought near 1."""
    near = ...
    for _ in range(5):
        near = ...  # each singular value s becomes A s + B s^3 + C s^5
    return near.to(matrix.dtype)


# %% [markdown]
# Your function on a tall matrix, beside the exact way:

# %% tags=["nbval-check-output"]
torch.manual_seed(0)
matrix = torch.randn(64, 32)
left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
exact, near = left @ right, torch.linalg.svdvals(equalised(matrix))
print(f"singular values before: {sizes.min():.1f} to {sizes.max():.1f}")
print(f"after five rounds:      {near.min():.1f} to {near.max():.1f}")
assert torch.allclose(torch.linalg.svdvals(exact), torch.ones(32), atol=1e-4)
assert 0.6 < near.min() < near.max() < 1.3

# %% [markdown]
# This is the heart of Muon's step, and it consists of matrix products only. Around it there is one moment. For the step, the newest gradient is mixed
# into this moment a second time (*Nesterov momentum*).
#
# The rate depends on the shape of the matrix, and there are two rules for it. The original rule gives matrices that have more rows than columns a
# larger rate. The other (`match`) scales each update so that its root mean square is about that of an AdamW update, and one rate serves both
# optimizers; the runs below and the script at the end use this one. Here is the whole step beside PyTorch's `torch.optim.Muon`, for a tall and a
# wide matrix:


# %%
def muon_step(weight, gradient, moment, rate, beta=0.95, match=False):
    """The new weight and moment of a matrix."""
    moment = beta * moment + (1 - beta) * gradient
    ahead = beta * moment + (1 - beta) * gradient
    rows, columns = weight.shape
    factor = 0.2 * max(rows, columns) ** 0.5 if match else max(1, rows / columns) ** 0.5
    return weight - rate * factor * equalised(ahead), moment


rules, rows = {False: "original", True: "match_rms_adamw"}, []
for shape, match in product(((64, 32), (32, 64)), rules):
    start = torch.randn(shape)
    mine, moment = start, torch.zeros(shape)
    theirs = torch.nn.Parameter(start.clone())
    options = {"weight_decay": 0.0, "adjust_lr_fn": rules[match]}
    optimizer = torch.optim.Muon([theirs], lr=0.02, **options)
    for _ in range(5):
        gradient = torch.randn(shape)
        mine, moment = muon_step(mine, gradient, moment, rate=0.02, match=match)
        theirs.grad = gradient
        optimizer.step()
    off = ((mine - theirs).norm() / (theirs - start).norm()).item()
    rows.append(("{} x {}".format(*shape), rules[match], f"{off:.1%}"))
    assert off < 0.05
Table(("matrix", "rule for the rate", "they differ after five steps by"), rows)

# %% [markdown]
# The formulas are the same, but the two implementations round in different places: `torch.optim.Muon` multiplies in bf16. So their results differ by
# a few percent of the distance that they moved.
#
# ## Predict: bytes for each parameter

# %%
# %%guess eight_bit --unit bytes
# 8-bit AdamW keeps two moments of one byte, each with a 4-byte scale per 256 numbers.
# How many bytes of state is that per parameter? (AdamW in fp32 has 8.)
...

# %%
RATES = {
    "sgd-momentum": (0.05, 0.2, 0.8),
    "lion": (1e-3, 4e-3, 1.6e-2),
    "muon": (3e-3, 1e-2, 3e-2),
    "adafactor": (0.02, 0.06, 0.2),
    "adamw": (1e-3, 3e-3, 1e-2),
    "adamw, 8 bits": (1e-3, 3e-3, 1e-2),
}


def build(name, model, rate):
    if name != "adamw, 8 bits":
        return build_optimizers(name, model, rate)
    options = {"betas": (0.9, 0.95), "weight_decay": 0.0}  # same as the fp32 AdamW
    options["min_8bit_size"] = 0  # use 8 bits for small tensors too
    return [bitsandbytes.optim.AdamW8bit(model.parameters(), lr=rate, **options)]


def state_bytes(optimizers):
    """Bytes of all tensors kept, shared ones once, step counters left out."""
    kept = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if not isinstance(value, torch.Tensor) or name.startswith("qmap"):
                    continue  # no tensor, or a code table that all tensors share
                if value.numel() > 1:
                    kept[value.data_ptr()] = value.nbytes
    return sum(kept.values())


# %% [markdown]
# ## Run
#
# We train the same small Llama on the same pages of Python's manual. Each optimizer is run with **three learning rates**, because a rate that is
# right for one is wrong for another, and we count only its best. And each of these runs is made three times, with the text in another order,
# because one run proves little. But first a bet: does it cost loss to remember less?

# %%
# %%guess lower_loss --choices adafactor,adamw
# Adafactor keeps a tenth of a byte for each parameter, and AdamW keeps eight bytes.
# Which of the two ends with the lower loss, each at its best rate?
...

# %%
STEPS, ORDERS = 40, (0, 1, 2)


def train(name, rate, order):
    """Mean loss of each ten steps, and the bytes of state."""
    text = TextBatches(seq_len=32, global_batch=8, seed=order)
    model, losses = fresh(), []
    optimizers = build(name, model, rate)
    for step in range(STEPS):
        ((tokens, targets),) = text.step(step, device)
        loss = model(tokens, targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    means = torch.stack(losses).view(-1, 10).mean(dim=1)
    return means.tolist(), state_bytes(optimizers)


curves, held, last = {}, {}, {}
for name, rates in RATES.items():
    for rate in rates:
        for order in ORDERS:
            curves[name, rate, order], kept = train(name, rate, order)
        ends = [curves[name, rate, order][-1] for order in ORDERS]
        last[name, rate] = sum(ends) / len(ends)
    held[name] = kept / num_params
best = {name: min(last[name, rate] for rate in RATES[name]) for name in RATES}

# %% [markdown]
# ## Compare: bytes

# %%
blocks = 2 * (1 + 4 / 256)  # two one-byte moments and their scales
predicted = {name: STATE[name].bytes_per_parameter() for name in RATES if name in STATE}
predicted["adamw, 8 bits"] = blocks
sums = sum(sum(p.shape) if p.ndim == 2 else p.numel() for p in fresh().parameters())
predicted["adafactor"] = 4 * sums / num_params
matrices = [p.numel() for n, p in fresh().named_parameters() if "proj" in n]
muon_share = sum(matrices) / num_params  # the rest keeps AdamW's two moments
predicted["muon"] = 4 * muon_share + 8 * (1 - muon_share)
rows = [(name, f"{predicted[name]:.3f}", f"{held[name]:.3f}") for name in RATES]
assert all(abs(held[name] - predicted[name]) < 0.05 for name in RATES)
Table(("bytes of state a parameter", "predicted", "counted"), rows)

# %%
assert round(2 * (1 + 4 / 2_048), 3) == 2.004
beside("eight_bit", predicted=blocks, measured=held["adamw, 8 bits"])

# %% [markdown]
# The results are as predicted. (With the paper's blocks of 2,048, 8-bit AdamW would take 2.004 bytes.) On a model this small, Adafactor's
# sums are not negligible: for each weight of a matrix, there are 1/rows + 1/columns of them.
#
# ## Compare: loss

# %%
rows = []
for name, rates in RATES.items():
    ends = [
        f"{last[name, rate]:.2f}" if last[name, rate] < 5 else "-" for rate in rates
    ]
    rows.append((name, ", ".join(f"{rate:g}" for rate in rates), *ends))
for order in ORDERS:
    full = [curves["adamw", rate, order][-1] for rate in RATES["adamw"]]
    assert curves["adafactor", 0.06, order][-1] < min(full)
adafactor = [last["adafactor", rate] for rate in RATES["adafactor"]]
others = [best[name] for name in ("sgd-momentum", "lion", "adamw")]
assert max(adafactor) - min(adafactor) > max(others) - min(others)
assert not last["sgd-momentum", 0.8] < 3.6, "a rate too large; it may be NaN"
head = ("optimizer", "three rates", "at the lowest", "at the middle", "at the highest")
title = "Loss of the last ten steps, the mean of three orders of the text (-: diverged)"
display(Table(head, rows, title))
beside("lower_loss", measured=min(("adafactor", "adamw"), key=best.get))

# %% [markdown]
# The picture has one point for each optimizer: the bytes that it keeps, and its loss at the best of its rates. The lines extend to the losses at
# its other rates (we leave out a rate that diverged).

# %%
figure, axis = new_figure(6.8, 3.6)
for name, rates in RATES.items():
    ends = [last[name, rate] for rate in rates if last[name, rate] < 5]
    x = held[name] + (0.1 if name == "lion" else 0)  # shifted: SGD keeps as much
    axis.plot([x, x], [min(ends), max(ends)], color="#BBBBBB", zorder=0)
    axis.plot([x], [min(ends)], "o", color="#0072B2")
    aside = (6, -14 if name == "lion" else 2)
    axis.annotate(name, (x, min(ends)), aside, textcoords="offset points", fontsize=9)
axis.set(xlabel="bytes of state a parameter", ylabel="loss of the last ten steps")
axis.set_xlim(0, 10)
Picture(figure, "bytes of state against loss, the best of three rates")

# %% [markdown]
# You can read three things here, and no more. First, **more state does not by itself buy a lower loss**: with each of the three orders, Adafactor
# ended below every run of AdamW, with about an eightieth of its state. (They differ in more than that: Adafactor also makes larger steps for a
# matrix with larger weights.) Second, AdamW in 8 bits seems to follow AdamW, with a quarter of its bytes. Third,
# the **rate matters as much as the optimizer**. With a wrong rate, SGD does not train at all. Changing only Adafactor's rate moves its final loss
# by more than the best losses of SGD, Lion and AdamW differ from each other. Which optimizer is best is another question. Forty steps of a
# tiny model cannot answer it, and no comparison of optimizers is better than the tuning of each one.
#
# How closely do the 8 bits follow? We compare the whole curves, for each rate and each order. As a yardstick, the line below the table shows how
# far two curves of AdamW itself are apart if only the rate differs:


# %%
def distance(one, other):
    """The largest relative distance of two curves."""
    return max(abs(a / b - 1) for a, b in zip(one, other, strict=True))


apart = {}
for rate, order in product(RATES["adamw"], ORDERS):
    pair = (curves[name, rate, order] for name in ("adamw, 8 bits", "adamw"))
    apart[rate, order] = distance(*pair)
yardstick = distance(curves["adamw", 1e-3, 0], curves["adamw", 3e-3, 0])
assert sorted(apart.values())[len(apart) // 2] < yardstick / 10
assert max(apart.values()) < yardstick / 2
rows = [
    (f"{rate:g}", *(f"{apart[rate, order]:.2%}" for order in ORDERS))
    for rate in RATES["adamw"]
]
head = ("rate", *(f"order {order + 1}" for order in ORDERS))
title = "AdamW in 8 bits and in fp32: the largest distance of their two curves"
Table(head, rows, title, note=f"AdamW at the rates 0.001 and 0.003: {yardstick:.2%}")

# %% [markdown]
# **AdamW in 8 bits follows AdamW.** In all nine pairs, the distance is less than half of the distance that a different rate makes, and in
# most of them it is less than a tenth.
#
# ### Eight bits, by hand
#
# Why does a moment survive in one byte? Each block of 256 numbers is divided by its largest, and of each number only the nearest of 256 fixed
# values is kept. Which values? The simplest choice is 256 evenly spaced ones between 0 and 1. The paper's values are close together near 0 and far
# apart near 1. We try both with the mean square $v$ of the embedding. A block of 256 numbers holds the rows of four tokens (here, bytes), and
# a frequent one often stands beside a rare one. What must not happen is that a $v$ becomes 0, because the step divides by its root.

# %%
# %%guess lost --unit %
# With 256 evenly spaced values, what share of these mean squares becomes 0, in percent?
...

# %%
from bitsandbytes.functional import create_dynamic_map, quantize_blockwise


def eight_bits(numbers, values):
    """The index of the nearest value for each number, and each block's largest."""
    blocks = numbers.view(-1, 256)
    largest = blocks.amax(dim=1, keepdim=True)
    relative = blocks / largest.clamp(min=1e-30)
    nearest = (relative[..., None] - values).abs().argmin(dim=-1)
    return nearest.byte(), largest


def mean_squares(order):
    """AdamW's v of the embedding after some steps."""
    text, model = TextBatches(seq_len=32, global_batch=8, seed=order), fresh()
    (optimizer,) = build("adamw", model, 3e-3)
    for step in range(STEPS):
        ((tokens, targets),) = text.step(step, device)
        model(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer.state[model.model.embed_tokens.weight]["exp_avg_sq"].flatten()


# %%
values = {"even": torch.linspace(0, 1, 256), "paper": create_dynamic_map(signed=False)}
zeros = {name: [] for name in values}
for order in ORDERS:
    v = mean_squares(order)
    for name, table in values.items():
        table = table.to(device)
        codes, largest = eight_bits(v, table)
        back = (table[codes.int()] * largest).flatten()
        zeros[name].append((back[v > 0] == 0).float().mean().item())
        theirs, _ = quantize_blockwise(v, code=table, blocksize=256)
        off = (codes.int() - theirs.view_as(codes).int()).abs()
        # (On a CPU, bitsandbytes may be farther off for the smallest numbers.)
        assert off[v.view_as(off) > 1e-3 * largest].max() <= 1
assert max(zeros["paper"]) < 0.05 < 0.25 < min(zeros["even"])
rows = [
    (name, *(f"{share:.1%}" for share in of_orders))
    for name, of_orders in zeros.items()
]
head = ("values", *(f"order {order + 1}" for order in ORDERS))
display(Table(head, rows, "Mean squares that became 0"))
beside("lost", measured=100 * sum(zeros["even"]) / len(ORDERS))

# %% [markdown]
# With evenly spaced values, more than a quarter of the mean squares become 0. Such a weight would be moved by $\eta\,m / \epsilon$, which is far too
# much. With the paper's values, fewer than one in twenty become 0, and these are the smallest ones of a block.
#
# ## The same arithmetic, three ways
#
# PyTorch has three implementations of AdamW. The *loop* goes over the tensors one by one. *foreach* makes one call for each operation on
# all tensors, and its temporaries are as large as the model. **fused** does the whole update in one kernel, so the numbers travel from and
# to memory only once.

# %%
# %%guess fused_times
# How many times faster is the fused update than the loop, on this device?
...

# %%
wide = replace(TINY, hidden_size=128, intermediate_size=384, num_layers=6)
ways = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
ready = {}
for name, options in ways.items():
    model = fresh(wide)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    ready[name] = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    ready[name].step()


def wait():
    """A GPU computes while Python goes on: wait for it before looking at the clock."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


# %%
best_seconds = dict.fromkeys(ways, float("inf"))
for turn in range(25):  # in turns; keep the best time of each
    for name, optimizer in ready.items():
        torch.manual_seed(turn)  # new gradients each time, the same for all three
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.normal_()
        wait()
        start = time.perf_counter()
        optimizer.step()
        wait()
        best_seconds[name] = min(best_seconds[name], time.perf_counter() - start)
assert best_seconds["fused"] < best_seconds["loop"]
if device.type == "cpu":
    assert best_seconds["foreach"] > 0.7 * best_seconds["loop"], "no faster"
rows = [(name, f"{1e3 * seconds:.2f} ms") for name, seconds in best_seconds.items()]
Table(("AdamW", "one update"), rows)

# %%
beside("fused_times", measured=best_seconds["loop"] / best_seconds["fused"])

# %% [markdown]
# On a CPU, foreach gains next to nothing. Each call still goes through the tensors one by one there, and it also writes its
# temporaries. foreach is made for GPUs, where it saves kernel launches. There it is also the default. You have to ask for fused.
#
# All three started with the same weights and gradients, and made the same steps. So their weights must be the same, except for differences
# in rounding:

# %%
from torch.nn.utils import parameters_to_vector

ends = {}
for name, optimizer in ready.items():
    ends[name] = parameters_to_vector(optimizer.param_groups[0]["params"]).detach()
for end in ends.values():
    torch.testing.assert_close(end, ends["loop"], rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## The optimizer inside backward
#
# AdamW updates each parameter on its own. So why wait until all gradients exist? You can update a parameter as soon as its gradient is
# complete, and free the gradient at once. PyTorch has a hook for that moment, and it takes only eight lines:


# %%
def step_inside_backward(model, **options):
    """An optimizer for each parameter, called by autograd."""
    optimizers = {p: torch.optim.AdamW([p], **options) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)


# %%
# %%guess times_weights
# fp32 training with AdamW holds weights, gradients and two moments: 4 times the size
# of the weights. With the hooks, what is this factor at the end of backward?
...

# %%
import gc

from workshop.measure import count_from_here, held_bytes


def held_after_backward(inside):
    """Bytes held at the end of the second backward, and the loss after it."""
    gc.collect()
    count_from_here()
    model, options = fresh(wide), {"lr": 1e-3, "betas": (0.9, 0.95), "fused": True}
    if inside:
        step_inside_backward(model, **options)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **options)
    tokens = torch.arange(16, device=device)[None]
    for _ in range(2):
        model(tokens, tokens).backward()
        held = held_bytes()
        if not inside:
            optimizer.step()
            optimizer.zero_grad()
    return held, model(tokens, tokens).item()


after, inside = held_after_backward(False), held_after_backward(True)
weights = 4 * sum(p.numel() for p in fresh(wide).parameters())
print(f"step after backward:  {after[0] / weights:.2f} times the weights")
print(f"step inside backward: {inside[0] / weights:.2f} times the weights")
assert abs(after[1] - inside[1]) < 1e-4  # the same loss after two steps
assert abs(after[0] / weights - 4) < 0.05
assert abs(inside[0] / weights - 3) < 0.05

# %%
beside("times_weights", predicted=3, measured=inside[0] / weights)

# %% [markdown]
# The training result is the same. The gradients are a quarter of the memory, and now they never all exist at once. How many of them do
# exist at once? To find out, we add a second hook that runs just before ours updates. At each call it adds up all gradients that exist:

# %%
model, alive = fresh(wide), []


def watch(_):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    alive.append(sum(gradient.nbytes for gradient in gradients))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(watch)
step_inside_backward(model, lr=1e-3, fused=True)
tokens = torch.arange(16, device=device)[None]
model(tokens, tokens).backward()
largest = max(parameter.nbytes for parameter in model.parameters())
print(f"gradients at once: at most {max(alive):,} bytes of {weights:,}")
print(f"the largest matrix:        {largest:,} bytes")
assert max(alive) == largest

# %% [markdown]
# Only one gradient exists at a time, so the gradients never take more memory than the largest matrix.
#
# **LOMO** is plain SGD inside backward (Lv et al., 2023). Table 1 of that paper shows how much memory LLaMA-7B takes in mixed precision
# with AdamW, with SGD and with LOMO. Weights and gradients take 2 bytes each there, and the fp32 master copy of the weights counts as part
# of the optimizer. What the paper calls GB are GiB, of $2^{30}$ bytes. Here are its numbers beside ours, which we work out from the bytes a
# parameter:

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

llama_7b = catalogue.model("llama-2-7b")  # it has the shapes of LLaMA-7B
params = llama_7b.num_params / 2**30
embedding = llama_7b.vocab_size * llama_7b.hidden_size / 2**30  # the largest matrix
table = {  # name: (worked out here, published)
    "weights": (2 * params, 12.55),
    "gradients, AdamW and SGD": (2 * params, 12.55),
    "gradients, LOMO": (2 * embedding, 0.24),
    "optimizer, AdamW": ((4 + 8) * params, 75.31),
    "optimizer, SGD": (4 * params, 25.10),
}
rows = []
for name, (counted, published) in table.items():
    rows.append((name, f"{counted:.2f}", f"{published:.2f}"))
    assert round(counted, 2) == published
adamw, lomo = (2 + 2 + 4 + 8) * params, 2 * params + 2 * embedding
sums = f"Together, without activations: AdamW {adamw:.0f} GiB, LOMO {lomo:.0f} GiB"
Table(("LLaMA-7B, GiB", "from the bytes a parameter", "published"), rows, note=sums)

# %% [markdown]
# All five agree to the last digit. (The activations come on top, and we did not count them.) LOMO saves most of its memory by having no state at
# all: it makes a plain SGD step on the 16-bit weights.
#
# Stepping inside backward has a price: nothing may need all gradients at the same time. So you cannot accumulate gradients over micro-batches, and
# you can clip by the global norm only with a second backward: LOMO runs one to find the norm, and another to update. (`workshop.train.in_backward`
# implements it for any optimizer.)
#
# ## At scale
#
# How much state is there for 70 billion parameters? We use the shapes of Llama 3 70B, because Adafactor's state depends on rows and
# columns:

# %% tags=["nbval-check-output"]
llama, sums = catalogue.model("llama-3-70b"), 0
for linear in llama.linears():
    sums += llama.num_layers * linear.copies * (linear.inputs + linear.outputs)
sums += 2 * (llama.vocab_size + llama.hidden_size)
state = {name: STATE[name].bytes_per_parameter() for name in ("adamw", "lion")}
billions = llama.num_params / 1e9
gigabytes = {name: per * billions for name, per in state.items()}
gigabytes |= {"adamw-8bit": blocks * billions, "adafactor": 4 * sums / 1e9}
assert 0.02 < gigabytes["adafactor"] < 0.2
assert gigabytes["adamw"] > 6 * catalogue.device("H100").memory_bytes / 1e9
rows = [(name, f"{size:.2f}") for name, size in gigabytes.items()]
Table((f"{billions:.0f} billion parameters", "GB of state"), rows)

# %% [markdown]
# AdamW's state alone fills more than six H100s of 84.9 GB. ZeRO divides this state among ranks (`24_zero`), and 8 bits cut it to a quarter.
#
# ## A slider that decides
#
# But how many GPUs does this save? In mixed precision there are also the weights and gradients in bf16, 2 + 2 bytes, and the fp32 master
# copy, 4 bytes (`13_memory_of_a_step`). Assume that the ranks share all of this evenly, and ignore the activations.

# %%
# %%guess gpus_8bit
# With AdamW in fp32, the weights, gradients, master copy and optimizer state of Llama
# 3 70B need 14 H100s. How many H100s are needed with AdamW in 8 bits?
...

# %% [markdown]
# Move `gpus` until AdamW in 8 bits fits. Then set `gpus` to 8, which is one node: **which optimizers fit on one node?** And which ones fit
# if you train without a master copy (`master` 0)?

# %%
sizes = [one.copies * one.inputs * one.outputs for one in llama.linears()]
inner = llama.num_layers * sum(sizes)
gigabytes["muon"] = (4 * inner + 8 * (llama.num_params - inner)) / 1e9
h100_gb = catalogue.device("H100").memory_bytes / 1e9


def draw(gpus, master):
    names = sorted(gigabytes, key=gigabytes.get)
    shared, room = (2 + 2 + master) * billions, gpus * h100_gb
    state = [gigabytes[name] for name in names]
    figure, axis = new_figure(6.8, 2.8)
    axis.barh(names, shared, color="#BBBBBB", label="weights, gradients, master copy")
    axis.barh(names, state, left=shared, color="#0072B2", label="optimizer's state")
    axis.axvline(room, color="black", linestyle=":")
    axis.set(xlabel=f"GB; dotted: {gpus} H100", xlim=(0, 1_400))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    fit = [name for name in names if shared + gigabytes[name] <= room]
    return Picture(figure, f"{gpus} H100 hold: {', '.join(fit) or 'none of them'}")


explore(draw, [Control("gpus", 4, range(1, 17)), Control("master", 4, (4, 0))])

# %% tags=["nbval-check-output"]
needed, rows = {}, []
for master in (4, 0):
    for name, state in sorted(gigabytes.items(), key=lambda item: -item[1]):
        needed[name, master] = math.ceil(((4 + master) * billions + state) / h100_gb)
    counts = [count for (_, of), count in needed.items() if of == master]
    rows.append((f"master copy of {master} bytes", *map(str, counts)))
assert needed["adamw", 4] == 14
assert 0.36 < 1 - (8 + blocks) / 16 < 0.38  # the share of all four that 8 bits save
assert [name for name in gigabytes if needed[name, 4] <= 8] == ["adafactor"]
assert needed["adamw-8bit", 0] <= 8 < needed["adamw", 0]
names = [name for name, of in needed if of == 4]
Table(("H100s needed", *names), rows)

# %%
beside("gpus_8bit", calculated=needed["adamw-8bit", 4])

# %%
draw(9, 4)

# %% [markdown]
# The answer is nine, and not a quarter of 14. 8 bits shrink only the optimizer state, and after that most of the memory is weights,
# gradients and master copy. On one node, only Adafactor fits. So the next thing to save is the master copy. (The last picture shows the
# slider at the answer, for pages without a running kernel.)
#
# ## Tomorrow's script
#
# This is what you would do with a new model: try two or three optimizers, each at its own rates, and compare the best run of each. If the best rate
# is the largest or the smallest that you tried, as for all three here, try further ones before you compare. The parameter groups are the usual ones.
# Matrices decay, and biases and norms do not. Muon gets the inner matrices, and AdamW gets the rest. For states in 8 bits, replace
# `torch.optim.AdamW` with `bitsandbytes.optim.AdamW8bit`.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/choose_optimizer.py
import torch
from torch import nn

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
RATES = {"sgd": (0.01, 0.03, 0.1), "adamw": (0.003, 0.01), "muon": (0.01, 0.03)}
STEPS = 100
x = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)).to(device)
y = x[:, :8].sum(dim=1, keepdim=True).sin()


def build(name, model, rate):
    """Matrices decay, vectors do not; Muon takes the matrices inside."""
    inner = [model[2].weight] if name == "muon" else []
    rest = [p for p in model.parameters() if all(p is not one for one in inner)]
    matrices = {"params": [p for p in rest if p.ndim > 1], "weight_decay": 0.01}
    vectors = {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0}
    if name == "sgd":
        return [torch.optim.SGD([matrices, vectors], lr=rate, momentum=0.9)]
    adamw = torch.optim.AdamW([matrices, vectors], lr=rate, betas=(0.9, 0.95))
    options = {"weight_decay": 0.01, "adjust_lr_fn": "match_rms_adamw"}
    return [adamw, torch.optim.Muon(inner, lr=rate, **options)] if inner else [adamw]


def train(name, rate):
    """The last loss, and bytes of state a parameter."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)  # yours
    optimizers = build(name, model, rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR
    schedules = [cosine(optimizer, STEPS) for optimizer in optimizers]
    for _ in range(STEPS):
        loss = (model(x) - y).square().mean()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    states = [state for one in optimizers for state in one.state.values()]
    kept = sum(v.nbytes for s in states for key, v in s.items() if key != "step")
    return loss.item(), kept / sum(p.numel() for p in model.parameters())


for name, rates in RATES.items():
    loss, kept, rate = min((*train(name, rate), rate) for rate in rates)
    print(f"{name}: {kept:.2f} bytes a parameter, best rate {rate}, loss {loss:.3f}")

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("15_optimizers")

# %% [markdown]
# ## What to take away
#
# - The state is the number of moments times the bytes of each. A parameter costs 8 bytes with AdamW, 4 with Lion, 2 in 8 bits, and nearly 0
#   with Adafactor. Muon: 4 for inner matrices, 8 for the rest.
# - 8-bit states follow AdamW's curve with a quarter of its bytes. Of weights, gradients, master copy and state together, they save little
#   more than a third.
# - More state does not by itself buy a lower loss: here Adafactor, with an eightieth of AdamW's, ended below it. Compare optimizers only at
#   rates that were tuned for each of them.
# - A fused optimizer does in one kernel what a loop does in many: the same numbers in less time.
# - Stepping inside backward frees each gradient as soon as it is used. It works if nothing needs all gradients at the same time.
#
# Next: [16_faster_step](16_faster_step.ipynb), why a step takes longer than it must. On day 2, `24_zero` divides this state.
#
# ## Sources
#
# - D. Kingma, J. Ba, *Adam*, 2014, [arXiv:1412.6980](https://arxiv.org/abs/1412.6980); I. Loshchilov, F. Hutter, *Decoupled Weight Decay Regularization*, 2017, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101).
# - X. Chen et al., *Symbolic Discovery of Optimization Algorithms* (Lion), 2023, [arXiv:2302.06675](https://arxiv.org/abs/2302.06675).
# - K. Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024, kellerjordan.github.io/posts/muon (the polynomial's
#   three numbers); J. Liu et al., *Muon is Scalable for LLM Training*, 2025, [arXiv:2502.16982](https://arxiv.org/abs/2502.16982).
# - N. Shazeer, M. Stern, *Adafactor*, 2018, [arXiv:1804.04235](https://arxiv.org/abs/1804.04235).
# - T. Dettmers et al., *8-bit Optimizers via Block-wise Quantization*, 2021, [arXiv:2110.02861](https://arxiv.org/abs/2110.02861).
# - K. Lv et al., *Full Parameter Fine-tuning for Large Language Models with Limited Resources* (LOMO), 2023,
#   [arXiv:2306.09782](https://arxiv.org/abs/2306.09782), table 1.
