# %% [markdown]
# # How much can a model of this size know?
#
# - **You need** `12_flops_and_mfu` (counting parameters) and `53_quantization` (absmax). You should know what a logarithm is.
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** all of it on one CPU and on two CPU ranks. Nothing has to be changed for a GPU; the cell "On a GPU" says whether it has run
#   on one.
# - **Model and text:** the course's `TINY` with 64 words, made much smaller: one layer, 8 or 16 wide, 1,880 or 5,424 parameters. A model this
#   small is full within seconds. The text consists of random facts, because their information is known exactly.
# - **Links:** before this [71_data](71_data.ipynb), after it [73_finetune](73_finetune.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# You have a collection of documents and want a model that knows the facts in them. How many parameters does it need? To answer this, we need a
# number: how many bits of facts one parameter can hold. We measure it, and then we look at three things that make it smaller: facts that are read
# too rarely, weights with too few bits, and text that is not worth knowing.

# %%
# %load_ext workshop
import math
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.models.gpt import GPT, TINY

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
WORDS, NAME, VALUE = 64, 2, 14  # vocabulary size; tokens per name, per value
if device.type == "cpu":
    torch.set_num_threads(1)  # such a small model is slower with two


def shape(width):
    """One layer with one head."""
    sizes = {"hidden_size": width, "intermediate_size": 3 * width}
    heads = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1}
    return replace(TINY, vocab_size=WORDS, **heads, **sizes)


def fresh(width, seed, device="cpu"):
    """A model that knows nothing."""
    torch.manual_seed(seed)
    return GPT(shape(width)).to(device)


def size_of(width):
    return sum(weight.numel() for weight in fresh(width, 0).parameters())


for width in (8, 16):
    print(f"width {width}: {size_of(width):,} parameters")

# %% [markdown]
# ## What is a bit of knowledge?
#
# A **fact** is a name and a value. In our text each name consists of two tokens, all names are different, and the value consists of 14 tokens that
# were drawn at random. Nothing about a value can be guessed from other facts, so a model that predicts it must have stored it. This is the idea of
# Allen-Zhu and Li (2024), who invent people with random birthdays, cities and employers, and of Morris et al. (2025), who use random tokens as we
# do.


