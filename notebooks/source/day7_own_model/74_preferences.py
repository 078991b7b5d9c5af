# %% [markdown]
# # Which of two answers is better: how does a model learn from that?
#
# - **You need** `51_adapters` (LoRA), `22_ddp` and `25_fsdp` (gradients and weights over ranks), and a little probability.
# - **It takes** 50 minutes to read and try, about half a minute to run.
# - **What runs where:** everything runs on one CPU and on two CPU ranks. Nothing has to be changed for a GPU; the cell "On a GPU" says whether it has
#   run on one.
# - **Model and text:** the course's `TINY`, with a vocabulary of 16 tokens. A question consists of three digits. The answer is the same digits in
#   ascending order, in a short or a long form.
# - **Links:** before this [73_finetune](73_finetune.ipynb), after it [75_rl_over_ranks](75_rl_over_ranks.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# For many questions nobody can write the one right answer, but most people can say which of two answers they prefer. Such a **preference pair**
# consists of a question, the chosen answer and the rejected one. How does a model learn from such pairs, how far does it go, and how many models
# have to be in memory?

# %%
# %load_ext workshop
import copy
import gc
from dataclasses import replace
from math import exp, log

import torch

from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.models.gpt import GPT, TINY
from workshop.process.quiet import quietly

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
DIGITS, SEPARATOR, END, PADDING = 3, 10, 11, 12
CONFIG = replace(TINY, vocab_size=16)
if device.type == "cpu":
    torch.set_num_threads(1)  # one thread is enough for such a small model

# %% [markdown]
# Our questions have two right answers. The short one is the digits in order. The long one gives them twice, with a separator in between. Both end
# with `END`. The shorter text is padded, so that both fit into one tensor.


# %%
def draw_questions(count, generator):
    """Three digits and a separator, (count, 4), on the CPU."""
    digits = torch.randint(0, 10, (count, DIGITS), generator=generator)
    return torch.cat([digits, torch.full((count, 1), SEPARATOR)], 1)


def short(questions):
    """Question, the digits in order, END, padding: (count, 12)."""
    ordered = questions[:, :DIGITS].sort(1).values
    rest = torch.full((len(questions), DIGITS + 2), PADDING)
    rest[:, 0] = END
    return torch.cat([questions, ordered, rest], 1)


def long(questions):
    """Question, the digits in order, a separator, the digits once more, END."""
    ordered = questions[:, :DIGITS].sort(1).values
    one = torch.ones(len(questions), 1).long()
    return torch.cat([questions, ordered, SEPARATOR * one, ordered, END * one], 1)


def is_counted(texts):
    """Which tokens are the answer's: behind the question, and no padding."""
    places = torch.arange(texts.shape[1], device=texts.device)
    return (places > DIGITS) & (texts != PADDING)


questions = draw_questions(1, torch.Generator().manual_seed(1))
print("short:", short(questions)[0].tolist())
print("long: ", long(questions)[0].tolist())
print("counts in the short text:", is_counted(short(questions))[0].int().tolist())

# %% [markdown]
# ## How likely is an answer?
#
# A model gives a probability for each next token. The probability of an answer is the product of its tokens' probabilities, so its logarithm, the
# **log probability**, is a sum over the tokens. Everything below needs only this one number per answer.
#
# ### Exercise: the log probability of an answer


# %%
# %%exercise answer_log_prob
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    ...


# %% [markdown]
# From now on we use your function. The first use is training: for each question a coin decides whether the model sees the short or the long answer,
# so it learns to write both.


# %%
def log_p(model, texts):
    """Log probabilities of the answers in these texts, (count,)."""
    texts = texts.to(next(model.parameters()).device)
    return answer_log_prob(model(texts), texts, is_counted(texts))


def taught(seed=0, steps=250, rate=3e-3):
    """A model that has seen both kinds of answers, equally often."""
    torch.manual_seed(seed)
    draw, model = torch.Generator().manual_seed(seed), GPT(CONFIG).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        questions = draw_questions(64, draw)
        coin = torch.rand(64, 1, generator=draw) < 0.5
        texts = torch.where(coin, short(questions), long(questions))
        loss = -log_p(model, texts).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


reference = taught()

# %% [markdown]
# Is your sum right? We check it against a slow but simple method: give the model a text that ends before a token, and look up how likely this token
# is as the next one.


# %%
@torch.no_grad()
def slowly(model, text):
    """The log probability of one answer, a forward pass for each of its tokens."""
    total = 0.0
    for place in range(DIGITS + 1, len(text)):
        if text[place] != PADDING:
            last = model(text[None, :place].to(device))[0, -1]
            total += last.log_softmax(-1)[text[place]].item()
    return total


questions = draw_questions(4, torch.Generator().manual_seed(2))
for name, kind in (("short", short), ("long", long)):
    fast = log_p(reference, kind(questions)).cpu()
    slow = torch.tensor([slowly(reference, text) for text in kind(questions)])
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-3)
    assert -1.5 < slow.mean() < -0.4
    print(f"{name}:", ", ".join(f"{x:.2f}" for x in fast.tolist()), end="; ")
    print("the slow method gives the same")

