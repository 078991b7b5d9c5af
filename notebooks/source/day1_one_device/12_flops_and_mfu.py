# %% [markdown]
# # How long will it take?
#
# - **You need** `00_welcome` (what a rank is); a training step in PyTorch.
# - **It takes** 45 minutes to read and try, under half a minute to run.
# - **What runs where:** counting and timing run here, with the same cells on CPU or GPU. The part about large runs is arithmetic, and we compare its
#   results with published runs. The tables of an H200 were measured there and stored.
# - **Model and text:** `TINY`, the small Llama that the lessons of days 1 to 5 share, on its text, Python's reference manual. For one
#   measurement we also make it four times as wide, so that its matrix products are larger.
# - **Links:** before this [11_numbers_and_tensors](11_numbers_and_tensors.ipynb), after it [13_memory_of_a_step](13_memory_of_a_step.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Suppose you are asked to train a model of 70 billion parameters on 15 trillion tokens, and you have 1,024 GPUs. Will that take a week, a
# season or a year? You can work this out before you rent the first GPU, from three numbers: how much arithmetic the training needs, how
# fast the devices are, and what share of that speed you really reach.

# %%
# %load_ext workshop
from dataclasses import replace
from functools import partial

import torch

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.measure import measure

folder = launch.Session.get().directory  # private; deleted when the kernel ends
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
on_cpu = device.type == "cpu"
torch.set_num_threads(1)  # so that programs on the other cores disturb the timing less

# %% [markdown]
# ## How much arithmetic?
#
# Nearly all of the arithmetic is in matrix products. A product of $(m, k)$ by $(k, n)$ computes $mn$ numbers, and each of them takes $k$
# multiplications and $k$ additions. So the product costs $2mkn$ **FLOPs**, floating-point operations.
#
# Take two layers without biases. A batch of $B$ vectors goes through a $D \times D$ matrix, a ReLU, and a $D \times K$ matrix:
#
# $$\text{forward} = 2BD^2 + 2BDK = 2\,(BD^2 + BDK)$$
#
# For each product in forward, backward needs two. One gives the gradient of the weights. The other gives the gradient of the input, which
# backward passes on to the previous layer.

# %%
# %%guess backward --choices less,twice,more
# For these two layers, does backward cost twice as much as forward, or less, or more?
# Look at the first layer: does anything need the gradient of its input?
...

# %% [markdown]
# `measure` watches every operator that PyTorch calls, and adds up the FLOPs of the products.

# %% tags=["nbval-check-output"]
B, D, K = 32, 256, 64
forward_by_hand = 2 * (B * D**2 + B * D * K)
backward_by_hand = 2 * (B * D**2 + 2 * B * D * K)

batch = torch.randn(B, D, device=device)
first = torch.nn.Linear(D, D, bias=False, device=device)
second = torch.nn.Linear(D, K, bias=False, device=device)
with measure(memory=False) as forward:
    loss = second(first(batch).relu()).sum()
with measure(memory=False) as backward:
    loss.backward()
assert forward.flops == forward_by_hand
assert backward.flops == backward_by_hand
rows = [
    ("forward", f"{forward_by_hand:,}", f"{forward.flops:,}"),
    ("backward", f"{backward_by_hand:,}", f"{backward.flops:,}"),
]
Table(("FLOPs", "by hand", "counted"), rows)

# %%
word = "less" if backward.flops < 2 * forward.flops else "twice"
beside("backward", predicted="less", measured=word)

# %% [markdown]
# Both counts match exactly. The first layer skips one of its two products in backward, because nothing needs the gradient of the input
# data. In a deep model that is one product out of hundreds, so we ignore it. What remains is a rule that is easy to remember (Kaplan et
# al., 2020):
#
# > **2 FLOPs a parameter and token forward, 4 backward, 6 in all.**
#
# ## Does the rule hold for a language model?
#
# Here is `TINY`, the small Llama that you will meet in nearly every lesson from now on. It reads Python's reference manual. Each token is
# one byte, so the vocabulary has 256 entries. We count one layer by hand. It has four products around attention, two products in the
# attention core, and three in the gated MLP. There are 2 heads for keys and values but 4 for queries, so the products for keys and values
# are half as wide.

# %% tags=["nbval-check-output"]
from workshop.models.gpt import GPT, TINY

BATCH, SEQ_LEN = 4, 256
LAYERS, HIDDEN, MLP = TINY.num_layers, TINY.hidden_size, TINY.intermediate_size
kv_width = HIDDEN * TINY.num_kv_heads // TINY.num_heads

