import torch
import torch.nn.functional as F


def chunk_loss(hidden, weight, targets):
    logits = hidden @ weight.T
    loss = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    one_hot = F.one_hot(targets.clamp(min=0), len(weight))
    error = torch.where(targets[:, None] < 0, 0.0, logits.softmax(-1) - one_hot)
    return loss, error @ weight, error.T @ hidden
