# %% [markdown]
# # How long will it take?
#
# - **You need** `00_welcome` (what a rank is); a training step in PyTorch.
# - **It takes** 25 minutes to read and try, under half a minute to run.
# - **What runs where:** counting and timing run here, on one rank, on CPU or GPU with the same cells. The last part is arithmetic
#   about clusters, held against published runs.
# - **Links:** before this [11_numbers_and_tensors](11_numbers_and_tensors.ipynb), after it [13_memory_of_a_step](13_memory_of_a_step.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Somebody wants a model of 70 billion parameters, trained on 15 trillion tokens. There are 1,024 GPUs. Is that a week, a season
# or a year? You can know before you rent the first of them, with three numbers: how much arithmetic training needs, how fast the
# devices are, and what share of that speed is really reached.

# %%
# %load_ext workshop
from workshop import show

# %% [markdown]
# ## How much arithmetic?
#
# Nearly all of it is matrix products. A product of $(m, k)$ by $(k, n)$ makes $mn$ numbers, and each takes $k$ multiplications
# and $k$ additions. So it costs $2mkn$ **FLOPs**, floating-point operations.
#
# Take two layers without biases. A batch of $B$ vectors goes through a $D \times D$ matrix, a ReLU, and a $D \times K$ matrix:
#
# $$\text{forward} = 2BD^2 + 2BDK = 2\,(BD^2 + BDK)$$
#
# Backward, a layer needs two products for each one of forward: one for the gradient of its weights, one for the gradient of its
# input, which it hands on to the layer before.
#
# ## Predict
#
# **Say it before you run it:** is backward exactly twice forward? Look at the first layer. Is there a layer before it?

# %%
B, D, K = 32, 256, 64
predicted_forward = 2 * (B * D**2 + B * D * K)
predicted_backward = 2 * (B * D**2 + 2 * B * D * K)  # nobody asks for the gradient of the data

# %% [markdown]
# ## Run
#
# `measure` looks at every operator that PyTorch really calls, and adds up the FLOPs of the products.

# %%
# %%ranks -n 1 --pass B,D,K --into two_layers
from workshop import report
from workshop.measure import measure

batch = torch.randn(B, D, device=device)
first = torch.nn.Linear(D, D, bias=False, device=device)
second = torch.nn.Linear(D, K, bias=False, device=device)

with measure(memory=False) as forward:
    loss = second(first(batch).relu()).sum()
with measure(memory=False) as backward:
    loss.backward()
report(forward=forward.flops, backward=backward.flops)

# %% tags=["nbval-check-output"]
print(f"forward   predicted {predicted_forward:>9,}   counted {two_layers[0].forward:>9,}")
print(f"backward  predicted {predicted_backward:>9,}   counted {two_layers[0].backward:>9,}")
assert two_layers[0].forward == predicted_forward
assert two_layers[0].backward == predicted_backward

# %% [markdown]
# To the last operation. The first layer does without one of its two products, because data needs no gradient. In a deep model
# that is one product of hundreds, and we forget it. What remains is a rule that you can keep in your head (Kaplan et al., 2020):
#
# > **2 FLOPs a parameter and token forward, 4 backward, 6 in all.**
#
# ## Does the rule hold for a language model?
#
# Here is a small Llama: four layers, 3.5 million parameters. Its shape is a `ModelSpec`, from which `forward_flops` counts on
# paper.

# %% tags=["nbval-check-output"]
from workshop.facts.model import ModelSpec
from workshop.predict.flops import forward_flops

small = ModelSpec(
    "small", num_layers=4, hidden_size=256, num_heads=8, num_kv_heads=4, ffn_hidden_size=704, vocab_size=1024
)
BATCH, SEQ_LEN = 4, 256
tokens = BATCH * SEQ_LEN
parts = forward_flops(small, SEQ_LEN)  # for one token
for part, flops in parts.items():
    if flops:
        print(f"{part:<22} {flops:>12,.0f}   {flops / small.num_params:.2f} a parameter")
print(
    f"{'together':<22} {sum(parts.values()):>12,.0f}   {sum(parts.values()) / small.num_params:.2f} a parameter"
)

# %% [markdown]
# Not 2.00 but 2.15. Two things pull at the rule:
#
# - The **embedding** has parameters but costs nothing: a look-up is no product. (The output head is a product, and it counts.)
# - The **attention core**, queries times keys and probabilities times values, costs FLOPs but has no parameters. For each token
#   it grows with the length of the sequence: $4sh$ a layer.
#
# In a large model with short sequences both are small. Here, with 256 tokens and a width of 256, the core is a seventh of
# everything. Now the real model, forward alone and then a whole step:

# %%
# %%ranks --pass BATCH,SEQ_LEN --into counted
from workshop.models.gpt import GPT, GPTConfig

torch.manual_seed(0)
shape = GPTConfig(
    vocab_size=1024, hidden_size=256, num_layers=4, num_heads=8, num_kv_heads=4, intermediate_size=704
)
model = GPT(shape).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
words = torch.randint(shape.vocab_size, (BATCH, SEQ_LEN), device=device)

with torch.no_grad(), measure(memory=False) as forward:
    model(words)
with measure(model, optimizer, memory=False) as step:
    optimizer.zero_grad()
    model(words, words).backward()
    optimizer.step()
report(forward=forward.flops, step=step.flops, parameters=sum(p.numel() for p in model.parameters()))

# %%
N = counted[0].parameters
assert small.num_params == N
counted_forward, counted_step = counted[0].forward, counted[0].step
expected_forward = tokens * sum(parts.values())
for name, expected, found, rule in [
    ("forward", expected_forward, counted_forward, 2),
    ("backward", 2 * expected_forward, counted_step - counted_forward, 4),
]:
    print(
        f"{name:<9} predicted {expected:.4g}, counted {found:.4g}: {found / (N * tokens):.2f} a parameter and token (rule: {rule})"
    )
assert counted_forward == expected_forward
core = tokens * parts["attention_core"]
assert counted_step - counted_forward - 2 * expected_forward in (0, core / 2)

# %% [markdown]
# Forward is right to the last operation. Backward is a little more than twice forward, and the difference has a name. The fused
# attention kernel does not store its scores, which are quadratic in the sequence. It **computes them again** when backward needs
# them (Dao et al., 2022). That is one product of the core more: half of what the core costs forward.
#
# So there are two counts. **Model FLOPs** are what the mathematics needs. **Hardware FLOPs** are what was done. Whoever
# recomputes works more, and is not further for it.
#
# ### Exercise: write the rule down, attention included


