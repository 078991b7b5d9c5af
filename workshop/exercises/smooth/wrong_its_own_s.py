import torch


def smooth(
    x_max: torch.Tensor,
    before: torch.Tensor,
    weights: list[torch.Tensor],
    alpha: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What makes the inputs, divided by s; the weights that read them, times s."""
    each = [x_max**alpha / w.abs().amax(0) ** (1 - alpha) for w in weights]
    column = each[0].view(-1, *[1] * (before.ndim - 1))
    return before / column, [w * s for w, s in zip(weights, each, strict=True)]
