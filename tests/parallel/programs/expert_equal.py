"""Expert parallelism beside one process with the joined batch: the loss and every gradient, and what was sent."""

import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, GPTConfig
from workshop.models.moe import MoEConfig, balance_of, with_experts
from workshop.parallel.expert import cut_experts, expert_parameters
from workshop.parallel.tensor_collectives import all_gather

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
SHAPE = GPTConfig(64, 32, 2, 4, 2, 48)
LENGTH = 16


def build(config, seed):
    torch.manual_seed(seed)
    model = with_experts(GPT(SHAPE), config)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def loss_of(model, tokens, targets, coefficient):
    return model(tokens, targets) + coefficient * balance_of(model)


def compare(top_k, capacity_factor, coefficient):
    config = MoEConfig(32, 24, num_experts=8, top_k=top_k, capacity_factor=capacity_factor)
    plain = build(config, 10 + rank)  # each rank seeded with its own
    cut = with_experts(GPT(SHAPE), config)
    cut.load_state_dict(plain.state_dict())
    cut_experts(cut)
    torch.manual_seed(3)
    batches = torch.randint(64, (ranks, 2, 2, LENGTH))
    if capacity_factor is None:  # the joined batch
        tokens, targets = batches.transpose(0, 1).flatten(1, 2)
        loss = loss_of(plain, tokens, targets, coefficient)
        loss.backward()
    else:  # who is dropped is decided among a rank's own tokens
        loss = torch.zeros(())
        for tokens, targets in batches:
            part = loss_of(plain, tokens, targets, coefficient) / ranks
            part.backward()
            loss += part.detach()
    with measure(memory=False) as measured:
        ours = loss_of(cut, *batches[rank], coefficient)
        ours.backward()
    ours = ours.detach()
    dist.all_reduce(ours)
    mine = {id(parameter) for parameter in expert_parameters(cut)}
    errors = {}
    wanted = dict(plain.named_parameters())
    for name, parameter in cut.named_parameters():
        gradient = parameter.grad
        if id(parameter) in mine:
            gradient = all_gather(gradient, 0, None)
        else:
            dist.all_reduce(gradient)
            gradient /= ranks
        errors[name] = ((gradient - wanted[name].grad).norm() / wanted[name].grad.norm()).item()
    mixtures = [layer.mlp for layer in cut.model.layers]
    kept = [int(mixture.routing.kept.sum()) for mixture in mixtures]
    loads = [mixture.load for mixture in mixtures]
    sent = {row.name: (row.count, row.payload_bytes) for row in measured.traffic}
    return {
        "loss": abs(ours / ranks - loss).item(),
        "errors": errors,
        "kept": kept,
        "loads": loads,
        "sent": sent,
    }


report(
    even=compare(2, None, 0.0),
    balanced=compare(2, None, 0.1),
    one=compare(1, None, 0.1),
    capacity=compare(2, 1.0, 0.0),
)


def complaint(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


report(
    uneven=complaint(lambda: cut_experts(with_experts(GPT(SHAPE), MoEConfig(32, 24, num_experts=7)))),
    none=complaint(lambda: cut_experts(GPT(SHAPE))),
)
dist.destroy_process_group()
