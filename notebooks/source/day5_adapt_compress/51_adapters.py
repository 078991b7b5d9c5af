# %% [markdown]
# # How little of a model do you have to train?
#
# - **You need** `13_memory_of_a_step` (weights, gradients, moments, activations).
# - **It takes** 35 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on a real language model of 135 million parameters and real questions.
#   Fetch both once (`workshop assets fetch --all`); from then on you need no network. Training uses a GPU if there is
#   one; memory is measured on the host.
# - **Model and text:** SmolLM2 in place of `TINY`, because adapting a model only makes sense if the model already knows
#   something. SmolLM2 is a Llama too: a cell below loads its weights into the class `GPT` of the previous days. In place
#   of the reference manual, it reads questions.
# - **Links:** before this [43_fp8_inference](../day4_fp8/43_fp8_inference.ipynb), after it [52_qlora](52_qlora.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A model that was trained for months does nearly what you want. If you train all of it further, each parameter takes 16
# bytes: its weight, its gradient and two moments, in fp32. Do all the weights have to change? If not, how few are enough,
# and what does that save?

# %%
# %load_ext workshop
import torch

from workshop.assets import language_model, questions
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.process.quiet import quietly

with quietly():  # peft prints messages when it is imported
    import peft

DEVICE = torch.accelerator.current_accelerator(True) or torch.device("cpu")
data = questions.load(num_test=500)
Table(("type of the answer", "question"), [(e.label, e.text) for e in data.test[:3]])

# %% [markdown]
# The task is to decide what *kind* of answer a question asks for. We use TREC's six types (Li and Roth, 2002). The file
# contains most questions several times. Duplicates were removed before the split, so no test question was ever trained
# on.
#
# The model was never trained for this task. We put each question into a prompt and compare the probabilities of the six
# words that could answer it.

# %%
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=DEVICE)
tokenizer.padding_side = "left"  # so that the last position holds the last word
PROMPT, LENGTH = "Question: {}\nThe answer is a", 15
words = torch.tensor([tokenizer.encode(f" {label}")[0] for label in data.labels])
assert len(set(words.tolist())) == 6  # their first tokens differ


def encode(examples):
    """Tokens and mask (n, LENGTH), and the place of each label."""
    texts = [PROMPT.format(example.text) for example in examples]
    tokens = tokenizer(
        texts, return_tensors="pt", padding="max_length", max_length=LENGTH
    )
    return tokens.to(DEVICE), torch.tensor(
        [data.labels.index(example.label) for example in examples]
    )


def short(examples):
    """Questions of at most 8 tokens: a lesson has a minute."""
    return [
        example for example in examples if len(tokenizer(example.text).input_ids) <= 8
    ]


train, test = short(data.train)[:160], short(data.test)[:100]

# %% [markdown]
# ## The model of days 1 to 4, grown
#
# Is SmolLM2 a different kind of model? No. It is the course's own `GPT` with other numbers in its configuration: it is
# wider and deeper, and its vocabulary has 49,152 pieces of words where `TINY` has 256 bytes. The class that you have
# split, sharded and rounded on the previous days can therefore load these weights.

# %%
from dataclasses import fields, replace

from workshop.models.gpt import GPT, TINY

smol = model.config
grown = replace(
    TINY,
    vocab_size=smol.vocab_size,
    hidden_size=smol.hidden_size,
    num_layers=smol.num_hidden_layers,
    num_heads=smol.num_attention_heads,
    num_kv_heads=smol.num_key_value_heads,
    intermediate_size=smol.intermediate_size,
    tied=True,
    rope_theta=smol.rope_parameters["rope_theta"],
    norm_eps=smol.rms_norm_eps,
)
rows = []
for field in fields(grown):
    pair = (getattr(config, field.name) for config in (TINY, grown))
    rows.append((field.name, *(f"{n:,f}".rstrip("0").rstrip(".") for n in pair)))
print(Table(("field", "TINY", "SmolLM2"), rows))
with torch.device("meta"):  # shapes only; the weights will be SmolLM2's
    gpt = GPT(grown)
print(gpt.load_state_dict(model.state_dict(), assign=True))

# %%
prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids.to(DEVICE)
with torch.no_grad():
    ours, theirs = gpt(prompt), model(prompt).logits
torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)  # fp32, 30 layers
print("GPT's next word:", tokenizer.decode(ours[0, -1].argmax()))
del gpt

# %% [markdown]
# The logits are the same, so it is the same model. From here on we use transformers' version, because peft, this lesson's
# library, expects it.
#
# ## Below the lowest adapter
#
# An **adapter** is a small set of new weights that is trained while the model itself stays as it is (**frozen**).
#
# The backward pass goes from the loss down to the lowest trained weight and stops there. Below that point, only the
# forward pass is needed, and its result never changes. We can therefore compute it **once** for each question. We put
# adapters into the top six of the thirty layers, run the lower twenty-four over all questions now, and keep their output.
# Every method below starts from this output. (Adapters in all layers would have more to work with, but take five times as
# long.)
#
# We also compute only the logits of our six words: six rows of the head are enough.

# %%
import copy

BELOW = 24
layers, norm = model.model.layers, model.model.norm


@torch.no_grad()
def after_lower_layers(examples):
    """Hidden states (n, LENGTH, 576) after the lower layers, masks, and labels."""
    model.model.layers, model.model.norm = layers[:BELOW], torch.nn.Identity()
    model.config.num_hidden_layers = BELOW
    batches = []
    for begin in range(0, len(examples), 40):
        tokens, labels = encode(examples[begin : begin + 40])
        hidden = model.model(**tokens, use_cache=False).last_hidden_state
        batches.append((hidden, tokens.attention_mask, labels.to(DEVICE)))
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


train_hidden = after_lower_layers(train)
test_hidden = after_lower_layers(test)
model.model.layers, model.model.norm = layers[BELOW:], norm
model.config.num_hidden_layers = len(layers) - BELOW
model.config.use_cache = False
six = torch.nn.Linear(576, 6, bias=False, device=DEVICE)
six.weight.data.copy_(model.lm_head.weight[words])
model.lm_head, model.config.tie_word_embeddings = six, False

# %% [markdown]
# Each method gets a fresh copy of the upper layers, and all methods are judged on the same questions.


# %%
def fresh():
    """The upper layers as they were trained; copies share the embedding."""
    embedding = model.model.embed_tokens.weight
    return copy.deepcopy(model, {id(embedding): embedding})


def answers(upper, part, rows):
    """Logits (n, 6) of the six words."""
    hidden, mask = part[0][rows], part[1][rows]
    return upper(inputs_embeds=hidden, attention_mask=mask).logits[:, -1]


@torch.no_grad()
def accuracy(upper):
    """Share of the test questions whose type is the likeliest of the six words."""
    upper.eval()
    likeliest = answers(upper, test_hidden, torch.arange(len(test))).argmax(-1)
    return (likeliest == test_hidden[2]).float().mean().item()


zero_shot = accuracy(fresh())
most_common = test_hidden[2].bincount().max().item() / len(test)
print(f"zero-shot: {zero_shot:.0%} of {len(test)} questions")
print(f"always the most common type: {most_common:.0%}")
assert most_common < zero_shot < 0.5

# %% [markdown]
# This is a little better than always giving the most common type, but far from good. (The model knows these words, but it was never
# trained to sort questions by them.)
#
# ## LoRA
#
# LoRA (Hu et al., 2021) leaves a matrix W as it is and learns a change of low rank r beside it: $h = W x +
# \frac{\alpha}{r} B A x$. Here A has r rows and B has r columns. B starts at zero, so the model starts unchanged.
#
# ### Exercise: its forward

# %%
# %%exercise lora_forward
import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = ...
    return frozen + change


# %% [markdown]
# With your function as its forward, LoRA is a module of a few lines. It takes the place of a linear map. (The package has the same module in
# `workshop/adapt/lora.py`, and also DoRA, a variant that learns the length of each row of W as a weight of its own; it needs one more line.)


# %%
class LoRA(torch.nn.Module):
    """A frozen linear map with a change of low rank beside it."""

    def __init__(self, base, rank=8, alpha=16.0):
        super().__init__()
        self.base, self.alpha = base, alpha
        a = torch.empty(rank, base.in_features, device=base.weight.device)
        b = torch.zeros(base.out_features, rank, device=base.weight.device)
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)
        torch.nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, x):
        rows = x.flatten(0, -2)  # your function takes (tokens, inputs)
        rows = lora_forward(rows, self.base.weight, self.a, self.b, self.alpha)
        return rows.unflatten(0, x.shape[:-1])


