# %% [markdown]
# # Why does fp16 train badly, and what saves it?
#
# - **You need** `11_numbers_and_tensors` (formats) and `13_memory_of_a_step` (what a step holds).
# - **It takes** 45 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, with the same cells on CPU or GPU. fp16 is slow on most CPUs, so the model is small and the
#   runs are short. One table predicts a run on eight H100s.
# - **Model and text:** `TINY` on its text, Python's reference manual. Where a table counts bytes a parameter, the model is eight times as
#   wide, so that the activations of two tokens are negligible beside the state.
# - **Links:** before this [13_memory_of_a_step](13_memory_of_a_step.ipynb), after it [15_optimizers](15_optimizers.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A GPU multiplies matrices of 16-bit numbers many times faster than matrices of 32-bit numbers, and 16 bits take half the bytes. So why not
# simply train in 16 bits? The reason is that something is lost on the way. What is lost, where is it lost, and how do you get it back?

# %%
# %load_ext workshop
import itertools
import math
import os
from dataclasses import replace

import torch

from workshop import launch, show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = f"{folder}/train_amp.pt"  # for the script at the end
torch.set_num_threads(1)  # the matrices are too small for more threads to help
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")

# %% [markdown]
# ## First loss: updates vanish
#
# Training adds a small number to a larger one, over and over again.

# %%
# %%guess weight
# A weight of 1 gets a thousand updates of +0.001, in bf16. What is it afterwards?
# (In exact arithmetic it is 2. The next bf16 number above 1 is 1.0078.)
...

# %% tags=["nbval-check-output"]
after = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(1_000):
        weight += 0.001
    after[dtype] = weight.item()
    print(f"{dtype!s:<15} {weight.item():.4f}")
assert after[torch.bfloat16] == 1
assert after[torch.float16] == 1 + 1_000 * torch.finfo(torch.float16).eps

# %%
beside("weight", predicted=1, measured=after[torch.bfloat16])

# %% [markdown]
# In bf16 the weight has not moved at all. Half a step between two numbers is 0.0039 there, and each update is smaller than that, so it is
# rounded away. In fp16 a step is 0.00098, so each update was rounded to one step, and a thousand of them are 0.9766.
#
# How small may an update be? With $m$ mantissa bits, the next number after 1 is $1 + 2^{-m}$, and an update of half that step is rounded
# away. So an update is lost if the weight is $2^{m+1}$ times as large. (This holds for a weight that is a power of two. Just below the next
# one the steps are still as small, so there an update survives until the weight is twice that many times as large.) For fp16, $2^{m+1}$ is
# 2,048, the number that Micikevicius et al. report (2018, section 3.1). The next cell halves an update until the weight no longer moves:

# %% tags=["nbval-check-output"]
lost_from = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight, times_smaller = torch.ones((), dtype=dtype), 1
    while weight + 1 / times_smaller != weight:
        times_smaller *= 2
    predicted = 2 / torch.finfo(dtype).eps  # eps is the step at 1, so 2^-m
    lost_from[dtype] = times_smaller
    at = f"lost at 1/{times_smaller:,} of the weight"
    print(f"{dtype!s:<15} {at}, predicted 1/{predicted:,.0f}")
    assert times_smaller == predicted
assert lost_from[torch.float16] == 2_048, "the paper's number"

# %% [markdown]
# More digits help. So the weights that receive the updates stay in fp32. They are called **master weights**, and after each step the 16-bit
# weights are made from them again.
#
# ## Second loss: sums lose digits
#
# The same happens inside a long sum, and a matrix product contains many long sums. Add 4,096 ones, one at a time:

# %% tags=["nbval-check-output"]
ones = torch.ones(4_096, dtype=torch.bfloat16)
total = torch.zeros((), dtype=torch.bfloat16)
for one in ones:
    total += one
print(f"one at a time in bf16: {total.item():.0f}")
print(f"torch.sum of the same: {ones.sum().item():.0f}")
assert total == 256
assert ones.sum() == 4_096

# %% [markdown]
# At 256 the step between two numbers of bf16 is 2, so adding 1 no longer changes anything. `torch.sum` adds in fp32 and rounds once, at the
# end. Matrix units work in the same way: their inputs have 16 bits, and their **sums are in fp32**. (There is one exception. When a GPU
# cuts one long sum into pieces, PyTorch allows it to add the pieces in 16 bits.
# `torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False` forbids this.)
#
# Which operators may run in 16 bits at all? `torch.autocast` has two lists. Products are on the list of operators that run in 16 bits. Losses are on
# the list of operators that run in fp32. On GPUs, that second list also contains `softmax`, `layer_norm`, `exp`, `pow` and `sum`; on a CPU, `softmax`
# and `layer_norm` are on neither list. An operator on neither list runs in the type of its inputs and, if these differ, as in 16-bit + fp32, in the
# wider type. The next cell checks what happens on your device:

