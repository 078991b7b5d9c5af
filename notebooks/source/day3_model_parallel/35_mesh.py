# %% [markdown]
# # Combine the cuts: is a model that is cut three ways still one model?
#
# - **You need** `25_fsdp`, `31_tensor_parallel` and `32_pipeline`. For one layout, you also need `33_context_parallel`.
# - **It takes** 45 minutes to read and try, under a minute to run.
# - **What runs where:** everything runs here: two cuts at once on four ranks, and two and three cuts on eight ranks. The same cells are meant
#   for eight GPUs, but nobody has tried that yet. The last part rehearses one rank of 512.
# - **Model and text:** `TINY` on the reference manual, with four layers, so that each of two stages has two. Embedding and head are one
#   matrix, so the first and the last stage both hold it, and its gradients must be added.
# - **Links:** before this [34_experts](34_experts.ipynb), after it [36_vision_lab](36_vision_lab.ipynb), words in the [glossary](../glossary.md).
#
# ## Question
#
# A model can be cut inside its layers (*tensor*), between its layers (*pipeline*) and along the sequence (*context*). The
# batch can be divided among ranks (*data*), and these ranks can share the weights as shards. Each lesson so far made one cut, and
# each cut has a limit: tensor parallelism has to wait for its sums, a pipeline waits longer with every stage, and a batch has only so many
# sequences. Therefore a large model is cut in several ways at once, and each of its ranks belongs to several groups.
#
# Do all these ranks still train one model? And which of the groups should get the fast links within a node?

# %%
# %load_ext workshop
from workshop import show
from workshop.exercises import beside
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.facts.tabular import Table
from workshop.facts.units import format_seconds

# %% [markdown]
# ## A box of ranks
#
# A *layout* says how many ways the run is cut on each axis. A rank has one place on each axis, so the ranks form a box. Two stages, two shards
# and two halves of every matrix take eight ranks.
#
# Ranks are numbered through the box, one axis after another. Along the first axis the rank numbers are consecutive, and
# consecutive ranks share a node. The next cell draws the box, as if a node had four ranks. Colors are pipeline stages.

# %%
three = Layout(
    pipeline=2, shard=2, zero=3, tensor=2, sequence_parallel=True, precision="fp32"
)
show.rank_map(three, devices_per_node=4)

# %% [markdown]
# In a `Layout`, *shard* is data parallelism with ZeRO, and *replicate* is data parallelism without ZeRO. (`zero=3` shards weights, gradients and
# optimizer state, as in lesson 24. With `sequence_parallel=True`, tensor ranks also divide the tokens of the norms, as in lesson 31.)
#
# **Predict:** rank 5 shares something with one other rank on each axis. Which rank holds the other half of its matrices (tensor)? Which holds
# another shard of the same weights (shard)? And with which rank does it exchange activations (pipeline)? Answer all three; the guess asks for
# the second.

# %%
# %%guess shares_weights
# Which other rank holds a shard of the same weights as rank 5 (axis shard)?
...

# %% [markdown]
# ### Exercise: who is with whom?


# %%
# %%exercise group_of
def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    step = ...  # from a rank to the next on this axis
    place = ...  # the rank's own, counted from 0
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))


# %% tags=["nbval-check-output"]
box = {"tensor": 2, "shard": 2, "pipeline": 2}  # consecutive along the first axis


def listed(group):
    return ", ".join(map(str, group))