# %%
def facts(count, seed):
    """Names and values, (count, 16): nothing in a value follows from anything else."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(WORDS**NAME, generator=draw)[:count]  # all names differ
    names = torch.stack([numbers // WORDS, numbers % WORDS], 1)
    values = torch.randint(WORDS, (count, VALUE), generator=draw)
    return torch.cat([names, values], 1)


def token_losses(logits, rows):
    """Cross-entropy of each token of the values, in nats, (facts, 14)."""
    logits, wanted = logits[:, -VALUE:], rows[:, -VALUE:]
    return F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")


print("a name and its value:", *facts(1, 0)[0].tolist())
print(f"a value takes {VALUE} x log2({WORDS}) = {VALUE * math.log2(WORDS):.0f} bits")

# %% [markdown]
# If you had to send somebody these values, each would take 84 bits. If both of you have the trained model, you can send less: a token to which the
# model gives the probability p takes only $-\log_2 p$ bits (arithmetic coding, a classical method of compression, comes arbitrarily close to
# this). **What the model saves is what it knows.** A model that gives the right token the probability 1 saves all of it. A model that considers
# all 64 words equally likely saves nothing.
#
# A model can also be confident and wrong. Then a fact takes more bits with the model than without it. You would send such a fact without the
# model, so it counts as 0.
#
# ### Exercise: count the bits


# %%
# %%exercise bits_known
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    ...


# %% [markdown]
# Your function makes all measurements of this lesson. It needs a model that has learned something. The next cell is an ordinary training loop with
# four updates for each time that all facts are read. One reading of all facts is called an **exposure**. The learning rate rises over the first
# tenth of the steps and then falls to 0.

# %%
UPDATES, RATE = 4, 0.03  # updates per exposure; highest learning rate


def adam(weights):
    return torch.optim.AdamW(weights, betas=(0.9, 0.99), weight_decay=0.0, fused=True)


def set_rate(optimizer, step, steps):
    """Up to RATE in the first tenth of the steps, then down to 0."""
    share = min(1.0, 10 * (step + 1) / steps) * (1 - step / steps)
    for group in optimizer.param_groups:
        group["lr"] = RATE * share


def learn(model, rows, exposures, seed):
    """One model, by hand."""
    where = next(model.parameters()).device
    draw, optimizer = torch.Generator().manual_seed(seed), adam(model.parameters())
    for exposure in range(exposures):
        shuffled = rows[torch.randperm(len(rows), generator=draw)].to(where)
        for number, batch in enumerate(shuffled.chunk(UPDATES)):
            set_rate(optimizer, UPDATES * exposure + number, UPDATES * exposures)
            loss = token_losses(model(batch[:, :-1]), batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


# %% [markdown]
# Let us check the counting where we know what must come out. We give the smaller model 24 facts, which is about one bit for each of its
# parameters. How much does it know before training, how much after 40 exposures, and how much does it know of 24 facts that it has never seen?


# %%
@torch.no_grad()
def known(model, rows):
    """Bits that a model knows of these facts."""
    rows = rows.to(next(model.parameters()).device)
    return bits_known(token_losses(model(rows[:, :-1]), rows), WORDS)


seen, unseen = facts(24, seed=0), facts(24, seed=100)
there = seen[:, NAME:].numel() * math.log2(WORDS)
model = fresh(8, 0, device)
before = known(model, seen)
learn(model, seen, 40, seed=0)
after, of_others = known(model, seen), known(model, unseen)
print(f"{there:,.0f} bits in the facts, {there / size_of(8):.2f} for each parameter")
print(f"known before training: {before:.0f}, after: {after:,.0f}")
print(f"known of facts that it has never seen: {of_others:.0f}")
perfect = bits_known(torch.zeros(24, VALUE), WORDS)
assert abs(perfect / there - 1) < 1e-5
assert before < 0.01 * there
assert after > 0.85 * there
assert of_others < 0.02 * there

# %% [markdown]
# The count behaves as it should: nothing before training, nearly all bits afterwards, and nothing of unseen facts. (A loss averaged over the
# tokens of an ordinary text would not tell you this, because most of its tokens carry no facts.)
#
# ## Many small models at once
#
# How much can such a model hold at most? This is its **knowledge capacity**. To find out, we train models of two sizes on more and more facts,
# several seeds each: dozens of models. Each of them is so small that the processor spends most of its time on starting operations, not on
# arithmetic. So it pays to train several models in one operation. PyTorch can do this with three functions:
#
# - `torch.func.stack_module_state` stacks the weights of several models: a matrix (8, 64) of three models becomes one tensor (3, 8, 64).
# - `torch.func.functional_call(model, weights, inputs)` runs a model with weights that you pass in.
# - `torch.func.vmap` turns a function of one model into a function of a whole stack.
#
# AdamW updates each weight on its own, so it does not notice the stacking. The losses of the models are added up, so that each model gets the
# gradient of its own loss. Apart from this sum and the three calls, the loop below is the one above.

# %%
from torch.func import functional_call, stack_module_state, vmap


def losses_of(model, weights, rows):
    """Losses of a stack of models, each on its own facts, (models, facts, 14)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def of_one(weights, rows):
        return token_losses(functional_call(model, weights, (rows[:, :-1],)), rows)

    with sdpa_kernel(SDPBackend.MATH):  # vmap cannot batch the CPU's fused attention
        return vmap(of_one)(weights, rows)


def learn_stack(models, rows, exposures, seeds, junk=None):
    """`learn` for a stack. rows: (models, facts, tokens). We come to junk later."""
    where = next(models[0].parameters()).device
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    weights, _ = stack_module_state(models)
    optimizer = adam(list(weights.values()))
    for exposure in range(exposures):
        order = [torch.randperm(rows.shape[1], generator=draw) for draw in draws]
        shuffled = rows.gather(1, torch.stack(order)[..., None].expand_as(rows))
        for number, batch in enumerate(shuffled.chunk(UPDATES, 1)):
            set_rate(optimizer, UPDATES * exposure + number, UPDATES * exposures)
            if junk:
                batch = torch.cat([batch, junk(batch, draws)], 1)
            losses = losses_of(models[0], weights, batch.to(where))
            optimizer.zero_grad()
            losses.mean((1, 2)).sum().backward()
            optimizer.step()
    return weights


# %% [markdown]
# Does the stack learn the same as the models one by one? And **guess:** how many times as long does a step of eight models in a stack take as a
# step of one model?

# %%
# %%guess eight_at_once --unit times
# Time of a step of a stack of eight models, divided by the time of one model's step
...

# %%
import time

SEEDS = (0, 1, 2)
one_by_one = [learn(fresh(8, seed), facts(24, seed), 5, seed) for seed in SEEDS]
stacked = learn_stack(
    [fresh(8, seed) for seed in SEEDS],
    torch.stack([facts(24, seed) for seed in SEEDS]),
    exposures=5,
    seeds=SEEDS,
)
for index, model in enumerate(one_by_one):
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, stacked[name][index], rtol=1e-2, atol=1e-3)
print("20 steps of three models: the same weights, one by one and in a stack")


