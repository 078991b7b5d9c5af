# %% [markdown]
# # A model learns from its own answers: who waits for whom?
#
# - **You need** `22_ddp` (ranks that average gradients), `21_collectives` (broadcast) and `56_serving` (writing one token at a time).
# - **It takes** 50 minutes to read and try, about half a minute to run.
# - **What runs where:** everything runs on two CPU ranks (gloo), and unchanged on GPUs. On a machine with two cores, the times are those of two busy
#   processes.
# - **Model and text:** the course's `TINY`, with a vocabulary of 16 tokens. A question consists of four digits, and the right answer is the same
#   digits in ascending order. Nobody has to judge an answer, because a program can check it.
# - **Links:** before this [74_preferences](74_preferences.ipynb), after it [81_capstone](../day8_capstone/81_capstone.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Until now every training token came from a file. Here the model writes them itself: it answers questions (the **rollout**), a program checks the
# answers, and the model trains on what it wrote. A step therefore has two jobs, and each needs the other's result. Which rank does which job, who
# waits, and what do we lose if nobody waits?

# %%
# %load_ext workshop
import copy
from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.models.gpt import GPT, TINY

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
DIGITS, SEPARATOR = 4, 10
CONFIG = replace(TINY, vocab_size=16)
if device.type == "cpu":
    torch.set_num_threads(1)  # one thread is enough for such a small model


def draw_questions(count, generator):
    """Four digits and a separator, (count, 5), on the CPU."""
    digits = torch.randint(0, 10, (count, DIGITS), generator=generator)
    return torch.cat([digits, torch.full((count, 1), SEPARATOR)], 1)


def reward(texts):
    """1 for the digits in order, else 0, (count,). texts: with their answers."""
    wanted = texts[:, :DIGITS].sort(1).values
    return (wanted == texts[:, DIGITS + 1 :]).all(1).float()


# %% [markdown]
# The model writes an answer token by token. (It computes the whole text again for each token. The texts are so short that we do without a cache.) We
# also need to know how likely each token of an answer is under a given model.


# %%
@torch.no_grad()
def answer(model, questions):
    """The rollout: question and answer, a token at a time, drawn by probability."""
    texts = questions.to(next(model.parameters()).device)
    for _ in range(DIGITS):
        probability = model(texts)[:, -1].softmax(-1)
        texts = torch.cat([texts, torch.multinomial(probability, 1)], 1)
    return texts


def log_p(model, texts):
    """Log-probability of each token of the answers, (count, 4)."""
    every = model(texts[:, :-1])[:, DIGITS:].log_softmax(-1)
    return every.gather(-1, texts[:, DIGITS + 1 :, None])[..., 0]


# %% [markdown]
# First the model learns from examples, which are questions with their right answers. We stop early, so that it knows some answers and misses others.

# %%
torch.manual_seed(0)
draw = torch.Generator().manual_seed(0)
model = GPT(CONFIG).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(60):
    questions = draw_questions(64, draw)
    examples = torch.cat([questions, questions[:, :DIGITS].sort(1).values], 1).to(
        device
    )
    loss = -log_p(model, examples).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
start = {name: w.cpu().clone() for name, w in model.state_dict().items()}


def share_right(model):
    """Of 2,000 questions, each answered once."""
    return reward(answer(model, draw_questions(2000, draw))).mean().item()


before = share_right(model)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {before:.0%} right")
assert 0.3 < before < 0.8

# %% [markdown]
# ## What an answer teaches
#
# GRPO (*group relative policy optimization*; Shao et al., 2024) asks each question several times. The answers to one question form a **group**, and
# they are compared with each other. Training makes an answer likelier if it was better than its group, and less likely if it was worse. The number
# that says how much better or worse is its **advantage**. Earlier methods train a second model to say how good an answer could have been; here the
# group provides the comparison.
#
# ### Exercise: how much better?


# %%
# %%exercise group_advantages
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    ...


# %% [markdown]
# We ask each question eight times. If all eight answers are right or all are wrong, every advantage is 0, and the model learns nothing from them.
# **Predict:** for what share of the questions does this happen? If the model answers a question correctly with probability p, all eight answers are
# right with probability $p^8$ and all are wrong with probability $(1 - p)^8$. But p differs from question to question.

