# %% [markdown]
# # Eight bits to serve: what is calibrated, and what is lost?
#
# - **You need** `41_fp8_scaling`.
# - **It takes** 60 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, in one process, on CPU. There the 8-bit products are emulated: the same
#   8-bit numbers are multiplied in fp32, so the loss is real but the speed is not. On a GPU with FP8 units, the same
#   cells call `torch._scaled_mm` (the record near the end says how far they ran on one). Three libraries are optional:
#   torchao (`pip install torchao`), ONNX (`pip install onnx onnxruntime`), and a build of llama.cpp (`pip install
#   ik-llama-cpp-python`).
# - **Model and text:** all of SmolLM2, on Lincoln's addresses. This lesson is about the model's outliers, and a model
#   that was trained for seconds has none.
# - **Links:** before this [42_fp8_training](42_fp8_training.ipynb), after it [51_adapters](../day5_adapt_compress/51_adapters.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A trained model has 16 bits a number. To serve it with 8 bits, we round three kinds of numbers: its **weights**, the
# **inputs** of its products, and its **cache** of keys and values. Which of the three decides how much of the model is
# lost? We round each of them ourselves and measure. Then we write the model to a file, in each of four formats that
# servers read, and compare what comes out of the file with what we put in, or with the model itself.

# %%
# %load_ext workshop
import torch

from workshop.assets import language_model, text
from workshop.compress.quantize_model import layer_linears
from workshop.exercises import beside
from workshop.facts.tabular import Table

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
smol, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)
smol.requires_grad_(False)
linears = layer_linears(smol)  # 7 in each of 30 layers, by name
speeches = text.load("sotu")


def first_tokens(name, count):
    """Of an address, (1, count)."""
    return (
        tokenizer(speeches[name], return_tensors="pt").input_ids[:, :count].to(device)
    )


known = first_tokens("1861_abraham_lincoln_r", 128)  # to calibrate with
unseen = first_tokens("1862_abraham_lincoln_r", 128)  # to score on

# %% [markdown]
# First, a warning (lesson 53 will show more): these weights come from a file of 4 bits, so they take only a few different
# values. The grids below have nothing in common with that file's, and we compare everything with this model as it is.
#
# ## How much is lost?
#
# Perplexity is the number that papers publish, but on 128 tokens it moves by a percent or two by luck, and it may even
# fall. We therefore also use the **KL divergence**. It measures how far the distribution over the next token has moved
# from the model's own, averaged over positions. Luck cannot bring it to zero: it is zero only if nothing has changed. Its
# unit is the nat, which is also the unit of the loss.


# %%
@torch.no_grad()
def log_probabilities(tokens, **options):
    """The model's, for each next token: (positions, vocabulary)."""
    return smol(tokens, **options).logits[0, :-1].float().log_softmax(-1)


reference = log_probabilities(unseen)
targets = unseen[0, 1:]


def harm(found):
    """Perplexity against the unharmed model's, in percent; KL divergence, in nats."""
    nll = [-each.gather(1, targets[:, None]).mean() for each in (found, reference)]
    kl = (reference.exp() * (reference - found)).sum(-1).mean()
    return 100 * ((nll[0] - nll[1]).exp() - 1).item(), kl.item()


assert harm(reference) == (0, 0)


def harm_table(names):
    """What these ways to round do to the model."""
    rows = []
    for name in names:
        percent, kl = results[name]
        rows.append((name, f"{percent:+.2f} %", f"{kl:.4f}"))
    return Table(("rounded", "perplexity", "KL, nats"), rows)


# %%
# %%guess decides --choices weights,inputs,cache
# Round one of the three to 8 bits, in the worst way tried below: which harms most?
...

# %% [markdown]
# ## Two kinds of eight bits
#
# Both formats divide the numbers by a scale, so that the largest magnitude becomes the format's largest value, and then
# round. **int8** has 255 evenly spaced values. **E4M3** has eight values between any power of two and the next, so its
# steps grow with the number.
#
# The methods differ in which numbers share a scale. All numbers come as a matrix: inputs are (tokens, features), a weight
# is (outputs, inputs).
#
# ### Exercise: who shares a scale?

# %%
# %%exercise scales_of
import torch


def scales_of(x: torch.Tensor, share: str, largest: float) -> torch.Tensor:
    """What to divide a matrix (rows, columns) by; it broadcasts against x.

    share: "tensor" for one scale, "row" for one per row, "column" for one per column.
    """
    amax = ...
    return ...


# %% [markdown]
# With these scales, rounding takes two lines. The 8-bit numbers below are real: each takes one byte.

# %%
LARGEST = {"int8": 127, "e4m3": 448}


def to_codes(x, scale, kind):
    """x / scale in 8 bits; what is too large is held at the end."""
    x = (x / scale).clamp(-LARGEST[kind], LARGEST[kind])
    return x.round().to(torch.int8) if kind == "int8" else x.to(torch.float8_e4m3fn)


def rounded(x, kind, share):
    """x as its codes give it back."""
    scale = scales_of(x, share, LARGEST[kind])
    return to_codes(x, scale, kind).float() * scale


# %% [markdown]
# We start with the weights, before the model reads any text. Weights need no calibration, because all of them are known.

# %%
# %%guess better_for_weights --choices int8,e4m3
# A weight matrix is rounded with one scale for each row. Which of the two formats
# has the smaller error?
...

# %% [markdown]
# For the inputs we need a text. **Calibration** means that the model reads a text while we record the largest magnitude
# of each feature of each product's input.


# %%
@torch.no_grad()
def inputs_of(model, tokens):
    """What enters each linear layer, (tokens, features), by its name."""
    seen, hooks = {}, []
    for name, linear in layer_linears(model).items():

        def note(_, inputs, name=name):
            seen[name] = inputs[0].flatten(0, -2)

        hooks.append(linear.register_forward_pre_hook(note))
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def calibrate(inputs):
    """The largest magnitude of each feature, by the linear layer's name."""
    return {name: x.abs().amax(0) for name, x in inputs.items()}


entered = inputs_of(smol, known)
channel_max = calibrate(entered)
steepest = {
    name: (top.max() / top.median()).item() for name, top in channel_max.items()
}
rows = []
for name in sorted(steepest, key=steepest.get)[-4:]:
    top = channel_max[name]
    rows.append((name, f"{top.max():.1f}", f"{top.median():.2f}"))
Table(("input of", "largest", "median feature's largest"), rows)

# %% [markdown]
# We take the last linear layer in this list, whose input features differ most in size. We round its weight and its input
# in both formats, with one scale per tensor, per row and per column.

# %%
from workshop import show

STEEP = max(steepest, key=steepest.get)
W, X = linears[STEEP].weight, entered[STEEP]


def median_error(x, back):
    """Error of a row relative to that row, the median over rows."""
    return ((back - x).norm(dim=1) / x.norm(dim=1)).median().item()


WHO = "tensor", "row", "column"
errors = {
    f"{what},\n{share}": {
        kind: median_error(x, rounded(x, kind, share)) for kind in LARGEST
    }
    for what, x in (("weight", W), ("input", X))
    for share in WHO
}
show.bars_by_group(errors, "relative error")

# %% [markdown]
# Could we have predicted these errors? Errors that are spread evenly over a step have a root mean square of step /
# $\sqrt{12}$. The step of int8 is its scale. A number far smaller than the step becomes zero, and then its error is the
# number itself. For E4M3, the rule from `41_fp8_scaling` gives $2^{-4}/\sqrt{7}$ of the number.