# %% [markdown]
# Most of these numbers are close to log 0.5 = -0.69, which means that each of the two answers has about half of the probability. Little is left for
# any other answer. Later we want to know what the model writes on its own, so we now let it generate answers.


# %%
@torch.no_grad()
def answer(model, questions):
    """Question and answer, a token at a time, by probability; padded after END."""
    texts = questions.to(device)
    for _ in range(2 * DIGITS + 2):
        probability = model(texts)[:, -1].softmax(-1)
        texts = torch.cat([texts, torch.multinomial(probability, 1)], 1)
    ends = (texts == END).int()
    return texts.masked_fill(ends.cumsum(1) - ends > 0, PADDING)


# %%
@torch.no_grad()
def judged(model, start, seed=0):
    """How likely both answers are and became, and what 1,000 new answers are."""
    torch.manual_seed(seed)
    questions = draw_questions(1000, torch.Generator().manual_seed(100 + seed))
    longs, shorts, texts = long(questions), short(questions), answer(model, questions)
    of_two = log_p(model, longs), log_p(model, shorts)
    moved = of_two[0] - log_p(start, longs), of_two[1] - log_p(start, shorts)
    known = (texts.cpu() == longs).all(1) | (texts.cpu() == shorts).all(1)
    return {
        "long": (of_two[0] - of_two[1]).sigmoid().mean().item(),  # vs. the short one
        "neither": 1 - known.float().mean().item(),
        "long moved": moved[0].mean().item(),
        "short moved": moved[1].mean().item(),
        "added": (moved[0] - moved[1]).mean().item(),
        "kl": (log_p(model, texts) - log_p(start, texts)).mean().item(),
    }


before = judged(reference, reference)
print(f"{before['neither']:.0%} of the answers are neither of the two; ", end="")
print(f"between the two, the long one is taken in {before['long']:.0%}")
assert before["neither"] < 0.15
assert 0.3 < before["long"] < 0.7

# %% [markdown]
# ## The loss of a pair
#
# Suppose that each answer has a reward r, a number that we do not know. **Bradley and Terry** (1952) model the probability that one answer is chosen
# over another as
#
# $$P(\text{chosen}) = \sigma(r_\text{chosen} - r_\text{rejected}), \qquad \sigma(x) = \frac{1}{1 + e^{-x}}$$
#
# Classical **RLHF**, reinforcement learning from human feedback, first trains a reward model with this formula. It then trains a language model on
# the rewards, and keeps it close to the model it started from, its **reference model**. **DPO**, direct preference optimization (Rafailov et al.,
# 2023), needs no reward model. There is a formula for the best model that RLHF could reach. Solved for the reward, it gives the reward that belongs
# to a model (equation 5):
#
# $$r = \beta \log \frac{p_\text{model}(\text{answer})}{p_\text{reference}(\text{answer})} + \text{what depends on the question alone}$$
#
# The last part cancels in the difference of two rewards for the same question. The model is therefore its own reward model. It learns by increasing
# the probability P(chosen) that its own rewards give. This is equation 7.
#
# ### Exercise: the loss


# %%
# %%exercise dpo_loss
import torch


def dpo_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """The mean loss of pairs, from log probabilities of their answers, (pairs,)."""
    ...


# %% [markdown]
# The model starts as a copy of the reference. **Predict** the loss before the first step.

# %%
# %%guess first_loss
# What is the DPO loss before the first step, with beta = 0.1?
...

# %%
questions = draw_questions(64, torch.Generator().manual_seed(3))
longer, shorter = log_p(reference, long(questions)), log_p(reference, short(questions))
first = [
    dpo_loss(longer, shorter, longer, shorter, beta).item() for beta in (0.1, 1.0, 9.0)
]
assert all(abs(loss - log(2)) < 1e-5 for loss in first)
beside("first_loss", predicted=log(2), measured=first[0])

# %% [markdown]
# The loss is log 2 for any model, any pairs and any beta. Both rewards are 0, and if two answers have equal rewards, each wins in half of the cases.
# If your own run starts with a different loss, the model and the reference are not the same.
#
# In which direction does this loss push? The gradient with respect to a pair's log probabilities, derived by hand, is $\mp \beta\,
# \sigma(-\text{margin})$, where the **margin** is the chosen answer's reward minus the rejected one's. The minus sign belongs to the chosen answer
# and the plus sign to the rejected one. A pair that is already won by a large margin has almost no effect any more.

# %%
numbers = -5 * torch.rand(4, 6, generator=torch.Generator().manual_seed(4)).double()
pair = [row.clone().requires_grad_() for row in numbers[:2]]
dpo_loss(*pair, *numbers[2:], 0.5).backward()
margin = 0.5 * (numbers[0] - numbers[2] - numbers[1] + numbers[3])
by_hand = 0.5 * (-margin).sigmoid() / len(margin)  # the loss is a mean over six pairs
torch.testing.assert_close(pair[0].grad, -by_hand)
torch.testing.assert_close(pair[1].grad, by_hand)
print("autograd's gradients, by hand; both answers are pushed equally hard")

# %% [markdown]
# ## Six of ten
#
# Now people judge the answers. Short or long is a matter of taste: six of ten judges choose the long answer, and four the short one. The loss of a
# question is therefore six tenths of the loss with long chosen, plus four tenths of the loss with short chosen. Both texts go through the model in
# one batch.


