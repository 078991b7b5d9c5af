import torch
import torch.distributed as dist


def overlapped_average(model: torch.nn.Module):
    """Average while backward runs; returns finish(), to be called after backward."""
    started = []

    def start(parameter):
        # Called by autograd: parameter.grad is complete.
        ...

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(start)

    def finish():
        # Called by you: wait for what was started, make means of sums.
        ...

    return finish
