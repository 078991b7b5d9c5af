"""Each way of cutting a model, on CUDA tensors, beside the whole model on the same GPU: two ranks that share it, or NCCL
where each has its own."""

import pytest
import torch

from workshop import Layout, Run, launch, train

HEAD = """
import os
import torch, torch.distributed as dist, torch.nn.functional as F
from workshop import report
from workshop.models.gpt import GPT, GPTConfig
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cuda")
SHAPE = GPTConfig(64, 32, 4, 4, 2, 48)


def alike():
    torch.manual_seed(0)  # on the CPU: every rank draws the same
    return GPT(SHAPE).to(device)


def far(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


torch.manual_seed(3)
inputs, targets = torch.randint(64, (2, 4, 2, 16)).to(device)
"""
ZERO = """
from workshop.parallel.zero import zero

def losses(model, optimizer, share):
    found = []
    for tokens in inputs:
        loss = model(tokens[share], tokens[share])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)

model = alike()
wanted = losses(model, torch.optim.AdamW(model.parameters(), lr=1e-2), slice(None))
for stage in range(4):
    model = alike()
    found = losses(model, zero(model, stage, lr=1e-2), slice(rank, rank + 1))
    dist.all_reduce(found)
    report(**{f"stage {stage}": far(found / ranks, wanted)})
"""
PIPELINE = """
from workshop.parallel.pipeline import open_wire, run_schedule
from workshop.parallel.stages import cut_stages, split_evenly

def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

plain = alike()
torch.stack([loss_of(plain(x), y) for x, y in zip(inputs, targets)]).mean().backward()
wanted = dict(plain.named_parameters())
for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
    stages = cut_stages(alike(), split_evenly(4, chunks * ranks), range(rank, chunks * ranks, ranks))
    wire = open_wire((2, 16, 32), device=device)
    run_schedule(schedule, stages, (inputs.unbind(), targets.unbind()), loss_of, wire)
    named = [named for stage in stages.values() for named in stage.named_parameters()]
    report(**{schedule: max(far(parameter.grad, wanted[name].grad) for name, parameter in named)})
"""
TENSOR = """
from workshop.parallel.tensor import cut_tensor
from workshop.parallel.tensor_collectives import all_gather

plain = alike()
loss = plain(inputs[0], targets[0])
loss.backward()
wanted = plain.model.layers[1].mlp.down_proj.weight.grad
for sequence in (False, True):
    cut = cut_tensor(alike(), sequence_parallel=sequence)
    ours = cut(inputs[0], targets[0])
    ours.backward()
    named = dict(cut.named_parameters())
    mine = next(named[name].grad for name in named if "layers.1." in name and "down_proj.weight" in name)
    report(**{
        f"loss, sequence={sequence}": abs(float(ours - loss)),
        f"gradient, sequence={sequence}": far(all_gather(mine, 1, None), wanted),
    })
"""
CONTEXT = """
from workshop.parallel.context import positions_of, ring_attention, ulysses_attention

whole = [torch.randn(2, 4, 32, 8).to(device).requires_grad_() for _ in range(3)]
upward = torch.randn(2, 4, 32, 8).to(device)
wanted = F.scaled_dot_product_attention(*whole, is_causal=True)
wanted.backward(upward)
for name, attention, order in (
    ("ring", lambda *parts: ring_attention(*parts, causal=True, order="zigzag"), "zigzag"),
    ("ulysses", lambda *parts: ulysses_attention(*parts, causal=True), "contiguous"),
):
    mine = positions_of(rank, ranks, 32, order).to(device)
    parts = [x.detach()[:, :, mine].clone().requires_grad_() for x in whole]
    out = attention(*parts)
    out.backward(upward[:, :, mine])
    errors = [far(part.grad, x.grad[:, :, mine]) for part, x in zip(parts, whole)]
    report(**{name: max(errors + [far(out, wanted[:, :, mine])])})
"""
EXPERT = """
from workshop.models.moe import MoEConfig, with_experts
from workshop.parallel.expert import cut_experts, expert_parameters
from workshop.parallel.tensor_collectives import all_gather

def mixture():
    torch.manual_seed(0)
    return with_experts(GPT(SHAPE), MoEConfig(32, 24)).to(device)

plain, cut = mixture(), cut_experts(mixture())
joined = inputs[:ranks].flatten(0, 1), targets[:ranks].flatten(0, 1)
loss = plain(*joined)
loss.backward()
ours = cut(inputs[rank], targets[rank])
ours.backward()
mean = ours.detach().clone()
dist.all_reduce(mean)
wanted = dict(plain.named_parameters())
mine = {id(parameter) for parameter in expert_parameters(cut)}
errors = [
    far(all_gather(parameter.grad, 0, None), wanted[name].grad)
    for name, parameter in cut.named_parameters()
    if id(parameter) in mine
]
report(loss=abs(float(mean / ranks - loss)), experts=max(errors))
"""
TAIL = """
report(device=str(inputs.device))
dist.destroy_process_group()
"""
WAYS = {"zero": ZERO, "pipeline": PIPELINE, "tensor": TENSOR, "context": CONTEXT, "expert": EXPERT}


def limits(ranks=2):
    return launch.Limits(timeout=110, share_gpu=torch.cuda.device_count() < ranks)


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_model_is_the_whole_one(way):
    told = launch.torchrun(HEAD + WAYS[way] + TAIL, 2, limits=limits())
    for rank in range(2):
        errors = dict(told[rank])
        assert errors.pop("device").startswith("cuda")
        assert errors
        assert all(error < 1e-4 for error in errors.values()), errors


@pytest.mark.parametrize(
    "layout",
    [
        Layout(replicate=2, precision="amp-bf16"),
        Layout(shard=2, zero=3),
        Layout(shard=2, zero=3, recompute="full"),
        Layout(tensor=2, precision="fp32"),
    ],
    ids=["ddp", "fsdp", "fsdp, recompute", "tensor"],
)
def test_two_ranks_train(layout):
    run = Run("gpt-1m", "this-machine", layout, micro_batch=4, seq_len=64)
    found = train(run, num_steps=4, limits=limits())
    assert "on CPU" not in found.device
    assert found.losses[-1] < found.losses[0]
    assert found.allocated_bytes > 0


def test_no_server_is_quicker_than_the_bytes_that_it_reads():
    """What `predict.serving` begins with: a token for one request reads every weight once."""
    from benchmarks.gpu import serving
    from benchmarks.gpu.stage import NotHere
    from workshop.facts.model import ModelSpec
    from workshop.models.from_spec import gpt_of
    from workshop.serve.server import Server

    spec = ModelSpec("served", 8, 2048, 16, 32000, ffn_hidden_size=5504)
    with torch.device("cuda"):
        model = gpt_of(spec).to(torch.bfloat16).eval()
    try:
        bound = serving.seconds_by_bytes(spec, 1, 0)
        predicted = serving.predicted(spec, 1, 32, 16)[1]
    except NotHere as why:
        pytest.skip(str(why))
    server = Server(model, 16, prefix_cache=False)
    with torch.no_grad():
        server.add([*range(32)], 16)
        server.run()
    between = sorted(took for tokens, took in server.steps if tokens == 1)
    assert len(between) >= 15
    assert bound < between[len(between) // 2]
    assert bound < predicted * 1.05
