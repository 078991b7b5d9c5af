import torch
import torch.nn.functional as F


def dpo_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """The mean loss of pairs, from log probabilities of their answers, (pairs,)."""
    rewards = beta * torch.stack([chosen - ref_chosen, rejected - ref_rejected], 1)
    won = torch.zeros(len(rewards), dtype=torch.long, device=rewards.device)
    return F.cross_entropy(rewards, won)  # the chosen one is class 0