# %%
import torch.nn.functional as F

x, linear = torch.randn(4, 8, device=device), torch.nn.Linear(8, 8, device=device)
with torch.autocast(device.type, torch.bfloat16):
    y = linear(x)
    ran = {
        "linear": y,
        "product": x @ x.T,
        "mse_loss": F.mse_loss(y, y + 1),
        "softmax": y.softmax(-1),
        "layer_norm": F.layer_norm(y, (8,)),
        "16-bit + fp32": y + x,
    }
for name, result in ran.items():
    print(f"{name:<14} {str(result.dtype).removeprefix('torch.')}")
assert y.dtype == ran["product"].dtype == torch.bfloat16
assert ran["mse_loss"].dtype == torch.float32
assert linear.weight.dtype == torch.float32

# %% [markdown]
# The weight itself stays in fp32. Under autocast it *is* the master weight, and each product uses a 16-bit copy of it.
#
# ## Third loss: gradients vanish
#
# Gradients are small, and what a single micro-batch adds to them is smaller still. The smallest GPT-3 was trained on 0.5 million tokens a
# step. On one device this takes many micro-batches. The loss of a step is the *mean* over all of them, so the loss of each micro-batch is
# divided by their number before backward.
#
# Our model processes 256 tokens at once, so 0.5 million tokens are 2,048 micro-batches. For each step we run only one of them, with its
# loss divided by 2,048. We first run ten steps in fp32, so that the gradients are those of a model that is already training.

# %%
DIVIDE = 2_048  # micro-batches in a step of 0.5 million tokens
text = TextBatches(seq_len=64, global_batch=4)


def fresh():
    torch.manual_seed(0)
    return GPT(TINY).to(device)


def adamw(model):  # gradients are small here, so eps must be even smaller
    return torch.optim.AdamW(model.parameters(), lr=4e-3, eps=1e-15)


model = fresh()
optimizer = adamw(model)
for step in range(10):
    ((tokens, targets),) = text.step(step, device)
    (model(tokens, targets) / DIVIDE).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# Now we run the same batch backward in each format. The smallest number in fp16 is $2^{-24}$. If you multiply the loss by $S$ before
# backward, then by the chain rule every gradient becomes $S$ times larger. Afterwards, the gradients are divided by $S$ again in fp32,
# where this loses nothing.

# %%
# %%guess lost --unit %
# Without S, what share of the gradients becomes zero in fp16?
...

# %%
import copy


def gradients(dtype, scale=1.0):
    """All gradients of one batch as one vector, backward in `dtype`."""
    one = copy.deepcopy(model).to(dtype)
    ((tokens, targets),) = text.step(99, device)
    (one(tokens, targets) / DIVIDE * scale).backward()
    parts = [p.grad.float().flatten() / scale for p in one.parameters()]
    return torch.cat(parts).cpu()


exact = gradients(torch.float32)
used = exact != 0  # bytes that are not in the batch have no gradient
in_format = {
    "fp32": exact,
    "fp16": gradients(torch.float16),
    "fp16, S = 2^16": gradients(torch.float16, 2.0**16),
    "bf16": gradients(torch.bfloat16),
}
lost = {}
for name, vector in in_format.items():
    lost[name] = (vector[used] == 0).float().mean().item()
    print(f"{name:<15} {lost[name]:6.1%} of the gradients became zero")
assert lost["fp16"] > 0.2
assert max(lost["fp16, S = 2^16"], lost["bf16"]) < 0.005

# %%
from workshop.precision.mixed import sizes_by_power

LOWEST, HIGHEST = -42, -10  # powers of two to look at
drawn = {}
for name, vector in in_format.items():
    drawn[name] = sizes_by_power([vector], LOWEST, HIGHEST)
show.gradient_sizes(drawn, LOWEST, lost, {"fp16's smallest": -24})

# %%
round_to_zero = exact[used].abs() <= 2.0**-25  # half of fp16's smallest number
share = round_to_zero.float().mean().item()
beside("lost", predicted=100 * share, measured=100 * lost["fp16"])

