import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    log_p = F.log_softmax(teacher / temperature, -1)
    p = log_p.exp()
    cross_entropy = -torch.sum(p * F.log_softmax(student / temperature, -1))
    entropy = -torch.sum(p * log_p)
    return temperature**2 * (cross_entropy - entropy) / len(student)
