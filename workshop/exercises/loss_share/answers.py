# %% other: gathers_counts
import torch
import torch.distributed as dist


def loss_share(loss_sum, labels_of_step):
    mine = sum(int(labels.ge(0).sum()) for labels in labels_of_step)
    counts = [torch.zeros(1, device=loss_sum.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.full((1,), float(mine), device=loss_sum.device))
    return loss_sum / torch.cat(counts).mean()


# %% wrong: mean_of_means
# message: of this rank alone
import torch


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = torch.stack([(labels != -100).sum() for labels in labels_of_step]).sum()
    return loss_sum / count


# %% wrong: forgets_ddp
# message: DDP divides by the number of ranks
import torch
import torch.distributed as dist


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = torch.stack([(labels != -100).sum() for labels in labels_of_step]).sum()
    dist.all_reduce(count)
    return loss_sum / count


# %% wrong: counts_all_labels
# message: labels of -100
import torch
import torch.distributed as dist


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = torch.tensor(sum(labels.numel() for labels in labels_of_step))
    dist.all_reduce(count)
    return loss_sum * dist.get_world_size() / count


# %% wrong: mean_of_the_counts
# message: too large by the number of ranks
import torch
import torch.distributed as dist


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = torch.stack([(labels != -100).sum() for labels in labels_of_step]).sum()
    dist.all_reduce(count)
    count = count / dist.get_world_size()
    return loss_sum * dist.get_world_size() / count


# %% wrong: first_micro_batch_only
# message: first micro-batch
import torch
import torch.distributed as dist


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = (labels_of_step[0] != -100).sum()
    dist.all_reduce(count)
    return loss_sum * dist.get_world_size() / count


# %% wrong: detached
# message: no gradient
import torch
import torch.distributed as dist


def loss_share(loss_sum: torch.Tensor, labels_of_step: list[torch.Tensor]) -> torch.Tensor:
    """What one micro-batch calls backward on."""
    count = torch.stack([(labels != -100).sum() for labels in labels_of_step]).sum()
    dist.all_reduce(count)
    return torch.tensor(loss_sum.item() * dist.get_world_size() / count.item())
