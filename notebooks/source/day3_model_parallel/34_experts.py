# %% [markdown]
# # More parameters, same FLOPs: how do tokens find their experts?
#
# - **You need** `12_flops_and_mfu`, `21_collectives` (all_to_all), `22_ddp`.
# - **It takes** 35 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on four ranks where ranks are needed. The same cells are meant for four GPUs, but nobody has tried
#   that yet: the run at the end of this page had only one. The last part rehearses 256 ranks.
# - **Model and text:** `TINY` and the reference manual, with eight experts in place of each gated network. Some steps need only a single
#   mixture layer and random vectors. The last part uses the widths of DeepSeek-V3.
# - **Links:** before this [33_context_parallel](33_context_parallel.ipynb), after it [35_mesh](35_mesh.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# Larger models usually reach a lower loss, but every parameter costs two FLOPs per token in the forward and four in the backward.
# Can we avoid that? A **mixture of experts** replaces one gated network by many, and a small *router* picks a few of them for each token.
# The model has many parameters, but each token uses only some of them.
#
# All of them still have to be stored somewhere. How are experts spread over ranks, what does it cost to send tokens to them,
# and what happens if all tokens want the same expert?

# %%
# %load_ext workshop
from workshop import show
from workshop.exercises import beside
from workshop.facts import catalogue
from workshop.facts.tabular import Table

# %% [markdown]
# **Predict:** how large does a model become in this way? Take Mixtral, a published one.

# %%
# %%guess mixtral --unit billion
# Mixtral 8x7B has the shape of Mistral 7B, with eight experts in place of the gated
# network of each layer. How many billion parameters does it have?
...

# %% tags=["nbval-check-output"]
rows = []
for name, published in {"mixtral-8x7b": (47, 13), "deepseek-v3": (671, 37)}.items():
    model = catalogue.model(name)
    expert = 3 * model.hidden_size * model.moe_ffn_hidden_size  # three matrices
    layers = model.num_layers - model.first_dense_layers
    resting = layers * (model.num_experts - model.experts_per_token) * expert
    embedding = model.vocab_size * model.hidden_size  # a token uses one row of it
    used = model.num_params - resting - embedding
    experts = f"{layers} x {model.num_experts}", f"{expert / 1e6:.1f} million"
    counts = f"{model.num_params / 1e9:.1f} billion", f"{used / 1e9:.1f} billion"
    rows.append((name, *experts, str(model.experts_per_token), *counts))
    assert (round(model.num_params / 1e9), round(used / 1e9)) == published
head = ("", "layers x experts", "one expert", "a token's experts")
Table((*head, "all parameters", "a token uses"), rows)

# %%
beside("mixtral", calculated=catalogue.model("mixtral-8x7b").num_params / 1e9)

# %% [markdown]
# Mixtral has 47 billion parameters, of which a token uses 13 billion, as published (Jiang et al., 2024). The total is less than 8 x 7, because
# only the gated networks exist eight times; attention does not. So the model costs as many FLOPs as a model of 13 billion parameters, and
# as much memory as a model of 47 billion. The second line is DeepSeek-V3, which has many more and smaller experts: 671 and 37 (DeepSeek-AI, 2024).
#
# ## A router, by hand
#
# A router is one matrix, followed by a softmax. (DeepSeek-V3 takes a sigmoid of each number instead.) It gives each expert a score $p_i$. The $k$
# experts with the best scores each compute an answer, and the answers are weighted by these scores, scaled so that they add up to one:
#
# $$y = \sum_{i \in \text{best } k} \frac{p_i}{\sum_{j \in \text{best } k} p_j} \, \text{expert}_i(x), \qquad p = \text{softmax}(W x)$$
#
# ### Exercise: the router


# %%
# %%exercise route
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = ...  # (tokens, experts)
    chosen = ...  # (tokens, k): numbers of experts
    weights = ...  # (tokens, k): these add up to one for each token
    return weights, chosen


# %% [markdown]
# The simplest way to write the rest is a loop over tokens. `workshop.models.moe.MoE` sorts the tokens by expert instead, so that
# each expert runs once, on all its tokens together. Does the loop with your router give the same answers?