def seconds(count):
    """Of one exposure of a stack of so many models."""
    rows = torch.stack([facts(24, seed) for seed in range(count)])
    models = [fresh(8, seed) for seed in range(count)]
    began = time.perf_counter()
    learn_stack(models, rows, 2, range(count))
    return (time.perf_counter() - began) / 2


times = [(seconds(1), seconds(8)) for _ in range(5)]  # in turn: noise affects both
one, eight = (min(column) for column in zip(*times, strict=True))
assert eight < 6 * one
beside("eight_at_once", predicted=1.0, measured=eight / one)

# %% [markdown]
# (The prediction is 1, as if starting operations were all that takes time. The arithmetic of eight models adds its part.) From here on, all seeds
# of a setting are trained in one stack.
#
# ## How full can it get?
#
# Now the measurement. We give models with 5,424 parameters 0.5 to 4 bits of facts for each parameter, and models with 1,880 parameters up to 8 bits,
# and let them read all of it 40 times. **Guess:** how many bits per parameter does a model know that was offered 8?

# %%
# %%guess held --unit bits
# Bits known per parameter after 40 exposures, by a model that was offered 8 bits
...


# %% [markdown]
# The settings are independent of each other, so ranks can share them, with no gradient to exchange. (Not every use of ranks is data parallelism.)
# Rank 0 trains the larger models and rank 1 the smaller ones, with one setting more.


# %%
def known_after(width, offered, exposures, device):
    """Bits known per parameter, of each seed. offered: bits of facts per parameter."""
    count = round(offered * size_of(width) / (VALUE * math.log2(WORDS)))  # whole facts
    rows = torch.stack([facts(count, seed) for seed in SEEDS])
    models = [fresh(width, seed, device) for seed in SEEDS]
    weights = learn_stack(models, rows, exposures, SEEDS)
    with torch.no_grad():
        losses = losses_of(models[0], weights, rows.to(device))
    return [bits_known(one, WORDS) / size_of(width) for one in losses]


SETTINGS = (16, (0.5, 1, 2, 4)), (8, (0.5, 1, 2, 4, 8))  # per rank: width, offers

# %%
# %%ranks -n 2 --pass known_after,SETTINGS --into swept
from workshop import report

width, offers = SETTINGS[rank]
report(known={offered: known_after(width, offered, 40, device) for offered in offers})

# %%
held = {width: swept[rank]["known"] for rank, (width, _) in enumerate(SETTINGS)}


def mean(values):
    return sum(values) / len(values)


offers, rows = SETTINGS[1][1], []
for width, by_offer in held.items():
    most = max(mean(bits) for bits in by_offer.values()) * size_of(width)
    bits = [f"{mean(by_offer[x]):.2f}" if x in by_offer else "-" for x in offers]
    rows.append((f"{size_of(width):,}", *bits, f"{most:,.0f}"))
    assert min(by_offer[0.5]) > 0.45
    assert min(by_offer[1]) > 0.8
    assert 1.1 < min(by_offer[4]) < max(by_offer[4]) < 1.5
assert abs(mean(held[16][4]) / mean(held[8][4]) - 1) < 0.2  # per parameter: about equal
assert abs(mean(held[8][8]) / mean(held[8][4]) - 1) < 0.1  # no more than if offered 4
head = "parameters", *(f"{offered:g} offered" for offered in offers)
about = "Bits known per parameter, by bits offered per parameter, after 40 exposures"
Table((*head, "most bits in all"), rows, about)

# %%
beside("held", measured=mean(held[8][8]))

# %%
show.bits_held(
    {f"{size_of(width):,} parameters": held[width] for width in (8, 16)},
    "bits of facts offered, per parameter",
    {"all that is offered": [0.5, 1, 2, 4, 8]},
)

# %% [markdown]
# Read the picture from the left. With half a bit per parameter, the models know nearly everything, and with one bit most of it. Then the curves bend
# and become flat. The smaller models show it best: they were offered eight bits instead of four, **twice as many facts, and know no more bits.** Both
# curves end at about the same height. So the capacity grows with the number of parameters: the models with 2.9 times as many parameters hold about
# three times as many bits.
#
# ## How often must a fact be read?
#
# Our models read each fact 40 times. Is the bend a limit of the model, or of this training? We offer the smaller model four bits per parameter and
# vary the number of exposures. **Guess:** it reads the facts 160 times instead of 40. How many bits per parameter does it know?

# %%
# %%guess after_160 --unit bits
# Bits known per parameter after 160 exposures, four bits per parameter offered
...