layer = {  # FLOPs for one token
    "queries": 2 * HIDDEN * HIDDEN,
    "keys and values": 2 * 2 * HIDDEN * kv_width,
    "queries x keys": 2 * SEQ_LEN * HIDDEN,
    "probabilities x values": 2 * SEQ_LEN * HIDDEN,
    "output projection": 2 * HIDDEN * HIDDEN,
    "gate and up": 2 * 2 * HIDDEN * MLP,
    "down": 2 * MLP * HIDDEN,
}
head = 2 * HIDDEN * TINY.vocab_size
a_token = LAYERS * sum(layer.values()) + head
rows = []
for name, flops in {**layer, "head": head}.items():
    times = 1 if name == "head" else LAYERS
    rows.append((name, f"{times}", f"{flops:,}", f"{times * flops / a_token:.1%}"))
note = f"together {a_token:,} FLOPs a token, forward"
Table(("product", "times", "FLOPs a token", "share"), rows, note=note)

# %% [markdown]
# Now we run the real model: first the forward pass alone, and then a whole step.

# %%
# %%guess rule --choices less,two,more
# How many FLOPs does TINY's forward pass cost for each parameter and token: clearly
# less than two, about two, or clearly more? Think of parameters that are in no product,
# and of products in the table that use no parameter.
...

# %%
from workshop.models.text import TextBatches

torch.manual_seed(0)
model = GPT(TINY).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
((tokens, targets),) = TextBatches(seq_len=SEQ_LEN, global_batch=BATCH).step(0, device)


def one_step(model, optimizer, tokens, targets):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=not on_cpu):
        loss = model(tokens, targets)
    loss.backward()
    optimizer.step()


with torch.no_grad(), measure(memory=False) as forward:
    model(tokens)
with measure(model, optimizer, memory=False) as step:
    one_step(model, optimizer, tokens, targets)

# %%
N, num_tokens = sum(p.numel() for p in model.parameters()), BATCH * SEQ_LEN
backward_flops = step.flops - forward.flops
counted = {"forward": (forward.flops, 2), "backward": (backward_flops, 4)}
rows = [
    (name, f"{flops:,}", f"{flops / (N * num_tokens):.2f}", f"{rule}")
    for name, (flops, rule) in counted.items()
]
core = layer["queries x keys"] + layer["probabilities x values"]
assert forward.flops == num_tokens * a_token
assert round(forward.flops / (N * num_tokens), 2) == 2.74
assert backward_flops - 2 * forward.flops in (0, num_tokens * LAYERS * core / 2)
display(Table(("", "FLOPs", "a parameter and token", "the rule"), rows))
beside("rule", measured="more")

# %% [markdown]
# The count for forward is exact. But it is 2.74 FLOPs a parameter and token, not 2.00. There are two reasons why the rule does not fit
# here:
#
# - The **embedding** has parameters but costs no FLOPs, because a look-up is not a product. (The output head is a product, and it counts.)
# - The **attention core** costs FLOPs but has no parameters. For each token, its cost grows with the length of the sequence: $4sh$ a layer.
#
# In a large model with short sequences, both effects are small. Here they are not small: the embedding holds an eighth of `TINY`'s parameters, and
# the sequences are four times as long as the model is wide.
#
# Backward is a little more than twice forward. The fused attention kernel does not store its scores, because their size is quadratic in the
# sequence length. Instead it **computes them again** when backward needs them (Dao et al., 2022). That is one more product of the attention
# core.
#
# So there are two counts. **Model FLOPs** are what the mathematics needs. **Hardware FLOPs** are what was really computed. Recomputing adds
# hardware FLOPs, but no progress.
#
# PyTorch has a counter of its own, `FlopCounterMode`. It knows the products, but not every fused kernel. So use plain products for
# attention while it counts (`SDPBackend.MATH`). Then nothing is computed twice, and the result is the model FLOPs.

# %% tags=["nbval-check-output"]
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    model(tokens, targets).backward()
model_flops = counter.get_total_flops()
by_hand = 3 * num_tokens * a_token
assert model_flops == by_hand
rows = [
    ("FlopCounterMode", f"{model_flops:,}"),
    ("3 x forward by hand", f"{by_hand:,}"),
]
Table(("model FLOPs of a step", ""), rows)

# %% [markdown]
# ### Exercise: write the rule down, attention included


# %%
# %%exercise train_flops
def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = ...
    attention = ...
    return num_tokens * (weights + attention)


# %% tags=["nbval-check-output"]
extra = {}
for seq_len in (2_048, 8_192, 32_768, 131_072):
    with_core = train_flops(70e9, 1, 80, 8_192, seq_len)
    extra[seq_len] = with_core / (6 * 70e9) - 1
assert extra[2_048] < 0.05
assert extra[131_072] > 2
rows = [(f"{seq_len:,}", f"{more:.0%}") for seq_len, more in extra.items()]
Table(
    ("tokens in a sequence", "the core adds"), rows, "A model of 70 billion parameters"
)

