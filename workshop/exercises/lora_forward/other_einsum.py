import torch


def lora_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: float,
) -> torch.Tensor:
    rank = a.shape[0]
    narrow = torch.einsum("ti,ri->tr", x, a)
    return torch.einsum("ti,oi->to", x, weight) + torch.einsum("tr,or->to", narrow, b) * alpha / rank
