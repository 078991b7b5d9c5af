# %% [markdown]
# # What do the bytes of a tensor say?
#
# - **You need** Python, and to have seen a tensor.
# - **It takes** 40 minutes to read and try, a few seconds to run.
# - **What runs where:** all of it here, in the notebook. A number rounds the same on every device.
# - **Model and text:** none, for nothing is trained yet. The tensors are small enough to be drawn element by element. The model that days 1
#   to 5 share comes in lesson 12.
# - **Links:** before this [00_welcome](../day0_welcome/00_welcome.ipynb), after it [12_flops_and_mfu](12_flops_and_mfu.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A tensor is a row of bytes, and a rule to read them. The rule has two halves: the **format** says which number some bits stand for, and the
# **strides** say where in the row an element lies. What is lost, and what is copied, when you change one of them?
#
# - **The format.** A model of 70 billion numbers takes 280 GB in 32 bits, 140 GB in 16 and 70 GB in 8. Half the bytes is half the devices,
#   or twice the speed. So everybody wants fewer bits. What does a number lose on the way down?
# - **The strides.** A tensor is transposed, cut and reshaped all the time. Which of it is free, because only the rule changes, and which moves
#   every byte?

# %%
# %load_ext workshop
import math

import torch

from workshop import launch, show
from workshop.facts.formats import FORMATS
from workshop.exercises import beside

folder = launch.Session.get().directory  # private, gone when the kernel goes

# %% [markdown]
# ## A number is three fields
#
# A **sign**, an **exponent** that says which power of two lies just below, and a **mantissa** that says how far it is from there
# to the next power of two:
#
# $$\text{value} = \pm\, 2^{\,E - \text{bias}} \times (1 + M / 2^m)$$
#
# $E$ and $M$ are the two fields read as whole numbers, and $m$ is the number of mantissa bits. The bias moves $E$, so that numbers below
# 1 have an exponent too: it is 127 with 8 exponent bits, 15 with 5, and 7 with 4.
#
# The exponent's bits buy range. The mantissa's bits buy digits. Every format is a choice between the two.
#
# ## Predict

# %%
# %%guess nearer --choices fp16,bf16
# Which of the two 16-bit formats comes nearer to 0.3952? fp16 has 5 exponent and
# 10 mantissa bits, bf16 has 8 and 7.
...

# %% [markdown]
# Type any number below. Each box is a bit. The second control multiplies by a power of two.

# %%
from workshop.jupyter.widgets import number_explorer

number_explorer(0.3952)

# %% [markdown]
# fp16 has three bits of mantissa more than bf16, and comes nearer. E4M3 has one more than E5M2, and comes nearer too. Multiplying by
# two changes the exponent only, and the error stays. **Find the power of two at which that ends** for fp16 and for E4M3. What does
# bf16 do there?

# %% tags=["nbval-check-output"]
rounded = {}
for name in ("fp16", "bf16", "e4m3", "e5m2"):
    form = FORMATS[name]
    rounded[name] = form.round(0.3952)
    print(f"{name}: 0.3952 becomes {rounded[name]:.6f}   {form.pattern(0.3952)}")
became = [f"{value:.6f}" for value in rounded.values()]
assert became == ["0.395264", "0.394531", "0.406250", "0.375000"]

# %%
off = {name: abs(rounded[name] - 0.3952) for name in ("fp16", "bf16")}
beside("nearer", predicted="fp16", measured=min(off, key=off.get))

# %% [markdown]
# The bits of fp16, read by the formula, without the workshop:

# %% tags=["nbval-check-output"]
half = torch.tensor(0.3952).to(torch.float16)
bits = f"{half.view(torch.int16).item():016b}"
E, M = int(bits[1:6], 2), int(bits[6:], 2)
value = 2.0 ** (E - 15) * (1 + M / 2**10)
print(f"{bits[0]} {bits[1:6]} {bits[6:]}: E = {E}, M = {M}, value {value:.6f}")
assert half == value == rounded["fp16"]

# %% [markdown]
# The answer to the other question. Multiply 0.3952 by smaller and smaller powers of two. At which does the format first lose a digit?

# %% tags=["nbval-check-output"]
for name in ("fp16", "bf16", "e4m3"):
    form, power = FORMATS[name], 0
    while form.round(0.3952 * 2.0**power) == form.round(0.3952) * 2.0**power:
        power -= 1
    print(f"{name}: digits are lost at 2^{power} and below")
    assert power == {"fp16": -13, "bf16": -126, "e4m3": -5}[name]

# %% [markdown]
# (bf16's power is far beyond the slider's end. At $2^{-125}$ it has one bit less already, and loses nothing only because that bit is 0.)
#
# ## Range
#
# Dark is where a format has all its digits. Pale is where it loses them one by one, before everything becomes zero: there the
# exponent can fall no further, and numbers are called *subnormal*.

# %%
show.format_ranges()

# %% tags=["nbval-check-output"]
print("format  bits  smallest      normal from   largest       step at 1")
for form in FORMATS.values():
    begins = f"{form.smallest:<12.4g}  {form.smallest_normal:<12.4g}"
    ends = f"{form.largest:<12.6g}  {form.epsilon:.3g}"
    print(f"{form.name:<7} {form.bits:>4}  {begins}  {ends}")
assert (FORMATS["e4m3"].largest, FORMATS["e5m2"].largest) == (448, 57344)

# %% [markdown]
# - **bf16** is fp32 with the last 16 bits cut: all of its range, a third of its digits. **tf32** has bf16's range and fp16's digits.
#   It exists only inside a GPU's matrix units (NVIDIA calls them Tensor Cores).
# - **fp16** spends its bits the other way. Its largest number is 65,504, and below $6 \times 10^{-8}$ there is nothing.
# - **E4M3** has no infinity, and uses its code for more range: by the usual rule it would end at 240. **E5M2** is fp16 with eight
#   mantissa bits cut.
# - **E2M1** has eight magnitudes: 0, ½, 1, 1½, 2, 3, 4, 6. It never comes alone; see *Blocks* below.
#
# ### Exercise: write the rounding
#
# You need no bits for it. Between two powers of two a format is a ruler with equal steps. Find the step, and count in steps.
#
# One rule more. A number exactly half way between two values goes to the one whose last mantissa bit is zero: **ties to even**. Always
# upwards would make sums drift. Python's `round` does the same, `round(0.5) == 0` and `round(1.5) == 2`.

# %%
# %%exercise round_e4m3
import math


def round_e4m3(value: float) -> float:
    """The nearest value of E4M3: 3 bits of mantissa, normal from 2**-6, up to 448."""
    if value == 0:
        return value
    exponent = ...  # of the power of two at or below |value|, but never under -6
    step = ...  # from one value of E4M3 to the next
    return ...


# %% [markdown]
# Yours, beside torch's cast, on numbers of every size. (A NaN is no number to round; E4M3 keeps two codes for it, one for each sign.)

# %% tags=["nbval-check-output"]
generator = torch.Generator().manual_seed(0)
powers = torch.randint(-12, 10, (2_000,), generator=generator)
numbers = torch.randn(2_000, generator=generator) * 2.0**powers
numbers = torch.cat([numbers, torch.tensor([1.0625, 1.1875, 17.0, 19.0])])  # ties
mine = torch.tensor([round_e4m3(value) for value in numbers.tolist()])
theirs = numbers.clamp(-448, 448).to(torch.float8_e4m3fn).float()
print("differences to torch's cast:", int((mine != theirs).sum()), "of", len(numbers))
assert torch.equal(mine, theirs)

# %% [markdown]
# `workshop.precision.formats` does the same to whole tensors and to every format here. Its tests hold it against torch's casts, bit
# for bit, on a million numbers and on every code there is.
#
# ## Run: how far off?
#
# For every size from $2^{-30}$ to $2^{20}$: the error of a thousand numbers (root mean square), relative to their size.

# %%
from workshop.precision.formats import round_to, rounding_error

sizes = [2.0**power for power in range(-30, 21)]
errors = {name: [] for name in ("tf32", "bf16", "fp16", "e4m3", "e5m2")}
for size in sizes:
    some = size * (1 + torch.rand(1_000, generator=generator))
    for name, found in errors.items():
        became = round_to(some, name)
        off = rounding_error(some, became).relative
        found.append(off if became.isfinite().all() else math.nan)
show.error_by_size(sizes, errors)

# %% [markdown]
# ## Compare
#
# Each line is flat where the format has all its digits: **relative error does not depend on the size**. That is the point of
# floating point. On the left a line climbs to 1: there a number is so small that it becomes zero (**underflow**). On the right a line
# ends where numbers become infinite, or climbs again: E4M3 turns everything large into 448.
#
# How high should the flat part lie? A mantissa of $m$ bits puts $2^m$ values between two powers of two. So rounding is off by at
# most half a step, $2^{-m-1}$ of the number.

# %%
# %%guess typical --unit %
# E4M3 has 3 bits of mantissa, so a number is off by at most 6.25 %. How much are many
# numbers off, by root mean square?
...

# %%
at_one = sizes.index(1.0)
for name, found in errors.items():
    bound = FORMATS[name].epsilon / 2
    print(f"{name}: at most {bound:.4%}, root mean square {found[at_one]:.4%}")
    assert 0.3 < found[at_one] / bound < 0.4
expected = 100 / 16 / math.sqrt(7)
beside("typical", predicted=expected, measured=100 * errors["e4m3"][at_one])

# %% [markdown]
# *Predicted*: errors spread evenly from 0 to half a step have a root mean square of $1/\sqrt{3}$ of the largest, and numbers spread evenly from 1 to
# 2 have one of $\sqrt{7/3}$. The quotient is $1/\sqrt{7}$ of the largest relative error.
#
# The two ends of the picture, as numbers:

# %% tags=["nbval-check-output"]
print(f"at 2^-22: fp16 is off by {errors['fp16'][sizes.index(2.0**-22)]:.0%}")
print(f"at 2^-30: bf16 by {errors['bf16'][0]:.1%}, E4M3 by {errors['e4m3'][0]:.0%}")
assert errors["bf16"][0] < 0.01 < errors["fp16"][sizes.index(2.0**-22)]
assert errors["e4m3"][0] == errors["e5m2"][0] == 1  # all zeros

# %% [markdown]
# The weights of a trained model are a few hundredths, and gradients can be a millionth or less. For bf16 both lie in the flat part,
# which goes on to $10^{-38}$. fp16 holds weights well. A gradient of a millionth loses digits, and one of $10^{-8}$ is gone. E5M2 has
# fp16's range, so weights keep its two bits of mantissa. E4M3 begins to lose digits at 0.016, in the middle of the weights. So numbers
# are first multiplied into the flat part: that is **scaling**, the subject of lessons 14 and 41.
#
# ## Blocks: share a scale
#
# The newest formats have the scale built in: a few neighbours share one. Which is best for weights that look normal?

# %% tags=["nbval-check-output"]
from workshop.precision.blocks import encode_blocks

weights = 0.02 * torch.randn(512, 1_024, generator=generator)
print("format       bits a number   error   a model of 70 billion")
alone, in_blocks = {}, {}
for name in ("bf16", "fp16", "e4m3", "e5m2"):
    off = rounding_error(weights, round_to(weights, name)).relative
    alone[name], bits = off, FORMATS[name].bits
    print(f"{name:<12} {bits:>10.2f} {off:>10.2%} {70 * bits / 8:>13.0f} GB")
assert alone["e5m2"] < 1.15 * errors["e5m2"][at_one]  # as good as in the flat part
assert alone["e4m3"] > 1.3 * errors["e4m3"][at_one]
at_most = {"mxfp8": 0.04, "mxfp4": 0.16, "nvfp4": 0.12, "nf4": 0.12}
for name in ("mxfp8", "mxfp4", "nvfp4", "nf4"):
    blocks = encode_blocks(weights, name)
    off = rounding_error(weights, blocks.decode()).relative
    bits = blocks.bits
    print(f"{name:<12} {bits:>10.2f} {off:>10.2%} {70 * bits / 8:>13.0f} GB")
    assert 0.02 < off < at_most[name]
    in_blocks[name] = off
assert in_blocks["nf4"] < in_blocks["nvfp4"] < in_blocks["mxfp4"]

# %% [markdown]
# Look at the last four lines. MXFP8 is E4M3 with a power of two as the scale of every 32 numbers. By hand:

# %%
rows = weights.view(-1, 32)
powers = rows.abs().amax(1, keepdim=True).log2().floor() - 8  # E4M3's 448 is above 2^8
codes = (rows / 2.0**powers).clamp(-448, 448).to(torch.float8_e4m3fn)
decoded = (codes.float() * 2.0**powers).view_as(weights)
assert torch.equal(decoded, encode_blocks(weights, "mxfp8").decode())

# %% [markdown]
# MXFP4 does the same with four bits. NVFP4 has smaller blocks and a finer scale: it takes more bits, and has the smaller error. NF4 is no
# floating-point format at all. Its 16 values are quantiles of a normal distribution, which suits numbers that look
# normal: of the four-bit formats it has the smallest error here, though NVFP4 is close behind. `52_qlora` trains on it.
#
# ## Where the numbers lie
#
# That was the format. The other half of the rule says where an element lies. Memory is one long row. A tensor is a **storage**, an **offset**, and one **stride** for each dim. A stride is the distance in the storage
# from an element to its neighbour along that dim:
#
# $$\text{place}(r, c) = \text{offset} + r \times \text{stride}_0 + c \times \text{stride}_1$$
#
# In the picture an arrow to the right or down has the stride of that dim. Change only strides and offset, and you have a new tensor (a **view**) without moving a number.

# %% tags=["nbval-check-output"]
x = torch.arange(12.0).view(3, 4)
views = {"x": x, "x.T": x.T, "x[:, ::2]": x[:, ::2], "x[1:, 1:3]": x[1:, 1:3]}
for name, view in views.items():
    strides, offset = view.stride(), view.storage_offset()
    r, c = 1, 1
    place = offset + r * strides[0] + c * strides[1]
    assert view[r, c] == x.flatten()[place]
    print(f"{name:<11} strides {strides}  offset {offset}  (1, 1) lies at {place}")

# %%
described = {}
for name, view in views.items():
    described[name] = (tuple(view.shape), view.stride(), view.storage_offset())
show.storage_and_views(12, described)

# %% [markdown]
# Four tensors, one storage. Write to one and all have changed:

# %% tags=["nbval-check-output"]
x.T[3, 2] = 100
print(x[2].tolist())
x[2, 3] = 11

# %% [markdown]
# The format can change alone, too: `view(dtype)` reads the same bytes in another format. Take the number 1 in fp32 and read its 32 bits as a
# whole number. Written in binary, it shows the three fields of the formula at the top: sign 0, exponent 127, mantissa 0.

# %% tags=["nbval-check-output"]
as_bits, address = x.view(torch.int32), x.untyped_storage().data_ptr()
assert as_bits.untyped_storage().data_ptr() == address
assert x.to(torch.float16).untyped_storage().data_ptr() != address
bits = f"{as_bits[0, 1].item():032b}"
print(f"{x[0, 1].item()} is stored as {bits[0]} {bits[1:9]} {bits[9:]}")
assert as_bits[0, 1] == 127 * 2**23

# %% [markdown]
# So there are two kinds of view, other strides and another format, and in both no byte has moved. `to(torch.float16)` is no view: it rounds each
# number, and writes the result to a new storage.
#
# ### A slider that decides
#
# One dim, one stride, one offset. **Which stride reads the diagonal of the 3 x 4 table, 0, 5, 10?** Which stride and offset read its last
# column? Move the sliders until the picture shows it. (Strides of a tensor cannot be negative in PyTorch: `flip` copies.)

# %%
# %%guess diagonal
# Which stride reads the diagonal of x = torch.arange(12.).view(3, 4)?
...

# %%
from workshop.jupyter.explorer import Control, explore


def draw(length, stride, offset):
    table = ((3, 4), (4, 1), 0)
    yours = ((length,), (stride,), offset)
    return show.storage_and_views(12, {"x": table, "yours": yours})


controls = [Control("length", 3, range(1, 7)), Control("stride", 1, range(7))]
explore(draw, [*controls, Control("offset", 0, range(12))])

# %%
diagonal = torch.as_strided(x, (3,), (5,))
assert torch.equal(diagonal, x.diagonal())
print("stride of the diagonal:", x.diagonal().stride()[0])
beside("diagonal", predicted=4 + 1, measured=x.diagonal().stride()[0])

# %%
draw(3, 5, 0)

# %% [markdown]
# One down and one to the right: the two strides added. (The last column is stride 4, offset 3. The last picture is the slider's answer, for pages without a kernel.)
#
# ### Exercise: which of them copy?
#
# A tensor is *contiguous* when its strides read the storage in order. `contiguous()` copies if it must, and so does `reshape`. `view` never
# copies and complains instead. A copy costs time, and memory that no formula about the model knows of.


# %%
# %%exercise which_copy
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {
        "x.T": ...,
        "x[:, ::2]": ...,
        "x.reshape(2, 6)": ...,
        "x.T.reshape(12)": ...,
        "x.contiguous()": ...,
        "x.T.contiguous()": ...,
        "x[[0, 2]]": ...,
        "x[:1].expand(5, 4)": ...,
        "x.to(torch.float32)": ...,
        "rearrange(x, 'r c -> (c r)')": ...,
    }


# %% [markdown]
# What torch does: a result was copied if it has another storage.

# %% tags=["nbval-check-output"]
from einops import rearrange, reduce, repeat

for expression, said in which_copy().items():
    made = eval(expression)
    copied = made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    verb = "copies" if copied else "views"
    print(f"{verb:<7} strides {made.stride()!s:<8} {expression}")
    assert copied == said

# %% [markdown]
# Where strides cannot do it, `view` raises an error:

# %% tags=["nbval-check-output"]
try:
    x.T.view(12)
except RuntimeError as error:
    print(str(error).split(" (")[0])

# %% [markdown]
# ### A copy to another device
#
# A view shares its storage, and a storage lies on one **device**. So `.to(device)` copies whenever the device is a different one, and returns the
# tensor itself when it is the same. Two tensors of one operation must lie on the same device. That is why the code of this workshop
# says `device=device` when it makes a tensor, in place of moving it afterwards.

# %% tags=["nbval-check-output"]
elsewhere = torch.empty(3, 4, device="meta")  # a device that keeps shapes and no bytes
assert x.to("cpu") is x
assert x.to("meta").device == elsewhere.device
try:
    x + elsewhere
    raised = "nothing was raised"
except RuntimeError as error:
    raised = type(error).__name__
print("two devices:", raised)
assert raised == "RuntimeError"

# %% [markdown]
# ## Names for dims
#
# Attention turns (batch, sequence, hidden) into (batch, heads, sequence, width of a head), and back. With `view` and `transpose` one
# has to count dims. **einops** lets you name them. Three words are enough: `rearrange` moves, `reduce` also shrinks, `repeat` also grows.

# %% tags=["nbval-check-output"]
# 2 sequences of 5 positions; 3 heads of width 4
hidden = torch.randn(2, 5, 12, generator=generator)
split = "batch position (head width) -> batch head position width"
heads = rearrange(hidden, split, head=3)
assert torch.equal(heads, hidden.view(2, 5, 3, 4).transpose(1, 2))
print("rearrange", tuple(hidden.shape), "->", tuple(heads.shape), heads.stride())

mean = reduce(heads, "batch head position width -> batch head width", "mean")
assert torch.allclose(mean, heads.mean(2))
print("reduce   ", tuple(heads.shape), "->", tuple(mean.shape))

# a key for two queries, as in grouped-query attention
shared = repeat(mean, "batch head width -> batch (head group) width", group=2)
assert torch.equal(shared, mean.repeat_interleave(2, dim=1))
print("repeat   ", tuple(mean.shape), "->", tuple(shared.shape))

# %% [markdown]
# Splitting into heads is a view. Joining them again after attention depends on who wrote the result, and in which order:

# %% tags=["nbval-check-output"]
from torch.nn.functional import scaled_dot_product_attention

scores = heads @ heads.mT / 4**0.5  # a head is 4 wide
by_hand = scores.softmax(-1) @ heads  # a product writes head after head
fused = scaled_dot_product_attention(heads, heads, heads)
torch.testing.assert_close(by_hand, fused)
join = "batch head position width -> batch position (head width)"
for name, attended in (("by hand", by_hand), ("fused", fused)):
    joined = rearrange(attended, join)
    assert torch.equal(joined, attended.transpose(1, 2).flatten(2))
    before, after = attended.untyped_storage(), joined.untyped_storage()
    verb = "is a view" if before.data_ptr() == after.data_ptr() else "copies"
    print(f"{name:<8} strides {attended.stride()!s:<15} joining the heads {verb}")

# %% [markdown]
# The fused kernel writes position after position, so the next layer finds its numbers in order.
#
# The names decide. Exchange two of them on the left, and the same numbers get a different meaning, without any error. So write down
# what the dims *are*, and read it aloud.
#
# ## At scale
#
# The same arithmetic for models that do not fit. How many H100s hold the weights alone? (The "80 GB" of
# its name are counted in powers of two. In the GB of $10^9$ bytes that we count here a program has a little more;
# lesson 13 explains both units.)

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

BITS = {"fp32": 32, "bf16": 16, "mxfp8": 8.25, "nvfp4": 4.5}
h100_gb = catalogue.device("H100").memory_bytes / 1e9
print(f"an H100 lets a program have {h100_gb:.1f} GB")
print(f"{'':<16}" + "".join(f"{name:>16}" for name in BITS))
for model_name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b"):
    model = catalogue.model(model_name)
    sizes_gb = [model.num_params * bits / 8 / 1e9 for bits in BITS.values()]
    row = [f"{size:>7.0f} GB on {math.ceil(size / h100_gb):>2}" for size in sizes_gb]
    print(f"{model_name:<16}" + "".join(row))