rows = []
for axis in box:
    groups = sorted({group_of(rank, axis, box) for rank in range(8)})
    nodes = max(len({rank // 4 for rank in group}) for group in groups)
    span = "one node" if nodes == 1 else f"{nodes} nodes"
    together = " | ".join(map(listed, groups))
    rows.append((axis, listed(group_of(5, axis, box)), together, span))
    assert all(group == three.group(group[0], axis) for group in groups)
assert group_of(5, "tensor", box) == (4, 5)
Table(("axis", "rank 5's group", "all groups", "a group spans"), rows)

# %%
(other,) = set(group_of(5, "shard", box)) - {5}
beside("shares_weights", calculated=other)

# %% [markdown]
# Every rank is in three groups, one for each axis, and each group is a row of the box. PyTorch calls the box a *device mesh*.
#
# Published layouts are numbered in the same way. The authors of Llama 3 draw sixteen GPUs, two on each of four axes, in the order tensor,
# context, pipeline, data (Dubey et al., 2024, figure 5). In this figure, GPU 0 is with GPU 1 on the first axis, and with 2, 4 and 8 on the
# others. Does your function agree?

# %% tags=["nbval-check-output"]
figure_5 = {"tensor": 2, "context": 2, "pipeline": 2, "data": 2}
with_gpu_0 = {axis: group_of(0, axis, figure_5)[1] for axis in figure_5}
assert list(with_gpu_0.values()) == [1, 2, 4, 8]
rows = [(axis, f"GPU {other}") for axis, other in with_gpu_0.items()]
Table(("axis", "GPU 0 is with"), rows)

# %% [markdown]
# ## Two cuts by hand
#
# We start with four ranks, tensor 2 and data 2, and a model of two matrices, *up* and then *down*, with a ReLU after each. Tensor parallelism
# cuts first: it divides the outputs of *up* and the inputs of *down*. The part that a rank has left is then sharded by rows, between this rank
# and the rank that reads the other half of the batch:

# %%
show.two_cuts()

# %% [markdown]
# Between two steps, a rank holds only its shards. In a step, ranks send shards, then parts of y, and then gradients, each by a collective in one of a
# rank's two groups.

# %%
# %%guess held_of_128
# Of the 128 numbers of a matrix, how many does a rank hold between two steps?
...

# %% [markdown]
# Your `group_of` tells which ranks are in which group. (All ranks must take part in making every group, in the same order.) The next cell makes the
# groups, and cuts the matrices and the batch:

# %%
# %%ranks -n 4 --pass group_of
import torch
import torch.distributed as dist

data, tensor = divmod(rank, 2)  # neighbors are in the same tensor group
box, groups = {"tensor": 2, "data": 2}, {}
for axis in box:
    for ranks in sorted({group_of(other, axis, box) for other in range(4)}):
        group = dist.new_group(list(ranks))
        if rank in ranks:
            groups[axis] = group
torch.manual_seed(0)  # every rank makes the same whole tensors, only to cut them
up, down, x = torch.randn(16, 8), torch.randn(8, 16), torch.randn(4, 8)
own = [up.chunk(2, 0)[tensor], down.chunk(2, 1)[tensor]]  # first cut: tensor
own = [part.chunk(2, 0)[data].contiguous().to(device) for part in own]  # then data
x = x.chunk(2, 0)[data].to(device)

# %% [markdown]
# ### Exercise: one step, cut twice


# %%
# %%exercise two_cut_gradients
import torch
import torch.distributed as dist


def two_cut_gradients(x, up, down, groups):
    """The gradients of this rank's shards of `up` and `down`."""
    up_half, down_half = ...  # what this rank computes with; both require a gradient
    partial = (x @ up_half.T).relu() @ down_half.T
    y = partial.detach().clone()
    ...  # is y complete?
    y = y.relu()
    partial.backward(2 * y / y.numel())  # the gradient of the mean of y squared
    return ...


# %% [markdown]
# The four ranks have their shards, their rows of x and their groups. Your function makes one step:

# %%
# %%ranks --pass two_cut_gradients --into by_hand
from workshop import report

gradients = two_cut_gradients(x, *own, groups)
held = own[0].numel()
if rank == 0:
    print(f"of the {up.numel()} numbers of up, a rank holds {held}")
report(held=held)

# %%
assert {by_hand[rank].held for rank in range(4)} == {128 // 4}
beside("held_of_128", predicted=128 / 4, measured=by_hand[0].held)

# %% [markdown]
# Along *data*, shards are gathered before they are used, and gradients are averaged afterwards. Along *tensor*, the parts of a sum are added. (Two
# divides every size here. `fully_shard` also takes rows that do not divide: it pads them, as in lesson 25.)
#
# Now we do the same with PyTorch. `init_device_mesh` makes all the groups. `parallelize_module` cuts along one axis, and `fully_shard` along
# the other. Both put their collectives into forward and backward.

# %%
# %%ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("data", "tensor"))
first, second = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU()).to(device)
model.load_state_dict({"0.weight": up, "2.weight": down})
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(model, mesh["tensor"], plan)
fully_shard(model, mesh=mesh["data"])
model(x).square().mean().backward()

for axis, group in groups.items():
    theirs = dist.get_process_group_ranks(mesh.get_group(axis))
    assert theirs == dist.get_process_group_ranks(group)
for parameter, part, gradient in zip(model.parameters(), own, gradients, strict=True):
    assert torch.equal(parameter.to_local(), part)
    torch.testing.assert_close(parameter.grad.to_local(), gradient)
if rank == 0:
    print("the same groups, the same parts, the same gradients")

# %% [markdown]
# ### The third cut
#
# A pipeline cuts before the two others: each rank keeps one stage, and tensor and data see only this stage. At the end, `PipelineStage` gets
# what is left. It sends activations, and their gradients, within the rank's third group. Here eight ranks train two stages of two matrices, each
# data rank with two micro-batches. First, every rank computes the gradients of the whole model on the whole batch, to compare:

# %%
# %ranks stop

# %%
# %%ranks -n 8
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

axes = ("pipeline", "data", "tensor")
mesh = init_device_mesh(device.type, (2, 2, 2), mesh_dim_names=axes)
number, data, tensor = mesh.get_coordinate()
torch.manual_seed(0)  # every rank makes the same whole model, only to cut it
matrices = [nn.Linear(*size, bias=False) for size in ((8, 16), (16, 8)) * 2]
whole = nn.Sequential(*(layer for one in matrices for layer in (one, nn.ReLU())))
up, down = matrices[2 * number : 2 * number + 2]  # this rank's stage
x = torch.randn(8, 8)
by_up, by_down = torch.autograd.grad(whole(x).square().mean(), (up.weight, down.weight))

# %% [markdown]
# Now the same gradients from three cuts. The last lines compare each shard's gradient with its part of the whole one:

# %%
# %%ranks
from copy import deepcopy

from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import parallel as tp

part = nn.Sequential(deepcopy(up), nn.ReLU(), deepcopy(down), nn.ReLU())
part.to(device)  # the first cut is made: this rank has one stage
plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
tp.parallelize_module(part, mesh["tensor"], plan)  # second cut
fully_shard(part, mesh=mesh["data"])  # third cut
stage = PipelineStage(part, number, 2, device, group=mesh.get_group("pipeline"))
schedule = Schedule1F1B(stage, 2, loss_fn=lambda y, target: y.square().mean())
half = x.chunk(2)[data].to(device)
schedule.step(*([half] if number == 0 else []), target=half)  # the target is not used

halves = by_up.chunk(2, 0)[tensor], by_down.chunk(2, 1)[tensor]
for weight, gradient in zip(part.parameters(), halves, strict=True):
    gradient = gradient.chunk(2, 0)[data]
    apart = (weight.grad.to_local().cpu() - gradient).norm() / gradient.norm()
    assert apart < 1e-5
print(f"stage {number}: the gradients of the shards are those of the whole model")

# %%
# %ranks stop

# %% [markdown]
# ## Run: 2D, 3D, and one process beside them
#
# Now we cut the whole `TINY`, with its embeddings, attention and tied head. The workshop's `apply_layout` makes these cuts for any layout.
# We try three layouts of eight ranks. Each is described by a `Run`:
#
# - **2D**: FSDP over four, tensor over two, as above.
# - **3D**: two pipeline stages, FSDP over two, tensor over two, with sequence parallelism.
# - **3D with context**: two stages, two parts of the sequence, tensor over two.
#
# The order is always the same: context, pipeline, tensor, recompute, compile, shard, optimizer. Each step has to see
# what the step before has made. For example, the columns of a tensor rank can be sharded, but a shard cannot be cut into heads.

# %%
from workshop.facts.implementation import implementation
from workshop.facts.model import ModelSpec

small = ModelSpec(
    "TINY, four layers", 4, 64, 4, 256, num_kv_heads=2, ffn_hidden_size=192,
    tied_embeddings=True,
)  # fmt: skip
# unfused norms, and an optimizer that needs no temporary memory
ours = implementation("torch", norm="eager", step_room=0.0)


def run_of(layout, accumulation):
    """Eight sequences of 128 tokens a step, however they are dealt out."""
    return Run(
        small, "this-machine", layout, seq_len=128, global_batch=8,
        micro_batch=8 // layout.data_parallel // accumulation, implementation=ours,
        optimizer="sgd",
    )  # fmt: skip


runs = {
    "2D": run_of(Layout(shard=4, zero=3, tensor=2, precision="fp32"), 1),
    "3D": run_of(three, 2),
    "3D with context": run_of(
        Layout(pipeline=2, context=2, tensor=2, precision="fp32"), 2
    ),
}

# %%
# %%guess sends_most_here --choices tensor,shard,pipeline
# In the 3D run, each of two micro-batches is two sequences of 128 tokens. Along which
# axis does a rank of the first stage send the most bytes in a step?
...

# %% [markdown]
# Each rank reports its losses, how many numbers it holds, and what it sent:


# %%
def held_and_sent(ready, measured):
    """Numbers that a rank holds; calls and bytes by collective and axis."""
    held = sum(
        p.to_local().numel() if hasattr(p, "to_local") else p.numel()
        for p in ready.model.parameters()
    )
    rows = [
        (row.name, row.axis, row.count, row.payload_bytes, row.wire_bytes)
        for row in measured.traffic
    ]
    return {"held": held, "traffic": rows}


# %%
# %%torchrun -n 8 --pass runs,held_and_sent --into eight
import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.from_spec import gpt_config
from workshop.models.gpt import GPT
from workshop.models.text import TextBatches
from workshop.train import Settings, train_loop
from workshop.train.apply_layout import apply_layout
from workshop.train.group import join_group

join_group()
rank = dist.get_rank()
for name, run in runs.items():
    # every rank makes another model; apply_layout replaces it with parts of rank 0's
    torch.manual_seed(rank)
    settings = Settings(num_steps=2, clip_norm=0.0, optimizer="sgd", learning_rate=0.1)
    ready = apply_layout(
        GPT(gpt_config(run.model)), run.layout, settings,
        micro_batch=run.micro_batch, accumulation=run.accumulation,
    )  # fmt: skip
    share = run.layout.data_rank(rank)
    batches = TextBatches(
        run.seq_len, run.global_batch, share, run.layout.data_parallel, run.accumulation
    )
    with measure(ready.model, ready.optimizers[0], memory=False) as measured:
        losses = train_loop(ready, batches, settings).values
    report(**{name: {"losses": losses, **held_and_sent(ready, measured)}})
dist.destroy_process_group()

# %% [markdown]
# For comparison, one process trains with the same seed as rank 0 and the same eight sequences in each step. Then we repeat this with every
# gradient doubled; under SGD, that is the same as twice the learning rate.

# %%
from workshop.train import train

one_rank = Run(small, "this-machine", Layout(precision="fp32"), 8, 128, optimizer="sgd")
alone, doubled = (
    train(
        one_rank, num_steps=2, clip_norm=0.0, learning_rate=rate, measured=False
    ).losses
    for rate in (0.1, 0.2)
)

# %% [markdown]
# ## Compare: one model


# %%
def losses_of(steps):
    return [f"{loss:.4f}" for loss in steps]


most_held = {}
rows = [("one process", *losses_of(alone), "-", f"{small.num_params:,} numbers")]
for name, run in runs.items():
    apart = max(
        abs(a - b)
        for rank in range(8)
        for a, b in zip(eight[rank][name]["losses"], alone, strict=True)
    )
    most_held[name] = max(eight[rank][name]["held"] for rank in range(8))
    assert apart < 1e-5, (name, apart)
    losses = losses_of(eight[0][name]["losses"])
    rows.append((name, *losses, f"{apart:.1e}", f"{most_held[name]:,} numbers"))
rows.append(("one process, gradients doubled", *losses_of(doubled), "-", "-"))
assert abs(doubled[1] - alone[1]) > 0.01
assert small.num_params / 8 < most_held["2D"] < most_held["3D"]
assert most_held["3D with context"] == 2 * most_held["3D"]
head = "loss 1", "loss 2", "a rank's largest difference", "a rank holds at most"
Table(("", *head), rows)

# %% [markdown]
# All eight ranks' losses are those of one process, to 1e-5. We train two steps, so there is one update between the two losses. SGD's update
# is the gradient times the learning rate, so gradients that are wrong by a factor move the second loss, as the last line shows. So we have
# good reason to think that gradients are summed where they come in parts, and averaged where ranks see different tokens. The gradients of the
# tied embedding, which two stages hold, are summed over both.
#
# Two losses are not a proof. In an untrained model, for example, the gradients of queries and keys are nearly zero, so they hardly move the
# loss even if they are wrong. A proof compares every gradient by itself, as `tests/parallel/test_mesh.py` does. (AdamW would show even less,
# because its first update is the same for a gradient and for twice that gradient.)
#
# In 2D, a rank holds an eighth of every matrix. In 3D it holds a little more, because the first and the last stage each have a copy of the
# embedding. With context, a rank holds twice as much: the two context ranks divide a sequence between them, but not the weights, so each has a
# full copy.
#
# ## Compare: traffic by axis
#
# `measure` records the group of each collective, and the mesh has named the groups. So we can count bytes by axis on real ranks, and compare
# with the closed form:

# %%
from workshop.predict.traffic import predict_traffic


def counted(name, rank):
    """Bytes on the wire by axis, as rank counted them in the last step."""
    sums = {}
    for _, axis, _, _, wire in eight[rank][name]["traffic"]:
        sums[axis] = sums.get(axis, 0) + wire
    return sums


by_axis = {
    "predicted": predict_traffic(runs["3D"]).on_stage(0).by_axis(),
    "measured": counted("3D", 0),
}
show.traffic_by_axis(
    by_axis, "3D, a rank of the first stage: what it sends in a step", linear=True
)

# %%
most = {name: max(sent, key=sent.get) for name, sent in by_axis.items()}
counts = by_axis["measured"]
assert round(counts["tensor"] / counts["shard"], 1) == 1.8
beside("sends_most_here", **most)

# %% tags=["nbval-check-output"]
rows = []
for name in ("2D", "3D"):
    predicted = predict_traffic(runs[name])
    for rank in range(8):
        stage = predicted.stages[runs[name].layout.coordinates(rank)["pipeline"]]
        wanted = {
            (row.name, row.axis, row.count, row.payload_bytes, row.wire_bytes)
            for row in stage
        }
        assert {tuple(row) for row in eight[rank][name]["traffic"]} == wanted, rank
    formula = predicted.on_stage(0).by_axis()
    for axis, size in sorted(counted(name, 0).items(), key=lambda pair: -pair[1]):
        rows.append((name, axis, f"{formula[axis]:,} B", f"{size:,} B"))
head = ("layout", "axis", "closed form", "counted")
Table(head, rows, "what rank 0 sends in a step")

# %% [markdown]
# The counts agree to the byte, for each axis. On all eight ranks, the cell also compared each collective's calls and bytes. (The
# matrices are cut by the short plan of lesson 31, which needs more sums in a layer than necessary. The next cell counts them. We leave out
# the context run here. There is a formula for its ring, and a test that counts it.)

# %% tags=["nbval-check-output"]
(count,) = [
    calls
    for name, axis, calls, *_ in eight[0]["2D"]["traffic"]
    if (name, axis) == ("all_reduce", "tensor")
]
print(f"2D, tensor: {count} all_reduces in a step of {small.num_layers} layers")
assert count == 7 * small.num_layers + 2  # two more: for the embedding and the head

# %% [markdown]
# These are seven sums in a layer, where four would be enough, and two more for the embedding and the head.
#
# ## Which axis belongs within a node?
#
# Here a rank sends most along tensor, then along shard, then along pipeline. This order is not fixed. Tensor
# parallelism sends activations, so its bytes grow with the tokens of a micro-batch. FSDP sends weights, however many
# tokens there are. With half as many tokens, our shard axis would send more than tensor.
#
# So we compare times instead: bytes divided by the speed of the link. Inside a node of H100s, a GPU sends 450 GB/s to the others by NVLink. To
# another node it sends 50 GB/s by its network adapter.

# %% tags=["nbval-check-output"]
from dataclasses import replace

from workshop.facts.layout import AXES


def sent_in_3d(tokens):
    """What a rank of the 3D run sends in a step, with sequences of so many tokens."""
    return predict_traffic(replace(runs["3D"], seq_len=tokens)).on_stage(0).by_axis()


def on_axes(by_axis):
    """Without the gradient of the tied embedding, which is no axis of its own."""
    return {axis: size for axis, size in by_axis.items() if axis in AXES}


def link_rows(sent):
    """A line for each axis, the most bytes first: bytes, and seconds on both links."""
    for axis, size in sorted(sent.items(), key=lambda pair: -pair[1]):
        inside, outside = (format_seconds(size / rate) for rate in (450e9, 50e9))
        yield axis, f"{size:,} B", inside, outside


LINK_HEAD = ("axis", "bytes", "within a node", "between nodes")
sent = on_axes(counted("3D", 0))
assert sent_in_3d(64)["tensor"] < sent_in_3d(64)["shard"]  # half as many tokens
Table(LINK_HEAD, list(link_rows(sent)), "3D, a rank of the first stage")

# %% [markdown]
# Inside a node, each axis takes a ninth of the time. So the axis that sends most gains most, and it goes inside, if its group fits into a node.
# (A group that is larger than a node sends over the slow links in any order. Then the fast links are better used by another axis.) Three
# axes can be put in six orders.
#
# ### Exercise: which axis goes innermost?


# %%
# %%exercise axis_order
from itertools import permutations


def axis_order(
    sent: dict[str, float], sizes: dict[str, int], per_node: int
) -> tuple[str, ...]:
    """The axes, innermost first, that take least time."""

    def seconds(order: tuple[str, ...]) -> float:
        total, reach = 0.0, 1
        for axis in order:
            # so many neighboring ranks hold a whole group of this axis
            reach *= sizes[axis]
            total += ...
        return total

    return min(permutations(sent), key=seconds)


# %% tags=["nbval-check-output"]
sizes, rows = dict.fromkeys(sent, 2), []
for tokens, per_node, num_inside in ((128, 4, 2), (128, 2, 1), (64, 2, 1)):
    sizes_sent = on_axes(sent_in_3d(tokens))
    order = axis_order(sizes_sent, sizes, per_node)
    # two axes that are both inside may have either order: list the most bytes first
    inside, outside = (
        sorted(part, key=lambda axis: -sizes_sent[axis])
        for part in (order[:num_inside], order[num_inside:])
    )
    rows.append((f"{tokens}", f"{per_node}", ", ".join(inside), ", ".join(outside)))
assert [row[2:] for row in rows] == [
    ("tensor, shard", "pipeline"),
    ("tensor", "shard, pipeline"),
    ("shard", "tensor, pipeline"),
]
Table(("tokens", "ranks in a node", "within a node", "between nodes"), rows)

# %% [markdown]
# In nodes of four, tensor and shard both fit inside, and pipeline, which sends least, is left to the slow links. In nodes of two there is room
# for one axis, and its choice depends on the tokens.
#
# Bytes are not the only reason. FSDP gathers the next layer while this layer computes, and a pipeline has other micro-batches to
# work on. Tensor parallelism has to wait for its sums.
#
# Programs use a fixed order. Megatron-LM's default order is "tp-cp-ep-dp-pp" (ep: experts), from the innermost to the outermost axis, and `AXES`
# in `workshop/facts/layout.py` follows it, without experts. So the box above puts tensor and shard inside a node of four. (Llama 3 has data
# outermost, as in its figure 5. Both have tensor innermost.) Between nodes, our box sends only the activations between stages and, once a step,
# the gradient of the tied embedding, which the first and the last stage share. (The picture calls it *embedding*. It is not an axis of its own,
# so the exercise leaves it out.)
#
# Change the length of the sequences with the slider, and see when the fast links go to another axis. The cell uses your `axis_order`.

# %%
from workshop.jupyter.explorer import Control, explore


def draw_sent(tokens):
    by_axis = sent_in_3d(tokens)
    each = on_axes(by_axis)
    first = axis_order(each, dict.fromkeys(each, 2), per_node=2)[0]
    words = f"sequences of {tokens} tokens; in nodes of two, {first} belongs inside"
    return show.traffic_by_axis({"predicted": by_axis}, words, linear=True)


explore(draw_sent, [Control("tokens", 128, (16, 32, 64, 128, 256))])

# %% [markdown]
# ## At scale: one rank of 512
#
# We take Llama 3 8B on 512 GPUs, with eight stages, FSDP over eight and tensor over eight. The same `apply_layout` cuts it. No tensor has
# any bytes and nothing is sent, but every collective is recorded by axis. We are rank 500, on the last stage, with
# sequences of 4,096 tokens.
#
# **Predict:** on eight ranks, tensor sent 1.8 times as many bytes as shard. Now the hidden vector is 64 times as wide, a micro-batch has 16
# times as many tokens, and four times as many ranks share a matrix. What happens to the ratio of 1.8?

# %%
# %%guess tensor_over_shard --unit times
# How many times as many bytes does rank 500 send along tensor as along shard?
...

# %%
large = Run(
    "llama-3-8b",
    "512xH100",
    Layout(pipeline=8, shard=8, zero=3, tensor=8, sequence_parallel=True),
    micro_batch=1,
    seq_len=4_096,
    accumulation=4,
)

# %%
# %%rehearse -n 512 --rank 500 --steps 1 --into rank_500
import torch
import torch.distributed as dist

from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.train.apply_layout import apply_layout

dist.init_process_group()
layout = Layout(pipeline=8, shard=8, zero=3, tensor=8, sequence_parallel=True)
llama = GPT(GPTConfig(128_256, 4_096, 32, 32, 8, 14_336))
ready = apply_layout(llama, layout, micro_batch=1, accumulation=4)
tokens = torch.zeros(1, 4_096, dtype=torch.int64)
ready.gradients([(tokens, tokens)] * 4, 4)
ready.clip(0.0)
ready.step()

# %%
closed_form = predict_traffic(large).on_stage(large.layout.coordinates(500)["pipeline"])
begun = ("broadcast", "scatter")  # initial weights, sent once before the first step
in_a_step = [row for row in rank_500.traffic if row.name not in begun]
show.traffic_by_axis(
    {"closed form": closed_form, "rehearsed": in_a_step},
    "Llama 3 8B on 512 ranks: what rank 500 sends in a step",
    linear=True,
)

# %% tags=["nbval-check-output"]
rehearsed, formula = show.wire_bytes_by_axis(in_a_step), closed_form.by_axis()
assert rehearsed == formula  # to the byte, on each axis
Table(LINK_HEAD, list(link_rows(rehearsed)), "Llama 3 8B on 512 ranks, rank 500")

# %%
inside = axis_order(rehearsed, dict.fromkeys(rehearsed, 8), per_node=8)[0]
assert inside == "tensor"
assert 0.5 < rehearsed["shard"] / rehearsed["tensor"] < 0.6
assert round(formula["tensor"] / formula["shard"], 1) == 1.7
tokens_by_width = [
    run.micro_batch * run.seq_len * run.layout.tensor / run.model.hidden_size
    for run in (runs["3D"], large)
]
assert tokens_by_width == [8, 8]
beside(
    "tensor_over_shard",
    predicted=formula["tensor"] / formula["shard"],
    calculated=rehearsed["tensor"] / rehearsed["shard"],  # by the rehearsal
)

# %% [markdown]
# The rehearsed program and the formula agree to the byte, and `axis_order` puts tensor inside the node of eight. The ratio has hardly
# changed, from 1.8 to 1.7. Tensor sends tokens times width, and FSDP sends weights, which are width times width divided by the tensor ranks.
# So the ratio is proportional to *tokens x tensor ranks / width*: 256 x 2 / 64 before, and 4,096 x 8 / 4,096 now. Both are 8.
#
# FSDP sends more than half as much as tensor, because under a pipeline it gathers each layer twice for *every* micro-batch. For this reason the
# two are seldom combined in this way. Llama 3 sharded gradients and optimizer state, and did not reshard the weights after forward, which comes
# close to ZeRO-2. By default, torchtitan does not reshard after forward if there is a pipeline.

# %% [markdown]
# ## Tomorrow's script
#
# The next cell trains on two axes, without this workshop: it makes a mesh with names, then applies tensor parallelism along one axis and FSDP2
# along the other. The order matters in two places. The last name of the mesh is the innermost axis, whose ranks are neighbors. And the plan
# has to cut a matrix before FSDP shards the parts.
#
# `torchrun --nproc-per-node 8 train_2d.py` runs it as 4 x 2. If you run it again, it continues from its checkpoint.

# %%
import os

from workshop import launch

folder = launch.Session.get().directory  # private; deleted when the kernel ends
os.environ["CHECKPOINT"] = str(folder / "train_2d")

# %% tags=["script"]
# %%torchrun -n 4 --into in_parts --save {folder}/train_2d.py
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda")

ranks = dist.get_world_size()
tensor = 2 if ranks % 2 == 0 else 1  # stay inside a node; take as many as memory needs
shape, names = (ranks // tensor, tensor), ("data", "tensor")
mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)  # last = innermost


class Block(nn.Module):
    """An MLP beside its input."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)  # all ranks cut the same weights
model = nn.Sequential(Block(64), Block(64), nn.Linear(64, 1)).to(device)
for block in model[:-1]:  # first tensor, then data: matrices are cut twice
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(block, mesh["tensor"], plan)
    fully_shard(block, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.003, momentum=0.9
)  # created after both cuts

inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device)
targets = inputs.square().mean(dim=1, keepdim=True) - inputs.mean(dim=1, keepdim=True)
mine, readers = mesh.get_local_rank("data"), mesh.size(0)
saved, first = Path(os.environ.get("CHECKPOINT", "train_2d")), 0
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
    for batch in order.to(device).split(32):
        batch = batch[mine::readers]  # the same for all ranks of a tensor group
        loss = (model(inputs[batch]) - targets[batch]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() / 8
    dist.all_reduce(total, group=mesh.get_group("data"))
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {total.item() / readers:.3f}")
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=saved / str(epoch))
dist.destroy_process_group()

# %% [markdown]
# The same script on one rank, where nothing is cut or sharded, gives the same losses:

# %%
os.environ["CHECKPOINT"] = str(folder / "alone")
alone = launch.torchrun(launch.Script(folder / "train_2d.py"), 1).text
print(alone, end="")
assert "epoch 2" in alone
assert alone == in_parts.text

# %% [markdown]
# **On a GPU:** this cell shows where and when the lesson ran on a GPU, and which of its cells printed something different there.

# %% tags=["gpu-record"]
show.recorded_run("35_mesh", share_gpu=True)

# %% [markdown]
# ## What to take away
#
# - A layout is a box of ranks. A rank has one place on each axis. Its group on an axis is the set of ranks that differ from it only in that
#   place.
# - Cut by context, pipeline and tensor first, then shard what is left, and make the optimizer last.
# - Then eight ranks train the same model as one process, whether it is cut two or three ways: both losses were the same. Gradients are summed
#   where they come in parts, and averaged where ranks see different tokens.
# - Bytes by axis can be predicted to the byte, counted on ranks, and divided by the speed of a link. **That decides which axis goes
#   inside the node.** In both runs it was tensor.
# - FSDP under a pipeline gathers weights for every micro-batch. On 512 ranks it sends more than half of what tensor parallelism sends.
#
# Lesson [37](37_plan_the_layout.ipynb) is about the sizes of the axes.
#
# Next: [36_vision_lab](36_vision_lab.ipynb), where layers differ and a plan begins with a profile.
#
# ## Sources
#
# - A. Dubey et al., *The Llama 3 Herd of Models*, 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.2 and figure 5.
# - The order of axes: github.com/NVIDIA/Megatron-LM, `initialize_model_parallel(order="tp-cp-ep-dp-pp")`. Pipelines and
#   resharding: github.com/pytorch/torchtitan, the comment at `fsdp_reshard_after_forward`, case "default".
# - NVIDIA, *DGX H100* data sheet (NVLink and network, both one way).
