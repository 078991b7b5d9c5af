"""Functions of one vector of three, by whether a GPU would run them; also run on one by `tests/gpu`."""

import numpy as np
import torch


def added(x):
    mask = torch.ones(3)
    return x + mask


def returned(x):
    return torch.ones(3) * 2


def indexed_by_it(x):
    made = torch.zeros(3)
    made[x > 0] = 1
    return x


def to_numpy(x):
    return torch.from_numpy(x.numpy()).to(x)


def as_array(x):
    return x + float(np.asarray(x).sum())


def said_cpu(x):
    return torch.cat([x, torch.empty(3, device="cpu")])


def brought_and_met(x):
    return x + x.cpu()


def multiplied(x):
    return x @ torch.eye(3)


def scattered(x):
    return x.scatter(0, torch.tensor([1]), 1.0)


def in_place(x):
    x += torch.arange(3)
    return x


def from_a_list(x):
    return x * torch.tensor([x[0], x[1], x[2]])


def a_view_of_it(x):
    made = torch.zeros(2, 3)
    return x + made[0].abs()


def with_a_device(x):
    return x + torch.ones(3, device=x.device)


def under_a_device(x):
    with torch.device(x.device):
        made = torch.ones(3)
    return x + made


def an_index(x):
    return x[torch.arange(2)]


def a_number(x):
    return x * torch.tensor(2.0)


def copied(x):
    made = torch.zeros(3)
    x[:2] = made[:2]
    like = torch.empty_like(x)
    like.copy_(made)
    return like


def moved(x):
    return x + torch.ones(3).to(x) + torch.full((3,), 2.0).type_as(x) + torch.ones(3).to(x.device)


def there_and_back(x):
    return (x.cpu() + torch.ones(3)).to(x.device)


def like_it(x):
    return x + x.new_ones(3) + torch.zeros_like(x)


def a_module_moved(x):
    return torch.nn.Linear(3, 3).to(x.device)(x)


def a_list(x):
    return x * len(torch.arange(3).tolist())


FAIL = (
    added,
    indexed_by_it,
    to_numpy,
    as_array,
    said_cpu,
    brought_and_met,
    multiplied,
    scattered,
    in_place,
    from_a_list,
    a_view_of_it,
)
RUN = (
    with_a_device,
    under_a_device,
    an_index,
    a_number,
    copied,
    moved,
    there_and_back,
    like_it,
    a_module_moved,
    a_list,
)
