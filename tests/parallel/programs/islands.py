"""DiLoCo on real ranks beside one process that holds all islands."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from workshop import report
from workshop.measure import measure
from workshop.parallel.ddp import average_gradients, begin_together, difference_between_ranks
from workshop.parallel.diloco import DiLoCo

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def loss_of(model, step, place):
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(1000 * step + place))
    return (model(x) - x[:, ::2]).square().mean()


def fresh_model(seed=rank):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 6))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6)


def island(steps, **options):
    """This rank's losses, its model, and bytes sent in each step."""
    model = fresh_model()
    begin_together(model)
    optimizer = DiLoCo(adamw(model), **options)
    losses, sent = [], []
    for step in range(steps):
        with measure(memory=False) as measured:
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        sent.append(sum(row.wire_bytes for row in measured.traffic))
    return losses, model, sent


def one_process(steps, inner_steps):
    """The paper's algorithm 1, with torch's own Nesterov SGD between islands that live in one process."""
    anchor = fresh_model(0)
    models = [copy.deepcopy(anchor) for _ in range(ranks)]
    optimizers = [adamw(model) for model in models]
    outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    losses = []
    for step in range(steps):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = loss_of(model, step, place)
            loss.backward()
            optimizer.step()
            if place == rank:
                losses.append(loss.item())
        if (step + 1) % inner_steps == 0:
            for parameter, *copies in zip(
                anchor.parameters(), *(m.parameters() for m in models), strict=True
            ):
                parameter.grad = (parameter - torch.stack([c.detach() for c in copies]).mean(0)).detach()
            outer.step()
            for model in models:
                model.load_state_dict(anchor.state_dict())
    return losses, anchor


def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def against_one_process():
    losses, model, sent = island(20, inner_steps=5)
    wanted, anchor = one_process(20, 5)
    difference = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
    return difference, distance(model, anchor), max(difference_between_ranks(model).values()), sent


def is_data_parallelism():
    """H = 1, SGD within, a plain average between islands: DDP's step."""
    models = [fresh_model(3), fresh_model(3)]
    diloco, ddp = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    diloco = DiLoCo(diloco, 1, outer_lr=1.0, outer_momentum=0.0)
    for step in range(10):
        for model, optimizer in zip(models, (diloco, ddp), strict=True):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            if optimizer is ddp:
                average_gradients(model)
            optimizer.step()
    return distance(*models)


def streaming():
    """Bytes of each step, and how far ranks are apart right after each fragment's meeting."""
    _, model, sent = island(9, inner_steps=8, fragments=4)
    return sent, [difference_between_ranks(model)[name] for name, _ in model.named_parameters()]


def saved_and_resumed():
    found = []
    for resume in (False, True):
        model = fresh_model(5)
        optimizer = DiLoCo(adamw(model), 2)
        for step in range(7):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
            if resume and step == 2:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = DiLoCo(adamw(model), 2)
                optimizer.load_state_dict(state)
        found.append(model)
    return distance(*found)


report(
    twin=against_one_process(), ddp=is_data_parallelism(), streaming=streaming(), resumed=saved_and_resumed()
)
dist.destroy_process_group()