# %% [markdown]
# The filled shape is fp32. fp16 has cut off everything that lies below $2^{-24}$. (How much lies there depends on the model: in the paper's
# speech model it was 5 % of the weights' gradients, figure 2b.) The *predicted* value is what you would lose by rounding the finished
# gradients. In fact more is lost, because all of backward runs in fp16: a gradient that vanishes near the loss is missing in every layer
# below. With $S$ almost nothing is lost. bf16 loses almost nothing even without $S$, because it has the exponent of fp32.
#
# One thing looks like a mistake: above $2^{-20}$, fp16 has *more* gradients than fp32. Here is the reason. For one token, the gradients of
# the head's 256 outputs (the *logits*) add up to zero. The gradient of the correct byte is negative. The gradients of the other 255 bytes
# are positive and small, and their sum is just as large. So the next cell compares the norm of the head's gradient with the norm of its sum
# over the vocabulary, which should be nearly zero. It also counts the gradients above $2^{-20}$, and those of the query matrices that are
# not zero:

# %%
names = [name for name, _ in model.named_parameters()]
lengths = [parameter.numel() for parameter in model.parameters()]
rows, large = [], {}
for how in ("fp32", "fp16"):
    parts = dict(zip(names, in_format[how].split(lengths), strict=True))
    head = parts["lm_head.weight"].view(TINY.vocab_size, -1)
    queries = torch.cat([part for name, part in parts.items() if "q_proj" in name])
    alive = (queries != 0).float().mean()
    size, summed = head.norm(), head.sum(0).norm()
    large[how] = (in_format[how].abs() > 2.0**-20).sum().item()
    counts = f"{large[how]:,}", f"{alive:.0%}"
    rows.append((how, f"{size:.1e}", f"{summed:.1e}", *counts))
    assert alive > 0.9 if how == "fp32" else alive < 0.5
    assert (summed < 0.01 * size) == (how == "fp32")
assert large["fp16"] > large["fp32"]
columns = "head's norm", "norm of its sum", "above 2^-20", "queries', not zero"
Table(("format", *columns), rows, "The gradients in two formats")

# %% [markdown]
# In fp16 the many small gradients have vanished, but the large negative one has not, so nothing cancels it. The sum is larger than it
# should be, and this wrong sum is what the layers below receive.
#
# ## A slider that decides: which S?
#
# If $S$ is too small, gradients vanish. If it is too large, gradients go beyond 65,504 and become infinite. We call $S$ good if fewer than
# 0.1 % of the gradients become zero and none become infinite.

# %%
# %%guess good
# S can be 2^0, 2^1 and so on up to 2^40. How many of these 41 powers of two are good?
...

# %% [markdown]
# Here is how we predict it: take the gradients that were computed in fp32, multiply them by $S$, and round them to fp16. The measurement is
# the whole backward pass in fp16, with the loss multiplied by $S$. We do both for every power of two:

# %%
POWERS = list(range(41))
nonzero = exact[used].double()


def shares(some):
    """Of some gradients: what share is zero, and what share is not finite."""
    zero, over = some == 0, ~some.isfinite()
    return [zero.float().mean().item(), over.float().mean().item()]


rounded = [shares((nonzero * 2.0**power).half()) for power in POWERS]
backward = [shares(gradients(torch.float16, 2.0**power)[used]) for power in POWERS]

# %% [markdown]
# The lines are the prediction, the points are the measurement, and the dotted line is 0.1 %. Move the slider along $S$:

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure

COLOURS = {"become zero": "#0072B2", "become infinite or NaN": "#D55E00"}


def draw(power):
    figure, axis = new_figure(6.4, 2.8)
    for which, (label, colour) in enumerate(COLOURS.items()):
        axis.plot(POWERS, [pair[which] for pair in rounded], color=colour, label=label)
        axis.plot(POWERS, [pair[which] for pair in backward], ".", color=colour)
    axis.axvline(power, color="black", linewidth=1)
    axis.axhline(1e-3, color="black", linestyle=":", linewidth=1)
    axis.set_yscale("symlog", linthresh=1e-4)
    axis.set_ylim(-2e-5, 2)
    axis.set(xlabel="power of two of S", ylabel="share of gradients")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    lost, over = backward[power]
    return Picture(figure, f"S = 2^{power}: {lost:.2%} zero, {over:.4%} infinite")


explore(draw, [Control("power", 16, POWERS)])

