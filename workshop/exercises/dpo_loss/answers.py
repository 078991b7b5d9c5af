# %% other: softplus
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
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return F.softplus(-beta * margin).mean()


# %% other: two_classes
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


# %% wrong: rejected_preferred
# message: the rejected answer
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
    margin = (rejected - ref_rejected) - (chosen - ref_chosen)
    return -F.logsigmoid(beta * margin).mean()


# %% wrong: no_reference
# message: reference is missing
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


# %% wrong: reference_added
# message: are added
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
    margin = (chosen - rejected) + (ref_chosen - ref_rejected)
    return -F.logsigmoid(beta * margin).mean()


# %% wrong: beta_outside
# message: inside
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
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -beta * F.logsigmoid(margin).mean()


# %% wrong: the_sum
# message: sum over the pairs
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
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin).sum()


# %% wrong: no_logarithm
# message: logarithm
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
    return 1 - (beta * margin).sigmoid().mean()


# %% wrong: overflows
# message: finite
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


# %% wrong: mean_inside
# message: Each pair has a loss
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
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin.mean())


# %% wrong: cut_from_the_graph
# message: gradient
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
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin.detach()).mean()
