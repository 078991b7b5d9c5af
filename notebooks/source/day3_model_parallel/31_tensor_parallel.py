# %% [markdown]
# # Cut the matrix: how can one layer live on several devices?
#
# - **You need** `21_collectives`; `13_memory_of_a_step` for what forward keeps; how a product of matrices is differentiated.
# - **It takes** 60 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here, on four ranks. On GPUs the same code uses NCCL. The last part rehearses one rank of eight with
#   a 70-billion-parameter Llama.
# - **Model and text:** `TINY` and the reference manual. The model has eight heads for keys and values, as many as for queries, so that each of four
#   ranks gets two. (On GPUs a fused fp32 kernel needs equally many of both.) Before that we use two matrices of random numbers, and the last part
#   uses the widths of Llama 70B.
# - **Links:** before this [27_fewer_bytes](../day2_data_parallel/27_fewer_bytes.ipynb), after it [32_pipeline](32_pipeline.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# With ZeRO-3 and FSDP a rank stores only a part of each layer, but to *compute* a layer, every rank gathers all of it. So every rank needs room for
# the largest layer. Can four ranks compute one layer without any of them ever holding the whole layer? What must they send each other, and how
# often?

# %%
# %load_ext workshop
from workshop import show
from workshop.exercises import beside
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes

# %% [markdown]
# ## Two ways to cut a product
#
# A layer computes $y = xA$. There are two ways to distribute $A$ over the ranks:
#
# - **By columns.** Each rank gets some columns of $A$ and computes the same *columns of y*. They are final.
# - **By rows.** Each rank gets some rows of $A$ and the matching columns of $x$. It computes one *term of a sum*. The sum over all ranks is $y$.

# %%
# %%ranks -n 4
import torch

# the same seed on all ranks, so that each can check its part against the whole product
torch.manual_seed(0)
x, A = torch.randn(3, 8, device=device), torch.randn(8, 12, device=device)


def mine_of(matrix, dim):
    """This rank's part of a matrix: rows for dim 0, columns for dim 1."""
    return matrix.chunk(world_size, dim)[rank]


by_columns = x @ mine_of(A, 1)  # (3, 12 / 4)
gathered = [torch.empty_like(by_columns) for _ in range(world_size)]
dist.all_gather(gathered, by_columns)

by_rows = mine_of(x, 1) @ mine_of(A, 0)  # (3, 12): one term of the sum
dist.all_reduce(by_rows)

torch.testing.assert_close(torch.cat(gathered, 1), x @ A)
torch.testing.assert_close(by_rows, x @ A)
if rank == 0:
    print(
        "by columns: the parts side by side are x A.   "
        "by rows: the sum of the parts is x A."
    )

# %% [markdown]
# Both ways give the right answer, and both need one collective. The MLP of a transformer has two products, with an activation between them (below, a
# *block* is the MLP or the attention of a layer):
#
# $$y = \mathrm{relu}(x A)\,B$$
#
# If you cut each product without looking at the other, the block needs two collectives. One is enough.

# %%
# %%guess first_cut --choices columns,rows
# How do you cut A, so that the whole block needs only one collective?
...

# %% [markdown]
# ## The activation decides
#
# If $A$ is cut by rows, each rank has one term of a sum. May a rank apply the ReLU to its own term? Two numbers are enough to find out.
# Suppose that rank 0 has 3 and rank 1 has −2:

# %% tags=["nbval-check-output"]
first, second = 3, -2
of_the_sum = max(first + second, 0)
of_each = max(first, 0) + max(second, 0)
print(f"ReLU of the sum: {of_the_sum}   sum of the ReLUs: {of_each}")
assert of_the_sum != of_each

# %% [markdown]
# The results differ, so if $A$ is cut by rows, the ranks have to sum *before* the activation. If $A$ is cut by columns, they send nothing at that
# point: a rank's columns are final, and ReLU (or GELU, or SiLU) looks at one number at a time. There is a second advantage: a rank's columns of
# $xA$ are multiplied by exactly its own rows of $B$:
#
# $$\mathrm{relu}(x\,[A_0\ A_1])\begin{bmatrix}B_0\\B_1\end{bmatrix} = \mathrm{relu}(xA_0)B_0 + \mathrm{relu}(xA_1)B_1$$

# %%
beside("first_cut", calculated="columns")

# %%
show.cut_matrices(
    {"A, by columns": (8, 32, "columns"), "B, by rows": (32, 8, "rows")},
    4,
    "which rank holds what: the inner width is never whole anywhere",
)


# %% [markdown]
# ### Exercise: columns first


# %%
# %%exercise columns_first
import numpy as np


def columns_first(x, a, b, ranks):
    """Each rank's part of relu(x @ a) @ b; a (inputs, width), b (width, outputs)."""
    parts = []
    for rank in range(ranks):
        a_part = ...
        b_part = ...
        parts.append(np.maximum(x @ a_part, 0) @ b_part)
    return parts


# %% [markdown]
# The four ranks from above are still running, and hold $x$ and $A$. The next cell gives them a $B$. Each rank computes the part that *your* function
# assigns to it, and one sum is all that is sent:

# %%
# %%ranks --pass columns_first
B = torch.randn(12, 6, device=device)
arrays = (tensor.cpu().numpy() for tensor in (x, A, B))
y = torch.from_numpy(columns_first(*arrays, world_size)[rank]).to(device)
dist.all_reduce(y)
torch.testing.assert_close(y, (x @ A).relu() @ B)
if rank == 0:
    print("your parts, summed once over four ranks: relu(x A) B")

# %% [markdown]
# ## And backward? f and g
#
# At the exit of the block the parts are summed with an all_reduce, which the paper calls **g** (Shoeybi et al., 2019). The backward of g sends
# nothing: if one part changes by some amount, the sum changes by the same amount, so each part's gradient is simply the gradient of the sum.
#
# At the entrance it is the other way round. Forward sends nothing, because all ranks already have $x$. But all ranks *used* $x$, so in backward
# their gradients for $x$ must be summed. This is **f**: it does nothing in forward, and an all_reduce in backward. So f and g mirror each other:

# %%
show.f_and_g()

# %% [markdown]
# ### Exercise: both backwards, and one all_reduce

# %%
# %%exercise row_parallel_backward
import torch
import torch.distributed as dist


def row_parallel_backward(gradient_y: torch.Tensor, h: torch.Tensor, b: torch.Tensor):
    """From the gradient of y, the sum over ranks of h @ b: the gradients of h and b."""
    gradient_h = ...
    gradient_b = ...
    return gradient_h, gradient_b


def column_parallel_backward(
    gradient_z: torch.Tensor, x: torch.Tensor, a: torch.Tensor
):
    """Gradients of x, which all ranks used, and of a, from that of z = x @ a."""
    gradient_x = ...
    gradient_a = ...
    return gradient_x, gradient_a


# %% [markdown]
# Your two functions are enough to train the block without autograd. Each rank holds a quarter of $A$ and of $B$. All ranks hold $x$, which is
# trained too, like an embedding. Its gradient must therefore be right on every rank; otherwise the four copies of $x$ drift apart.


# %%
# %%ranks --pass row_parallel_backward,column_parallel_backward
wanted, rate = torch.randn(3, 6, device=device), 1e-3


def on_four_ranks():
    """The losses of 30 steps with your two backwards."""
    own_x, a, b = x.clone(), mine_of(A, 1).clone(), mine_of(B, 0).clone()
    losses = []
    for _ in range(30):
        z = own_x @ a
        y = z.relu() @ b
        dist.all_reduce(y)  # g
        losses.append((y - wanted).square().sum().item())
        gradient_h, gradient_b = row_parallel_backward(2 * (y - wanted), z.relu(), b)
        gradient_z = gradient_h * (z > 0)
        gradient_x, gradient_a = column_parallel_backward(gradient_z, own_x, a)
        for weight, gradient in ((own_x, gradient_x), (a, gradient_a), (b, gradient_b)):
            weight -= rate * gradient
    return losses


by_hand = on_four_ranks()

# %% [markdown]
# For comparison, the next cell trains the whole block in one process, with autograd:


# %%
# %%ranks --into trained
from workshop import report


def in_one_process():
    """The same steps, whole, by autograd."""
    whole = [tensor.clone().requires_grad_() for tensor in (x, A, B)]
    losses = []
    for _ in range(30):
        loss = ((whole[0] @ whole[1]).relu() @ whole[2] - wanted).square().sum()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, whole)
        with torch.no_grad():
            for weight, gradient in zip(whole, gradients, strict=True):
                weight -= rate * gradient
    return losses


report(by_hand=by_hand, whole=in_one_process())

# %%
by_hand, whole = trained[0].by_hand, trained[0].whole
rows = [
    (f"{step + 1}", f"{by_hand[step]:.4f}", f"{whole[step]:.4f}")
    for step in (0, 1, 9, 29)
]
for rank in range(4):
    for mine, its in zip(trained[rank].by_hand, whole, strict=True):
        assert abs(mine - its) < 1e-4 * whole[0]
assert whole[-1] < 0.5 * whole[0], "and it learns"
Table(("step", "four ranks, your backwards", "one process, autograd"), rows, "Losses")

# %% [markdown]
# ## A transformer
#
# The gated MLP of a Llama has two matrices at its entrance, gate and up. Both are cut by columns, at the same places, and then down is cut by rows.
# In attention, a *head* must stay whole: each of its scores is a sum over the width of the head. So q, k and v are cut by columns, whole heads at a
# time, and o is cut by rows. Attention and MLP have one f and one g each. The picture shows a layer of our small model, to scale: width 64, eight
# heads, inner width 192.

# %%
show.cut_matrices(
    {
        "q": (64, 64, "columns"),
        "k": (64, 64, "columns"),
        "v": (64, 64, "columns"),
        "o": (64, 64, "rows"),
        "gate": (64, 192, "columns"),
        "up": (64, 192, "columns"),
        "down": (192, 64, "rows"),
    },
    4,
    "one layer on four ranks (its two norms are whole on each)",
)

# %% [markdown]
# Outside the layers, embedding and head are cut along the vocabulary. In the embedding, a rank looks up the words that it holds and writes zeros
# for all other words; then an all_reduce adds up the ranks.
#
# At the end, a rank has the logits of its own words, and the loss is computed **without ever gathering the logits**. For each position, softmax needs
# the largest logit and the sum of exponentials, and the loss needs the logit of the target. The gradient of a position's loss is softmax, minus 1 at
# the target.
#
# ### Exercise: the loss without the logits


# %%
# %%exercise loss_of_own_words
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = ...  # of all words, at each position
    total = ...  # the sum of exp(logit - largest) over all words, at each position
    target = ...  # logit - largest of the target, at each position
    gradient = ...  # (positions, words)
    return (total.log() - target).mean(), gradient


# %% [markdown]
# Does this give the same loss and gradient as the whole logits on one rank? We try 64 positions and a vocabulary of 4,096 words. The logits are so
# large that their exponentials would overflow without the largest subtracted. The third result is from torch's `loss_parallel`, which does the
# same for a DTensor:


# %%
# %%ranks --pass loss_of_own_words --into cut_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from workshop.measure import measure

same = torch.Generator().manual_seed(0)  # the same on all ranks
logits = (30 * torch.randn(64, 4_096, generator=same)).to(device).requires_grad_()
targets = torch.randint(4_096, (64,), generator=same).to(device)
with measure(memory=False) as measured:
    own_logits = logits.detach().chunk(world_size, 1)[rank]
    loss, gradient = loss_of_own_words(own_logits, targets)
plain = cross_entropy(logits, targets)
plain.backward()
torch.testing.assert_close(gradient, logits.grad.chunk(world_size, 1)[rank])
mesh = init_device_mesh(device.type, (world_size,))
cut = distribute_tensor(logits.detach(), mesh, [Shard(1)]).requires_grad_()
with loss_parallel():
    of_torch = cross_entropy(cut, targets)
    of_torch.backward()
