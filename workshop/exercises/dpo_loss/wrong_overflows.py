import torch


def dpo_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """The mean loss of pairs, from log probabilities of their answers, (pairs,)."""
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -torch.log(torch.sigmoid(beta * margin)).mean()