# %% tags=["nbval-check-output"]
import torch
import torch.nn.functional as F

from workshop.models.moe import MoE, MoEConfig

torch.manual_seed(0)
config = MoEConfig(hidden_size=32, intermediate_size=48, num_experts=8, top_k=2)
mixture = MoE(config)
x = torch.randn(6, 32)


def answer(number, token):
    """What one expert makes of one token."""
    gate, up = F.linear(token, mixture.experts.gate_up_proj[number]).chunk(2)
    return F.linear(F.silu(gate) * up, mixture.experts.down_proj[number])


by_hand = []
weights, chosen = route(x @ mixture.gate.weight.T, 2)
for token, its_weights, its_experts in zip(x, weights, chosen, strict=True):
    answers = [answer(number, token) for number in its_experts]
    by_hand.append(sum(w * one for w, one in zip(its_weights, answers, strict=True)))
by_hand = torch.stack(by_hand)
torch.testing.assert_close(by_hand, mixture(x[None])[0], rtol=1e-4, atol=1e-7)
print("your router and a loop over tokens, and the sorted mixture: equal")

# %% [markdown]
# Next we compare with Mixtral's own layer from the library *transformers*. Its weights have the same names as ours, so it can load them:

# %% tags=["nbval-check-output"]
from workshop.process.quiet import quietly

with quietly():  # the import prints messages
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import (
        MixtralSparseMoeBlock,
        load_balancing_loss_func,
    )

theirs = MixtralSparseMoeBlock(
    MixtralConfig(
        hidden_size=32,
        intermediate_size=48,
        num_local_experts=8,
        num_experts_per_tok=2,
        experts_implementation="eager",
    )
)
theirs.load_state_dict(mixture.state_dict())
torch.testing.assert_close(by_hand, theirs(x[None])[0], rtol=1e-4, atol=1e-7)
print("your router and a loop over tokens, and Mixtral's layer in transformers: equal")

# %% [markdown]
# ## When all tokens want the same expert
#
# Nothing forces a router to use all experts. An expert that is a little better than the others gets more tokens, learns more from them, and
# becomes better still.
#
# The classic cure is an additional loss (Switch Transformer, Fedus et al., 2021): $N \sum_i f_i P_i$, where $f_i$ is the share of choices that fell
# on expert $i$, and $P_i$ is its mean score. This loss is 1 if all experts are used equally. The worst case depends on how many experts a token
# chooses. If all tokens choose the same $k$ experts, each of these has a share of $1/k$, and the loss is $N / k$. That is $N$ for the Switch
# Transformer, where a token chooses one expert, and 8 / 2 = 4 here. The next cell tests the worst case, for k = 1 and k = 2.

# %% tags=["nbval-check-output"]
rows = []
for k in (1, 2):  # all tokens choose the same k experts
    same = MoE(MoEConfig(32, 48, num_experts=8, top_k=k)).gate
    with torch.no_grad():
        same.weight.zero_()[:k] = 5.0
    crowd = torch.randn(1024, 32) + 1
    ours = same(crowd).balance.item()
    library = load_balancing_loss_func((crowd @ same.weight.T,), 8, k).item()
    rows.append((str(k), f"{8 / k:.2f}", f"{ours:.2f}", f"{library:.2f}"))
    assert abs(ours - 8 / k) < 1e-3
    assert abs(library - k * ours) < 1e-3
Table(("k", "N / k", "by the formula", "in transformers"), rows)

# %% [markdown]
# Mind this factor if you copy a coefficient: transformers adds up the shares of first and second choices, so its loss is $k$
# times the formula's. In training, a small multiple of this loss (for example a hundredth) is added to the loss of the model.
#
# We now train `TINY` with eight experts in each layer, without the balance loss and with it, from three seeds each.

# %%
from workshop.models.gpt import GPT, TINY
from workshop.models.moe import balance_of, with_experts
from workshop.models.text import TextBatches

# Two experts of half the width cost a token about as much as TINY's one network.
half = TINY.intermediate_size // 2
eight = MoEConfig(TINY.hidden_size, half, num_experts=8, top_k=2)
batches = TextBatches(seq_len=64, global_batch=8)


torch.set_num_threads(1)  # more threads would hardly help a model this small