# %%
# %%guess silent
# With 8 answers to each question, what share of the questions teaches nothing, 0 to 1?
...

# %%
GROUP = 8
questions = draw_questions(100, draw).repeat_interleave(64, 0)
chance = reward(answer(model, questions)).view(-1, 64).mean(1)  # for each question
predicted = (chance**GROUP + (1 - chance) ** GROUP).mean().item()
new_answers = answer(model, questions)
groups = group_advantages(reward(new_answers).view(-1, GROUP))
silent = (groups.abs() < 1e-3).all(1).float().mean().item()
assert abs(silent - predicted) < 0.08
beside("silent", predicted=predicted, measured=silent)

# %% [markdown]
# Such groups cost as much as the others. DAPO (Yu et al., 2025) leaves them out and asks further questions until the batch is full.
#
# Now we need the loss. Let A be the advantage of an answer, and r the ratio of two probabilities of a token: its probability now, and its
# probability when the answer was written.
#
# $$-\min\left(r A,\; \text{clip}(r, 0.8, 1.2)\, A\right), \qquad r = \frac{p_\text{now}(\text{token})}{p_\text{then}(\text{token})}$$
#
# The clip limits how far the model moves. Once a token of a good answer (A > 0) has become 20 % likelier, or a token of a bad answer 20 % less
# likely, its gradient is 0 and it is not pushed any further.
#
# As long as the weights have not changed, r is 1, and the gradient is that of $-A \log p$. This is called the plain **policy gradient**, because a
# model that acts by probabilities, like ours, is called a policy. The next cell checks that the two gradients are equal. (DeepSeekMath has another
# term, KL, which keeps the model close to the one it started from. We leave it out, as DAPO does.)


# %%
def grpo_loss(model, texts, log_p_then, clip=0.2):
    """Equation 3 of DeepSeekMath, without its KL term."""
    advantage = group_advantages(reward(texts).view(-1, GROUP)).view(-1, 1)
    ratio = (log_p(model, texts) - log_p_then).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def plain_loss(model, texts, log_p_then=None):
    """The policy gradient, which does not ask who wrote the answers."""
    advantage = group_advantages(reward(texts).view(-1, GROUP)).view(-1, 1)
    return -(advantage * log_p(model, texts)).mean()


texts = answer(model, draw_questions(32, draw).repeat_interleave(GROUP, 0))
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
# If you do not want to wait for new answers, you can train on answers that older weights wrote. How old may these weights be? We train for 40 steps
# on answers of weights that are up to 0, 4 or 16 steps old, with each of the two losses. ("Up to", because no weights are older than the first ones:
# with 16, the age grows for 16 steps, and is 12.6 on average.) **Predict:** which loss still learns when answers are up to 16 steps old?

# %%
# %%guess stands_it --choices both,only-the-ratio,neither
# Answers of weights that are up to 16 steps old: which loss still learns from them?
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
        texts = answer(writer, draw_questions(16, draw).repeat_interleave(GROUP, 0))
        with torch.no_grad():
            then = log_p(writer, texts)
        loss = loss_of(model, texts, then)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return share_right(model)


ratio = {age: learn(age, grpo_loss) for age in (0, 4, 16)}
# At age 0 both losses have the same gradient, as the cell above has shown
plain = {0: ratio[0]} | {age: learn(age, plain_loss) for age in (4, 16)}
again = learn(16, grpo_loss, seed=1), learn(16, plain_loss, seed=1)

# %%
assert min(ratio[0], ratio[4]) > before + 0.1
assert ratio[4] > ratio[0] - 0.1
assert min(ratio[16], again[0]) > before + 0.05
assert (plain[16] + again[1]) / 2 < before
assert plain[16] < plain[4] - 0.05
runs = {"with the ratio": (*ratio.values(), again[0])}
runs["without"] = (*plain.values(), again[1])
rows = [(name, *(f"{one:.2f}" for one in shares)) for name, shares in runs.items()]
head = "loss", "age 0", "up to 4", "up to 16", "up to 16, another seed"
Table(head, rows, f"Share of right answers after 40 steps; before: {before:.2f}")

# %%
stands_it = "both" if plain[16] > before else "only-the-ratio"  # ratio: asserted above
beside("stands_it", measured=stands_it)

