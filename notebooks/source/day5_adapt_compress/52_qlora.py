# %% [markdown]
# # How few bits can a frozen weight have?
#
# - **You need** `51_adapters` (LoRA) and `22_ddp`, `25_fsdp` for the ranks at the end.
# - **It takes** 40 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on CPU, with a real model. The last cell on ranks uses GPUs if there is one
#   for each of its two ranks; memory is measured on the host everywhere. Paged optimizers need an NVIDIA GPU. The library
#   bitsandbytes is optional: without it, our own code does everything.
# - **Model and text:** SmolLM2, as in the previous lesson, because the distribution of a trained model's weights decides
#   what four bits can hold. The whole model reads one of Lincoln's addresses, and learns from the questions of
#   `51_adapters`. Eight of its layers are measured, and two are trained on ranks, on the reference manual.
# - **Links:** before this [51_adapters](51_adapters.ipynb), after it [53_quantization](53_quantization.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# LoRA freed us from gradients and moments. What remains is the frozen model: 2 bytes a parameter in bf16, which is 130 GB
# for 65 billion parameters. But a frozen weight is never updated. It does not have to represent a change of 0.00001; it
# only has to stay close enough to its original value. How close is close enough, and how few bits does that take?

# %%
# %load_ext workshop
import torch

from workshop.assets import language_model, text
from workshop.facts.tabular import Table
from workshop.process.quiet import quietly

try:
    with quietly():
        import bitsandbytes
        import bitsandbytes.functional as library
except ImportError:
    library = None
    print("no bitsandbytes here, so all goes by hand: pip install bitsandbytes")
WAY = "bitsandbytes" if library else "hand"  # which code packs the four bits

model, tokenizer = language_model.load("smollm2", num_layers=8, dtype=torch.float32)
weight = model.model.layers[4].mlp.up_proj.weight.detach()
print(
    f"{tuple(weight.shape)}: mean {weight.mean():.4f}, "
    f"standard deviation {weight.std():.4f}"
)

# %% [markdown]
# ## Sixteen numbers
#
# With four bits we have sixteen codes. Divide a matrix into blocks of 64 weights, and divide each block by its largest
# absolute value (its **absmax**). Then all weights lie between -1 and 1. Which sixteen numbers should the codes stand
# for? Equal steps spend many of the codes on ranges that contain few weights. NF4 (Dettmers et al., 2023) uses *quantiles
# of the normal distribution* instead, so that more codes lie where there are more weights. A quantile is the number below
# which a given share of the distribution lies.
#
# The two sides of zero are constructed separately, so that zero itself is one of the sixteen numbers. There are eight numbers above zero and seven
# below. On each side, the shares at which the quantiles are taken are equally spaced. The outermost number cannot be at a share of one, because that
# quantile is infinite, so it lies half a step inside. At the end, all numbers are divided by the largest. The next cell computes them and compares
# them with those that the paper prints (appendix E):

# %%
from statistics import NormalDist

from workshop.facts.nf4 import NF4_VALUES  # as the paper prints them

# half a step is 1/32 for sixteen shares and 1/30 for fifteen: we take their mean
OUTERMOST = ((1 - 1 / 32) + (1 - 1 / 30)) / 2


def one_side(count):
    """So many quantiles, from the outermost share down to the last above one half."""
    step = (OUTERMOST - 0.5) / count
    return [NormalDist().inv_cdf(OUTERMOST - place * step) for place in range(count)]


sixteen = sorted([-value for value in one_side(7)] + [0.0] + one_side(8))
assert round(sixteen[-1], 2) == 1.85  # standard deviations
values = torch.tensor([value / sixteen[-1] for value in sixteen])
for eight in values.view(2, 8).tolist():
    print("  ".join(f"{value:6.3f}" for value in eight))
assert (values - torch.tensor(NF4_VALUES)).abs().max() < 1e-6
# from here on, the values that the paper prints, so that codes compare exactly
values = torch.tensor(NF4_VALUES)

# %%
from workshop import show
from workshop.exercises import beside
from workshop.adapt import nf4

codes, _ = nf4.block_codes(weight.flatten(), nf4.BLOCK, values)
equal_steps = torch.linspace(-1, 1, 16)
even, _ = nf4.block_codes(weight.flatten(), nf4.BLOCK, equal_steps)
nf4_counts, even_counts = (
    torch.bincount(used.long(), minlength=16).tolist() for used in (codes, even)
)
show.codes_used(
    {
        "NF4": (values.tolist(), nf4_counts),
        "equal steps": (equal_steps.tolist(), even_counts),
    }
)

# %% [markdown]
# (The height of the line at each number is the share of weights that use it. The dotted line marks equal use of all
# sixteen codes. NF4 is more even than equal steps, but not quite even: the largest of 64 numbers lies further out than
# NF4's outermost quantile, 1.85 standard deviations. These weights come from a file that already holds them in 4 bits,
# but in other blocks, each with a scale and an offset; `53_quantization` says more about it.)
#
# ### Exercise: the codes of a block

# %%
# %%exercise nf4_codes
import numpy as np


