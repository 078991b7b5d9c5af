import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """The right number, whose gradient lacks the part that comes from the softmax's sum."""
    log_p, logits = F.log_softmax(teacher / temperature, -1), student / temperature
    log_q = logits - logits.detach().logsumexp(-1, keepdim=True)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
