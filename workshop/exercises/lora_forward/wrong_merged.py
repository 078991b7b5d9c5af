import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    """W x + (alpha / r) B A x for each row: (tokens, inputs) -> (tokens, outputs)."""
    frozen = x @ weight.T
    change = (alpha / len(a)) * (x @ (b @ a).T)
    return frozen + change