# %%
show.learned_by_age({"with the ratio": ratio, "without": plain}, before)

# %% [markdown]
# The two losses differ only in r and its clip. With them the model learns from answers of all three ages, and an age of four steps costs little in
# such a short run: fewer than ten of a hundred answers. So you can train without waiting for the newest weights. Without them, answers that are up
# to 16 steps old do far more harm than those that are up to 4 steps old, and the model ends up worse than before. The plain loss pushes a wrong
# answer down just as hard even if it has become unlikely in the meantime.
#
# **In practice r is not 1 even at age 0.** An inference engine such as vLLM writes the answers. It computes the same weights with other kernels and
# often fewer bits, so its probabilities differ a little from the trainer's. One remedy is a second ratio, the trainer's probability divided by the
# engine's, with an upper limit (*truncated importance sampling*; Yao et al., 2025).
#
# Real answers also differ in length. GRPO averages over the tokens of each answer first, so a token of a long answer counts less. DAPO averages over
# all tokens of a group, and Dr. GRPO (Liu et al., 2025) divides by no length at all. All our answers have four tokens, so this choice would not
# matter here.
#
# ## Two ranks, two jobs
#
# Rank 1 answers and rank 0 trains. In each step the weights go from rank 0 to rank 1, and the texts go from rank 1 to rank 0. There are two ways to
# do this. **In turns**: rank 1 waits for the weights that rank 0 is computing, then rank 0 waits for the texts. **At once**: rank 1 writes the next
# texts while rank 0 trains on the last ones, which are then one step old. The two programs below differ in little more than the order of their
# lines.


# %%
def train_step(model, optimizer, texts, then):
    """Loss, gradients, clip, update."""
    optimizer.zero_grad()
    grpo_loss(model, texts, then).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def roll_out(model, count, draw):
    """Texts, and what the weights that wrote them thought of each token."""
    texts = answer(model, draw_questions(count, draw).repeat_interleave(GROUP, 0))
    with torch.no_grad():
        return texts, log_p(model, texts)


# %% [markdown]
# Each rank holds the model, and records when each of its jobs begins and ends.

# %%
# %%ranks -n 2 --pass start,CONFIG,GROUP,DIGITS,train_step,roll_out
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
    shape = count * GROUP, DIGITS + 1 + DIGITS  # question, separator, answer
    texts = torch.empty(shape, dtype=torch.long, device=device)
    then = torch.empty(count * GROUP, DIGITS, device=device)
    dist.barrier()
    return model, optimizer, [texts, then], time.perf_counter()


def now():
    """Seconds since the beginning; a GPU finishes first what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - zero


def timed(job, call, *what):
    """Do a job, note when."""
    began = now()
    made = call(*what)
    done.append((job, began, now()))
    return made


# %% [markdown]
# In turns: weights go to rank 1, it does a rollout with them, the texts go to rank 0, and rank 0 does a training step.

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
report(done=done, ages=ages, sent=sent)


# %%
def typical(run, rank, job):
    """The median second of a job."""
    return median(end - begin for name, begin, end in run[rank]["done"] if name == job)


def step_seconds(run):
    """The median second from one training step's beginning to the next one's."""
    begins = [begin for name, begin, _ in run[0]["done"] if name == "train"]
    return median(later - begin for begin, later in pairwise(begins))


rollout, training = typical(in_turns, 1, "rollout"), typical(in_turns, 0, "train")
print(f"a rollout {1e3 * rollout:.0f} ms, a training step {1e3 * training:.0f} ms")

# %% [markdown]
# At once: rank 1 sends the texts that are ready, rank 0 sends the weights, and then both work. **Predict** from these two times: how many times as
# long is a step in turns as a step at once?

# %%
# %%guess sooner
# What is the time of a step in turns, divided by the time of a step at once?
...

# %%
# %%ranks --into at_once
draw, done, ages, sent = torch.Generator().manual_seed(7), [], [], 0
model, optimizer, batch, zero = begin(32)
written_by = 0
if rank == 1:  # writes the first texts; from here on, rank 1 is one step ahead
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
report(done=done, ages=ages, sent=sent)

# %%
num_params = sum(p.numel() for p in model.parameters())
texts_bytes = 32 * GROUP * (9 * 8 + 4 * 4)  # tokens in int64, log-probabilities in fp32
rows = []
for name, run in (("in turns", in_turns), ("at once", at_once)):
    sent = [f"{run[r]['sent']:,} B" for r in (0, 1)]
    rows.append((name, f"{max(run[0]['ages'])}", *sent))
    assert run[0]["sent"] == 12 * 4 * num_params
    assert run[1]["sent"] == 12 * texts_bytes
assert set(in_turns[0]["ages"]) == {0}
assert at_once[0]["ages"] == [0] + 11 * [1]
head = "", "age of the oldest texts, in steps", "weights sent", "texts sent"
Table(head, rows, "12 steps")

# %% [markdown]
# The ages are as intended: 0 in turns, 1 at once. (The first texts of the run at once have age 0, because the first weights wrote them.) The weights
# go one way and the texts the other, and even in this small example the weights are the larger part. Now we look at the time. A step in turns should
# take the sum of both jobs, and a step at once the longer of the two:


# %%
def while_rank_1_wrote(run):
    """How many of rank 0's training steps went on while rank 1 wrote."""
    wrote = [(begin, end) for _, begin, end in run[1]["done"]]
    trained = [(begin, end) for _, begin, end in run[0]["done"]]
    return sum(any(b < end and begin < e for b, e in wrote) for begin, end in trained)


