import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Make the gradient of every parameter the mean over all ranks, in place."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
