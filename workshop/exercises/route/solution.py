import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen
