import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    return losses.sum().item() / math.log(2)
