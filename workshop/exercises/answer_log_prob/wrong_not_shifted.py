import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    each = logits.log_softmax(-1).gather(-1, texts[..., None])[..., 0]
    return (each * counted).sum(1)
