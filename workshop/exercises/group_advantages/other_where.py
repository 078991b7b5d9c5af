import torch


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """How much better each answer is than the others to its question."""
    off = rewards - rewards.mean(dim=-1, keepdim=True)
    spread = off.square().mean(dim=-1, keepdim=True).sqrt()  # over all answers, not over one less
    return torch.where(spread > 1e-6, off / spread, torch.zeros_like(off))