def nf4_codes(block: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The codes of a block, 0 to 15 for each weight, and its largest absolute value."""
    absmax = ...
    codes = ...
    return codes, absmax


# %% [markdown]
# The next cell applies your function to every block of this matrix, and bitsandbytes, the library that most people use,
# to the whole matrix:

# %% tags=["nbval-check-output"]
blocks = weight.view(-1, nf4.BLOCK).numpy()
by_block = [nf4_codes(block, values.numpy()) for block in blocks]
codes = torch.cat([torch.as_tensor(each) for each, _ in by_block])
absmax = torch.tensor([float(largest) for _, largest in by_block])
if library:
    packed, state = library.quantize_4bit(weight, quant_type="nf4")
    pairs = packed.flatten()  # two codes per byte, the first in the upper half
    its_codes = torch.stack([pairs >> 4, pairs & 15], dim=1).flatten()
    assert torch.equal(absmax, state.absmax)
else:
    its_codes = nf4.quantize_nf4(weight).codes()  # no bitsandbytes: by the package
alike = (codes == its_codes).float().mean().item()
print(
    f"{len(codes):,} codes, {len(absmax):,} scales: {alike:.2%} of the codes are alike"
)
assert alike > 0.9999  # a weight halfway between two values may go either way

# %% [markdown]
# How large is the error of a rounded weight? NF4 comes closer than equal steps, both for normally distributed numbers and
# for this model's weights:

# %% tags=["nbval-check-output"]
normal = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))


def rounded(x, values):
    """x as its codes give it back."""
    codes, absmax = nf4.block_codes(x.flatten(), nf4.BLOCK, values)
    return (values[codes.int()].view(-1, nf4.BLOCK) * absmax[:, None]).view_as(x)


def error(x, values):
    """Root mean square error over that of the numbers themselves."""
    return ((rounded(x, values) - x).norm() / x.norm()).item()


rows = []
for name, numbers in {"normal numbers": normal, "weights": weight}.items():
    by_nf4, by_steps = error(numbers, values), error(numbers, equal_steps)
    rows.append((name, f"{by_nf4:.1%}", f"{by_steps:.1%}"))
    assert by_nf4 < 0.95 * by_steps
Table(("relative error of", "NF4", "equal steps"), rows)

# %% [markdown]
# ## How few bits?
#
# In NF4, rounding moves a weight by about nine percent of a typical weight. Is that close enough? Only the model can
# tell, so we round all linear maps in all thirty layers and let the model read. The **KL divergence** measures how far
# the model's distribution over the next token has moved from that of the original model, as in `43_fp8_inference`.
#
# **Predict:** with one bit less, the steps are twice as large, and so are the errors. The KL divergence is zero if
# nothing changes, and it is never negative. What happens to it when the error doubles?

# %%
# %%guess kl_by_bit
# Equal steps, 5 bits instead of 6: by what factor does the KL divergence grow?
...

# %%
from functools import partial

whole, tokenizer = language_model.load("smollm2", dtype=torch.float32)
speech = text.load("sotu")["1862_abraham_lincoln_r"]
tokens = tokenizer(speech, return_tensors="pt").input_ids[:, :128]
linears = [
    module
    for name, module in whole.named_modules()
    if isinstance(module, torch.nn.Linear) and name != "lm_head"
]
kept = [linear.weight.detach().clone() for linear in linears]


def evenly(x, bits):
    """x in blocks of 64, on 2^bits numbers in equal steps from -absmax to absmax."""
    half, blocks = (2**bits - 1) / 2, x.view(-1, nf4.BLOCK)
    absmax = blocks.abs().amax(1, keepdim=True)
    steps = ((blocks / absmax + 1) * half).round()  # quicker than comparing with 2^bits
    return ((steps / half - 1) * absmax).view_as(x)


@torch.no_grad()
def hold(change=None):
    """Give the linear maps their own weights, or what a change makes of them."""
    for linear, own in zip(linears, kept, strict=True):
        linear.weight.copy_(change(own) if change else own)


@torch.no_grad()
def log_probabilities():
    """Of each next token."""
    return whole(tokens).logits[0, :-1].log_softmax(-1)


even_error = ((evenly(weight, 4) - weight).norm() / weight.norm()).item()
assert abs(even_error / error(weight, equal_steps) - 1) < 1e-3  # only ties differ

# %%
exact, targets = log_probabilities(), tokens[0, 1:, None]
CHANGES = {f"{b} bits, equal": partial(evenly, bits=b) for b in (8, 6, 5, 4, 3)}
CHANGES["4 bits, NF4"] = partial(rounded, values=values)
harm, rows = {}, []
for name, change in CHANGES.items():
    hold(change)
    moved = log_probabilities()
    harm[name] = (exact.exp() * (exact - moved)).sum(-1).mean().item()
    worse = (exact - moved).gather(1, targets).mean().exp().item()
    rows.append((name, f"{harm[name]:.4f}", f"{worse:,.2f}"))
Table(("weights in", "KL, nats", "perplexity, times that of the model"), rows)

# %%
by_bits = {bits: harm[f"{bits} bits, equal"] for bits in (8, 6, 5, 4, 3)}
assert 3 < by_bits[5] / by_bits[6] < 5.5
assert 3**2 < by_bits[6] / by_bits[8] < 5.5**2
assert by_bits[3] > 8 * by_bits[4] > 8 * 5 * by_bits[5]  # no longer a small change
assert harm["4 bits, NF4"] < 0.5 * by_bits[4]
four_times = {bits: by_bits[8] * 4 ** (8 - bits) for bits in by_bits}
show.kl_by_bits(by_bits, four_times, {"NF4": (4, harm["4 bits, NF4"])})

# %%
beside("kl_by_bit", predicted=4, measured=by_bits[5] / by_bits[6])

# %% [markdown]
# Near its lowest point, a smooth curve looks like a parabola. Therefore **twice the error means four times the KL divergence**. From 8 bits down to
# 5, the measured points lie on that line. At 3 bits the change is no longer small, and the model is destroyed. Four bits are at the edge, and there
# the choice of the sixteen numbers matters: NF4 causes less than half the KL divergence of equal steps. (Perplexity over 128 tokens depends partly on
# luck, as you can see at 5 bits.)
#
# The QLoRA paper finds the same order in models of 125 million to 13 billion parameters (table 2, mean perplexity): equal
# steps 34.34, a 4-bit float 31.07 or 29.48, NF4 with double quantization 27.41.
#
# ## Does LoRA learn beside such weights?
#
# QLoRA does not use the rounded model as it is: it trains LoRA beside it, and training can make up for some of the harm. We
# repeat the task of `51_adapters`: which of six types of answer does a question ask for? LoRA of rank 8 is beside the
# queries and values of the top six layers, and takes twenty steps. The frozen weights of all thirty layers hold their own
# values, or NF4's, or those of 3 bits. The lower 24 layers never change, so each question passes them only once.

# %%
from workshop.assets import questions

PROMPT, LENGTH, BELOW = "Question: {}\nThe answer is a", 15, 24
tokenizer.padding_side = "left"  # so that the last position holds the last word
data = questions.load(num_test=500)
labels = torch.tensor([tokenizer.encode(f" {label}")[0] for label in data.labels])
decoder, layers, norm = whole.model, whole.model.layers, whole.model.norm


def short(examples):
    """Questions of at most 8 tokens."""
    return [one for one in examples if len(tokenizer(one.text).input_ids) <= 8]


@torch.no_grad()
def after_lower_layers(examples):
    """Hidden states after the lower layers, masks, and the place of each label."""
    texts = [PROMPT.format(one.text) for one in examples]
    padded = {"padding": "max_length", "max_length": LENGTH, "return_tensors": "pt"}
    inputs = tokenizer(texts, **padded)
    decoder.layers, decoder.norm = layers[:BELOW], torch.nn.Identity()
    hidden = decoder(**inputs, use_cache=False).last_hidden_state
    decoder.layers, decoder.norm = layers, norm
    types = torch.tensor([data.labels.index(one.label) for one in examples])
    return hidden, inputs.attention_mask, types


train, test = short(data.train)[:160], short(data.test)[:100]

# %%
import copy

from workshop.adapt import lora, methods


def question_loss(part, rows):
    """Cross-entropy of the six words, by the layers that `decoder` has now."""
    hidden, mask, types = (each[rows] for each in part)
    hidden = decoder(inputs_embeds=hidden, attention_mask=mask, use_cache=False)[0]
    logits = hidden[:, -1] @ whole.lm_head.weight[labels].T
    return torch.nn.functional.cross_entropy(logits, types)


def before_and_after(seed=0):
    """Loss on the test questions without LoRA, and after twenty steps of eight."""
    torch.manual_seed(seed)
    whole.requires_grad_(False)
    train_part, test_part = after_lower_layers(train), after_lower_layers(test)
    decoder.layers = lora.add_lora(copy.deepcopy(layers[BELOW:]), rank=8)
    before = question_loss(test_part, slice(None)).item()
    trained = methods.trained(whole).values()
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, 20)
    for rows in torch.randperm(160).view(20, 8):
        question_loss(train_part, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    after = question_loss(test_part, slice(None)).item()
    decoder.layers = layers
    return before, after


# %% [markdown]
# With its own weights, the model starts at a loss of about 3.2 on the test questions, and LoRA brings it to about 1. In NF4
# it starts higher, at about 4.

# %%
# %%guess beside_nf4
# The frozen weights are in NF4, the loss starts at about 4: to what does LoRA bring it?
...

# %%
rows, begun, learned = [], {}, {}
for name in ("its own", "4 bits, NF4", "3 bits, equal"):
    hold(CHANGES.get(name))
    begun[name], learned[name] = before_and_after()
    rows.append((name, f"{begun[name]:.2f}", f"{learned[name]:.2f}"))
print(Table(("frozen weights", "loss before", "after 20 steps"), rows))
own, in_nf4, in_3_bits = learned.values()
assert abs(begun["its own"] - 3.2) < 0.2 > abs(begun["4 bits, NF4"] - 4)
assert own < in_nf4 < own + 0.6
assert in_3_bits > in_nf4 + 0.4
del whole, decoder, layers, norm, linears, kept, exact, moved
beside("beside_nf4", measured=round(in_nf4, 1))

# %% [markdown]
# Beside NF4, LoRA makes up for most of the harm: the loss ends a little above that of the model with its own weights. At 3
# bits there is too little left to build on, although the loss starts at about the same height as in NF4.
#
# These are twenty steps in six layers of a small model. Does the order depend on the seed? Outside this lesson
# (`benchmarks/adapter_seeds.py`), we ran its cells with three seeds, and also with 4 bits in equal steps:

# %%
import json

from workshop.facts.tree import ROOT

record = json.loads((ROOT / "data/measurements/adapter_seeds.json").read_text())
rows = []
for name, ends in record["beside"].items():
    rows.append((name, *(f"{loss:.2f}" for loss in ends)))
own, in_nf4, equal_4, in_3_bits = record["beside"].values()
assert max(own) < min(in_nf4)
assert max(in_nf4) < min(in_3_bits) - 0.4
assert all(equal < nf4 for equal, nf4 in zip(equal_4, in_nf4, strict=True))
Table(("frozen weights", *(f"seed {seed}" for seed in range(3))), rows)

# %% [markdown]
# With each seed, the model's own weights end lowest and 3 bits highest. But 4 bits in equal steps end a little lower than NF4: one
# narrow task does not rank the two grids as reading a text does. The QLoRA paper reports that with models of up to 65 billion parameters, training in
# this way preserves the performance of full training in 16 bits (abstract).
#
# ## Double quantization
#
# A weight takes 4 bits, and 64 weights share one fp32 scale: 4.5 bits a weight. Half a bit for scales is a lot. Why not
# take larger blocks?

# %% tags=["nbval-check-output"]
rows, by_size = [], {}
for block in (16, 64, 256, 1_024):
    places, largest = nf4.block_codes(weight.flatten(), block, values)
    back = values[places.int()].view(-1, block) * largest[:, None]
    by_size[block] = ((back.view_as(weight) - weight).norm() / weight.norm()).item()
    rows.append((f"{block:,}", f"{4 + 32 / block:.3f}", f"{by_size[block]:.1%}"))
assert by_size[16] < by_size[64] < by_size[256] < by_size[1_024]
Table(("weights in a block", "bits a weight", "relative error"), rows)

# %% [markdown]
# The larger a block, the larger its absmax, and the coarser its steps. **Double quantization** keeps the blocks of 64 and
# quantizes their *scales* too: each takes 8 bits, and 256 of them share one fp32 number.
#
# ### Exercise: bytes on paper


# %%
# %%exercise qlora_bytes
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    ...
    return num_frozen * bits / 8 + 16 * num_trained


# %% [markdown]
# **Predict:** how many bytes do the eight layers of our model take? Their linear maps have 28,311,552 weights.

# %%
# %%guess packed_megabytes --unit MB
# 28,311,552 weights in NF4 with double quantization: how many megabytes?
...

# %% tags=["nbval-check-output"]
from workshop.adapt import qlora

frozen = sum(p.numel() for n, p in model.named_parameters() if "proj" in n)
rows = []
for double in (False, True):
    base, _ = language_model.load("smollm2", num_layers=8, dtype=torch.float32)
    qlora.quantize_base(base, WAY, double)
    held, expected = qlora.packed_bytes(base), qlora_bytes(frozen, 0, double)
    scales, sizes = "8 bits" if double else "32 bits", (expected, held)
    again = nf4.quantize_nf4(weight, double).dequantize()
    off = ((again - weight).norm() / weight.norm()).item()
    in_mb = (f"{size / 1e6:.2f} MB" for size in sizes)
    rows.append((scales, *in_mb, f"{8 * held / frozen:.3f}", f"{off:.1%}"))
    assert abs(held / expected - 1) < 0.001
assert off < 0.95 * by_size[256]
head = "your formula", "in memory", "bits a weight", "relative error"
Table(("each scale", *head), rows)

# %%
beside("packed_megabytes", predicted=expected / 1e6, measured=held / 1e6)

# %% [markdown]
# So blocks of 64 with scales of 8 bits take as many bits a weight as blocks of 256 with scales of 32 bits, and their error
# stays at 9.4 %.
#
# ## Store in four bits, compute in full precision
#
# A matrix product needs numbers, not codes. The forward pass therefore unpacks a matrix, uses it and drops it. The backward pass needs the matrix
# again, for the gradient of x, and unpacks it a second time. If autograd kept the unpacked matrix, we would save nothing. So the next cell writes
# both passes itself, and keeps only codes and scales:


# %%
def unpacked(codes, absmax):
    """The matrix again, as near as sixteen numbers come; it exists while it is used."""
    return (values[codes.int()].view(-1, nf4.BLOCK) * absmax[:, None]).view_as(weight)


class FourBitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codes, absmax):
        ctx.save_for_backward(codes, absmax)  # they are in memory anyway
        return x @ unpacked(codes, absmax).T

    @staticmethod
    def backward(ctx, dy):
        return dy @ unpacked(*ctx.saved_tensors), None, None


# %% [markdown]
# Here is the library's call for the same product, with the matrix that it packed above:

# %% tags=["nbval-check-output"]
x = torch.randn(32, weight.shape[1], generator=torch.Generator().manual_seed(0))
x.requires_grad_()
y = FourBitProduct.apply(x, its_codes, absmax)
y.square().sum().backward()
mine, x.grad = x.grad, None
if library:
    with quietly():  # hides messages about its kernels
        its = bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state)
    its.square().sum().backward()
    assert torch.allclose(y, its, rtol=1e-4, atol=1e-4)
    assert torch.allclose(mine, x.grad, rtol=1e-4, atol=1e-2)
    print("by hand and by bitsandbytes: y and the gradient of x are equal")
else:
    print("no bitsandbytes here to compare with")

# %% [markdown]
# Next come two such layers with LoRA beside them, once with our own code and once with bitsandbytes. Both get the same
# random A and B. At LoRA's usual start, B is zero and adds nothing, so equal outputs would prove nothing about LoRA.


# %%
def with_change(way):
    """Two layers in four bits, with LoRA beside them that is not zero."""
    base, _ = language_model.load("smollm2", num_layers=2, dtype=torch.float32)
    adapted = lora.add_lora(qlora.quantize_base(base, way, double=False))
    torch.manual_seed(0)
    for parameter in methods.trained(adapted).values():
        torch.nn.init.normal_(parameter, std=0.02)
    return adapted


by_hand = with_change("hand")
tokens = torch.arange(1000, 1032)[None]
loss = by_hand(input_ids=tokens, labels=tokens).loss
loss.backward()

# %% tags=["nbval-check-output"]
if library:
    by_library = with_change("bitsandbytes")
    its_loss = by_library(input_ids=tokens, labels=tokens).loss
    its_loss.backward()
    assert abs(loss - its_loss) < 1e-4 * its_loss.abs()
    pairs = zip(
        methods.trained(by_hand).values(),
        methods.trained(by_library).values(),
        strict=True,
    )
    same = [torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5) for a, b in pairs]
    assert all(same)
    print(f"the loss and {len(same)} gradients: equal")
else:
    print("no bitsandbytes here to compare with")

# %% [markdown]
# ### A silent failure
#
# On CPUs with AVX512-BF16, bitsandbytes repacks a 4-bit matrix at the first *evaluation*, for speed. No gradient passes
# through the repacked matrix to the layers below it. Training continues and the loss is computed, but **no LoRA weight
# gets a gradient**. On other CPUs this does not happen. `quantize_base` switches the repacking off. If transformers
# creates the model, call `guard` immediately after that:
#
# ```python
# config = BitsAndBytesConfig(
#     load_in_4bit=True,
#     bnb_4bit_quant_type="nf4",
#     bnb_4bit_use_double_quant=True,
#     bnb_4bit_compute_dtype=torch.bfloat16,
# )
# model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
# qlora.guard(model)
# ```
#
# (Without `bnb_4bit_compute_dtype`, transformers lets every product run in fp32, even in a model in bf16.)
#
# A guarded model may be evaluated between training steps:

# %% tags=["nbval-check-output"]
adapted = by_library if library else by_hand
with torch.no_grad():
    adapted.eval()(input_ids=tokens)  # an evaluation ...
adapted.zero_grad()
loss = adapted.train()(input_ids=tokens, labels=tokens).loss
loss.backward()  # ... and training goes on
qlora.check_gradients(adapted)
print("evaluated in between, guarded: every trained parameter has a gradient")

# %% [markdown]
# What happens without the guard? Here is a single 4-bit matrix, with one parameter below it:

# %%
import warnings


def gradient_below(guarded):
    """Of what lies below a 4-bit map that has been evaluated; and torch's warnings."""
    from bitsandbytes.nn import Linear4bit

    small = Linear4bit(128, 128, bias=False, quant_type="nf4")
    small.load_state_dict({"weight": torch.randn(128, 128)})
    small = small.to("cpu").requires_grad_(False)  # `to` quantizes it
    if guarded:
        qlora.guard(small)
    below = torch.nn.Parameter(torch.randn(8, 128))
    with torch.no_grad():
        small.eval()(torch.randn(4, 8) @ below)
    with warnings.catch_warnings(record=True) as caught:
        small.train()(torch.randn(4, 8) @ below).sum().backward()
    return below.grad, [str(each.message).partition(".")[0] for each in caught]


for guarded in (True, False) if library else ():
    gradient, messages = gradient_below(guarded)
    there = "no gradient" if gradient is None else "a gradient"
    print(f"{'guarded' if guarded else 'unguarded'}: {there}", *messages, sep="\n    ")
    assert gradient is not None or not guarded

# %% [markdown]
# On a CPU that repacks, the second case has no gradient. An optimizer skips a parameter without a gradient and reports
# nothing. The only sign is torch's warning, which appears once. Therefore check after the first backward pass:
# `check_gradients` raises an error if a trained parameter has no gradient.

# %% [markdown]
# ## Memory: full, LoRA, QLoRA
#
# We predict first. The frozen linear maps take 4.127 bits a weight. The embedding, which is also the head, stays in fp32,
# and in this small model it is the larger part.

# %%
from workshop import Adapter, Layout, ModelSpec, Run, predict_memory
from workshop.facts.nf4 import nf4_bits

LAYERS, ROWS, TOKENS = 8, 2, 64
spec = ModelSpec(
    "eight layers", num_layers=LAYERS, hidden_size=576, ffn_hidden_size=1_536,
    num_heads=9, num_kv_heads=3, vocab_size=49_152, tied_embeddings=True,
)  # fmt: skip


def predict(bits):
    """A training step on language, LoRA beside queries and values of a base of so
    many bits.
    """
    adapter = Adapter("lora", 8, ("q", "v"), base_bits=bits)
    layout = Layout(precision="fp32")
    return predict_memory(
        Run(
            spec,
            "this-machine",
            layout,
            ROWS,
            TOKENS,
            adapter=adapter,
            implementation="adapt",
        )
    )


predicted = {"lora": predict(32), "qlora": predict(nf4_bits(double=True))}
rows = []
for name, expected in predicted.items():
    sizes = expected.peak_bytes, expected.parts["weights"][0]
    rows.append((name, *(f"{size / 1e6:.1f} MB" for size in sizes)))
Table(("method", "peak", "of which weights"), rows)

# %% [markdown]
# Now we measure. The cell starts two ranks. They will train together at the end; for now only rank 0 works.

# %%
# %%ranks -n 2 --on 0 --pass WAY,LAYERS,ROWS,TOKENS --into memory
import gc

from workshop import report
from workshop.adapt import lora, methods, qlora
from workshop.assets import language_model
from workshop.measure import measure


def peak(way):
    """The measured training steps of one way to train."""
    model, _ = language_model.load("smollm2", num_layers=LAYERS, dtype=torch.float32)
    model.config.use_cache = False
    if way == "qlora":
        qlora.quantize_base(model, WAY)
    if way != "full":
        lora.add_lora(model, rank=8)
    optimizer = torch.optim.AdamW(methods.trained(model).values(), lr=1e-4, fused=True)
    tokens = torch.randint(49_152, (ROWS, TOKENS))
    gc.collect()
    with measure(model, optimizer) as measured:
        for _ in range(2):
            logits = model(input_ids=tokens).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens.flatten()
            )
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return measured