# %%
EXPOSURES = [(160,), (80, 20, 10)]  # per rank; the 160 are most of the work

# %%
# %%ranks --pass EXPOSURES --into read
report(known=[(times, known_after(8, 4, times, device)) for times in EXPOSURES[rank]])

# %%
by_exposures = {40: held[8][4]}
for rank in (0, 1):
    by_exposures |= dict(read[rank]["known"])
by_exposures = dict(sorted(by_exposures.items()))
rows = [(f"{times}", f"{mean(bits):.2f}") for times, bits in by_exposures.items()]
print(Table(("exposures", "bits known per parameter"), rows))
rising = [mean(bits) for bits in by_exposures.values()]
assert all(later > 1.05 * earlier for earlier, later in pairwise(rising))
assert rising[-1] / rising[-2] < rising[1] / rising[0]  # growth slows down
assert 1.7 < rising[-1] < 2.5
beside("after_160", measured=rising[-1])

# %%
show.bits_held(
    {"four bits per parameter offered": by_exposures}, "exposures of each fact", {}
)

# %% [markdown]
# So the bend was not a limit of the model alone. After 10 exposures little is known, and the curve still rises at 160. Always say after how many
# exposures a capacity was measured: ours is "1.3 bits per parameter at 40 exposures".
#
# What do larger models hold? Two papers measured it:
#
# | who | facts | model, training | bits per parameter |
# |---|---|---|---|
# | Allen-Zhu and Li, results 1 and 4 | invented people | GPT-2, 1 to 500 million parameters, 1,000 exposures | 2 |
# | the same | the same | 100 exposures | 1 |
# | Morris et al., section 3.2 | random tokens | GPT-2, up to 20 million parameters, a million steps, bf16 | 3.5 |
# | the same | the same | fp32 | 3.8 |
#
# These numbers and ours are of the same order. They need not be equal: the facts in these papers stand in English sentences or in longer rows, and
# our tiny models are trained with a far higher learning rate. Allen-Zhu and Li report two more results that we do not repeat here. At 100 exposures
# the gated MLP of LLaMA (which our model has too) holds up to 1.3 times less than a plain one, and with 1,000 there is no difference (results 5 to
# 7). A mixture of 32 experts holds only 1.3 times less than a dense model with as many parameters in all (result 9).
#
# ## What does quantization cost?
#
# A weight in fp32 has 32 bits and holds about two bits of facts, so there should be room to round it. We round the weights of trained models as in
# [53_quantization](../day5_adapt_compress/53_quantization.ipynb): 64 neighbors share a scale, chosen so that the largest of them gets the largest
# code.


# %%
def rounded(weights, bits, group=64):
    """Every matrix in groups of 64 weights with a scale each (absmax)."""
    largest_code, result = 2 ** (bits - 1) - 1, dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 3:  # (models, rows, columns); norms stay as they are
            groups = weight.flatten(1).unflatten(1, (-1, group))
            scales = groups.abs().amax(-1, keepdim=True) / largest_code
            result[name] = ((groups / scales).round() * scales).view_as(weight)
    return result


def trained(offered, exposures):
    """Three models, their weights and their facts."""
    count = round(offered * size_of(8) / (VALUE * math.log2(WORDS)))
    rows = torch.stack([facts(count, seed) for seed in SEEDS])
    models = [fresh(8, seed, device) for seed in SEEDS]
    weights = learn_stack(models, rows, exposures, SEEDS)
    weights = {name: weight.detach() for name, weight in weights.items()}
    return models[0], weights, rows.to(device)


# %% [markdown]
# We take two sets of models. The first set is full: it was offered four bits per parameter. The second has room to spare: it was offered half a
# bit, and knows all of it. Both read their facts 80 times. **Guess:** what share of its bits does a full model keep if each weight has 4 bits?

# %%
# %%guess left_in_int4
# Bits known with weights in int4, divided by bits known in fp32: a full model
...

# %%
left = {}
for name, offered in (("full", 4), ("has room", 0.5)):
    model, weights, rows = trained(offered, 80)
    for bits in (32, 8, 6, 5, 4, 3):
        used = weights if bits == 32 else rounded(weights, bits)
        with torch.no_grad():
            losses = losses_of(model, used, rows)
        left[name, bits] = [bits_known(one, WORDS) / size_of(8) for one in losses]
