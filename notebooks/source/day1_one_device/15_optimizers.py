# %% [markdown]
# # What does the optimizer remember?
#
# - **You need** `13_memory_of_a_step` (weights, gradients, optimizer).
# - **It takes** 25 minutes to read and try, under half a minute to run.
# - **What runs where:** all of it here, on a CPU or unchanged on a GPU, but for the 8-bit states of bitsandbytes, of which each device has its own kernels.
# - **Links:** before this [14_mixed_precision](14_mixed_precision.ipynb), after it [17_profile_and_monitor](17_profile_and_monitor.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A gradient says which way is down, now. An optimizer *remembers*: how it went before, how large the gradients were. Each number remembered for each weight is 4 bytes. For AdamW
# that is twice the model. Does it have to be so much?

# %%
# %load_ext workshop
import math
import time

import torch

from workshop import show
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.train.optimizers import STATE, build_optimizers

SHAPE = GPTConfig(
    vocab_size=256,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=176,
    tied=True,
)
device = torch.accelerator.current_accelerator() or torch.device("cpu")


def fresh(shape=SHAPE):
    torch.manual_seed(0)
    return GPT(shape).to(device)


num_params = sum(p.numel() for p in fresh().parameters())
print(f"{num_params:,} parameters")

# %% [markdown]
# ## AdamW, by hand
#
# Two moments for each weight: the mean of the gradients, and of their squares. The step is the one divided by the root of the other, so that every weight moves about as far as the rate says. Both moments
# begin at zero and are corrected for it. The decay shrinks the weight and is no part of the gradient (Loshchilov and Hutter, 2017).
#
# ### Exercise: one step


# %%
# %%exercise adamw_step
import numpy as np

RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def adamw_step(weight, gradient, first, second, step):
    """The new weight and moments. The decay shrinks the weight; it is no part of the gradient."""
    first = BETA1 * first + (1 - BETA1) * gradient
    second = ...
    corrected_first, corrected_second = ..., ...  # both begin at zero: divide by what is missing
    weight = ...
    return weight, first, second


# %% [markdown]
# Yours beside PyTorch's, ten steps:

# %% tags=["nbval-check-output"]
import numpy as np

generator = np.random.default_rng(0)
mine, first, second = generator.normal(size=8), np.zeros(8), np.zeros(8)
theirs = torch.nn.Parameter(torch.tensor(mine))
optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for step in range(1, 11):
    gradient = generator.normal(size=8)
    mine, first, second = adamw_step(mine, gradient, first, second, step)
    theirs.grad = torch.tensor(gradient)
    optimizer.step()
assert np.allclose(mine, theirs.detach().numpy(), atol=1e-12)
print("ten steps by hand and torch.optim.AdamW: equal to 1e-12")

# %% [markdown]
# ## Predict: bytes for each parameter
#
# - **SGD with momentum** and **Lion** keep one moment. Lion steps by its *sign* (Chen et al., 2023).
# - **Adafactor** keeps of a matrix of squares only the sums of its rows and columns: nearly nothing (Shazeer and Stern, 2018).
# - **8-bit AdamW** keeps both moments in a byte each, with a scale for every block of 256 (Dettmers et al., 2021). bitsandbytes leaves small tensors in fp32; here we ask it for all.
#
# Say the bytes for each before you run the next cell.

# %%
import bitsandbytes

RATES = {"sgd-momentum": 0.1, "lion": 6e-4, "adafactor": 0.02, "adamw": 3e-3}


def build(name, model, rate):
    if name == "8-bit adamw (bitsandbytes)":
        return [bitsandbytes.optim.AdamW8bit(model.parameters(), lr=rate, betas=(0.9, 0.95), min_8bit_size=0)]
    return build_optimizers(name, model, rate)


def state_bytes(optimizers):
    """Bytes of all tensors kept, shared ones once, step counters left out."""
    kept = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.numel() > 1 and not name.startswith("qmap"):
                    kept[value.data_ptr()] = value.nbytes
    return sum(kept.values())


# %% [markdown]
# ## Run
#
# The same small Llama, the same pages of Python's manual, the same order.

# %%
STEPS, text = 60, TextBatches(seq_len=32, global_batch=8)
curves, held = {}, {}
for name, rate in {**RATES, "8-bit adamw (bitsandbytes)": RATES["adamw"]}.items():
    model = fresh()
    optimizers, losses = build(name, model, rate), []
    for step in range(STEPS):
        ((tokens, targets),) = text.step(step, device)
        loss = model(tokens, targets)
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    curves[name] = {s: sum(losses[s - 10 : s]) / 10 for s in range(10, STEPS + 1, 10)}
    held[name] = state_bytes(optimizers) / num_params

# %% [markdown]
# ## Compare

# %%
blocks = 2 * (1 + 4 / 256)  # two moments of a byte, and a scale of 4 bytes for each 256
sums = sum(p.shape[0] + p.shape[1] if p.ndim == 2 else p.numel() for p in fresh().parameters())
predicted = {name: STATE[name].bytes_per_parameter() for name in RATES}
predicted |= {"8-bit adamw (bitsandbytes)": blocks, "adafactor": 4 * sums / num_params}
print(f"{'':<28} bytes a parameter      loss of the last ten steps")
for name in curves:
    print(f"{name:<28} {held[name]:.3f}, predicted {predicted[name]:.3f}   {curves[name][STEPS]:.2f}")
    assert abs(held[name] - predicted[name]) < 0.05
    assert curves[name][STEPS] < curves[name][10]