# %%
good = {}
for how, pairs in {"predicted": rounded, "measured": backward}.items():
    good[how] = [
        n for n, (zero, over) in enumerate(pairs) if zero < 0.001 and over == 0
    ]
    print(f"{how:<9} good from 2^{good[how][0]} to 2^{good[how][-1]}")
    assert len(good[how]) >= 10
    assert 16 in good[how]
    assert 27 <= good[how][-1] <= 33
for power in range(10, 28):  # here only the rounding of finished gradients matters
    assert abs(backward[power][0] - rounded[power][0]) < 0.01
assert backward[0][0] > rounded[0][0]
assert backward[36][1] > 2 * rounded[36][1]
beside("good", predicted=len(good["predicted"]), measured=len(good["measured"]))

# %% [markdown]
# The range of good $S$ is wide, at least ten powers of two, and inside it the prediction holds. Far outside of it, at the left and right of the
# picture, the measurement is worse than the prediction. There, backward itself goes wrong near the loss: what vanishes there is missing from the sums
# in every layer below, and what is infinite there makes the gradients below infinite or NaN.
#
# So $S$ does not have to be exact. But the good range moves during training, and with every batch, and nobody wants to tune $S$ by hand. So
# the scaler keeps adjusting $S$ while the model trains. This is called **dynamic loss scaling**.
#
# ### Exercise: the decision


# %%
# %%exercise next_scale
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return ...
    good_steps += 1
    ...
    return scale, good_steps, True


# %% [markdown]
# Here is your function in a made-up run: every scale above $2^{18}$ overflows, and three good steps in a row are enough to double.

# %% tags=["nbval-check-output"]
scale, good_steps, powers = 2.0**16, 0, []
for _ in range(18):
    powers.append(round(math.log2(scale)))
    overflows = scale > 2.0**18
    scale, good_steps, _ = next_scale(scale, good_steps, not overflows, interval=3)
print("scale, power of two:", *powers)
assert powers[:9] == [16] * 3 + [17] * 3 + [18] * 3
assert powers[9:17] == [19, 18, 18, 18] * 2

# %% [markdown]
# The scale climbs to the largest one that works. From then on, it tries the next one after every three good steps, and fails. So one step in four
# is lost, which is too many: real runs wait longer.
#
# ## The loop by hand
#
# Your `next_scale` makes the decision, and a whole training step is built around it. The scale has to be there during backward. Whatever depends on
# the size of the gradients has to find them as if there had never been a scale.
#
# The optimizer's moments do: they mix the gradients of many steps, and the scale changes in between. So does **gradient clipping**, which protects a
# run from rare, very large gradients: if the norm of all gradients together is above a limit, all of them are multiplied by one factor that brings
# the norm down to the limit.
#
# ### Exercise: one step


# %%
# %%exercise scaled_step
import torch


def scaled_step(loss, model, optimizer, state, limit, decide):
    """One step with a scaled loss; returns the next state, (scale, good_steps)."""
    scale, good_steps = state
    ...  # backward, the gradients, the decision, and perhaps the optimizer
    return scale, good_steps


# %% [markdown]
# In the loop that calls your function, one line is special: `autocast` is around forward only. Backward runs in the types that forward chose.

# %%
from functools import partial

LIMIT = 1.0 / DIVIDE  # largest allowed norm of all gradients; usually 1.0


def train_by_hand(steps, dtype, scale, interval):
    """Losses and scales of some steps in `dtype`."""
    model, losses, scales, state = fresh(), [], [], (scale, 0)
    optimizer, decide = adamw(model), partial(next_scale, interval=interval)
    for step in range(steps):
        ((tokens, targets),) = text.step(step, device)
        with torch.autocast(device.type, dtype):
            loss = model(tokens, targets) / DIVIDE
        scales.append(state[0])
        state = scaled_step(loss, model, optimizer, state, LIMIT, decide)
        losses.append(loss.detach() * DIVIDE)
    return torch.stack(losses).tolist(), scales


# %% [markdown]
# ## The real loop
#
# PyTorch's `GradScaler` does what your `scaled_step` does, in four calls: `scale` multiplies, `unscale_` divides, `step` skips a step that is not
# finite, and `update` is your `next_scale`. Clipping stands between the second call and the third. Before the division the gradients are $S$ times
# too large, so every step would be clipped.
#
# In your own training code you will write the lines inside this loop. (Without a scaler, the same loop trains in fp32 or bf16.)