share = {key: mean(bits) / mean(left[key[0], 32]) for key, bits in left.items()}
kinds = "full", "has room"
rows = [
    (f"{bits}", *(f"{share[name, bits]:.0%}" for name in kinds))
    for bits in (32, 8, 6, 5, 4, 3)
]
assert share["full", 8] > 0.97
assert share["full", 6] > 0.85
assert 0.2 < share["full", 4] < 0.75
assert share["full", 3] < share["full", 4] < share["full", 5] < share["full", 6]
assert share["has room", 4] > share["full", 4] + 0.2
Table(("bits per weight", *kinds), rows, "Share of the bits that is kept")

# %%
beside("left_in_int4", predicted=0.7 / 2, measured=share["full", 4])

# %% [markdown]
# Eight bits cost nothing, even where the model is full. Below six bits, a full model loses facts quickly. A model that has room to spare can be
# rounded further, because it does not need its weights as exactly.
#
# Allen-Zhu and Li find the same pattern in models of real size. With int8 their models lose nothing, and int4 brings them from 2 bits per parameter
# down to 0.7 (section 1 and result 8, with GPTQ). The prediction above is 0.7 / 2. Do not read more than the pattern into it: their models are at
# least 500 times as large, and their method of rounding is different.
#
# The bits of facts for each byte of memory decide which format you want. By the numbers of the paper:

# %% tags=["nbval-check-output"]
FORMATS = {"bf16": (2.0, 16), "int8": (2.0, 8), "int4": (0.7, 4)}  # fact, weight bits
for name, (fact_bits, weight_bits) in FORMATS.items():
    print(f"{name}: {8 * fact_bits / weight_bits:.1f} bits of facts in a byte")

# %% [markdown]
# By these numbers a model in int8 knows more than a model with twice as many parameters in int4, although both take about the same number of bytes.
# (The scales are not counted. One of 16 bits for every 64 weights makes int4 take 4.25 bits per weight, and int8 8.25.)
#
# And by the numbers of our own full models, with their scales?

# %%
per_byte = {b: 8 * mean(left["full", b]) / (b + 16 / 64) for b in (8, 6, 5, 4)}
assert per_byte[4] > per_byte[8]
assert max(per_byte, key=per_byte.get) in (5, 6)
rows = [(f"{bits}", f"{fact_bits:.1f}") for bits, fact_bits in per_byte.items()]
Table(("bits per weight", "bits of facts in a byte"), rows)

# %% [markdown]
# **The two disagree.** In our models a byte holds more facts in int4 than in int8, and most with five or six bits per weight. But ours have 1,880
# parameters, were rounded with absmax and read their facts 80 times; those of the paper are GPT-2s with a million parameters and more, rounded with
# GPTQ. So do not take the best number of bits from either. If your model has to know facts, ask it for facts after you have quantized it, in each
# format that fits into your memory.
#
# ## Junk
#
# Real collections also hold text that nobody has to know, such as the serial numbers of a shop. We mix such **junk** into each batch: for each
# fact three others that are new every time and never come back. The facts themselves are read 60 times in each run, with junk and
# without, and the model has room for all of them: they have one bit for each parameter.
#
# Each row now begins with one more token. It is 0 for facts and for junk alike. So nothing tells the model which rows are worth learning.


# %%
def junk_behind(marker, ratio=3):
    """For each fact of a batch, new facts that never come back, behind a marker."""

    def make(batch, draws):
        count = ratio * batch.shape[1]
        size = count, NAME + VALUE
        rows = [torch.randint(WORDS, size, generator=draw) for draw in draws]
        first = torch.full((len(draws), count, 1), marker)
        return torch.cat([first, torch.stack(rows)], 2)

    return make


def known_beside(junk, count=24, exposures=60):
    """Bits known of facts, per parameter, if they are read among junk."""
    rows = torch.stack([facts(count, seed) for seed in SEEDS])
    rows = torch.cat([torch.zeros_like(rows[..., :1]), rows], 2)  # the marker of facts
    models = [fresh(8, seed, device) for seed in SEEDS]
    weights = learn_stack(models, rows, exposures, SEEDS, junk)
    with torch.no_grad():
        losses = losses_of(models[0], weights, rows.to(device))
    return [bits_known(one, WORDS) / size_of(8) for one in losses]


# %%
# %%guess among_junk
# Facts are read 60 times among three times as much junk. What share of the bits that
# it knows without junk does the model still learn?
...

# %%
alone = known_beside(None)
among = known_beside(junk_behind(marker=0))
for name, bits in (("facts alone", alone), ("among junk", among)):
    print(f"{name:<12} {', '.join(f'{one:.2f}' for one in bits)} bits per parameter")
assert mean(among) < 0.5 * mean(alone)
beside("among_junk", measured=mean(among) / mean(alone))

