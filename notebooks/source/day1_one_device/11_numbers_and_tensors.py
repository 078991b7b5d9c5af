# %% [markdown]
# # What do the bytes of a tensor say?
#
# - **You need** Python, and to have seen a tensor.
# - **It takes** 40 minutes to read and try, a few seconds to run.
# - **What runs where:** everything runs here, in the notebook. A number is rounded the same way on every device.
# - **Model and text:** none, because nothing is trained yet. The tensors are small enough to be drawn element by element. The model that
#   days 1 to 5 share comes in lesson 12.
# - **Links:** before this [00_welcome](../day0_welcome/00_welcome.ipynb), after it [12_flops_and_mfu](12_flops_and_mfu.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A tensor is a row of bytes together with a rule for reading them. The rule has two parts. The **format** says which number a group of bits
# stands for. The **strides** say where in the row each element lies. If you change one of these two parts, what do you lose, and what has
# to be copied?
#
# - **The format.** A model of 70 billion numbers takes 280 GB in 32 bits, 140 GB in 16 and 70 GB in 8. With half the bytes you need about half the
#   devices, and work that waits for memory can run up to twice as fast. That is why everybody wants to use fewer bits. What does a number lose when
#   it gets fewer bits?
# - **The strides.** Tensors are transposed, sliced and reshaped all the time. Which of these operations are free because they change only
#   the rule, and which ones move every byte?

# %%
# %load_ext workshop
import math

import torch

from workshop import launch, show
from workshop.facts.formats import FORMATS
from workshop.facts.tabular import Table
from workshop.exercises import beside

folder = launch.Session.get().directory  # private; deleted when the kernel ends

# %% [markdown]
# ## A number is three fields
#
# A floating-point number has a **sign**, an **exponent** and a **mantissa**. The exponent says which power of two lies just below the
# number. The mantissa says how far the number lies between that power of two and the next one:
#
# $$\text{value} = \pm\, 2^{\,E - \text{bias}} \times (1 + M / 2^m)$$
#
# Here $E$ and $M$ are the exponent and mantissa fields, read as integers, and $m$ is the number of mantissa bits. The bias shifts $E$, so
# that numbers below 1 can have an exponent too. It is 127 with 8 exponent bits, 15 with 5, and 7 with 4.
#
# The exponent's bits give you range, and the mantissa's bits give you digits. Every format is a compromise between the two.
#
# ## Predict

# %%
# %%guess nearer --choices fp16,bf16
# Which of the two 16-bit formats comes closer to 0.3952? fp16 has 5 exponent bits and
# 10 mantissa bits; bf16 has 8 and 7.
...

# %% [markdown]
# Type any number below. Each box is one bit. The second control multiplies the number by a power of two.

# %%
from workshop.jupyter.widgets import number_explorer

number_explorer(0.3952)

# %% [markdown]
# fp16 has three more mantissa bits than bf16, so it comes closer to the number. E4M3 has one more than E5M2, so it comes closer too.
# Multiplying by two changes only the exponent, and the relative error stays the same. For fp16 and for E4M3 this stops at some power of
# two. **Find that power of two.** What does bf16 do there?

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
# Now we read the bits of fp16 with the formula above, without using the workshop:

# %% tags=["nbval-check-output"]
half = torch.tensor(0.3952).to(torch.float16)
bits = f"{half.view(torch.int16).item():016b}"
E, M = int(bits[1:6], 2), int(bits[6:], 2)
value = 2.0 ** (E - 15) * (1 + M / 2**10)
print(f"{bits[0]} {bits[1:6]} {bits[6:]}: E = {E}, M = {M}, value {value:.6f}")
assert half == value == rounded["fp16"]

# %% [markdown]
# The next cell answers the question about the power of two. It multiplies 0.3952 by smaller and smaller powers of two. At which power does
# the format first lose a digit?

# %% tags=["nbval-check-output"]
for name in ("fp16", "bf16", "e4m3"):
    form, power = FORMATS[name], 0
    while form.round(0.3952 * 2.0**power) == form.round(0.3952) * 2.0**power:
        power -= 1
    print(f"{name}: digits are lost at 2^{power} and below")
    assert power == {"fp16": -13, "bf16": -126, "e4m3": -5}[name]

