import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return (temperature**2 * divergence).detach()
