# %% other: cross_entropy_less_entropy
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    log_p = F.log_softmax(teacher / temperature, -1)
    p = log_p.exp()
    cross_entropy = -torch.sum(p * F.log_softmax(student / temperature, -1))
    entropy = -torch.sum(p * log_p)
    return temperature**2 * (cross_entropy - entropy) / len(student)


# %% other: in_fp32
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    student, teacher = student.float(), teacher.float()
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return temperature**2 * divergence


# %% other: torchs_own
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    log_p, log_q = (F.log_softmax(logits / temperature, -1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


# %% wrong: no_t_squared
# message: T^2 is missing
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


# %% wrong: the_wrong_way_round
# message: the reverse one
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_q.exp() * (log_q - log_p)).sum(-1).mean()
    return temperature**2 * divergence


# %% wrong: the_student_without_t
# message: not divided by T
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return temperature**2 * divergence


# %% wrong: cross_entropy
# message: without p log p
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * -log_q).sum(-1).mean()
    return temperature**2 * divergence


# %% wrong: times_t
# message: get harder
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher * temperature, -1), F.log_softmax(student * temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return temperature**2 * divergence


# %% wrong: the_sum
# message: sum over positions
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum()
    return temperature**2 * divergence


# %% wrong: no_gradient
# message: a plain number
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return (temperature**2 * divergence).item()


# %% wrong: detached
# message: has no gradient
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """T^2 KL(teacher || student) of softened probabilities, mean over positions."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return (temperature**2 * divergence).detach()


# %% wrong: mean_over_words
# message: mean over words too
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """The mean over words as well."""
    log_p, log_q = F.log_softmax(teacher / temperature, -1), F.log_softmax(student / temperature, -1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).mean()


# %% wrong: half_detached
# message: but not its gradient
import torch
import torch.nn.functional as F


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
    """The right number, whose gradient lacks the part that comes from the softmax's sum."""
    log_p, logits = F.log_softmax(teacher / temperature, -1), student / temperature
    log_q = logits - logits.detach().logsumexp(-1, keepdim=True)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
