# %% [markdown]
# # A model learns from its own answers: who waits for whom?
#
# - **You need** `22_ddp` (ranks that average gradients), `21_collectives` (broadcast) and `56_serving` (a token at a time).
# - **It takes** 50 minutes to read and try, about half a minute to run.
# - **What runs where:** all of it on two CPU ranks (gloo), and unchanged on GPUs. On a machine with two cores the times are those of two busy processes.
# - **Model and text:** the course's `TINY`, with 16 words. Its questions are four digits, the right answer is the same digits in order. Nobody has
#   to judge an answer: it can be checked.
# - **Links:** before this [71_data](71_data.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Until now each training token came from a file. Here the model writes them: it answers questions (the **rollout**), the answers are checked, and it
# trains on what it wrote. So a step has two jobs, and each needs what the other makes. Which rank does what, who waits, and what is lost if nobody waits?

# %%
# %load_ext workshop
import copy
from collections import deque
from dataclasses import replace

import torch

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.models.gpt import GPT, TINY

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
DIGITS, SEPARATOR = 4, 10
CONFIG = replace(TINY, vocab_size=16)
if device.type == "cpu":
    torch.set_num_threads(1)  # so small a model is slower with two


def questions(count, generator):
    """Four digits and a separator, (count, 5)."""
    digits = torch.randint(0, 10, (count, DIGITS), generator=generator)
    return torch.cat([digits, torch.full((count, 1), SEPARATOR)], 1).to(device)


def reward(texts):
    """1 for the digits in order, else 0: (count,). ``texts``: question and answer."""
    wanted = texts[:, :DIGITS].sort(1).values
    return (wanted == texts[:, DIGITS + 1 :]).all(1).float()


# %% [markdown]
# The model writes an answer token by token. (Nothing is cached here, so short are the texts.) And we need to know how likely it found what it wrote.


# %%
@torch.no_grad()
def answer(model, asked):
    """The rollout: question and answer, a token at a time, drawn by probability."""
    texts = asked
    for _ in range(DIGITS):
        probability = model(texts)[:, -1].softmax(-1)
        texts = torch.cat([texts, torch.multinomial(probability, 1)], 1)
    return texts


def log_p(model, texts):
    """Log-probability of each token of the answers, (count, 4)."""
    every = model(texts[:, :-1])[:, DIGITS:].log_softmax(-1)
    return every.gather(-1, texts[:, DIGITS + 1 :, None])[..., 0]


# %% [markdown]
# First it learns from examples, as every such model does, but we stop early: it is to know some answers and miss others.

# %%
torch.manual_seed(0)
draw = torch.Generator().manual_seed(0)
model = GPT(CONFIG).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(60):
    asked = questions(64, draw)
    examples = torch.cat([asked, asked[:, :DIGITS].sort(1).values], 1)
    loss = -log_p(model, examples).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
start = copy.deepcopy(model.state_dict())


def share_right(model):
    """Of 2,000 questions, each answered once."""
    return reward(answer(model, questions(2000, draw))).mean().item()


before = share_right(model)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {before:.0%} right")
assert 0.3 < before < 0.8

# %% [markdown]
# ## What an answer teaches
#
# GRPO (Shao et al., 2024) asks each question several times and compares the answers with each other. What was better than its group becomes likelier, what
# was worse less likely. No second model has to say how good an answer could have been.
#
# ### Exercise: how much better?