# %% [markdown]
# That is enough to use a model. To train it you also need gradients and an optimizer, and those need more digits than the weights
# (`13_memory_of_a_step`, `14_mixed_precision`).
#
# ## Tomorrow's script
#
# What would *your* weights lose? This script needs nothing of the workshop. It reads a state dict (`WEIGHTS=model.pt`) or takes
# normal numbers of a few thousandths, and prints for each format the bytes, the error, and what became zero. For 8 bits it does so
# twice: as they are, and with one scale for each tensor. `--save` writes the cell as a file.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/weigh_formats.py
import os

import torch

FORMATS = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def rounded(weights, dtype, scaled):
    """Weights after a stay in `dtype`, multiplied into its range if `scaled`."""
    scale = torch.finfo(dtype).max / weights.abs().max() if scaled else 1.0
    return (weights * scale).to(dtype).float() / scale


if "WEIGHTS" in os.environ:  # a state dict of yours, written by torch.save
    state = torch.load(os.environ["WEIGHTS"], weights_only=True)
    state = {name: value.float() for name, value in state.items()}
else:
    generator = torch.Generator().manual_seed(0)
    state = {"weight": 0.002 * torch.randn(512, 512, generator=generator)}

for dtype in FORMATS:
    for scaled in (False, True) if dtype.itemsize == 1 else (False,):
        worst, zeros = 0.0, 0
        for weights in state.values():
            back = rounded(weights, dtype, scaled)
            worst = max(worst, ((back - weights).norm() / weights.norm()).item())
            zeros += ((back == 0) & (weights != 0)).sum().item()
        share = zeros / sum(weights.numel() for weights in state.values())
        name = str(dtype).removeprefix("torch.") + " scaled" * scaled
        held = f"{name:<21} {dtype.itemsize} bytes a weight"
        print(f"{held}, error {worst:7.3%}, {share:6.2%} became zero")

# %% [markdown]
# A weight of two thousandths lies where E4M3 runs out of numbers: more than a third of them become zero. One scale for the whole tensor
# brings the error near that of three mantissa bits. Lesson 41 asks when one scale is not enough.

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("11_numbers_and_tensors")

# %% [markdown]
# ## What to take away
#
# - Exponent bits are range, mantissa bits are digits. Relative error is at most $2^{-m-1}$, at any size, until range ends.
# - **bf16** has fp32's range and 8 bits of precision; **fp16** has more digits and ends at 65,504 and near $10^{-7}$. **E4M3** ends at 448,
#   **E5M2** at 57,344.
# - 0.3952 becomes 0.395264 (fp16), 0.394531 (bf16), 0.40625 (E4M3), 0.375 (E5M2).
# - With few bits, numbers share scales: a block of 16 to 64 numbers and one scale.
# - Ties go to the even neighbour.
# - A tensor is bytes (its storage) and a rule to read them: format, offset, strides. What a new rule can express is free; everything else
#   copies. So does a change of device.
#
# Next: [12_flops_and_mfu](12_flops_and_mfu.ipynb), what a step costs; numbers come back in `14_mixed_precision`.
#
# ## Sources
#
# - IEEE 754-2019, sections 3.4 and 4.3.1 (formats, rounding to even).
# - P. Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, [arXiv:2209.05433](https://arxiv.org/abs/2209.05433), table 1.
# - D. Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, [arXiv:1905.12322](https://arxiv.org/abs/1905.12322).
# - NVIDIA, *A100 Tensor Core GPU Architecture*, whitepaper, 2020 (TensorFloat-32).
# - NVIDIA, Transformer Engine user guide, *Using FP8 with Transformer Engine* (the picture of 0.3952 in four formats).
# - Open Compute Project, *OCP Microscaling Formats (MX) Specification*, version 1.0, 2023.
# - NVIDIA, *Pretraining Large Language Models with NVFP4*, 2025, [arXiv:2509.25149](https://arxiv.org/abs/2509.25149).
# - T. Dettmers et al., *QLoRA*, 2023, [arXiv:2305.14314](https://arxiv.org/abs/2305.14314), section 3 (NF4).
# - A. Rogozhnikov, *Einops: Clear and Reliable Tensor Manipulations with Einstein-like Notation*, ICLR 2022.
# - PyTorch documentation: *Tensor Views*, `torch.Tensor.contiguous`.
