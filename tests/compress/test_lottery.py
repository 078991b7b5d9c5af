"""Rounds of pruning, rewinding to the very weights, and zeros that stay zero while the rest trains."""

import pytest
import torch
from torch import nn

from workshop.compress.lottery import find_ticket, held_at_zero, matrices, prune_remaining

INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS[:, :2].tanh()


def small():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


class Training:
    """Full-batch AdamW with decay, which would move a zero that is not held; remembers what it was asked for."""

    def __init__(self):
        self.calls, self.seen = [], []

    def __call__(self, model, first, last):
        self.calls.append((first, last))
        self.seen.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(first, last):
            optimizer.zero_grad()
            (model(INPUTS) - TARGETS).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("rewind", [0, 5])
def test_the_ticket_is_the_early_weights_under_the_mask(rewind):
    model, train = small(), Training()
    early = small()
    if rewind:
        Training()(early, 0, rewind)
    ticket = find_ticket(model, train, rounds=3, share=0.5, total=20, rewind=rewind)
    assert train.calls == [(0, 5)] * bool(rewind) + [(rewind, 20)] * 3
    assert abs(ticket.left - 0.125) < 0.01
    for name, value in early.named_parameters():
        mask = ticket.masks.get(name, torch.ones_like(value, dtype=torch.bool))
        torch.testing.assert_close(model.state_dict()[name], value * mask)
        torch.testing.assert_close(ticket.start[name], value * mask)
    rounds = train.seen[bool(rewind) :]
    for name in ticket.masks:  # each round began from the same weights, with more zeros
        zeros = [(seen[name] == 0) for seen in rounds]
        assert zeros[0].sum() == 0
        assert zeros[2].sum() > zeros[1].sum() > 0
        assert not bool((zeros[1] & ~zeros[2]).any())


def test_zeros_stay_zero_and_the_rest_learns():
    model = small()
    masks = {name: torch.rand_like(weight) > 0.5 for name, weight in matrices(model).items()}
    before = model[0].weight.detach().clone()
    with held_at_zero(model, masks):
        Training()(model, 0, 10)
    for name, weight in matrices(model).items():
        assert torch.equal(weight == 0, ~masks[name])
    assert (model[0].weight - before)[masks["0.weight"]].abs().min() > 0
    Training()(model, 0, 3)  # no longer held
    assert (model[0].weight != 0).all()


def test_the_smallest_of_all_that_is_left_go():
    model = small()
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in matrices(model).items()}
    once = prune_remaining(model, masks, 0.25)
    weights = torch.cat([weight.detach().abs().flatten() for weight in matrices(model).values()])
    kept = torch.cat([mask.flatten() for mask in once.values()])
    assert weights[kept].min() > weights[~kept].max()
    twice = prune_remaining(model, once, 0.5)
    assert sum(int(mask.sum()) for mask in twice.values()) == 60  # of 160: 120, 60
    assert all(bool((twice[name] <= once[name]).all()) for name in once)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="between 0 and 1"):
        prune_remaining(small(), {}, 1.0)
    with pytest.raises(ValueError, match="at least one round"):
        find_ticket(small(), Training(), rounds=0, share=0.5, total=3)
    with pytest.raises(ValueError, match="rewind before the end"):
        find_ticket(small(), Training(), rounds=1, share=0.5, total=3, rewind=3)