print(f"at once, {while_rank_1_wrote(at_once)} of 12 training steps while rank 1 wrote")
assert while_rank_1_wrote(at_once) > 2
assert step_seconds(in_turns) > 0.8 * (rollout + training)
sooner = step_seconds(in_turns) / step_seconds(at_once)
expected = (rollout + training) / max(rollout, training)
beside("sooner", predicted=expected, measured=sooner)

# %%
show.two_jobs(
    {
        "in turns": {r: in_turns[r]["done"][2:7] for r in (0, 1)},
        "at once": {
            0: at_once[0]["done"][2:7],
            1: at_once[1]["done"][3:8],
        },  # rank 1 is one job ahead
    }
)

# %% [markdown]
# ## And if every rank does both?
#
# There is a third way. Each rank answers half of the questions and then trains on its half, and the gradients are averaged as in
# [22_ddp](../day2_data_parallel/22_ddp.ipynb). Nobody waits for a different job, and no text is old.

# %%
# %%ranks --into both
from torch.nn.parallel import DistributedDataParallel

draw, done = torch.Generator().manual_seed(7 + rank), []
model, optimizer, batch, zero = begin(16)
ddp = DistributedDataParallel(model)  # averages the gradients in backward
for step in range(STEPS):
    texts, then = timed("rollout", roll_out, model, 16, draw)  # nothing to send
    timed("train", train_step, ddp, optimizer, texts, then)
mine = parameters_to_vector(model.parameters()).detach()
of_rank_0 = mine.clone()
dist.broadcast(of_rank_0, 0)
report(done=done, same=bool(torch.equal(mine, of_rank_0)))

# %%
assert all(both[r]["same"] for r in (0, 1))
in_half = (rollout + training) / 2
ways = {  # run, rank that writes, the formula, how the jobs of the run add up
    "in turns": (in_turns, 1, rollout + training, sum),
    "at once": (at_once, 1, max(rollout, training), max),
    "each rank does both": (both, 0, in_half, sum),
}
rows = []
for name, (run, writer, seconds, together) in ways.items():
    jobs = typical(run, writer, "rollout"), typical(run, 0, "train")
    times = *jobs, seconds, together(jobs), step_seconds(run)
    rows.append((name, *(f"{1e3 * one:.0f} ms" for one in times)))
by_formula = "a step by the formula", "a step by its own two jobs", "a step, measured"
Table(("", "rollout", "training", *by_formula), rows)

# %% [markdown]
# The formula takes the times of the two jobs from the run in turns. A job need not take as long in the other runs: where both ranks work at once they
# share one machine, and half of the questions may take more than half of the time. So the table shows the jobs of each run, too, and what they make
# a step. The difference between its last two columns is what the messages and the waiting add. This page shows the times of one run, and yours may
# come in another order. The ratio of the first two ways can even fall below 1, or exceed 2, the most that the formula allows.
#
# By the formula, the third way is never slower than the second, because half of the sum is at most the longer job. **Splitting the ranks gains
# nothing by itself.** Why do large runs still do it? A server that writes needs different settings from a trainer: a different way to shard the
# weights, different memory, FP8. And the formula leaves something out, which the end of this lesson adds.
#
# Published results show what working at once can gain. Noukhovitch et al. (2024, table 1) trained Llama 3.1 8B on eight GPUs, one of which wrote
# answers. Their "compute time" is 230 in turns and 142 at once, and both models won equally often against answers written by people. Suppose that
# there, too, a step in turns is the sum of both jobs and a step at once is the longer one. The shorter job was then this share of a step in turns:

# %% tags=["nbval-check-output"]
hidden = 1 - 142 / 230
print(f"hidden behind the longer job: {hidden:.0%} of a step")
assert hidden < 0.5  # the shorter of two jobs is at most half of their sum

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
# As an example we take Llama 3 8B on 64 H100. A step asks 512 questions 16 times each, with answers of 1,000 tokens. Nothing is measured here; both
# jobs are predicted. The rollout is a server as in [56_serving](../day5_adapt_compress/56_serving.ipynb) that works on 128 answers at once, and the
# training is a step of FSDP. **Guess:** how many of the GPUs should write?

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
in_turns_alone = rollout_alone + train_alone
print(f"alone: {rollout_alone:,.0f} s to write, {train_alone:,.0f} s to train")
print(f"{rollout_alone / in_turns_alone:.0%} of a step in turns is rollout")
split_step = max(rollout_alone / writing, train_alone / (GPUS - writing))
assert split_step < 1.03 * in_turns_alone / GPUS
beside("writing", calculated=writing)

# %%
counts = range(1, GPUS)
show.split_curve(
    {
        "rollout": [rollout_alone / count for count in counts],
        "train": [train_alone / (GPUS - count) for count in counts],
    },
    writing,
    in_turns_alone / GPUS,
)

# %% [markdown]
# On paper the best split is no faster than all GPUs doing both jobs in turns (the dashed line), as the formula also gave for our two ranks.
#
# ### More GPUs
#
# But the formula divides the time of a rollout by the number of GPUs, as if each still worked on 128 answers at once. A step has 8,192 answers. On 64
# GPUs in turns that is 128 for each, and on 1,024 GPUs only 8. For each new token a GPU reads all weights, whether for 128 answers or for 8
# ([56_serving](../day5_adapt_compress/56_serving.ipynb)). **Predict:** what share of a step in turns is the rollout on 1,024 GPUs?

# %%
# %%guess rollout_share
# All in turns on 1,024 GPUs, 8 answers each: what share of a step is rollout, 0 to 1?
...

# %%
from functools import cache
from math import ceil

COUNTS = 64, 128, 256, 512, 1024, 2048


@cache
def speed(at_once, output):
    """Tokens per second of one H100 that works on so many answers at once."""
    return predict_serving(server, PROMPT, output, batch=at_once).tokens_per_second


def write_seconds(gpus, output=OUTPUT):
    """A rollout on these GPUs; each works on at most 128 answers at once."""
    each = ceil(ANSWERS / gpus)
    return each * output / speed(min(128, each), output)


def train_seconds(gpus, output=OUTPUT):
    return ANSWERS * (PROMPT + output) / trained / gpus


def best_split(gpus, output=OUTPUT):
    """The quickest step of all ways to split these GPUs."""
    ways = range(1, gpus)
    return min(
        max(write_seconds(n, output), train_seconds(gpus - n, output)) for n in ways
    )


# %%
rows, shares, gains = [], {}, {}
for gpus in COUNTS:
    write, train, split = write_seconds(gpus), train_seconds(gpus), best_split(gpus)
    shares[gpus], gains[gpus] = write / (write + train), (write + train) / split
    times = (f"{one:.1f} s" for one in (write, train, write + train, split))
    rows.append((f"{gpus:,}", *times, f"{shares[gpus]:.0%}"))
assert 0.8 < shares[1024] < shares[2048]
assert gains[64] < 1.01
assert gains[512] > max(1.2, gains[2048])
beside("rollout_share", calculated=shares[1024])

# %%
head = "GPUs", "rollout on all", "training on all", "in turns", "best split"
Table((*head, "rollout, of a step in turns"), rows, "A step, predicted")

