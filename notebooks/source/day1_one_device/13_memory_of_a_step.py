# %% [markdown]
# # Where does the memory go?
#
# - **You need** `12_flops_and_mfu`; a training step in PyTorch.
# - **It takes** 30 minutes to read and try, under a minute to run.
# - **What runs where:** the small model is trained here, on one rank, on CPU or GPU with the same cells. The model of 7 billion
#   parameters is *rehearsed* here: its real code runs, on tensors without bytes. One table comes from a cluster.
# - **Links:** before this [12_flops_and_mfu](12_flops_and_mfu.ipynb), after it [14_mixed_precision](14_mixed_precision.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# "Out of memory" is the most common end of a training run, and the least understood. A model of 7 billion parameters takes 14 GB
# on disk. A GPU has 80 GB. Why does it not train on it? Who holds the rest, from when to when, and what can be had back?

# %%
# %load_ext workshop
from workshop import show
from workshop.facts.units import format_bytes

# %% [markdown]
# ## Loading a model
#
# Begin with the least: only the weights, to look at the model or to run it. Four bytes each in fp32, two in fp16 or bf16.

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

print(f"{'':<10} {'fp32':>10} {'16 bits':>10}")
for name, parameters in [("7B", 7e9), ("13B", 13e9), ("70B", 70e9), ("GPT-3", 175e9)]:
    print(f"{name:<10} {4 * parameters / 1e9:>7,.0f} GB {2 * parameters / 1e9:>7,.0f} GB")

# %% [markdown]
# ## What training adds: state
#
# A step needs a gradient for every weight. An optimizer remembers: AdamW keeps a mean of the gradient and a mean of its square.
# In **mixed precision** weights and gradients have 16 bits, but a small update would be lost in so few. So the optimizer keeps a
# master copy of the weights in fp32, and updates that.
#
# | bytes a parameter, AdamW | fp32 | mixed precision |
# |---|---|---|
# | weight | 4 | 2 |
# | gradient | 4 | 2 |
# | master copy | | 4 |
# | two moments | 8 | 8 |
#
# ### Exercise: add it up


# %%
# %%exercise step_bytes
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    return ...


# %% tags=["nbval-check-output"]
seven = 7_000_000_000
gib = [round(seven * n / 2**30) for n in (4, 4, 8)]
print(f"7B in fp32: {gib[0]} + {gib[1]} + {gib[2]} = {sum(gib)} GiB of weights, gradients and moments")
print(f"a parameter: {step_bytes(1)} bytes in fp32, {step_bytes(1, value_bytes=2)} in mixed precision")
eight_h100 = 8 * 80 * 10**9
print(f"8 H100 of 80 GB hold the state of {eight_h100 / step_bytes(1) / 1e9:.0f} billion parameters at most")
assert gib == [26, 26, 52]
assert sum(gib) == round(step_bytes(seven) / 2**30)

# %% [markdown]
# **16 bytes a parameter**, in either precision (Rajbhandari et al., 2020, section 3.1). So the model of 14 GB asks for 112 before
# it has seen a token. And if eight GPUs share the work perfectly, 40 billion parameters are the end.
#
# ## What training adds: activations
#
# Backward needs what forward computed: a linear layer needs its input to make the gradient of its weights, a norm needs its
# input, and so on. Everything that is kept for that is an **activation**. Korthikanti et al. (2022, equation 1) went through a
# GPT layer and counted. In 16 bits, with $s$ tokens, $b$ sequences, width $h$ and $a$ heads, one layer keeps
#
# $$s\,b\,h\,\left(34 + 5\,\frac{a\,s}{h}\right)\ \text{bytes}.$$
#
# The 34 are inputs of linear layers, norms and dropout. The second part is the attention core: softmax and dropout over $s \times
# s$ scores in each head. It grows with the *square* of the sequence.
#
# Some of it need not be kept. **Activation checkpointing**, or recomputation, throws it away in forward and computes it again in
# backward (Chen et al., 2016). *Full*: only each layer's input stays. *Selective*: the core goes, all else stays.
#
# ### Exercise: what a layer keeps


# %%
# %%exercise activation_bytes
def activation_bytes(
    seq_len: int, micro_batch: int, hidden_size: int, num_heads: int, recompute: str = "none"
) -> float:
    """Bytes one layer keeps for backward; recompute is "none", "selective" or "full"."""
    return ...


# %% tags=["nbval-check-output"]
for name in ("gpt3-6.7b", "gpt3-175b"):
    model = catalogue.model(name)
    sizes = {
        recompute: model.num_layers
        * activation_bytes(2_048, 1, model.hidden_size, model.num_heads, recompute)
        for recompute in ("none", "selective", "full")
    }
    print(f"{name:<10} one sequence of 2,048:", ", ".join(f"{k} {v / 1e9:.1f} GB" for k, v in sizes.items()))

# %% [markdown]
# ## A step, three times
#
# Now a real one, small enough to train here. Here is all of its code: a Llama of four layers, AdamW, two steps. It is a plain
# function, because we will run it in two different ways. The part in the middle is PyTorch's checkpointing. `"full"` wraps each
# layer whole. `"selective"` keeps the results of matrix products and of attention, which are dear to compute, and makes norms and
# nonlinearities again, which are cheap. (Modern attention kernels keep no scores: the core has nothing left to drop.)


# %%
def two_steps(recompute="none", accumulation=1, batch=4, seq_len=256, **shape):
    """Train a Llama for two steps; `batch` sequences a step, in `accumulation` micro-batches."""
    from functools import partial

    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    from workshop.models.gpt import GPT, GPTConfig

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    config = GPTConfig(**{"vocab_size": 1024, "num_kv_heads": 8, **shape})
    model = GPT(config).to(device)

    ops = torch.ops.aten
    dear = [ops.mm.default, ops._scaled_dot_product_flash_attention_for_cpu.default]
    dear += [
        ops._scaled_dot_product_flash_attention.default,
        ops._scaled_dot_product_efficient_attention.default,
    ]
    how = {"full": {}, "selective": {"context_fn": partial(create_selective_checkpoint_contexts, dear)}}
    if recompute != "none":
        for layer in model.model.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, **how[recompute])

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for _ in range(accumulation):
            tokens = torch.randint(config.vocab_size, (batch // accumulation, seq_len), device=device)
            (model(tokens, tokens) / accumulation).backward()  # gradients add up
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# ## Predict
#
# **One: by formula.** `predict_memory` has the list of what each layer keeps, tensor by tensor, for any model. It needs to know
# two habits of our code: the norm is written out, operator by operator, and keeps more than a fused one would; and AdamW is
# fused, so that it needs no room of its own.

# %% tags=["nbval-check-output"]
from dataclasses import replace

from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

small = ModelSpec("small", num_layers=4, hidden_size=256, num_heads=8, ffn_hidden_size=704, vocab_size=1024)
ours = replace(implementation("torch"), norm="eager", step_room=0.0)


def predicted(recompute="none", accumulation=1):
    """The formula's answer for two_steps(recompute, accumulation)."""
    layout = Layout(precision="fp32", recompute=recompute)
    run = Run(
        small, "this-machine", layout, 4 // accumulation, 256, accumulation=accumulation, implementation=ours
    )
    return predict_memory(run)


expected = predicted()
print(f"{small.num_params:,} parameters, state {format_bytes(step_bytes(small.num_params))}")
print(f"predicted peak {format_bytes(expected.peak_bytes)}")

# %% [markdown]
# **Say it before you go on:** when in the step is the peak? At the end of forward, in backward, or in the optimizer?
#
# **Two: by rehearsal.** `rehearse` runs the very function from above in a process of its own, on *fake* tensors: they have a
# shape and a type, but no bytes. Every allocation is written down. Nothing is modelled, so nothing can be forgotten.

# %%
from workshop.rehearse import rehearse

rehearsed = rehearse(two_steps, world_size=1)
rehearsed

# %% [markdown]
# ## Run
#
# **Three: for real.** Four variants, each measured from its first tensor to its last. `measure` notes each allocation, and finds
# out what it is for by looking at who holds it.

# %%
# %%torchrun -n 1 --pass two_steps --into measured
import gc

from workshop import report
from workshop.measure import count_from_here, measure

variants = {
    "plain": {},
    "accumulation": {"accumulation": 4},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
}
found = {}
for name, options in variants.items():
    gc.collect()  # what the variant before has left
    count_from_here()
    with measure() as found[name]:
        two_steps(**options)
report(**found)

seconds = dict.fromkeys(variants, float("inf"))
for _ in range(3):  # once more, with nobody watching but the clock; the fastest step counts, noise only adds
    for name, options in variants.items():
        with measure(memory=False, traffic=False) as clock:
            two_steps(**options)
        seconds[name] = min(seconds[name], *(step.total_seconds for step in clock.steps))
report(seconds=seconds)

# %%
plain = measured[0].plain
show.memory_timeline(plain)

# %% [markdown]
# Read it from left to right. The model is built. Forward piles up activations, layer on layer; they are everything that grows.
# Backward takes them down again, and gradients grow in their place. The optimizer's first step makes its two moments, which stay.
# Then the second step begins on a higher floor. The peak is **where the second step turns from forward to backward**. If a run
# survives its second step, it will survive the third.
#
# ## Compare

# %%
show.memory_by_part({"predicted": expected, "rehearsed": rehearsed, "measured": plain})

# %%
for name, peak in [
    ("predicted", expected.peak_bytes),
    ("rehearsed", rehearsed.peak_bytes),
    ("measured", plain.memory.peak_bytes),
]:
    print(f"{name:<10} {peak:>12,} bytes   {peak / plain.memory.peak_bytes - 1:+.2%}")
assert abs(rehearsed.peak_bytes / plain.memory.peak_bytes - 1) < 0.005
assert abs(expected.peak_bytes / plain.memory.peak_bytes - 1) < 0.06

# %% [markdown]
# The formula comes within a percent: it knows the tensors that are kept, and not each one that lives for a moment. The
# rehearsal meets the measurement. Where the rehearsal is exact, you can trust it with a model that you cannot run. We will.
#
# ## What can be had back?
#
# Three of the four variants pay something for memory. What, and how much?

# %%
print(f"{'':<14} {'peak':>11} {'activations':>13} {'FLOPs':>9} {'seconds':>9}")
seconds = measured[0].seconds
for name in ("plain", "accumulation", "selective", "full"):
    one = measured[0][name]
    kept = one.memory.peak_parts.get("activations", 0)
    print(
        f"{name:<14} {format_bytes(one.memory.peak_bytes):>11} {format_bytes(kept):>13}"
        f" {one.flops / plain.flops:>8.2f}x {seconds[name] / seconds['plain']:>8.2f}x"
    )
peaks = {name: measured[0][name].memory.peak_bytes for name in ("plain", "accumulation", "selective", "full")}
assert peaks["full"] < peaks["selective"] < peaks["plain"]
assert peaks["accumulation"] < peaks["plain"]
assert measured[0].selective.flops == plain.flops < measured[0].full.flops

# %% [markdown]
# - **Gradient accumulation** cuts the batch into four micro-batches, one after another. Their gradients add up in `.grad`, and
#   the step is the same. A quarter of the activations lives at a time. No FLOP is added; but small products are slower, and
#   gradients now stay during forward.
# - **Selective** checkpointing halves what is kept, here without one product more: norms and nonlinearities are no products.
# - **Full** checkpointing keeps next to nothing, and runs every layer's forward again. Forward is a third of a step's FLOPs, so
#   that is a third more for the layers. (The head is not repeated.) The peak moves: now it is one layer, unfolded again in
#   backward.
#
# The last column is this machine's, and wavers. On a CPU fresh memory is itself slow to get, so a variant that needs less of it
# may even win. FLOPs are the column that holds on a GPU too.
#
# All three leave the state untouched. Here is what formula and rehearsal said of two of them, beside the measured:

# %%
show.predicted_and_measured(
    ["plain", "accumulation", "full"],
    [predicted().peak_bytes, predicted(accumulation=4).peak_bytes, predicted("full").peak_bytes],
    [peaks["plain"], peaks["accumulation"], peaks["full"]],
    what="bytes at the peak",
)

# %% [markdown]
# ### Exercise: how large may the micro-batch be?


# %%
# %%exercise largest_micro_batch
def largest_micro_batch(memory_bytes: int, state_bytes: int, layer_bytes: float, num_layers: int) -> int:
    """The most sequences whose activations fit beside the state."""
    return ...


# %% [markdown]
# GPT-3's smaller sisters on one H100 of 80 GB, sequences of 2,048 tokens, mixed precision:

# %% tags=["nbval-check-output"]
for name in ("gpt3-760m", "gpt3-2.7b", "gpt3-6.7b"):
    model = catalogue.model(name)
    state = step_bytes(model.num_params, value_bytes=2)
    fits = {}
    for recompute in ("none", "selective", "full"):
        layer = activation_bytes(2_048, 1, model.hidden_size, model.num_heads, recompute)
        fits[recompute] = largest_micro_batch(80 * 10**9, state, layer, model.num_layers)
    print(f"{name:<10} state {state / 1e9:6.1f} GB   " + "   ".join(f"{k} {v:>3}" for k, v in fits.items()))

# %% [markdown]
# For 2.7 billion parameters recomputation decides whether one has a micro-batch worth the name. For 6.7 billion nothing helps:
# the state alone is too large. More tricks on one device will not change that; more devices will, if they *share* the state (day
# 2). These figures leave out logits and temporaries, so they flatter a little.
#
# ## At scale: a model that does not fit here
#
# The same function, the same call. Only the sizes are those of Llama 7B, with a sequence of 4,096 tokens. Each rehearsed tensor
# has its true shape, and none has a byte.

# %%
llama = catalogue.model("llama-7b")
sizes = {
    "batch": 1,
    "seq_len": 4_096,
    "vocab_size": llama.vocab_size,
    "hidden_size": llama.hidden_size,
    "num_layers": llama.num_layers,
    "num_heads": llama.num_heads,
    "num_kv_heads": llama.num_kv_heads,
    "intermediate_size": llama.ffn_hidden_size,
}
seven_rehearsed = rehearse(two_steps, world_size=1, keywords=sizes)
run = Run(llama, "H100", Layout(precision="fp32"), 1, 4_096, implementation=ours)
seven_expected = predict_memory(run)
show.memory_by_part({"predicted": seven_expected, "rehearsed": seven_rehearsed}, cap=80e9)

# %%
peak, used = seven_rehearsed.peak_bytes, seven_rehearsed.child_peak_bytes
print(f"rehearsed {peak / 1e9:.1f} GB with {used / 1e9:.1f} GB of this machine's memory")
print(seven_expected.verdict)
assert abs(seven_expected.peak_bytes / seven_rehearsed.peak_bytes - 1) < 0.06
assert not seven_expected.fits

# %% [markdown]
# There is the answer to the question at the top. Weights and moments alone fill the device. The activations of a single sequence
# take half a device more. And gradients, which are not even there at this peak, would fill a third of it.
#
# Try it: other models, other devices, and the cuts of the days to come. (Without widgets you see the first picture only.)

# %%
from workshop.jupyter.widgets import memory_explorer

memory_explorer(run)

# %% [markdown]
# ## The same on 8 and on 64 GPUs
#
# Korthikanti et al. measured recomputation on A100s: a 22B model on 8 of them, GPT-3 on 64, tensor parallel over $t = 8$. A layer
# then keeps (their table 2), in bytes for each of the $s\,b\,h$ values:
#
# | | |
# |---|---|
# | none | $10 + 24/t + 5as/(ht)$ |
# | sequence parallel | $(34 + 5as/h)/t$ |
# | selective | $10 + 24/t$ |
# | sequence parallel and selective | $34/t$ |
# | full | $2$ |
#
# Sequence parallelism is explained in `31_tensor_parallel`; here it is one line of a table. Predicted beside published (their
# figure 7):

# %% tags=["nbval-check-output"]
from workshop.facts.published import published_table

rows = published_table("korthikanti_2022_seqpar_selective")
t = 8
worst = 0.0
for row in rows:
    if not row["table"].startswith("Figure 7"):
        continue
    core = 5 * int(row["attention_heads"]) * int(row["seq_len_tokens"]) / int(row["hidden_size"])
    kept = {
        "none": 10 + 24 / t + core / t,
        "seq": (34 + core) / t,
        "sel": 10 + 24 / t,
        "seqsel": 34 / t,
        "full": 2,
    }
    share, published = 100 * kept[row["mode"]] / kept["none"], float(row["activations_percent_of_none"])
    worst = max(worst, abs(share - published))
    print(f"{row['model']:<14} {row['mode']:<7} predicted {share:6.2f} %   published {published:6.2f} %")
assert worst < 0.1

# %% [markdown]
# And the time? Full recomputation against sequence parallelism with selective recomputation, which fits into the same devices
# (their table 5):

# %% tags=["nbval-check-output"]
seconds = {
    (row["model"], row["mode"]): float(row["iteration_time_s"]) for row in rows if row["iteration_time_s"]
}
for model_name in ("megatron-22B", "gpt3-175B"):
    full, selective = seconds[model_name, "full"], seconds[model_name, "seqsel"]
    print(
        f"{model_name:<14} full {full:5.2f} s, selective {selective:5.2f} s a step: full takes {full / selective - 1:.0%} longer"
    )

# %% [markdown]
# The authors put the price of full recomputation at 30 to 40 % of the time. A third is what the count of FLOPs says: one forward
# more, on top of three. Sequence parallelism and selective recomputation together bring activations below a fifth, for a few
# percent of the time. That is why they are the default today, and why "just switch on checkpointing" is expensive advice.
#
# ## What to take away
#
# - Training with AdamW holds **16 bytes a parameter**, in fp32 and in mixed precision. 7B: 26 + 26 + 52 = 104 GiB.
# - Activations come on top. They grow with the micro-batch and the sequence, and the peak is where forward turns to backward,
#   from the second step on.
# - **Accumulation** divides activations by cutting the batch, and costs no FLOPs. **Selective** recomputation drops what is cheap
#   to make. **Full** keeps only layer inputs, and costs a third more.
# - None of them touches the state. If that does not fit, it must be shared among ranks.
# - You can know the peak before: by formula to a few percent, by rehearsal to the byte or close to it.
#
# Next: [14_mixed_precision](14_mixed_precision.ipynb), the same in 16 bits. On day 2 the state is divided, in `24_zero` and `25_fsdp`.
#
# ## Sources
#
# - S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC 2020, arXiv:1910.02054,
#   section 3.1.
# - V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, arXiv:2205.05198: equation 1,
#   tables 2 and 5, figure 7. Their figures as quoted in github.com/calculon-ai/calculon, `calculon/llm/validation.py`.
# - T. Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016, arXiv:1604.06174.
# - P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, arXiv:1710.03740 (the fp32 master copy).
# - T. Dao et al., *FlashAttention*, arXiv:2205.14135.
# - PyTorch documentation, `torch.utils.checkpoint`.
