import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)  # after a token: the next one
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum(1)