torch.testing.assert_close(gradient, cut.grad.to_local())
losses = [float(loss), plain.item(), of_torch.full_tensor().item()]
count = sum(row.count for row in measured.traffic)
size = sum(row.payload_bytes for row in measured.traffic)
report(losses=losses, count=count, size=size)

# %%
by_hand, plain, of_torch = cut_loss[0].losses
print(f"loss by hand {by_hand:.4f}, whole {plain:.4f}, loss_parallel {of_torch:.4f}")
assert max(abs(other - by_hand) for other in (plain, of_torch)) < 1e-5 * by_hand
count, size = cut_loss[0].count, cut_loss[0].size
print(f"{count} collectives reduce {size} B; all the logits have {64 * 4_096 * 4:,} B")
assert size <= 3 * 64 * 4, "three float32 numbers for each position"

# %% [markdown]
# So at most three numbers for each position are reduced over the ranks, in place of a whole vocabulary that is gathered. The gradient sends nothing
# more, because a rank can compute it for its own words. (The head's f still sums the gradient of its input.)
#
# `workshop/parallel/tensor.py` has all of this in one model. PyTorch does it from a *plan*, which names each matrix and how it is cut; PyTorch works
# out what must be sent. We run both. The plan is in a cell below.
#
# ## Run: four ranks, four ways to cut, one process beside them
#
# The ranks start from different seeds, so rank 0's weights are first sent to all. Each rank also keeps the whole model: this is our single process.
# We compare the loss and every gradient. During forward we also record how many bytes autograd keeps for backward, not counting the weights.


# %%
def kept_in_forward(model, tokens, targets):
    """The loss, and the bytes that autograd keeps for its backward: each storage
    once, without the weights.
    """
    import torch

    weights = {
        parameter.untyped_storage().data_ptr() for parameter in model.parameters()
    }
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        # skip single numbers: a GPU's attention kernel keeps its random seed as one
        if tensor.dim() and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(tokens, targets)
    return loss, sum(kept.values())


# %%
# %%guess all_reduces
# How many all_reduces does one layer need under tensor parallelism,
# in forward and backward together?
...

# %%
# %%ranks --pass kept_in_forward
from dataclasses import replace

from workshop.models.gpt import GPT, TINY
from workshop.models.text import TextBatches
from workshop.parallel.tensor_collectives import all_gather

((tokens, targets),) = TextBatches(seq_len=32, global_batch=1).step(0, device)


def pair(layers):
    """The whole model, the same on all ranks, and a copy to be cut."""
    torch.manual_seed(10 + rank)
    config = replace(TINY, num_layers=layers, num_heads=8, num_kv_heads=8)
    plain, copy = GPT(config).to(device), GPT(config).to(device)
    for parameter in plain.parameters():
        dist.broadcast(parameter.data, 0)
    copy.load_state_dict(plain.state_dict())
    return plain, copy


# %% [markdown]
# Next is the plan. `ColwiseParallel` gives each matrix that it cuts an f of its own. So q, k and v would have one f each, and three tensors would
# be summed where one sum is enough. `PrepareModuleInput` puts a single f at the entrance of the block instead. The head gives each rank the logits
# of its own words.

# %%
# %%ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel,
)  # fmt: skip


def one_f(*others):
    """The block's first input is whole on every rank; cos and sin are left alone."""
    whole = (Replicate(), *others)
    return PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)


columns, rows = ColwiseParallel(), RowwiseParallel()
attention, mlp = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
layer_plan = {
    "self_attn": one_f(None, None), "self_attn.o_proj": rows,
    **{f"self_attn.{name}": columns for name in attention},
    "mlp": one_f(), "mlp.down_proj": rows, **{f"mlp.{name}": columns for name in mlp},
}  # fmt: skip
top_plan = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}

# %% [markdown]
# The next cell has two functions: one cuts a model by the plan, and the other computes its loss. `loss_parallel` computes the loss from logits that
# are spread over the ranks.

# %%
# %%ranks
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.nn.functional import cross_entropy


def cut_by_plan(model, mesh):
    for layer in model.model.layers:
        parallelize_module(layer, mesh, layer_plan)
    return parallelize_module(model, mesh, top_plan)


def loss_by_plan(model):
    """Forward and backward; each rank has the logits of its own words."""
    with loss_parallel():
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
    return loss.full_tensor()


# %% [markdown]
# The function `step` below makes one step of a copy that is cut in one of four ways. The *short plan* is the workshop's own,
# `workshop/parallel/tensor_plans.py`, which lesson 35 trains with. It does not use `one_f` or `loss_parallel`.

# %%
# %%ranks
from workshop.measure import measure
from workshop.parallel import tensor_plans
from workshop.parallel.tensor import cut_tensor

mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("tensor",))


def step(way, copy):
    """The cut model, its loss, the bytes it kept, and what was sent."""
    kept = 0  # not recorded for the plans
    if way == "by plan":
        model = cut_by_plan(copy, mesh)
    elif way == "short plan":
        model = tensor_plans.cut_by_plan(copy, mesh)
    else:
        model = cut_tensor(copy, sequence_parallel=way == "sequence parallel")
    with measure(memory=False) as measured:
        if way == "by plan":
            loss = loss_by_plan(model)
        elif way == "short plan":
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        else:
            loss, kept = kept_in_forward(model, tokens, targets)
            loss.backward()
    sent = {row.name: (row.count, row.wire_bytes) for row in measured.traffic}
    return model, loss, kept, sent


# %% [markdown]
# To compare gradients, we collect each rank's part of a gradient again, under the name that the parameter has in the uncut model:

# %%
# %%ranks
from torch.distributed.tensor import DTensor


def name_of(name):
    return name.replace("decoder.", "model.").replace(".inner.", ".")


def whole_gradients(model):
    """Gradients of the uncut parameters, by their names in the uncut model."""
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        elif "norm" not in name and gradient.shape != right[name_of(name)].shape:
            by_rows = name.endswith(("o_proj.weight", "down_proj.weight"))
            gradient = all_gather(gradient, 1 if by_rows else 0, None)
        gradients[name_of(name)] = gradient
    return gradients


