import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    each = logits[:, :-1].gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum(1)