# %%
def train(steps, dtype=None, scaler=None):
    """Losses and scales of some steps; `dtype` None is fp32 throughout."""
    model, losses, scales = fresh(), [], []
    optimizer = adamw(model)
    scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
    for step in range(steps):
        ((tokens, targets),) = text.step(step, device)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = model(tokens, targets) / DIVIDE
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        scaler.step(optimizer)  # skipped if a gradient is infinite or NaN
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach() * DIVIDE)
    return torch.stack(losses).tolist(), scales


# %% [markdown]
# Both loops start at $2^{30}$, near the upper end of what was good for the slider's batch. For the first batch of a fresh model this is too
# high, as you will see. Both double the scale after three good steps. (PyTorch's defaults are $2^{16}$ and 2,000 steps.)

# %%
options = {"init_scale": 2.0**30, "growth_interval": 3}
scaler = torch.amp.GradScaler(device.type, **options)
by_torch, torch_scales = train(16, torch.float16, scaler)
by_hand, hand_scales = train_by_hand(16, torch.float16, 2.0**30, interval=3)
print("scale, power of two:", *[f"{math.log2(scale):.0f}" for scale in hand_scales])
skipped = sum(b < a for a, b in itertools.pairwise(hand_scales))
print(f"{skipped} of the first 15 steps skipped")

# %% tags=["nbval-check-output"]
assert hand_scales == torch_scales
assert max(abs(a - b) for a, b in zip(by_hand, by_torch, strict=True)) < 1e-4
assert hand_scales[1] < hand_scales[0]
assert max(b / a for a, b in itertools.pairwise(hand_scales)) == 2
print("by hand and GradScaler: the same scale in every step, the same losses")

# %% [markdown]
# Every time the scale is halved, a step is thrown away. PyTorch waits for 2,000 good steps before it doubles the scale, so once the scale has found
# its place, about one step in 2,000 is lost, and a few more when a batch has larger gradients.
#
# ## Compare
#
# Now we compare four recipes with the loop above: fp32; fp16 without a scale; fp16 with PyTorch's scaler and its defaults; and bf16. We use
# three seeds for the data, to see whether the result is more than luck.

# %%
# %%guess alone --choices nan,stays,slower
# In fp16 without a scale, most gradients of this model become zero. What does its loss
# do in twelve steps: become NaN, stay where it began, or fall more slowly than in fp32?
...

# %%
STEPS = 12
recipes = {
    "fp32": (None, None),
    "fp16-alone": (torch.float16, None),
    "fp16-scaled": (torch.float16, torch.amp.GradScaler),
    "bf16": (torch.bfloat16, None),
}
curves = {name: [] for name in recipes}
for seed in range(3):
    text = TextBatches(seq_len=64, global_batch=4, seed=seed)
    for name, (dtype, make) in recipes.items():
        losses, _ = train(STEPS, dtype, make and make(device.type))
        curves[name].append(losses)
rows = []
for name, runs in curves.items():
    pairs = zip(runs, curves["fp32"], strict=True)
    off = [run[-1] - reference[-1] for run, reference in pairs]
    farthest = max(off, key=abs)
    rows.append((name, *(f"{run[-1]:.3f}" for run in runs), f"{farthest:+.3f}"))
    assert min(off) > 0.1 if name == "fp16-alone" else abs(farthest) < 0.05
seeds = [f"seed {seed}" for seed in range(3)]
Table(("recipe", *seeds, "farthest from fp32"), rows, "The last loss")

# %%
figure, axis = new_figure(6.6, 3.0)
looks = {"fp32": "-", "fp16-alone": "-", "fp16-scaled": "--", "bf16": ":"}
for name, look in looks.items():
    mean = torch.tensor(curves[name]).mean(0)
    axis.plot(range(1, STEPS + 1), mean, look, label=name, linewidth=2)
axis.set(xlabel="step", ylabel="loss, mean of three seeds")
figure.legend(loc="outside upper center", ncols=4, frameon=False)
means = {name: sum(run[-1] for run in runs) / 3 for name, runs in curves.items()}
ends = ", ".join(f"{name} {loss:.2f}" for name, loss in means.items())
Picture(figure, f"losses of four recipes, after the last step: {ends}")

# %%
first, *_, last = torch.tensor(curves["fp16-alone"]).mean(0).tolist()
does = "nan" if math.isnan(last) else "slower" if last < first - 0.1 else "stays"
beside("alone", measured=does)

# %% [markdown]
# Three of the four lines lie on top of each other.
#
# - **fp16 alone** falls behind. In the fp16 model above, practically all gradients of the queries were zero, and a weight whose gradient is zero
#   learns nothing; autocast sends its gradients through fp16 as well. In addition, the gradients of the logits no longer cancel, as you saw above, so
#   they push the head to one side. Adam cannot repair either of these.
# - **fp16 with a scaler** ends within 0.05 of fp32 in all three runs.
# - **bf16** does so without a scaler. That is why almost everybody trains in bf16 today, on devices that support it.
#
# ### What if the weights are in bf16 as well?
#
# Many scripts contain the line `model.to(torch.bfloat16)`. It halves the memory of the weights, and there are no master weights any more. Adam
# divides a mean of the gradients by the root of a mean of their squares. After one step this is 1 or -1, so the first step moves each weight
# by about the learning rate (lesson 15). Near a bf16 weight $w$, the numbers are $2^{\lfloor \log_2 |w| \rfloor - 7}$ apart, so the
# weight moves only if the learning rate is larger than half of that. We can therefore predict how many weights move, before any training. (Weights
# whose gradient is exactly zero are not counted.)
#
# %%
# %%guess moves --unit %
# A usual learning rate for finetuning is 0.00001. Nearly all weights of this model were
# drawn with a mean of 0 and a standard deviation of 0.02. In bf16, what share moves?
...


# %%
def moved(rate, dtype):
    """Share of weights that Adam's first step changes, and the predicted share."""
    model = fresh().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    ((tokens, targets),) = text.step(0, device)
    model(tokens, targets).float().backward()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    has = torch.cat([p.grad.flatten() for p in model.parameters()]) != 0
    optimizer.step()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    half_apart = 2 ** (before.float().abs().log2().floor() - 8)  # in bf16
    shares = (after != before)[has], (rate > half_apart)[has]
    return [share.float().mean().item() for share in shares]


rows = []
for rate in (1e-3, 1e-4, 1e-5):
    all_move, _ = moved(rate, torch.float32)
    share, predicted = moved(rate, torch.bfloat16)
    shares = (f"{part:.1%}" for part in (all_move, share, predicted))
    rows.append((f"{rate:.5f}".rstrip("0"), *shares))
    assert all_move > 0.999
    assert abs(share - predicted) < 0.01
assert share < 0.2, "at the smallest rate"
head = "learning rate", "fp32 weights", "bf16 weights", "predicted for bf16"
Table(head, rows, "Weights that move")

# %%
beside("moves", predicted=100 * predicted, measured=100 * share)

# %% [markdown]
# In fp32 all weights move. In bf16 with the smallest learning rate, more than four in five stand still. Nothing keeps what was rounded away, so
# the next step starts again from the same weight. Therefore keep the weights in fp32, as autocast does, or keep master weights. (The third way is
# to round up or down at random, so that the *average* update is right: *stochastic rounding*.)
#
# ## Does it save memory?
#
# In fp32, training with Adam takes 16 bytes a parameter at the end of backward: 4 for the weight, 4 for its gradient, and 8 for its two moments.

# %%
# %%guess a_parameter --unit B
# In fp32 it is 16 bytes a parameter. What is it under autocast to bf16, also at the
# end of backward?
...

# %% [markdown]
# We count the bytes a parameter with Adam. With separate master weights they are 2 (weight) + 2 (gradient) + 4 (master) + 8 (moments). With
# autocast they are 4 + 4 + 8. Autocast also holds a 16-bit copy of each matrix, 2 bytes more, from forward until backward has used it. At
# the end of forward there are no gradients yet, so we expect 4 + 8 + 2 = 14. At the end of backward the copies are gone, so we expect 4 + 4 +
# 8 = 16. **Both ways take 16.** For separate masters we only count. Autocast is measured here, in the second step, with two tokens, so that
# there are almost no activations.

# %%
import gc

from workshop.measure import count_from_here, held_bytes


def held(dtype):
    """Bytes a parameter at the end of forward and of backward, in the second step."""
    gc.collect()
    count_from_here()
    wide = replace(TINY, hidden_size=512, intermediate_size=1_536)
    model = GPT(wide).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    params = sum(parameter.numel() for parameter in model.parameters())
    tokens = torch.zeros(1, 2, dtype=torch.long, device=device)
    for _ in range(2):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = model(tokens, tokens)
        after_forward = held_bytes() / params
        loss.backward()
        after_backward = held_bytes() / params
        optimizer.step()
        optimizer.zero_grad()
    return after_forward, after_backward


for name, dtype in {"fp32": None, "autocast to bf16": torch.bfloat16}.items():
    forward, backward = held(dtype)
    print(f"{name:<17} after forward {forward:.2f}, after backward {backward:.2f}")
    assert abs(backward - 16) < 0.2
    assert 11.9 < forward < (12.3 if dtype is None else 14.3)
assert forward > 13, "4 + 8, and the casts"
beside("a_parameter", predicted=16, measured=backward)

# %% [markdown]
# So mixed precision saves no state at all. What about **activations**? `saved_tensors_hooks` calls a function for each tensor that forward
# keeps. The weights and their copies are among these tensors, and their size stays the same when the batch grows. So whatever four more
# sequences add must be activations:

# %%
from torch.autograd.graph import saved_tensors_hooks


def kept(dtype, sequences):
    """Bytes of all that forward keeps for backward."""
    storages = {}

    def note(tensor):
        storage = tensor.untyped_storage()  # views of one storage count once
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.zeros(sequences, 64, dtype=torch.long, device=device)
    with (
        saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast(device.type, dtype, enabled=dtype is not None),
    ):
        model(tokens, tokens)
    return sum(storages.values())


grown = {dtype: kept(dtype, 8) - kept(dtype, 4) for dtype in (None, torch.bfloat16)}
share = grown[torch.bfloat16] / grown[None]
print(f"activations of TINY: autocast keeps {share:.0%} of fp32's bytes")
assert 0.55 < share < 0.8

# %% [markdown]
# It saves a part of the activations, here a little less than a third. What products keep is halved, while norms, the residual stream and the loss
# stay in fp32. Mixed precision also saves **time**.
#
# ## Speed
#
# Are 16 bits faster? This depends on the device, so measure it on yours:

# %%
import time

size = 256 if device.type == "cpu" else 8_192


def multiply(x):
    """Seconds of one product."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    start = time.perf_counter()
    x @ x
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


square = torch.randn(size, size, device=device)
formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
matrices = {name: square.to(dtype) for name, dtype in formats.items()}
best = dict.fromkeys(formats, float("inf"))
for _ in range(5):  # in turns; keep the best time of each
    for name, matrix in matrices.items():
        best[name] = min(best[name], multiply(matrix))
rows = [(name, f"{seconds / best['fp32']:.2f}") for name, seconds in best.items()]
head = ("format", "time, in multiples of fp32's")
Table(head, rows, f"A product of {size:,} x {size:,}, on {device.type}")

# %% [markdown]
# A processor is fast at what it has instructions for. CPUs with AVX512-BF16 or AMX multiply bf16 several times faster than fp32. Fewer CPUs
# have instructions for fp16. A CPU without them turns each number into fp32 and back, and that is slow. On a GPU, bf16 and fp16 run in the
# same matrix units at the same speed.
#
# **TF32** is a compromise that these matrix units offer. The tensors are in fp32, and their mantissa is cut to 10 bits on the way into the
# product. No tensor changes its type. In matrix products PyTorch uses TF32 only if you ask for it:
# `torch.set_float32_matmul_precision("high")`. (In convolutions it uses TF32 by default.) To see how much TF32 loses, we round the inputs
# by hand:

# %% tags=["nbval-check-output"]
from workshop.precision.formats import round_to

generator = torch.Generator().manual_seed(0)
a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
exact_product = a.double() @ b.double()
off = {}
for name in ("tf32", "bf16"):
    product = round_to(a, name).double() @ round_to(b, name).double()
    off[name] = ((product - exact_product).norm() / exact_product.norm()).item()
    print(f"{name}: a product is off by {off[name]:.1e}")
assert 7 < off["bf16"] / off["tf32"] < 9  # three bits: a factor of eight

# %% [markdown]
# ## At scale
#
# The next cell shows the values from the data sheet, and what our predictor of time makes of them. It predicts a model of 8 billion
# parameters on eight H100s, which share the weights, the gradients and the optimizer's state (lesson 24):

# %% tags=["nbval-check-output"]
from workshop import predict_step
from workshop.facts import catalogue
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory

h100, seconds = catalogue.device("H100"), {}
for recipe in ("fp32", "fsdp-bf16"):
    layout = Layout(shard=8, zero=3, precision=recipe, recompute="selective")
    run = Run("llama-3-8b", "8xH100", layout, micro_batch=1, seq_len=4_096)
    seconds[recipe] = predict_step(run).seconds
    gib = predict_memory(run).peak_bytes / 2**30
    print(f"{recipe:<15} {gib:5.1f} GiB a GPU   {seconds[recipe]:5.2f} s a step")
peaks = {name: h100.peak(name) / 1e12 for name in ("fp32", "tf32", "bf16")}
listed = ", ".join(f"{name} {peak:.0f}" for name, peak in peaks.items())
print(f"H100, dense, TFLOP/s: {listed}")
slower = seconds["fp32"] / seconds["fsdp-bf16"]
print(f"fp32 takes {slower:.1f} times as long")
assert 8 < slower < 9 < peaks["bf16"] / peaks["fp32"]

# %% [markdown]
# fp32 takes more than eight times as long, because its products do not use the matrix units at all: 67 TFLOP/s against 989. (The step gains less than
# this factor of 15, because no product reaches the peak and a step is not only products.) The memory differs far less than the time. The state is the
# same; only the activations, and the weights and gradients that are gathered or sent, shrink.
#
# ## Tomorrow's script
#
# Here is the loop once more, as a program without this workshop. It uses bf16 and switches the scaler off, except on a GPU that does not support
# bf16; there it uses fp16. To try the scaler on any device, set `DTYPE=float16`. A second run continues from the checkpoint. The program does one
# thing that the lesson did not need: it saves the **scale in the checkpoint**. A run that resumes with the initial scale may throw away its first
# steps again, or lose small gradients until the scale has grown back.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/train_amp.py
import os
from pathlib import Path

import torch

on_gpu = torch.cuda.is_available()
device = torch.device("cuda" if on_gpu else "cpu")
bf16 = not on_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
default = "bfloat16" if bf16 else "float16"
dtype = getattr(torch, os.environ.get("DTYPE", default))

torch.manual_seed(0)
inputs = torch.randn(512, 16, device=device)
targets = inputs.sum(dim=1, keepdim=True)
layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)]
model = torch.nn.Sequential(*layers).to(device)  # yours
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
saved, first = Path(os.environ.get("CHECKPOINT", "train_amp.pt")), 0
if saved.exists():
    state = torch.load(saved, map_location=device)
    first = state["epoch"] + 1
    for name, part in parts.items():
        part.load_state_dict(state[name])

for epoch in range(first, first + 3):
    total = 0.0
    order = torch.randperm(len(inputs), device=device).split(64)
    for batch in order:
        with torch.autocast(device.type, dtype):  # forward and loss, not backward
            loss = (model(inputs[batch]) - targets[batch]).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # must come before the norm is computed
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # skipped after an overflow
        scaler.update()
        optimizer.zero_grad()
        total += loss.detach() / len(order)
    print(f"epoch {epoch}: mean loss {total:.3f} (scale {scaler.get_scale():.0f})")
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"epoch": epoch, **state}, saved)

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("14_mixed_precision")

# %% [markdown]
# ## What to take away
#
# - With 16 bits you lose three things. Small **updates**: keep master weights in fp32. Digits in **sums**: add in fp32. Small
#   **gradients**, in fp16 only: scale the loss.
# - The loop: `autocast` around forward; `scale(loss).backward()`, `unscale_`, clip, `step`, `update`.
# - Loss scaling: after an overflow, skip the step and halve S. After N good steps, double it.
# - **bf16 needs master weights and no scaling.** Use it where you can.
# - Mixed precision does not shrink the state: it is 16 bytes a parameter either way. It shrinks activations, and it is faster if the device
#   has units for it. Measure it on your device.
#
# Next: [15_optimizers](15_optimizers.ipynb), what the optimizer remembers. Scaling comes back, for every tensor, in `41_fp8_scaling`.
#
# ## Sources
#
# - P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740), section 3.
# - T. Brown et al., *Language Models are Few-Shot Learners*, 2020, [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), table 2.1 (a batch of 0.5 million tokens for 125M).
# - S. Rajbhandari et al., *ZeRO*, SC 2020, [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), section 3.1 (16 bytes a parameter).
# - D. Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, [arXiv:1905.12322](https://arxiv.org/abs/1905.12322).
# - PyTorch documentation: *Automatic Mixed Precision package* (operators by list), `torch.amp.GradScaler` (2^16, 2,000 steps),
#   *CUDA semantics*, "TensorFloat-32".
# - NVIDIA, *H100 Tensor Core GPU* data sheet.