# %% [markdown]
# By this formula, sixteen times as many GPUs train sixteen times as fast, but they write less than twice as fast. The more GPUs there are, the larger
# is the rollout's part of a step, and here is a reason to split: **a rollout hardly misses the GPUs that train meanwhile.** On 64 GPUs the split
# gains nothing. On 512 a step in turns takes more than a fifth longer. On 2,048 the gain is smaller again, because hardly any training is left to
# hide. Move the length of the answers:

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, legend, name_axes, new_figure, rank_colour


def draw(output):
    """Seconds of both jobs and of two kinds of step, by the number of GPUs."""
    write = [write_seconds(gpus, output) for gpus in COUNTS]
    train = [train_seconds(gpus, output) for gpus in COUNTS]
    turns = [sum(both) for both in zip(write, train, strict=True)]
    split = [best_split(gpus, output) for gpus in COUNTS]
    figure, axis = new_figure(6.2, 3.0)
    axis.loglog(COUNTS, write, "o-", color=rank_colour(1), label="rollout on all")
    axis.loglog(COUNTS, train, "o-", color=rank_colour(0), label="training on all")
    axis.loglog(COUNTS, turns, "--", color="#888888", label="a step in turns")
    axis.loglog(COUNTS, split, color="black", label="a step, best split")
    axis.set_xticks(COUNTS, [f"{gpus:,}" for gpus in COUNTS])
    name_axes(axis, "GPUs", "seconds of a step")
    legend(figure, 2)
    axis.minorticks_off()
    axis.set_yticks((0.3, 1, 3, 10, 30), ("0.3", "1", "3", "10", "30"))
    words = f"answers of {output:,} tokens, 512 GPUs: {turns[3]:.1f} s in turns, "
    words += f"{write[3] / turns[3]:.0%} of it rollout; split {split[3]:.1f} s"
    axis.set_title(words, fontsize=9, loc="left")
    return Picture(figure, words)


explore(draw, [Control("output", OUTPUT, (250, 500, 1000, 1800))])

# %% [markdown]
# Two things are still left out. A GPU that trains also gets less to do at once, and sends more. And real answers differ in length: a rollout takes as
# long as its longest answer, and all others wait for it. (Zhou et al., 2025, abstract, give rollouts more than 90 % of the time of such training.) So
# before you split, measure on your own machine how long each job takes on 8, 16 and 32 GPUs.
#
# ## Tomorrow's script
#
# This script does both jobs on every rank, with plain DDP and without this workshop. It trains twice on each rollout, so it stores how likely each
# answer was when it was written, and uses the ratio and its clip. The model and the task are toys: an answer is one token. For real ones replace the
# model, the questions, the rollout and the reward.

# %%
import os
import tempfile
from pathlib import Path

# %ranks stop
room = tempfile.TemporaryDirectory(prefix="rl-")  # deleted when the kernel ends
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
QUESTIONS, GROUP = 64, 8  # questions per rank and step, answers to each question
STEPS, UPDATES, CLIP = 40, 2, 0.2  # rollouts per epoch, updates per rollout

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
torch.manual_seed(1000 * first + rank)  # each rank asks different questions


def log_p(model, asked, answers):
    """Log probability of each answer under these weights."""
    return model(asked).log_softmax(-1).gather(-1, answers[..., None])[..., 0]


for epoch in range(first, first + 3):
    wrong = torch.zeros(1, device=device)
    for _ in range(STEPS):
        asked = torch.randint(0, 10, (QUESTIONS, 1), device=device).expand(-1, GROUP)
        with torch.no_grad():  # the rollout; right answer: (question + 1) modulo 10
            logits = model.module(asked)
            answers = torch.distributions.Categorical(logits=logits).sample()
            log_p_then = log_p(model.module, asked, answers)
        rewards = (answers == (asked + 1) % 10).float()
        spread = rewards.std(1, keepdim=True) + 1e-6
        advantage = (rewards - rewards.mean(1, keepdim=True)) / spread
        for _ in range(UPDATES):  # in the second, the weights are a step newer
            ratio = (log_p(model, asked, answers) - log_p_then).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wrong += (1 - rewards.mean()) / STEPS
    dist.all_reduce(wrong)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {wrong.item() / ranks:.3f} (wrong answers)")
        weights, moments = model.module.state_dict(), optimizer.state_dict()
        state = {"model": weights, "optimizer": moments, "epoch": epoch}
        part = checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(checkpoint)  # so a half-written file never has this name