# %% [markdown]
# Junk cannot be learned, because each row comes only once. Still, it costs the facts most of their bits. A likely reason: on a junk row, a
# confident prediction almost always has a high loss. The model cannot tell which rows are junk, so it learns to be unsure of all rows. (There is
# another one: the loss is the mean over all rows of a batch, so among junk each fact counts only a quarter as much.)
#
# If this is the reason, a hint should help. We let the first token tell which rows are which. **Predict:** what happens if junk begins with the
# token 1, and facts with 0 as before?

# %%
# %%guess with_marker --choices nothing,some-bits-come-back,all-bits-come-back
# The first token tells junk from facts. How many of the bits lost to junk come back?
...

# %%
marked = known_beside(junk_behind(marker=1))
for name, bits in (("no marker", among), ("marker", marked), ("no junk", alone)):
    print(f"{name:<10} {mean(bits):.2f} bits per parameter")
assert 1.5 * mean(among) < mean(marked) < mean(alone)
back = (mean(marked) - mean(among)) / (mean(alone) - mean(among))
print(f"{back:.0%} of the lost bits come back")
choices = "nothing", "some-bits-come-back", "all-bits-come-back"
beside("with_marker", measured=choices[(back > 0.05) + (back > 0.95)])

# %% [markdown]
# One token brings back a good part of the bits, although each fact still counts only a quarter as much in the loss. Nobody told the model which
# marker is worth learning; it found out during training. In practice the marker is the **domain name** of a page, written in front of its text
# ("wikipedia.org"). Allen-Zhu and Li mix seven tokens of junk into one of facts. At 100 exposures their models then know up to 20 times less, and
# with a marker in front of the facts still half as much as without junk (results 10 and 12). Junk that repeats itself does no harm: if it describes
# the same 1,000 people again and again, the capacity is unchanged (result 11).
#
# ## How large must my model be?
#
# Now we go the other way round: the facts are given, and we want the number of parameters.
#
# ### Exercise: parameters for people


# %%
# %%exercise parameters_for
import math


def parameters_for(
    num_people: int,
    num_names: int,
    choices: list[int],
    bits_per_parameter: float,
) -> int:
    """Parameters of a model that knows the names and attributes of so many people."""
    ...


# %% [markdown]
# The people of Allen-Zhu and Li have 400 x 400 x 1,000 possible names, a gender (2), a birthday (12 months, 28 days, 200 years), a city of birth
# (200), a university (300), a major (100) and an employer (263). Without the names these are 47.6 bits (remark 4.4). For one person, only one
# possible name, and a model that holds one bit per parameter, your function has to return this number, rounded up.
#
# **Guess:** how many parameters does a model need for all 8 billion people of the world, if each is described in this way and read 1,000 times?
# (For so many people we take a list of names that is a thousand times as long.)

# %%
# %%guess for_all --unit billion
# Billions of parameters for 8 billion people, at 2 bits per parameter
...

# %%
PEOPLE = [2, 12, 28, 200, 200, 300, 100, 263]
NAMES = 400 * 400 * 1000
assert parameters_for(1, 1, PEOPLE, 1.0) == math.ceil(47.6)
rows = []
for count in (100_000, 1_000_000, 10_000_000, 100_000_000):
    needed = [parameters_for(count, NAMES, PEOPLE, bits) for bits in (1.0, 2.0, 0.7)]
    rows.append((f"{count:,}", *(f"{number / 1e6:,.1f}" for number in needed)))
everybody = parameters_for(8_000_000_000, 1000 * NAMES, PEOPLE, 2.0)
beside("for_all", calculated=everybody / 1e9)

# %%
head = "people", "read 100 times", "read 1,000 times", "read 1,000 times, int4"
Table(head, rows, "Millions of parameters")

# %% [markdown]
# The rule of the paper for your own plan is a little more careful: with one parameter for each 1.8 bits, all their models knew nearly everything
# after 1,000 exposures (result 1b).
#
# Most documents are not lists of people. How many bits of knowledge are in them? There is no exact answer, but there is a simple upper limit: the
# size of the compressed text, because the text can be restored from it word for word. The facts alone take less.

# %%
import lzma

from workshop.assets import text
from workshop.facts.catalogue import model as spec_of

rows = []
for name in ("smollm2-135m", "llama-3-8b"):
    size = spec_of(name).num_params
    rows.append((name, f"{size / 1e9:.2f}", f"{2 * size / 1e9:.2f}"))
head = "model", "billions of parameters", "billions of bits, 2 per parameter"
print(Table(head, rows), end="\n\n")
manual = "".join(text.load("manual").values()).encode()
packed = 8 * len(lzma.compress(manual, preset=9))
print(f"Python's reference manual: {len(manual):,} bytes, {packed:,} bits compressed;")
print(f"at most {packed / 2:,.0f} parameters at 1,000 exposures, {packed:,} at 100")
assert len(manual) > 2 * packed / 8
assert packed / 2 < 0.01 * spec_of("smollm2-135m").num_params

# %% [markdown]
# By this limit SmolLM2 has room for the whole manual in less than a hundredth of its parameters. Try it with a folder of your own. Two more numbers
# for orientation: the English Wikipedia has about 4.5 billion words (footnote 4 of the paper, as of 2024), and the paper estimates that Wikipedia
# and all English textbooks together contain fewer than 14 billion bits of knowledge, as much as 7 billion parameters hold. Both the estimate and
# the 2 bits assume 1,000 exposures, and for your own documents that is the harder part. Documents that the model must know have to be repeated or,
# better, rewritten in many ways. (In the paper's main data set, hardly any two of the 1,000 texts about a person are alike.)
#
# ### A slider that decides
#
# SmolLM2 has 135 million parameters. Move the number of people, and choose how often each fact is read and how the weights are kept; the bits per
# parameter are the paper's. **In which of the three ways can SmolLM2 know three million people?**

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import MEASURED, Picture, new_figure

BITS = {"100 times, 16 bits": 1.0, "1,000 times, int8": 2.0, "1,000 times, int4": 0.7}
WAYS = tuple(BITS)


def draw(people, read_and_kept):
    """Parameters needed by number of people, and two models."""
    figure, axis = new_figure(6.6, 3.0)
    bits, counts = BITS[read_and_kept], [10 ** (k / 8) for k in range(40, 65)]
    needed = [parameters_for(int(n), NAMES, PEOPLE, bits) for n in counts]
    axis.loglog(counts, needed, color=MEASURED)
    here = parameters_for(people, NAMES, PEOPLE, bits)
    axis.plot(people, here, "o", color=MEASURED)
    for name in ("smollm2-135m", "llama-3-8b"):
        size = spec_of(name).num_params
        axis.axhline(size, color="#888888", linestyle="--", linewidth=1)
        axis.text(counts[0], 1.1 * size, name, fontsize=8)
    axis.set(xlabel="people", ylabel="parameters needed", ylim=(1e6, 3e10))
    fits = here <= spec_of("smollm2-135m").num_params
    title = f"{people:,} people, {read_and_kept}: {here / 1e6:,.0f} "
    title += f"million parameters; SmolLM2 is {'large enough' if fits else 'too small'}"
    axis.set_title(title, fontsize=9, loc="left")
    return Picture(figure, title)


steps = tuple(n * 10**k for k in (5, 6, 7) for n in (1, 2, 3, 5))
explore(
    draw,
    [Control("people", 2_000_000, steps), Control("read_and_kept", WAYS[0], WAYS)],
)

# %%
smol = spec_of("smollm2-135m").num_params
three_million = {
    way: parameters_for(3_000_000, NAMES, PEOPLE, bits) for way, bits in BITS.items()
}
assert [way for way in WAYS if three_million[way] <= smol] == ["1,000 times, int8"]
rows = [(way, f"{needed / smol:.2f}") for way, needed in three_million.items()]
head = "read and kept", "parameters needed, divided by SmolLM2's"
Table(head, rows, "Three million people")

# %% [markdown]
# ## Tomorrow's script
#
# A sweep over ranks without this package. Each rank trains stacks of small networks of its own settings, and rank 0 collects what they know. If you
# start it again, it continues where the last run ended, also on a different number of ranks.

# %%
import os
import tempfile
from pathlib import Path