# %%
def int8_on_paper(x, share):
    """Error of a row relative to that row, the median over rows."""
    step = scales_of(x, share, LARGEST["int8"]).expand_as(x)
    off = torch.minimum(step.square() / 12, x.square()).mean(1)
    return (off / x.square().mean(1)).sqrt().median().item()


e4m3 = 2**-4 / 7**0.5
rows = []
for (name, row), (x, share) in zip(
    errors.items(), [(x, s) for x in (W, X) for s in WHO], strict=True
):
    int8 = int8_on_paper(x, share)
    told = (f"{each:.2%}" for each in (row["int8"], int8, row["e4m3"], e4m3))
    rows.append((name.replace("\n", " "), *told))
    assert abs(row["int8"] / int8 - 1) < 0.05
    assert 0.9 < row["e4m3"] / e4m3 < 1.4
subnormal = (X / scales_of(X, "tensor", LARGEST["e4m3"])).abs() < 2.0**-6
print(f"input, tensor: {subnormal.float().mean():.0%} of the numbers are below 2^-6")
assert subnormal.float().mean() > 0.5
head = "int8, measured", "predicted", "E4M3, measured", "predicted"
Table(("relative error", *head), rows)

# %%
weight_row, input_tensor = errors["weight,\nrow"], errors["input,\ntensor"]
assert weight_row["int8"] < 0.7 * weight_row["e4m3"]
assert input_tensor["e4m3"] < 0.1 * input_tensor["int8"]
assert errors["input,\ncolumn"]["int8"] < 0.2 * input_tensor["int8"]
assert errors["input,\nrow"]["int8"] < 0.8 * errors["input,\ncolumn"]["int8"]
assert all(0.02 < row["e4m3"] < 0.035 for row in errors.values())
tops = X.abs().amax(1)  # of each token
assert tops.argmax() == 0
assert (tops > 0.1 * tops.max()).sum() == 1
on_paper = {"int8": int8_on_paper(W, "row"), "e4m3": e4m3}
beside(
    "better_for_weights",
    predicted=min(on_paper, key=on_paper.get),
    measured=min(weight_row, key=weight_row.get),
)

# %% [markdown]
# This picture decides the rest of the lesson.
#
# - **E4M3 hardly depends on the scale.** Its steps grow with the number, so its error is between two and three and a half
#   percent. This error comes from the mantissa's three bits, and is the same for all *normal* numbers, which are those from
#   $2^{-6}$ up. Below that, E4M3 has equal steps too. This is why the input with one scale is further off than predicted:
#   its outlier is mapped to 448, and more than half of the other numbers fall below $2^{-6}$.
# - **int8 depends on its scale**, and the step on paper predicts the error to within 5 %. The weights of a row are of similar size, and there the
#   even steps of int8 are finer than those of E4M3, which spends most of its values on numbers near zero, so int8 is the better format. If the scale
#   must reach an outlier, the other numbers are rounded to nothing.
# - In large models, one scale **per column** would save int8's inputs, but this is the one kind of scale that the product
#   cannot use. (Here one scale per row saves them even better, because this input's outliers are all at the first token,
#   which is a separate row.)
#
# Why can the product not use it? A product sums over the columns of x: $y_{to} = \sum_j x_{tj} w_{oj}$. A scale that
# belongs to a token or to an output is the same in each term, so it can be moved out of the sum. A scale of column j
# cannot. The SmoothQuant paper reports accuracies for OPT-175B with int8 inputs (table 1): 71.6 % in FP16; with one scale
# per tensor 32.3 %, per token 31.7 %, per channel 71.4 %. We will come back to this.
#
# ## Weights alone
#
# In **weight-only** quantization (W8A16), the weights are stored in 8 bits and are converted to 16 or 32 bits as they are
# read. The inputs stay as they are. A server with one user reads all weights for each token, so half the bytes allow up
# to twice the tokens.
#
# The next cell defines such a layer. It stores only codes, and a scale for each row or for the whole tensor. Later we use
# the same class to round the inputs too.

# %%
from workshop.precision.fp8 import product
from workshop.precision.scaling import Operand


class Linear8(torch.nn.Module):
    """Codes and scales of a weight; inputs rounded too, by share or static scale."""

    def __init__(self, weight, kind, share="row", inputs=None):
        super().__init__()
        self.kind, self.inputs = kind, inputs
        self.register_buffer("scale", scales_of(weight, share, LARGEST[kind]))
        self.register_buffer("codes", to_codes(weight, self.scale, kind))

    def forward(self, x):
        if self.inputs is None:  # weight-only
            return x @ (self.codes.to(x.dtype) * self.scale).T
        flat = x.flatten(0, -2)
        static = isinstance(self.inputs, torch.Tensor)  # otherwise a share: "row"
        scale = (
            self.inputs if static else scales_of(flat, self.inputs, LARGEST[self.kind])
        )
        left = Operand(to_codes(flat, scale, self.kind), scale.view(-1, 1))
        right = Operand(self.codes, self.scale)
        through = "auto" if self.kind == "e4m3" else "emulated"
        return product(left, right, through).unflatten(0, x.shape[:-1])


def swapped(layers):
    """Put these in the place of the model's linear layers, by name."""
    for name, layer in layers.items():
        smol.set_submodule(name, layer)


kept = {name: value.clone() for name, value in smol.state_dict().items()}


# %%
SHARES = {"int8": "row", "e4m3": "tensor"}
made, results = {}, {}
for kind, share in SHARES.items():
    made[kind] = {n: Linear8(kept[f"{n}.weight"], kind, share) for n in linears}
    held = sum(part.nbytes for layer in made[kind].values() for part in layer.buffers())
    count = sum(linear.weight.numel() for linear in linears.values())
    rows = sum(linear.out_features for linear in linears.values())
    assert held == count + 4 * (rows if share == "row" else len(linears))  # predicted
    swapped(made[kind])
    results[f"{kind} weights, per {share}"] = harm(log_probabilities(unseen))
print(f"{held / 1e6:.1f} MB; in 16 bits {2 * count / 1e6:.1f} MB")
int8_kl, e4m3_kl = (kl for _, kl in results.values())
assert int8_kl < e4m3_kl / 3
assert e4m3_kl < 0.05
harm_table(results)

# %% [markdown]
# The whole model confirms the picture. With one scale per row, int8 is several times nearer to the model. E4M3 with one
# scale for a whole matrix is near enough for most uses. Perplexity by itself would be misleading: look at its signs.
#
# ## The same by torchao
#
# `quantize_` replaces each weight with a tensor subclass that holds codes and scales, and the module stays an
# `nn.Linear`. We compare our codes and scales with torchao's, for the seven linear layers in one layer of the model:

# %%
import contextlib
import copy
import importlib.util
import io

has_torchao = importlib.util.find_spec("torchao") is not None
if has_torchao:
    with contextlib.redirect_stderr(io.StringIO()):  # hides its list of missing kernels
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig
        from torchao.quantization import quantize_
else:
    print("no torchao here, so ours stand alone: pip install torchao")


def by_torchao(config):
    """Codes and scales of layer 12's linear layers, by name."""
    layer = copy.deepcopy(
        torch.nn.ModuleDict({n.replace(".", "/"): m for n, m in twelve})
    )
    quantize_(layer, config)
    return {name: (m.weight.qdata, m.weight.scale) for name, m in layer.items()}


# %%
twelve = [(n, linear) for n, linear in linears.items() if ".layers.12." in n]
if has_torchao:
    float8 = by_torchao(Float8WeightOnlyConfig())
    int8 = by_torchao(Int8WeightOnlyConfig())
    for name, linear in twelve:
        ours, at = Linear8(linear.weight, "e4m3"), name.replace(".", "/")
        codes, scale = float8[at]
        assert torch.equal(ours.codes.view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(ours.scale, scale)
        codes, scale = int8[at]
        # torchao's int8 uses all 256 codes, down to -128
        wide = scales_of(linear.weight, "row", 127.5)
        by_hand = (linear.weight * (1 / wide)).round().clamp(-128, 127)
        assert torch.equal(by_hand, codes.float())
        assert torch.equal(wide, scale)
    print(f"{len(twelve)} weights: torchao's codes and scales are ours, bit for bit")

# %% [markdown]
# The FP8 codes are equal bit for bit. The int8 codes are equal too, once we use torchao's grid: torchao divides by 127.5,
# so that the largest number lies half a step beyond the last code. Ours is the grid of the SmoothQuant paper and of
# llama.cpp.
#
# torchao's setting for FP8 inputs, `Float8DynamicActivationFloat8WeightConfig`, requires a GPU with FP8 units and refuses
# to run here. We therefore write W8A8 ourselves, and compare its int8 half with torchao's.
#
# ## Inputs too: static or dynamic?
#
# With many users at once, the weights are read once for all of them. Then arithmetic takes most of the time, and 8-bit
# units help only if *both* factors have 8 bits: **W8A8**. Unlike a weight, an input is not known beforehand. There are
# two ways to choose its scale:
#
# - **dynamic:** from the input itself, when it comes. This takes one more pass over the input, but each token can have
#   its own scale.
# - **static:** from the calibration text, once. This is the faster way, because no scale has to be found at run time: the inputs are only divided and
#   rounded. But the scale is a guess about all text to come.

# %%
# %%guess static_int8 --unit %
# All inputs are in int8, and each product's inputs share one static scale. By how
# many percent does perplexity rise?
...


# %%
def static(name, kind, channel_max):
    """The one scale of a product's inputs, from calibration."""
    return (channel_max[name].max() / LARGEST[kind]).view(1, 1)


for kind, layers in made.items():
    swapped(layers)
    for how in ("static", "per token"):
        for name, layer in layers.items():
            scale = static(name, kind, channel_max)
            layer.inputs = scale if how == "static" else "row"
        results[f"{kind} W8A8, {how}"] = harm(log_probabilities(unseen))
harm_table(list(results)[-4:])

# %% [markdown]
# Does a library compute the same? torchao's setting for int8 inputs also runs on a CPU. It has one scale for each token and
# one for each row of the weight, on its grid of 127.5:

# %%
if has_torchao:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    name, linear = twelve[0]
    x, weight = entered[name].cpu(), linear.weight.cpu()
    by_library = torch.nn.Sequential(copy.deepcopy(linear).cpu())
    quantize_(by_library, Int8DynamicActivationInt8WeightConfig())
    back = []
    for matrix in (x, weight):
        scale = scales_of(matrix, "row", 127.5)
        back.append((matrix / scale).round().clamp(-128, 127) * scale)
    by_hand, exact = back[0] @ back[1].T, x @ weight.T
    y = by_library(x)
    apart, off = ((y - other).norm() / exact.norm() for other in (by_hand, exact))
    print(f"torchao and by hand: {apart:.0e} apart; rounding itself: {off:.0e}")
    assert apart < 0.1 * off

# %% [markdown]
# W8A8 rounds weights *and* inputs. To see what the inputs alone do, we leave the weights as they are and round only what
# enters them:

# %%
swapped(linears)
hooks = []
for name, linear in linears.items():
    known_scale = static(name, "int8", channel_max)

    def round_input(_, inputs, scale=known_scale):
        return to_codes(inputs[0], scale, "int8").float() * scale

    hooks.append(linear.register_forward_pre_hook(round_input))
results["int8 inputs alone, static"] = harm(log_probabilities(unseen))
for hook in hooks:
    hook.remove()
harm_table(["int8 inputs alone, static", "int8 weights, per row", "int8 W8A8, static"])

# %%
kl = {name: row[1] for name, row in results.items()}
assert kl["int8 W8A8, static"] > 5 * kl["int8 W8A8, per token"]
assert kl["int8 W8A8, static"] > 5 * kl["e4m3 W8A8, static"]
assert results["int8 W8A8, static"][0] > 40
assert 0.5 < kl["int8 W8A8, per token"] / kl["e4m3 W8A8, static"] < 2
assert 0.8 < kl["int8 inputs alone, static"] / kl["int8 W8A8, static"] < 1.2
beside("static_int8", measured=results["int8 W8A8, static"][0])

# %% [markdown]
# A single static scale ruins int8, and the inputs do nearly all of the harm. E4M3 loses only a small part of that. For
# this model, on hardware with FP8, the simplest calibration is therefore good enough. Here one scale per token saves
# int8: it comes about as near to the model as static FP8. In OPT-175B (table 1 above) it does not, because there the
# outliers are in some features at *every* token, not in the first one.
#
# Could we remove the outliers?
#
# ## SmoothQuant by hand
#
# A factor of feature j can be moved from the input to the weight without a change of the product: $(x_{tj} /
# s_j)\,(s_j\,w_{oj}) = x_{tj}\,w_{oj}$. The effect is one scale per column of the input, absorbed by the weight. A single
# number, α, sets how much of the difficulty is moved (Xiao et al., section 4):
#
# $$s_j = \frac{\max_t |x_{tj}|^{\alpha}}{\max_o |w_{oj}|^{1-\alpha}}$$
#
# Dividing x costs nothing at run time if we divide the weights that *produce* x, once and beforehand. These are the
# weight of the norm before q, k and v, the weight of the norm before gate and up, and the rows of up before down (up
# enters by an elementwise product).
#
# ### Exercise: move the outliers

# %%
# %%exercise smooth
import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    w_max = ...
    s = ...
    column = s.view(-1, *[1] * (before.ndim - 1))  # s for each row of a matrix
    return ..., [... for weight in weights]


# %% [markdown]
# ### A slider that decides: which α?
#
# The left plot shows the largest magnitude of the inputs by feature, and the right plot that of the weights, after
# smoothing with α. At 0 the weights are even and the inputs are not; at 1 it is the other way round. The title shows the
# error of the int8 product, with the inputs under one scale. Move α until the error is smallest.

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, panels

ALPHAS = [step / 10 for step in range(11)]
ones = torch.ones(len(X.T), device=device)


def smoothed_error(alpha):
    """Inputs and weight after smoothing, and the error of their int8 product."""
    by_s, (weight,) = smooth(channel_max[STEEP], ones, [W], alpha)
    x = X * by_s  # by_s is 1 / s
    exact = X @ W.T
    found = rounded(x, "int8", "tensor") @ rounded(weight, "int8", "row").T
    return x, weight, median_error(exact, found)


def draw(alpha):
    x, weight, error = smoothed_error(alpha)
    figure, axes = panels(8.4, 2.6, 2)
    for axis, numbers, label in zip(
        axes, (x, weight), ("inputs", "weights"), strict=True
    ):
        tops = numbers.abs().amax(0).cpu()
        axis.plot(tops / tops.median(), color="#0072B2", linewidth=0.7)
        axis.set(yscale="log", ylim=(0.05, 2e4), xlabel="feature", title=label)
    axes[0].set_ylabel("largest / median feature's")
    figure.suptitle(f"alpha {alpha}: error of the product {error:.1%}", fontsize=10)
    return Picture(figure, f"alpha {alpha}: error of the int8 product {error:.1%}")


explore(draw, [Control("alpha", 0.0, ALPHAS)])

# %%
by_alpha = {alpha: smoothed_error(alpha)[2] for alpha in ALPHAS}
best = min(by_alpha, key=by_alpha.get)
cells = [f"{100 * error:.1f}" for error in by_alpha.values()]
print(Table(("alpha", *map(str, ALPHAS)), [("error, %", *cells)]))
plain = median_error(
    X @ W.T, rounded(X, "int8", "tensor") @ rounded(W, "int8", "row").T
)
print(f"without smoothing {plain:.1%}; least at alpha = {best}")
assert 0.5 < best < 1
assert by_alpha[best] < 0.5 * plain
draw(best)

# %% [markdown]
# The least error lies between the ends, as the paper says; for Llama, the paper took α = 0.8 (table 6). (The last picture
# shows the slider's answer, for readers without a kernel.)
#
# Now the whole model. We smooth three places in each layer; the fourth input (`o_proj`) stays as it is. First we check
# that smoothing leaves the model unchanged, and then we round it.


# %%
@torch.no_grad()
def smooth_model(channel_max, alpha):
    """Fold s into the model, in place."""
    for number, layer in enumerate(smol.model.layers):
        readers = (
            (
                layer.input_layernorm,
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            ),
            (layer.post_attention_layernorm, ("mlp.gate_proj", "mlp.up_proj")),
            (layer.mlp.up_proj, ("mlp.down_proj",)),
        )
        for before, names in readers:
            names = [f"model.layers.{number}.{name}" for name in names]
            weights = [linears[name].weight for name in names]
            made, new = smooth(channel_max[names[0]], before.weight, weights, alpha)
            before.weight.copy_(made)
            for weight, value in zip(weights, new, strict=True):
                weight.copy_(value)


swapped(linears)
smooth_model(channel_max, best)
_, off = harm(log_probabilities(unseen))
print(f"smoothed, not rounded: KL {off:.0e}: only rounding in fp32")
assert abs(off) < 1e-4

# %%
smoothed_max = calibrate(inputs_of(smol, known))
smoothed = {n: Linear8(linear.weight.detach(), "int8") for n, linear in linears.items()}
for name, layer in smoothed.items():
    layer.inputs = static(name, "int8", smoothed_max)
swapped(smoothed)
results["int8 W8A8, static, smoothed"] = harm(log_probabilities(unseen))
swapped(linears)
smol.load_state_dict(kept)
del smoothed
before, after = (results[f"int8 W8A8, static{end}"][1] for end in ("", ", smoothed"))
assert after < before / 2
assert after > 3 * results["e4m3 W8A8, static"][1]
assert 20 < results["int8 W8A8, static, smoothed"][0] < 50
print(f"the steepest product, at alpha {best}: still {by_alpha[best]:.1%} off")
assert 0.2 < by_alpha[best] < 0.3
harm_table(["int8 W8A8, static", "int8 W8A8, static, smoothed"])

# %% [markdown]
# Smoothing removes more than half of int8's loss, without a single extra operation at run time. But it does not save this
# model: perplexity is still a third worse, and the KL divergence is several times that of static FP8. Even at the best α,
# the product with the largest outliers has an error of a quarter, and a single α, chosen on that layer, serves all
# layers.
#
# The SmoothQuant paper reports mean accuracies over seven tasks for OPT-175B (table 3): FP16 66.9 %, int8 W8A8 35.5 %,
# LLM.int8() 66.7 %, SmoothQuant with static scales 66.8 %. LLM.int8(), which lesson 53 will show, takes the outliers out
# of the product, and that costs time.
#
# ## The cache
#
# Each token leaves a key and a value in each layer. For $L$ layers with $h$ heads of keys, each of $d$ numbers:
#
# $$\text{bytes a token} = 2\,L\,h\,(d \cdot \text{bytes a number} + \text{bytes of a scale})$$
#
# The last term applies if each head and token has its own scale. A single scale for a layer takes next to nothing.

# %%
# %%guess more_users --choices weights,cache
# An H100 serves Llama 3.1 8B to users with 8,192 tokens each. It has 32 layers with 8
# heads of keys and values, 128 numbers each. Everything has 16 bits. If only one of
# the two may have 8 bits instead, which of them leaves room for more users?
...

# %% [markdown]
# We now write such a cache. It stores codes and scales, and gives attention the numbers that they represent. In transformers, attention calls the
# `update` of a cache object, so ours is a subclass of `DynamicCache` with an `update` of its own.

# %%
from transformers import DynamicCache


class Cache8(DynamicCache):
    """Keys and values in 8 bits; one scale for each head and token, or scale 1."""

    def __init__(self, kind, own_scales):
        super().__init__()
        self.kind, self.own_scales, self.kept = kind, own_scales, {}

    def update(self, keys, values, layer, *_, **__):
        given = []
        for which, new in (("keys", keys), ("values", values)):
            scale = torch.ones((), device=new.device)
            if self.own_scales:
                amax = new.abs().amax(-1, keepdim=True)
                scale = (amax / LARGEST[self.kind]).half().clamp(min=1e-4)
            added = to_codes(new, scale, self.kind), scale
            if (layer, which) in self.kept:
                pairs = zip(self.kept[layer, which], added, strict=True)
                added = tuple(torch.cat(p, -2) if p[1].ndim else p[1] for p in pairs)
            self.kept[layer, which] = added
            given.append(added[0].to(new.dtype) * added[1].to(new.dtype))
        return given

    def get_seq_length(self, layer_idx=0):
        held = self.kept.get((layer_idx, "keys"))
        return held[0].shape[-2] if held else 0

    def get_mask_sizes(self, query_length, layer_idx):
        return self.get_seq_length(layer_idx) + query_length, 0

    def nbytes(self):
        return sum(part.nbytes for pair in self.kept.values() for part in pair)


# %%
config = smol.config
positions = 2 * config.num_hidden_layers * config.num_key_value_heads
num = unseen.shape[1]
caches = {
    "int8, per head and token": (Cache8("int8", True), config.head_dim + 2),
    "e4m3, scale 1": (Cache8("e4m3", False), config.head_dim),
}
print(f"in 16 bits {2 * num * positions * config.head_dim:,} B")
rows = []
for name, (cache, bytes_each) in caches.items():
    at_once = log_probabilities(unseen, past_key_values=cache, use_cache=True)
    results[f"cache {name}"] = found = harm(at_once)
    scales = 0 if cache.own_scales else 4 * len(cache.kept)
    predicted = num * positions * bytes_each + scales
    sizes = f"{predicted:,} B", f"{cache.nbytes():,} B"
    rows.append((name, *sizes, f"{found[0]:+.2f} %", f"{found[1]:.4f}"))
    assert cache.nbytes() == predicted
    assert found[1] < 0.03
assert (
    results["cache int8, per head and token"][1]
    < 0.5 * results["cache e4m3, scale 1"][1]
)
assert results["cache e4m3, scale 1"][1] < e4m3_kl
largest = max(
    pair[0].float().abs().max() for pair in caches["e4m3, scale 1"][0].kept.values()
)
print(f"largest key or value {largest:.0f}, E4M3 reaches 448")
assert largest < 448
Table(("cache", "predicted", "held", "perplexity", "KL, nats"), rows)

# %% [markdown]
# The numbers of a head are of similar size, so int8 with one scale per head and token is again the closest. E4M3 needs no
# scale at all, because keys and values lie far below 448. It is the simplest 8-bit cache: it takes half the bytes, and
# loses less than weights in E4M3 do.
#
# Does the cache also work when the model *generates*? We read the same tokens in two parts, and the second part uses the
# cache of the first:

# %%
cache = Cache8("e4m3", False)
log_probabilities(unseen[:, :100], past_key_values=cache, use_cache=True)
second = log_probabilities(unseen[:, 100:], past_key_values=cache, use_cache=True)
apart = (second - at_once[100:]).norm() / second.norm()
print(f"in two parts and at once: {apart:.1e} apart")
assert apart < 0.01

# %% [markdown]
# At scale: how many users fit on one H100, if each has 8,192 tokens? The model is Llama 3.1 8B, with weights and cache
# first in 16 bits and then in 8.

# %%
from workshop.facts.catalogue import device as device_facts
from workshop.facts.catalogue import model as model_facts


def cache_bytes(name, tokens, bytes_each):
    """Keys and values of so many tokens."""
    spec = model_facts(name)
    heads = spec.num_kv_heads or spec.num_heads
    width = spec.hidden_size // spec.num_heads
    return 2 * spec.num_layers * heads * width * tokens * bytes_each


users, memory = {}, device_facts("H100").memory_bytes
for weights in (2, 1):
    held = weights * model_facts("llama-3.1-8b").num_params
    for cache in (2, 1):
        of_user = cache_bytes("llama-3.1-8b", 8192, cache)
        users[weights, cache] = int((memory - held) // of_user)
assert users[2, 1] > 1.9 * users[2, 2] > 1.7 * users[1, 2]
rows = [(f"{8 * w} bits", f"{8 * c} bits", str(many)) for (w, c), many in users.items()]
Table(
    ("weights", "cache", "users"), rows, f"{memory / 1e9:.0f} GB, 8,192 tokens a user"
)

# %%
with_8_bits = {"weights": users[1, 2], "cache": users[2, 1]}
beside("more_users", calculated=max(with_8_bits, key=with_8_bits.get))

# %% [markdown]
# When Llama 3.1 appeared, Hugging Face published the size of its cache in 16 bits for 1,024, for 16,000 and for 128,000
# tokens. The formula gives the same, if a "GB" is $2^{30}$ bytes. Only their row for 405B is twice our result. It fits 16
# heads of keys and values, but the model has 8. (A reader asked about this; the issue is among the sources.)

# %% tags=["nbval-check-output"]
PUBLISHED = {
    "llama-3.1-8b": (0.125, 1.95, 15.62),
    "llama-3.1-70b": (0.313, 4.88, 39.06),
    "llama-3.1-405b": (0.984, 15.38, 123.05),
}
rows = []
for name, published in PUBLISHED.items():
    sizes = [cache_bytes(name, n, 2) / 2**30 for n in (1_024, 16_000, 128_000)]
    pairs = zip(sizes, published, (3, 2, 2), strict=True)
    rows.append((name, *(f"{a:.{digits}f} / {b:.{digits}f}" for a, b, digits in pairs)))
    twice = 2 if "405b" in name else 1
    for ours, theirs in zip(sizes, published, strict=True):
        assert abs(twice * ours - theirs) < 0.006
head = "1,024 tokens", "16,000 tokens", "128,000 tokens"
Table(("ours / published, GiB", *head), rows)

# %% [markdown]
# So with many users, the cache is what counts. Half the cache gives twice the users, and half the weights alone give only a few more. (The
# calculation leaves out working memory.)
#
# ## A model in FP8 only
#
# Now we write everything that we chose to one file. It contains no second copy in 16 bits: the weights **are** their
# codes. The names below are those that NVIDIA's Model Optimizer writes. TensorRT-LLM, vLLM and SGLang read a folder with
# these tensors and a `hf_quant_config.json`. There, the algorithm `FP8` means that weights and inputs are in E4M3 with
# one static scale each, and the cache is in E4M3. The `producer` field matters, because vLLM recognizes the format by the
# name `modelopt`. The tokenizer goes into the folder too, because the server reads text.

# %%
import json

from safetensors.torch import load_file, save_file

from workshop import launch

folder = launch.Session.get().directory / "served"  # deleted when the kernel ends
folder.mkdir()
served = made["e4m3"]
for name, layer in served.items():
    layer.inputs = static(name, "e4m3", channel_max)
tensors = {
    name: value.bfloat16().contiguous()
    for name, value in smol.state_dict().items()
    if name.removesuffix(".weight") not in linears and name != "lm_head.weight"
}  # norms and the embedding, which is also the head
for name, layer in served.items():
    tensors[f"{name}.weight"] = layer.codes
    tensors[f"{name}.weight_scale"] = layer.scale.view(())
    tensors[f"{name}.input_scale"] = layer.inputs.view(())
    if name.endswith(("k_proj", "v_proj")):
        which = name.rpartition(".")[2][0]  # k or v
        tensors[f"{name}.{which}_scale"] = torch.ones(())
save_file({name: t.cpu() for name, t in tensors.items()}, folder / "model.safetensors")

# %%
smol.config.save_pretrained(folder)
tokenizer.save_pretrained(folder)
algorithm = {
    "quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8",
    "exclude_modules": ["lm_head"],
}
producer = {"name": "modelopt", "version": "0.47.0"}
served_as = {"producer": producer, "quantization": algorithm}
_ = (folder / "hf_quant_config.json").write_text(json.dumps(served_as))

# %% [markdown]
# We erase the codes and input scales of our layers, and read them again from the file. The logits must be equal to the
# last bit.

# %%
swapped(served)
cached = {"past_key_values": Cache8("e4m3", False), "use_cache": True}
wanted = log_probabilities(unseen, **cached)
results["FP8 only: weights, inputs, cache"] = harm(wanted)
read = load_file(folder / "model.safetensors", device=str(device))
for layer in served.values():  # erase what is in memory
    layer.codes, layer.inputs = torch.zeros_like(layer.codes), None
for name, layer in served.items():
    layer.codes, layer.scale = (
        read[f"{name}.weight"],
        read[f"{name}.weight_scale"].view(1, 1),
    )
    layer.inputs = read[f"{name}.input_scale"].view(1, 1)
cached["past_key_values"] = Cache8("e4m3", False)
assert torch.equal(log_probabilities(unseen, **cached), wanted)

size = (folder / "model.safetensors").stat().st_size
others = sum(w.numel() for w in kept.values()) - count - kept["lm_head.weight"].numel()
predicted = count + 2 * others  # one byte per weight, two for the rest
print(f"predicted {predicted / 1e6:.2f} MB, on disk {size / 1e6:.2f} MB")
assert 0 < size - predicted < 0.001 * size  # the rest is scales and names

# %% [markdown]
# A server needs only this folder: `vllm serve FOLDER` recognizes it by `hf_quant_config.json`, and in TensorRT-LLM it is
# `LLM(model=FOLDER)`. (We did not try either here. Both need a GPU.)
#
# ## What TensorRT-LLM's engine takes
#
# TensorRT-LLM's PyTorch backend loads that folder. Its older way builds an engine from a *checkpoint*: `config.json` and
# a `rank0.safetensors` for each rank, with different names. There, q, k and v are one matrix, so they must share one
# scale. The same holds for a pair of projections that the engine fuses. The larger scale is used for all of them, and the
# others are rounded again.

# %%
PLACES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
TOGETHER = {"mlp.fc": ("mlp.up_proj",), "mlp.gate": ("mlp.gate_proj",)}


def engine_linear(number, place):
    """One matrix of the engine: codes, and the scales of weights and inputs."""
    names = [f"model.layers.{number}.{name}" for name in PLACES[place]]
    alike = [*names, *(f"model.layers.{number}.{n}" for n in TOGETHER.get(place, ()))]
    scale = max(read[f"{name}.weight_scale"] for name in alike)
    parts = [read[f"{n}.weight"].float() * read[f"{n}.weight_scale"] for n in names]
    return {
        "weight": to_codes(torch.cat(parts), scale, "e4m3"),
        "weights_scaling_factor": scale.reshape(1).clone(),
        "activation_scaling_factor": read[f"{names[0]}.input_scale"].reshape(1),
    }


# %%
engine = {
    "transformer.vocab_embedding.weight": read["model.embed_tokens.weight"],
    "lm_head.weight": read["model.embed_tokens.weight"].clone(),
    "transformer.ln_f.weight": read["model.norm.weight"],
}
for number in range(config.num_hidden_layers):
    ours, theirs = f"model.layers.{number}.", f"transformer.layers.{number}."
    for place in PLACES:
        for end, value in engine_linear(number, place).items():
            engine[f"{theirs}{place}.{end}"] = value
    engine[f"{theirs}attention.kv_cache_scaling_factor"] = torch.ones(1)
    for norm, name in (("input", "input"), ("post", "post_attention")):
        norm = f"{theirs}{norm}_layernorm.weight"
        engine[norm] = read[f"{ours}{name}_layernorm.weight"]

# %%
settings = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "hidden_act": config.hidden_act,
    "position_embedding_type": "rope_gpt_neox",
    "norm_epsilon": config.rms_norm_eps,
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    "quantization": algorithm,
}
SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
for field in (*SIZES.split(), "num_key_value_heads", "max_position_embeddings"):
    settings[field] = getattr(config, field)
(folder / "engine").mkdir(exist_ok=True)
(folder / "engine" / "config.json").write_text(json.dumps(settings, indent=1))
save_file(
    {n: t.cpu() for n, t in engine.items()}, folder / "engine" / "rank0.safetensors"
)

# %% [markdown]
# TensorRT-LLM itself needs an NVIDIA GPU and several gigabytes, and it is not installed here. What we do have is NVIDIA's
# Model Optimizer, which writes both layouts and runs on a CPU. A test of this workshop lets it write a small Llama, and
# compares names, shapes, types and values with those of these cells (`tests/compress/test_served_files.py`). Here, we
# load the file back into our model:

# %%
back = load_file(folder / "engine" / "rank0.safetensors", device=str(device))
for number in range(config.num_hidden_layers):
    for place, names in PLACES.items():
        prefix = f"transformer.layers.{number}.{place}."
        rows = [linears[f"model.layers.{number}.{name}"].out_features for name in names]
        codes = back[f"{prefix}weight"].split(rows)
        for name, part in zip(names, codes, strict=True):
            layer = served[f"model.layers.{number}.{name}"]
            layer.codes, layer.scale = (
                part,
                back[f"{prefix}weights_scaling_factor"].view(1, 1),
            )
            layer.inputs = back[f"{prefix}activation_scaling_factor"].view(1, 1)
results["the engine's file"] = harm(log_probabilities(unseen))
percent, kl = results["the engine's file"]
print(f"from rank0.safetensors: perplexity {percent:+.2f} %   KL {kl:.4f}")
once = results["e4m3 W8A8, static"][1]
assert 0.7 * once < kl < 1.4 * once

# %% [markdown]
# The weights whose scales had to be shared are now rounded twice. This costs a little more: the file is somewhat further from the model than the same
# choices were with a scale for each matrix (`e4m3 W8A8, static`).
#
# ## ONNX: the graph in the file
#
# safetensors stores only tensors, and the server supplies the code. An **ONNX** file also stores the graph, so any
# runtime can run it. Eight bits are two operators there. `QuantizeLinear` divides, rounds and clips to the range of the
# format, and `DequantizeLinear` multiplies back. A runtime with 8-bit kernels fuses such pairs with the product between
# them.
#
# The next cells define one linear layer of W8A8 and then a layer of a Llama. That takes only ten more nodes, since ONNX
# has rotary embedding and attention.

# %%
import numpy as np

try:
    import onnx
    import onnxruntime
except ImportError as error:
    onnx = None
    print(f"{error}: pip install onnx onnxruntime")


# %%
# What the file stores: the operators of the graph in their order, and the tensors.
class Graph:
    """Nodes and stored tensors of an ONNX file in the making."""

    def __init__(self):
        self.nodes, self.stored = [], []

    def node(self, kind, inputs, out, **settings):
        self.nodes.append(onnx.helper.make_node(kind, inputs, [out], **settings))
        return out

    def store(self, name, value):
        value, form = value.detach().cpu().contiguous(), onnx.TensorProto.FLOAT
        if value.dtype == torch.float8_e4m3fn:
            value, form = value.view(torch.uint8), onnx.TensorProto.FLOAT8E4M3FN
        data, shape = value.numpy().tobytes(), list(value.shape)
        self.stored.append(onnx.helper.make_tensor(name, form, shape, data, raw=True))
        return name


def linear_nodes(graph, x, name):
    """x W^T in W8A8, with the codes and scales of a served layer."""
    layer, zero = served[name], torch.zeros(()).to(torch.float8_e4m3fn)
    given = [
        graph.store(f"{name}.in", layer.inputs.view(())),
        graph.store(f"{name}.0", zero),
    ]
    q = graph.node("QuantizeLinear", [x, *given], f"{name}.q")
    x = graph.node("DequantizeLinear", [q, *given], f"{name}.x")
    held = [
        graph.store(f"{name}.codes", layer.codes.T),
        graph.store(f"{name}.s", layer.scale.view(())),
    ]
    w = graph.node("DequantizeLinear", held, f"{name}.w")
    return graph.node("MatMul", [x, w], f"{name}.y")


# %%
def norm_nodes(graph, x, name, weight):
    stored = graph.store(f"{name}.weight", weight)
    settings = {"axis": -1, "epsilon": config.rms_norm_eps}
    return graph.node("RMSNormalization", [x, stored], f"{name}.y", **settings)


def layer_nodes(graph, x, number, layer):
    """A layer of a Llama: x in, x out."""
    at, add = f"model.layers.{number}", graph.node
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    y = norm_nodes(graph, x, f"{at}.n1", layer.input_layernorm.weight)
    q, k, v = (linear_nodes(graph, y, f"{at}.self_attn.{one}_proj") for one in "qkv")
    turn = ["cos", "sin", "positions"]
    q = add("RotaryEmbedding", [q, *turn], f"{at}.q", num_heads=heads)
    k = add("RotaryEmbedding", [k, *turn], f"{at}.k", num_heads=kv)
    sizes = {"q_num_heads": heads, "kv_num_heads": kv}
    y = add("Attention", [q, k, v], f"{at}.a", is_causal=1, **sizes)
    x = add("Add", [x, linear_nodes(graph, y, f"{at}.self_attn.o_proj")], f"{at}.x1")
    y = norm_nodes(graph, x, f"{at}.n2", layer.post_attention_layernorm.weight)
    gate, up = (
        linear_nodes(graph, y, f"{at}.mlp.{one}_proj") for one in ("gate", "up")
    )
    swish = add("Mul", [gate, add("Sigmoid", [gate], f"{at}.s")], f"{at}.g")
    y = add("Mul", [swish, up], f"{at}.h")
    return add("Add", [x, linear_nodes(graph, y, f"{at}.mlp.down_proj")], f"{at}.x2")


# %% [markdown]
# The embedding comes before these layers, and the norm and the head come after them. To save time, we write only the
# first four layers; `LAYERS = 30` writes all.

# %%
LAYERS = 4


def write_onnx(path):
    graph, body = Graph(), smol.model
    cos, sin = body.rotary_emb(
        torch.ones(1, device=device), torch.arange(len(unseen[0]), device=device)[None]
    )
    half = config.head_dim // 2  # the second half of the angles repeats the first
    graph.store("cos", cos[0, :, :half])
    graph.store("sin", sin[0, :, :half])
    graph.store("table", body.embed_tokens.weight)
    x = graph.node("Gather", ["table", "tokens"], "x")
    for number, layer in enumerate(body.layers[:LAYERS]):
        x = layer_nodes(graph, x, number, layer)
    x = norm_nodes(graph, x, "norm", body.norm.weight)
    graph.node(
        "MatMul", [x, graph.node("Transpose", ["table"], "head", perm=[1, 0])], "logits"
    )
    given = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1, "n"])
        for name in ("tokens", "positions")
    ]
    form = onnx.TensorProto.FLOAT, [1, "n", config.vocab_size]
    out = [onnx.helper.make_tensor_value_info("logits", *form)]
    made = onnx.helper.make_graph(graph.nodes, "llama", given, out, graph.stored)
    version = [onnx.helper.make_opsetid("", 23)]
    onnx.save(onnx.helper.make_model(made, opset_imports=version, ir_version=11), path)


