# %% other: base_two
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    bits = losses.double() / math.log(2)
    total = 0.0
    for fact in bits:
        total += max(0.0, float((math.log2(num_words) - fact).sum()))
    return total


# %% other: probabilities
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    likelier = (losses.shape[1] * math.log(num_words) - losses.sum(1)) / math.log(2)
    return float(torch.relu(likelier).sum())


# %% wrong: nats
# message: in nats
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return saved.sum(1).clamp(min=0).sum().item()


# %% wrong: both_units
# message: two different units
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log2(num_words) - losses
    return saved.sum(1).clamp(min=0).sum().item()


# %% wrong: no_floor
# message: counts as 0
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return saved.sum().item() / math.log(2)


# %% wrong: floor_of_tokens
# message: for each token
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return saved.clamp(min=0).sum().item() / math.log(2)


# %% wrong: floor_of_all
# message: for all facts together
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return max(0.0, saved.sum().item() / math.log(2))


# %% wrong: mean
# message: mean over the facts
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    saved = math.log(num_words) - losses
    return saved.sum(1).clamp(min=0).mean().item() / math.log(2)


# %% wrong: the_loss
# message: does not know
import math

import torch


def bits_known(losses: torch.Tensor, num_words: int) -> float:
    """Bits that a model knows of these facts. losses: (facts, tokens), in nats."""
    return losses.sum().item() / math.log(2)
