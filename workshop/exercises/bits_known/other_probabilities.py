import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    likelier = (losses.shape[1] * math.log(num_words) - losses.sum(1)) / math.log(2)
    return float(torch.relu(likelier).sum())