for way in ("full", "lora", "qlora"):
    report(**{way: peak(way)})
    gc.collect()

# %% [markdown]
# ## Compare

# %%
measured = {way: memory[0][way] for way in ("full", "lora", "qlora")}
rows = []
for way, run in measured.items():
    peak, expected = f"{run.memory.peak_bytes / 1e6:,.1f} MB", "-"
    if way in predicted:
        expected = f"{predicted[way].peak_bytes / 1e6:.1f} MB"
        assert abs(predicted[way].peak_bytes / run.memory.peak_bytes - 1) < 0.02
    rows.append((way, expected, peak))
print(Table(("method", "peak, predicted", "measured"), rows))
show.memory_by_part(measured, compare=False)

# %% [markdown]
# The predictions are within two percent of the measured peaks. (In *full*, the temporaries are two more tensors as large as the embedding's gradient,
# see `51_adapters`.) LoRA removed moments and gradients, and QLoRA also shrinks the layers' weights. What remains here is the embedding, which stays
# in fp32, the activations, and temporaries as large as two copies of the logits.
#
# ## On two ranks
#
# Each rank reads its part of a batch, as in `22_ddp`. We train under DDP and under FSDP, and the losses must equal those
# of a single process. Four details need care:
#
# - **Equal adapters.** The ranks are seeded differently, so their A differ, and FSDP sends nothing when it starts.
#   `take_from_rank_0` gives all ranks the same model.
# - **Equal bases.** DDP sends parameters and buffers at its start, but bitsandbytes keeps its scales in neither.
#   `take_from_rank_0` therefore matters under DDP too if the ranks could have *different* bases. (Here all ranks read the
#   same file.)
# - **One dtype.** FSDP needs one dtype for all parameters that it shards together. With `storage=torch.float32`,
#   bitsandbytes stores the packed bytes in a tensor that is declared as fp32, and FSDP shards it like the rest.
# - **The embedding.** It is also the head, and it stays whole here. If it were gathered for each forward pass, it would
#   be most of the traffic.
#
# (A model cut to two layers writes nonsense, so the loss starts high. What counts here is that the three losses agree and
# fall.)
#
# FSDP shards the packed bytes only. The scales stay whole on each rank: in fp32 they are an eighth of the packed bytes,
# with double quantization about three percent. Our own code keeps the packed bytes in a buffer, and FSDP does not shard
# buffers. Without bitsandbytes, only DDP runs.