# %% [markdown]
# The rule of 6 is meant for short sequences. At 131,072 tokens it misses more than two thirds of the arithmetic.
#
# ## How fast is the device?
#
# A data sheet states a peak. This machine may have no data sheet, so we take the fastest product that we can measure. On a CPU we use fp32
# and one core. On a GPU we use bf16, and matrices large enough to fill it. We try each product several times and take the fastest try,
# because noise can only make a try slower. On a CPU we count only the seconds in which this process computes, and not those in which
# another program uses the core.

# %%
import time

dtype, sizes = torch.float32, (16, 64, 256, 1024)
if not on_cpu:
    dtype, sizes = torch.bfloat16, (256, 1024, 4096, 8192)


clock = time.process_time if on_cpu else time.perf_counter


def seconds_of(call):
    """A GPU computes while Python goes on: wait for it before looking at the clock."""
    if not on_cpu:
        torch.accelerator.synchronize()
    start = clock()
    call()
    if not on_cpu:
        torch.accelerator.synchronize()
    return clock() - start


def fastest(calls, rounds=10):
    """Seconds of the fastest try of each call, all of them in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], seconds_of(call))
    return best


# %% [markdown]
# We time square products of four sizes, and also a copy, which computes nothing and only moves numbers.

# %%
square = {n: torch.randn(n, n, device=device).to(dtype) for n in sizes}
source = torch.ones(2**24 if on_cpu else 2**28, device=device)
target = torch.empty_like(source)
calls = {n: lambda a=a: a @ a for n, a in square.items()}
seconds = fastest({**calls, "copy": lambda: target.copy_(source)})
rates = {n: 2 * n**3 / seconds[n] for n in sizes}
peak = max(rates.values())
bandwidth = 2 * source.nbytes / seconds["copy"]
assert 3 * rates[sizes[0]] < peak
rows = [(f"{n:,} x {n:,}", f"{rate / 1e9:,.1f} GFLOP/s") for n, rate in rates.items()]
note = f"a copy reads and writes {bandwidth / 1e9:,.1f} GB/s"
Table(("product", "rate"), rows, note=note)

# %% [markdown]
# It is the same device and the same operation, but the slowest and the fastest product differ by a large factor. What does a product need
# to be fast?
#
# ## The roofline
#
# An operator does arithmetic, and it also **moves** numbers: it reads its inputs from memory and writes its result. How long does it take, at
# least?
#
# ### Exercise: the least time


# %%
# %%exercise least_seconds
def least_seconds(
    flops: float, moved_bytes: float, peak: float, bandwidth: float
) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return ...


# %% [markdown]
# The FLOPs of an operator divided by the bytes that it moves are its **arithmetic intensity**. With a high intensity, arithmetic sets your
# least time, and the device reaches its peak. With a low one, memory does. The highest rate at each intensity is the **roofline** (Williams,
# Waterman and Patterson, 2009): a slope, where memory decides, and then a roof. They meet at the *ridge*.
#
# Where do the parts of a model lie? Here are six of them, with their FLOPs and bytes counted by hand. "One token x matrix" stands for
# **decoding**: a model generates text token by token, and each token goes through all the weights on its own.

# %%
T, H = (1024, 1024) if on_cpu else (8_192, 4_096)  # tokens, width
HEAD_DIM = 64


def product(tokens, e, width=H):
    """FLOPs and bytes of tokens x matrix: width numbers in, four times as many out."""
    weights = 4 * width**2
    return 2 * tokens * weights, (tokens * width + weights + 4 * tokens * width) * e


def operators(e):
    """Name: FLOPs, and bytes moved when a number has e bytes."""
    scores = T * T * H  # for H / HEAD_DIM heads, each T x T x HEAD_DIM
    return {
        "GELU": (8 * T * H, 2 * T * H * e),  # about 8 FLOPs per number
        "norm": (4 * T * H, 2 * T * H * e),  # square, add, scale, times the weight
        "residual": (T * H, 3 * T * H * e),
        "one token x matrix": product(1, e),
        "attention core": (4 * scores, 4 * T * H * e),
        "tokens x matrix": product(T, e),
    }


# %%
# %%guess decode --unit %
# An H100 does 989 TFLOP/s in bf16 and moves 3.35 TB/s. At most what share of its
# peak can decoding one token reach? (Each 2-byte weight is used for 2 FLOPs.)
...

# %%
F = torch.nn.functional
x, y = (torch.randn(T, H, device=device).to(dtype) for _ in range(2))
w = torch.randn(H, 4 * H, device=device).to(dtype)
q = x.view(1, T, H // HEAD_DIM, HEAD_DIM).transpose(1, 2)
calls = {
    "GELU": lambda: F.gelu(x),
    "norm": lambda: F.rms_norm(x, (H,)),
    "residual": lambda: x + y,
    "one token x matrix": lambda: x[:1] @ w,
    "attention core": lambda: F.scaled_dot_product_attention(q, q, q),
    "tokens x matrix": lambda: x @ w,
}
seconds = fastest(calls)
here = operators(x.element_size())
# the highest rate that we have measured so far
peak = max(peak, *(flops / seconds[name] for name, (flops, _) in here.items()))
rows, reached = [], {}
for name, (flops, moved) in here.items():
    roof = flops / least_seconds(flops, moved, peak, bandwidth) / peak
    reached[name] = flops / seconds[name] / peak
    shares = f"{roof:.1%}", f"{reached[name]:.1%}"
    rows.append(
        (name, f"{flops / moved:.1f}", *shares, f"{1e3 * seconds[name]:.2f} ms")
    )
assert reached["tokens x matrix"] > 3 * reached["residual"]
assert seconds["GELU"] / seconds["tokens x matrix"] > 4 / H
head = ("operator", "FLOPs a byte", "roof, of the peak", "reached", "time")
Table(head, rows)

# %%
from workshop.facts import catalogue

h100 = catalogue.device("H100")
devices = {
    f"this device, {dtype}".replace("torch.", ""): (peak, bandwidth, here, seconds),
    "H100, bf16": (h100.peak("bf16"), h100.memory_bandwidth, operators(2), None),
}
show.rooflines(devices)

# %%
ridge = h100.peak("bf16") / h100.memory_bandwidth
flops, moved = operators(2)["one token x matrix"]
at_most = flops / moved / ridge
left = [name for name, (f, m) in operators(2).items() if f / m < ridge]
print(f"ridge of an H100: {ridge:.0f} FLOPs a byte")
print(f"ridge of this device: {peak / bandwidth:.0f} FLOPs a byte")
print("left of the H100's ridge:", ", ".join(left))
assert round(ridge) == 295
assert left == ["GELU", "norm", "residual", "one token x matrix"]
assert at_most < 0.005
core_flops, core_bytes = operators(2)["attention core"]
assert core_flops / core_bytes == T / 2
assert ridge > 512 / 2, "with 512 tokens it would lie on the left"
beside("decode", calculated=100 * at_most)

# %% [markdown]
# (*Calculated* means that the value comes from the data sheet and the shapes. Filled points, as in this device's panel, were measured. Hollow
# points, as in the H100's panel, show what is possible.)
#
# On an H100, four of our six operators lie to the left of the ridge: GELU, norm, residual and decoding. In bf16 the intensity of attention
# is half the length of the sequence, so with 512 tokens attention would lie to the left as well. Look at the column of times, too. The GELU
# does one FLOP for every `H` FLOPs of the large product, but takes many times that share of its time.
#
# The roof is a limit, not a promise. An operator can stay below it if it needs more instructions than we count FLOPs, or if it is so short
# that its start counts. (On the H200, GELU, norm and the single token reached half of their roof or less.) A point *above* the slope means
# that the operator got some of its numbers from a cache and not from memory.
#
# ### A slider that decides: how many tokens at once?
#
# Decoding one token reaches a third of a percent of the peak, because every weight that is read is used once. If several texts are decoded
# together, each weight that is read is used for all of them.

# %%
# %%guess at_once --choices 4,32,256,2048
# A matrix of 4,096 x 16,384 weights on an H100, in bf16. Up to how many tokens can go
# through it together and take hardly longer (at most a tenth) than a single one?
...

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import MEASURED, Picture, new_figure

COUNTS = [2**power for power in range(13)]


def least(device, tokens):
    """Microseconds of tokens x matrix, 4,096 wide and in bf16, at least."""
    limits = device.peak("bf16"), device.memory_bandwidth
    return 1e6 * least_seconds(*product(tokens, 2, 4_096), *limits)


def draw(tokens, device):
    chosen = catalogue.device(device)
    figure, axis = new_figure(6.4, 3.0)
    axis.plot(COUNTS, [least(chosen, count) for count in COUNTS], color="black")
    one, these = least(chosen, 1), least(chosen, tokens)
    axis.plot([tokens], [these], "o", color=MEASURED, markersize=9)
    axis.set(xscale="log", yscale="log", ylim=(8, 3_000))
    axis.set(xlabel="tokens at once", ylabel="least time, µs")
    longer = f"{these:.0f} µs at least, {these / one:.2f} times one token's"
    words = f"{device}, {tokens:,} at once: {longer}"
    axis.set_title(words, fontsize=9)
    return Picture(figure, words)


DEVICES = ("A100-80GB", "H100", "H200", "B200")
explore(draw, [Control("tokens", 1, COUNTS), Control("device", "H100", DEVICES)])

# %% [markdown]
# Move `tokens` until the point leaves the flat part. Does this device do the same? We time the same product here, with the sizes from above:

# %%
counts = (1, 8, 64, 512)
took = fastest({n: lambda n=n: x[:n] @ w for n in counts})
rows = []
for n in counts:
    by_h100 = f"{least(h100, n):.0f} µs", f"{least(h100, n) / least(h100, 1):.2f}"
    rows.append(
        (f"{n}", f"{1e6 * took[n]:,.0f} µs", f"{took[n] / took[1]:.2f}", *by_h100)
    )
head = (
    "tokens at once",
    "here",
    "times one token",
    "H100, at least",
    "times one token",
)
assert took[8] < 4 * took[1]
assert took[64] < 32 * took[1]
display(Table(head, rows))
most = max(n for n in COUNTS if least(h100, n) < 1.1 * least(h100, 1))
beside("at_once", calculated=f"{most}")

# %% [markdown]
# Up to 256 tokens, an H100 reads the same weights as for one, and has done its arithmetic before they have arrived. So all tokens but the
# first are nearly free. (Here too, 64 tokens take far less than 64 times as long as one.) That is why inference servers decode many texts at
# once.
#
# **A device is fast at large products.** That is why batches are large, and why cutting a model into too many pieces makes it slow.
#
# ## What share is reached?
#
# **MFU**, model FLOPs utilization, is the share of the peak that is spent on the arithmetic of the model (Chowdhery et al., 2022). It is
# the FLOPs that the *model* needs in a second, divided by the FLOPs that the devices could do in a second.
#
# ### Exercise: MFU from a training log
#
# A training log has one line for each step, with the number of tokens and the number of seconds. Tokens a second are the **throughput** of
# the run. The first steps are slow, because memory is allocated for the first time and kernels are chosen or compiled. They tell you
# nothing about the weeks that follow, so we leave them out. A slow step later on is part of the run, so it counts.


# %%
# %%exercise mfu
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = ...  # what counts of the log
    tokens_per_second = ...
    return ...


# %% [markdown]
# Next we train `TINY` for twenty steps of four short sequences. Its steps alternate with those of a model of the same kind that is four
# times as wide, and with a large product that measures the peak. Your function then computes the MFU of both training logs: once over all
# steps but the first, and once for the fastest step alone.

# %%
# %%guess small_mfu --unit %
# TINY is only 64 wide, and its step also has norms, a softmax and an optimizer.
# What MFU does it reach on this device in its fastest step?
...

# %%
configs = {"TINY, width 64": TINY}
configs["width 256"] = replace(TINY, hidden_size=256, intermediate_size=768)
batch, large = TextBatches(seq_len=64, global_batch=4), square[sizes[-1]]
((tokens, targets),) = batch.step(0, device)
num_tokens = tokens.numel()
trained, token_flops, calls = {}, {}, {"large product": lambda: large @ large}
for name, config in configs.items():
    torch.manual_seed(0)
    one = GPT(config).to(device)
    trained[name] = one, torch.optim.AdamW(one.parameters(), fused=True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        one(tokens, targets).backward()
    token_flops[name] = counter.get_total_flops() / num_tokens
    calls[name] = partial(one_step, *trained[name], tokens, targets)
logs = {name: [] for name in calls}
for _ in range(20):
    for name, call in calls.items():  # in turns, so that noise hits all of them alike
        logs[name].append((num_tokens, seconds_of(call)))
peak = max(peak, 2 * sizes[-1] ** 3 / min(took for _, took in logs["large product"]))

# %%
reached, rows = {}, []
for name in configs:
    steady = mfu(logs[name], token_flops[name], 1, peak)
    fastest_step = min(logs[name][1:], key=lambda line: line[1])
    reached[name] = mfu([fastest_step], token_flops[name], 1, peak, warm_up=0)
    rows.append((name, f"{100 * steady:.3g} %", f"{100 * reached[name]:.3g} %"))
assert 0 < reached["TINY, width 64"] < reached["width 256"] < 1.2
display(Table(("model", "MFU of all steps but the first", "of the fastest step"), rows))
beside("small_mfu", measured=100 * reached["TINY, width 64"])

# %% [markdown]
# Code and tokens are the same, but the wider model gets a larger share of the peak. Each operator has to be started, and a start takes the
# same time for any size. A larger product does more work for each start. (On a GPU a small product takes almost no time. Starting the
# operators can then be nearly all of `TINY`'s step, and its MFU is close to zero.)
#
# The rest of the time goes into everything that is not a large product. Norms, activation functions and the optimizer move many bytes for
# few FLOPs. With several devices, the time in which they wait for each other is added. How to find out where the time of a step goes is the
# subject of `17_profile_and_monitor`.
#
# ## What do large runs reach?
#
# We first check the FLOPs themselves. Llama 3 405B was trained on 15.6 trillion tokens, and its authors report $3.8 \times 10^{25}$ FLOPs
# (Dubey et al., 2024, section 1). The rule of 6 gives:

# %% tags=["nbval-check-output"]
llama_3 = 6 * 405e9 * 15.6e12
print(f"Llama 3 405B: {llama_3:.1e} FLOPs, published 3.8e+25")
assert f"{llama_3:.1e}" == "3.8e+25"

# %% [markdown]
# Now the MFU. The paper that introduced MFU gives everything that `train_flops` and `mfu` need about PaLM: 540.35 billion parameters, 118
# layers, 48 heads that are 256 wide, sequences of 2,048 tokens, and 238,300 tokens a second on 6,144 chips of TPU v4, with 275 TFLOP/s
# each. (For the argument `hidden_size`, we pass `train_flops` the width of all heads together, because it uses this argument to count
# attention.) All this is in Chowdhery et al. (2022, section 4.1 and appendix B).

# %% tags=["nbval-check-output"]
a_second = [(238_300, 1.0)]
tpus = (6_144, 275e12)
ATTENTION = 48 * 256  # heads times head width; in PaLM, less than hidden_size
per_token = train_flops(540.35e9, 1, 118, ATTENTION, 2_048)
by_rule = 100 * mfu(a_second, 6 * 540.35e9, *tpus, warm_up=0)
with_core = 100 * mfu(a_second, per_token, *tpus, warm_up=0)
assert (round(by_rule, 1), round(with_core, 1)) == (45.7, 46.2)
rows = [
    ("weights alone", f"{by_rule:.1f} %", "45.7 %"),
    ("with attention", f"{with_core:.1f} %", "46.2 %"),
]
Table(("MFU of PaLM", "by your functions", "published"), rows)

# %% [markdown]
# Both values agree with the paper to the digit. The same paper gives 21.3 % for GPT-3 and 32.5 % for Gopher, and the Llama 3 paper reports
# 38 to 43 % for the 405B model (Dubey et al., 2024, table 4).
#
# Other papers do not report an MFU, but you can work it out. Llama 2's authors published their GPU hours on A100s (peak 312 TFLOP/s in
# bf16), for 2 trillion tokens each (Touvron et al., 2023, table 2):

# %% tags=["nbval-check-output"]
a100 = catalogue.device("A100-80GB").peak("bf16")
rows, hours = (
    [],
    {"llama-2-7b": 184_320, "llama-2-13b": 368_640, "llama-2-70b": 1_720_320},
)
for name, gpu_hours in hours.items():
    spec = catalogue.model(name)
    sizes = (spec.num_layers, spec.hidden_size)
    per_token = train_flops(spec.num_params, 1, *sizes, seq_len=4_096)
    share = mfu([(2e12, gpu_hours * 3_600)], per_token, 1, a100, warm_up=0)
    rows.append((name, f"{gpu_hours:,}", f"{share:.0%}"))
    assert 0.38 < share < 0.50
Table(("", "GPU hours, published", "MFU"), rows)

# %% [markdown]
# Before you compare two such numbers, ask three questions. Was recomputation counted? (Then the number is an **HFU**; PaLM's is 57.8 %.)
# Was the masked half of attention counted? Which peak was used?

# %% [markdown]
# ### What one H200 reaches
#
# In these runs, many devices also wait for each other. What can a single GPU reach? The following numbers were measured on an H200 and stored.
# The first table has products of square matrices in bf16, beside what the workshop's predictor expects for that size:

# %%
show.measured_on_gpu("device", "bf16 product")

# %% [markdown]
# The largest product is slower than the one before it, and we do not know why.
#
# Next comes training: a GPT with 1.3 billion parameters, 24 sequences of 1,024 tokens a step, bf16, every layer compiled. Four loops train
# it. Three start from the same weights and use the same text: the loop of this workshop, the `Trainer` of transformers, and Lightning. The
# fourth loop is bare: it only does forward, backward and step, always on the same batch. For comparison, we also list a model with 125
# million parameters.

# %%
import json

from workshop.facts.tree import ROOT

record = ROOT / "data" / "measurements" / "gpu" / "throughput.json"
loops = json.loads(record.read_text())["parts"]
LOOPS = ("workshop", "transformers.Trainer", "lightning", "bare")
names = [*(f"1.3b, {loop}" for loop in LOOPS), "125m, workshop"]
shares, rows = [], []
for name in names:
    rate, share = (line["measured"] for line in loops[f"{name}, compiled"]["rows"])
    shares.append(share)
    rows.append((name, f"{rate:,.0f}", f"{share:.1%}"))
assert {round(100 * share) for share in shares[:4]} == {53, 54}
assert shares[4] < 0.4
where = show.measured_on_gpu("throughput", *(f"{name}, compiled" for name in names))
Table(("model, loop", "tokens a second", "MFU"), rows, where.caption)

# %% [markdown]
# All four loops reach an MFU of 53 or 54 %. With a model this large, the loop itself costs next to nothing, whoever wrote it. The small
# model stays below 40 %. Nobody profiled its step, so we can only name two likely causes. First, its products are narrower, and the table
# above shows that small products run further below the peak. Second, its layers have a fourteenth of the weights, while its vocabulary is
# just as large. So the loss, which the MFU hardly counts, should take a larger part of its step.
#
# Where are the other 46 %? The profiler shows what the GPU did in one step of the large model.

# %%
# %%guess products --unit %
# If the products of matrices ran at the peak, they would take 54 % of the step's time.
# But see the first table. What share of the time do they take?
...

# %% tags=["nbval-check-output"]
kernels = loops["1.3b, kernels of a step"]["rows"]
step = {line["what"]: line["measured"] for line in kernels}
whole = step.pop("all kernels")
rows = [(what, f"{1000 * t:.0f} ms", f"{t / whole:.1%}") for what, t in step.items()]
matrices = 24 * (4 * 2048**2 + 3 * 2048 * 5504) + 2048 * 50304  # layers, and the head
rate = 6 * matrices * 24 * 1024 / step["products of matrices"]
of_time = step["products of matrices"] / whole
of_peak = rate / catalogue.device("H200").peak("bf16")
assert round(of_peak, 2) == 0.72
assert round(of_time, 2) == 0.71
assert round(of_peak * of_time, 2) == 0.51
assert step["attention"] < 0.1 * whole
note = f"products of matrices: {rate / 1e12:.0f} TFLOP/s, {of_peak:.0%} of the peak"
Table(("kernels", "in a step", "share"), rows, note=note)

# %%
beside("products", predicted=100 * shares[0] * 989 / 789, measured=100 * of_time)

# %% [markdown]
# (*Predicted* is the MFU, if products ran at the best rate of the first table, 789 of 989 TFLOP/s.) Matrix products take 71 % of the time,
# and they run at 72 % of the peak. Together that makes an MFU of 51 %. The products inside attention are the other 3 %. None of the other
# kernels compute anything that MFU counts. They normalize, multiply element by element, compute the loss and step the optimizer, and they
# spend their time waiting for memory.

# %% [markdown]
# ## At scale: how many days?
#
# ### Exercise: a run in stages
#
# A long run seldom has only one stage. It may start on fewer devices, or it may end with long sequences, where attention costs more and the
# MFU is different. The stages follow one after another.


# %%
# %%exercise days_to_train
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    for flops, num_devices, share in stages:
        ...
    return ...


# %% [markdown]
# Here is the question from the top, as a run with one stage: 70 billion parameters, 15 trillion tokens, 1,024 H100s, half of their peak.

# %%
# %%guess days --unit days
# Work it out in your head: 6 x 70e9 x 15e12 FLOPs on 1,024 devices, each of which
# reaches half of 989e12 FLOP/s. A day has 86,400 seconds. How many days does it take?
...

# %% tags=["nbval-check-output"]
from workshop.predict.cost import training_cost

h100s = catalogue.cluster("1024xH100")
flops, fast = 6 * 70e9 * 15e12, h100s.device.peak("bf16")
by_hand = days_to_train([(flops, 1_024, 0.5)], fast)
on_paper = training_cost(70e9, 15e12, h100s, mfu=0.5)
print(f"by your function {by_hand:.0f} days, by training_cost {on_paper.days:.0f} days")
print(f"that is {on_paper.device_hours:,.0f} device hours")
assert round(by_hand) == 144
assert abs(on_paper.days - by_hand) < 0.5

# %%
beside("days", calculated=by_hand)

# %% [markdown]
# The answer is 144 days, nearly five months: of the three choices, "a season" is the nearest. Now suppose that the last trillion tokens come in
# sequences of 131,072, so that the model learns to read long texts, and that half of the peak is still reached. How many days does this last
# fifteenth of the tokens take? Your functions can tell you.
#
# Note what is counted. The 144 days were for the weights alone, at 6 FLOPs a parameter and token. `train_flops` adds the attention core,
# which is 15 % at 8,192 tokens. So 14 trillion tokens now take longer than 15 trillion did before:

# %% tags=["nbval-check-output"]
short = train_flops(70e9, 14e12, 80, 8_192, 8_192)
long = train_flops(70e9, 1e12, 80, 8_192, 131_072)
whole = days_to_train([(short, 1_024, 0.5), (long, 1_024, 0.5)], fast)
last = days_to_train([(long, 1_024, 0.5)], fast)
assert by_hand < whole - last
assert 2.5 < last / ((whole - last) / 14) < 3.5
rows = [
    ("14 trillion", "8,192", f"{whole - last:.0f} days"),
    ("the last trillion", "131,072", f"{last:.0f} days"),
]
Table(("tokens", "in sequences of", "takes"), rows)

# %% [markdown]
# A token in a long sequence costs about three times as much. Next, here is the run by the rule of 6 again, on different devices and with
# different shares of their peak:

# %% tags=["nbval-check-output"]
days, rows = {}, []
for name in ("A100-80GB", "H100", "B200"):
    fast = catalogue.device(name).peak("bf16")
    for share in (0.3, 0.4, 0.5):
        days[name, share] = days_to_train([(flops, 1_024, share)], fast)
    rows.append(
        (name, *(f"{days[name, share]:,.0f} days" for share in (0.3, 0.4, 0.5)))
    )
saved = days["H100", 0.3] - days["H100", 0.5]
assert 90 < saved < 100
note = f"from 30 to 50 % on H100: {saved:.0f} days saved"
Table(("1,024 of", "MFU 30 %", "MFU 40 %", "MFU 50 %"), rows, note=note)

# %% [markdown]
# Going from 30 to 50 % saves nearly a hundred days. You do not get this share for free: you have to work for it, and the coming days are
# about how.
#
# ## Tomorrow's script
#
# This is a training loop that knows its own MFU, without this workshop. It counts the FLOPs of one step, and then prints the samples a
# second and the share of the peak beside the loss. Set `PEAK_TFLOPS` to the value from your data sheet; without it, the script times a
# large product. The model is small and predicts the next byte of the manual from the sixteen bytes before it. Replace it with your own
# model. If your model has attention, that is counted too.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/train_mfu.py
import os
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
data = torch.tensor(list("\n".join(topics.values()).encode()), device=device)
layers = [nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256), nn.GELU()]
model = nn.Sequential(*layers, nn.Linear(256, 256)).to(device)  # yours
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
BATCH, STEPS = 256, 50


def step():
    """Sixteen bytes of the manual in, the next one out."""
    starts = torch.randint(len(data) - 17, (BATCH, 1), device=device)
    rows = data[starts + torch.arange(17, device=device)]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = nn.functional.cross_entropy(model(rows[:, :16]), rows[:, 16])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def timed(call, times):
    """Seconds of so many calls, and what the last one gave."""
    start = time.perf_counter()
    for _ in range(times):
        last = call()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start, last


with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    step()  # this also warms up
flops = counter.get_total_flops()
side = 1024 if device.type == "cpu" else 8192  # large enough to fill a GPU
square = torch.randn(side, side, device=device, dtype=dtype)
took = min(timed(lambda: square @ square, 1)[0] for _ in range(20))
peak = 1e12 * float(os.environ.get("PEAK_TFLOPS", 2e-12 * side**3 / took))
print(f"{flops:,} FLOPs a step, peak {peak / 1e12:.2f} TFLOP/s")
for epoch in range(3):
    took, loss = timed(step, STEPS)
    rate, share = STEPS * BATCH / took, 100 * STEPS * flops / took / peak
    print(f"epoch {epoch}: {rate:,.0f} samples/s, MFU {share:.3g} %, loss {loss:.2f}")

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("12_flops_and_mfu")

# %% [markdown]
# ## What to take away
#
# - A product of $(m, k)$ by $(k, n)$ costs $2mkn$ FLOPs. **Training costs 6 FLOPs a parameter and token**, 2 forward and 4 backward.
# - The attention core adds $12Lhs$ a token. With short sequences that is a small part, and with long ones it is most of the arithmetic.
# - A device reaches its peak only in large products. To the left of the roofline's ridge (295 FLOPs a byte on an H100), memory sets the
#   limit, and more tokens at once are nearly free.
# - **MFU** counts what the model needs; HFU also counts what was computed twice. Published: 21 % (GPT-3) to 46 % (PaLM). One H200, 1.3B in
#   bf16: 54 %.
# - Days = FLOPs / (devices x peak x MFU). 70B on 15T tokens on 1,024 H100 at 50 %: 144 days.
#
# Next: [13_memory_of_a_step](13_memory_of_a_step.ipynb), where the memory goes.
#
# ## Sources
#
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, [arXiv:2001.08361](https://arxiv.org/abs/2001.08361), section 2.1 (2 and 4 FLOPs a parameter).
# - A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, [arXiv:2204.02311](https://arxiv.org/abs/2204.02311): section 4.1 and table 3 (MFU of PaLM and
#   others, HFU, tokens a second), appendix B (definition, attention's 12Lhs, MFU with and without it).
# - S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*, CACM
#   52(4), 2009.
# - T. Dao et al., *FlashAttention*, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135) (scores computed again in backward).
# - H. Touvron et al., *Llama 2: Open Foundation and Fine-Tuned Chat Models*, [arXiv:2307.09288](https://arxiv.org/abs/2307.09288), table 2 (GPU hours).
# - A. Dubey et al., *The Llama 3 Herd of Models*, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 1 (FLOPs), table 4 (MFU).
# - NVIDIA, *H100 Tensor Core GPU* and *A100 Tensor Core GPU* data sheets (dense peaks: 989 and 312 TFLOP/s in bf16; 3.35 TB/s).