# %%
# %%exercise train_flops
def train_flops(
    num_params: float, num_tokens: float, num_layers: int, hidden_size: int, seq_len: int
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = ...
    attention = ...
    return num_tokens * (weights + attention)


# %% tags=["nbval-check-output"]
for seq_len in (2_048, 8_192, 32_768, 131_072):
    with_core = train_flops(70e9, 1, 80, 8_192, seq_len)
    print(
        f"70B, 80 layers of 8,192, sequences of {seq_len:>7,}: the core adds {with_core / (6 * 70e9) - 1:4.0%}"
    )

# %% [markdown]
# The "6" is a rule for short sequences. At 131,072 tokens it misses more than two thirds of the arithmetic.
#
# ## How fast is the device?
#
# A data sheet has a peak. This machine has none, so we take the fastest product that we can find. We time square products from
# small to large, and one that a model does all the time: a single row by a matrix. And we time a copy, for the bytes per second.
# We take the fastest of several tries, as noise only ever adds.

# %%
# %%ranks --into timed
import time


def fastest(call, tries=7):
    """Seconds of the fastest try."""
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


products = {f"{n} x {n}": (n, n, n) for n in (16, 64, 256, 1024)}
products["one row"] = (1, 4096, 4096)  # 64 MiB of weights: more than the caches hold
seconds = {}
for name, (rows, cols, depth) in products.items():
    a = torch.randn(rows, depth, device=device)
    b = torch.randn(depth, cols, device=device)
    out = torch.empty(rows, cols, device=device)
    seconds[name] = fastest(lambda: torch.mm(a, b, out=out), tries=10 if rows * cols * depth > 2**23 else 50)

source = torch.ones(2**24, device=device)  # 64 MiB too
target = torch.empty_like(source)
copy = fastest(lambda: target.copy_(source))
report(products=products, seconds=seconds, bytes_per_second=2 * source.nbytes / copy)

# %%
rates = {
    name: 2 * rows * cols * depth / timed[0].seconds[name]
    for name, (rows, cols, depth) in timed[0].products.items()
}
for name, rate in rates.items():
    print(f"{name:<12} {rate / 1e9:8.1f} GFLOP/s")
peak = max(rates.values())
assert rates["16 x 16"] < peak, "a small product is slower than the best"

# %% [markdown]
# Same device, same operation, and a factor of ten or more between the fastest and the slowest. Why? A product must also **move**
# its numbers. It does $2mkn$ FLOPs for $mk + kn + mn$ numbers. Their quotient is its *intensity*, in FLOPs per byte. If it is
# low, the device waits for memory. That is the **roofline** (Williams, Waterman and Patterson, 2009): the speed is at most the
# peak, and at most the bandwidth times the intensity.

# %%
from workshop.facts.device import DeviceSpec

this_device = DeviceSpec(
    "this device", memory_bytes=1, memory_bandwidth=timed[0].bytes_per_second, peak_flops={"fp32": peak}
)
show.roofline(this_device, timed[0].products, dtype="fp32", measured=timed[0].seconds)

# %% [markdown]
# A single row by a matrix uses each weight once. It stands at the slope, and no faster arithmetic would help it. (A point may lie
# a little above the line: reading alone is faster than the copy that we timed.) Very small products lie below both: there the
# time goes into starting them. **Large products are what a device is fast at.** It is why batches are large, and why cutting a
# model into too many pieces makes it slow.
#
# ## What share is reached?
#
# **MFU**, model FLOPs utilization, is the share of the peak that the model gets (Chowdhery et al., 2022): the FLOPs that the
# *model* needs in a second, over those that the devices could do.
#
# ### Exercise: MFU from a training log


# %%
# %%exercise mfu
def mfu(
    tokens_per_second: float, flops_per_token: float, num_devices: int, peak_flops_per_second: float
) -> float:
    """Model FLOPs per second over what the devices could do, 0 to 1."""
    return ...


# %% [markdown]
# **Predict:** our small model takes a step here. Its products are of a middling size, and between them are norms, a softmax, and
# an optimizer. Will it reach 90 % of the peak, 50 %, 10 %?

# %%
# %%ranks --into stepped
for _ in range(2):  # the first steps make the optimizer's state
    optimizer.zero_grad()
    model(words, words).backward()
    optimizer.step()
with measure(model, optimizer, memory=False, traffic=False) as step:
    for _ in range(5):
        optimizer.zero_grad()
        model(words, words).backward()
        optimizer.step()
best = min(step.steps, key=lambda one: one.total_seconds)
report(
    total=best.total_seconds,
    forward=best.forward_seconds,
    backward=best.backward_seconds,
    optimizer=best.optimizer_seconds,
)

# %%
best = stepped[0]
reached = mfu(tokens / best.total, 3 * sum(parts.values()), 1, peak)
for phase in ("forward", "backward", "optimizer"):
    print(f"{phase:<10} {best[phase] * 1e3:7.1f} ms   {best[phase] / best.total:5.1%} of the step")
print(f"{tokens / best.total:,.0f} tokens a second, MFU {reached:.0%} of the fastest product seen")
assert 0 < reached < 1

# %%
# %ranks stop

# %% [markdown]
# ## Compare
#
# What is lacking to 100 % went into everything that is no large product: norms and activations, which move many bytes for few
# FLOPs; products too small to be fast; and the start of a few thousand operators. With several devices, waiting for each other
# comes on top.
#
# What do large runs reach? Llama 3 405B reports 38 to 43 % (Dubey et al., 2024, table 4). Others do not say, but you can work it
# out: Llama 2's authors published their GPU hours, on A100 (peak 312 TFLOP/s in bf16), for 2 trillion tokens each (Touvron et
# al., 2023, table 2). Hours and tokens give tokens per second.

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

a100 = catalogue.device("A100-80GB").peak("bf16")
for name, gpu_hours in [("llama-2-7b", 184_320), ("llama-2-13b", 368_640), ("llama-2-70b", 1_720_320)]:
    model = catalogue.model(name)
    per_token = train_flops(model.num_params, 1, model.num_layers, model.hidden_size, seq_len=4_096)
    share = mfu(2e12 / (gpu_hours * 3600), per_token, 1, a100)
    print(
        f"{name:<12} {model.num_params / 1e9:5.1f}B parameters   {gpu_hours:>9,} GPU hours   MFU {share:.0%}"
    )

# %% [markdown]
# Most reports on training quote such a share. You know now what stands above and below its line. When you compare two of them,
# ask: was recomputation counted (then it is HFU)? Was the masked half of attention? Which peak?
#
# ## At scale: how many days?
#
# ### Exercise: one division


# %%
# %%exercise days_to_train
def days_to_train(flops: float, num_devices: int, peak_flops_per_second: float, mfu: float) -> float:
    """Days of a training run; mfu is a share of the peak, 0 to 1."""
    return ...


# %% [markdown]
# The question from the top. 70 billion parameters, 15 trillion tokens, 1,024 H100 with 989 TFLOP/s each, half of it reached:

# %% tags=["nbval-check-output"]
from workshop.predict.cost import training_cost

h100s = catalogue.cluster("1024xH100")
by_hand = days_to_train(6 * 70e9 * 15e12, h100s.num_devices, h100s.device.peak("bf16"), mfu=0.5)
on_paper = training_cost(70e9, 15e12, h100s, mfu=0.5)
print(f"by hand    {by_hand:.0f} days")
print(f"predicted  {on_paper}")
assert round(by_hand) == 144
assert abs(on_paper.days - by_hand) < 0.5

# %% [markdown]
# A season: 144 days. And what would change it? Here is the same run with other devices, and with other shares of their peak.

# %% tags=["nbval-check-output"]
print(f"{'1,024 of':<14}" + "".join(f"   MFU {share:.0%}" for share in (0.3, 0.4, 0.5)))
for device_name in ("A100-80GB", "H100", "B200"):
    peak = catalogue.device(device_name).peak("bf16")
    days = [days_to_train(6 * 70e9 * 15e12, 1024, peak, share) for share in (0.3, 0.4, 0.5)]
    print(f"{device_name:<14}" + "".join(f"{number:>7,.0f} d" for number in days))

# %% [markdown]
# Try it with other models, tokens and devices. This count includes the attention core, so it says more than 144. (Without widgets you see the
# first picture only.)

# %%
from workshop.jupyter.widgets import time_to_train

time_to_train("llama-3-70b", "H100", 1024, tokens=15e12, mfu=0.5)

# %% [markdown]
# From 30 to 50 % is nearly a hundred days saved on H100. Nobody gives you that share: it is made, by everything in the days to come.
#
# ## What to take away
#
# - A product of $(m, k)$ by $(k, n)$ costs $2mkn$ FLOPs. **Training costs 6 FLOPs a parameter and token**, 2 forward and 4
#   backward.
# - The attention core adds $12Lhs$ a token. In short sequences it is little, in long ones it is most.
# - A device reaches its peak in large products only. Left of the roofline's ridge, memory decides.
# - **MFU** counts what the model needs; HFU also counts what was done twice. Large published runs: 38 to 46 %.
# - Days = FLOPs / (devices x peak x MFU). 70B on 15T tokens on 1,024 H100 at 50 %: 144 days.
#
# Next: [13_memory_of_a_step](13_memory_of_a_step.ipynb), where the memory goes.
#
# ## Sources
#
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, arXiv:2001.08361, section 2.1 (2 and 4 FLOPs a parameter).
# - A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, arXiv:2204.02311, appendix B (MFU, attention's 12Lhs).
# - S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*, CACM
#   52(4), 2009.
# - T. Dao et al., *FlashAttention*, arXiv:2205.14135 (scores computed again in backward).
# - H. Touvron et al., *Llama 2: Open Foundation and Fine-Tuned Chat Models*, arXiv:2307.09288, table 2 (GPU hours).
# - A. Dubey et al., *The Llama 3 Herd of Models*, arXiv:2407.21783, table 4 (MFU).
# - NVIDIA, *H100 Tensor Core GPU* and *A100 Tensor Core GPU* data sheets (dense peaks: 989 and 312 TFLOP/s in bf16).
