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
