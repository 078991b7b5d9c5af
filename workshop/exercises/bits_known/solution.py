import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses  # nats, of each token
    of_facts = saved.sum(1).clamp(min=0)
    return of_facts.sum().item() / math.log(2)