# %% [markdown]
# (bf16's power is far beyond the end of the slider. At $2^{-125}$ bf16 already has one bit less. It loses nothing there only because that
# bit is 0.)
#
# ## Range
#
# The picture shows the range of each format. In the dark part a format has all its digits. In the pale part the exponent cannot get any
# smaller, so the format loses its digits one by one until everything becomes zero. The numbers in the pale part are called *subnormal*.

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
# - **bf16** is fp32 with the last 16 bits cut off: it has all of fp32's range and a third of its digits. **tf32** has bf16's range and
#   fp16's digits. It exists only inside a GPU's matrix units (NVIDIA calls them Tensor Cores).
# - **fp16** divides its bits differently: fewer for the exponent, more for the mantissa. Its largest number is 65,504, and it has no
#   numbers below $6 \times 10^{-8}$.
# - **E4M3** has no infinity and uses those codes for more range: by the usual rule it would end at 240. **E5M2** is fp16 with eight
#   mantissa bits cut off.
# - **E2M1** has eight magnitudes: 0, ½, 1, 1½, 2, 3, 4, 6. It is never used on its own but always with a scale; see *Blocks* below.
#
# ### Exercise: write the rounding
#
# You do not need to look at bits for this. Between two powers of two, a format is a ruler with equal steps. Find the size of the step, and
# then count in steps.
#
# There is one more rule. A number exactly halfway between two values goes to the one whose last mantissa bit is zero. This is called
# **ties to even**. If ties were always rounded up, sums would drift. Python's `round` follows the same rule: `round(0.5) == 0` and
# `round(1.5) == 2`.

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
# Here is your function beside torch's cast, on numbers of every size. (The test includes no NaN, because a NaN cannot be rounded to a
# number. E4M3 reserves two codes for it, one for each sign.)

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
# `workshop.precision.formats` does the same for whole tensors and for every format in this lesson. Its tests compare it with torch's casts,
# bit for bit, on a million numbers and on every code there is.
#
# ## Run: how far off?
#
# We now measure the rounding error for every size from $2^{-30}$ to $2^{20}$. At each size we round a thousand numbers and take the error
# (root mean square) relative to their size.

# %%
from workshop.precision.formats import round_to, rounding_error

sizes = [2.0**power for power in range(-30, 21)]
errors = {name: [] for name in ("tf32", "bf16", "fp16", "e4m3", "e5m2")}
for size in sizes:
    some = size * (1 + torch.rand(1_000, generator=generator))
    for name, by_size in errors.items():
        became = round_to(some, name)
        off = rounding_error(some, became).relative
        by_size.append(off if became.isfinite().all() else math.nan)
show.error_by_size(sizes, errors)

# %% [markdown]
# ## Compare
#
# Each line is flat where the format has all its digits: **the relative error does not depend on the size of the number**. That is the point
# of floating point. (fp16 and tf32 have the same number of mantissa bits, so the flat part of fp16's line lies on tf32's.) On the left, a
# line climbs to 1 where the numbers are so small that they become zero (**underflow**). On the right, a line ends where numbers become
# infinite. E4M3 has no infinity, so its line climbs again instead: here everything too large becomes 448. (Do not rely on that in a cast:
# some libraries give NaN for a number above 448. Clamp or scale first, as the test above did.)
#
# How high should the flat part be? A mantissa of $m$ bits puts $2^m$ values between two powers of two. So rounding is off by at most half a
# step, which is $2^{-m-1}$ of the number.

# %%
# %%guess typical --unit %
# E4M3 has 3 mantissa bits, so rounding is off by at most 6.25 %. What is the root mean
# square of the error over many numbers?
...

# %%
at_one = sizes.index(1.0)
for name, by_size in errors.items():
    bound, square = FORMATS[name].epsilon / 2, by_size[at_one]
    print(f"{name}: at most {bound:8.4%}, root mean square {square:7.4%}")
    assert 0.3 < square / bound < 0.4
expected = 100 / 16 / math.sqrt(7)
beside("typical", predicted=expected, measured=100 * errors["e4m3"][at_one])

# %% [markdown]
# Where does the *predicted* value come from? Errors that are spread evenly from 0 to half a step have a root mean square of $1/\sqrt{3}$ of
# the largest error. Numbers that are spread evenly from 1 to 2 have a root mean square of $\sqrt{7/3}$. The quotient of the two is
# $1/\sqrt{7}$ of the largest relative error.
#
# The next cell prints numbers for the left end of the picture:

# %% tags=["nbval-check-output"]
print(f"at 2^-22: fp16 is off by {errors['fp16'][sizes.index(2.0**-22)]:.0%}")
print(f"at 2^-30: bf16 by {errors['bf16'][0]:.1%}, E4M3 by {errors['e4m3'][0]:.0%}")
assert errors["bf16"][0] < 0.01 < errors["fp16"][sizes.index(2.0**-22)]
assert errors["e4m3"][0] == errors["e5m2"][0] == 1  # everything became zero

