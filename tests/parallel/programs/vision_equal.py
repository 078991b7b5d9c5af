"""ViT and CoAtNet cut in every way, beside one process: the loss and every gradient."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.facts.vision import CoAtNetSpec, ViTSpec
from workshop.parallel.batch_norm import share_batch_norm
from workshop.parallel.fsdp import shard_model
from workshop.parallel.pipeline import open_wire, run_schedule
from workshop.parallel.stages import split_by_cost
from workshop.parallel.vision_plans import cut_vision_by_plan
from workshop.parallel.vision_stages import boundary_shape, build_vision, cut_vision

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",))
VIT = ViTSpec("vit", 3, 32, 4, patch_size=7, image_size=28, num_classes=10, channels=1)
COATNET = CoAtNetSpec(
    "coatnet", (2, 1, 2, 2, 1), (8, 8, 16, 32, 64), image_size=64, num_classes=10, channels=1, head_dim=8
)
NOTHING = ("k_proj.bias", "before.bias")  # softmax and the next batch norm undo them: their gradient is 0


def model_of(spec):
    """The same weights everywhere, though each rank is seeded with its own number."""
    torch.manual_seed(30 + rank)
    model = build_vision(spec)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def batch_of(spec):
    torch.manual_seed(3)
    images = torch.randn(2 * ranks, 1, spec.image_size, spec.image_size)
    return images, torch.randint(10, (2 * ranks,))


def gradients(model):
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return found


def compare(wanted, found, loss=0.0):
    errors = {}
    for name, gradient in found.items():
        apart = (gradient - wanted[name]).norm()
        errors[name] = (apart if name.endswith(NOTHING) else apart / wanted[name].norm()).item()
    return {"errors": errors, "loss": float(loss)}


def held_numbers(model):
    """How many numbers of its parameters this rank holds."""
    return sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters())


def mean_of_parts(model, images, labels):
    """One process that takes the batch in as many parts as there are ranks."""
    pairs = zip(images.chunk(ranks), labels.chunk(ranks), strict=True)
    return torch.stack([model(*pair) for pair in pairs]).mean()


def by_tensor(spec):
    plain, cut = model_of(spec), model_of(spec)
    cut_vision_by_plan(cut, mesh)
    images, labels = batch_of(spec)
    wanted, found = plain(images, labels), cut(images, labels)
    wanted.backward()
    found.backward()
    result = compare(gradients(plain), gradients(cut), abs(found - wanted))
    return result | {"held": held_numbers(cut), "count": spec.num_params}


def by_data(spec, how, shared):
    plain, cut = model_of(spec), model_of(spec)
    images, labels = batch_of(spec)
    whole = shared or spec is VIT
    wanted = plain(images, labels) if whole else mean_of_parts(plain, images, labels)
    wanted.backward()
    if shared:
        share_batch_norm(cut)
    cut = shard_model(cut) if how == "fsdp" else DistributedDataParallel(cut)
    found = cut(images.chunk(ranks)[rank], labels.chunk(ranks)[rank])
    found.backward()
    mean = found.detach().clone()
    dist.all_reduce(mean)
    mine = gradients(cut.module if how == "ddp" else cut)
    result = compare(gradients(plain), mine, abs(mean / ranks - wanted))
    if shared:  # what evaluation will use: the whole batch's running statistics
        buffers = dict((cut.module if how == "ddp" else cut).named_buffers())
        apart = [
            (buffers[name] - buffer).abs().max().item()
            for name, buffer in plain.named_buffers()
            if "running" in name
        ]
        result |= {"running": max(apart)}
    return result


def by_pipeline(spec):
    plain, copy = model_of(spec), model_of(spec)
    images, labels = batch_of(spec)
    micro = (images.chunk(ranks), labels.chunk(ranks))
    wanted = [plain(*pair) for pair in zip(*micro, strict=True)]
    torch.stack(wanted).mean().backward()
    cuts = split_by_cost([1 + number for number in range(len(plain.pieces()))][::-1], ranks)
    stages = cut_vision(copy, cuts, [rank])
    wire = open_wire([boundary_shape(spec, cut[-1], 2) for cut in cuts[:-1]])
    step = run_schedule("1f1b", stages, micro, F.cross_entropy, wire)
    apart = [abs(a - b).item() for a, b in zip(step.losses, wanted, strict=False)]
    return compare(gradients(plain), gradients(stages[rank]), max(apart, default=0.0))


def complaint(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


for spec in (VIT, COATNET):
    report(**{f"tensor {spec.name}": by_tensor(spec), f"pipeline {spec.name}": by_pipeline(spec)})
    for how in ("ddp", "fsdp"):
        report(**{f"{how} {spec.name}": by_data(spec, how, False)})
        gc.collect()
report(**{f"{how} shared": by_data(COATNET, how, True) for how in ("ddp", "fsdp")})
odd = ViTSpec("odd", 1, 27, 3, patch_size=7, image_size=28, num_classes=10, channels=1)
report(
    heads=complaint(lambda: cut_vision_by_plan(build_vision(odd), mesh)),
    cuts=complaint(lambda: cut_vision(build_vision(VIT), [range(2), range(3, 5)], [0])),
    piece=complaint(lambda: boundary_shape(COATNET, 7, 1)),
    no_norm=complaint(lambda: share_batch_norm(build_vision(VIT))),
)
gc.collect()
dist.destroy_process_group()