def trained(coefficient, seed, steps=120):
    """Shares of choices, (steps, layers, experts), and the losses of the model."""
    torch.manual_seed(seed)
    model = with_experts(GPT(TINY), eight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shares, losses = [], []
    for step in range(steps):
        ((inputs, targets),) = batches.step(step, torch.device("cpu"))
        loss = model(inputs, targets)
        (loss + coefficient * balance_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
        mixtures = [layer.mlp for layer in model.model.layers]
        shares.append([m.gate.shares(m.routing.expert).tolist() for m in mixtures])
        losses.append(loss.item())
    return torch.tensor(shares), losses


# %%
coefficients = {"left alone": 0.0, "with the balance loss": 0.01}
rows, trainings, late = [], {}, {}
for name, coefficient in coefficients.items():
    for seed in range(3):
        trainings[name, seed] = shares, losses = trained(coefficient, seed)
        two_busiest = shares[:30, 1].topk(2).values.sum(-1).mean()
        # of each layer and expert, the mean over the last 20 steps
        first, second = late[name, seed] = shares[-20:].mean(0)
        percent = (f"{x:.0%}" for x in (two_busiest, second.max(), first.max()))
        rare, loss = (second < 0.02).sum().item(), sum(losses[-20:]) / 20
        rows.append((name, str(seed), *percent, str(rare), f"{loss:.2f}"))
        assert two_busiest > 0.6
for seed in range(3):
    alone, balanced = (late[name, seed][1] for name in coefficients)
    assert alone.max() > balanced.max() + 0.05
    assert (alone < 0.02).sum() > 1
head = ("two busiest, early", "busiest, late", "busiest of layer 0, late")
caption = "Shares of all choices in layer 1. Early: first 30 steps; late: last 20."
Table(("", "seed", *head, "experts below 2 %, late", "loss, late"), rows, caption)

# %%
show.expert_shares(
    {f"layer 1, {name}": trainings[name, 0][0][:, 1].tolist() for name in coefficients}
)

# %% [markdown]
# The picture shows the trainings with seed 0. Each color is an expert of layer 1, and its height is the share of choices that it got. Every
# token chooses two different experts, so an expert can get at most half of all choices. Used equally, each would get an eighth.
#
# In all six trainings, the router of layer 1 soon sends most tokens to a few experts: on average over the first 30 steps, the two busiest
# experts of a step get more than 60 % of all choices, where 25 % would be fair. (They need not be the same two in each step.) With the
# balance loss, this router spreads its choices again. Without it, it keeps to a few experts, and some of the others are stored for almost
# nothing. How far that goes is different for each layer: compare the column of layer 0.
#
# The balance loss also has a price: it pulls the router away from the expert that is best for a token. Six short trainings cannot tell what
# that costs the model: look in the last column how far apart the losses of different seeds are.
#
# A busy expert is also a bottleneck. So many implementations give each expert a **capacity**, for example 1.25 times its fair share. Choices
# beyond that are *dropped*: the token continues without that expert's answer. How many choices are dropped if every token wants expert 0? The
# next cell sets a router by hand so that it favors expert 0.

# %%
torch.manual_seed(1)
tokens = torch.randn(1024, 32) + 1
favours = MoE(MoEConfig(32, 48, num_experts=8, top_k=2, capacity_factor=1.25)).gate
with torch.no_grad():
    favours.weight[0] += 0.05
routing = favours(tokens)
share, dropped = favours.shares(routing.expert).max(), 1 - routing.kept.float().mean()
parts = {
    "a fair share": 1 / 8,
    "what an expert takes at most": 1.25 / 8,
    "what the router sends to expert 0": share,
    "dropped": dropped,
}
assert share > 0.49
assert dropped > share - 1.25 / 8 - 1e-3  # at least what expert 0 cannot take
Table(("", "of all choices"), [(name, f"{x:.1%}") for name, x in parts.items()])

# %% [markdown]
# A router can also be balanced without an additional loss. We add a **bias** to each expert's score, use the sum only to choose the experts,
# and adjust the bias by a rule after every step (Wang et al., 2024).
#
# ### Exercise: fix the router without a loss


# %%
# %%exercise balance_bias
import numpy as np


def balance_bias(
    bias: np.ndarray, counts: np.ndarray, rate: float = 0.01
) -> np.ndarray:
    """What the next step adds to the experts' scores when it chooses the best."""
    too_few = ...  # +1, 0 or -1 for each expert
    return ...


# %% [markdown]
# The next cell applies your rule, in small steps, to the router that favors expert 0. The weights of the router do not change at all.

# %%
import numpy as np

with torch.no_grad():
    score = F.linear(tokens, favours.weight).softmax(-1).numpy()
bias, shares = np.zeros(8), []
for _ in range(1500):
    chosen = np.argsort(score + bias, axis=1)[:, -2:]
    counts = np.bincount(chosen.ravel(), minlength=8)
    shares.append(counts.max() / counts.sum())
    bias = balance_bias(bias, counts, rate=0.0005)
print(
    f"busiest expert: {shares[0]:.1%} of all choices at first, "
    f"{np.mean(shares[-20:]):.1%} after 1,500 steps"
)
assert np.mean(shares[-20:]) < 0.15

# %% [markdown]
# The bias only chooses. The answers are still weighted by the scores without it. The two weights of a token add up to 1. How far off would
# they be if the bias were part of them?


# %%
def weights_from(scores):
    """For each token, the weights of its two chosen experts, which add up to one."""
    best = np.take_along_axis(scores, chosen, axis=1)
    return best / best.sum(axis=1, keepdims=True)


off_by = np.abs(weights_from(score + bias) - weights_from(score))
print(f"off by {off_by.mean():.2f} on average, and by up to {off_by.max():.2f}")
assert off_by.mean() > 0.05

# %% [markdown]
# ## Experts on ranks
#
# Now we put eight experts on four ranks, two on each. Every rank has its own tokens and its own copy of everything else, as in data
# parallelism. The experts stay where they are, and the **tokens travel**: one all_to_all brings them to their experts
# (*dispatch*), and another brings the results back (*combine*). Backward has two more. Before each dispatch, a small
# all_to_all of whole numbers tells each rank how many tokens will come.
#
# ### Exercise: send tokens to their experts


# %%
# %%exercise send_to_experts
import torch
import torch.distributed as dist


def send_to_experts(rows, expert, num_experts):
    """What came for the experts here: rows, and how many from each rank for each."""
    ranks = dist.get_world_size()
    here = num_experts // ranks  # rank 0 has the first experts, and so on
    rows = rows[expert.argsort(stable=True)]  # by expert, and so by rank
    sent = ...  # how many rows go to each expert: (num_experts,)
    came = ...  # how many come from each rank for each expert here: (num_experts,)
    to_ranks = ...  # a list: how many rows go to each rank
    from_ranks = ...  # a list: how many rows come from each rank
    arrived = rows.new_empty(sum(from_ranks), rows.shape[1])
    dist.all_to_all_single(arrived, rows, from_ranks, to_ranks)
    return arrived, came


# %% [markdown]
# We test your dispatch in a single mixture layer. All ranks make the same eight experts, so that we can compare, but each rank uses only its
# own two. Each rank has six tokens and therefore twelve choices, which makes twelve rows to send. On the way back, the lists of rows to and
# from each rank are swapped.

# %%
# %%ranks -n 4 --pass route,send_to_experts --into travel
import torch
import torch.nn.functional as F

from workshop import report
from workshop.models.moe import MoE, MoEConfig

torch.manual_seed(0)
mixture = MoE(MoEConfig(32, 48, num_experts=8, top_k=2)).to(device)
mixture.requires_grad_(False)
x = torch.randn(world_size, 6, 32, device=device)[rank]
weights, chosen = route(x @ mixture.gate.weight.T, 2)
expert = chosen.flatten()  # token 0's two choices, then token 1's, and so on
order = expert.argsort(stable=True)
token, counts = order // 2, expert.bincount(minlength=8)
rows, came = send_to_experts(x[token], expert[order], 8)

own = torch.arange(8, device=device).chunk(world_size)[rank]
wanted = own.repeat(world_size).repeat_interleave(came)  # the expert of each row
answers = torch.empty_like(rows)
for number in own:
    gate_up = mixture.experts.gate_up_proj[number]
    gate, up = F.linear(rows[wanted == number], gate_up).chunk(2, dim=-1)
    down = mixture.experts.down_proj[number]
    answers[wanted == number] = F.linear(F.silu(gate) * up, down)

left, arrived = (c.view(world_size, -1).sum(1).tolist() for c in (counts, came))
home = x.new_empty(len(token), 32)
dist.all_to_all_single(home, answers, left, arrived)
weighted = home * weights.flatten()[order, None]
summed = torch.zeros_like(x).index_add(0, token, weighted)
torch.testing.assert_close(summed, mixture(x[None])[0], rtol=1e-4, atol=1e-7)
report(sent=counts.tolist(), left=left, arrived=arrived)

# %%
sent = [travel[rank].sent for rank in range(4)]
left = [travel[rank].left for rank in range(4)]
arrived = [list(column) for column in zip(*left, strict=True)]
assert arrived == [travel[rank].arrived for rank in range(4)]
rows = [(f"rank {i} sends", *map(str, left[i]), str(sum(left[i]))) for i in range(4)]
rows.append(
    ("together", *(str(sum(each)) for each in arrived), str(sum(map(sum, left))))
)
display(Table(("rows", *(f"to rank {i}" for i in range(4)), "together"), rows))
show.rows_to_experts(sent)

# %% [markdown]
# Every rank sends twelve rows, but some ranks receive more rows than others. Nevertheless, every rank gets the same answers for its
# tokens as from the whole mixture. `workshop/parallel/expert.py` does the same under autograd: in backward, an all_to_all sends the
# gradients back the way the rows came.
#
# Next, we compare a model whose experts are spread over ranks with a whole one that sees all ranks' batches. Each rank starts with a
# different seed, and rank 0 broadcasts its weights.

# %%
# %%ranks
from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, TINY
from workshop.models.moe import MoEConfig, balance_of, with_experts
from workshop.models.text import TextBatches
from workshop.parallel.expert import cut_experts, expert_parameters

# Two experts of half the width cost a token about as much as TINY's one network.
half = TINY.intermediate_size // 2
config = MoEConfig(TINY.hidden_size, half, num_experts=8, top_k=2)
torch.manual_seed(rank)
whole = with_experts(GPT(TINY), config).to(device)
for parameter in whole.parameters():
    dist.broadcast(parameter.data, 0)
mine = with_experts(GPT(TINY), config).to(device)
mine.load_state_dict(whole.state_dict())
cut_experts(mine)

((tokens, targets),) = TextBatches(seq_len=16, global_batch=8).step(0, device)
(whole(tokens, targets) + 0.01 * balance_of(whole)).backward()
right = {name: parameter.grad for name, parameter in whole.named_parameters()}

# %% [markdown]
# That was the whole model, with the batch of all ranks. Now comes the cut model. Each rank gets two of the eight sequences:

# %%
# %%ranks --into cut
own_tokens, own_targets = (part.chunk(world_size)[rank] for part in (tokens, targets))
mine.zero_grad()
with measure(memory=False) as measured:
    (mine(own_tokens, own_targets) + 0.01 * balance_of(mine)).backward()

own = {id(parameter) for parameter in expert_parameters(mine)}
errors = []
for name, parameter in mine.named_parameters():
    wanted = right[name]
    if id(parameter) in own:  # already the mean: a hook has divided the sum
        wanted = wanted.chunk(world_size)[rank]
    else:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    errors.append(((parameter.grad - wanted).norm() / wanted.norm()).item())
sent = {row.name: (row.count, row.payload_bytes) for row in measured.traffic}
report(
    error=max(errors),
    loads=[layer.mlp.load for layer in mine.model.layers],
    sent=sent["all_to_all"],
    held=sum(parameter.numel() for parameter in expert_parameters(mine)),
)

# %% [markdown]
# **Predict:** how many all_to_alls are there in the two layers, forward and backward together? And how many bytes? When tokens go out, a
# rank sends one row for each of its choices (2 x 16 tokens, two experts each). When results go back, it sends one row for each choice that
# reached it.

# %%
# %%guess all_to_alls
# Two layers of experts, forward and backward:
# how many all_to_alls does a rank take part in, including those for the counts?
...

# %%
choices, width = 2 * 16 * 2, 4 * 64  # per rank and layer; bytes per token in fp32
rows = []
for rank in range(4):
    count, num_bytes = cut[rank].sent
    predicted = sum(8 * 8 + 2 * (choices + load) * width for load in cut[rank].loads)
    numbers = cut[rank].held, *cut[rank].loads, count, predicted, num_bytes
    rows.append((str(rank), *(f"{number:,}" for number in numbers)))
    assert (count, num_bytes) == (2 * 5, predicted)
    assert cut[rank].error < 1e-5
for layer in range(2):
    assert sum(cut[rank].loads[layer] for rank in range(4)) == 4 * choices
note = "Every gradient is that of one process with the joined batch, to 1e-5."
came = ("choices that came, layer 0", "layer 1")
head = ("rank", "expert parameters", *came, "all_to_alls", "bytes, predicted", "bytes")
Table(head, rows, note=note)

# %%
beside("all_to_alls", predicted=2 * 5, measured=cut[0].sent[0])

# %% [markdown]
# Given the numbers of choices that the ranks reported, the prediction is exact to the byte, including the counts (8 counts of 8 bytes for each
# layer). Before the run, nobody knows these numbers: they depend on the router.
#
# Now look at how many choices arrived at each rank. A fair number would be 64 for each rank and layer. **A layer takes as long as the rank
# with the most tokens**, and the others wait in the all_to_all. So balance matters for speed as well as for learning.
#
# There are two kinds of parameters, and their gradients need different treatment. For parameters that all ranks hold, the gradients are
# averaged over ranks, as in DDP. An expert has seen the tokens of every rank, so its gradient is already a sum over ranks.
# `cut_experts` divides it by the number of ranks, in a hook on the parameter, and it must not be averaged again over these ranks. If you forget
# the division in your own code, the gradient is N times too large.
#
# (Here all ranks are one group of experts. With more such groups, each expert has copies, one in each group. Then its gradient is averaged over
# its copies, as in DDP, but still not over the ranks of its own group.)

# %%
# %ranks stop

# %% [markdown]
# ## At scale: 256 ranks
#
# Our last model is shaped like DeepSeek-V3: 256 experts, eight for each token, width 7,168, expert width 2,048. We take two of its layers, one expert
# on each of 256 ranks, and 4,096 tokens on each rank. (We leave out its shared expert, and use ordinary attention in place of its own. DeepSeek-V3
# itself was trained with the experts spread over 64 ranks.)
#
# The program is rehearsed: it runs as rank 17, nothing is sent, and every collective is recorded. In a rehearsal no tensor has values, so no
# router can choose: we assume that tokens are spread evenly. To start it on real ranks, add your data, a seed, and `.to(device)`.

# %%
# %%rehearse -n 256 --rank 17 --steps 1 --into at_scale
import torch
import torch.distributed as dist

from workshop.models.gpt import GPT, GPTConfig
from workshop.models.moe import MoEConfig, balance_of, with_experts
from workshop.parallel.expert import cut_experts, expert_parameters

dist.init_process_group()
shape = GPTConfig(
    vocab_size=1024,
    hidden_size=7168,
    num_layers=2,
    num_heads=56,
    num_kv_heads=56,
    intermediate_size=2048,
)
config = MoEConfig(hidden_size=7168, intermediate_size=2048, num_experts=256, top_k=8)
model = cut_experts(with_experts(GPT(shape), config))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tokens = torch.randint(1024, (1, 4096))
(model(tokens, tokens) + 0.01 * balance_of(model)).backward()
own = {id(parameter) for parameter in expert_parameters(model)}
for parameter in model.parameters():
    if id(parameter) not in own:  # every rank holds a copy of this one
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
optimizer.step()

# %%
show.traffic_table({"rank 17 of 256": at_scale})

# %% tags=["nbval-check-output"]
recorded = {row.name: row for row in at_scale.traffic}
layers, width, choices = 2, 7_168, 8 * 4_096
trips, value_bytes = 4, 4  # there and back, forward and backward; fp32
by_tokens = layers * (8 * 256 + trips * choices * value_bytes * width)  # counts first
norms, router = 2 * width, 256 * width
shared = layers * (4 * width**2 + norms + router) + 2 * 1_024 * width + width
by_gradients = value_bytes * (shared + layers * 256)  # 256 counts for the balance loss
parameters = layers * (4 + 2 + 1) + 3
rows = []
for name, count, closed_form in [
    ("all_to_all", layers * 5, by_tokens),
    ("all_reduce", parameters + layers, by_gradients),
]:
    row = recorded[name]
    calls, num_bytes = (count, row.count), (closed_form, row.payload_bytes)
    rows.append((name, *map(str, calls), *(f"{size:,} B" for size in num_bytes)))
    assert (row.count, row.payload_bytes) == (count, closed_form)
head = ("calls, closed form", "rehearsed", "payload, closed form", "rehearsed")
Table(("", *head), rows)

# %% [markdown]
# Again exact to the byte. (Two of the all_reduces add up counts for the balance loss, 256 numbers in each layer. The other 17 average the
# gradients of what all ranks hold. That can be hidden behind backward, as in DDP. But experts cannot begin before their tokens arrive.)
#
# How long does one token travel in one layer, forward and backward, and how long do its experts compute? We calculate both for bf16, and for an
# H100 that computes at half of its peak of 989 TFLOP/s:

# %% tags=["nbval-check-output"]
a_token = 4 * 8 * 7_168 * 2  # bytes: there and back, forward and backward
work = 6 * 8 * 3 * 7_168 * 2_048  # six FLOPs for each parameter of eight experts
seconds = {
    "its experts compute": work / (0.5 * 989e12),
    "its rows travel within a node, at 450 GB/s": a_token / 450e9,
    "its rows travel between nodes, at 50 GB/s": a_token / 50e9,
}
within, between = list(seconds.values())[1:]
assert within < seconds["its experts compute"] < between
assert 0.2 < work / 989e12 / between < 0.25  # of the peak
rows = [(name, f"{1e6 * time:.1f} µs") for name, time in seconds.items()]
Table(("one token in one layer", "time"), rows, f"{a_token:,} bytes for each token")

# %% [markdown]
# Between nodes, sending tokens takes longer than computing with them. (This is calculated, not measured. Half of the peak is our assumption,
# but at any rate above a quarter of it, the order is the same.) That is why DeepSeek-V3 sends a token to at most four nodes, uses fewer bits,
# and hides the sending behind the work on other micro-batches (DeepSeek-AI, 2024, sections 2.1.2, 3.2 and 3.3). Expert parallelism
# needs fast links, as tensor parallelism does.

# %% [markdown]
# ## Tomorrow's script
#
# Experts on ranks, without this workshop: a router, the counts, two all_to_alls with a backward, and the two kinds of
# gradients. Each expert keeps the number that it has in the whole model, so a checkpoint does not depend on which rank holds it.
# Nothing balances the load: you can add your bias from above.
#
# A token uses one expert here, and the answer is weighted by the score itself. Divided by its own sum, a single weight would always be 1, and the
# loss would teach the router nothing.
#
# `torchrun --nproc-per-node 4 train_experts.py` runs it.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_experts")

# %% tags=["script"]
# %%torchrun -n 2 --into in_parts --save {folder}/train_experts.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")


class Travel(torch.autograd.Function):
    """Rows to the ranks that want them, so many to each; backward brings them back."""

    @staticmethod
    def forward(ctx, rows, sent, came):
        ctx.counts = sent, came
        arrived = rows.new_empty(sum(came), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), came, sent)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        sent, came = ctx.counts
        return Travel.apply(gradient, came, sent), None, None


class Experts(nn.Module):
    """A router for all experts, and those of this rank, under their own numbers."""

    def __init__(self, width=32, num_experts=8):
        super().__init__()
        self.here = num_experts // ranks
        self.router = nn.Linear(width, num_experts, bias=False)
        every = [nn.Linear(width, width) for _ in range(num_experts)]
        own = range(rank * self.here, (rank + 1) * self.here)
        self.experts = nn.ModuleDict({str(number): every[number] for number in own})

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)  # one expert per token
        order = chosen.argsort()  # sorted by expert, and therefore by rank
        sent = chosen.bincount(minlength=self.here * ranks)
        came = torch.empty_like(sent)  # rows that come for each expert, from each rank
        dist.all_to_all_single(came, sent)
        by_rank = [t.view(ranks, self.here).sum(1).tolist() for t in (sent, came)]
        tokens = Travel.apply(x[order], *by_rank)  # dispatch
        numbers = torch.arange(self.here, device=x.device).repeat(ranks)
        whose = numbers.repeat_interleave(came)
        out = torch.empty_like(tokens)
        for number, expert in enumerate(self.experts.values()):
            out = out.index_put((whose == number,), expert(tokens[whose == number]))
        back = Travel.apply(out, *reversed(by_rank))  # combine
        return x + weight.unsqueeze(-1) * torch.empty_like(x).index_put((order,), back)