# %%
def first_layers(layers):
    """torch's logits from the first `LAYERS` alone, with these linear layers."""
    swapped(layers)
    whole, smol.model.layers = smol.model.layers, smol.model.layers[:LAYERS]
    with torch.no_grad():
        logits = smol(unseen).logits.cpu()
    smol.model.layers = whole
    return logits


if onnx:
    write_onnx(folder / "model.onnx")
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    # Above this level, onnxruntime before 1.32 fuses the FP8 nodes into a product of
    # integers, and then refuses to run it.
    options = onnxruntime.SessionOptions()
    basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.graph_optimization_level = basic
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    tokens = unseen.cpu().numpy()
    given = {"tokens": tokens, "positions": np.arange(tokens.shape[1])[None]}
    by_onnx = torch.from_numpy(session.run(["logits"], given)[0])
    by_torch, unrounded = first_layers(served), first_layers(linears)
    apart, far = (
        ((by_torch - other).norm() / by_torch.norm()).item()
        for other in (by_onnx, unrounded)
    )
    same = (by_onnx.argmax(-1) == by_torch.argmax(-1)).float().mean().item()
    print(f"onnxruntime and torch: logits {apart:.1e} apart, same word at {same:.1%};")
    print(f"the same layers unrounded are {far:.1e} away")
    assert apart < 0.6 * far
    assert same > 0.9

# %% [markdown]
# The file passes ONNX's own checker, and onnxruntime gives torch's logits except for the order of sums. If the last digit
# of a sum falls on the other side of a rounding, a code differs by one step. This is why we compare the difference with
# the distance to the same layers without rounding.
#
# ## GGUF: what llama.cpp takes
#
# **GGUF** has no FP8. Its 8-bit type is `Q8_0`: blocks of 32 int8 codes with a scale in 16 bits. As the picture at the
# top has shown, this is no loss: for weights, int8 with fine scales is the better format.
#
# ### Exercise: a block

# %%
# %%exercise q8_blocks
import numpy as np


def q8_blocks(weight: np.ndarray) -> np.ndarray:
    """Q8_0: fp32 (rows, columns) to bytes (rows, columns / 32 * 34)."""
    blocks = weight.reshape(-1, 32)
    scale = ...  # fp32, (blocks, 1)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    codes = ...  # int8, (blocks, 32)
    parts = scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)
    return np.concatenate(parts, axis=1).reshape(len(weight), -1)


# %% [markdown]
# We compare your bytes with those of `gguf`, llama.cpp's own package:

# %%
import gguf

Q8_0 = gguf.GGMLQuantizationType.Q8_0
sample = kept[f"{STEEP}.weight"].cpu().numpy()
yours, theirs = q8_blocks(sample), gguf.quantize(sample, Q8_0)
alike = (yours == theirs).mean()
print(
    f"{alike:.3%} of the bytes are alike, {8 * yours.size / sample.size} bits a weight"
)
assert alike > 0.999  # exact halves may round either way
assert 8 * yours.size / sample.size == 8.5

