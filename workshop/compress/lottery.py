r"""The lottery ticket: a sparse network that could have been trained alone, if one had known which weights.

Train a network, prune its smallest weights, and set the others back to what they were **at the beginning**.
The hypothesis (Frankle and Carbin 2018, arXiv 1803.03635): this small network, trained again, gets as far as
the large one, and one with the same zeros but *fresh* random weights does not. Zeros and first values belong
together: the first draw held a winning ticket.

It is found in rounds (iterative magnitude pruning): each round trains, removes a share of what is left, and
goes back. A share of 20 % leaves 0.8^n after n rounds. For larger networks going back to step 0 does not
work, going back to an early step does (*rewinding*, Frankle et al. 2019, arXiv 1912.05671, section 3): the
first steps decide which valley is walked down, and the mask fits that valley.

    ticket = find_ticket(model, train, rounds=8, share=0.3, total=400, rewind=20)
    model.load_state_dict(ticket.start); apply_masks(model, ticket.masks)       # then train from step 20 on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workshop.compress.prune import Masks, apply_masks, keep_largest, magnitude

Train = Callable[[nn.Module, int, int], None]
"""``train(model, first, last)``: steps `first` to `last`, with an optimizer of its own."""


@dataclass(frozen=True)
class Ticket:
    """What stays (by parameter name), and the state the weights are set back to."""

    masks: Masks
    start: dict[str, Tensor]

    @property
    def left(self) -> float:
        """Share of the masked matrices that stays."""
        return sum(int(m.sum()) for m in self.masks.values()) / sum(m.numel() for m in self.masks.values())


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are pruned: matrices and larger; biases and norms stay."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.ndim > 1}


def prune_remaining(model: nn.Module, masks: Mapping[str, Tensor], share: float) -> Masks:
    """Masks without a further `share` of what is left, the smallest |w| over all matrices together.

    ValueError for a share outside 0 to 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"share is {share}; it is what goes of the weights left, between 0 and 1")
    scores = {
        name: magnitude(weight).masked_fill(~masks[name], -1.0) for name, weight in matrices(model).items()
    }
    flat = torch.cat([score.flatten() for score in scores.values()])
    left = int((flat >= 0).sum())
    kept = keep_largest(flat, 1 - round(left * (1 - share)) / flat.numel())
    parts = kept.split([score.numel() for score in scores.values()])
    return {n: part.reshape(s.shape) for (n, s), part in zip(scores.items(), parts, strict=True)}


@contextmanager
def held_at_zero(model: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """Inside, masked weights are zero and get no gradient: an optimizer born inside leaves them there.

    masks: by the name of a parameter and in its shape, True stays.
    """
    apply_masks(model, masks)
    parameters = dict(model.named_parameters())
    hooks = [
        parameters[name].register_hook(lambda gradient, mask=mask: gradient * mask)
        for name, mask in masks.items()
    ]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()


def find_ticket(
    model: nn.Module, train: Train, rounds: int, share: float, total: int, rewind: int = 0
) -> Ticket:
    """Iterative magnitude pruning with rewinding (arXiv 1912.05671, algorithm 1), on the model itself.

    Trains to step `rewind` and keeps that state; then `rounds` times trains to step `total`, removes `share`
    of what is left, and goes back. The model ends as the ticket: rewound and masked. Its buffers are set back
    too. ValueError for less than one round, or a rewind step outside 0 to total.
    """
    if rounds < 1 or not 0 <= rewind < total:
        raise ValueError(
            f"rounds {rounds}, rewind {rewind} of {total}: at least one round, rewind before the end"
        )
    if rewind:
        train(model, 0, rewind)
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in matrices(model).items()}
    for _ in range(rounds):
        with held_at_zero(model, masks):
            train(model, rewind, total)
        masks = prune_remaining(model, masks, share)
        model.load_state_dict(start)
    return Ticket(
        masks, {name: tensor.clone() for name, tensor in apply_masks(model, masks).state_dict().items()}
    )