dist.destroy_process_group()

# %% [markdown]
# **With TRL.** This library is not installed here. Its trainer makes the groups, the advantages and the loss; you write the reward:
#
# ```python
# from datasets import Dataset
# from trl import GRPOConfig, GRPOTrainer
#
#
# def is_right(completions, answer, **other_columns):
#     return [float(text == right) for text, right in zip(completions, answer)]
#
#
# data = Dataset.from_list([{"prompt": "5940=", "answer": "0459"}])
# settings = GRPOConfig("folder", num_generations=8, num_iterations=2, loss_type="grpo")
# trainer = GRPOTrainer(
#     model, is_right, args=settings, train_dataset=data, processing_class=tokenizer
# )
# trainer.train()
# ```
#
# `num_iterations` are the updates per rollout. `loss_type="grpo"` is our loss; the default, `"dapo"`, takes the mean over all tokens. There is no KL
# term unless you set `beta`, and the share of silent groups is logged as `frac_reward_zero_std`. Each rank does both jobs. With `use_vllm=True,
# vllm_mode="server"` the answers come from a vLLM server with GPUs of its own, and a correction by the ratio of the trainer's and the engine's
# probabilities is on by default. We tried `"grpo"` outside the lesson, with TRL 1.16 and torch 2.14 on the CPU: for 32 answers and weights that had
# changed since, TRL's loss and the formula above both gave 0.003541.
#
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("75_rl_over_ranks")

# %% [markdown]
# ## What to take away
#
# - A step has two jobs, the rollout and the training. Each waits for the other, one for weights and one for texts.
# - **An answer is judged by its group**: it is better than the others, or worse. Groups whose answers are all worth the same teach nothing, and a
#   formula predicts how many there are.
# - As long as the weights that wrote the answers are the weights that train, GRPO's gradient is the plain policy gradient. On answers of weights
#   that are up to 16 steps old, **the model learns with the ratio, and gets worse without it**.
# - Where each rank has a device of its own, and apart from messages, a step in turns takes the sum of both jobs, and a step at once the longer of
#   them. Ranks that share a few cores may take longer. If every rank does both, a step takes half of the sum.
# - **Splitting the ranks helps where more GPUs do not make a rollout faster**, and as long as there is enough training to hide behind it.
# - If the ranks are split, each step sends all weights over the network, but hardly any text.
#
# Next: [81_capstone](../day8_capstone/81_capstone.ipynb), where you bring all parts together in a run of your own.
#
# ## Sources
#
# - Z. Shao et al., *DeepSeekMath*, 2024, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), sections 4.1.1 (GRPO, equation 3) and 4.1.2 (the
#   advantage).
# - J. Schulman et al., *Proximal Policy Optimization Algorithms*, 2017, [arXiv:1707.06347](https://arxiv.org/abs/1707.06347), section 3 (the clip).
# - Q. Yu et al., *DAPO*, 2025, [arXiv:2503.14476](https://arxiv.org/abs/2503.14476), sections 3.2 (dynamic sampling) and 3.3 (a mean over tokens).
# - Z. Liu et al., *Understanding R1-Zero-Like Training: A Critical Perspective*, 2025,
#   [arXiv:2503.20783](https://arxiv.org/abs/2503.20783) (Dr. GRPO).
# - F. Yao et al., *Your Efficient RL Framework Secretly Brings You Off-Policy RL Training*, 2025,
#   [fengyao.notion.site/off-policy-rl](https://fengyao.notion.site/off-policy-rl) (an engine's probabilities, truncated importance sampling).
# - M. Noukhovitch et al., *Asynchronous RLHF*, 2024, [arXiv:2410.18252](https://arxiv.org/abs/2410.18252), section 4 (one GPU of eight writes) and
#   table 1 (compute time 230 and 142, 57.2 % of wins both times).
# - TRL's source, version 1.16, `trl/trainer/grpo_config.py` and `grpo_trainer.py`.
# - Y. Zhou et al., *APRIL*, 2025, [arXiv:2509.18521](https://arxiv.org/abs/2509.18521), abstract (rollouts: more than 90 % of the time).
