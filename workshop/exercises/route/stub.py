import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = ...  # (tokens, experts)
    chosen = ...  # (tokens, k): numbers of experts
    weights = ...  # (tokens, k): these add up to one for each token
    return weights, chosen