def with_lora(model, rank=8):
    """Freeze all of a model, then put LoRA beside its queries and values."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            linear = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, LoRA(linear, rank))
    return model


# %% [markdown]
# ## Predict
#
# A change beside a matrix of shape `out x in` has `r (in + out)` weights. In each of the six layers we adapt the queries
# (576 to 576) and the values (576 to 192), with r = 8. **Predict** how many weights are trained, and how much memory that
# saves.

# %%
# %%guess lora_weights
# LoRA with r = 8 beside the queries (576 to 576) and the values (576 to 192)
# of six layers: how many weights are trained?
...

# %%
# %%guess lora_state --unit MB
# Full training of six layers and the embedding keeps 16 bytes for each of 49.6 million
# weights: 793 MB of weights, gradients and moments. How much of it is left with LoRA?
...

# %% [markdown]
# The course's predictor accepts an `Adapter`:

# %% tags=["nbval-check-output"]
from workshop import Adapter, Layout, ModelSpec, Run, predict_memory

UPPER = 30 - BELOW
spec = ModelSpec(
    "the upper layers", num_layers=UPPER, hidden_size=576, ffn_hidden_size=1_536,
    num_heads=9, num_kv_heads=3, vocab_size=49_152, tied_embeddings=True,
)  # fmt: skip
adapter = Adapter("lora", rank=8, targets=("q", "v"), base_bits=32)
ROWS, TOKENS = 2, 64


def predict(adapter):
    """Memory of a training step on language: logits at every position."""
    run = Run(
        spec, "this-machine", Layout(precision="fp32"), micro_batch=ROWS,
        seq_len=TOKENS, adapter=adapter, implementation="adapt",
    )  # fmt: skip
    return predict_memory(run)


STATE = ("weights", "gradients", "optimizer")  # the optimizer holds the moments
counts = {"full": spec.num_params, "lora": adapter.params(spec)}
state, rows = {}, []
for name, chosen in (("full", None), ("lora", adapter)):
    parts = predict(chosen).parts
    state[name] = sum(float(parts[part][0]) for part in STATE if part in parts)
    rows.append((name, f"{counts[name]:,}", f"{state[name] / 1e6:.1f} MB"))
assert 0.25 < state["lora"] / state["full"] < 0.26
assert adapter.params(spec) == UPPER * 8 * (2 * 576 + 576 + 192)
Table(("training", "weights trained", "weights, gradients, moments"), rows)

# %% [markdown]
# ## By hand and by the library
#
# peft is the library that most people use for adapters: a configuration and one call. If we copy our A and B into its
# LoRA, the two must agree, forward and backward.

# %% tags=["nbval-check-output"]
from workshop.adapt import lora, methods

torch.manual_seed(0)
ours = with_lora(fresh())
config = peft.LoraConfig(
    r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
)
with quietly():  # hides warnings about names that will change
    theirs = peft.get_peft_model(fresh(), config)
pairs = []
for name, module in ours.named_modules():
    if isinstance(module, LoRA):
        other = theirs.get_submodule(f"base_model.model.{name}")
        # if B stayed zero, the logits would be equal whatever A is
        torch.nn.init.normal_(module.b, std=0.02)
        pairs += [
            (module.a, other.lora_A["default"].weight),
            (module.b, other.lora_B["default"].weight),
        ]
for mine, its in pairs:
    its.data.copy_(mine)

# %% tags=["nbval-check-output"]
rows = torch.arange(4)
a, b = answers(ours, train_hidden, rows), answers(theirs, train_hidden, rows)
for logits in (a, b):
    torch.nn.functional.cross_entropy(logits, train_hidden[2][rows]).backward()
assert (a - b).abs().max() < 1e-4
for mine, its in pairs:
    torch.testing.assert_close(mine.grad, its.grad, atol=1e-5, rtol=1e-3)
trained = lora.num_trainable(ours)
print(f"logits and {len(pairs)} gradients: equal; trained by either: {trained:,}")
assert trained == lora.num_trainable(theirs) == adapter.params(spec)

# %%
by_rule = UPPER * (8 * (576 + 576) + 8 * (576 + 192))
beside("lora_weights", predicted=by_rule, measured=trained)

# %% [markdown]
# ## Run
#
# We train for twenty steps of eight questions each, so the model sees each of the 160 training questions once. The
# optimizer is AdamW, and the learning rate falls to zero.


# %%
def teach(upper, rate, steps=20, seed=0, part=train_hidden):
    """Train what is trainable on the questions; returns the losses."""
    trained = methods.trained(upper).values()
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0, fused=True)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    upper.train()
    losses = []
    for step in range(steps):
        warm, left = min(1, (step + 1) / 5), 1 - step / steps
        optimizer.param_groups[0]["lr"] = rate * warm * left
        rows = order[8 * step : 8 * step + 8]
        logits, labels = answers(upper, part, rows), part[2][rows]
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %%
torch.manual_seed(0)
adapted = with_lora(fresh())
losses = teach(adapted, rate=5e-3)
by_lora = accuracy(adapted)
print(f"zero-shot {zero_shot:.0%}, with your LoRA {by_lora:.0%}; trained {trained:,}")
assert by_lora > zero_shot + 0.15

# %% [markdown]
# The accuracy is well over fifteen points higher. We trained less than half a percent of these layers' weights, on 160
# questions that were each seen once.
#
# ### Merge
#
# The sum $W + \frac{\alpha}{r} B A$ is again one matrix. If we **merge** the adapter, which means that this sum replaces
# W, the model has its old shape and its old speed, and it gives the same outputs. (Without merging, one frozen model can
# serve many tasks: what a task adds is the adapter, here 92,160 numbers, or 0.4 MB in fp32.)

# %% tags=["nbval-check-output"]
with torch.no_grad():
    apart = answers(adapted, test_hidden, torch.arange(40))
    for layer in adapted.model.layers:
        for name in ("q_proj", "v_proj"):
            module = getattr(layer.self_attn, name)
            module.base.weight += module.alpha / len(module.a) * module.b @ module.a
            setattr(layer.self_attn, name, module.base)  # a plain linear layer again
    within = answers(adapted, test_hidden, torch.arange(40))
difference = (apart - within).abs().max().item()
assert not any(isinstance(module, LoRA) for module in adapted.modules())
assert difference < 1e-4 * max(1.0, apart.abs().max().item())
print("merged and unmerged agree to 1e-4")

# %% [markdown]
# ## How little?
#
# Rank 8 was our choice. The lowest possible rank is 1: A has a single row and B a single column, so there are an eighth
# as many weights. α stays at 16. (The factor α / r therefore changes with the rank; we come back to this below.)

# %%
# %%guess rank_one
# With rank 1 instead of 8, by how many percentage points is accuracy lower?
...

# %%
torch.manual_seed(0)
lowest = with_lora(fresh(), rank=1)
teach(lowest, rate=5e-3)
by_lowest, fewest = accuracy(lowest), lora.num_trainable(lowest)
print(
    f"rank 8: {trained:,} weights, {by_lora:.0%}; rank 1: {fewest:,}, {by_lowest:.0%}"
)
assert fewest == trained // 8
assert by_lowest > zero_shot + 0.1
two_errors = 2 * (2 * by_lora * (1 - by_lora) / len(test)) ** 0.5
assert abs(by_lora - by_lowest) < two_errors
print(f"two standard errors of a difference: {100 * two_errors:.0f} points")
beside("rank_one", measured=100 * (by_lora - by_lowest))

# %% [markdown]
# With only a hundred questions, we cannot tell the two apart.
#
# ### What a fair comparison holds fixed
#
# Two things changed in this comparison: the rank, and with it the factor α / r, which is 2 at rank 8 and 16 at rank 1.
# Should the factor have stayed at 2, with α = 2 at rank 1?
#
# Consider the first step. B is zero, and AdamW moves each of its weights by about the learning rate, whatever the size
# of the gradient. The change B A x is a sum over r columns of B. Each column is moved to lower the same loss, so these r
# parts add up, and the sum grows with r. The factor α / r divides by r again. If this is right, α alone decides how far
# one step moves the output, and ranks are compared at one step size when α stays the same.
#
# We can measure it: take one step, and see how far the logits of test questions move. Each setting is repeated with
# three seeds, which choose A and the order of the questions. To save time, we adapt only the last two layers here and
# compute what comes before them once.

# %%
TOP, SEEDS, RANKS = 2, range(3), (1, 8, 64)


@torch.no_grad()
def below_top(part):
    """Hidden states (n, LENGTH, 576) below the last two layers, masks, and labels."""
    lower = fresh()
    lower.model.layers = lower.model.layers[:-TOP]
    lower.model.norm = torch.nn.Identity()
    lower.config.num_hidden_layers = UPPER - TOP
    hidden = lower.model(inputs_embeds=part[0], attention_mask=part[1])
    return hidden.last_hidden_state, *part[1:]


train_top, test_top = below_top(train_hidden), below_top(test_hidden)


@torch.no_grad()
def test_logits(top, count):
    """Logits (count, 6) of the first test questions."""
    return answers(top.eval(), test_top, torch.arange(count))


# %%
def wrapped(upper, config):
    """Ready to train: with a configuration as peft does it, without one in full."""
    upper.requires_grad_(config is None)
    if config:
        with quietly():
            upper = peft.get_peft_model(upper, config)
    for stays in (upper.get_input_embeddings(), upper.get_output_embeddings()):
        stays.requires_grad_(False)
    return upper


def lora_config(rank, alpha, targets=("q_proj", "v_proj")):
    return peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets))


def two_layers(config, seed=0, steps=20, rate=5e-3):
    """The last two layers, trained."""
    torch.manual_seed(seed)
    top = fresh()
    top.model.layers, top.config.num_hidden_layers = top.model.layers[-TOP:], TOP
    top = wrapped(top, config)
    teach(top, rate, steps, seed, part=train_top)
    return top


before = test_logits(two_layers(lora_config(1, 16), steps=0), 20)


def moved(rank, alpha):
    """How far one step moves the logits (root mean square), averaged over seeds."""
    tops = [two_layers(lora_config(rank, alpha), seed, steps=1) for seed in SEEDS]
    changes = [test_logits(top, 20) - before for top in tops]
    sizes = [change.square().mean().sqrt().item() for change in changes]
    return sum(sizes) / len(sizes)


# %%
at_one_alpha = [moved(rank, 16) for rank in RANKS]
at_one_factor = [moved(rank, 2 * rank) for rank in RANKS]
rows = [
    (name, *(f"{size:.4f}" for size in sizes))
    for name, sizes in (("alpha = 16", at_one_alpha), ("alpha / r = 2", at_one_factor))
]
assert max(at_one_alpha) < 2 * min(at_one_alpha)
low, middle, high = at_one_factor
assert middle > 4 * low
assert high > 4 * middle
head = [f"rank {rank}" for rank in RANKS]
Table(("one step moves the logits by", *head), rows)

# %% [markdown]
# With α at 16, the three ranks move the logits about equally far, within a factor of two. With α / r at 2, eight times
# the rank moves them several times as far. A comparison at one α / r would therefore give rank 1 smaller steps than
# rank 8, as if its learning rate were lower.
#
# This is what the division by r is for. The LoRA paper sets α once and leaves it there, so that there is less to tune
# again when r changes (section 4.1). Both comparisons, now with all twenty steps:

# %%
from workshop import show


def test_loss(top):
    """Loss on all test questions."""
    logits = test_logits(top, len(test))
    return torch.nn.functional.cross_entropy(logits, test_top[2]).item()


by_setting = {}
for rank, alpha in ((8, 16), (1, 16), (1, 2)):
    config = lora_config(rank, alpha)
    losses = [test_loss(two_layers(config, seed)) for seed in SEEDS]
    by_setting[f"rank {rank}, alpha {alpha}"] = losses
rows = [
    (name, *(f"{value:.2f}" for value in values)) for name, values in by_setting.items()
]
print(Table(("loss on the test questions", *(f"seed {seed}" for seed in SEEDS)), rows))
for eight, same_alpha, same_factor in zip(*by_setting.values(), strict=True):
    assert abs(same_alpha - eight) < 0.3
    assert same_factor - eight > 0.6
show.spread(by_setting, "loss on the test questions, a dot for each seed")

# %% [markdown]
# At one α, rank 1 and rank 8 end at nearly the same loss, with each of the three seeds. At one α / r, rank 1 ends far
# behind, although its adapter has the same shape: what it lacked was the size of its steps, not rank.
#
# So in these twenty steps we find no difference between the ranks. That is less than a proof that rank 1 is enough: we
# tried one α and one learning rate, and a complete comparison searches them for each rank.
#
# The LoRA paper also finds little difference. With GPT-3 and LoRA beside queries and values, ranks 1, 8 and 64 reach
# 73.4, 73.8 and 73.5 percent on WikiSQL, and 91.3, 91.6 and 91.4 percent on MultiNLI, where the standard deviation
# between seeds is 0.5 and 0.1 (table 6, section 7.2; table 4, at the end of this lesson, has slightly different
# numbers). Its authors do not expect a small rank to be enough for every task (footnote 6).
#
# For large ranks, a later paper argues for α / √r ([arXiv:2312.03732](https://arxiv.org/abs/2312.03732)), which peft's
# `LoraConfig` offers as `use_rslora=True`; our short runs cannot judge that.
#
# ### What rate?
#
# We trained LoRA at a rate of 0.005. Would a rate that suits full training have done as well? At a rate of 0.001, twenty
# steps of *full* training of the last two layers bring the loss on the test questions from 3.2 to about 1.

# %%
# %%guess lora_at_full_rate
# LoRA at the same rate of 0.001, from the same loss of 3.2: to what loss?
...

# %%
import json

from workshop.facts.tree import ROOT
from workshop.show.style import Picture, legend, name_axes, new_figure

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WAYS = {
    "full": None,
    "LoRA, queries and values": lora_config(8, 16),
    "LoRA, all seven matrices": lora_config(8, 16, SEVEN),
}
RATES = (1e-4, 1e-3, 1e-2, 3e-2)


def losses_by_rate(config, seed=0):
    return [test_loss(two_layers(config, seed, rate=rate)) for rate in RATES]


# %%
def check_rates(full, attention, seven):
    assert full[1] < 1.4
    assert full.index(min(full)) <= 1 < 2 <= attention.index(min(attention))
    assert attention[1] > 2.5
    assert seven[1] < attention[1] - 0.5


by_rate = {name: losses_by_rate(config) for name, config in WAYS.items()}
check_rates(*by_rate.values())
record = ROOT / "data" / "measurements" / "adapter_seeds.json"
for of_seed in zip(*json.loads(record.read_text())["by_rate"].values(), strict=True):
    check_rates(*of_seed)
lowest = ", ".join(f"{name} {min(losses):.2f}" for name, losses in by_rate.items())
rows = [(name, *(f"{loss:.2f}" for loss in losses)) for name, losses in by_rate.items()]
head = [f"rate {rate:g}" for rate in RATES]
print(Table(("loss on the test questions", *head), rows))
figure, axis = new_figure(6.4, 2.8)
for name, losses in by_rate.items():
    axis.plot(RATES, losses, "o-", label=name)
axis.set_xscale("log")
name_axes(axis, "learning rate", "loss on the test questions")
legend(figure, 3)
Picture(figure, f"loss on the test questions by learning rate; lowest: {lowest}")

# %%
at_full_rate = by_rate["LoRA, queries and values"][1]
beside("lora_at_full_rate", measured=round(at_full_rate, 1))

# %% [markdown]
# LoRA has hardly moved at 0.001, and it is at its best at a rate at least ten times as high as full training. (The cell checks
# this with two more seeds, from the record of `benchmarks/adapter_seeds.py`.) Why? AdamW moves each weight
# that it trains by up to about the rate at each step. Full training moves W itself. LoRA moves B, which starts at zero,
# and B reaches W only through A, whose entries start at $1/\sqrt{576}$, about 0.04, at the most. The same rate therefore
# changes W much less. (So the loss at one common rate says little about two methods: compare each at its own best rate.)
#
# It also matters *where* the adapters are. Beside all seven matrices of a layer, LoRA of the same rank, which then has more
# weights, learns at a rate of 0.001, at which it hardly does beside queries and values. In much longer runs on Llama
# models, J. Schulman and Thinking Machines Lab (*LoRA Without Regret*, 2025) report the same two things: LoRA's best rate is
# about ten times that of full training, and LoRA beside the attention matrices only is worse than beside all. The script at
# the end therefore uses `all-linear`.
#
# ### Other methods
#
# | method | what is trained |
# |---|---|
# | full | all weights of these layers |
# | IA3 | one factor for each key, value and hidden unit of the MLP |
# | prompt tuning | eight vectors in front of the text; no weight of the model |
#
# Each of them gets its own rate, which we chose and did not search: a method that trains only a few factors has to change
# them a lot. (Full training of six layers gets 0.0001.)

# %%
results = {
    "zero-shot": (0, zero_shot),
    "lora, r = 8": (trained, by_lora),
    "lora, r = 1": (fewest, by_lowest),
}
del ours, theirs, adapted, lowest


def trained_by(config, rate):
    """Trained weights and accuracy of another method, taught in the same way."""
    torch.manual_seed(0)
    upper = wrapped(fresh(), config)
    teach(upper, rate)
    return lora.num_trainable(upper), accuracy(upper)


results["full"] = trained_by(None, rate=1e-4)

# %%
config = peft.IA3Config(
    target_modules=["k_proj", "v_proj", "down_proj"],
    feedforward_modules=["down_proj"],
    task_type="CAUSAL_LM",
)
results["ia3"] = trained_by(config, rate=5e-2)

# %%
config = peft.PromptTuningConfig(num_virtual_tokens=8, task_type="CAUSAL_LM")
results["prompt"] = trained_by(config, rate=1e-1)
rows = [(name, f"{n:,}", f"{share:.0%}") for name, (n, share) in results.items()]
assert all(share > zero_shot + 0.1 for _, share in list(results.values())[1:])
assert 200 < results["full"][0] / trained < 250
assert results["ia3"][0] == fewest  # the same number, by chance
assert results["prompt"][0] == 8 * 576
assert 4_000 < results["full"][0] / results["prompt"][0] < 5_000
shares = [share for _, share in list(results.values())[1:]]
*_, second, first = sorted(shares)  # the two best
assert first - second < 2 * (2 * first * (1 - first) / len(test)) ** 0.5
assert by_lora < results["full"][1]
Table(("method", "weights trained", "accuracy"), rows)

# %%
from workshop import show

show.accuracy_by_trained(results, questions=len(test))

# %% [markdown]
# (Each bar extends two standard errors up and down: $2\sqrt{p(1-p)/100}$ for a share p of a hundred questions. IA3 and
# LoRA of rank 1 train the same number of weights, so their points are drawn side by side.)
#
# How little is enough? The numbers of trained weights differ by a factor of several thousand, and yet all methods learn the task, even eight vectors
# in front of the text. This experiment cannot decide which method is best: the two best differ by less than two standard errors of their difference.
# LoRA comes out behind full training here. With a hundred questions, this may be chance. LoRA was also given only the queries and values, and each
# method only one learning rate, which was not searched. (Prompt tuning works better the larger the model is: in figure 1 of Lester et al. 2021, it
# catches up with full training at ten billion parameters.)
#
# ## Compare: memory
#
# Now we measure the memory that we predicted, in a separate process, so that nothing left over from the cells above
# counts. Each method takes two training steps on random tokens. This time the model computes logits at every position
# with its whole head, because that is what memory is spent on.

# %%
# %%torchrun -n 1 --pass ROWS,TOKENS,UPPER --into memory
import os

# otherwise DeepSpeed, which peft imports, prints a warning
os.environ["DS_ACCELERATOR"] = "cpu"
import gc

import torch

from workshop import report
from workshop.adapt import lora, methods
from workshop.assets import language_model
from workshop.measure import measure


def one_step(method):
    """Peak bytes of two training steps, and what was trained."""
    model, _ = language_model.load("smollm2", num_layers=UPPER, dtype=torch.float32)
    model.config.use_cache = False
    model = methods.adapt(model, method)  # it calls peft as above
    optimizer = torch.optim.AdamW(methods.trained(model).values(), lr=1e-3, fused=True)
    tokens = torch.randint(49_152, (ROWS, TOKENS))
    gc.collect()
    with measure(model, optimizer) as measured:
        for _ in range(2):
            logits = model(input_ids=tokens).logits[:, -TOKENS:]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens.flatten()
            )
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    parts = measured.memory.peak_parts
    state = sum(parts.get(part, 0) for part in ("weights", "gradients", "optimizer"))
    peak = measured.memory.peak_bytes
    return {"trained": lora.num_trainable(model), "peak": peak, "state": state}


for method in ("full", "lora"):
    report(**{method: one_step(method)})
    gc.collect()

# %%
expected = {"full": predict(None).peak_bytes, "lora": predict(adapter).peak_bytes}
rows = []
for method, predicted in expected.items():
    count, peak = memory[0][method]["trained"], memory[0][method]["peak"]
    held = memory[0][method]["state"]
    assert abs(state[method] / held - 1) < 0.01
    sizes = (f"{size / 1e6:,.1f} MB" for size in (held, predicted, peak))
    rows.append((method, f"{count:,}", *sizes))
assert memory[0].lora["trained"] == adapter.params(spec)
assert abs(expected["lora"] / memory[0].lora["peak"] - 1) < 0.02
more = memory[0].full["peak"] - expected["full"]
assert abs(more - 2 * 4 * 49_152 * 576) < 0.02 * memory[0].full["peak"]
head = "weights, gradients, moments", "peak, predicted", "peak, measured"
Table(("method", "weights trained", *head), rows)

# %%
beside(
    "lora_state", predicted=state["lora"] / 1e6, measured=memory[0].lora["state"] / 1e6
)

# %% [markdown]
# For LoRA, the prediction is within two percent of the measured peak, and the number of trained weights is exact. *Full*
# training needs about 225 MB more than predicted. The reason is that this model uses one matrix both as embedding and as
# head. The backward pass makes two gradients of that matrix, 113 MB each, and adds them into a third. The prediction
# counts one of the three.
#
# LoRA saves three quarters of the *state* (weights, gradients and moments): nearly all gradients and moments are gone, and
# the frozen weights stay. Most of the **activations** stay, too: a frozen matrix no longer needs its inputs for a gradient
# of its own, but the backward pass still goes through every layer. The next lesson makes the frozen weights smaller.
#
# ## At scale
#
# The next cell does the same arithmetic for Llama 3.1 with 8 and 70 billion parameters. Full training keeps 16 bytes for
# each weight. With LoRA of rank 16 beside every matrix, the frozen weights are in bf16, and only the adapter takes 16 bytes
# a weight. Below are rows from the LoRA paper (Hu et al., table 4), for GPT-3 with LoRA beside queries and values: our
# count of weights equals theirs.

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

rows = []
for name in ("llama-3.1-8b", "llama-3.1-70b"):
    large = catalogue.model(name)
    beside_all = Adapter("lora", rank=16, targets=("all",), base_bits=16)
    trained = beside_all.params(large)
    full = 16 * large.num_params
    adapted = 2 * large.num_params + 16 * trained
    sizes = f"{full / 1e9:,.1f} GB", f"{adapted / 1e9:,.1f} GB"
    rows.append((name, *sizes, f"{trained / large.num_params:.2%}"))
    assert adapted < full / 7
print(Table(("model", "full", "LoRA", "share trained"), rows), end="\n\n")
rows = [("full", "all", "175,255.8 M", "73.8 %", "89.5 %")]
for rank, published, on_wikisql, on_mnli in (
    (1, 4.7, 73.4, 91.7),
    (8, 37.7, 74.0, 91.6),
):
    adapter = Adapter("lora", rank=rank, targets=("q", "v"))
    trained = adapter.params(catalogue.model("gpt3-175b")) / 1e6
    shares = f"{on_wikisql} %", f"{on_mnli} %"
    rows.append((f"LoRA, r = {rank}", f"{trained:.1f} M", f"{published} M", *shares))
    assert round(trained, 1) == published
head = "weights trained", "published", "WikiSQL", "MNLI"
print(Table(("GPT-3 175B", *head), rows))

# %% [markdown]
# ## Tomorrow's script
#
# This script trains with LoRA through peft, without this workshop. `MODEL=folder python train_lora.py` takes your model
# from a folder in the format that transformers saves. Without a folder, it takes a small model that knows nothing. In both
# cases it trains on a toy task, token ids that count up: put your own token ids in the place marked "yours".
#
# The script saves the adapter alone and resumes from it if it is there. At the end it merges the adapter and compares the
# merged model with the one that has the adapter beside it. Most models are loaded in bf16, and there the merged weights
# are rounded, so the script compares in fp32.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_lora")

# %% tags=["script"]
# %%torchrun -n 1 --save {folder}/train_lora.py
import os
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore", FutureWarning)  # peft uses names that will change
device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
torch.manual_seed(0)
folder = os.environ.get("MODEL", "")  # yours, or else a small untrained one
if folder:
    base = AutoModelForCausalLM.from_pretrained(folder)
else:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    rest = {"num_attention_heads": 4, "vocab_size": 32, "initializer_range": 0.2}
    base = LlamaForCausalLM(LlamaConfig(**shape, **rest))
saved, first = Path(os.environ.get("CHECKPOINT", "train_lora")), 0
if (saved / "adapter_config.json").exists():
    model = PeftModel.from_pretrained(base, saved, is_trainable=True)
else:
    wanted = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    model = get_peft_model(base, wanted)  # B starts at zero, so nothing changes yet
model.to(device)
trained = [p for p in model.parameters() if p.requires_grad]
rate = 2e-4 if folder else 1e-2  # the small one has only three epochs
optimizer = torch.optim.AdamW(trained, lr=rate)
if (saved / "optimizer.pt").exists():
    state = torch.load(saved / "optimizer.pt", map_location=device, weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1
count, every = sum(p.numel() for p in trained), model.num_parameters()
print(f"{count:,} of {every:,} parameters are trained")

starts = torch.arange(32)  # each text counts up from its first token, modulo 32
texts = ((starts[:, None] + torch.arange(16)) % 32).to(device)  # yours: token ids
for epoch in range(first, first + 3):
    order = torch.randperm(32, generator=torch.Generator().manual_seed(epoch))
    total = 0.0
    for batch in order.to(device).repeat(4).split(8):
        loss = model(input_ids=texts[batch], labels=texts[batch]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() / 16
    print(f"epoch {epoch}: mean loss {total:.3f}")
    model.save_pretrained(saved)  # the adapter only
    state = {"optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, saved / "optimizer.pt")

probe = texts[:4]
model.float().eval()  # in bf16, rounding would hide what the merge does
with torch.no_grad():
    beside = model(input_ids=probe).logits
    merged = model.merge_and_unload()(input_ids=probe).logits  # no adapter is left
torch.testing.assert_close(merged, beside, rtol=1e-3, atol=1e-3)

# %% [markdown]
# **On a GPU:** where and when this lesson ran on one, and which of its cells printed something else there.

# %% tags=["gpu-record"]
show.recorded_run("51_adapters")

# %% [markdown]
# ## What to take away
#
# - LoRA trains **r (in + out)** numbers beside a matrix. Here that was less than half a percent of these layers, for more
#   than fifteen points. Rank 1, with an eighth of that, did equally well at the same α, as far as a hundred questions
#   and three seeds can tell.
# - Written by hand, LoRA is a dozen lines and equal to peft's. Once merged, it adds nothing to the cost of a forward pass.
# - LoRA saves gradients and moments, about 12 of 16 bytes a parameter. The frozen weights stay, and most activations.
# - Below the lowest adapter there is no backward pass, and the forward pass can be computed once.
# - The scale is **alpha / r**. With AdamW, how far the first step goes then depends on alpha, not on the rank. We
#   compared ranks at one alpha; at one alpha / r, rank 1 takes smaller steps and learns less.
# - LoRA needs a higher rate than full training: here at least ten times as high, in the same twenty steps. It learns more
#   beside all matrices of a layer than beside two of them.
#
# Next: [52_qlora](52_qlora.ipynb), which keeps the frozen weights in four bits.
#
# ## Sources
#
# - E. Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022, [arXiv:2106.09685](https://arxiv.org/abs/2106.09685): equation 3, section 4.1, tables 4 and 6.
# - J. Schulman and Thinking Machines Lab, *LoRA Without Regret*, 2025, [thinkingmachines.ai/blog/lora](https://thinkingmachines.ai/blog/lora/).
# - D. Kalajdzievski, *A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA*, 2023, [arXiv:2312.03732](https://arxiv.org/abs/2312.03732).
# - S. Liu et al., *DoRA: Weight-Decomposed Low-Rank Adaptation*, ICML 2024, [arXiv:2402.09353](https://arxiv.org/abs/2402.09353).
# - B. Lester, R. Al-Rfou, N. Constant, *The Power of Scale for Parameter-Efficient Prompt Tuning*, EMNLP 2021, [arXiv:2104.08691](https://arxiv.org/abs/2104.08691): figure 1.
# - H. Liu et al., *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning* (IA3), NeurIPS 2022, [arXiv:2205.05638](https://arxiv.org/abs/2205.05638).
# - X. Li, D. Roth, *Learning Question Classifiers*, COLING 2002. The model: L. Ben Allal et al., *SmolLM2*, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737).
