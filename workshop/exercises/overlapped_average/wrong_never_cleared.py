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