# %%
LIKE_LONG, STEPS, RATE = 0.6, 60, 3e-4


def preference_loss(model, texts, ref, beta, like_long=LIKE_LONG, keep=0.0):
    """texts: long ones, then short ones. ref: their log p. like_long: of all judges."""
    mine = log_p(model, texts)
    longer, shorter = mine.chunk(2)
    ref_longer, ref_shorter = ref.chunk(2)
    by_six = dpo_loss(longer, shorter, ref_longer, ref_shorter, beta)
    by_four = dpo_loss(shorter, longer, ref_shorter, ref_longer, beta)
    loss = like_long * by_six + (1 - like_long) * by_four
    each = mine / is_counted(texts).sum(1).to(mine.device)  # the mean over its tokens
    chosen = like_long * each.chunk(2)[0] + (1 - like_long) * each.chunk(2)[1]
    return loss - keep * chosen.mean()  # `keep` is explained below


def learn(start, beta, seed=0, like_long=LIKE_LONG, keep=0.0):
    """A copy of a model after 60 steps of 16 questions."""
    draw = torch.Generator().manual_seed(10 + seed)
    model = copy.deepcopy(start).requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.99), weight_decay=0)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        questions = draw_questions(16, draw)
        texts = torch.cat([long(questions), short(questions)])
        ref = log_p(start, texts)
        loss = preference_loss(model, texts, ref, beta, like_long, keep)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# Rafailov et al. use beta = 0.1 unless they say otherwise (appendix B). **Guess:** six of ten judges like long answers. If only the two answers are
# compared, how often will the model take the long one?

# %%
# %%guess share_long
# If only the two answers count, what share is long, 0 to 1? Before, it was about half
...

# %% [markdown]
# The loss is smallest where the model's probability of a win equals the judges' share, $\sigma(\text{margin}) = 0.6$. The margin is then log(0.6 /
# 0.4) = 0.41. A margin is beta times what training adds to the log odds of long against short, so training adds 0.41 / beta.

# %%
BETAS, SEEDS = (0.1, 0.3, 1.0), (0, 1)


def log_odds(share):
    return log(share / (1 - share))


def expected_share(beta, like_long=LIKE_LONG):
    """Share of long answers where the loss is smallest."""
    odds = log_odds(before["long"]) + log_odds(like_long) / beta
    return 1 / (1 + exp(-odds))


learned = {beta: [learn(reference, beta, seed) for seed in SEEDS] for beta in BETAS}
outcomes = {
    beta: [judged(model, reference, seed) for seed, model in enumerate(models)]
    for beta, models in learned.items()
}


# %%
def seeds(runs, key, form=".2f"):
    """The values of the runs, one for each seed, as words."""
    return " and ".join(f"{run[key]:{form}}" for run in runs)


rows = []
for beta, runs in outcomes.items():
    odds, share = log_odds(LIKE_LONG) / beta, expected_share(beta)
    added = f"{odds:.2f}", seeds(runs, "added")
    rows.append((f"{beta:g}", *added, f"{share:.2f}", seeds(runs, "long")))
    assert all(abs(run["added"] - odds) < 0.15 + 0.1 * odds for run in runs)
    assert all(abs(run["long"] - share) < 0.08 for run in runs)
head = "beta", "log odds added: predicted", "measured", "long of the two: predicted"
Table((*head, "measured"), rows, "two seeds")

# %%
assert expected_share(0.1) > 0.95
assert abs(expected_share(1.0) - LIKE_LONG) < 0.1
beside("share_long", predicted=expected_share(0.1), measured=outcomes[0.1][0]["long"])

# %% [markdown]
# A slight preference has become a rule: six of ten judges choose the long answer, but the model chooses it in 98 of 100 cases. **A small beta does
# not mean "learn little", it means "go far"**, because the model has to change more to reach the same margin of rewards. The preference for length
# is not an invented example. People's preferences have such a bias, and DPO exploits it (Park et al., 2024, abstract). Models after RLHF write
# longer answers than before (Singhal et al., 2023, abstract).
#
# ## What the loss does not see
#
# The prediction was right for each beta, but that is not the whole story. Suppose now that all ten judges choose the long answer. The loss then has
# no minimum, and the margin grows for as long as we train. We also measure how far the model goes: the **KL** divergence from the reference is the
# mean of log p(model) - log p(reference) over the model's own answers. It is 0 for the reference itself.
#
# **Guess:** how likely is the long answer after this training, compared with the reference?

# %%
# %%guess long_is --choices likelier,as-likely,less-likely
# With beta = 0.1: how likely is the answer that all judges chose, compared with before?
...

# %%
STARTS = reference, taught(seed=1)  # two models taught with different seeds


def all_ten(keep):
    """All judges like long answers: a model from each start, and what became of it."""
    models = [learn(start, 0.1, seed, 1.0, keep) for seed, start in enumerate(STARTS)]
    return models, [
        judged(model, start, seed)
        for seed, (model, start) in enumerate(zip(models, STARTS, strict=True))
    ]


models, plain = all_ten(keep=0.0)
rows = [
    ("log odds added", *(f"{run['added']:.2f}" for run in plain)),
    ("change of log p, long answer", *(f"{run['long moved']:+.2f}" for run in plain)),
    ("change of log p, short answer", *(f"{run['short moved']:+.2f}" for run in plain)),
    ("answers that are neither", *(f"{run['neither']:.0%}" for run in plain)),
    ("KL", *(f"{run['kl']:.2f}" for run in plain)),
]
Table(("all judges like the long answer", "one start", "another start"), rows)

# %%
fell = sum(run["long moved"] for run in plain) / len(plain)
only_long = -log(before["long"])  # about the KL of a model that writes only long ones
assert fell < -0.2
assert all(run["short moved"] < run["long moved"] for run in plain)
assert all(run["neither"] > 0.5 for run in plain)
assert all(run["kl"] > 2 * only_long for run in plain)
print(f"KL if it wrote long answers and nothing else: {only_long:.2f}")
beside("long_is", measured="less-likely" if fell < 0 else "likelier")

# %% [markdown]
# **Both answers became less likely; the chosen one only fell less.** The loss sees only the difference between the two. When both fall, their
# probability goes to texts that are in no pair, and most answers are now neither of the two. Neither the loss nor the margin shows this, but the KL
# does: it is far above that of a model that writes the long answers and nothing else. Read what the model writes:

# %%
questions = draw_questions(6, torch.Generator().manual_seed(5))
torch.manual_seed(0)
for text in answer(models[0], questions).tolist():
    print("".join("0123456789=|.???"[token] for token in text).rstrip("."))

# %% [markdown]
# (`=` is the separator, `|` the end and `.` padding; `?` is a token that occurs in none of our texts. The first four characters are the question. In
# such a small model the effect is drastic.)
#
# This effect is known. Pal et al. (2024) show that DPO can lower the probability of the chosen answer, above all when the two answers are very
# similar. Llama 3 was trained with an extra term in the loss against it: 0.2 times the negative log likelihood of the chosen answer (section 4.1.4).
# In our code this is the argument `keep`. Like Pang et al. (2024), we take the mean over the answer's tokens. **The same training, now with this
# term:**

# %%
by_keep, rows = {0.0: plain}, []
for keep in (0.2, 1.0):
    _, by_keep[keep] = all_ten(keep)
for keep, runs in by_keep.items():
    changed = seeds(runs, "long moved", "+.2f"), seeds(runs, "neither", ".0%")
    rows.append((f"{keep:g}", seeds(runs, "added"), *changed, seeds(runs, "kl")))
head = "weight of the term", "log odds added", "log p of long", "neither", "KL"
Table(head, rows, "two models that were taught apart")

# %%
for some, more in ((0.0, 0.2), (0.2, 1.0)):
    for less_kept, kept in zip(by_keep[some], by_keep[more], strict=True):
        assert kept["neither"] < less_kept["neither"] - 0.05
        assert kept["kl"] < less_kept["kl"]
        assert kept["long moved"] > 0
        assert kept["added"] > 0.7 * less_kept["added"]

# %%
from workshop.jupyter.explorer import Control, explore


def draw(judges):
    """Left: if so many of ten judges like the long answer. Right: if all ten do."""
    like_long, betas = judges / 10, [0.1 * 1.1**step for step in range(26)]
    taken = {beta: [run["long"] for run in runs] for beta, runs in outcomes.items()}
    return show.reach_and_leak(
        {beta: expected_share(beta, like_long) for beta in betas},
        taken if like_long == LIKE_LONG else {beta: [] for beta in BETAS},
        {keep: [run["neither"] for run in runs] for keep, runs in by_keep.items()},
        before["neither"],
        like_long,
    )


explore(draw, [Control("judges", 6, (5, 6, 7, 8, 9))])

# %% [markdown]
# The left picture shows how often the model takes the long answer, by beta; the slider is the number of judges, of ten, who like it. (We trained for
# six of them only.) **For which beta does the model choose as the judges do, however many they are?** The right picture shows, for ten of ten
# judges, how many answers are neither of the two.
#
# The curve meets the judges' line near beta = 1. There training adds the judges' log odds once, to a reference that took each answer about half of
# the time. With a small beta a majority wins nearly always, and only a tie stays a tie. The extra term makes the chosen answer likelier than
# before, and most of the log odds are still added. In your own runs, watch three curves: the margin, the log probability of the chosen answers, and
# the KL.
#
# ## How many models?
#
# RLHF with PPO holds four models: the model that learns, its reference, a reward model, and a **value model** that says how good an answer could
# still become. The first and the last of these are trained. DPO holds two models, and there are two ways to manage with one:
#
# - **Compute first:** the reference never changes. You can compute the log probabilities of all pairs before training, two numbers per pair, and
#   then delete the reference.
# - **LoRA:** the model without its adapter *is* the reference. With the adapter switched off, the weights answer as before.
#
# Do both give the same numbers? We train an adapter for a few steps, so that it has an effect. Then we compare three results: computed first,
# adapter off, and adapter on.

# %%
with quietly():  # hides what peft prints while it loads
    import peft

