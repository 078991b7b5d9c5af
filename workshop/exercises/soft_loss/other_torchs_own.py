import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    log_p, log_q = (F.log_softmax(logits / temperature, -1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
