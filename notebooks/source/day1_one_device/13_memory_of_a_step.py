# %% [markdown]
# # Where does the memory go?
#
# - **You need** `12_flops_and_mfu`; a training step in PyTorch.
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** the small model is trained here on one rank, with the same cells on CPU or GPU. The model of 7 billion parameters
#   is *rehearsed* here: its real code runs, but on tensors without bytes. One table comes from a cluster.
# - **Model and text:** `TINY`, four times as wide and twice as deep. At its own size, activations take nearly all the memory, and the
#   weights, gradients and optimizer state are too small to see beside them. Random bytes stand in for the text, because the memory that a
#   step takes does not depend on which tokens it reads.
# - **Links:** before this [12_flops_and_mfu](12_flops_and_mfu.ipynb), after it [14_mixed_precision](14_mixed_precision.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Most first attempts at a large run end with "out of memory". A model of 7 billion parameters takes 14 GB on disk, and a GPU has 80 GB. Why
# can you not train the model on that GPU? What else is in memory, and at which moments of the step? And which of it can you do without?

# %%
# %load_ext workshop
from dataclasses import replace

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes

folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% [markdown]
# ## Loading a model
#
# Start with only the weights, which is what you need to inspect a model or to run it. Each weight takes four bytes in fp32, and two bytes
# in fp16 or bf16.

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

names = {"7B": 7e9, "13B": 13e9, "70B": 70e9, "GPT-3": 175e9}
rows = [
    (name, f"{4 * params / 1e9:,.0f} GB", f"{2 * params / 1e9:,.0f} GB")
    for name, params in names.items()
]
Table(("weights of", "fp32", "16 bits"), rows)

# %% [markdown]
# Two units of memory are in use, and they differ by 7 %. A **GB** is $10^9$ bytes; disks and model files are measured in it. A **GiB** is $2^{30}$
# bytes; PyTorch's error messages and `nvidia-smi` count in powers of two. On an H100 "of 80 GB" a program can use 79.1 GiB. From here on, most sizes
# that have to fit into memory are in GiB, but some are round numbers in GB, so look at the unit.
#
# ## What training adds: state
#
# A training step needs a gradient for every weight. The optimizer also has a memory of its own: AdamW keeps a running mean of each gradient
# and a running mean of its square. In **mixed precision**, weights and gradients have 16 bits. In so few bits a small update would be lost. So
# the optimizer keeps a master copy of the weights in fp32 and updates this copy. The two running means, or *moments*, are always in fp32.

# %%
# %%guess mixed --choices less,same,more
# Mixed precision halves the weights and the gradients. Do weights, gradients and
# optimizer state together need less memory than in fp32, the same, or more?
...

# %% [markdown]
# ### Exercise: add it up


# %%
# %%exercise step_bytes
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    return ...


# %% tags=["nbval-check-output"]
seven = 7_000_000_000
gib = [round(seven * n / 2**30) for n in (4, 4, 8)]  # weights, gradients, moments
assert gib == [26, 26, 52]
assert sum(gib) == round(step_bytes(seven) / 2**30)
rows = []
for name, value_bytes in {"fp32": 4, "mixed precision": 2}.items():
    one, whole = (step_bytes(n, value_bytes=value_bytes) for n in (1, seven))
    rows.append((name, f"{one} bytes", f"{whole / 2**30:.0f} GiB"))
h100 = catalogue.device("H100").memory_bytes
billions = 8 * h100 / step_bytes(1) / 1e9
note = f"8 H100 hold the state of {billions:.0f} billion parameters"
Table(("weights, gradients and optimizer", "a parameter", "7B"), rows, note=note)

# %%
beside("mixed", calculated="same" if rows[0][1:] == rows[1][1:] else "less")

# %% [markdown]
# The result is **16 bytes a parameter** in both cases (Rajbhandari et al., 2020, section 3.1). Many trainers keep the gradients in fp32 in
# mixed precision too, because they add up many micro-batches or ranks; then it is 18. So the model of 14 GB needs 112 GB, which is 26 + 26
# + 52 GiB in fp32, not counting anything that depends on the tokens. Eight H100s that share the work perfectly can hold the state of about
# 40 billion parameters, and nothing else.

# %% [markdown]
# ## What training adds: activations
#
# Backward needs values that forward computed. To get the gradient of its weights, a linear layer needs its input. A norm needs its input,
# and a softmax needs its output. Everything that is kept for backward is an **activation**.
#
# Korthikanti et al. (2022, section 4) went through one GPT layer in 16 bits, with dropout, and listed what it keeps. With $s$ tokens, $b$
# sequences, width $h$ and $a$ heads, each of the following has $s\,b\,h$ values unless the table says otherwise:
#
# | kept for | what |
# |---|---|
# | two layer norms | the input of each |
# | queries, keys and values | their common input |
# | queries times keys | both |
# | probabilities times values | the values |
# | output projection, and the dropout after it | its input; a mask |
# | first layer of the MLP | its input |
# | GELU | its input, which is four times as wide |
# | second layer of the MLP | its input, which is also four times as wide |
# | dropout | a mask |
# | **attention core** | softmax's output, dropout's mask, dropout's output; each with $a s / h$ times as many values |
#
# A number takes 2 bytes, and an element of a mask takes 1.
#
# The attention core has $s \times s$ scores in each head, so its memory grows with the *square* of the sequence length.
#
# You do not have to keep all of this. **Activation checkpointing**, also called recomputation, discards activations in forward and computes
# them again in backward (Chen et al., 2016). *Full* recomputation keeps only the input of each layer. *Selective* recomputation discards
# only the attention core and computes it again; everything else stays.
#
# ### Exercise: what a layer keeps


# %%
# %%exercise activation_bytes
def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    return ...


# %% tags=["nbval-check-output"]
rows = []
for name in ("gpt3-6.7b", "gpt3-175b"):
    model = catalogue.model(name)
    sizes = []
    for recompute in ("none", "selective", "full"):
        width, heads = model.hidden_size, model.num_heads
        layer = activation_bytes(2_048, 1, width, heads, recompute)
        sizes.append(f"{model.num_layers * layer / 1e9:.1f} GB")
    rows.append((name, *sizes))
caption = "What all layers keep of one sequence of 2,048 tokens"
Table(("recompute", "none", "selective", "full"), rows, caption)

# %% [markdown]
# ## Checkpointing by hand
#
# Checkpointing takes only a dozen lines of code. In forward, the layer runs without recording anything for autograd, and we keep only its
# input. In backward, the layer runs once more, this time with recording, and the gradient is sent back through it. This second half is
# yours.
#
# ### Exercise: the second forward

# %%
# %%exercise recomputed_gradient
import torch


def recomputed_gradient(layer, x, gradient):
    """The gradient of x, from that of the output; the weights fill their .grad."""
    x = x.detach().requires_grad_()  # a fresh start: what came before is not recorded
    ...
    return ...


# %% [markdown]
# Your function is the heart of the following class. It tells autograd what to do in forward and what in backward. (The constants are further
# inputs of a layer that need no gradient, such as the angles of the positions in `TINY`.)

# %%
import torch


class Recompute(torch.autograd.Function):
    """Keep a layer's input; compute the rest again when backward comes to it."""

    @staticmethod
    def forward(ctx, layer, x, *constants):
        ctx.layer, ctx.constants = layer, constants
        ctx.save_for_backward(x)
        return layer(x, *constants)  # autograd records nothing inside a Function

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        of_x = recomputed_gradient(lambda x: ctx.layer(x, *ctx.constants), x, gradient)
        return None, of_x, *[None] * len(ctx.constants)


# %% [markdown]
# PyTorch needs only one line for this, `checkpoint(layer, x)`. The next cell runs the same layer in three ways: plain, with the class
# above (and so with your function), and with PyTorch's `checkpoint`.

# %% tags=["nbval-check-output"]
from torch.utils.checkpoint import checkpoint

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)
linears = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
layer = torch.nn.Sequential(torch.nn.LayerNorm(64), *linears).to(device)
x = torch.randn(32, 64, device=device)


def gradients(run):
    """Of the input and of every weight, after one backward."""
    layer.zero_grad()
    start = x.clone().requires_grad_()
    run(start).square().mean().backward()
    return [start.grad, *[parameter.grad.clone() for parameter in layer.parameters()]]


plain = gradients(layer)
by_hand = gradients(lambda x: Recompute.apply(layer, x))
by_torch = gradients(lambda x: checkpoint(layer, x, use_reentrant=False))
for one, two, three in zip(plain, by_hand, by_torch, strict=True):
    assert torch.equal(one, two)
    assert torch.equal(one, three)
print(f"{len(plain)} gradients, three ways: equal, bit for bit")
assert not Recompute.apply(layer, x).requires_grad  # x needs no gradient: a trap
assert checkpoint(layer, x, use_reentrant=False).requires_grad

# %% [markdown]
# `checkpoint` becomes selective if you give it a list of operators whose results are kept. Here the results of matrix products are kept,
# and the norm and the GELU are computed again. (`addmm` is a product that also adds a bias.)

# %% tags=["nbval-check-output"]
from functools import partial

from torch.utils.checkpoint import create_selective_checkpoint_contexts

products = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
contexts = partial(create_selective_checkpoint_contexts, products)
selective = partial(checkpoint, layer, use_reentrant=False, context_fn=contexts)
for one, other in zip(plain, gradients(selective), strict=True):
    assert torch.equal(one, other)
print("selective: the same gradients")

# %% [markdown]
# PyTorch's version does more than ours:
#
# - It restores the state of the random number generator, so that dropout drops the same values the second time.
# - It restores `autocast` (lesson 14), so that the layer computes in the same format the second time.
# - It works on an input that needs no gradient, for example a first layer on raw data. Our Function sees only its tensor arguments. If none
#   of them needs a gradient, autograd does not call its backward, and the layer's weights get no gradient, without an error. (PyTorch's older
#   version, `use_reentrant=True`, has the same trap.)
#
# ## A training step, whole
#
# Now we take a real model that is small enough to train here: `TINY` of lesson 12, made larger, with AdamW, for two steps. The training is
# one plain function, because we will run it in two ways, here and in a rehearsal. Its imports are inside the function, because a rehearsal
# runs it in a process of its own. The middle part of the function switches recomputation on. `"by hand"` uses the class from above, and
# `"full"` uses PyTorch's `checkpoint`. `"selective"` keeps the results of matrix products and of attention, which are expensive to compute
# again. The line `layer.forward = ...` wraps each layer in one of these, so the model's code stays unchanged.
#
# Our selective version discards what is cheap to compute. The paper's version discards the attention core. In the paper, attention was
# written out as separate operators and stored its scores, so discarding the core saved the most memory. Our attention is fused and never
# stores the scores, so there is no core to discard. What remains that is cheap to compute again are the norms and the activation functions.


# %%
def two_steps(recompute="none", accumulation=1, batch=4, lengths=(256, 256), **sizes):
    """Train a Llama, one step for each of `lengths`; `batch` sequences a step."""
    from dataclasses import replace
    from functools import partial

    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    from workshop.models.gpt import GPT, TINY

    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    wider = {"hidden_size": 256, "intermediate_size": 704, "num_layers": 4}
    heads = {"num_heads": 8, "num_kv_heads": 8}
    config = replace(TINY, **{**wider, **heads, **sizes})
    model = GPT(config).to(device)

    ops = torch.ops.aten  # our linear layers have no bias, so none of them calls addmm
    keep = [ops.mm.default, ops._scaled_dot_product_flash_attention_for_cpu.default]
    keep += [ops._scaled_dot_product_flash_attention.default]
    keep += [ops._scaled_dot_product_efficient_attention.default]
    ways = {"full": partial(checkpoint, use_reentrant=False)}
    contexts = partial(create_selective_checkpoint_contexts, keep)
    ways["selective"] = partial(ways["full"], context_fn=contexts)
    ways["by hand"] = lambda *given: Recompute.apply(*given)
    for layer in model.model.layers if recompute != "none" else []:
        layer.forward = partial(ways[recompute], layer.forward)

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for seq_len in lengths:
        for _ in range(accumulation):
            micro_batch = (batch // accumulation, seq_len)
            tokens = torch.randint(config.vocab_size, micro_batch, device=device)
            (model(tokens, tokens) / accumulation).backward()  # gradients add up
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# ## Predict
#
# **One: by formula.** `predict_memory` has a list of what each layer keeps, tensor by tensor, for any model. We have to tell it two things
# about our code. The norm is written out operator by operator, so it keeps more than a fused norm would. And AdamW is fused, so it needs no
# temporary memory of its own.

# %% tags=["nbval-check-output"]
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

shape = {"num_layers": 4, "hidden_size": 256, "num_heads": 8, "ffn_hidden_size": 704}
small = ModelSpec("TINY, wider", vocab_size=256, **shape)
ours = replace(implementation("torch"), norm="eager", step_room=0.0)


def predicted(recompute="none", accumulation=1):
    """The formula's answer for two_steps(recompute, accumulation)."""
    layout = Layout(precision="fp32", recompute=recompute)
    options = {"accumulation": accumulation, "implementation": ours}
    run = Run(small, "this-machine", layout, 4 // accumulation, 256, **options)
    return predict_memory(run)


expected = predicted()
state = step_bytes(small.num_params)
print(f"{small.num_params:,} parameters, state {format_bytes(state)}")
print(f"predicted peak {format_bytes(expected.peak_bytes)}")

# %%
# %%guess peak_moment --choices first,second
# We run two steps of forward, backward and optimizer. Which one needs more memory?
...

# %%
# %%guess saved --unit %
# Full recomputation keeps only the inputs of the layers. By how many percent does it
# lower the peak of this small model? (State and peak without it are printed above.)
...

# %% [markdown]
# **Two: by rehearsal.** `rehearse` runs the same function in a process of its own, on *fake* tensors: they have a shape and a type, but no bytes. It
# records every allocation. No formula stands in for the code, so nothing that the code does can be forgotten. There is one limit: this rehearsal runs
# the kernels of the CPU. Where a GPU would choose a different kernel, it may need a different amount of memory.

# %%
from workshop.rehearse import rehearse

rehearsed = rehearse(two_steps, world_size=1)
print(f"rehearsed peak {format_bytes(rehearsed.peak_bytes)}")

# %% [markdown]
# ## Run
#
# **Three: for real.** Now we run five variants, and one more run whose last step is longer. Each run is measured from its first tensor to
# its last. `measure` records each allocation, and finds out what it is used for by looking at which object holds it.

# %%
# %%torchrun -n 1 --pass two_steps,Recompute,recomputed_gradient --into measured
import gc

import torch

from workshop import report
from workshop.measure import count_from_here, measure

torch.set_num_threads(1)  # so that programs on the other cores disturb the timing less
variants = {
    "plain": {},
    "accumulation": {"accumulation": 4},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "by hand": {"recompute": "by hand"},
    "longer at last": {"lengths": (256, 256, 256, 384)},
}
watched = {}
for name, options in variants.items():
    gc.collect()  # free what the previous variant left behind
    count_from_here()
    with measure() as watched[name]:
        two_steps(**options)
report(**watched)

seconds = dict.fromkeys(variants, float("inf"))
del variants["longer at last"]
for _ in range(2):  # now only time them, in turns; keep the fastest step of each
    for name, options in variants.items():
        with measure(memory=False, traffic=False) as clock:
            two_steps(**options)
        fastest = min(step.total_seconds for step in clock.steps)
        seconds[name] = min(seconds[name], fastest)
report(seconds=seconds)

# %%
plain = measured[0].plain
show.memory_timeline(plain)

# %% [markdown]
# Read the picture from left to right. First the model is built. In forward, activations pile up layer by layer. In backward they are freed
# again, and the gradients grow in their place. The first optimizer step creates the two moments, and they stay. So the second step starts
# from a higher level, and it has the higher peak: **where the second step turns from forward to backward**.

# %%
first, second = plain.memory.step_peaks[:2]
print(f"first step: peak {format_bytes(first)}; second: {format_bytes(second)}")
assert second > 1.2 * first
beside("peak_moment", measured="second" if second > first else "first")

# %% [markdown]
# A run that survives its second step also survives the third, *if the third has the same shape*. A longer sequence makes a new peak. That
# is why runs on sequences of different lengths can fail after hours, and why you should try the longest batch first. Here are four steps,
# of which the last has sequences of 384 tokens:

# %%
peaks = measured[0]["longer at last"].memory.step_peaks
print("peak of each step:", ", ".join(map(format_bytes, peaks)))
assert abs(peaks[2] / peaks[1] - 1) < 0.01
assert peaks[3] > 1.1 * peaks[2]

# %% [markdown]
# ## Compare

# %%
show.memory_by_part({"predicted": expected, "rehearsed": rehearsed, "measured": plain})

# %%
peak = plain.memory.peak_bytes
rows = [
    (name, f"{size.peak_bytes:,} B", f"{100 * (size.peak_bytes / peak - 1):+.2f} %")
    for name, size in {"predicted": expected, "rehearsed": rehearsed}.items()
]
rows.append(("measured", f"{peak:,} B", ""))
assert abs(rehearsed.peak_bytes / peak - 1) < 0.005
assert abs(expected.peak_bytes / peak - 1) < 0.06
parts = plain.memory.peak_parts
assert 0 < parts["gradients"] < parts["weights"] / 4
Table(("", "peak", "off the measured"), rows)

# %% [markdown]
# The totals agree, but the parts do not quite agree. The measured peak comes a moment after the turn: the first gradients already exist,
# and the activations that were needed for them are gone. The formula counts all the activations of forward, and adds tensors that live only
# for a moment in backward (*temporaries*). So its result is a little too high.
#
# The formula comes within a few percent of the measurement. The rehearsal matches it, because it runs the same code. So you can trust the
# rehearsal for a model that you cannot run, and below we do that.
#
# ## What can you do without?
#
# The next picture shows four of the variants with the same vertical axis:

# %%
names = ("plain", "accumulation", "selective", "full")
show.memory_timelines({name: measured[0][name] for name in names})

# %%
seconds = measured[0].seconds
peaks = {name: measured[0][name].memory.peak_bytes for name in (*names, "by hand")}
rows = []
for name, size in peaks.items():
    flops = measured[0][name].flops / plain.flops
    slower = seconds[name] / seconds["plain"]
    rows.append((name, format_bytes(size), f"{flops:.2f}×", f"{slower:.2f}×"))
assert peaks["full"] < peaks["selective"] < peaks["plain"]
assert peaks["accumulation"] < peaks["plain"]
assert abs(peaks["by hand"] / peaks["full"] - 1) < 0.05
assert measured[0].selective.flops == plain.flops < measured[0].full.flops
assert measured[0].full.flops < measured[0]["by hand"].flops
Table(("", "peak", "FLOPs", "time of a step"), rows)

# %%
beside(
    "saved",
    predicted=100 * (1 - predicted("full").peak_bytes / predicted().peak_bytes),
    measured=100 * (1 - peaks["full"] / peaks["plain"]),
)

# %% [markdown]
# - **Gradient accumulation** cuts the batch into four micro-batches, one after another. Their gradients add up in `.grad`, and the
#   optimizer makes the same step. Only a quarter of the activations exist at a time, and no FLOPs are added. (There are two costs: the
#   gradients now stay in memory during forward, and small products are less efficient.)
# - **Selective** checkpointing, as we do it, computes norms and activation functions again. These are not matrix products, so the count of
#   FLOPs does not change.
# - **Full** checkpointing keeps next to nothing and runs the forward pass of every layer again. Forward is a third of a step's FLOPs, so
#   the layers cost a third more. (The head is not repeated.) Look at its picture: the activations are gone, and what is left at the peak is
#   a single layer that is being computed again in backward. The measurement calls that part temporaries.
# - **By hand** is also full recomputation, and it costs a little more because it computes the *whole* layer again. PyTorch stops as soon as
#   it has the last tensor that backward needs, so it skips the layer's last product.
#
# The last column is specific to this machine and changes from run to run. On a CPU it takes time to get fresh memory, so a variant that
# needs less of it can even be faster. The FLOPs column is the one that carries over to a GPU.
#
# ### Exercise: how large may the micro-batch be?
#
# The number of sequences in one step is given, because it is chosen for good training. What you can still choose is how many of them go
# through the model at once.


# %%
# %%exercise largest_micro_batch
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = ...
    fitting = ...  # as many as there is room for
    ...
    return ...


# %% [markdown]
# Next we use three of your functions together: GPT-3's smaller sisters on one H100, in mixed precision, with a batch of 512 sequences of
# 2,048 tokens. At the peak of the loss, a logit takes 12 bytes. These are three fp32 numbers: the log probability, its gradient, and the
# logit's gradient.

# %%
# %%guess helps --choices none,selective,full,nothing
# What is the least recomputation with which the model of 6.7 billion parameters trains
# on one H100 of 80 GB, one sequence at a time: none, selective, full? Or does nothing
# help? You know what its weights, gradients and optimizer need.
...

# %% tags=["nbval-check-output"]
largest, rows = {}, []
for name in ("gpt3-760m", "gpt3-2.7b", "gpt3-6.7b"):
    model = catalogue.model(name)
    state = step_bytes(model.num_params, value_bytes=2)
    logits = 12 * 2_048 * model.vocab_size
    for recompute in ("none", "selective", "full"):
        width, heads = model.hidden_size, model.num_heads
        layer = activation_bytes(2_048, 1, width, heads, recompute)
        layers = model.num_layers
        fits = largest_micro_batch(h100, state, layer, layers, logits, 512)
        largest[name, recompute] = fits
    fitting = (f"{largest[name, how]}" for how in ("none", "selective", "full"))
    rows.append((name, format_bytes(state), *fitting))
assert largest["gpt3-2.7b", "full"] == 16 * largest["gpt3-2.7b", "none"]
assert not any(largest["gpt3-6.7b", how] for how in ("none", "selective", "full"))
caption = "Sequences at once, by what is computed again"
Table(("", "state", "none", "selective", "full"), rows, caption)

# %%
beside("helps", calculated="nothing")

# %% [markdown]
# For 2.7 billion parameters, recomputation decides whether one sequence goes through at a time or sixteen. For 6.7 billion nothing helps,
# because the state alone is too large, and recomputation does not touch it. An optimizer that keeps less helps (`15_optimizers`), and so do
# devices that *share* the state (day 2). These results are a little too optimistic, because they leave out the tensors that live only for a
# moment in backward.
#
# ## At scale: a model that does not fit here
#
# Now for the question at the top: why can you not train 7 billion parameters on this GPU? We rehearse the same function, with the sizes of
# Llama 7B and one sequence of 4,096 tokens.

# %%
llama = catalogue.model("llama-7b")
sizes = {
    "batch": 1,
    "lengths": [4_096, 4_096],
    "vocab_size": llama.vocab_size,
    "hidden_size": llama.hidden_size,
    "num_layers": llama.num_layers,
    "num_heads": llama.num_heads,
    "num_kv_heads": llama.num_kv_heads,
    "intermediate_size": llama.ffn_hidden_size,
}
seven_rehearsed = rehearse(two_steps, world_size=1, keywords=sizes)
fp32 = Layout(precision="fp32")
seven_expected = predict_memory(Run(llama, "H100", fp32, 1, 4_096, implementation=ours))
cases = {"predicted": seven_expected, "rehearsed": seven_rehearsed}
show.memory_by_part(cases, cap=seven_expected.capacity)

# %%
needed, used = seven_rehearsed.peak_bytes, seven_rehearsed.child_peak_bytes
print(f"rehearsed {format_bytes(needed)}, in {format_bytes(used)} of memory here")
print(f"predicted {format_bytes(seven_expected.peak_bytes)}")
print(f"an H100 has {format_bytes(seven_expected.capacity)}")
assert abs(seven_expected.peak_bytes / needed - 1) < 0.06
assert needed > 1.3 * seven_expected.capacity
assert step_bytes(llama.num_params) * 3 / 4 > 0.9 * seven_expected.capacity

# %% [markdown]
# This answers the question at the top. The weights and the two moments alone take nearly the whole device. The activations of a single sequence would
# take half a device more. The gradients do not exist yet at this peak, but they would take a third.
#
# ## A slider that decides
#
# Take a smaller model: Llama 3.2 1B on one H100, in fp32, one sequence at a time. **How long may the sequence be?**

# %%
# %%guess longest
# Llama 3.2 1B, one H100, fp32, one sequence, full recomputation. What is the longest
# sequence that fits, as a power of two (8192, 16384, 32768, ...)?
...

# %% [markdown]
# Move `seq_len` and `recompute`, and watch which part grows. The title shows what the driver would report, which is more than the bytes of the
# tensors (see *On a GPU*), and a range: of ten programs that nobody has described to the predictor, eight need an amount inside it. For our own
# code the formula is much closer, as you have seen. Without widgets you see only the first picture; the answer follows below.

# %%
from workshop.jupyter.widgets import memory_explorer


def one_h100(recompute, seq_len):
    layout = Layout(precision="fp32", recompute=recompute)
    return Run("llama-3.2-1b", "1xH100", layout, 1, seq_len, implementation=ours)


memory_explorer(one_h100("none", 4_096), only=("seq_len", "recompute"))

# %% tags=["nbval-check-output"]
longest, needs = {}, {}
for recompute in ("none", "full"):
    for seq_len in [2**power for power in range(12, 18)]:
        needs[recompute, seq_len] = predict_memory(one_h100(recompute, seq_len))
        if needs[recompute, seq_len].fits:
            longest[recompute] = seq_len
for recompute, length in longest.items():
    print(f"recompute {recompute:<5} longest sequence that fits {length:>6,}")
assert longest["full"] == 4 * longest["none"]

# %%
cases = [("none", 8_192), ("none", 16_384), ("full", 32_768), ("full", 65_536)]
bars = {f"{how}, {length:,}": needs[how, length] for how, length in cases}
show.memory_by_part(bars, cap=needs["full", 32_768].capacity, compare=False)

# %% [markdown]
# You may have no H100 here, so we use a rehearsal to check that the answer fits. That twice the length does not fit is shown only by the
# formula:

# %%
one = catalogue.model("llama-3.2-1b")
sizes |= {
    "recompute": "full",
    "lengths": [longest["full"]] * 2,
    "vocab_size": one.vocab_size,
    "hidden_size": one.hidden_size,
    "num_layers": one.num_layers,
    "num_heads": one.num_heads,
    "num_kv_heads": one.num_kv_heads,
    "intermediate_size": one.ffn_hidden_size,
    "tied": True,
}
checked = rehearse(two_steps, world_size=1, keywords=sizes)
off = needs["full", longest["full"]].peak_bytes / checked.peak_bytes - 1
print(f"rehearsed {format_bytes(checked.peak_bytes)}; the prediction: {off:+.1%}")
assert abs(off) < 0.06
assert checked.peak_bytes < needs["full", longest["full"]].capacity
twice = needs["full", 2 * longest["full"]]
over = twice.peak_bytes / twice.capacity
print(f"twice the length takes {over:.1f} times what the device has")
assert over > 1.3
copies = 2 * 4 * longest["full"] * one.hidden_size  # of keys and values, in fp32
assert copies == 512 * 2**20 < 0.01 * checked.peak_bytes
assert 4 * one.num_heads * longest["full"] ** 2 == 128 * 2**30  # every score
beside("longest", calculated=longest["full"])

# %% [markdown]
# With full recomputation the sequence can be four times as long, and that is the limit. Look at what is left in the two lower bars:
# **logits and loss**. The vocabulary has 128,256 entries, and every token has a logit for each of them. Recomputation inside the layers
# does not change that. For longer sequences, the loss has to be computed piece by piece, as you will do in `16_faster_step`.
#
# (A GPU has to take a detour here. Four query heads share one key head, and in fp32 its fused attention cannot do that, up to torch 2.13. Storing
# every score instead would take 128 GiB a layer. So our model gives every query head its own copy of keys and values there: 512 MiB a layer,
# less than a hundredth of the peak. The answer stands.)
#
# ## On a GPU: three numbers that differ
#
# So far, all bytes were bytes of tensors. On a GPU you will see three larger numbers:
#
# | number | who counts | what it is |
# |---|---|---|
# | allocated | `torch.cuda.memory_allocated()` | bytes of live tensors |
# | reserved | `torch.cuda.memory_reserved()` | what PyTorch's **caching allocator** has taken from the driver, to hand out again |
# | used | `nvidia-smi`, `torch.cuda.mem_get_info()` | reserved, plus the CUDA context and libraries, plus other processes |
#
# Not everything that is allocated is one of your tensors. cuBLAS allocates workspaces for its products and keeps them. On an H100 or H200 they take
# 32 MiB for each stream that multiplies (to be exact, for each cuBLAS handle and stream). They do not belong to any tensor of yours, and `measure`
# leaves them out.
#
# What is *reserved* depends on more than sizes. When a tensor is freed, its block of memory stays reserved. That is fast, but the block can
# only be reused for something that fits into it. Here is the worst case, by hand:

# %% tags=["nbval-check-output"]
import re

memory = "AABBCCDDEEFFGGHH"  # sixteen places, eight tensors of two places each
memory = re.sub("[ACEG]", ".", memory)  # every second tensor is freed
free, longest_hole = memory.count("."), max(map(len, re.findall(r"\.+", memory)))
print(memory)
print(f"{free} of 16 places are free, at most {longest_hole} in a row: 3 do not fit")
assert (free, longest_hole) == (8, 2)

# %% [markdown]
# That is **fragmentation**: "out of memory" although enough memory is free. In PyTorch's error message, it shows in the line "reserved by
# PyTorch but unallocated". `PYTORCH_ALLOC_CONF=expandable_segments:True` helps: the allocator then maps pages into large segments that can
# grow, instead of many blocks of fixed size.
#
# Can it happen in your training? `rehearse` tells you what a program would reserve, if you tell it that there are GPUs (`pretend_cuda`). Take
# a program that trains on two batches, the first as long as the second or shorter:

# %%
# %%guess shorter_first --choices less,same,more
# One run has batches of 5,000 and 5,000 rows, the other of 3,000 and then 5,000. Both
# have the same peak. Does the run with the shorter first batch end with less memory
# reserved, with the same, or with more?
...


# %%
def two_batches(lengths):
    """Ten frozen layers and a small one that learns, on batches of so many rows."""
    import torch

    layers = (torch.nn.Linear(4_096, 4_096) for _ in range(10))
    frozen = torch.nn.Sequential(*layers).requires_grad_(False).to("cuda")
    learns = torch.nn.Linear(4_096, 64, device="cuda")
    optimizer = torch.optim.AdamW(learns.parameters())
    for rows in lengths:
        x = torch.randn(rows, 4_096, device="cuda")
        learns(frozen(x)).square().mean().backward()
        optimizer.step()


idle, rows = {}, []
for lengths in ((5_000, 5_000), (3_000, 5_000), (5_000, 3_000)):
    how = {"keywords": {"lengths": lengths}, "pretend_cuda": True}
    seen = rehearse(two_batches, 1, **how)
    idle[lengths] = seen.reserved_bytes - seen.peak_bytes
    both = seen.peak_bytes, seen.reserved_bytes
    sizes_mb = [f"{size / 1e6:,.0f} MB" for size in both]
    rows.append((f"{lengths[0]:,}, then {lengths[1]:,}", *sizes_mb))
assert idle[3_000, 5_000] > idle[5_000, 5_000] + 80 * 2**20
assert idle[3_000, 5_000] > idle[5_000, 3_000] + 80 * 2**20
display(Table(("rows of the batches", "allocated", "reserved"), rows))
beside("shorter_first", calculated="more")

# %% [markdown]
# In the first case, the second batch of 5,000 rows reuses the blocks of the first batch. In the second case, the blocks for 3,000 rows are
# too small for 5,000 rows, so they stay reserved but unused. In the other order, as in the third case, that does not happen. This is another
# reason to begin with the longest batch.
#
# ### Can you trust these numbers on a real GPU?
#
# A formula gives you the peak, but it cannot tell which blocks are free at that moment. So for what is reserved, the workshop's formula adds an
# average of published runs. A rehearsal sees every tensor come and go, in the right order. It can therefore apply the rule of the allocator
# itself: take the smallest free block that is large enough, or else a new one. We measured both numbers on an H200, for 30 shapes: models of
# 125 million to 3 billion parameters, in fp32 and bf16, with and without recomputation. How far off are the two?

# %% tags=["nbval-check-output"]
import json
from statistics import median

from workshop.facts.tree import ROOT

record = ROOT / "data" / "measurements" / "gpu" / "memory.json"
shapes = json.loads(record.read_text())["parts"].values()
errors, rows = {}, []
for way, name in {"closed form": "formula", "rehearsal": "rehearsal"}.items():
    cells = []
    for what in ("allocated", "reserved"):
        off = sorted(
            100 * abs(line["predicted"] / line["measured"] - 1)
            for shape in shapes
            for line in shape["rows"]
            if line["what"] == f"{what}, beside the {way}"
        )
        errors[what, way] = off
        cells += [f"{median(off):.2f} %", f"{off[-1]:.2f} %"]
    rows.append((name, *cells))
    assert len(errors["allocated", way]) == len(errors["reserved", way]) == 30
    assert median(errors["allocated", way]) < 0.1
    assert errors["allocated", way][-1] < 1
assert median(errors["reserved", "closed form"]) > 5
assert median(errors["reserved", "rehearsal"]) < 0.2
assert errors["reserved", "rehearsal"][-2] < 1 < errors["reserved", "rehearsal"][-1] < 6
head = ("off the measured", "allocated, median", "worst", "reserved, median", "worst")
Table(head, rows)

# %% [markdown]
# What is allocated, both predict to less than a tenth of a percent in the median and to one percent in the worst case. (A rehearsal has no
# workspaces of cuBLAS, so they are added.) What is reserved, only the rehearsal predicts. Its rule is a short program
# (`workshop.predict.memory.allocator`), and nothing in it was fitted to the measurements. Of the 30 shapes, 29 are within one percent. The last
# one is 5 % too high: many of its blocks have the same size, and which of them is taken depends on their addresses, which come from the driver.
#
# ### What holds the memory?
#
# If you have to find out what holds the memory on a GPU, record it. This takes three calls. The last one ends the recording, because recording costs
# time with every allocation. A web page then draws the recorded file (https://pytorch.org/memory_viz):

# %%
if torch.cuda.is_available():
    torch.cuda.memory._record_memory_history()
    kept = torch.ones(2**20, device="cuda")
    torch.cuda.memory._dump_snapshot(launch.Session.get().directory / "memory.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    left, total = torch.cuda.mem_get_info()
    print("allocated", format_bytes(torch.cuda.memory_allocated()))
    print("reserved ", format_bytes(torch.cuda.memory_reserved()))
    print("used     ", format_bytes(total - left))
else:
    print("no GPU here: a CPU's allocator keeps no such counts")

# %% [markdown]
# ## The same on 8 and on 64 GPUs
#
# Korthikanti et al. measured recomputation on A100s: a 22B model on 8 of them and GPT-3 on 64, with tensor parallelism over $t = 8$ ranks (each
# matrix is cut into $t$ parts, one for each rank). This is what a layer then keeps (their table 2), in bytes for each of the $s\,b\,h$ values:
#
# | | |
# |---|---|
# | none | $10 + 24/t + 5as/(ht)$ |
# | sequence parallel | $(34 + 5as/h)/t$ |
# | selective | $10 + 24/t$ |
# | sequence parallel and selective | $34/t$ |
# | full | $2$ |
#
# Sequence parallelism is explained in `31_tensor_parallel`; here it is only a line in the table. The next cell shows the predicted values
# beside the published ones (their figure 7):

# %% tags=["nbval-check-output"]
from workshop.facts.published import published_table

rows = published_table("korthikanti_2022_seqpar_selective")
NAMES = {"none": "none", "full": "full", "sel": "selective"}
NAMES |= {"seq": "sequence parallel", "seqsel": "sequence parallel and selective"}
t, worst, cases = 8, 0.0, []
for row in rows:
    if not row["table"].startswith("Figure 7"):
        continue
    heads, length = int(row["attention_heads"]), int(row["seq_len_tokens"])
    core = 5 * heads * length / int(row["hidden_size"])
    kept = {
        "none": 10 + 24 / t + core / t,
        "seq": (34 + core) / t,
        "sel": 10 + 24 / t,
        "seqsel": 34 / t,
        "full": 2,
    }
    share = 100 * kept[row["mode"]] / kept["none"]
    published = float(row["activations_percent_of_none"])
    worst = max(worst, abs(share - published))
    case = row["model"], NAMES[row["mode"]]
    cases.append((*case, f"{share:.2f} %", f"{published:.2f} %"))
assert worst < 0.1
Table(("model", "recomputation", "predicted", "published"), cases)

# %% [markdown]
# And the time? We compare full recomputation with sequence parallelism plus selective recomputation, which fits on the same devices (their
# table 5):

# %% tags=["nbval-check-output"]
timed = [row for row in rows if row["iteration_time_s"]]
seconds = {(row["model"], row["mode"]): float(row["iteration_time_s"]) for row in timed}
lines = []
for name in ("megatron-22B", "gpt3-175B"):
    full, selective = seconds[name, "full"], seconds[name, "seqsel"]
    longer = full / selective - 1
    assert 0.2 < longer < 0.45
    lines.append((name, f"{full:.2f} s", f"{selective:.2f} s", f"{longer:.0%}"))
head = ("one step", "full", "sequence parallel and selective", "full takes longer by")
Table(head, lines)

# %% [markdown]
# The authors put the price of full recomputation at 30 to 40 % of the time, compared with no recomputation at all. The count of FLOPs predicts a
# third: one more forward, on top of a step that costs as much as three. The numbers above compare with selective recomputation and sequence
# parallelism instead. Sequence parallelism and selective recomputation together bring the activations below a fifth, without that price. So try
# these first, and full checkpointing of every layer last.
#
# ## Tomorrow's script
#
# Where does *your* memory go? This loop answers the question on a CPU or a GPU, without this workshop. It adds up the bytes of weights,
# gradients and moments. It also counts what forward keeps for backward: `saved_tensors_hooks` calls a function for every tensor that is
# kept. It trains once without checkpointing and once with `checkpoint`, and the losses are the same. On a GPU it also prints the peak of
# the allocator.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/where_memory_goes.py
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")


def train(recompute, steps=10):
    """Bytes by part at the end of backward, what forward kept, and the last loss."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 192, 0.0) for _ in range(4)]  # yours
    model = nn.ModuleList(layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(64, 16, 64, device=device)  # sequence, batch, width
    for _ in range(steps):
        optimizer.zero_grad()
        kept = {}

        def keep(tensor, kept=kept):
            storage = tensor.untyped_storage()  # views of one storage count once
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            y = x
            for layer in model:
                y = checkpoint(layer, y, use_reentrant=False) if recompute else layer(y)
            loss = (y - x.flip(0)).square().mean()
        loss.backward()
        optimizer.step()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    moments = [v for state in optimizer.state.values() for v in state.values()]
    parts = {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters()),
        "moments": sum(moment.nbytes for moment in moments),
        "activations": sum(size for at, size in kept.items() if at not in weights),
    }
    return parts, loss.item()


for way in ("plain", "checkpoint"):
    parts, loss = train(way == "checkpoint")
    listed = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in parts.items())
    print(f"{way}: {listed}, loss {loss:.4f}")
    if device.type == "cuda":
        print(f"allocator's peak {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")
        torch.cuda.reset_peak_memory_stats()

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("13_memory_of_a_step")

# %% [markdown]
# ## What to take away
#
# - Training with AdamW takes **16 bytes a parameter**, in fp32 and in mixed precision. 7B: 26 + 26 + 52 = 104 GiB.
# - Activations come on top. They grow with the micro-batch and the sequence. From the second step on, the peak is where forward turns to
#   backward. A longer sequence makes a new peak.
# - **Accumulation** cuts the batch, so fewer activations exist at once; it costs no FLOPs. **Selective** recomputation discards what is cheap to
#   compute (the paper discards the attention core). **Full** recomputation keeps only the layers' inputs, and costs up to a third more FLOPs.
# - None of these reduces the state. If the state does not fit, the optimizer must keep less, or ranks must share the state.
# - You can know the peak before you rent: from a formula to a few percent, from a rehearsal almost to the byte.
# - On a GPU, allocated < reserved < used. If you run out of memory although enough is free, that is fragmentation. What is reserved depends
#   on the order in which tensors come and go.
#
# Next: [14_mixed_precision](14_mixed_precision.ipynb), the same in 16 bits. On day 2 the state is divided, in `24_zero` and `25_fsdp`.
#
# ## Sources
#
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020, [arXiv:1910.02054](https://arxiv.org/abs/1910.02054),
#   section 3.1.
# - V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198): equation 1,
#   tables 2 and 5, figure 7. Their figures as quoted in github.com/calculon-ai/calculon, `calculon/llm/validation.py`.
# - T. Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174).
# - P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740) (the fp32 master copy).
# - T. Dao et al., *FlashAttention*, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135).
# - PyTorch documentation: `torch.utils.checkpoint`; *CUDA semantics*, "Memory management" and `expandable_segments`; *Understanding
#   CUDA Memory Usage* (`_record_memory_history`, `_dump_snapshot`).
