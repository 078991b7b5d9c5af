import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return max(0.0, saved.sum().item() / math.log(2))