# %% [markdown]
# Now we write the file: fields first, then tensors under names that llama.cpp knows. Two details need care. The file must
# contain the tokenizer, because otherwise nobody could talk to the model. And in rotary embedding, llama.cpp rotates
# neighboring pairs where transformers rotates halves, so the rows of q and k are reordered.

# %%
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
HEADS = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}


def paired(name, value, back=False):
    """Rows of q and k: halves of a head to neighbouring pairs, or back."""
    heads = next((count for end, count in HEADS.items() if end in name), 0)
    if not heads:
        return value
    shape = (heads, -1, 2) if back else (heads, 2, value.shape[0] // heads // 2)
    return value.reshape(*shape, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


# %%
def add_fields(writer):
    """Shape and tokenizer, each under the name that llama.cpp reads."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    words = range(config.vocab_size)
    special = set(tokenizer.all_special_ids)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(words))
    writer.add_token_types([3 if word in special else 1 for word in words])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


# %%
writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
add_fields(writer)
for name, value in kept.items():
    if name == "lm_head.weight":  # the embedding is also the head
        continue
    value, place = paired(name, value.cpu().numpy()), names.get_name(name, (".weight",))
    if value.ndim == 1:
        writer.add_tensor(place, value)
    else:
        writer.add_tensor(place, q8_blocks(value), raw_dtype=Q8_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(f"{(folder / 'model.gguf').stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# We read the file with llama.cpp's own reader, put the numbers that its tensors represent into our model, and score it.

# %%
swapped(linears)
found = {
    tensor.name: tensor for tensor in gguf.GGUFReader(folder / "model.gguf").tensors
}
for name in kept:
    if name == "lm_head.weight":
        continue
    tensor = found[names.get_name(name, (".weight",))]
    value = gguf.dequantize(tensor.data, tensor.tensor_type)
    value = paired(name, value, back=True) if value.ndim > 1 else value
    smol.get_parameter(name).data.copy_(torch.from_numpy(value.copy()))
by_reader = log_probabilities(unseen)
results["GGUF Q8_0, weights"] = harm(by_reader)
print(f"KL {results['GGUF Q8_0, weights'][1]:.4f}")
assert results["GGUF Q8_0, weights"][1] < 0.01

# %%
from workshop.compress import llama_cpp

if llama_cpp.has_llama_cpp():
    raw = llama_cpp.logits(folder / "model.gguf", unseen[0].tolist(), config.vocab_size)
    by_llama = torch.from_numpy(raw)[:-1].to(device).log_softmax(-1)
    results["GGUF Q8_0, by llama.cpp"] = harm(by_llama)
    apart = (by_reader.exp() * (by_reader - by_llama)).sum(-1).mean().item()
    same = (by_llama.argmax(-1) == by_reader.argmax(-1)).float().mean().item()
    print(f"llama.cpp and our reading: KL {apart:.4f}, same word at {same:.1%}")
    assert apart < 0.03
    assert same > 0.85
else:
    print("no llama.cpp here: pip install ik-llama-cpp-python")

# %% [markdown]
# llama.cpp (here its fork ik_llama.cpp) reads the file, and its results are nearly the same. They are not exactly the same, because its kernels
# multiply Q8_0 weights with inputs that they also round to int8, in blocks of 32. In this case, a format that is called weight-only is in fact W8A8,
# dynamic, with small blocks.
#
# ## Compare


# %%
def rounded_in(name):
    """What a way to serve rounds."""
    if name.startswith("cache"):
        return "cache"
    if "inputs alone" in name:
        return "inputs"
    with_inputs = "W8A8" in name or name.startswith(("FP8 only", "the engine"))
    return "weights and inputs" if with_inputs or "llama.cpp" in name else "weights"


what = {name: rounded_in(name) for name in sorted(results, key=lambda n: results[n][1])}
show.harm_by_way({name: kl for name, (_, kl) in results.items()}, what)

# %%
ranked = sorted(results, key=lambda name: results[name][1])
print(harm_table(ranked))
assert {"int8 W8A8, static", "int8 inputs alone, static"} == set(ranked[-2:])
assert results["FP8 only: weights, inputs, cache"][1] < 0.15
worst = {
    kind: max(results[n][1] for n in what if what[n] == kind) for kind in what.values()
}
assert max(worst["weights"], worst["cache"]) < 0.03
assert 0.6 < worst["weights and inputs"] < 0.9
one_alone = {kind: worst[kind] for kind in ("weights", "inputs", "cache")}
assert one_alone["inputs"] > 20 * max(one_alone["weights"], one_alone["cache"])
beside("decides", measured=max(one_alone, key=one_alone.get))

# %% [markdown]
# **The inputs decide**, among the ways tried here: at their worst, they alone cost more than twenty times as much as the
# weights or the cache at their worst. Weights alone and the cache alone stay below three hundredths of a nat, in either
# format. (We tried int8 weights by row and in blocks, and an int8 cache by head and token. Coarser scales would cost
# more: the first picture shows it for weights in int8 with one scale.)
#
# With the inputs rounded, the same 8 bits cost from less than a hundredth of a nat to about seven tenths. The cost depends on which numbers
# share a scale: a block of 32 (llama.cpp), a token, or all tokens to come. The files keep what we chose: the folder gives the same numbers to the
# last bit, and the engine's file is a little further from the model than static E4M3 was.

# %% [markdown]
# ## Tomorrow's script
#
# This script does what you will do with a model of your own. It calibrates on all batches but the last, writes FP8 codes
# and three kinds of numbers beside them, loads the file, and compares on the last batch, which calibration has not seen.
# Put your model, which takes a batch and returns a tensor, and your batches in the two places marked "yours".

# %%
import os

os.environ["CHECKPOINT"] = f"{folder}/to_fp8.safetensors"  # for the script below

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/to_fp8.py
import os

import torch
from safetensors.torch import load_file, save_file
from torch import nn

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)
layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
model = nn.Sequential(*layers).to(device)  # yours
batches = [torch.randn(32, 64, device=device) for _ in range(4)]  # yours
PARTS = ("weight", "weight_scale", "input_scale", "bias")


class Fp8Linear(nn.Module):
    """Weights and inputs in E4M3, a static scale each; the product is emulated."""

    def __init__(self, parts):
        super().__init__()
        for part in PARTS:
            self.register_buffer(part, parts[part])  # the bias may be None

    def forward(self, x):
        codes = (x / self.input_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        y = codes.float() @ self.weight.float().T
        y = y * self.input_scale * self.weight_scale
        return (y if self.bias is None else y + self.bias).to(x.dtype)


linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
plain = sum(p.nbytes for linear in linears.values() for p in linear.parameters())
*known, unseen = batches  # to calibrate with, and to score on
with torch.no_grad():
    wanted = model(unseen)  # no hook has been registered yet
amax = dict.fromkeys(linears, 0.0)
for name, linear in linears.items():

    def note(_, inputs, name=name):
        amax[name] = max(amax[name], inputs[0].abs().max().item())

    linear.register_forward_pre_hook(note)
with torch.no_grad():
    for batch in known:  # the hooks calibrate here
        model(batch)

tensors = {}
for name, linear in linears.items():
    if not amax[name]:
        what = f"no input of {name} in {len(batches)} batches"
        raise ValueError(f"{what}: take others (the last one does not calibrate)")
    weight = linear.weight.detach().float()
    scale = weight.abs().max().clamp(min=1e-12) / 448
    tensors[f"{name}.weight"] = (weight / scale).to(torch.float8_e4m3fn).cpu()
    tensors[f"{name}.weight_scale"] = scale.cpu()
    tensors[f"{name}.input_scale"] = torch.tensor(amax[name] / 448)
    if linear.bias is not None:
        tensors[f"{name}.bias"] = linear.bias.detach().cpu()
path = os.environ.get("CHECKPOINT", "to_fp8.safetensors")
save_file(tensors, path)

read = load_file(path, device=str(device))
for name in linears:
    parts = {part: read.get(f"{name}.{part}") for part in PARTS}
    model.set_submodule(name, Fp8Linear(parts))
with torch.no_grad():
    off = (model(unseen) - wanted).norm() / wanted.norm()
held = sum(value.nbytes for value in read.values())
print(f"error of the outputs {off:.1%}, {held:,} bytes for {plain:,} in fp32")

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("43_fp8_inference")

# %% [markdown]
# ## What to take away
#
# - The inputs decide how much is lost. Weights and cache in 8 bits cost little in either format, with the scales tried here.
# - E4M3 has the same relative error for all its normal numbers. int8 is finer if the numbers are of similar size, and fails
#   if there is an outlier. The numbers in a row of weights, or in a cached head, are of similar size; those of an input
#   are not.
# - A scale can be moved out of a product only if it belongs to a token or an output. SmoothQuant moves the scale of a
#   feature into the weights beforehand.
# - Static FP8 inputs need one pass over some text. Static int8 inputs stay bad in this model even after smoothing. int8
#   with one scale per token is about as good as static FP8.
# - The cache in 8 bits takes half the bytes, and allows about twice the users if it is what fills the memory.
# - Judge by the KL divergence from the model itself. Perplexity over a short text can improve by luck.
# - A file is finished only when another program's reader has read it and gives your logits.
#
# Next: [51_adapters](../day5_adapt_compress/51_adapters.ipynb). Day 5 trains fewer parameters and keeps fewer bits.
#
# ## Sources
#
# - G. Xiao et al., *SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models*, ICML 2023, [arXiv:2211.10438](https://arxiv.org/abs/2211.10438):
#   section 4 (the factor), tables 1, 3 and 6.
# - Hugging Face, *Llama 3.1: 405B, 70B & 8B with multilinguality and long context*, huggingface.co/blog/llama31, *Inference memory requirements*;
#   the row of 405B: github.com/huggingface/blog/issues/2345.
# - P. Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, [arXiv:2209.05433](https://arxiv.org/abs/2209.05433).
# - T. Dettmers et al., *LLM.int8()*, NeurIPS 2022, [arXiv:2208.07339](https://arxiv.org/abs/2208.07339).
# - PyTorch AO 0.18: `torchao.quantization.quantize_`, `Float8WeightOnlyConfig`, `Int8WeightOnlyConfig`.
# - vLLM documentation, *NVIDIA Model Optimizer* (docs.vllm.ai, features/quantization/modelopt).
# - NVIDIA Model Optimizer 0.47: `export_hf_checkpoint`, `export_tensorrt_llm_checkpoint`; TensorRT-LLM documentation, *TensorRT LLM Checkpoint*
#   (docs/source/architecture/checkpoint.md) and *Quantization*.
# - ONNX operators, opset 23: `QuantizeLinear`, `DequantizeLinear`, `RMSNormalization`, `RotaryEmbedding`, `Attention` (onnx.ai).
# - llama.cpp: `gguf-py` (quants.py, gguf_writer.py), ggml/src/ggml-common.h (`block_q8_0`).
