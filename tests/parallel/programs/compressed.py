"""Hooks and 1-bit Adam on real ranks beside plain single-process twins that unpack nothing and send nothing."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from workshop import report
from workshop.measure import measure
from workshop.parallel.ddp import begin_together, difference_between_ranks, wrap_ddp
from workshop.parallel.onebit_adam import OneBitAdam
from workshop.parallel.powersgd import PowerSGD
from workshop.parallel.signs import BLOCK, SignMean

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def data(step, place):
    generator = torch.Generator().manual_seed(1000 * step + place)
    return torch.randn(8, 48, generator=generator)


def fresh_model(seed=rank):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 24))


def loss_of(model, x):
    return (model(x) - x[:, ::2]).square().mean()


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def wire(measured):
    return sum(row.wire_bytes for row in measured.traffic)


def gradients_by(hook, steps=5, samples=8, dtype=torch.float32, **options):
    """The gradient of step `steps` (weights untouched), largest error to the exact mean, and bytes sent."""

    def loss(model, step, place):
        return loss_of(model, data(step, place)[:samples].to(dtype))

    model = wrap_ddp(fresh_model().to(dtype), hook=hook, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with measure(memory=False) as measured:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model, step, rank).backward()
            optimizer.step()
    found = flat_gradient(model)
    exact = model.module
    exact.zero_grad()
    torch.stack([loss(exact, steps - 1, place) for place in range(ranks)]).mean().backward()
    wanted = flat_gradient(exact)
    return found, float((found - wanted).abs().max() / wanted.abs().max()), wire(measured)


def powersgd_twins(steps=8):
    """By hand and torch's hook, from the same first factors: the largest difference of a gradient."""
    ours, theirs = (wrap_ddp(fresh_model(), hook=h, rank=3) for h in ("powersgd-by-hand", "powersgd"))
    drawn = {}

    def first_factor(self, columns, like):
        return drawn[columns].clone()

    original = powerSGD_hook._orthogonalize
    PowerSGD.first_factor = first_factor

    def spy(matrices, epsilon=0):
        if matrices.shape[1] in (48, 64) and matrices.shape[1] not in drawn:  # the two Qs come first
            drawn[matrices.shape[1]] = matrices[0].clone()
        original(matrices, epsilon)

    powerSGD_hook._orthogonalize = spy
    worst = 0.0
    for step in range(steps):
        for model in (theirs, ours):
            model.zero_grad()
            loss_of(model, data(step, rank)).backward()
        difference = (flat_gradient(ours) - flat_gradient(theirs)).abs().max()
        worst = max(worst, float(difference / flat_gradient(theirs).abs().max()))
    powerSGD_hook._orthogonalize = original
    return worst, len(drawn)


def sign(x):
    """What `decode(encode(x))` should be, without bits."""
    blocks = x.view(-1, BLOCK)
    return (torch.where(blocks >= 0, 1.0, -1.0) * blocks.abs().mean(1, keepdim=True)).flatten()


def sign_mean_twin(vectors, errors, server):
    """One process that holds all ranks' vectors (padded) and errors."""
    sent = []
    for place, vector in enumerate(vectors):
        compensated = vector + errors[place]
        sent.append(sign(compensated))
        errors[place] = compensated - sent[-1]
    compensated = torch.stack(sent).mean(0) + server[0]
    result = sign(compensated)
    server[0] = compensated - result
    return result