# %% [markdown]
# The weights of a trained model are often a few hundredths, and gradients can be a millionth or less. In bf16 both lie in the flat
# part, which goes down to $10^{-38}$. fp16 holds weights well, but a gradient of a millionth loses digits, and a gradient of $10^{-8}$
# becomes zero. E5M2 has the range of fp16, so weights keep both of its mantissa bits. E4M3 begins to lose digits at 0.016, in the middle of
# the weights. For this reason numbers are first multiplied so that they lie in the flat part. This is called **scaling**, and it is the
# subject of lessons 14 and 41.
#
# ## Blocks: share a scale
#
# In the newest formats the scale is part of the format: a small block of neighboring numbers shares one scale. Which format is best for
# weights that are roughly normally distributed?

# %% tags=["nbval-check-output"]
from workshop.precision.blocks import encode_blocks

weights = 0.02 * torch.randn(512, 1_024, generator=generator)
print("format       bits a number   error   a model of 70 billion")
alone, in_blocks = {}, {}
for name in ("bf16", "fp16", "e4m3", "e5m2"):
    off = rounding_error(weights, round_to(weights, name)).relative
    alone[name], bits = off, FORMATS[name].bits
    print(f"{name:<12} {bits:>10.2f} {off:>10.2%} {70 * bits / 8:>13.0f} GB")
assert alone["e5m2"] < 1.15 * errors["e5m2"][at_one]  # close to the flat part
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
# Look at the last four lines of the table, which are the formats with shared scales. MXFP8 is E4M3 with one power of two as the scale of
# every 32 numbers. Here it is by hand:

# %%
rows = weights.view(-1, 32)
powers = rows.abs().amax(1, keepdim=True).log2().floor() - 8  # 2^8 < E4M3's 448 < 2^9
codes = (rows / 2.0**powers).clamp(-448, 448).to(torch.float8_e4m3fn)
decoded = (codes.float() * 2.0**powers).view_as(weights)
assert torch.equal(decoded, encode_blocks(weights, "mxfp8").decode())
off = rounding_error(weights, decoded).relative
assert off == in_blocks["mxfp8"]
print(f"MXFP8 by hand: off by {off:.2%}, the same numbers as in the table")

# %% [markdown]
# MXFP4 does the same with four bits. NVFP4 has smaller blocks and a finer scale, so it takes more bits and has a smaller error. NF4 is not
# a floating-point format at all. Its 16 values are quantiles of a normal distribution, which suits numbers that are roughly normal. Of the
# four-bit formats it has the smallest error here, but NVFP4 is close behind. `52_qlora` trains with NF4.
#
# ## Where the numbers lie
#
# So far we looked at the format. The other part of the rule says where each element lies. Memory is one long row. A tensor consists of a
# **storage** (its piece of that row), an **offset**, and one **stride** for each dim. The stride of a dim is the distance in the storage
# between an element and its neighbor along that dim:
#
# $$\text{place}(r, c) = \text{offset} + r \times \text{stride}_0 + c \times \text{stride}_1$$
#
# In the picture, each arrow to the right or down is labeled with the stride of that dim. If you change only the strides and the offset, you
# get a new tensor (a **view**) without moving a single number.

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
# These are four tensors with one storage. If you write to one of them, all of them change:

# %% tags=["nbval-check-output"]
x.T[3, 2] = 100
print(x[2].tolist())
x[2, 3] = 11

# %% [markdown]
# You can also change only the format: `view(dtype)` reads the same bytes in a different format. The next cell takes the number 1 in fp32
# and reads its 32 bits as an integer. Written in binary, this integer shows the three fields of the formula at the top: sign 0, exponent
# 127, mantissa 0.

# %% tags=["nbval-check-output"]
as_bits, address = x.view(torch.int32), x.untyped_storage().data_ptr()
assert as_bits.untyped_storage().data_ptr() == address
assert x.to(torch.float16).untyped_storage().data_ptr() != address
bits = f"{as_bits[0, 1].item():032b}"
print(f"{x[0, 1].item()} is stored as {bits[0]} {bits[1:9]} {bits[9:]}")
assert as_bits[0, 1] == 127 * 2**23

# %% [markdown]
# So there are two kinds of view, one with different strides and one with a different format. In both cases no byte has moved.
# `to(torch.float16)` is not a view: it rounds each number and writes the result to a new storage.
#
# ### A slider that decides
#
# The view below has one dim, so it has one stride and one offset. **Which stride reads the diagonal of the 3 x 4 table, 0, 5, 10?** Which
# stride and offset read its last column? Move the sliders until the picture shows it. (In PyTorch a tensor cannot have negative strides, so
# `flip` makes a copy.)

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
# The diagonal goes one row down and one column to the right, so its stride is the sum of the two strides. (For the last column, use stride
# 4 and offset 3. The last picture shows the sliders at the answer, for pages without a running kernel.)
#
# ### Exercise: which of them copy?
#
# A tensor is *contiguous* when its strides read the storage in order. `contiguous()` and `reshape` copy only if they must. `view` never
# copies: where a copy would be needed, it raises an error. `rearrange` comes from einops, which you will meet below: it names the dims of x
# r and c, and joins them in the order (c r), in which r changes fastest. A copy costs time, and it takes memory that does not appear in any
# formula about the model.


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
# Here is what torch does. A result was copied if its storage is a different one:

# %% tags=["nbval-check-output"]
from einops import rearrange, reduce, repeat

rows = []
for expression, answer in which_copy().items():
    made = eval(expression)
    copied = made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    shape, strides = str(tuple(made.shape)), str(made.stride())
    rows.append((expression, "copies" if copied else "reads x", shape, strides))
    assert copied == answer
assert torch.equal(torch.as_strided(x, (2, 4), (8, 1)), x[[0, 2]])
Table(("expression", "the result", "shape", "strides"), rows)

# %% [markdown]
# Two lines may surprise you. `expand` has a stride of 0: each of its five rows reads the same four numbers. And `x[[0, 2]]` copies, although
# strides of (8, 1) would describe it: torch copies whatever you pick with a list of indices, because most lists have no such strides.
#
# Where no choice of strides can describe the result, `view` raises an error:

# %% tags=["nbval-check-output"]
try:
    x.T.view(12)
except RuntimeError as error:
    print(str(error).split(" (")[0])

# %% [markdown]
# ### A copy to another device
#
# A view shares its storage, and a storage lies on one **device**. So `.to(device)` copies whenever the device is a different one, and
# returns the tensor itself when the device is the same. The tensors in one operation must lie on the same device. (A tensor
# without dims, which is a single number, may stay on the CPU.) So create a tensor where you need it, with `device=device`, and nothing has to be copied.

# %% tags=["nbval-check-output"]
elsewhere = torch.empty(3, 4, device="meta")  # a device that keeps shapes but no data
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
# Attention turns (batch, sequence, hidden) into (batch, heads, sequence, width of a head), and back. With `view` and `transpose` you have
# to count dims. With **einops** you can name them. Three functions are enough: `rearrange` moves numbers, `reduce` can also combine them
# (by their mean, for example), and `repeat` can also copy them.

# %% tags=["nbval-check-output"]
# 2 sequences of 5 positions; 3 heads of width 4
hidden = torch.randn(2, 5, 12, generator=generator)
split = "batch position (head width) -> batch head position width"
heads = rearrange(hidden, split, head=3)
assert torch.equal(heads, hidden.view(2, 5, 3, 4).transpose(1, 2))
assert heads.untyped_storage().data_ptr() == hidden.untyped_storage().data_ptr()
print("rearrange", tuple(hidden.shape), "->", tuple(heads.shape), heads.stride())

mean = reduce(heads, "batch head position width -> batch head width", "mean")
assert torch.allclose(mean, heads.mean(2))
print("reduce   ", tuple(heads.shape), "->", tuple(mean.shape))

# one key for every two query heads, as in grouped-query attention
shared = repeat(mean, "batch head width -> batch (head group) width", group=2)
assert torch.equal(shared, mean.repeat_interleave(2, dim=1))
print("repeat   ", tuple(mean.shape), "->", tuple(shared.shape))

# %% [markdown]
# Splitting into heads is a view. Whether joining the heads again after attention needs a copy depends on the order in which the result was
# written:

# %% tags=["nbval-check-output"]
from torch.nn.functional import scaled_dot_product_attention

scores = heads @ heads.mT / 4**0.5  # each head is 4 wide
by_hand = scores.softmax(-1) @ heads  # a product writes one head after another
fused = scaled_dot_product_attention(heads, heads, heads)
torch.testing.assert_close(by_hand, fused)
join = "batch head position width -> batch position (head width)"
for name, attended in (("by hand", by_hand), ("fused", fused)):
    joined = rearrange(attended, join)
    assert torch.equal(joined, attended.transpose(1, 2).flatten(2))
    before, after = attended.untyped_storage(), joined.untyped_storage()
    copied = before.data_ptr() != after.data_ptr()
    verb = "copies" if copied else "is a view"
    print(f"{name:<8} strides {attended.stride()!s:<15} joining the heads {verb}")
    assert copied == (name == "by hand")

# %% [markdown]
# The fused kernel writes position after position, so the joined heads are already in order, and the next layer can read them without a
# copy.
#
# With einops, the names decide what the code does. If you exchange two of them on the left, the same numbers get a different meaning, and
# no error is raised. So write down what the dims *are*, and check it by reading it aloud.
#
# ## At scale
#
# The same arithmetic applies to models that do not fit on one device. How many H100s do you need to hold the weights, and nothing else?
# (The "80 GB" in the H100's name are counted in powers of two. Counted in the GB of $10^9$ bytes that we use here, a program can use a
# little more than 80 GB; lesson 13 explains both units.)

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

BITS = {"fp32": 32, "bf16": 16, "mxfp8": 8.25, "nvfp4": 4.5}
h100_gb = catalogue.device("H100").memory_bytes / 1e9
print(f"an H100 lets a program have {h100_gb:.1f} GB")
print("bytes of the weights, and how many H100s hold them:")
print(f"{'':<16}" + "".join(f"{name:>16}" for name in BITS))
for model_name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b"):
    model = catalogue.model(model_name)
    sizes_gb = [model.num_params * bits / 8 / 1e9 for bits in BITS.values()]
    row = [f"{size:>7.0f} GB on {math.ceil(size / h100_gb):>2}" for size in sizes_gb]
    print(f"{model_name:<16}" + "".join(row))

# %% [markdown]
# That is enough to use a model. To train it you also need gradients and the state of an optimizer, and the optimizer needs more digits than the
# weights have here (`13_memory_of_a_step`, `14_mixed_precision`).
#
# ## Tomorrow's script
#
# What would *your* weights lose? This script does not need the workshop. It reads a state dict (`WEIGHTS=model.pt`), or else it uses normally
# distributed numbers with a standard deviation of two thousandths, many of which are too small for E4M3. For each format it prints the bytes, the
# error, and the share of weights that became zero. The 8-bit formats appear twice: once with the weights as they are, and once with one scale for
# each tensor. Integers in the state dict (counters, positions) are not weights, and a tensor of zeros has no relative error: both are left out.
# `--save` writes the cell to a file.

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/weigh_formats.py
import math
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


if "WEIGHTS" in os.environ:  # your own state dict, written by torch.save
    state = torch.load(os.environ["WEIGHTS"], weights_only=True)
    state = {k: v.float() for k, v in state.items() if v.is_floating_point()}
    state = {name: value for name, value in state.items() if value.any()}
else:
    generator = torch.Generator().manual_seed(0)
    state = {"weight": 0.002 * torch.randn(512, 512, generator=generator)}

for dtype in FORMATS:
    for scaled in (False, True) if dtype.itemsize == 1 else (False,):
        worst, zeros = 0.0, 0
        for weights in state.values():
            back = rounded(weights, dtype, scaled)
            error = ((back - weights).norm() / weights.norm()).nan_to_num(math.inf)
            worst = max(worst, error.item())
            zeros += ((back == 0) & (weights != 0)).sum().item()
        share = zeros / sum(weights.numel() for weights in state.values())
        name = str(dtype).removeprefix("torch.") + " scaled" * scaled
        held = f"{name:<21} bytes a weight: {dtype.itemsize}"
        print(f"{held}, error {worst:7.3%}, {share:6.2%} became zero")

# %% [markdown]
# A weight of two thousandths lies at the lower end of E4M3's range, so more than a third of the weights become zero. One scale for the
# whole tensor brings the error close to what three mantissa bits allow. Lesson 41 shows when one scale is not enough.

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("11_numbers_and_tensors")

# %% [markdown]
# ## What to take away
#
# - Exponent bits give range, and mantissa bits give digits. The relative error is at most $2^{-m-1}$ at any size,
#   as long as the format has all its digits.
# - **bf16** has the range of fp32 and 8 bits of precision. **fp16** has more digits, and ends at 65,504 and near $10^{-7}$. **E4M3** ends
#   at 448, **E5M2** at 57,344.
# - 0.3952 becomes 0.395264 (fp16), 0.394531 (bf16), 0.40625 (E4M3), 0.375 (E5M2).
# - With few bits, numbers share scales: one scale for a block of 16 to 64 numbers.
# - Ties go to the even neighbor.
# - A tensor is bytes (its storage) and a rule to read them: format, offset, strides. An operation can be free only if a new rule can
#   express its result: it copies if none can, and sometimes even if one can. A change of device copies too.
#
# Next: [12_flops_and_mfu](12_flops_and_mfu.ipynb), what a step costs. Number formats come back in `14_mixed_precision`.
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
