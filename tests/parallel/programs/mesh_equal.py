"""Cuts combined, beside one process: FSDP x TP, hybrid sharding, and PP x FSDP x TP; losses and every gradient."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from workshop import report
from workshop.facts.layout import Layout
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.mesh import mesh_of
from workshop.parallel.pipeline import open_wire, run_order
from workshop.parallel.stages import cut_stages, split_evenly
from workshop.parallel.tensor_plans import cut_by_plan
from workshop.predict.pipeline import pipeline_orders

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
MICRO, BATCH, LENGTH, WIDTH = 4, 2, 8, 32


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def compare(layout, *, sequence_parallel=False, tied=False):
    torch.manual_seed(20 + rank)
    plain = GPT(GPTConfig(64, WIDTH, 4, 4, 2, 48, tied=tied))
    for parameter in plain.parameters():
        dist.broadcast(parameter.data, 0)
    copy = GPT(plain.config)
    copy.load_state_dict(plain.state_dict())
    # micro-batches of every data-parallel rank
    generator = torch.Generator().manual_seed(3)
    inputs, targets = torch.randint(64, (2, layout.data_parallel, MICRO, BATCH, LENGTH), generator=generator)
    wanted = loss_of(plain(inputs.flatten(0, 2)), targets.flatten(0, 2))
    wanted.backward()

    mesh, place = mesh_of(layout), layout.coordinates(rank)
    number = place["pipeline"]
    stage = cut_stages(copy, split_evenly(4, layout.pipeline), [number])[number]
    if layout.tensor > 1:
        cut_by_plan(stage, mesh["tensor"], sequence_parallel=sequence_parallel)
    axes = [axis for axis in ("replicate", "shard") if layout.sizes()[axis] > 1]
    if axes:
        for layer in stage.model.layers.values():
            fully_shard(layer, mesh=mesh[tuple(axes)])
        fully_shard(stage, mesh=mesh[tuple(axes)])
    mine = place["replicate"] * layout.shard + place["shard"]
    shape = (BATCH, LENGTH // layout.tensor if sequence_parallel else LENGTH, WIDTH)
    wire = open_wire(shape, where=lambda other: layout.rank_of({**place, "pipeline": other}))
    order = pipeline_orders("1f1b", layout.pipeline, MICRO)[number]
    batch = (inputs[mine].unbind(), targets[mine].unbind())
    step = run_order(order, {number: stage}, layout.pipeline, batch, loss_of, wire)
    right, errors = dict(plain.named_parameters(remove_duplicate=False)), {}
    for name, parameter in stage.named_parameters():
        gradient = parameter.grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        errors[name] = ((gradient - right[name].grad).norm() / right[name].grad.norm()).item()
    total = torch.tensor([sum(loss.item() for loss in step.losses), float(len(step.losses))])
    dist.all_reduce(total)
    return {"errors": errors, "loss": abs(total[0] / total[1] - wanted).item()}


if ranks == 4:
    report(
        fsdp_tp=compare(Layout(shard=2, zero=3, tensor=2)),
        fsdp_sp=compare(Layout(shard=2, zero=3, tensor=2, sequence_parallel=True), sequence_parallel=True),
        hybrid=compare(Layout(replicate=2, shard=2, zero=3)),
        pp_fsdp=compare(Layout(pipeline=2, shard=2, zero=3)),
        pp_tp=compare(Layout(pipeline=2, tensor=2)),
    )
else:
    layout = Layout(pipeline=2, shard=2, zero=3, tensor=2, sequence_parallel=True)
    report(three=compare(layout, sequence_parallel=True))
try:
    mesh_of(Layout(tensor=2, shard=3))
except ValueError as error:
    report(said=str(error))
dist.destroy_process_group()
