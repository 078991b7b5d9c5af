import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log2(num_words) - losses
    return saved.sum(1).clamp(min=0).sum().item()