def furthest(model):
    """The largest distance of a gradient from that of one process, as a share."""
    gradients = whole_gradients(model)
    assert gradients.keys() == right.keys()
    return max(
        ((gradients[name] - one).norm() / one.norm()).item()
        for name, one in right.items()
    )


# %% [markdown]
# Now we make one step with one layer and one with two layers, in each of the four ways:

# %%
# %%ranks --into cut
for layers in (1, 2):
    plain, _ = pair(layers)
    loss, kept_whole = kept_in_forward(plain, tokens, targets)
    loss.backward()
    right = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for way in ("by hand", "sequence parallel", "by plan", "short plan"):
        _, copy = pair(layers)
        model, own, kept, sent = step(way, copy)
        report(**{
            f"{way}, {layers}": {
                "loss": abs(own - loss).item(), "gradients": furthest(model),
                "compared": len(right), "kept": kept, "kept_whole": kept_whole,
                "traffic": sent,
            }
        })  # fmt: skip

# %% [markdown]
# ## Compare
#
# First we check whether it is still the same model.

# %% tags=["nbval-check-output"]
rows = []
for way in ("by hand", "sequence parallel", "by plan", "short plan"):
    for rank in range(4):
        ran = cut[rank][f"{way}, 2"]
        assert max(ran["loss"], ran["gradients"]) < 1e-5, (way, rank, ran)
    rows.append((way, "yes", f"all {ran['compared']}"))
Table(("cut", "same loss", "same gradients"), rows, "As in one process, to 1e-5")

# %% [markdown]
# Now we look at the traffic. The model ran with one layer and with two layers, so the difference is what one layer sends.

# %%
from workshop.predict.collectives import wire_bytes


def of_a_layer(way, runs=cut):
    """By collective, the calls and bytes of a rank that the second layer has added."""
    one, two = (runs[0][f"{way}, {layers}"]["traffic"] for layers in (1, 2))
    more = {
        name: (two[name][0] - one[name][0], two[name][1] - one[name][1]) for name in two
    }
    return {name: added for name, added in more.items() if added[0]}


t, activation_bytes = 4, 4 * 1 * 32 * 64  # ranks; fp32 x batch x sequence x hidden
norm_bytes = 4 * 64


def calls(count, collective, size=activation_bytes):
    """So many calls of a collective, and the bytes that a rank sends in all of them."""
    return count, count * int(wire_bytes(collective, size, t))


# %% [markdown]
# In the short plan each of q, k, v, gate and up has an f of its own. With the two g, these are seven.

# %% tags=["nbval-check-output"]
predicted = {
    "by hand": {"all_reduce": calls(4, "all_reduce")},
    "by plan": {"all_reduce": calls(4, "all_reduce")},
    "short plan": {"all_reduce": calls(5 + 2, "all_reduce")},
    "sequence parallel": {
        "all_gather": calls(4, "all_gather"),
        "reduce_scatter": calls(4, "reduce_scatter"),
        "all_reduce": calls(2, "all_reduce", norm_bytes),
    },
}
rows = []
for way, wanted in predicted.items():
    sent = of_a_layer(way)
    for name in wanted:
        counts = (f"{wanted[name][0]}", f"{sent[name][0]}")
        sizes = (f"{wanted[name][1]:,} B", f"{sent[name][1]:,} B")
        rows.append((way, name, *counts, *sizes))
    assert sent == wanted, (sent, wanted)
title = "One layer, forward and backward"
head = ("cut", "collective", "calls: predicted", "measured")
Table((*head, "sent in all: predicted", "measured"), rows, title)

# %% tags=["nbval-check-output"]
logits = cut[0]["short plan, 2"]["traffic"]["all_gather"]
assert logits == (1, wire_bytes("all_gather", 4 * 32 * 256, t))
assert "all_gather" not in cut[0]["by plan, 2"]["traffic"]
print(f"once a step, the short plan gathers the logits: a rank sends {logits[1]:,} B")

# %%
beside("all_reduces", predicted=4, measured=of_a_layer("by hand")["all_reduce"][0])

# %% [markdown]
# **Four all_reduces a layer**, as in figure 4 of the paper: in forward the g of attention and the g of the MLP, in backward their two f. By hand
# and by the plan, the bytes are those that we predicted. The short plan gives the right gradients as well, but it sums seven times a layer, and it
# gathers the logits. So count what your plan sends: equal losses do not show such a difference.
#
# ## Sequence parallelism: the same bytes, less kept
#
# Between g and the next f, every rank computes the same norm and the same residual on the same numbers, and every rank keeps them for backward.
# Korthikanti et al. (2022) cut this part along the *sequence*. Each all_reduce is split into its two halves:
#
# - g becomes a reduce_scatter, which gives each rank the sum for its own positions. In backward, g is an all_gather.
# - f becomes an all_gather. In backward, f is a reduce_scatter.
#
# A layer now makes **4 all_gathers and 4 reduce_scatters**. A ring all_reduce *is* one of each, so the bytes for activations are the same:

# %% tags=["nbval-check-output"]
all_reduces = of_a_layer("by hand")["all_reduce"][1]
halves = of_a_layer("sequence parallel")
both = halves["all_gather"][1] + halves["reduce_scatter"][1]
print(f"a rank sends {all_reduces:,} B in 4 all_reduces")
print(f"and {both:,} B in 4 all_gathers and 4 reduce_scatters")
assert all_reduces == both

# %% [markdown]
# (The two small all_reduces in the table come from the norms. A norm now sees only a rank's own positions, so the gradient of its weight, 64
# numbers, has to be summed over ranks.)
#
# So far the workshop's own code has made this cut. For PyTorch it is another plan. `Shard(1)` stands for a rank's own positions (dim 1 is the
# sequence), and `SequenceParallel` lets a norm compute with those. `PrepareModuleInput` is f again: from a rank's positions to all of them.

# %%
# %%ranks
from torch.distributed.tensor.parallel import SequenceParallel


def gathering_f(*others):
    """The block's first input comes as a rank's positions, and is gathered."""
    return PrepareModuleInput(
        input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others)
    )


