"""Call the learner's loss on every rank: on logits one can read, on random ones and on large ones.

Every rank knows the whole logits, and so what one process gives, and what the usual slips would give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import one_hot

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report
from workshop.measure import measure

# Of 8 words at 4 positions, how often each was seen: a probability is a count over the sum of its row.
SEEN = (
    (1, 5, 2, 1, 4, 1, 1, 1),
    (2, 1, 8, 1, 1, 1, 1, 1),
    (1, 1, 1, 2, 1, 6, 1, 3),
    (3, 1, 1, 1, 1, 2, 4, 7),
)
RIGHT = (1, 2, 5, 6)  # a word of each rank


def try_on_rank(loss_of_own_words: Callable[[Tensor, Tensor], Any]) -> None:
    """Report loss and gradient of three cases, what is wanted, and how much was sent."""
    join()
    generator = torch.Generator().manual_seed(0)
    words = 5 * dist.get_world_size()
    random = 3 * torch.randn(12, words, generator=generator)
    targets = torch.arange(12) * 7 % words  # of every rank, and in no order
    cases = {
        "readable": (torch.tensor(SEEN).log(), torch.tensor(RIGHT)),
        "random": (random, targets),
        "large": (500 + random, targets),
    }
    reported: dict[str, Any] = {}

    def all_cases() -> None:
        for name, case in cases.items():
            reported[name] = _case(loss_of_own_words, *case)

    reported["waited_at"] = line_of_wait(all_cases)
    report(check=reported)


def _case(
    loss_of_own_words: Callable[[Tensor, Tensor], Any], logits: Tensor, targets: Tensor
) -> dict[str, Any]:
    """One process with all words, and this rank with its own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, given = logits.chunk(ranks, 1)[rank].clone(), targets.clone()
    with measure(memory=False) as measured:
        answer = loss_of_own_words(own, given)
    lent = {"logits": (own, logits.chunk(ranks, 1)[rank]), "targets": (given, targets)}
    whole = logits.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(whole, targets)
    loss.backward()
    assert whole.grad is not None
    loss_answer, gradient_answer = _plain(answer, own)
    return {
        "loss": loss_answer,
        "gradient": gradient_answer,
        "wanted_loss": loss.item(),
        "wanted_gradient": whole.grad.chunk(ranks, 1)[rank].tolist(),
        "losses": _other_losses(logits, targets),
        "gradients": _other_gradients(logits, targets),
        "changed": [name for name, pair in lent.items() if not torch.equal(*pair)],
        "sent": sum(row.payload_bytes for row in measured.traffic) / (4 * len(targets)),
    }


def _plain(answer: Any, own: Tensor) -> tuple[float | None, list[list[float]] | None]:
    """Loss and gradient as plain values; None for what is neither."""
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return None, None
    loss, gradient = answer
    number = float(loss) if isinstance(loss, float) or getattr(loss, "numel", int)() == 1 else None
    right = isinstance(gradient, Tensor) and gradient.shape == own.shape
    return number, gradient.detach().tolist() if right else None


def _other_losses(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """What this rank's loss is where one of the three sums does not reach it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = torch.stack(logits.chunk(ranks, 1))  # (ranks, positions, words)
    words, places = parts.shape[2], torch.arange(len(targets))
    whose, own = targets // words, targets % words

    def mean_loss(shifted: Tensor, total: Tensor, has_it: Tensor) -> float:
        target = shifted[whose, places, own].where(has_it, torch.zeros(()))
        return float((total.log() - target).mean())

    everywhere = torch.ones(len(targets), dtype=torch.bool)
    own_largest = parts - parts.amax(2, keepdim=True)
    shifted = parts - logits.amax(1)[:, None]
    return {
        "own_largest": mean_loss(own_largest, own_largest.exp().sum((0, 2)), everywhere),
        "own_total": mean_loss(shifted, shifted[rank].exp().sum(1), everywhere),
        "no_target": mean_loss(shifted, shifted.exp().sum((0, 2)), whose == rank),
    }


def _other_gradients(logits: Tensor, targets: Tensor) -> dict[str, list[list[float]]]:
    """What this rank's gradient is after the usual slips."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    softmax = logits.softmax(1).chunk(ranks, 1)[rank]
    words = softmax.shape[1]
    whole = logits.softmax(1) - one_hot(targets, logits.shape[1])
    slips = {
        "no_minus": softmax / len(targets),
        "minus_everywhere": (softmax - one_hot(targets % words, words)) / len(targets),
        "of_the_sum": whole.chunk(ranks, 1)[rank],
        "added_up": torch.stack(whole.chunk(ranks, 1)).sum(0) / len(targets),
    }
    return {name: gradient.tolist() for name, gradient in slips.items()}
