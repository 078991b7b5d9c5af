import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean()
    return off / (rewards.std(dim=1, keepdim=True) + 1e-6)