torch.manual_seed(0)
model = nn.Sequential(Experts(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
inputs = torch.randn(512, 32, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.sum(dim=1, keepdim=True) / 4
saved, first = Path(os.environ.get("CHECKPOINT", "train_experts")), 0
# save by name, not by number, because each rank has different parameters
by_name = StateDictOptions(flatten_optimizer_state_dict=True)
whole = [int(path.parent.name) for path in saved.glob("*/.metadata")]  # written last
if whole:
    weights, moments = get_state_dict(model, optimizer, options=by_name)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=saved / str(max(whole)))
    weights, moments = state["model"], state["optimizer"]
    parts = {"model_state_dict": weights, "optim_state_dict": moments}
    set_state_dict(model, optimizer, **parts, options=by_name)
    first = max(whole) + 1

for epoch in range(first, first + 3):
    order = torch.randperm(512, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(1, device=device)
    for batch in order.to(device).split(64):
        mine = batch[rank::ranks]  # different tokens on each rank, as in DDP
        loss = (model(inputs[mine]) - targets[mine]).square().mean()
        loss.backward()
        for name, parameter in model.named_parameters():
            if "experts" not in name:  # an expert has seen all ranks' tokens
                dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() / 8
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {total.item() / ranks:.3f}")
    weights, moments = get_state_dict(model, optimizer, options=by_name)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=saved / str(epoch))
dist.destroy_process_group()

# %% [markdown]
# The same script on one rank, which holds all eight experts, gives the same losses:

# %%
os.environ["CHECKPOINT"] = str(folder / "alone")
alone = launch.torchrun(launch.Script(folder / "train_experts.py"), 1).text
print(alone, end="")
assert "epoch 2" in alone
assert alone == in_parts.text

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("34_experts", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - All parameters cost memory, but only the parameters that a token **uses** cost FLOPs. A mixture of experts separates the two costs.
# - Left to itself, a router may keep to a few experts. A loss evens out its choices, and so does a bias that only affects the choice.
# - Experts stay, tokens travel: each layer has two all_to_alls in forward, two in backward, and one for the counts.
# - A rank sends k copies of each token out and gets k results back. The rank that receives the most tokens is the slowest.
# - An expert's gradient already contains the tokens of all ranks of its group. Divide it by the number of these ranks, but do not all_reduce it over
#   them as you do with the other gradients. Only if an expert has copies in other groups, average over the copies.
#
# Next: [35_mesh](35_mesh.ipynb), where all axes meet.
#
# ## Sources
#
# - N. Shazeer et al., *Outrageously Large Neural Networks*, ICLR 2017, [arXiv:1701.06538](https://arxiv.org/abs/1701.06538).
# - D. Lepikhin et al., *GShard*, 2020, [arXiv:2006.16668](https://arxiv.org/abs/2006.16668), section 3.
# - W. Fedus, B. Zoph, N. Shazeer, *Switch Transformers*, 2021, [arXiv:2101.03961](https://arxiv.org/abs/2101.03961), equations 4 to 6.
# - A. Jiang et al., *Mixtral of Experts*, 2024, [arXiv:2401.04088](https://arxiv.org/abs/2401.04088).
# - L. Wang et al., *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, 2024, [arXiv:2408.15664](https://arxiv.org/abs/2408.15664).
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, [arXiv:2412.19437](https://arxiv.org/abs/2412.19437).