eight, full = curves["8-bit adamw (bitsandbytes)"][STEPS], curves["adamw"][STEPS]
assert abs(eight / full - 1) < 0.05
show.scores_by_step(curves, "loss, mean of ten steps")

# %% [markdown]
# The bytes are as predicted, and a quarter of them gives AdamW's curve. (On a model this small Adafactor's sums are not nothing: 1/rows + 1/columns of a matrix.) Do not read the order of the others as a ranking: each has its own best rate,
# and nobody looked for it here.
#
# ## The same arithmetic, three ways
#
# PyTorch has AdamW as a *loop* over tensors, as *foreach* (one call for all tensors and each operation, with temporaries as large as the model) and *fused* (one kernel for the whole update).

# %%
WIDE = GPTConfig(
    vocab_size=256,
    hidden_size=128,
    num_layers=6,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=352,
    tied=True,
)
ways = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
ready = {}
for name, options in ways.items():
    model = fresh(WIDE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    ready[name] = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    ready[name].step()
best = dict.fromkeys(ways, math.inf)
for _ in range(20):  # in turns, the best of each
    for name, optimizer in ready.items():
        started = time.perf_counter()
        optimizer.step()
        best[name] = min(best[name], time.perf_counter() - started)
print({name: f"{1e3 * seconds:.1f} ms" for name, seconds in best.items()})
assert best["fused"] < best["loop"]

# %% [markdown]
# ## The optimizer inside backward
#
# AdamW treats each parameter alone. So why wait until all gradients are there? Step a parameter in a hook, as soon as its gradient is complete, and free the gradient at once:

# %%
import gc
import inspect

from workshop.measure import count_from_here, held_bytes
from workshop.train.in_backward import InBackward

print(inspect.getsource(InBackward._step))


def held_after_backward(inside):
    """Bytes held at the end of the second backward, and the loss after it."""
    gc.collect()
    count_from_here()
    model = fresh(WIDE)
    optimizer = InBackward(model) if inside else build_optimizers("adamw", model, 1e-3)[0]
    tokens = torch.arange(16, device=device)[None]
    for _ in range(2):
        model(tokens, tokens).backward()
        held = held_bytes()
        if not inside:
            optimizer.step()
            optimizer.zero_grad()
    return held, model(tokens, tokens).item()


after, inside = held_after_backward(False), held_after_backward(True)
weights = 4 * sum(p.numel() for p in fresh(WIDE).parameters())
print(
    f"held, in multiples of the weights: {after[0] / weights:.2f} step after backward, {inside[0] / weights:.2f} inside"
)
assert abs(after[1] - inside[1]) < 1e-4  # the same loss after two steps
assert abs(after[0] / weights - 4) < 0.05
assert abs(inside[0] / weights - 3) < 0.05

# %% [markdown]
# Weights, gradients and two moments are **four** times the weights; without gradients, **three**. The results are the same. What is lost: nothing may need all gradients at once, so no clipping by the global norm and no accumulation.
#
# ## At scale

# %% tags=["nbval-check-output"]
for name in ("adamw", "adamw-8bit", "lion", "adafactor"):
    per = STATE[name].bytes_per_parameter()
    print(f"{name:<12} {per:.0f} bytes a parameter: {70e9 * per / 1e9:5.0f} GB for 70 billion")

# %% [markdown]
# (Adafactor's sums of rows and columns are too few to show here.) 560 GB for AdamW: seven H100s that hold nothing else. That is what ZeRO divides (`24_zero`), and what 8-bit states cut to a quarter.
#
# ## What to take away
#
# - State is moments times bytes of each: 8 for AdamW, 4 for Lion, 2 in 8 bits, nearly 0 for Adafactor.
# - 8-bit states follow AdamW's curve at a quarter of its bytes.
# - Fused does in one kernel what a loop does in many. Same numbers, less time.
# - Stepping inside backward saves the gradients, where nobody needs them all at once.
#
# ## Sources
#
# - D. Kingma, J. Ba, *Adam*, 2014, arXiv:1412.6980; I. Loshchilov, F. Hutter, *Decoupled Weight Decay Regularization*, 2017, arXiv:1711.05101.
# - X. Chen et al., *Symbolic Discovery of Optimization Algorithms* (Lion), 2023, arXiv:2302.06675.
# - N. Shazeer, M. Stern, *Adafactor*, 2018, arXiv:1804.04235.
# - T. Dettmers et al., *8-bit Optimizers via Block-wise Quantization*, 2021, arXiv:2110.02861.
# - K. Lv et al., *Full Parameter Fine-tuning for Large Language Models with Limited Resources* (LOMO), 2023, arXiv:2306.09782.
#
# Next: [17_profile_and_monitor](17_profile_and_monitor.ipynb), where the seconds of a step go. On day 2, `24_zero` divides this state.
