# %% other: where
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=-1, keepdim=True)
    spread = off.square().mean(dim=-1, keepdim=True).sqrt()  # over all answers, not over one less
    return torch.where(spread > 1e-6, off / spread, torch.zeros_like(off))


# %% wrong: mean_of_all
# message: mean of all
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean()
    return off / (rewards.std(dim=1, keepdim=True) + 1e-6)


# %% wrong: not_divided
# message: not divided
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    return rewards - rewards.mean(dim=1, keepdim=True)


# %% wrong: divided_by_the_mean
# message: divided by the mean
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return off / (rewards.mean(dim=1, keepdim=True) + 1e-6)


# %% wrong: deviation_of_all
# message: deviation of all
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return off / (rewards.std() + 1e-6)


# %% wrong: by_column
# message: along the questions
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=0, keepdim=True)
    return off / (rewards.std(dim=0, keepdim=True) + 1e-6)


# %% wrong: not_a_number
# message: not a number
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return off / (rewards.std(dim=1, keepdim=True))


# %% wrong: the_variance
# message: variance
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return off / (rewards.var(dim=1, keepdim=True) + 1e-6)


# %% wrong: rounding_left
# message: is rounded
import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=-1, keepdim=True)
    spread = off.square().mean(dim=-1, keepdim=True).sqrt()
    return torch.where(spread > 0, off / spread, torch.zeros_like(off))