# %%
# %%exercise group_advantages
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question, (questions, answers)."""
    ...


# %% [markdown]
# If all eight answers to a question are right, or all are wrong, they teach nothing. **Predict:** what share of the questions is that? It depends on how often
# the model answers each of them right, and that differs from question to question.

# %%
# %%guess silent
# 8 answers to each question: the share of questions that teach nothing, 0 to 1
...

# %%
GROUP = 8
asked = questions(100, draw).repeat_interleave(64, 0)
chance = reward(answer(model, asked)).view(-1, 64).mean(1)  # of each question
predicted = (chance**GROUP + (1 - chance) ** GROUP).mean().item()
rewards = reward(answer(model, asked)).view(
    -1, GROUP
)  # new answers, in groups of eight
groups = group_advantages(rewards)
silent = (groups == 0).all(1).float().mean().item()
assert abs(silent - predicted) < 0.08
beside("silent", predicted=predicted, measured=silent)

# %% [markdown]
# They cost as much as the others. DAPO (Yu et al., 2025) leaves such groups out and asks further questions until the batch is full.
#
# The loss makes answers likelier by their advantage. Its gradient is a quotient of probabilities, now and when the answer was written:
#
# $$-\min\left(r A,\; clip(r, 0.8, 1.2)\, A\right), \qquad r = \frac{p_{now}(token)}{p_{then}(token)}$$
#
# As long as the weights have not changed, r is 1, and the gradient is that of $-A \log p$, the plain policy gradient. Let us see that before we rely on it.


# %%
def grpo_loss(model, texts, log_p_then, clip=0.2):
    """Equation 3 of DeepSeekMath, without the term that holds it near its beginning."""
    advantage = group_advantages(reward(texts).view(-1, GROUP)).view(-1, 1)
    ratio = (log_p(model, texts) - log_p_then).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def plain_loss(model, texts, log_p_then=None):
    """The policy gradient, which does not ask who wrote the answers."""
    advantage = group_advantages(reward(texts).view(-1, GROUP)).view(-1, 1)
    return -(advantage * log_p(model, texts)).mean()


texts = answer(model, questions(32, draw).repeat_interleave(GROUP, 0))
with torch.no_grad():
    then = log_p(model, texts)
weights = list(model.parameters())
by_ratio = torch.autograd.grad(grpo_loss(model, texts, then), weights)
by_logarithm = torch.autograd.grad(plain_loss(model, texts), weights)
for one, other in zip(by_ratio, by_logarithm, strict=True):
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
print("the same gradient, as long as the weights that wrote are those that train")

# %% [markdown]
# ## Answers of older weights
#
# Whoever does not want to wait trains on answers that older weights wrote. How old may they be? **Predict** which loss stands it: we train for 40 steps with
# answers of weights that are 0, 4 or 16 steps old.

# %%
# %%guess stands_it --choices both,only-the-ratio,neither
# Answers of weights that are 16 steps old: which loss still learns from them?
...


# %%
def learn(age, loss_of, seed=0, steps=40):
    """The share of right answers after learning from weights of this age."""
    torch.manual_seed(seed)
    model.load_state_dict(start)
    writer, kept = copy.deepcopy(model), deque(maxlen=age + 1)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-4, (0.9, 0.99), weight_decay=0)
    for _ in range(steps):
        kept.append(copy.deepcopy(model.state_dict()))
        writer.load_state_dict(kept[0])
        texts = answer(writer, questions(32, draw).repeat_interleave(GROUP, 0))
        with torch.no_grad():
            then = log_p(writer, texts)
        loss = loss_of(model, texts, then)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return share_right(model)


ratio = {age: learn(age, grpo_loss) for age in (0, 4, 16)}
plain = {0: ratio[0]} | {age: learn(age, plain_loss) for age in (4, 16)}
again = learn(16, grpo_loss, seed=1), learn(16, plain_loss, seed=1)
print("with the ratio:   ", {age: f"{share:.2f}" for age, share in ratio.items()})
print("without the ratio:", {age: f"{share:.2f}" for age, share in plain.items()})
print(f"16 steps old, another seed: {again[0]:.2f} and {again[1]:.2f}")
assert min(ratio[0], ratio[4]) > before + 0.1
assert min(ratio[16], again[0]) > before + 0.05
assert max(plain[16], again[1]) < before

# %%
stands_it = "only-the-ratio" if ratio[16] > plain[16] + 0.1 else "both"
beside("stands_it", measured=stands_it)
show.learned_by_age({"with the ratio": ratio, "without": plain}, before)

# %% [markdown]
# The two losses differ in nothing but r and its clip. Without them the model unlearns: an answer that has become unlikely meanwhile is pushed as
# hard as ever. With them a few steps of age cost nothing that we can see. That is the licence for what comes next.
#
# ## Two ranks, two jobs
#
# Rank 1 answers, rank 0 trains. In each step the weights go one way and the texts the other. **In turns**: rank 1 waits for the weights that rank 0 is making,
# then rank 0 waits for the texts. **At once**: rank 1 writes the next texts while rank 0 trains on the last ones, which are a step old. In the program the two
# differ in the order of three lines.


# %%
def train_step(model, optimizer, texts, then):
    """Loss, gradients, clip, update."""
    optimizer.zero_grad()
    grpo_loss(model, texts, then).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def roll_out(model, count, draw):
    """Texts, and what the weights that wrote them thought of each token."""
    texts = answer(model, questions(count, draw).repeat_interleave(GROUP, 0))
    with torch.no_grad():
        return texts, log_p(model, texts)


# %% [markdown]
# These ranks stay. Each has the model; what it does and when, it notes.

# %%
# %%ranks -n 2 --pass start,CONFIG,GROUP,train_step,roll_out
import time

from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workshop import report
from workshop.models.gpt import GPT

STEPS = 12


def begin(count):
    """The model at its start, this rank's part of a step, and a clock at zero."""
    torch.manual_seed(rank)
    model = GPT(CONFIG).to(device)
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, (0.9, 0.99), weight_decay=0)
    texts = torch.empty(count * GROUP, 9, dtype=torch.long, device=device)
    then = torch.empty(count * GROUP, 4, device=device)
    dist.barrier()
    return model, optimizer, [texts, then], time.perf_counter()


def timed(job, call, *what):
    """Do a job, note when."""
    began = time.perf_counter() - zero
    made = call(*what)
    if device.type == "cuda":
        torch.cuda.synchronize()
    done.append((job, began, time.perf_counter() - zero))
    return made


# %% [markdown]
# In turns: weights to rank 1, a rollout with them, texts to rank 0, a training step.

# %%
# %%ranks --into in_turns
draw, done, ages, sent = torch.Generator().manual_seed(7), [], [], 0
model, optimizer, batch, zero = begin(32)
for step in range(STEPS):
    flat = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(flat, 0)
    if rank == 1:
        vector_to_parameters(flat, model.parameters())
        batch, written_by = list(timed("rollout", roll_out, model, 32, draw)), step
    version = torch.tensor([written_by if rank == 1 else -1], device=device)
    for tensor in (*batch, version):
        dist.broadcast(tensor, 1)
    if rank == 0:
        timed("train", train_step, model, optimizer, *batch)
        ages.append(step - version.item())
    sent += flat.nbytes if rank == 0 else sum(tensor.nbytes for tensor in batch)
report(done=done, ages=ages, sent=sent, seconds=time.perf_counter() - zero)


# %%
def typical(run, rank, job):
    """The median second of a job."""
    times = sorted(end - begin for name, begin, end in run[rank]["done"] if name == job)
    return times[len(times) // 2]


rollout, training = typical(in_turns, 1, "rollout"), typical(in_turns, 0, "train")
print(f"a rollout {1e3 * rollout:.0f} ms, a training step {1e3 * training:.0f} ms")

# %% [markdown]
# At once: the texts that rank 1 has ready go over first, then the weights, and then both work. **Predict** from these two times: how many times sooner is a
# step done than in turns?

# %%
# %%guess sooner
# Seconds of a step in turns, divided by seconds of a step at once
...

# %%
# %%ranks --into at_once
draw, done, ages, sent = torch.Generator().manual_seed(7), [], [], 0
model, optimizer, batch, zero = begin(32)
written_by = 0
if rank == 1:  # the first texts; from here on it is one step ahead
    batch = list(timed("rollout", roll_out, model, 32, draw))
for step in range(STEPS):
    version = torch.tensor([written_by if rank == 1 else -1], device=device)
    for tensor in (*batch, version):
        dist.broadcast(tensor, 1)
    flat = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(flat, 0)
    if rank == 0:
        timed("train", train_step, model, optimizer, *batch)
        ages.append(step - version.item())
    elif step < STEPS - 1:
        vector_to_parameters(flat, model.parameters())
        batch, written_by = list(timed("rollout", roll_out, model, 32, draw)), step
    sent += flat.nbytes if rank == 0 else sum(tensor.nbytes for tensor in batch)
report(done=done, ages=ages, sent=sent, seconds=time.perf_counter() - zero)

# %%
num_params = sum(p.numel() for p in model.parameters())
assert len(list(model.parameters())) == 21
texts_bytes = 32 * GROUP * (9 * 8 + 4 * 4)  # tokens in int64, log-probabilities in fp32
for name, run in (("in turns", in_turns), ("at once", at_once)):
    print(f"{name}: texts are {max(run[0]['ages'])} steps old", end="; ")
    print(f"weights {run[0]['sent']:,} B, texts {run[1]['sent']:,} B sent")
    assert run[0]["sent"] == 12 * 4 * num_params
    assert run[1]["sent"] == 12 * texts_bytes
assert set(in_turns[0]["ages"]) == {0}
assert at_once[0]["ages"] == [0] + 11 * [1]

# %% [markdown]
# The age is what we asked for: 0 in turns, 1 at once. The bytes are the weights in one direction and the texts in the other, and the weights are the larger part
# even here. Now the time: a step in turns is the sum of both jobs, a step at once the longer of them.

# %%
sooner = in_turns[0]["seconds"] / at_once[0]["seconds"]
assert sooner > 0.7  # above 1 on two free cores; here others may need them
expected = (rollout + training) / max(rollout, training)
beside("sooner", predicted=expected, measured=sooner)

# %%
first = {"in turns": in_turns, "at once": at_once}
show.two_jobs(
    {name: {r: run[r]["done"][2:7] for r in (0, 1)} for name, run in first.items()}
)

# %% [markdown]
# ## And if every rank does both?
#
# There is a third way, the usual one: each rank answers half of the questions, then each trains on its half, and gradients are averaged as in
# [22_ddp](../day2_data_parallel/22_ddp.ipynb). Nobody waits for another job, and no text is old.

# %%
# %%ranks --into both
draw, done = torch.Generator().manual_seed(7 + rank), []
model, optimizer, batch, zero = begin(16)
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: gradient / world_size)
for step in range(STEPS):
    texts, then = timed("rollout", roll_out, model, 16, draw)
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        for parameter in model.parameters()
    ]
    timed("train", train_step, model, optimizer, texts, then)
    for hook in hooks:
        hook.remove()
