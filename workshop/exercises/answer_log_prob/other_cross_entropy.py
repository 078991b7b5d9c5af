import torch
import torch.nn.functional as F


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    targets = torch.where(counted, texts, -100)[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return -losses.sum(1)