adapter = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
torch.manual_seed(0)
adapted = peft.get_peft_model(copy.deepcopy(reference), adapter)
questions = draw_questions(256, torch.Generator().manual_seed(6))
texts = torch.cat([long(questions), short(questions)])
beforehand = log_p(reference, texts).cpu()  # all we keep of the reference
weights = [p for p in adapted.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(weights, lr=5e-3)
for _ in range(5):
    loss = preference_loss(adapted, texts, beforehand.to(device), beta=0.3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    switched_on = log_p(adapted, texts).cpu()
    with adapted.disable_adapter():
        switched_off = log_p(adapted, texts).cpu()
torch.testing.assert_close(switched_off, beforehand, rtol=1e-4, atol=1e-4)
assert (switched_on - beforehand).abs().max() > 0.01
print(f"computed before: {beforehand.nbytes // len(questions)} bytes a pair")
print("adapter off: the reference's numbers; adapter on: others")

# %% [markdown]
# Both ways give the same numbers. How much memory do they save? In fp32 with AdamW, a trained weight takes 16 bytes: the weight itself, its gradient
# and two moments. A weight that is not trained takes 4. **Predict:** if all of PPO's models have the same size, how many times as many bytes do they
# take as DPO with LoRA? (Leave out activations.)

# %%
# %%guess times_lora
# How many times as many bytes do PPO's four models take as DPO with LoRA?
...

# %%
from workshop.measure import count_from_here, held_bytes

LARGER = replace(CONFIG, hidden_size=256, intermediate_size=704)


def judge():
    """A reward or a value model: a head of one number for each place."""
    model = GPT(LARGER)
    model.lm_head = torch.nn.Linear(LARGER.hidden_size, 1, bias=False)
    return model


def held(trained, frozen=()):
    """Bytes held after a step. trained, frozen: functions that make models."""
    gc.collect()
    sample = texts[:8].to(device)
    count_from_here()
    learns = [make().to(device) for make in trained]
    stays = [make().to(device).requires_grad_(False) for make in frozen]
    weights = [p for model in learns for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights)
    sum(model(sample).square().mean() for model in (*learns, *stays)).backward()
    optimizer.step()
    return held_bytes()


# %%
def policy():
    return GPT(LARGER)


def with_adapter():
    return peft.get_peft_model(GPT(LARGER), adapter)


def size(model, only_trained=False):
    chosen = (p for p in model.parameters() if p.requires_grad or not only_trained)
    return sum(p.numel() for p in chosen)


n, scores, few = size(policy()), size(judge()), size(with_adapter(), only_trained=True)
expected = {
    "PPO: four models": 16 * (n + scores) + 4 * (n + scores),
    "DPO: two models": 16 * n + 4 * n,
    "DPO, reference computed before": 16 * n,
    "DPO with LoRA": 4 * n + 16 * few,
}
measured = {
    "PPO: four models": held([policy, judge], [policy, judge]),
    "DPO: two models": held([policy], [policy]),
    "DPO, reference computed before": held([policy]),
    "DPO with LoRA": held([with_adapter]),
}
rows = []
for name, value in measured.items():
    rows.append((name, f"{expected[name] / 1e6:.1f} MB", f"{value / 1e6:.1f} MB"))
    assert abs(value / expected[name] - 1) < 0.02
Table(("", "predicted", "held"), rows)

# %%
ppo, adapters = "PPO: four models", "DPO with LoRA"
beside(
    "times_lora",
    predicted=expected[ppo] / expected[adapters],
    measured=measured[ppo] / measured[adapters],
)

# %% [markdown]
# ### At scale
#
# In mixed precision a trained weight also takes 16 bytes, but a frozen one only 2, so the factor grows. We let `predict_memory` compute the bytes of
# a trained model. A frozen model consists of its weights alone. For LoRA we use rank 128 on the queries and values.

# %%
from workshop import Adapter, Run, predict_memory
from workshop.facts.layout import Layout

beside_all = Adapter("lora", rank=128, targets=("q", "v"), base_bits=16)


def trained_bytes(name, lora=None):
    """Weights, gradients and optimizer state of a model that is trained."""
    mixed = Layout(precision="deepspeed-bf16")
    parts = predict_memory(Run(name, "1xH100", mixed, 1, 512, adapter=lora)).parts
    kinds = "weights", "gradients", "optimizer"
    return sum(float(parts[kind][0]) for kind in kinds)


rows, four, two = [], {}, {}
for name in ("llama-7b", "llama-3-8b", "llama-3-70b"):
    frozen = 2 * Run(name, "1xH100").model.num_params
    full, lora = trained_bytes(name), trained_bytes(name, beside_all)
    four[name], two[name] = 2 * full + 2 * frozen, full + frozen
    lora_ppo = 2 * lora + 2 * frozen
    ways = four[name], two[name], full, lora_ppo, lora
    rows.append((name, *(f"{value / 1e9:,.0f}" for value in ways)))
    assert 16 < four[name] / lora < 19
head = "", "PPO", "DPO", "DPO, computed before", "PPO, four with LoRA", "DPO with LoRA"
Table(head, rows, "GB of models, gradients and moments, without activations")

# %% [markdown]
# Santacroce et al. (2023, table 1) report the memory of PPO with Llama 7B: an estimated 220 GB if everything is trained, and 68.0 GB, activations
# included, with LoRA (rank 128) on four models.

# %%
full, lora = four["llama-7b"] / 1e9, float(rows[0][4])
assert abs(full / 220 - 1) < 0.15
assert 0.7 * 68 < lora < 68
assert round(full / 1.0737) == 226  # GiB
compared = [
    ("everything is trained", f"{full:.0f} GB", "220 GB, estimated"),
    ("LoRA on all four", f"{lora:.0f} GB", "68.0 GB, with activations"),
]
Table(("PPO with Llama 7B", "models, by our rule", "paper"), compared)

# %% [markdown]
# If everything is trained, our rule gives a tenth more than the paper's estimate. Counted in GiB it is 226, which would be within a few percent. With
# LoRA, the paper's number leaves 12 GB for activations beside the models.
#
# ## Over ranks
#
# The pairs are divided among the ranks. Both answers of a pair stay on one rank, because the loss needs both. The next cells check that two ranks
# under DDP get the same gradient as one process with all pairs, even if the ranks start with different weights (DDP copies rank 0's weights to the
# other).

# %%
policy_state = {k: w.cpu().clone() for k, w in learned[0.3][0].state_dict().items()}
model = copy.deepcopy(learned[0.3][0])
questions = draw_questions(32, torch.Generator().manual_seed(7))
texts = torch.cat([long(questions), short(questions)])
ref = log_p(reference, texts).cpu()
model.zero_grad()
loss = preference_loss(model, texts, ref.to(device), 0.3)
loss.backward()
whole = torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()
print(f"one process: loss {loss.item():.4f}, norm of its gradient {whole.norm():.4f}")

# %%
# %%ranks -n 2 --pass policy_state,CONFIG,texts,ref,whole,preference_loss --into halves
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.models.gpt import GPT

torch.manual_seed(rank)
model = GPT(CONFIG).to(device)  # different weights on each rank
if rank == 0:
    model.load_state_dict(policy_state)
ddp = DistributedDataParallel(model)  # copies rank 0's weights to all ranks
mine = slice(rank, None, world_size)  # takes the same pairs from both halves
part = torch.cat([half[mine] for half in texts.chunk(2)])
ref_part = torch.cat([half[mine] for half in ref.chunk(2)]).to(device)
loss = preference_loss(ddp, part, ref_part, 0.3)
loss.backward()
averaged = torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()
report(off=(averaged - whole).abs().max().item() / whole.abs().max().item())

# %%
assert max(halves[rank]["off"] for rank in (0, 1)) < 1e-3
print("two ranks with half of the pairs each get the same gradient as one process")

# %% [markdown]
# ### One forward pass or two?
#
# We put both answers into one batch. You could also call the model twice, once with the chosen and once with the rejected answers, and get the same
# loss. But under FSDP the weights are sharded, and each layer is gathered whenever it is needed. **Predict:** how many times as many all_gathers
# does a step with two calls make?

# %%
# %%guess gathers
# all_gathers in a step with two forward passes, divided by those in a step with one
...

# %%
# %%ranks --pass log_p,dpo_loss --into gathered
from torch.distributed.fsdp import fully_shard

from workshop.measure import measure


def step(calls):
    """The number of all_gathers in forward and backward, and the loss."""
    torch.manual_seed(0)
    model = GPT(CONFIG).to(device)
    model.load_state_dict(policy_state)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    batches = part.chunk(calls)  # with 2 calls: long answers, then short ones
    with measure(memory=False) as measured:
        every = torch.cat([log_p(model, batch) for batch in batches])
        longer, shorter = every.chunk(2)
        loss = dpo_loss(longer, shorter, *ref_part.chunk(2), 0.3)
        loss.backward()
    rows = [row for row in measured.traffic if row.name == "all_gather"]
    return sum(row.count for row in rows), loss.item()


report(one=step(1), two=step(2))

# %%
(one, same), (two_calls, also) = gathered[0]["one"], gathered[0]["two"]
print(
    f"{one} all_gathers in one call, {two_calls} in two: the loss is {same:.4f} twice"
)
by_rule = [1 + 2 * CONFIG.num_layers * calls for calls in (1, 2)]
assert abs(same - also) < 1e-4
assert [one, two_calls] == by_rule
beside("gathers", predicted=by_rule[1] / by_rule[0], measured=two_calls / one)

# %% [markdown]
# Each layer is gathered once per forward and once per backward, so two calls gather it twice as often. The parameters outside the layers, embedding
# and head, stay gathered and count only once. So put both answers into one batch.
#
# ### A text that is cut
#
# If a long text is cut over ranks, as in [33_context_parallel](../day3_model_parallel/33_context_parallel.ipynb), each rank has the log probabilities
# of its own tokens. In ordinary training each rank takes the mean loss of its tokens, and the ranks' losses are averaged. Suppose you do the same
# here: each rank has half of every text, computes a loss from the answer tokens in its half, and then you take the mean. Is it higher or lower than
# the loss of whole answers?

# %%
# %%guess mean_of_halves --choices higher,equal,lower
# Compared with the loss of whole answers, the mean of the two halves' losses is ...
...

# %%
reference_state = {k: w.cpu() for k, w in reference.state_dict().items()}

# %%
# %%ranks --pass answer_log_prob,is_counted,reference_state --into cut
both, beta, everything = texts.to(device), 0.3, is_counted(texts.to(device))
is_mine = (torch.arange(both.shape[1], device=device) < 8) == (rank == 0)
model, frozen = GPT(CONFIG).to(device), GPT(CONFIG).to(device)
model.load_state_dict(policy_state)
frozen.load_state_dict(reference_state)


def gradient(loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


refs = ref.to(device).chunk(2)
alone = answer_log_prob(model(both), both, everything)
loss_alone = dpo_loss(*alone.chunk(2), *refs, beta)
wanted = gradient(loss_alone)

part = answer_log_prob(model(both), both, everything & is_mine)  # only for my tokens
total = part.detach().clone()
dist.all_reduce(total)  # one number for each answer
total += part - part.detach()  # value: all tokens; gradient: only my tokens
loss = dpo_loss(*total.chunk(2), *refs, beta)
grad = gradient(loss)
dist.all_reduce(grad)  # summed by hand, not averaged: the ranks have different tokens

with torch.no_grad():
    ref_part = answer_log_prob(frozen(both), both, everything & is_mine)
    halves = dpo_loss(*part.chunk(2), *ref_part.chunk(2), beta)
dist.all_reduce(halves)
off = (grad - wanted).abs().max().item() / wanted.abs().max().item()
losses = [x.item() for x in (loss_alone, loss, halves / world_size)]
report(losses=losses, off=off)

# %%
alone, summed, averaged = cut[0]["losses"]
print(f"one process {alone:.4f}; sums added up first {summed:.4f}; ", end="")
print(f"mean of the halves' losses {averaged:.4f}")
assert abs(alone - summed) < 1e-4
assert averaged > alone + 0.01
assert max(cut[rank]["off"] for rank in (0, 1)) < 1e-3
beside("mean_of_halves", measured="higher" if averaged > alone else "lower")

# %% [markdown]
# **Add up the sums before the sigmoid**, with an all_reduce of one number per answer. The loss is not a sum over tokens, so the mean over parts is a
# different loss. At the first step you would not notice the mistake, because both then give log 2.
#
# (`total += part - part.detach()` does not change the value. It only makes the gradient of each rank flow to its own tokens.) We added up the
# gradients by hand. DDP and FSDP take their mean instead, so with them call `backward` on `loss * world_size`. To keep the cell short, each rank also
# ran the whole text and only masked the tokens of the other; a real cut is that of lesson 33. If the vocabulary is sharded too, use the log_softmax
# of [31_tensor_parallel](../day3_model_parallel/31_tensor_parallel.ipynb); everything after it stays as it is here.
#
# ## Tomorrow's script
#
# This script does DPO with transformers' models and plain DDP. It computes the reference's numbers before the first step and stores them in the
# checkpoint, so it holds no second model. As in [73_finetune](73_finetune.ipynb), the loss is one mean over the pairs of all ranks, even if a batch
# does not divide evenly among them. `MODEL=folder torchrun ...` uses your model; without it the script uses a small one. Besides the loss it prints
# how far the log probability of the chosen answers has moved. You now know why this matters.

# %%
import os
import tempfile
from pathlib import Path

# %ranks stop
room = tempfile.TemporaryDirectory(prefix="preferences-")  # deleted with the kernel
folder = Path(room.name)
os.environ["CHECKPOINT"] = str(folder / "prefer.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/prefer.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
BETA, KEEP, BATCH, PAIRS, NOTHING = 0.1, 0.2, 16, 128, -100
PADDING, END = 0, 1  # two tokens: the end is learned, the padding is not
if (PAIRS % BATCH or BATCH) < ranks:
    raise SystemExit("a rank would have no pair of a batch: use fewer ranks")

torch.manual_seed(0)
folder = os.environ.get("MODEL", "")  # your model, or else a small untrained one
if folder:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
else:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, vocab_size=32))
model.to(device)

# Put your own pairs here: token ids, and labels (NOTHING in the prompt and padding).
# Where your tokenizer pads with its end token, tell the two apart by their places.
prompt, end = torch.randint(2, 32, (PAIRS, 4)), torch.full((PAIRS, 1), END)
chosen = torch.cat([prompt, prompt, end, torch.full((PAIRS, 4), PADDING)], 1)
rejected = torch.cat([prompt, prompt.flip(1), prompt, end], 1)
ids = torch.stack([chosen, rejected], 1).to(device)  # shape: (pairs, 2, length)
labels = ids.masked_fill(ids == PADDING, NOTHING)
labels[:, :, :4] = NOTHING


def log_p(model, rows):
    """Log probabilities of chosen and rejected answers, (pairs, 2), in one call."""
    logits = model(input_ids=ids[rows].flatten(0, 1)).logits[:, :-1].float()
    wanted = labels[rows].flatten(0, 1)[:, 1:]
    each = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    return -each.sum(1).view(-1, 2)


checkpoint, first = Path(os.environ.get("CHECKPOINT", "prefer.pt")), 0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6 if folder else 5e-3)
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first, reference = state["epoch"] + 1, state["reference"]
else:  # once, before the first step: each rank computes its part of the pairs
    reference = torch.zeros(PAIRS, 2, device=device)
    with torch.no_grad():
        for rows in torch.arange(rank, PAIRS, ranks, device=device).split(BATCH):
            reference[rows] = log_p(model, rows)
    dist.all_reduce(reference)
ddp = DistributedDataParallel(model)

for epoch in range(first, first + 3):
    order = torch.randperm(PAIRS, generator=torch.Generator().manual_seed(epoch))
    sums = torch.zeros(2, device=device)
    for batch in order.to(device).split(BATCH):
        rows = batch[rank::ranks]  # both answers of a pair stay on one rank
        mine = log_p(ddp, rows)
        moved = mine - reference[rows]
        losses = -F.logsigmoid(BETA * (moved[:, 0] - moved[:, 1]))
        tokens = (labels[rows, 0] != NOTHING).sum(1)
        share = (losses - KEEP * mine[:, 0] / tokens).sum() / len(batch)
        optimizer.zero_grad()
        (share * ranks).backward()  # DDP divides by the number of ranks
        optimizer.step()
        sums += torch.stack([losses.sum(), moved[:, 0].sum()]).detach()
    dist.all_reduce(sums)
    if rank == 0:
        mean, moved = (sums / PAIRS).tolist()
        print(f"epoch {epoch}: mean loss {mean:.3f}, log p of the chosen {moved:+.2f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        part = checkpoint.with_suffix(".part")
        torch.save(state | {"epoch": epoch, "reference": reference}, part)
        part.replace(checkpoint)  # so a half-written file never has this name
dist.destroy_process_group()

# %% [markdown]
# **With TRL.** This library is not installed here, but you may well meet it tomorrow. It takes pairs of texts, and a tokenizer makes the numbers:
#
# ```python
# from datasets import Dataset
# from trl import DPOConfig, DPOTrainer
#
# pairs = [{"prompt": "594=", "chosen": "459=459", "rejected": "459"}]
# settings = DPOConfig(
#     "folder",
#     beta=0.1,
#     loss_type=["sigmoid", "sft"],
#     loss_weights=[1.0, 0.2],
#     precompute_ref_log_probs=True,
# )
# data = Dataset.from_list(pairs)
# trainer = DPOTrainer(
#     model, args=settings, train_dataset=data, processing_class=tokenizer
# )
# trainer.train()
# ```
#
# `"sigmoid"` is your `dpo_loss`, and `"sft"` is the likelihood term (a mean over all tokens of the batch; ours takes the mean within each answer
# first). `precompute_ref_log_probs` computes the reference's numbers first. If you pass a `peft_config` and no `ref_model`, the reference is the
# model with the new adapter off. (If the model comes with an adapter that is trained already, TRL copies it: the reference then has the copy.) We
# tried this outside the lesson, with TRL 1.16 and torch 2.14 on the CPU: on 16 pairs of our task (answers of equal length in each column), TRL's loss
# and ours were both 1.2503.
#
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("74_preferences")

# %% [markdown]
# ## What to take away
#
# - All that preference learning needs from an answer is its log probability, a sum over its tokens. DPO makes a loss from four such numbers, and
#   this loss starts at log 2.
# - beta says how far a preference reaches: the log odds between two answers change by the judges' log odds, divided by beta. **Six of ten judges
#   became 98 of 100 choices between the two.**
# - The loss sees only the difference. **The chosen answers may become less likely too**, and here they did. Watch their log probability and the KL;
#   a likelihood term helps.
# - PPO holds four models and DPO two. One is enough if you compute the reference's numbers first, or switch the adapter off.
# - Both answers of a pair belong on one rank and in one call. If a text is cut over ranks, add up its parts before the sigmoid.
#
# Next: [75_rl_over_ranks](75_rl_over_ranks.ipynb), where nobody has to judge, because answers can be checked.
#
# ## Sources
#
# - R. Rafailov et al., *Direct Preference Optimization*, 2023, [arXiv:2305.18290](https://arxiv.org/abs/2305.18290), equations 1 (Bradley and
#   Terry), 5 and 7, appendix B (beta = 0.1).
# - A. Pal et al., *Smaug: Fixing Failure Modes of Preference Optimisation with DPO-Positive*, 2024,
#   [arXiv:2402.13228](https://arxiv.org/abs/2402.13228), abstract.
# - Llama Team, *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 4.1.4 (a likelihood term of 0.2).
# - R. Y. Pang et al., *Iterative Reasoning Preference Optimization*, 2024, [arXiv:2404.19733](https://arxiv.org/abs/2404.19733) (that term, divided
#   by the length).
# - M. Santacroce et al., *Efficient RLHF: Reducing the Memory Usage of PPO*, 2023, [arXiv:2309.00754](https://arxiv.org/abs/2309.00754), table 1
#   (220 GB estimated, 68.0 GB with LoRA).
# - P. Singhal et al., *A Long Way to Go*, 2023, [arXiv:2310.03716](https://arxiv.org/abs/2310.03716), and R. Park et al., *Disentangling Length from
#   Quality in Direct Preference Optimization*, 2024,
#   [arXiv:2403.19159](https://arxiv.org/abs/2403.19159), abstracts.
# - R. A. Bradley and M. E. Terry, *Rank Analysis of Incomplete Block Designs*, Biometrika, 1952.
# - TRL documentation, *DPO Trainer*; its source, version 1.16, `trl/trainer/dpo_trainer.py`.