mine = parameters_to_vector(model.parameters()).detach()
theirs = mine.clone()
dist.broadcast(theirs, 0)
report(done=done, same=bool(torch.equal(mine, theirs)))
report(seconds=time.perf_counter() - zero)

# %%
assert both[0]["same"]
assert both[1]["same"]
expected = {
    "in turns": (in_turns, rollout + training),
    "at once": (at_once, max(rollout, training)),
    "both do both": (both, (rollout + training) / 2),
}
rows = [
    (name, f"{1e3 * seconds:.0f} ms", f"{1e3 * run[0]['seconds'] / 12:.0f} ms")
    for name, (run, seconds) in expected.items()
]
Table(("", "jobs alone, predicted", "a step, measured"), rows)

# %% [markdown]
# (What is measured has the messages in it, of the third way those of 21 gradients, and on a machine with two cores all other work.) By the formula the third way is never slower than
# the second: half of the sum is at most the longer job. **To split the ranks gains nothing by itself.** Why do large runs do it? Because a rollout does not get
# faster by more GPUs as training does: it waits for its longest answer. APRIL's authors (Zhou et al., 2025) measured more than 90 % of the time there. And a server
# for inference wants other settings than a trainer: other cuts, other memory, FP8.
#
# What that brings is published. Noukhovitch et al. (2024, table 1) trained Llama 3.1 8B on eight GPUs, of which one wrote: a compute time of 230 in turns became 142 at once, and
# answers won as often. If our formula holds there, what was hidden had been this much of a step:

# %% tags=["nbval-check-output"]
hidden = 1 - 142 / 230
print(f"hidden: {hidden:.0%} of a step")
assert round(hidden, 2) == 0.38  # the paper's table: 38 % faster

# %% [markdown]
# ## How many GPUs for which job?
#
# ### Exercise: split them


# %%
# %%exercise split_gpus
def split_gpus(num_gpus: int, rollout_seconds: float, train_seconds: float) -> int:
    """How many of the GPUs answer questions while the others train."""
    ...


# %% [markdown]
# Llama 3 8B on 64 H100. A step asks 512 questions 16 times each, with answers of 1,000 tokens. Both jobs are predicted: the rollout as a server of
# [56_serving](../day5_adapt_compress/56_serving.ipynb) that works on 128 answers at once, the training as a step of FSDP. **Guess** how many GPUs write:

# %%
# %%guess writing
# Of 64 H100, how many should write answers while the others train?
...

# %%
from workshop import predict_step
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.serving import Serving, predict_serving

GPUS, ANSWERS, PROMPT, OUTPUT = 64, 512 * 16, 200, 1000
server = Serving(Run("llama-3-8b", "1xH100", Layout(), micro_batch=1, seq_len=2048))
written = predict_serving(server, PROMPT, OUTPUT, batch=128).tokens_per_second
sharded = Layout(shard=8, zero=3, precision="fsdp-bf16")
trainer = Run("llama-3-8b", "8xH100", sharded, micro_batch=4, seq_len=1200)
trained = predict_step(trainer).tokens_per_second / 8
rollout_alone = ANSWERS * OUTPUT / written
train_alone = ANSWERS * (PROMPT + OUTPUT) / trained
writing = split_gpus(GPUS, rollout_alone, train_alone)
print(f"one H100 writes {written:,.0f} tokens/s and trains on {trained:,.0f}")
print(f"alone: {rollout_alone:,.0f} s to write, {train_alone:,.0f} s to train")
beside("writing", calculated=writing)

# %%
counts = range(1, GPUS)
show.split_curve(
    {
        "rollout": [rollout_alone / count for count in counts],
        "train": [train_alone / (GPUS - count) for count in counts],
    },
    writing,
    (rollout_alone + train_alone) / GPUS,
)

# %% [markdown]
# On paper the best split is no quicker than all GPUs in turns (the dashed line), as we found on two ranks. The formula divides a rollout by its GPUs; in truth each has
# fewer answers to work on at once, and its longest one is as long as before. Measure your own two curves, and put your function between them.
#
# ## Tomorrow's script
#
# Both jobs on every rank, with plain DDP and nothing of this workshop.

# %%
import os
import tempfile
from pathlib import Path

# %ranks stop
room = tempfile.TemporaryDirectory(prefix="rl-")  # goes with the kernel
folder = Path(room.name)
os.environ["CHECKPOINT"] = str(folder / "learn_from_answers.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/learn_from_answers.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
QUESTIONS, GROUP, STEPS = 64, 8, 40  # of a step, on each rank; of an epoch

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(10, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
)
model = DistributedDataParallel(model.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
checkpoint, first = Path(os.environ.get("CHECKPOINT", "learn_from_answers.pt")), 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1
torch.manual_seed(1000 * first + rank)  # each rank asks other questions

for epoch in range(first, first + 3):
    wrong = torch.zeros(1, device=device)
    for _ in range(STEPS):
        asked = torch.randint(0, 10, (QUESTIONS, 1), device=device).expand(-1, GROUP)
        with torch.no_grad():  # the rollout: the right answer is one more, modulo 10
            answers = torch.distributions.Categorical(
                logits=model.module(asked)
            ).sample()
        rewards = (answers == (asked + 1) % 10).float()
        spread = rewards.std(1, keepdim=True) + 1e-6
        advantage = (rewards - rewards.mean(1, keepdim=True)) / spread
        log_p = model(asked).log_softmax(-1).gather(-1, answers[..., None])[..., 0]
        loss = -(advantage * log_p).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wrong += (1 - rewards.mean()) / STEPS
    dist.all_reduce(wrong)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {wrong.item() / ranks:.3f} (wrong answers)")
        weights, moments = model.module.state_dict(), optimizer.state_dict()
        state = {"model": weights, "optimizer": moments, "epoch": epoch}
        torch.save(state, checkpoint)
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("75_rl_over_ranks")

# %% [markdown]
# ## What to take away
#
# - A step has two jobs, the rollout and the training, and each waits for the other: for weights, or for texts.
# - **An answer is judged by its group**: better than the others, or worse. Groups in which all are alike teach nothing, and a formula says how many they are.
# - As long as the weights that wrote are those that train, GRPO's gradient is the plain policy gradient. Later it is not, and **without the ratio the model
#   unlearns**. With it a few steps of age cost nothing that we could see.
# - In turns a step is the sum of both jobs, at once the longer of them. Ranks that do both need half of each: to split gains where a rollout does not
#   get faster by more GPUs.
# - What goes over the wire is all the weights in each step, and hardly any text.
#
# ## Sources
#
# - Z. Shao et al., *DeepSeekMath*, 2024, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1 (GRPO, equation 3).
# - J. Schulman et al., *Proximal Policy Optimization Algorithms*, 2017, [arXiv:1707.06347](https://arxiv.org/abs/1707.06347), equation 7 (the clip).
# - Q. Yu et al., *DAPO*, 2025, [arXiv:2503.14476](https://arxiv.org/abs/2503.14476), section 3.2 (dynamic sampling).
# - M. Noukhovitch et al., *Asynchronous RLHF*, 2024, [arXiv:2410.18252](https://arxiv.org/abs/2410.18252), table 1 (compute time 230 and 142, 57.2 % of wins both times).
# - Y. Zhou et al., *APRIL*, 2025, [arXiv:2509.18521](https://arxiv.org/abs/2509.18521), abstract (rollouts: more than 90 % of the time).
