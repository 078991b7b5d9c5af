# %% [markdown]
# # Why does fp16 train badly, and what saves it?
#
# - **You need** `11_numbers_and_tensors` (formats) and `13_memory_of_a_step` (what a step holds).
# - **It takes** 30 minutes to read and try, under a minute to run.
# - **What runs where:** all of it here, on one rank, on CPU or GPU with the same cells. fp16 is slow on most CPUs, so the model is small
#   and the runs are short.
# - **Links:** before this [13_memory_of_a_step](13_memory_of_a_step.ipynb), after it [15_optimizers](15_optimizers.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Matrix units multiply 16-bit numbers many times faster than 32-bit ones, and 16 bits are half the bytes. So one would
# simply train in 16 bits. In fp16 the loss stops falling, or becomes NaN. In bf16 it does not. What is lost, where, and how is it had back?

# %%
# %load_ext workshop
import torch

from workshop import show

# %% [markdown]
# ## Updates vanish
#
# A weight of 1 gets a thousand updates of 0.001. **Say what comes out** in fp32, fp16 and bf16. (From 1, the next number of bf16 is
# 1.0078.)

# %% tags=["nbval-check-output"]
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(1_000):
        weight += 0.001
    print(f"{dtype!s:<15} {weight.item():.4f}")
assert weight == 1  # bf16

# %% [markdown]
# bf16 has not moved at all: each update is less than half a step, and is rounded away. fp16 moved, and by the wrong amount. More digits are the only
# cure. So the weights that take updates stay in fp32: the **master copy**. The 16-bit weights are made from it, anew after each step.
# Every recipe below does that.
#
# ## Gradients vanish
#
# Gradients are small, and the larger the batch, the smaller: the loss is a *mean*. GPT-3's smallest sister was trained on 0.5 million
# tokens a step. On one device those come in many micro-batches, and each one's loss is divided by their number, so
# that the gradients add up to the mean.
#
# Our model sees 256 tokens at once. So 0.5 million are 2,048 micro-batches. We run one of them for each step, with its loss divided by 2,048.

# %%
DIVIDE = 2_048  # micro-batches in a step of 0.5 million tokens
LOWEST, HIGHEST = -50, 0  # powers of two to look at
shape = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 192,
}

# %% [markdown]
# ## Predict
#
# fp16's smallest number is $2^{-24}$. Multiply the loss by $S$ before backward, and by the chain rule each gradient is $S$ times
# larger; it is divided by $S$ again in fp32, where that costs nothing. **Say before you run it:** what share of gradients will be
# zero in fp16? Which $S$ would you take?
#
# ## Run: count the zeros
#
# Ten steps in fp32, so that the gradients are those of a model at work. Then the same batch backward in each format.

# %%
# %%torchrun -n 1 --pass DIVIDE,LOWEST,HIGHEST,shape --into counted
import copy

import torch

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.precision.mixed import MixedTraining, count_gradients, sizes_by_power

device = torch.accelerator.current_accelerator() or torch.device("cpu")
torch.manual_seed(0)
text = TextBatches(seq_len=64, global_batch=4)
model = GPT(GPTConfig(**shape)).to(device)
training = MixedTraining(model, "fp32", lambda p: torch.optim.AdamW(p, lr=4e-3))
for step in range(10):
    for tokens, targets in text.step(step, device):
        training.step(lambda model: model(tokens, targets))

(batch,) = text.step(99, device)
for name, dtype, scale in [
    ("fp32", torch.float32, 1),
    ("fp16", torch.float16, 1),
    ("fp16, S = 2^16", torch.float16, 2**16),
    ("bf16", torch.bfloat16, 1),
]:
    one = copy.deepcopy(model).to(dtype)
    (one(*batch) / DIVIDE * scale).backward()
    gradients = [p.grad.float() / scale for p in one.parameters()]
    report(**{name: (sizes_by_power(gradients, LOWEST, HIGHEST), count_gradients(gradients))})

# %%
found = counted[0]
zeros = {name: count.zero_share for name, (_, count) in found.items()}
sizes = {name: histogram for name, (histogram, _) in found.items()}
show.gradient_sizes(sizes, LOWEST, zeros, {"fp16's smallest": -24})