def sign_means(steps=6, size=3 * BLOCK + 100):
    """Ours against the twin, and what was sent in all against what there was."""
    mean, length = SignMean(size), -(-size // (ranks * BLOCK)) * ranks * BLOCK
    errors, server = [torch.zeros(length) for _ in range(ranks)], [torch.zeros(length)]
    worst, sent, was = 0.0, torch.zeros(size), torch.zeros(size)
    for step in range(steps):
        vectors = [
            torch.randn(size, generator=torch.Generator().manual_seed(99 * step + r)) for r in range(ranks)
        ]
        found = mean(vectors[rank])
        wanted = sign_mean_twin([nn.functional.pad(v, (0, length - size)) for v in vectors], errors, server)
        worst = max(worst, float((found - wanted[:size]).abs().max()))
        sent += found
        was += torch.stack(vectors).mean(0)
    late = (torch.stack(errors).mean(0) + server[0])[:size]
    return worst, float((sent + late - was).abs().max()), float(late.abs().max())


def one_bit_adam(steps=12, warmup=4):
    """Weights after the warm-up against torch's Adam, and at the end against a twin; ranks alike to the bit."""
    model = fresh_model()
    begin_together(model)
    twin, adam = fresh_model(0), fresh_model(0)
    optimizer = OneBitAdam(model.parameters(), lr=1e-2, warmup=warmup)
    plain = torch.optim.Adam(adam.parameters(), lr=1e-2)
    size = sum(p.numel() for p in twin.parameters())
    length = -(-size // (ranks * BLOCK)) * ranks * BLOCK
    m, v, errors, server = (
        torch.zeros(size),
        torch.zeros(size),
        [torch.zeros(length)] * ranks,
        [torch.zeros(length)],
    )
    traffic, after_warmup = [], None
    for step in range(steps):
        with measure(memory=False) as measured:
            optimizer.zero_grad()
            loss_of(model, data(step, rank)).backward()
            optimizer.step()
        traffic.append(wire(measured))
        gradients = []
        for place in range(ranks):
            twin.zero_grad()
            loss_of(twin, data(step, place)).backward()
            gradients.append(flat_gradient(twin))
        if step < warmup:
            g = torch.stack(gradients).mean(0)
            v, m = v + 0.001 * (g * g - v), m + 0.1 * (g - m)
            plain.zero_grad()
            torch.stack([loss_of(adam, data(step, place)) for place in range(ranks)]).mean().backward()
            plain.step()
        else:
            momenta = [nn.functional.pad(m + 0.1 * (g - m), (0, length - size)) for g in gradients]
            m = sign_mean_twin(momenta, errors, server)[:size]
        rate = (v / (1 - 0.999 ** min(step + 1, warmup))).sqrt() + 1e-8
        update = m / (1 - 0.9 ** (step + 1)) / rate
        vector = nn.utils.parameters_to_vector(twin.parameters()).detach() - 1e-2 * update
        nn.utils.vector_to_parameters(vector, twin.parameters())
        if step == warmup - 1:
            after_warmup = distance(model, adam)
    return after_warmup, distance(model, twin), max(difference_between_ranks(model).values()), traffic, size


def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def saved_and_resumed():
    """Three steps in one go, and with state dicts in between: the difference of the weights."""
    found = []
    for resume in (False, True):
        model = fresh_model(7)
        optimizer = OneBitAdam(model.parameters(), warmup=1)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, data(step, rank)).backward()
            optimizer.step()
            if resume:
                state = optimizer.state_dict()
                optimizer = OneBitAdam(model.parameters(), warmup=1)
                optimizer.load_state_dict(state)
        found.append(model)
    return distance(*found)


def main():
    """Report what the test looks at."""
    hooks = {
        "none": gradients_by("none"),
        "fp16": gradients_by("fp16"),
        "bf16": gradients_by("bf16"),
        "powersgd-exact": gradients_by("powersgd-by-hand", rank=4, samples=1, dtype=torch.float64),
        "powersgd": gradients_by("powersgd", rank=2),
        "powersgd-by-hand": gradients_by("powersgd-by-hand", rank=2),
        "sign": gradients_by("sign"),
        "sign-forgetful": gradients_by("sign", error_feedback=False),
    }
    report(hooks=hooks, powersgd=powersgd_twins(), sign_means=sign_means())
    report(one_bit_adam=one_bit_adam(), resumed=saved_and_resumed())


main()
gc.collect()
dist.destroy_process_group()
