# %% other: one_hot
import torch
import torch.nn.functional as F


def chunk_loss(hidden, weight, targets):
    logits = hidden @ weight.T
    loss = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    one_hot = F.one_hot(targets.clamp(min=0), len(weight))
    error = torch.where(targets[:, None] < 0, 0.0, logits.softmax(-1) - one_hot)
    return loss, error @ weight, error.T @ hidden


# %% wrong: padding_counts
# message: negative target counts nothing
import torch


def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -log_p.gather(1, right).sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error.scatter_add_(1, right, -torch.ones_like(right, dtype=error.dtype))
    return loss, error @ weight, error.T @ hidden


# %% wrong: no_minus_one
# message: minus 1
def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -(log_p.gather(1, right) * counts).sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error *= counts
    return loss, error @ weight, error.T @ hidden


# %% wrong: the_mean
# message: mean
import torch


def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -(log_p.gather(1, right) * counts).sum() / counts.sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error.scatter_add_(1, right, -torch.ones_like(right, dtype=error.dtype))
    error *= counts / counts.sum()
    return loss, error @ weight, error.T @ hidden


# %% wrong: the_wrong_sign
# message: sign
import torch


def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -(log_p.gather(1, right) * counts).sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error.scatter_add_(1, right, -torch.ones_like(right, dtype=error.dtype))
    error *= -1.0 * counts
    return loss, error @ weight, error.T @ hidden


# %% wrong: of_all_rows
# message: gradient by `weight`
import torch


def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -(log_p.gather(1, right) * counts).sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error.scatter_add_(1, right, -torch.ones_like(right, dtype=error.dtype))
    error *= counts
    return loss, error @ weight, hidden.T @ error