# %%
always = found["fp32"][1].zeros  # words that are not in the batch
for name, (_, count) in found.items():
    lost = (count.zeros - always) / (count.numbers - always)
    print(f"{name:<15} {count.zeros:>7,} zeros of {count.numbers:,}: {lost:6.1%} of the gradients lost")
assert (found["fp16"][1].zeros - always) / (found["fp16"][1].numbers - always) > 0.2
for name in ("fp16, S = 2^16", "bf16"):
    assert abs(found[name][1].zeros - always) < 0.005 * found[name][1].numbers

# %% [markdown]
# The filled shape is fp32: most gradients lie below $2^{-24}$ or just above. fp16 has cut the shape off, and what is left stands on a few
# lines, the last values it has. Backward goes through all layers in fp16, so what vanishes at the top is missing everywhere below.
# With $S$ nothing is lost. bf16 loses nothing by itself: it has fp32's exponent.
#
# ## Who finds S?
#
# Too small, and gradients vanish. Too large, and they overflow: 65,504 is the end. The right one changes during training. So it is
# found by trying, all the time.
#
# ### Exercise: the decision


# %%
# %%exercise next_scale
def next_scale(scale: float, good_steps: int, finite: bool, interval: int) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps in a row, and whether the optimizer may step."""
    if not finite:
        return ...
    good_steps += 1
    ...
    return scale, good_steps, True


# %% [markdown]
# ## Run: train
#
# Twelve steps, by seven recipes, from the same weights on the same text. Your `next_scale` decides in the fourth, which begins at $2^{31}$
# and doubles after three good steps (PyTorch's own waits for 2,000). `amp-` recipes are `torch.autocast`: fp32 weights, and a list of
# operators that get 16-bit copies.

# %%
# %%torchrun -n 1 --pass DIVIDE,shape,next_scale --into trained
import copy

import torch

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.text import TextBatches
from workshop.precision.mixed import LossScaler, MixedTraining

device = torch.accelerator.current_accelerator() or torch.device("cpu")
text = TextBatches(seq_len=64, global_batch=4)


class YourScaler(LossScaler):
    def update(self, finite):
        self.value, self.good_steps, _ = next_scale(self.value, self.good_steps, finite, self.interval)


def adamw(parameters):  # the loss is divided, so gradients are small: eps must be smaller still
    return torch.optim.AdamW(parameters, lr=4e-3, eps=1e-15)


RECIPES = {
    "fp32": ("fp32", None),
    "fp16": ("fp16", None),
    "fp16, S = 2^16": ("fp16", LossScaler(2.0**16)),
    "fp16, your S": ("fp16", YourScaler(2.0**31, interval=3)),
    "amp-fp16, GradScaler": ("amp-fp16", torch.amp.GradScaler(device.type)),
    "bf16": ("bf16", None),
    "amp-bf16": ("amp-bf16", None),
}


@torch.no_grad()
def unseen_loss(model):
    """In fp32, on text that training does not reach."""
    one = copy.deepcopy(model).float()
    losses = [one(*batch) for step in range(400, 410) for batch in text.step(step, device)]
    return torch.stack(losses).mean().item()


for name, (recipe, scaler) in RECIPES.items():
    torch.manual_seed(0)
    training = MixedTraining(GPT(GPTConfig(**shape)).to(device), recipe, adamw, scaler, DIVIDE)
    steps = []
    for step in range(12):
        for tokens, targets in text.step(step, device):
            steps.append(training.step(lambda model: model(tokens, targets)))
    report(**{name: {"steps": steps, "unseen": unseen_loss(training.model)}})

# %% [markdown]
# ## Compare

# %%
runs = trained[0]
show.training_curves(
    {name: [step.loss for step in run["steps"]] for name, run in runs.items()},
    {name: [step.scale for step in runs[name]["steps"]] for name in ("fp16, your S", "amp-fp16, GradScaler")},
    "loss scale S",
    log2=True,
)

# %%
reference = runs["fp32"]["unseen"]
start = runs["fp32"]["steps"][0].loss
for name, run in runs.items():
    zero = sum(step.gradients.zeros for step in run["steps"]) / sum(
        step.gradients.numbers for step in run["steps"]
    )
    skipped = sum(step.skipped for step in run["steps"])
    print(
        f"{name:<22} loss on unseen text {run['unseen']:.3f}   zeros {zero:5.1%}   skipped {skipped} of 12 steps"
    )
learned = {name: (start - run["unseen"]) / (start - reference) for name, run in runs.items()}
assert learned["fp16"] < 0.9
for name in ("fp16, S = 2^16", "amp-fp16, GradScaler", "bf16", "amp-bf16"):
    assert abs(runs[name]["unseen"] / reference - 1) < 0.02, name
skips = [step.skipped for step in runs["fp16, your S"]["steps"]]
assert skips[0]
assert not all(skips)

# %% [markdown]
# - Plain **fp16** falls behind: most of its gradients are zero, and Adam makes large steps of the few that are left.
# - With **S** it follows fp32. $2^{16}$ was a good guess. Your scaler began too high: it skipped steps until nothing
#   overflowed, and then tried a larger S again and again. Each overflow costs a step, which is why PyTorch waits for 2,000.
# - **bf16** follows fp32 without any of it. That is why nearly everyone trains in bf16 today, on devices that have it.
# - **autocast** and masters by hand learn the same. They keep different things twice.
#
# ## Where the weights live twice
#
# Bytes a parameter, with Adam. With masters: 2 (weights) + 2 (gradients) + 4 (master) + 8 (moments). With autocast: 4 + 4 + 8, and while
# backward waits, a 16-bit copy of each matrix: 2 more. **Both come to 16 after backward.** Measured on a wider model; a batch of
# two tokens, so that activations are next to nothing:

# %%
# %%torchrun -n 1 --into held
import gc

import torch

from workshop import report
from workshop.facts.precision import precision
from workshop.measure import count_from_here, held_bytes
from workshop.models.gpt import GPT, GPTConfig
from workshop.precision.mixed import MixedTraining

device = torch.accelerator.current_accelerator() or torch.device("cpu")
PREDICTED = {"fp32": "fp32", "bf16": "deepspeed-bf16", "amp-bf16": "amp-bf16"}


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def held_while_training(recipe):
    """Bytes a parameter at three moments of the second step; the first has made the moments."""
    gc.collect()
    count_from_here()
    config = GPTConfig(hidden_size=512, intermediate_size=1408)
    training = MixedTraining(GPT(config).to(device), recipe, adamw)
    numbers, seen = sum(p.numel() for p in training.model.parameters()), {}
    tokens = torch.zeros(1, 2, dtype=torch.long, device=device)

    def note(moment):
        seen[moment] = held_bytes() / numbers

    def loss_of(model):
        loss = model(tokens, tokens)
        note("forward")
        return loss

    for parameter in training.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: note("backward"))  # the last one stays
    training.optimizer.register_step_pre_hook(lambda *_: note("update"))
    for _ in range(2):
        training.step(loss_of)
    return seen


for recipe, known_as in PREDICTED.items():
    known = precision(known_as)
    expected = known.params + known.grads + known.master + 2 * known.moments
    report(**{recipe: {"expected": expected, **held_while_training(recipe)}})

# %%
for recipe, found in held[0].items():
    moments = "   ".join(f"{moment} {found[moment]:5.2f}" for moment in ("forward", "backward", "update"))
    print(f"{recipe:<9} bytes a parameter at the end of {moments}   predicted {found['expected']:.0f}")
    assert abs(found["backward"] - found["expected"]) < 0.2
assert 13 < held[0]["amp-bf16"]["forward"] < 14.3  # 4 + 8, and the casts of the matrices
assert held[0]["bf16"]["forward"] < 14.2  # 2 + 4 + 8

# %% [markdown]
# (`update` is the moment before the optimizer steps.) With masters ours holds 18 there: the 16-bit gradients are gone, and
# their fp32 copies have 4 bytes each. Megatron-LM keeps fp32 gradients all the time, 18 bytes. Mixed precision saves no state at all.
# It saves **activations**, half of them, and time.
#
# ## Speed
#
# Is 16 bits faster? That depends on the device, and you should ask yours:

# %%
# %%torchrun -n 1 --into speed
import time

import torch

from workshop import report

device = torch.accelerator.current_accelerator() or torch.device("cpu")
size = 256 if device.type == "cpu" else 8_192


def seconds(dtype):
    """Of a linear layer's forward, the best of three."""
    layer = torch.nn.Linear(size, size, bias=False, device=device, dtype=dtype)
    x, times = torch.randn(size, size, device=device, dtype=dtype), []
    with torch.no_grad():
        layer(x)
        for _ in range(3):
            if device.type != "cpu":
                torch.accelerator.synchronize()
            start = time.perf_counter()
            layer(x)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - start)
    return min(times)


