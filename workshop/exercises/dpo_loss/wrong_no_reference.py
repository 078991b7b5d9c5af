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
    return -F.logsigmoid(beta * (chosen - rejected)).mean()