# %%
# %%ranks --pass WAY --into ranks
import copy

from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.adapt import lora, methods, qlora
from workshop.assets import language_model, text

smol, tokenizer = language_model.load(
    "smollm2", num_layers=2, dtype=torch.float32, device=device
)
smol.config.use_cache = False
base = qlora.quantize_base(smol, WAY, storage=torch.float32)


def build(seed):
    """Two layers in NF4 with LoRA beside queries and values."""
    torch.manual_seed(seed)
    return lora.add_lora(copy.deepcopy(base), rank=8)


def train(model, tokens, steps=3):
    """Losses of some steps on the same text."""
    optimizer = torch.optim.AdamW(
        methods.trained(model).values(), lr=5e-3, foreach=False
    )
    losses = []
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        qlora.check_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
    return torch.stack(losses)


manual = text.load("manual")["if"]
tokens = torch.tensor(tokenizer(manual).input_ids[: 4 * 16]).view(4, 16).to(device)
mine = tokens.chunk(world_size)[rank]
results = {"alone": train(build(0), tokens).tolist()}
for way in ("ddp", "fsdp") if WAY == "bitsandbytes" else ("ddp",):
    model = build(rank)
    qlora.take_from_rank_0(model)
    if way == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model, ignored_params={model.get_input_embeddings().weight})
        kept = model.model.layers[0].mlp.up_proj.weight
        results["bytes here, bytes in all"] = (
            kept.to_local().nbytes,
            kept.numel() * kept.element_size(),
        )
    losses = train(model, mine)
    dist.all_reduce(losses)
    results[way] = (losses / world_size).tolist()
    results[f"saved under {way}"] = len(methods.adapter_state(model))