# %ranks stop
room = tempfile.TemporaryDirectory(prefix="capacity-")  # deleted when the kernel ends
folder = Path(room.name)
os.environ["CHECKPOINT"] = str(folder / "sweep.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/sweep.py
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
WORDS, VALUE, SEEDS, STEPS = 64, 4, 3, 20  # steps per epoch, one exposure each
SETTINGS = [(16, 2.0), (8, 2.0), (16, 0.5), (8, 0.5)]  # width, bits of facts offered


def network(width):
    """Yours; here: a name of two words in, the words of its value out."""
    hidden = nn.Linear(2 * width, 4 * width)
    head = nn.Linear(4 * width, VALUE * WORDS)
    words = nn.Embedding(WORDS, width)
    return nn.Sequential(words, nn.Flatten(), hidden, nn.GELU(), head)


def begin(setting):
    """Networks of all seeds as one stack, their facts, and the optimizer."""
    width, offered = setting
    torch.manual_seed(0)
    nets = [network(width).to(device) for _ in range(SEEDS)]
    size = sum(weight.numel() for weight in nets[0].parameters())
    count = round(offered * size / (VALUE * math.log2(WORDS)))
    weights, _ = stack_module_state(nets)
    names = torch.stack([torch.randperm(WORDS**2)[:count] for _ in range(SEEDS)])
    rows = torch.stack([names // WORDS, names % WORDS], 2).to(device)
    values = torch.randint(WORDS, (SEEDS, count, VALUE), device=device)
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    return nets[0], size, weights, rows, values, optimizer


checkpoint, first, saved = Path(os.environ.get("CHECKPOINT", "sweep.pt")), 0, {}
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    first, saved = state["epoch"] + 1, state["settings"]
mine = {setting: begin(setting) for setting in SETTINGS[rank::ranks]}
for setting, (_, _, weights, _, _, optimizer) in mine.items():
    if setting in saved:
        for name, weight in weights.items():
            weight.data.copy_(saved[setting]["weights"][name])
        optimizer.load_state_dict(saved[setting]["optimizer"])

for epoch in range(first, first + 3):
    results = {}
    for setting, (net, size, weights, rows, values, optimizer) in mine.items():

        def losses(weights, rows, values, net=net):
            logits = functional_call(net, weights, (rows,)).unflatten(1, (WORDS, VALUE))
            return nn.functional.cross_entropy(logits, values, reduction="none")

        for _ in range(STEPS):
            loss = vmap(losses)(weights, rows, values).mean((1, 2))
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
        with torch.no_grad():  # after the last update
            by_token = vmap(losses)(weights, rows, values)
        nats = (math.log(WORDS) - by_token).sum(2).clamp(min=0)  # saved, for each fact
        known = nats.sum().item() / math.log(2) / SEEDS / size
        loss = by_token.mean().item()
        kept = {name: weight.detach() for name, weight in weights.items()}
        state = {"weights": kept, "optimizer": optimizer.state_dict()}
        results[setting] = {"known": known, "loss": loss, **state}
    everything = [None] * ranks if rank == 0 else None
    dist.gather_object(results, everything)
    if rank == 0:
        settings = {key: value for part in everything for key, value in part.items()}
        mean = sum(value["loss"] for value in settings.values()) / len(settings)
        print(f"epoch {epoch}: mean loss {mean:.3f}")
        for (width, offered), value in sorted(settings.items()):
            line = f"{value['known']:.2f} of {offered:g} bits offered per parameter"
            print(f"  width {width}: {line}")
        part = checkpoint.with_suffix(".part")
        torch.save({"epoch": epoch, "settings": settings}, part)
        part.replace(checkpoint)  # so a half-written file never has this name
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("72_capacity")

# %% [markdown]
# ## What to take away
#
# - What a model knows is what it saves: the bits that a fact takes without the model, minus the bits it takes with it. Count only the tokens that
#   carry the fact.
# - The bits that a model knows grow with the facts it is offered, until it is full. **Where this happens grows with the number of parameters**:
#   ours held about 1.3 bits per parameter after 40 exposures, and published models hold 2 after 1,000.
# - A capacity without its number of exposures means little: the fewer exposures, the fewer bits.
# - Int8 costs no facts. With fewer bits facts are lost, first where the model is full. Which format holds most facts in a byte differs between models
#   and methods of rounding: measure it.
# - Junk costs facts although it cannot be learned. A marker in front, such as a domain name, brings part of them back.
# - The models of a sweep need no gradients from each other. Deal them out over ranks, and stack small ones with `vmap`.
#
# Next: [73_finetune](73_finetune.ipynb), how a model that continues a text becomes one that answers.
#
# ## Sources
#
# - Z. Allen-Zhu and Y. Li, *Physics of Language Models: Part 3.3, Knowledge Capacity Scaling Laws*, 2024,
#   [arXiv:2404.05405](https://arxiv.org/abs/2404.05405): section 1 (int4: 0.7 bits, the estimate of Wikipedia and textbooks), definition 4.3 and
#   remark 4.4 (bits of a person), results 1 (2 bits; 1.8 for nearly all), 4 (100 exposures), 5 to 7 (gated MLP), 8 (int8, int4), 9 (experts), 10
#   to 12 (junk, marker).
# - J. Morris et al., *How much do language models memorize?*, 2025, [arXiv:2505.24832](https://arxiv.org/abs/2505.24832): section 2.3 (no sample
#   counts less than 0), section 3.2 (uniform tokens; 3.5 to 3.6 bits per parameter; 3.51 in bf16 and 3.83 in fp32).
