import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, tensor)
    tensor.copy_(torch.stack(everything).sum(dim=0))
