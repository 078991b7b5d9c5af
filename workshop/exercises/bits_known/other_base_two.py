import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    bits = losses.double() / math.log(2)
    total = 0.0
    for fact in bits:
        total += max(0.0, float((math.log2(num_words) - fact).sum()))
    return total