names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
on_cpu = device.type == "cpu"
units = {
    "bf16": not on_cpu or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
    "fp16": not on_cpu or bool(torch.cpu.get_capabilities().get("amx_fp16")),
}
report(device=device.type, seconds={name: seconds(dtype) for name, dtype in names.items()}, units=units)

# %%
times, units = speed[0].seconds, speed[0].units
for name, took in times.items():
    print(
        f"{name}: {took / times['fp32']:7.2f} x fp32's time"
        + ("" if name == "fp32" else f"   units for it here: {units[name]}")
    )

# %% [markdown]
# A processor multiplies what it has instructions for. CPUs with AVX512-BF16 or AMX multiply bf16, and are several times faster with it than with
# fp32. Where there are none, each number is turned to fp32 and back, in slow code: tens of times slower. Hardly any CPU
# multiplies fp16. On a GPU both run in the same units, at the same speed. So on a CPU without units, 16 bits are worth it for memory only.
#
# ## At scale
#
# What the data sheet says, and what it means for a model of 8 billion parameters on eight H100s, state sharded:

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory
from workshop import predict_step

device = catalogue.device("H100")
for recipe in ("fp32", "fsdp-bf16", "deepspeed-bf16"):
    layout = Layout(shard=8, zero=3, precision=recipe, recompute="selective")
    run = Run("llama-3-8b", "8xH100", layout, micro_batch=1, seq_len=4_096)
    memory, seconds = predict_memory(run).peak_bytes / 1e9, predict_step(run).seconds
    print(f"{recipe:<15} {memory:5.1f} GB a GPU   {seconds:5.2f} s a step")
print(
    f"H100, dense: fp32 {device.peak('fp32') / 1e12:.0f}, tf32 {device.peak('tf32') / 1e12:.0f}, bf16 {device.peak('bf16') / 1e12:.0f} TFLOP/s"
)

# %% [markdown]
# ## What to take away
#
# - 16 bits lose three things: small **updates** (cure: fp32 masters), small **gradients** (cure: loss scaling; fp16 only), and digits in
#   **sums** (cure: fp32 accumulation).
# - Loss scaling: multiply the loss by S, divide the fp32 gradients by S. Overflow: skip and halve. N good steps: double.
# - **bf16 needs masters and no scaling.** Take it where you can.
# - Mixed precision does not shrink the state: 16 bytes a parameter either way. It halves activations, and is faster where there are units
#   for it. Ask your device.
#
# Next: [15_optimizers](15_optimizers.ipynb), what the optimizer remembers. Scaling comes back, for every tensor, in `41_fp8_scaling`.
#
# ## Sources
#
# - P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, arXiv:1710.03740, section 3.
# - T. Brown et al., *Language Models are Few-Shot Learners*, 2020, arXiv:2005.14165, table 2.1 (a batch of 0.5 million tokens for 125M).
# - S. Rajbhandari et al., *ZeRO*, SC 2020, arXiv:1910.02054, section 3.1 (16 bytes a parameter).
# - D. Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, arXiv:1905.12322.
# - PyTorch documentation: *Automatic Mixed Precision package* (operators by list), `torch.amp.GradScaler` (2^16, 2,000 steps).
# - NVIDIA, *H100 Tensor Core GPU* data sheet.
