# %% other: divides_in_the_hook
from torch.distributed import ReduceOp, all_reduce, get_world_size


def overlapped_average(model):
    works = {}

    def hook(p):
        p.grad /= get_world_size()
        works[p] = all_reduce(p.grad, op=ReduceOp.SUM, async_op=True)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def finish():
        while works:
            works.popitem()[1].wait()

    return finish


# %% wrong: waits_in_the_hook
# message: backward had to wait
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""

    def start(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        return None

    return finish


# %% wrong: after_backward
# message: 0 of 4 all_reduces had been started
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        started.append(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        for parameter in started:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        started.clear()

    return finish


# %% wrong: the_sum
# message: 2 times the mean; wanted 1 times. That is the sum
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        started.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        for _, work in started:
            work.wait()
        started.clear()

    return finish


# %% wrong: never_cleared
# message: Step 1 was right
import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average gradients while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        started.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        for parameter, work in started:
            work.wait()
            parameter.grad /= dist.get_world_size()

    return finish