report(results=results)

# %%
results = ranks[0].results
on_ranks = [way for way in ("ddp", "fsdp") if way in results]
rows = [
    (way, *(f"{loss:.3f}" for loss in results[way])) for way in ("alone", *on_ranks)
]
print(Table(("loss", "step 1", "step 2", "step 3"), rows))
for way in on_ranks:
    assert (
        max(abs(a - b) for a, b in zip(results[way], results["alone"], strict=True))
        < 1e-3 * results["alone"][0]
    )
    assert results[f"saved under {way}"] == 2 * 2 * 2  # layers, targets, A and B
assert results["alone"][-1] < results["alone"][0] - 0.1
if "fsdp" in results:
    here, whole = results["bytes here, bytes in all"]
    print(f"one packed matrix under FSDP: {here:,} of {whole:,} bytes on this rank")
    assert 2 * here == whole
else:
    print("no bitsandbytes here: no packed matrix for FSDP to shard")

# %% [markdown]
# ## At scale
#
# The paper fine-tunes a model of 65 billion parameters on **one GPU of 48 GB**. The next cell calculates this case: LoRA
# of rank 64 beside every matrix, sequences of 512 tokens, every layer recomputed. The frozen weights are in 16 bits, in
# NF4, and in NF4 with double quantization:

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

large = catalogue.model("llama-65b")
print(
    f"exercise: {qlora_bytes(large.num_params, 0) / 1e9:.1f} GB "
    f"for {large.num_params / 1e9:.1f} billion weights"
)
rows = []
for name, bits in (
    ("LoRA, 16 bits", 16),
    ("QLoRA", nf4_bits(False)),
    ("QLoRA, double", nf4_bits(True)),
):
    beside_all = Adapter("lora", 64, ("all",), base_bits=bits, weight_bytes=2)
    run = Run(
        large,
        "RTX-A6000",
        Layout(precision="bf16", recompute="full"),
        1,
        512,
        adapter=beside_all,
        implementation="adapt",
    )
    expected = predict_memory(run)
    peak, verdict = expected.peak_bytes, expected.verdict.partition(":")[0]
    low, high = (f"{size / 1e9:.1f}" for size in expected.interval)
    rows.append((name, f"{peak / 1e9:.1f} GB", f"{low} to {high} GB", verdict))
    assert expected.fits == (bits < 16)
Table(("65 billion weights", "peak", "in 8 of 10 cases", "on 48 GB"), rows)

# %% [markdown]
# Double quantization turns "too close to call" into "fits". (48 GB is what the data sheet says. A run in our collection used
# 49.8 GB on such a card, so without double quantization it may fit as well.)
#
# The authors also use a *paged* optimizer: when a long sequence comes, the driver moves its moments to the host. Here it is
# `qlora.paged_adamw`, for NVIDIA GPUs.