to_own = {"output_layouts": Shard(1)}  # g: a rank keeps the sum for its own positions
layer_plan |= {
    "input_layernorm": SequenceParallel(),
    "self_attn": gathering_f(None, None), "self_attn.o_proj": RowwiseParallel(**to_own),
    "post_attention_layernorm": SequenceParallel(),
    "mlp": gathering_f(), "mlp.down_proj": RowwiseParallel(**to_own),
}  # fmt: skip
top_plan |= {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **to_own),
    "model.norm": SequenceParallel(),
    "lm_head": ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}

# %%
# %%ranks --into by_positions
for layers in (1, 2):
    plain, copy = pair(layers)
    loss, _ = kept_in_forward(plain, tokens, targets)
    loss.backward()
    right = {name: parameter.grad for name, parameter in plain.named_parameters()}
    model, own_loss, _, sent = step("by plan", copy)
    off = max(abs(own_loss - loss).item(), furthest(model))
    norms = [weight for name, weight in model.named_parameters() if "norm" in name]
    unsummed = all(weight.grad.placements[0].is_partial() for weight in norms)
    run = {"off": off, "unsummed": unsummed, "traffic": sent}
    report(**{f"plan, {layers}": run})

# %%
# %ranks stop

# %% tags=["nbval-check-output"]
assert all(by_positions[rank]["plan, 2"]["off"] < 1e-5 for rank in range(4))
assert all(by_positions[rank]["plan, 2"]["unsummed"] for rank in range(4))
sent = of_a_layer("plan", by_positions)
assert sent == {name: halves[name] for name in ("all_gather", "reduce_scatter")}
print("loss and gradients are those of one process, to 1e-5; one layer sends")
for name in ("all_gather", "reduce_scatter"):
    print(f"{sent[name][1]:,} B in {sent[name][0]} calls of {name}")

# %% [markdown]
# These are the calls and bytes of the table. Only the two small all_reduces are missing: PyTorch leaves the gradient of a norm's weight as one part
# on each rank (a DTensor that is `Partial`), and sums the parts when the optimizer reads them.
#
# ### What is kept for backward
#
# We count one layer of our model, in units of batch x sequence x hidden. Let $k$ be the width of all keys
# relative to the hidden width (1 here, 1/8 in Llama 70B), and $m$ the relative width of the inner layer:
#
# - **outside:** each of the two norms keeps its input and the normalized input: 4. It also keeps one fp32 number for each position (the norm's
#   scale).
# - **at the entrance:** the first products of the two blocks keep the blocks' inputs: 2.
# - **inside:** attention keeps q, k, v and its result: $2 + 2k$. The MLP keeps gate, its SiLU, up, and the product: $4m$. Attention also keeps one
#   number for each position and head (the logarithm of a sum).
#
# Tensor parallelism divides what is inside. Sequence parallelism also divides what is outside.

# %% tags=["nbval-check-output"]
k, m, positions, hidden, heads = 64 / 64, 192 / 64, 1 * 32, 64, 8
unit = 4 * positions * hidden


def kept_by_a_layer(inside, outside):
    """Bytes; inside and outside of the blocks divided by so many ranks."""
    return (
        (4 * unit + 2 * 4 * positions) / outside
        + 2 * unit
        + ((2 + 2 * k + 4 * m) * unit + 4 * positions * heads) / inside
    )


def measured_of_a_layer(way, which="kept"):
    return cut[0][f"{way}, 2"][which] - cut[0][f"{way}, 1"][which]


measured = {
    "one process": measured_of_a_layer("by hand", "kept_whole"),
    "tensor parallel": measured_of_a_layer("by hand"),
    "and sequence parallel": measured_of_a_layer("sequence parallel"),
}
rows = []
divisors = ((1, 1), (4, 1), (4, 4))
for (name, size), divisor in zip(measured.items(), divisors, strict=True):
    wanted = kept_by_a_layer(*divisor)
    rows.append((name, f"{wanted:,.0f} B", f"{size:,} B"))
    assert abs(size / wanted - 1) < 0.01, (name, wanted, size)
Table(("", "predicted", "measured"), rows, "What one layer keeps on a rank")

# %% [markdown]
# The 2 at the entrance is not divided: there f has gathered the whole sequence, and the products keep it. The paper does not keep it. Its backward
# gathers the sequence *again*, while the gradient of $x$ is computed (section 4.2.2). These two extra gathers a layer are hidden behind a product
# and save memory, so that everything is divided by the number of ranks, $t$. Our code stays simple and keeps the whole sequence.
#
# The paper counts bytes for a GPT of its time, in units of batch x sequence x hidden (table 2). A layer keeps 10 outside and 24 inside. It also
# keeps the scores of attention, $5as/h$ with $a$ heads, $s$ positions and hidden width $h$. (Dropping the scores and computing them again in
# backward is called *selective recomputation*. A fused kernel never keeps them.) Compared with tensor parallelism alone, how much memory remains on
# eight ranks? The next cell prints the formula beside the bars of the paper's figure 7:

# %% tags=["nbval-check-output"]
ranks, s, rows = 8, 2_048, []
for name, a, h, with_scores, without in [
    ("22 billion", 64, 6_144, 0.6684, 0.1618),
    ("175 billion", 96, 12_288, 0.6204, 0.1849),
]:
    scores = 5 * a * s / h
    alone = 10 + (24 + scores) / ranks
    for way, kept, in_the_paper in [
        ("sequence parallelism", (34 + scores) / ranks, with_scores),
        ("and scores dropped", 34 / ranks, without),
    ]:
        rows.append((name, way, f"{kept / alone:.1%}", f"{in_the_paper:.1%}"))
        assert abs(kept / alone - in_the_paper) < 0.001
title = "Kept, as a share of what tensor parallelism alone keeps"
Table(("parameters", "with", "formula", "figure 7"), rows, title)

# %% [markdown]
# ## At scale
#
# We put the training into a function. The same code then runs here on four ranks, and as the rehearsal of one rank of many, with a Llama of 70
# billion parameters.


# %%
def one_step(
    micro_batch=1, seq_len=32, dtype="float32", sequence_parallel=False, **shape
):
    """Two training steps of a GPT cut over all ranks; how many parameters this rank
    holds.
    """
    import torch
    import torch.distributed as dist

    from workshop.models.gpt import GPT, GPTConfig
    from workshop.parallel.tensor import cut_tensor

    if not dist.is_initialized():
        dist.init_process_group()
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")
    model = GPT(GPTConfig(**shape)).to(device, getattr(torch, dtype))
    model = cut_tensor(model, sequence_parallel=sequence_parallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(shape["vocab_size"], (micro_batch, seq_len), device=device)
    for _ in range(2):
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(parameter.numel() for parameter in model.parameters())


# %% [markdown]
# All that a rank sends has a closed form: $4L$ all_reduces of the activations for $L$ layers, one more each for embedding and head, and three
# all_reduces of one number a position for the loss. With sequence parallelism, the gradients of the norms are added.


# %%
def sent_in_a_step(ranks, layers, hidden, positions, value_bytes, sequence_parallel):
    """Bytes a rank sends, forward and backward."""
    size = value_bytes * positions * hidden
    activations = (4 * layers + 2) * wire_bytes("all_reduce", size, ranks)
    loss = wire_bytes("all_reduce", 3 * 4 * positions, ranks)
    norms = (2 * layers + 1) * wire_bytes("all_reduce", value_bytes * hidden, ranks)
    return int(activations + loss + (norms if sequence_parallel else 0))


# %% [markdown]
# First we check it on four real ranks:

# %%
# %%torchrun -n 4 --pass one_step --into live
from dataclasses import asdict, replace

import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import TINY

dist.init_process_group()
shape = asdict(replace(TINY, num_heads=8, num_kv_heads=8))
for name, sequence_parallel in {"tensor": False, "sequence": True}.items():
    with measure(memory=False) as measured:
        one_step(**shape, sequence_parallel=sequence_parallel)
    report(**{name: sum(row.wire_bytes for row in measured.traffic)})
dist.destroy_process_group()

# %% tags=["nbval-check-output"]
rows = []
for name in ("tensor", "sequence"):
    wanted = sent_in_a_step(4, 2, 64, 32, 4, name == "sequence")
    rows.append((f"{name} parallel", f"{wanted:,} B", f"{live[0][name]:,} B"))
    assert live[0][name] == wanted
by_plan = sum(size for _, size in cut[0]["by plan, 2"]["traffic"].values())
assert by_plan == sent_in_a_step(4, 2, 64, 32, 4, sequence_parallel=False)
Table(("", "closed form", "measured"), rows, "A rank of four sends in a step")

# %% [markdown]
# Now we rehearse eight ranks with 8,192 positions in bf16, and four of the eighty layers of Llama 70B. (All layers are alike, so four are enough to
# check the formula.)

# %%
from workshop.rehearse import rehearse

llama_70b = {
    "vocab_size": 128_256, "hidden_size": 8_192, "intermediate_size": 28_672,
    "num_layers": 4, "num_heads": 64, "num_kv_heads": 8,
}  # fmt: skip
at_scale = {"seq_len": 8_192, "dtype": "bfloat16", **llama_70b}
rehearsed = {
    name: rehearse(
        one_step, 8, keywords={**at_scale, "sequence_parallel": name == "sequence"}
    )
    for name in ("tensor", "sequence")
}

# %% tags=["nbval-check-output"]
rows = []
for name, of_a_rank in rehearsed.items():
    wanted = sent_in_a_step(8, 4, 8_192, 8_192, 2, name == "sequence")
    total = sum(row.wire_bytes for row in of_a_rank.traffic)
    rows.append((f"{name} parallel", f"{wanted:,} B", f"{total:,} B"))
    assert total == wanted
Table(("", "closed form", "rehearsed"), rows, "A rank of eight sends in a step")

# %% [markdown]
# Last, we ask what all eighty layers keep for backward, with Megatron's kernels. The paper's closed form (Korthikanti et al., table 2) is for a
# GPT. Llama has a different MLP, with three matrices, and fewer heads for keys and values. `predict_memory` does the sums for Llama:

# %% tags=["nbval-check-output"]
from workshop import Layout, Run, predict_memory

kept, rows = {}, []
for name, axes in {
    "one device": {},
    "8 ranks": {"tensor": 8},
    "8 ranks, sequence parallel": {"tensor": 8, "sequence_parallel": True},
}.items():
    layout = Layout(**axes, precision="megatron-bf16")
    run = Run(
        "llama-3.1-70b", f"{layout.tensor}xH100", layout,
        micro_batch=1, seq_len=8_192, implementation="megatron",
    )  # fmt: skip
    kept[name] = float(predict_memory(run).parts["activations"].max())
    rows.append(
        (name, format_bytes(kept[name]), f"{kept[name] / kept['one device']:.1%}")
    )
assert 0.3 < kept["8 ranks"] / kept["one device"] < 0.35
sequence_parallel = kept["8 ranks, sequence parallel"]
assert abs(sequence_parallel / (kept["one device"] / 8) - 1) < 0.01
Table(("", "a rank keeps", "of one device"), rows, "Activations of 80 layers")

# %% [markdown]
# Tensor parallelism alone leaves a third on each of eight ranks, because norms, residuals and the blocks' inputs stay whole. Only together with
# sequence parallelism does a rank keep an eighth.
#
# ### Why it stays inside a node
#
# In this code, the next product waits for each sum. In forward it has to, because it needs the sum. The two sums in backward could run while the
# gradient of the weight is computed, which does not need them; Megatron-LM does this. (Some kernels also cut a product into slices and send one
# slice while they compute the next: Megatron Core's `tp_comm_overlap`, PyTorch's asynchronous tensor parallelism.) Here nothing is hidden, and the
# table counts all four sums as waiting. It therefore matters over which wire the sums travel. The table compares three kinds of
# placement: eight H100s of one node, over NVLink; one GPU in each of eight nodes, over 400 Gbit/s InfiniBand; and several whole nodes.
#
# The last two columns are the time of the products with the layer's weights, and the share of the time that is spent waiting. A product takes 6 FLOPs
# per weight and token. We assume 400 TFLOP/s, about what a GPU reached in the training of Llama 3 (380 to 430). That rate already includes waiting,
# so the products alone are faster than we assume, and the shares of waiting below are too small rather than too large. With more than eight ranks,
# several ranks would have to hold the same key and value head, because there are only eight; the table leaves out what that costs.

# %% tags=["nbval-check-output"]
from workshop.facts.catalogue import cluster
from workshop.predict.collectives import Wires
from workshop.predict.time.rates import rates_of

wires = Wires.of(cluster("64xH100"), rates_of("H100"))


def of_one_layer(ranks, stride=1, hidden=8_192, tokens=8_192):
    """Seconds of its four sums and of its products, in proportions of Llama 70B."""
    activation_bytes = 2 * tokens * hidden  # bf16
    weights = (2 + 2 / 8 + 3 * 3.5) * hidden**2  # q and o; k and v; the MLP
    summing = 4 * float(wires.seconds("all_reduce", activation_bytes, ranks, stride))
    return summing, 6 * weights * tokens / ranks / 400e12


shares, waits, rows = {}, {}, []
for name, ranks, stride in [
    ("8 ranks, one node", 8, 1),
    ("8 ranks, one in each of 8 nodes", 8, 8),
    ("16 ranks, two nodes", 16, 1),
    ("64 ranks, eight nodes", 64, 1),
]:
    waits[name], products = of_one_layer(ranks, stride)
    shares[name] = waits[name] / (waits[name] + products)
    times = (f"{1e3 * seconds:.1f} ms" for seconds in (waits[name], products))
    rows.append((name, *times, f"{shares[name]:.0%}"))
one_each = shares.pop("8 ranks, one in each of 8 nodes")
assert one_each > 0.5
in_nodes = list(shares.values())  # 8, 16 and 64 ranks, which fill their nodes
assert in_nodes == sorted(in_nodes)
assert in_nodes[0] < one_each
assert waits["64 ranks, eight nodes"] < 3 * waits["8 ranks, one node"]
title = "A layer of Llama 70B, 8,192 tokens"
Table(("", "4 all_reduces", "products", "waiting"), rows, title)

# %% [markdown]
# - **One GPU a node** is bad: each node uses a single network adapter, and a GPU spends most of its time waiting.
# - **Several whole nodes** take less than three times as long for the sums as one node over NVLink, because all eight network adapters of each node
#   send at the same time. (This holds for a network that reaches its full speed.) But look at the products. More ranks divide the computation, but
#   **not what is sent**: for each sum a rank sends $2(t-1)/t$ times the bytes of the activations. That is between one and two, and more ranks never
#   make it less. So the share of time spent waiting grows with $t$, and would grow even if NVLink connected all nodes. Data parallelism also needs
#   those adapters.
# - The heads set a limit as well. Our code gives each rank whole heads of its own, so it refuses sixteen ranks before anything is computed:

# %% tags=["nbval-check-output"]
from workshop.rehearse import RehearsalError

try:
    rehearse(one_step, 16, keywords=at_scale)
except RehearsalError as error:
    (refusal,) = [line for line in str(error).splitlines() if "ValueError" in line]
print(refusal)

# %% [markdown]
# ### What makes the waiting smaller?
#
# All this holds for the width and the sequence of Llama 70B. What if the model is wider, or if there are more tokens?

# %%
# %%guess less_waiting --choices width,tokens
# Eight ranks of one node wait for 15 % of the time. Which of the two lowers this share
# by more: a model of twice the width, or twice as many tokens?
...

# %%
from workshop.jupyter.explorer import Control, explore
from workshop.show.style import Picture, new_figure

WIDTHS = [2_048 * 2**power for power in range(5)]


def waiting(*case, **more):
    """The share of the time that goes to the sums."""
    summing, products = of_one_layer(*case, **more)
    return summing / (summing + products)


def draw(tokens):
    figure, axis = new_figure(6.4, 2.8)
    colours = {4: "#56B4E9", 8: "#0072B2", 16: "#E69F00", 64: "#D55E00"}
    for ranks, colour in colours.items():
        shares = [100 * waiting(ranks, hidden=width, tokens=tokens) for width in WIDTHS]
        axis.plot(WIDTHS, shares, "o-", color=colour, label=f"{ranks} ranks")
    axis.set(xlabel="hidden width", ylabel="waiting, %", ylim=(0, 100), xscale="log")
    axis.set_xticks(WIDTHS, [f"{width:,}" for width in WIDTHS])
    axis.minorticks_off()
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    share = waiting(8, tokens=tokens)
    words = f"{tokens:,} tokens: 8 ranks at width 8,192 wait {share:.0%}"
    return Picture(figure, words)


explore(draw, [Control("tokens", 8_192, (2_048, 4_096, 8_192, 16_384, 32_768))])

# %% tags=["nbval-check-output"]
usual = waiting(8)
changed = {"width": waiting(8, hidden=16_384), "tokens": waiting(8, tokens=16_384)}
rows = [(f"twice the {name}", f"{share:.1%}") for name, share in changed.items()]
display(
    Table(("8 ranks of one node", "waiting"), [("as above", f"{usual:.1%}"), *rows])
)
assert changed["width"] < 0.6 * usual
assert changed["tokens"] > 0.9 * usual
beside("less_waiting", predicted="width", calculated=min(changed, key=changed.get))

# %% [markdown]
# It is the width. A sum has $b s h$ numbers ($b$ sequences of $s$ tokens, hidden width $h$), of which a rank sends $2(t-1)/t$ times as many, and its
# products take $b s h^2 / t$ times a constant. So over one kind of wire, the ratio of the two grows with $(t - 1) / h$. The tokens cancel: twice as
# many of them double both. (They help a little, because longer messages come closer to the full speed of the wire.) So a wide model can be cut
# into more parts than a narrow one.
#
# The rule is: use tensor parallelism inside the node, and no more of it than memory requires.
#
# A published example: Shoeybi et al. trained 8.3 billion parameters on 512 V100s, 8-way tensor parallel inside a node times 64-way data parallel, at
# 15.1 PFLOP/s. One GPU alone reached 39 TFLOP/s, and 15,100 / (512 x 39) = 76 %.

# %% [markdown]
# ## Tomorrow's script
#
# This script uses tensor parallelism without this workshop. PyTorch's `parallelize_module` takes a plan, which says for each linear layer whether it
# is cut by columns or by rows, and adds f and g. It would add an f for each of q, k and v; the plan's entry `once` makes one of them. The forward
# code is that of one device, except for one `-1`: a rank has only some of the heads. Before training, the script compares the cut model with the
# whole one. `torchrun --nproc-per-node 4 train_tensor_parallel.py` runs it. If you run it again, it continues from its last checkpoint.
#
# (Every rank builds the whole model, cuts it, and keeps a second copy, `whole`, for the comparison. In a real run, `del whole` after it. A model that
# does not fit on one device starts on the `meta` device instead, and gets its weights after the cut.)

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_tensor_parallel")

# %% tags=["script"]
# %%torchrun -n 2 --into in_parts --save {folder}/train_tensor_parallel.py
import copy
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")


class Attention(nn.Module):
    """Causal, with heads of 16."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 16)) for f in (self.q, self.k, self.v))
        heads = [t.transpose(1, 2) for t in (q, k, v)]  # -1: this rank's heads
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and an MLP, each beside its input."""

    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


torch.manual_seed(0)  # all ranks cut the same weights
model = nn.Sequential(Layer(64), Layer(64), nn.Linear(64, 1)).to(device)
whole = copy.deepcopy(model)
columns, rows = ColwiseParallel(), RowwiseParallel()
alike = {"input_layouts": Replicate(), "desired_input_layouts": Replicate()}
once = PrepareModuleInput(**alike)  # one f for q, k and v, not one for each
plan = {"attention": once, "attention.o": rows, "mlp.0": columns, "mlp.2": rows}
plan |= dict.fromkeys(("attention.q", "attention.k", "attention.v"), columns)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
for layer in model[:-1]:
    parallelize_module(layer, mesh, plan)
optimizer = torch.optim.SGD(  # after the cut; foreach cannot mix whole and cut weights
    model.parameters(), lr=0.03, momentum=0.9, foreach=False
)

inputs = torch.randn(256, 8, 64, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.cumsum(1).mean(dim=-1, keepdim=True)  # a running sum needs attention
torch.testing.assert_close(model(inputs), whole(inputs))  # before you trust the cut
saved, first = Path(os.environ.get("CHECKPOINT", "train_tensor_parallel")), 0
ends = [int(path.parent.name) for path in saved.glob("*/.metadata")]  # written last
if ends:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=saved / str(max(ends)))
    weights, moments = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = max(ends) + 1

for epoch in range(first, first + 3):
    order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(1, device=device)
    for batch in order.to(device).split(32):  # the same on all ranks
        loss = (model(inputs[batch]) - targets[batch]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() / 8
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {total.item():.3f}")
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=saved / str(epoch))
dist.destroy_process_group()

# %% [markdown]
# On a single rank nothing is cut. With the same data and the same weights, the losses must be the same:

# %%
os.environ["CHECKPOINT"] = str(folder / "alone")
alone = launch.torchrun(launch.Script(folder / "train_tensor_parallel.py"), 1).text
print(alone, end="")
assert "epoch 2" in alone
assert alone == in_parts.text

# %% [markdown]
# Three things go wrong easily when you add them to such a script by hand:
#
# - **Clipping.** The gradients on one rank are only a part of the model's. Sum their squares over the ranks, but count a weight that every rank holds
#   whole (a norm, for example) only once. Otherwise each rank clips by a norm of its own, and the whole weights drift apart.
# - **Dropout.** Inside a cut part, for example on a rank's own heads, the ranks need different random numbers. On activations that all ranks hold
#   whole, they need the same ones.
# - **The bias of a layer that is cut by rows.** Add it once, after the sum. If each rank adds it before, it is counted once per rank.

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("31_tensor_parallel", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - Cut the first matrix by columns and the second by rows. Then the activation, or a head, needs nothing from other ranks, and one sum at the end
#   serves both products.
# - **f**: nothing in forward, all_reduce in backward. **g**: all_reduce in forward, nothing in backward. A layer has two of each: **four
#   all_reduces**.
# - Sequence parallelism makes 4 all_gathers and 4 reduce_scatters, which are **the same bytes**, and also divides norms and residuals.
# - The vocabulary is cut as well, and the logits need not be gathered, unless your plan asks for it.
# - The bytes grow with batch x sequence x hidden, not with the weights, and do not shrink with more ranks. In forward at least, the ranks wait for
#   them in every layer. So tensor parallelism stays inside the node.
# - For each second of products, the time of the sums grows with $(t - 1) / h$. So a wider model waits for a smaller share of its time. More tokens
#   hardly change it.
#
# Next: [32_pipeline](32_pipeline.ipynb) cuts between the layers, where there is far less to send.
#
# ## Sources
#
# - M. Shoeybi et al., *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*, 2019,
#   [arXiv:1909.08053](https://arxiv.org/abs/1909.08053): section 3 (f, g, vocabulary), figure 4 (four all_reduces), abstract (15.1 PFLOP/s, 76 %).
# - V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   [arXiv:2205.05198](https://arxiv.org/abs/2205.05198): sections 4.1 to 4.2.2, table 2, figure 7 (its bars in numbers:
#   github.com/calculon-ai/calculon, `calculon/llm/validation.py`).
# - *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783): table 3 (shape of the 70B model), table 4 (TFLOP/s).
# - Links: NVIDIA DGX H100 data sheet (in `workshop/facts/data/clusters.toml`); what collectives reach of them: `workshop/predict/data`.
# - PyTorch: github.com/pytorch/pytorch, `torch/distributed/tensor/parallel`.
