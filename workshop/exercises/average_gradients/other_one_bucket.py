import torch
import torch.distributed as dist


def average_gradients(model):
    used = [p for p in model.parameters() if p.grad is not None]
    together = torch.cat([p.grad.flatten() for p in used])  # one bucket
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for p, part in zip(used, together.split([p.numel() for p in used]), strict=True):
        p.grad.copy_(part.view_as(p))