# %% [markdown]
# ## Tomorrow's script
#
# This script trains with QLoRA, without this workshop. It keeps the frozen weights in NF4, with bitsandbytes if that is
# installed and with its own code otherwise, and puts LoRA beside them. The assert in the loop detects the silent failure
# from above. The saved file contains the adapter and its optimizer's state, but not the frozen weights.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_qlora.pt")

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/train_qlora.py
import importlib.util
import os
from pathlib import Path

import torch
from torch import nn

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
NF4 = torch.tensor(
    [-1.0, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0.0,
     0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0]
)  # fmt: skip


class FourBitProduct(torch.autograd.Function):
    """x W^T. Backward unpacks again: if W were kept, nothing would be saved."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x @ layer.weight().T

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.layer.weight(), None


class FourBit(nn.Module):
    """NF4 by hand: two codes a byte, an absmax for each 64 weights."""

    def __init__(self, linear):
        super().__init__()
        blocks = linear.weight.detach().reshape(-1, 64)
        absmax = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12)
        codes = ((blocks / absmax).unsqueeze(-1) - NF4).abs().argmin(-1)
        pairs = codes.to(torch.uint8).view(-1, 2)
        self.register_buffer("packed", pairs[:, 0] * 16 + pairs[:, 1])
        self.register_buffer("absmax", absmax)
        self.register_buffer("bias", linear.bias.detach())
        self.shape = linear.weight.shape

    def weight(self):
        codes = torch.stack((self.packed // 16, self.packed % 16), dim=-1)
        numbers = NF4.to(self.absmax.device)[codes.long().view(-1, 64)]
        return (numbers * self.absmax).view(self.shape)

    def forward(self, x):
        return FourBitProduct.apply(x, self) + self.bias


def four_bit(linear):
    """The library's layer where it is installed, else the one by hand."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return FourBit(linear)
    from bitsandbytes.nn import Linear4bit

    small = Linear4bit(linear.in_features, linear.out_features, quant_type="nf4")
    small.load_state_dict(linear.state_dict())
    return small  # it is quantized when it moves to the device


