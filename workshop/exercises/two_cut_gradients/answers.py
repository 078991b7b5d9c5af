# %% other: reduce_scatter
import torch
import torch.distributed as dist


def two_cut_gradients(x, up, down, groups):
    data = groups["data"]

    def gather(shard):
        parts = [torch.empty_like(shard), torch.empty_like(shard)]
        dist.all_gather(parts, shard, group=data)
        return torch.cat(parts).requires_grad_()

    def scatter(gradient):
        parts = list((gradient / 2).chunk(2))
        dist.reduce_scatter(mine := torch.empty_like(parts[0]), parts, group=data)
        return mine

    up_half, down_half = gather(up), gather(down)
    partial = (x @ up_half.T).relu() @ down_half.T
    y = partial.detach().clone()
    dist.all_reduce(y, group=groups["tensor"])
    y = y.relu()
    partial.backward(2 * y / y.numel())
    return scatter(up_half.grad), scatter(down_half.grad)


# %% other: without_autograd
import torch
import torch.distributed as dist


def two_cut_gradients(x, up, down, groups):
    data = groups["data"]
    place = dist.get_rank(data)

    def gather(shard):  # zeros, but for the own rows; then a sum
        whole = shard.new_zeros(2, *shard.shape)
        whole[place] = shard
        dist.all_reduce(whole, group=data)
        return whole.flatten(0, 1)

    up_half, down_half = gather(up), gather(down)
    h = (x @ up_half.T).relu()
    y = h @ down_half.T
    dist.all_reduce(y, group=groups["tensor"])
    gradient_y = 2 * y.relu() / y.numel()
    gradient_h = (gradient_y @ down_half) * (h > 0)
    both = [gradient_h.T @ x, gradient_y.T @ h]
    for gradient in both:
        dist.all_reduce(gradient, group=data)
    return [gradient.chunk(2)[place] / 2 for gradient in both]


# %% wrong: forgets_the_sum
# message: its own part of y
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
    y = y.relu()
    partial.backward(2 * y / y.numel())  # the gradient of the mean of y squared
    gradients = []
    for matrix in whole:
        dist.all_reduce(matrix.grad, group=data)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients


# %% wrong: adds_over_data
# message: other rows of the batch
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
    dist.all_reduce(y, group=data)
    y = y.relu()
    partial.backward(2 * y / y.numel())  # the gradient of the mean of y squared
    gradients = []
    for matrix in whole:
        dist.all_reduce(matrix.grad, group=data)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients


# %% wrong: adds_over_all
# message: y over all four ranks
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
    dist.all_reduce(y)
    y = y.relu()
    partial.backward(2 * y / y.numel())  # the gradient of the mean of y squared
    gradients = []
    for matrix in whole:
        dist.all_reduce(matrix.grad, group=data)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients


# %% wrong: averages_over_tensor
# message: different halves of the matrices
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
        dist.all_reduce(matrix.grad, group=groups["tensor"])
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients


# %% wrong: averages_over_all
# message: mean over all four ranks
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
        dist.all_reduce(matrix.grad)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / 4)
    return gradients


# %% wrong: adds_over_all_and_halves
# message: adds up all four ranks
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
        dist.all_reduce(matrix.grad)
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)] / size)
    return gradients


# %% wrong: never_averages
# message: its own rows of the batch alone
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
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)])
    return gradients


# %% wrong: never_divides
# message: That is the sum
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
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(data)])
    return gradients


# %% wrong: gathers_over_tensor
# message: gathered in the tensor group
import torch
import torch.distributed as dist


def two_cut_gradients(x, up, down, groups):
    """The gradients of this rank's shards of `up` and `down`."""
    data, size = groups["data"], dist.get_world_size(groups["data"])
    whole = []
    for shard in (up, down):
        parts = [torch.empty_like(shard) for _ in range(size)]
        dist.all_gather(parts, shard, group=groups["tensor"])
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


# %% wrong: keeps_other_rows
# message: another rank's rows
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
        gradients.append(matrix.grad.chunk(size)[dist.get_rank(groups["tensor"])] / size)
    return gradients
