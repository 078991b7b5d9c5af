# %% [markdown]
# # Why is one scale not enough?
#
# - **You need** `11_numbers_and_tensors` (E4M3, E5M2, blocks) and `14_mixed_precision` (loss scaling).
# - **It takes** 35 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on CPU or GPU. The model is a real one: SmolLM2-135M (`workshop assets fetch` downloads it once).
# - **Model and text:** SmolLM2 reads speeches. It is a Llama like `TINY`, but trained on far more text. A model learns the outliers that make
#   a single scale fail, and `TINY` was not trained long enough for that.
# - **Links:** before this [37_plan_the_layout](../day3_model_parallel/37_plan_the_layout.ipynb), after it [42_fp8_training](42_fp8_training.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# An H100 multiplies 8-bit floating-point numbers up to twice as fast as 16-bit ones. The E4M3 format keeps only three bits of mantissa, and
# products tolerate the rounding error that this causes. But E4M3 ends at 448, and below $2^{-9}$ it has no numbers at all.
#
# For fp16, loss scaling needed only one factor S for all gradients, because fp16 has a range of $10^{12}$. E4M3 has a range of $10^5$. So
# which numbers should share a scale? And can that scale be known before the tensor exists?

# %%
# %load_ext workshop
import torch

from workshop import show
from workshop.exercises import beside
from workshop.assets import language_model, text
from workshop.facts.formats import FORMATS
from workshop.facts.tabular import Table
from workshop.precision.formats import cast
from workshop.precision.fp8 import product, runs_scaled_mm
from workshop.precision.scaling import AmaxHistory, quantize

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")

# %% [markdown]
# ## What has to fit
#
# A linear layer has three products: $y = x W^T$, $dx = dy\,W$ and $dW = dy^T x$. So three tensors must fit into 8 bits: the inputs, the
# weights, and the gradients of the outputs. The next cell collects them from one step of a real model on a real speech, for the last matrix of
# each MLP.

# %%
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)
addresses = text.load("sotu")
speech = addresses[list(addresses)[-1]]
tokens = tokenizer(speech[:3_000], return_tensors="pt").input_ids[:, :96].to(device)
layers = [layer.mlp.down_proj for layer in model.model.layers]
kept = [{} for _ in layers]
for layer, into in zip(layers, kept, strict=True):
    layer.register_forward_pre_hook(
        lambda _, args, into=into: into.update(x=args[0].detach()[0])
    )
    layer.register_full_backward_hook(
        lambda _, __, grads, into=into: into.update(dy=grads[0].detach()[0])
    )
    into["W"] = layer.weight.detach()
model(input_ids=tokens, labels=tokens).loss.backward()
NAMES = {"x": "inputs x", "W": "weights W", "dy": "gradients dy"}
largest = {NAMES[key]: [each[key].abs().max().item() for each in kept] for key in NAMES}
typical = {
    NAMES[key]: [each[key].abs().median().item() for each in kept] for key in NAMES
}
show.sizes_by_layer(
    largest,
    typical,
    {"E4M3 ends: 448": 448, "E4M3's smallest": 2.0**-9, "E5M2's smallest": 2.0**-16},
)

# %%
massive = max(range(len(kept)), key=lambda layer: largest["inputs x"][layer])
x = kept[massive]["x"].abs()
places = (x > 1_000 * x.median()).nonzero().tolist()
print(f"layer {massive}: {len(places)} of {x.numel():,} inputs exceed 1,000 medians")
for token, feature in places:
    print(f"    token {token}, feature {feature}: {x[token, feature]:,.0f}")
assert 0 < len(places) < 10
assert {token for token, _ in places} == {0}
assert max(largest["weights W"]) < 5 * min(largest["weights W"])
assert max(largest["inputs x"]) > 100 * min(largest["inputs x"])
of_dy = typical["gradients dy"]
assert 2.0**-16 < 1.2 * min(of_dy[-4:]) < max(of_dy[-4:]) < 1.5 * 2.0**-16
assert 12 * 2.0**-16 < max(of_dy) == of_dy[0] < 15 * 2.0**-16
assert max(largest["inputs x"]) / min(of_dy) > 1e8  # eight powers of ten
in_thousands = [n for n, top in enumerate(largest["inputs x"]) if top > 1_000]
assert len(in_thousands) == 2
assert all(kept[n]["x"].abs().amax(1).argmax() == 0 for n in in_thousands)
assert all(0.05 < typical["inputs x"][n] < 0.2 for n in in_thousands)

# %% [markdown]
# Let us look at the three tensors one by one:
#
# - **Weights** are calm: their largest values are similar in all layers.
# - **Inputs** are not calm. In two layers the largest value is in the thousands, while the median is about a tenth. Such *massive
#   activations* (Sun et al., 2024) are found in many language models. They are a handful of numbers, here at the first token.
# - **Gradients** are tiny. In the lowest layer their median is 14 times the smallest number of E5M2, and in the highest layer it is about that
#   smallest number itself. There E5M2 has few digits left for them, or none.
#
# ## Predict
#
# How far off will $y$ and $dx$ be without a scale? How far with one scale for each tensor, or for each row? How far with one for each block of
# 128 neighbors in a row (in W: for each square of 128 x 128), or for each block of 32 (MX, where the scale is a power of
# two)? E4M3 rounds a number by up to 6 %, typically by 2 to 3 %.

# %% [markdown]
# ## Run
#
# We first round by hand. A matrix is cut into groups whose numbers share a scale. Each group is divided by its scale, so that its largest
# number becomes 448. Then it is rounded to 8 bits and multiplied by its scale again. The kinds of scales differ only in the size of the
# group. This package has `quantize` for it, which must give the same numbers:


# %%
def rounded(x, how):
    """x as E4M3 gives it back, with a scale for each group of neighbors in a row."""
    group = {"tensor": x.numel(), "row": x.shape[1], "block": 128, "mx": 32}[how]
    groups = x.reshape(-1, group)
    scale = groups.abs().amax(1, keepdim=True) / 448
    if how == "mx":
        scale = scale.log2().ceil().exp2()  # the next power of two
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).view_as(x)


x, W = kept[12]["x"], kept[12]["W"]  # (96, 1536) and (576, 1536)
for how in ("tensor", "row", "block", "mx"):
    by_package = quantize(x, "e4m3", how).decode()
    assert (rounded(x, how) - by_package).norm() < 1e-6 * by_package.norm()
print("x rounded by hand and by the package: the same for all four kinds of scale")

# %% [markdown]
# A product of two such matrices is faster if the 8-bit numbers themselves are multiplied, and the scales come last. With one scale for each
# tensor, the result is multiplied by both scales. In this package, that is `product`. In torch it is `torch._scaled_mm`, which reads the
# second matrix by columns:

# %%
x_scale, W_scale = x.abs().max() / 448, W.abs().max() / 448
x8, W8 = (x / x_scale).to(torch.float8_e4m3fn), (W / W_scale).to(torch.float8_e4m3fn)
by_hand = (x8.float() @ W8.float().T) * x_scale * W_scale

packaged = product(quantize(x, "e4m3", "tensor"), quantize(W, "e4m3", "tensor"))
assert (packaged - by_hand).norm() < 1e-3 * by_hand.norm()
if runs_scaled_mm(device.type):  # a GPU with 8-bit units, or a CPU if torch can
    # all sizes are multiples of 16, as the units need them
    y = torch._scaled_mm(x8, W8.T, x_scale, W_scale, out_dtype=torch.bfloat16)
    assert (y.float() - by_hand).norm() < 1e-2 * by_hand.norm()  # y is rounded to bf16
    print("by hand, by the package and by torch: one product")
else:
    print("by hand and by the package: one product; torch._scaled_mm cannot run here")

# %% [markdown]
# On a GPU with 8-bit units, `product` calls `torch._scaled_mm` if each tensor or each row has one scale. On a CPU, and for blocks and
# MX everywhere, it emulates: it multiplies the same 8-bit numbers in fp32.


# %%
# %%guess fp8_error --unit %
# In E4M3, with one scale for each tensor: by how many percent is a token's y off?
...


# %%
def error(found, wanted):
    """Relative error of each token's vector."""
    return (found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp(min=1e-30)


def eight_bits(a, b, forms, how):
    """a b^T with both in 8 bits; `none` rounds without a scale."""
    if how == "none":
        return cast(a, forms[0]) @ cast(b, forms[1]).T
    return product(quantize(a, forms[0], how), quantize(b, forms[1], how, weight=True))


HOW = ("none", "tensor", "row", "block", "mx")
errors = {"y": {how: [] for how in HOW}, "dx": {how: [] for how in HOW}}
some = [dict(each) for each in (*kept[::3], kept[massive])]
for each in some:
    x, W, dy = each["x"], each["W"], each["dy"]
    for how in HOW:
        errors["y"][how].append(error(eight_bits(x, W, ("e4m3", "e4m3"), how), x @ W.T))
        errors["dx"][how].append(
            error(eight_bits(dy, W.T, ("e5m2", "e4m3"), how), dy @ W)
        )

# %% [markdown]
# ## Compare

# %%
groups = {}
for name, rows in errors.items():
    groups[f"{name}, mean of tokens"] = {
        how: torch.stack(found).mean().item() for how, found in rows.items()
    }
    groups[f"{name}, worst token"] = {
        how: torch.stack(found).max().item() for how, found in rows.items()
    }
assert groups["y, worst token"]["none"] > 3 * groups["y, worst token"]["tensor"]
assert (
    groups["dx, mean of tokens"]["none"] > 1.5 * groups["dx, mean of tokens"]["tensor"]
)
for scaled in HOW[1:]:
    assert groups["y, mean of tokens"][scaled] < 0.05
    assert groups["dx, mean of tokens"][scaled] < 0.09
assert groups["y, mean of tokens"]["block"] < groups["y, mean of tokens"]["tensor"]
gone = [(cast(each["dy"], "e5m2") == 0).float().mean().item() for each in some]
print(f"of dy, {min(gone):.0%} to {max(gone):.0%} become zero without a scale")
assert 0.3 < max(gone) < 0.4
rows = [(name, *(f"{row[how]:.2%}" for how in HOW)) for name, row in groups.items()]
head = "error of", "no scale", "by tensor", "by row", "by block", "MX"
Table(head, rows, "x and W in E4M3, dy in E5M2")

# %%
# each operand has an error of 2^-4 / sqrt(7) (lesson 11); the two are independent
of_two = 100 * 2**0.5 * 2**-4 / 7**0.5
found = 100 * groups["y, mean of tokens"]["tensor"]
beside("fp8_error", predicted=of_two, measured=found)

# %%
# dy (E5M2) has one mantissa bit less, so twice the rounding error; W is as before
of_dx = 100 * (2**-6 + 2**-8) ** 0.5 / 7**0.5
found_dx = 100 * groups["dx, mean of tokens"]["tensor"]
print(f"dx: predicted {of_dx:.1f} %, measured {found_dx:.1f} %")
assert abs(of_two / found - 1) < 0.2
assert abs(of_dx / found_dx - 1) < 0.2
assert 1.5 < found_dx / found < 1.9
for name, row in groups.items():
    best = min(row[scaled] for scaled in HOW[1:])
    least, most = (0, 0.005) if "mean" in name else (0.008, 0.02)
    assert least < row["tensor"] - best < most
mean_y, worst_y = groups["y, mean of tokens"], groups["y, worst token"]
assert mean_y["block"] < mean_y["row"] < mean_y["mx"]
assert worst_y["mx"] > worst_y["tensor"]
worst_dx = groups["dx, worst token"]
least = min(worst_dx["row"], worst_dx["block"])
assert worst_dx["tensor"] - worst_dx["mx"] > (worst_dx["tensor"] - least) / 2

# %% [markdown]
# - **Without a scale**, the mean of $y$ does not suffer, because most inputs lie where E4M3 has its digits. The one
#   token with the massive activation suffers: its input is cut from thousands to 448. Gradients suffer everywhere, because they
#   lie where E5M2 has few digits left. In the layer that loses most, about a third of them become zero.
# - **One scale for each tensor** cures both problems. On average it is within half a percentage point of the best method, and for the worst
#   token it is one to two points behind. This is the benefit of floating point: each number has its own exponent, and
#   the scale only has to bring the largest number into range.
# - **Rows and blocks** gain a little more. **MX** loses that gain again on average, because its scale is a power of two. For the worst $y$ it is even
#   worse than one scale for each tensor; only for the worst $dx$ does it keep most of the gain.
# - **The error of $dx$ is 1.7 times the error of $y$** (1.6 by the rule). One of its two operands, dy, is in E5M2, which has one bit of mantissa
#   less. E5M2 was chosen for its range.
#
# Is that range still needed once dy has a scale? The next cell rounds dy to E4M3 instead:

# %%
rows = []
for how in HOW[1:]:
    of_dx = [
        error(eight_bits(e["dy"], e["W"].T, ("e4m3", "e4m3"), how), e["dy"] @ e["W"])
        for e in some
    ]
    in_e4m3 = torch.stack(of_dx).mean().item()
    in_e5m2 = groups["dx, mean of tokens"][how]
    rows.append((how, f"{in_e5m2:.2%}", f"{in_e4m3:.2%}"))
    assert in_e4m3 < 0.8 * in_e5m2
Table(("scale by", "dy in E5M2", "dy in E4M3"), rows, "error of dx, mean of tokens")

# %% [markdown]
# Not here. With any of the four kinds of scale, E4M3 gives the smaller error, because its additional bit of mantissa counts and its smaller
# range does not. Newer recipes (MX, DeepSeek-V3's blocks, torchao's `rowwise`) use E4M3 for gradients as well. Under delayed scaling (see
# below) a scale may not fit, and there the range of E5M2 is a reserve.
#
# Why does it cost anything to make the scale a power of two? Such a scale leaves a part of the range unused, but this is not the reason: in
# floating point, an unused exponent costs nothing. If you map the largest number of each block to 448, to 224 or to 28, the error is the same.
#
# The reason is that E4M3 *contains* the numbers 448, 224 and 28. So the largest number of each block, which has the most weight, is not rounded
# at all. If you map it to 300, which E4M3 does not contain, or to wherever a power of two takes it, it is rounded like all the others:

# %% tags=["nbval-check-output"]
lost = {}
for seed in range(5):
    blocks = torch.randn(4_096, 32, generator=torch.Generator().manual_seed(seed))
    amax = blocks.abs().amax(1, keepdim=True)
    scales = {f"largest to {top}": amax / top for top in (448, 224, 28, 300)}
    scales["power of two"] = torch.exp2(torch.ceil(torch.log2(amax / 448)))
    for how, scale in scales.items():
        back = cast(blocks / scale, "e4m3") * scale
        lost.setdefault(how, []).append(((back - blocks).norm() / blocks.norm()).item())
for how, found in lost.items():
    print(f"{how:<16} error {sum(found) / len(found):.2%}, blocks of 32, five seeds")
for least, *same in zip(
    *[lost[f"largest to {top}"] for top in (448, 224, 28)], strict=True
):
    assert all(abs(each / least - 1) < 1e-3 for each in same)
for how in ("largest to 300", "power of two"):
    assert all(
        1.04 < other / least < 1.25
        for least, other in zip(lost["largest to 448"], lost[how], strict=True)
    )

# %% [markdown]
# Here and in `quantize` the power of two is rounded *up*, so that no number exceeds 448. The OCP specification, like `11_numbers_and_tensors`, rounds
# amax itself down to a power of two and maps that power to 256, E4M3's largest power of two; amax then lands between 256 and 512, and what exceeds
# 448 is clipped.
#
# ## One scale for all?
#
# So is one scale for each tensor enough? For this model, yes. Could **all** tensors share one scale? The largest input and the median gradient
# are eight powers of ten apart. The next cell tries every power of two from $2^{-14}$ to $2^7$ as a scale for inputs, weights and gradients
# together:


# %%
def with_shared(scale):
    """Errors of each token's y and dx where all tensors have this scale."""
    found = {"y": [], "dx": []}
    for each in some:
        x, W, dy = each["x"], each["W"], each["dy"]
        forms = zip((x, W, dy), ("e4m3", "e4m3", "e5m2"), strict=True)
        x8, W8, dy8 = (cast(tensor / scale, form) * scale for tensor, form in forms)
        found["y"].append(error(x8 @ W8.T, x @ W.T))
        found["dx"].append(error(dy8 @ W8, dy @ W))
    return {name: torch.stack(rows) for name, rows in found.items()}


shared = [2.0**power for power in range(-14, 8)]
by_scale, panels = [with_shared(scale) for scale in shared], {}
for title, of in {"mean of tokens": torch.mean, "worst token": torch.max}.items():
    panels[title] = lines = {}
    for name in ("y", "dx"):
        lines[f"{name}, one for all"] = [of(found[name]).item() for found in by_scale]
        own = groups[f"{name}, {title}"]["tensor"]
        lines[f"{name}, one per tensor"] = [own] * len(shared)
show.error_panels(shared, panels, "the shared scale", paired=True)

# %%
worst = panels["worst token"]
y_and_dx = zip(worst["y, one for all"], worst["dx, one for all"], strict=True)
least = min(max(pair) for pair in y_and_dx)
own = max(worst["y, one per tensor"][0], worst["dx, one per tensor"][0])
print(f"worst token, y or dx: {least:.0%} at the best shared scale, {own:.0%} with own")
assert least > 0.8 > 0.2 > own
in_the_mean = panels["mean of tokens"]
at = shared.index(2.0**-5)
assert max(in_the_mean[f"{name}, one for all"][at] for name in ("y", "dx")) < 0.08
best = {}
for name in ("y", "dx"):
    curve = worst[f"{name}, one for all"]
    best[name] = curve.index(min(curve))
assert shared[best["y"]] > 100 * shared[best["dx"]]
assert worst["dx, one for all"][best["y"]] > 0.8
assert worst["y, one for all"][best["dx"]] > 0.8
assert worst["y, one for all"][best["y"]] > 0.25

# %% [markdown]
# The mean hides the problem: on average, $2^{-5}$ works for both $y$ and $dx$. But at every shared scale, some token is lost. At the scale where the
# worst $y$ is at its best (and still off by more than a quarter), some $dx$ is lost, and the other way round. The best scales for the two are more
# than a factor of 100 apart.
#
# Micikevicius et al. (section 4.3) did this experiment with a GPT-3 of 1.3 billion parameters, forward only. They put inputs, weights
# and residuals in E4M3, and compared the best power of two for all of them with one scale for each tensor. We repeat the
# experiment with our model, whose residuals keep their precision.
#
# We report two measures. The perplexity of a hundred words depends on luck. The KL divergence says how far the distribution over the next
# token moves, and depends less on luck.

# %%
linears = [
    module
    for name, module in model.named_modules()
    if isinstance(module, torch.nn.Linear) and name != "lm_head"
]
full = [linear.weight.detach().clone() for linear in linears]


def in_e4m3(tensor, scale):
    """After a round trip; None is a scale of its own."""
    scale = tensor.abs().amax() / 448 if scale is None else scale
    return cast(tensor / scale, "e4m3") * scale


@torch.no_grad()
def log_probabilities(scale):
    """Of the next tokens, with weights and inputs of all linear layers in E4M3."""
    hooks = []
    for linear, weight in zip(linears, full, strict=True):
        linear.weight.copy_(in_e4m3(weight, scale))
        hook = linear.register_forward_pre_hook(lambda _, x: (in_e4m3(x[0], scale),))
        hooks.append(hook)
    found = model(tokens).logits[0, :-1].log_softmax(-1)
    for hook in hooks:
        hook.remove()
    return found


# %%
with torch.no_grad():
    exact = model(tokens).logits[0, :-1].log_softmax(-1)


def perplexity_and_kl(found):
    """Of the text; and how far the distribution has moved, in nats."""
    nll = -found.gather(1, tokens[0, 1:, None]).mean()
    return nll.exp().item(), (exact.exp() * (exact - found)).sum(-1).mean().item()


tried = [perplexity_and_kl(log_probabilities(2.0**power)) for power in range(5)]
ours = {
    "not rounded": perplexity_and_kl(exact),
    "one scale for all, the best": min(tried, key=lambda row: row[1]),
    "one scale per tensor": perplexity_and_kl(log_probabilities(None)),
}
rows = []
for (name, (found, kl)), published in zip(
    ours.items(), (10.19, 12.59, 10.44), strict=True
):
    more = (published / 10.19 - 1, found / ours["not rounded"][0] - 1)
    theirs = f"{published}", f"{more[0]:+.1%}"
    rows.append((name, *theirs, f"{found:.2f}", f"{more[1]:+.1%}", f"{kl:.3f}"))
assert 0.4 < ours["one scale per tensor"][1] / min(kl for _, kl in tried) < 0.7
assert ours["one scale per tensor"][0] < 1.05 * ours["not rounded"][0]
whole, shared_one, own_one = (found for found, _ in ours.values())
assert max(whole, own_one) < shared_one
head = "GPT-3 1.3B, published", "more", "this model", "more", "its KL"
Table(("E4M3 with", *head), rows, "perplexity, and the KL divergence in nats")

# %% [markdown]
# In both models, one scale for all tensors costs more than one scale for each tensor. In the paper's larger model, it costs much more.
#
# Perplexity differences of one or two percent are within the luck of such a short text: on a machine where the products round differently, one scale
# for each tensor may even come out better than no rounding. The KL divergence compares two distributions, so it does not matter with which word
# the text happens to go on. With one scale for each tensor it is about half to two thirds as large.
#
# ## Outliers, one at a time
#
# With one scale for each tensor, the outliers of this model do little harm. How large would an outlier have to be to do harm? We make one ourselves:
# we take normal numbers, 128 x 512, and multiply one **row** or one **column** by larger and larger factors.

# %%
# %%guess outlier_factor --unit times
# All 128 rows share one scale in E4M3, and one row is multiplied by a factor. From
# which factor on is the error of the other rows a tenth larger than without it?
...

# %%
generator = torch.Generator().manual_seed(0)
plain, W = (
    torch.randn(128, 512, generator=generator),
    torch.randn(256, 512, generator=generator),
)


def with_outlier(outlier, factor):
    """Two matrices to multiply, the first with one row or one column times a factor."""
    a, b = plain.clone(), W.clone()
    if outlier == "row":
        a[0] *= factor
    else:  # the outlier column's own term grows with the factor: we drop it from both
        a[:, 0] *= factor
        b[:, 0] = 0
    return a, b


def others_error(outlier, how, factor):
    """Of the product in E4M3: all rows but the first, which is the outlier row."""
    a, b = with_outlier(outlier, factor)
    y = eight_bits(a, b, ("e4m3", "e4m3"), how)
    return error(y[1:], (a @ b.T)[1:]).mean().item()


# %% [markdown]
# Could we have predicted the factor? Between 448 and $2^{-6}$, E4M3 has all its digits. So the other rows are rounded well until
# a typical one of their numbers is $448 \cdot 2^6$ times smaller than the largest number of the outlier row.

# %%
alone = others_error("row", "tensor", 1)
harmful = next(
    factor
    for factor in (2 ** (power / 2) for power in range(49))
    if others_error("row", "tensor", factor) > 1.1 * alone
)
without_factor = plain[1:].abs().median() / plain[0].abs().max()
predicted = (448 * 2**6 * without_factor).item()
assert predicted / 1.5 < harmful < 1.5 * predicted
beside("outlier_factor", predicted=predicted, measured=harmful)

# %% [markdown]
# ### A slider that decides: who shares the scale?
#
# The picture shows where the numbers of the other rows lie in E4M3 once they are divided by their scale. From $2^{-6}$ to 448 they keep all
# digits, below $2^{-6}$ they lose them, and up to $2^{-10}$ they become zero. Change the outlier, the kind of scale and the factor: which
# kinds of scale keep the numbers in place?

# %%
import math

from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, name_axes, new_figure


def draw(outlier, scale, factor):
    a, _ = with_outlier(outlier, factor)
    placed = (a / quantize(a, "e4m3", scale).scale)[1:, 1:].abs().flatten()
    figure, axis = new_figure(7.4, 2.4)
    axis.hist(placed.clamp(min=2.0**-34).log2().numpy(), bins=range(-34, 11))
    for power in (-10, -6, math.log2(448)):
        axis.axvline(power, color="#D55E00", linewidth=0.9, linestyle="--")
    for power, kept_as in ((-22, "zero"), (-8, "few\ndigits"), (1.4, "all digits")):
        place = {"transform": axis.get_xaxis_transform(), "ha": "center"}
        axis.text(power, 0.82, kept_as, color="#D55E00", fontsize=8, **place)
    axis.set_ylim(0, len(placed) / 2)
    name_axes(axis, "log2 of the number, divided by its scale", "how many")
    off = others_error(outlier, scale, factor)
    words = f"outlier {outlier} times {factor:,}, scale by {scale}: error {off:.1%}"
    axis.set_title(words, fontsize=10)
    return Picture(figure, words)


outliers, factors = ("row", "column"), [2**power for power in range(0, 25, 2)]
which = Control("outlier", "row", outliers), Control("scale", "tensor", HOW[1:])
explore(draw, [*which, Control("factor", 2**16, factors)])

# %% [markdown]
# The next picture shows the answers side by side, for readers without a kernel. For the outlier column, its own share of the product, which grows
# with the factor, is left out.

# %%
curves = {
    f"{outlier} outlier": {
        f"scale by {how}": [others_error(outlier, how, factor) for factor in factors]
        for how in ("tensor", "row", "mx")
    }
    for outlier in outliers
}
show.error_panels(factors, curves, "factor of the outlier")

# %%
row, column = (
    {how: errors[-1] for how, errors in lines.items()} for lines in curves.values()
)
assert row["scale by tensor"] > 0.5  # the other rows round to zero
assert row["scale by row"] < 0.05
assert row["scale by mx"] < 0.05
assert column["scale by row"] > 0.5  # the outlier is in every row
assert abs(column["scale by mx"] - (1 / 16) ** 0.5) < 0.02  # 1 of 16 blocks is lost
# a factor of 4,096 does hardly any harm yet
assert curves["row outlier"]["scale by tensor"][6] < 0.05
for factor, all_zero in ((64, False), (512, True)):  # int8 has equal steps
    step = factor * plain[0].abs().max() / 127
    assert bool((plain[1:] / step).round().eq(0).all()) == all_zero

# %% [markdown]
# FP8 tolerates an outlier of a few thousand almost without harm. In int8 all steps are equal, so an outlier of a few hundred already rounds
# all the other numbers to zero.
#
# For larger outliers, it matters which numbers share a scale. Scales for rows help against an outlier row but not against an outlier column, because
# **a column outlier is in every row**. Only scales for blocks *along the sum* help there: a row is cut into blocks of neighbors, and the product sums
# over these neighbors. Then one of sixteen blocks is lost and the others are not, which gives an error of $\sqrt{1/16}$, 25 %.
#
# ## When is amax known?
#
# *Current* scaling reads a tensor twice: once to find its amax, and once to round it. *Delayed* scaling takes the amax of past steps. So the
# kernel that computes the tensor can also round it, and no 16-bit tensor is ever written to memory.
#
# ### Exercise: one step


# %%
# %%exercise delayed_scale
def delayed_scale(
    history: list[float], amax: float, length: int, largest: float
) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = ...
    history = ...
    return scale, history


# %% [markdown]
# The next cell applies your function to the amax of a gradient over forty steps. It falls slowly, wobbles from step to step, jumps
# once, and falls again. We try histories of 1, 4 and 16 steps.

# %% tags=["nbval-check-output"]
steps = [
    2.0 * 0.97**step * (1 + 0.3 * ((7 * step) % 5) / 5) * (30 if step == 20 else 1)
    for step in range(40)
]
room, cut = {}, {}
for length in (1, 4, 16):
    history, covered = [steps[0]], []
    for amax in steps:
        scale, history = delayed_scale(history, amax, length, FORMATS["e5m2"].largest)
        covered.append(scale * FORMATS["e5m2"].largest)
    room[f"history of {length}"] = covered
    cut[length] = sum(
        amax > 1.001 * has for amax, has in zip(steps, covered, strict=True)
    )
    wide = sum(has > 8 * amax for amax, has in zip(steps, covered, strict=True))
    assert wide == length
    print(
        f"history of {length:>2}: cut in {cut[length]} of 40 "
        f"steps; room for more than 8 x amax in {wide}"
    )
assert cut[1] > 3 * cut[4]
assert cut[4] == cut[16] == 3

# %%
show.delayed_scaling(steps, room)

# %% [markdown]
# A history of one step clips whenever amax goes up, and that happens in more than half of the steps. Longer histories
# remember the highest point of the wobble. They clip in three steps, whatever their length: at the jump, and twice at the start, before
# they have seen the highest point of the wobble. Nothing in the past steps announced these three.
#
# After the jump, the scale leaves too much room for as many steps as the history is long. In floating point that costs little, as long as
# small numbers stay above the smallest number of the format. So long histories are usual: Transformer Engine keeps 1,024 steps.
#
# `AmaxHistory` does the same for tensors:

# %% tags=["nbval-check-output"]
by_package = AmaxHistory("e5m2", length=4)
scales = [by_package.quantize(torch.tensor([[amax]])).scale.item() for amax in steps]
wanted = [has / FORMATS["e5m2"].largest for has in room["history of 4"]]
assert all(abs(a / b - 1) < 1e-5 for a, b in zip(scales, wanted, strict=True))
print(f"{len(scales)} scales of AmaxHistory are yours")

# %% [markdown]
# ## At scale: what does a scale cost?
#
# The table covers the four matrices of a Llama 70B layer on one H100, with 8,192 tokens. Current scaling reads a matrix once for its amax (2
# bytes a number), and once more to round it (read 2, write 1).
#
# The inputs are new in every product. Weights change only once per step. If all micro-batches share one rounded copy of the weights, its cost
# is spread over them; the column `faster` leaves this cost out. If weights are rounded again in each product, read the last column. With
# delayed scaling, the kernel that computes the matrix can also round it. Only if the two are fused is this free of extra cost.

# %%
from workshop.facts import catalogue
from workshop.predict.time.matmul import Product, matmul_seconds
from workshop.predict.time.rates import rates_of


def predicted_seconds(gpu, rows, depth, cols):
    """One product in bf16 and in FP8; the passes over its inputs and its weights."""
    facts, rates = catalogue.device(gpu), rates_of(gpu)
    bandwidth, shape = facts.memory_bandwidth * rates.memory, Product(rows, cols, depth)
    bf16, fp8 = (
        float(
            matmul_seconds(rates, facts.reachable_flops[form], bandwidth, shape, size)
        )
        for form, size in (("bf16", 2), ("fp8", 1))
    )
    # finding amax and rounding move five bytes per number
    return bf16, fp8, 5 * rows * depth / bandwidth, 5 * depth * cols / bandwidth


# %% tags=["nbval-check-output"]
gains, gains_of_both, table = [], [], []
for name, (depth, cols) in {
    "q, k, v": (8_192, 10_240),
    "attention out": (8_192, 8_192),
    "gate and up": (8_192, 57_344),
    "down": (28_672, 8_192),
}.items():
    bf16, fp8, inputs, weights = predicted_seconds("H100", 8_192, depth, cols)
    gains.append(bf16 / (fp8 + inputs))
    gains_of_both.append(bf16 / (fp8 + inputs + weights))
    times = (f"{1e3 * each:.2f} ms" for each in (bf16, fp8, inputs, weights))
    table.append((name, *times, f"{gains[-1]:.2f} x", f"{gains_of_both[-1]:.2f} x"))
assert 1.5 < min(gains) <= max(gains) < 1.75
assert 1.33 < min(gains_of_both) <= max(gains_of_both) < 1.55
head = "product", "in bf16", "in FP8", "passes over x", "passes over W"
Table((*head, "faster", "faster, W each time"), table)

# %% [markdown]
# The data sheet promises a factor of two. Even the products alone gain less than that in this prediction, and the passes over the inputs leave a
# factor of 1.5 to 1.75. If the weights are also rounded in each product, it is 1.4 to 1.5. And this is only one product of three, without anything
# around it. A product with fewer outputs loses more, because the passes over the inputs do not shrink with the outputs.
#
# So far, these are predictions. What was measured? There is a record of an H200, whose 8-bit units are those of an H100, for
# a layer of this model with 28,672 outputs (one of gate and up). A *layer* is forward and backward, with all its rounding.

# %%
# %%guess layer_gain --unit times
# The product alone was 1.7 to 1.9 times as fast in FP8 as in bf16. How many times as
# fast was the whole layer, by a library with fused kernels and a scale per tensor?
...

# %%
import json

from workshop.facts.tree import ROOT

record = json.loads((ROOT / "data/measurements/gpu/fp8.json").read_text())


def measured_rows(way):
    """What was measured for this layer, by name."""
    rows = record["parts"][f"{way} (8192, 8192, 28672)"]["rows"]
    return {row["what"]: row["measured"] for row in rows}


products, fused = measured_rows("products"), measured_rows("torchao")
of_products = [x for what, x in products.items() if what.endswith("times bf16")]
ratios = [fused[f"{how}, times bf16"] for how in ("tensorwise", "rowwise")]
seconds = measured_rows("by hand")  # this package's layer, whose kernels are not fused
took = [
    seconds[f"{how}, forward and backward"] for how in ("bf16", "tensor", "delayed")
]
print(f"{record['device']}: bf16 at {products['bf16'] / 1e12:.0f} TFLOP/s")
rows = [
    ("product alone", f"{min(of_products):.2f} to {max(of_products):.2f}"),
    ("layer by torchao, by tensor", f"{ratios[0]:.2f}"),
    ("layer by torchao, by row", f"{ratios[1]:.2f}"),
    ("layer by hand, by tensor", f"{took[0] / took[1]:.2f}"),
    ("layer by hand, delayed", f"{took[0] / took[2]:.2f}"),
]
Table(("on this GPU", "times as fast as bf16"), rows)

# %% [markdown]
# Could we have predicted the gain of the whole layer? Forward and backward together have three products with the same number of FLOPs, and with
# one scale for each tensor, each of x, W and dy is rounded once:

# %%
bf16, fp8, of_x, of_weight = predicted_seconds("H200", 8_192, 8_192, 28_672)
of_dy = of_x * 28_672 / 8_192  # as many rows as x, and a column for each output
predicted = 3 * bf16 / (3 * fp8 + of_x + of_weight + of_dy)
assert max(abs(ratio / (bf16 / fp8) - 1) for ratio in of_products) < 0.1
assert abs(predicted / ratios[0] - 1) < 0.05
assert 1.3 < ratios[1] < ratios[0] < min(of_products)
assert 0.95 < took[1] / took[2] < 1.05
assert took[0] < took[1]
beside("layer_gain", predicted=predicted, measured=ratios[0])

# %% [markdown]
# The product alone gains what is predicted for its shape, to within a tenth. Rounding takes back a part of it in the layer of
# torchao, whose kernels are fused: with a scale for each tensor about as much as predicted, and more with a scale for each row.
# Our own layer, whose kernels are not fused, is slower than bf16. There delayed scaling saves nothing: it takes as long as current scaling.
#
# `42_fp8_training` compares whole steps.

# %% [markdown]
# ## Tomorrow's script
#
# Which scale does each matrix of a file need? For each kind of scale, the script reports the row that suffers most, because a mean would hide
# it, and the largest share of a row that becomes zero. It takes the coarsest scale that keeps both below 5 %; if none does, the matrix stays in
# 16 bits. (5 % is a choice: twice the error of a calm matrix.) Without a file, it makes three matrices: a calm one, one with an outlier row, and
# one with an outlier column.
#
# `MATRICES=file.safetensors python which_scale.py` reads your file. Weights are calm, as you saw, so save the *inputs* of a layer and give the
# script those.

# %%
from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/which_scale.py
import os

import torch
from safetensors.torch import load_file

LARGEST = torch.finfo(torch.float8_e4m3fn).max


def rounded(matrix, group):
    """The matrix as E4M3 gives it back, a scale for each group of a row."""
    parts = matrix.reshape(-1, group)
    scale = parts.abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST
    return ((parts / scale).to(torch.float8_e4m3fn).float() * scale).view_as(matrix)


def worst_row(matrix, group):
    """Of the row that suffers most: a number's typical error, and how many became 0."""
    back = rounded(matrix, group)
    off = (back - matrix).abs() / matrix.abs().clamp(min=1e-12)
    zeroed = ((back == 0) & (matrix != 0)).float().mean(dim=1)
    return off.median(dim=1).values.max().item(), zeroed.max().item()


path = os.environ.get("MATRICES", "")
if path:
    tensors = load_file(path)
else:  # three examples: calm, an outlier row, an outlier column
    draw = torch.Generator().manual_seed(0)
    calm, row, column = (torch.randn(256, 512, generator=draw) for _ in range(3))
    row[0] *= 2.0**20
    column[:, 0] *= 2.0**20
    tensors = {"calm": calm, "row outlier": row, "column outlier": column}

print("of the row that suffers most: the typical error, and how many became 0")
print(f"{'matrix':<15}{'tensor':>12}{'row':>12}{'block':>12}   take")
for name, tensor in tensors.items():
    if tensor.ndim != 2:
        continue
    matrix = torch.nn.functional.pad(tensor.float(), (0, -tensor.shape[1] % 128))
    sizes = {"tensor": matrix.numel(), "row": matrix.shape[1], "block": 128}
    found = {scale: worst_row(matrix, group) for scale, group in sizes.items()}
    good = [s for s, (error, zeroed) in found.items() if error < 0.05 and zeroed < 0.05]
    shown = "".join(f"{e:7.1%},{z:4.0%}" for e, z in found.values())
    print(f"{name:<15}{shown}   {good[0] if good else '16 bits'}")

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("41_fp8_scaling")

# %% [markdown]
# ## What to take away
#
# - FP8 needs a scale for each tensor, because tensors differ by more than the range of the format. Weights are calm, inputs have massive
#   activations, and gradients are tiny.
# - One scale for each **tensor** copes with outliers of a few thousand. Scales for **rows** cope with any outlier row. Scales for **blocks**
#   along the sum also limit the harm of outlier columns.
# - **Current** scaling fits each tensor, but costs one more pass over it. **Delayed** scaling saves that pass if kernels are fused. It clips
#   numbers in every step in which a tensor exceeds its history. After a jump, it leaves too much room for as many steps as the history is long.
# - Use E4M3 for inputs and weights. For gradients, E5M2 has the range and E4M3 the digits: with current scales, E4M3 gave the smaller error.
#
# Next: [42_fp8_training](42_fp8_training.ipynb).
#
# ## Sources
#
# - P. Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, [arXiv:2209.05433](https://arxiv.org/abs/2209.05433), sections 3.1, 3.2 and 4.3.
# - M. Sun et al., *Massive Activations in Large Language Models*, 2024, [arXiv:2402.17762](https://arxiv.org/abs/2402.17762).
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, [arXiv:2412.19437](https://arxiv.org/abs/2412.19437), section 3.3.2 (1 x 128 and 128 x 128, E4M3 throughout).
# - Open Compute Project, *OCP Microscaling Formats (MX) Specification*, version 1.0, 2023.
# - A. Mishra et al., *Recipes for Pre-training LLMs with MXFP8*, 2025, [arXiv:2506.08027](https://arxiv.org/abs/2506.08027).
# - NVIDIA, Transformer Engine documentation, `transformer_engine.common.recipe.DelayedScaling` (history of 1,024, the maximum).
# - torchao documentation, `torchao.float8.Float8LinearRecipeName` (`rowwise`: E4M3 for inputs, weights and gradients).
# - SmolLM2: L. Ben Allal et al., 2025, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737). Speeches: State of the Union addresses, public domain.