class WithLoRA(nn.Module):
    """What is frozen, and a product of rank r beside it."""

    def __init__(self, linear, r=8, alpha=16):
        super().__init__()
        self.base, self.scale = four_bit(linear), alpha / r
        rows, columns = linear.weight.shape
        self.a = nn.Parameter(torch.randn(r, columns) / columns**0.5)
        self.b = nn.Parameter(torch.zeros(rows, r))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


torch.manual_seed(0)
layers = [nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()]
model = nn.Sequential(*layers, nn.Linear(256, 1))  # yours, already trained
plain = sum(p.nbytes for p in model.parameters())
for name in ("0", "2"):  # the two large layers
    model.set_submodule(name, WithLoRA(model.get_submodule(name)))
model.to(device)
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.endswith((".a", ".b")))
trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
frozen = [t for n, t in model.state_dict().items() if n not in trained]
print(f"frozen: {sum(t.nbytes for t in frozen):,} bytes for {plain:,} in fp32")

optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
inputs = torch.randn(256, 128, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs[:, :8].sum(dim=1, keepdim=True) / 8
saved, first = Path(os.environ.get("CHECKPOINT", "train_qlora.pt")), 0
if saved.exists():  # the file has the adapter only; the base was built above
    state = torch.load(saved, map_location=device, weights_only=True)
    found = model.load_state_dict(state["adapter"], strict=False)  # the base is missing
    strange = {*found.unexpected_keys} | {*found.missing_keys} & {*trained}
    assert not strange, f"{saved} is not of this model: {sorted(strange)}"
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

for epoch in range(first, first + 3):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    total = 0.0
    for batch in order.to(device).split(16):
        loss = (model(inputs[batch]) - targets[batch]).square().mean()
        loss.backward()
        assert all(p.grad is not None for p in trained.values()), "nothing is learned"
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() / 16
    print(f"epoch {epoch}: mean loss {total:.4f}")
    adapter = {name: parameter.detach() for name, parameter in trained.items()}
    state = {"adapter": adapter, "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, saved)

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("52_qlora")

# %% [markdown]
# ## What to take away
#
# - A frozen weight only has to be close to its original value. From 8 bits down to 5, each bit less makes the model's KL
#   divergence four times as large, and below that it grows even faster. Four bits are the fewest that this small model
#   tolerates, and there the choice of the sixteen numbers matters. LoRA beside them makes up for most of the harm.
# - **NF4** means sixteen numbers at quantiles and one absmax for each 64 weights: 4.5 bits a weight, or **4.127 with
#   double quantization**.
# - Store in four bits, compute in 16 or 32; the backward pass unpacks again. Our own code and bitsandbytes give equal
#   results.
# - LoRA removes gradients and moments, and QLoRA shrinks the weights. Activations stay: recompute them
#   (`13_memory_of_a_step`).
# - After every change of libraries, check that each trained weight **has a gradient**.
# - On ranks, use `take_from_rank_0`. Under FSDP, also use a storage dtype that the other parameters have.
#
# Next: [53_quantization](53_quantization.ipynb), where the weights are *used* in few bits.
#
# ## Sources
#
# - T. Dettmers, A. Pagnoni, A. Holtzman, L. Zettlemoyer, *QLoRA: Efficient Finetuning of Quantized LLMs*, NeurIPS 2023, [arXiv:2305.14314](https://arxiv.org/abs/2305.14314): abstract (65B on 48 GB),
#   section 3, table 2, appendix E (the sixteen values).
# - T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, *8-bit Optimizers via Block-wise Quantization*, ICLR 2022, [arXiv:2110.02861](https://arxiv.org/abs/2110.02861) (dynamic 8-bit numbers).
# - E. Hu et al., *LoRA*, [arXiv:2106.09685](https://arxiv.org/abs/2106.09685). bitsandbytes 0.50: github.com/bitsandbytes-foundation/bitsandbytes.
