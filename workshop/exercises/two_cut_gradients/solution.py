import torch
import torch.distributed as dist


def two_cut_gradients(x, up, down, groups):
    """The gradients of this rank's shards of `up` and `down`."""
    data, size = groups["data"], dist.get_world_size(groups["data"])
    whole = []
    for shard in (up, down):
        parts = [torch.empty_like(shard) for _ in range(size)]
        dist.all_gather(parts, shard, group=data)
        whole.append(torch.cat(parts).requires_grad_())
    up_half, down_half = whole
    partial = (x @ up_half.T).relu() @ down_half.T
    y = partial.detach().clone()
    dist.all_reduce(y, group=groups["tensor"])
    y = y.relu()
    partial.backward(2 * y / y.numel())  # the gradient of the mean of y squared
    gradients = []
    for matrix in whole:
        dist.all_reduce(matrix.grad, group=data)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients
