"""DiLoCo: train apart, meet every H steps.  (Douillard et al. 2023, arXiv 2311.08105, algorithm 1)

Data-parallel ranks talk in every step. Where the wire between two groups of them is slow (two buildings, two
continents) each group becomes an *island* that trains on its own for H steps, with AdamW, on its own data.
Then the islands meet::

    moved   = anchor - mean over islands of weights        what H steps have moved: the *outer gradient*
    anchor  = Nesterov(anchor, moved)                      SGD, momentum 0.9, learning rate 0.7
    weights = anchor                                       everybody begins the next round there

One all_reduce of the weights in H steps instead of H all_reduces of gradients: H times fewer bytes. AdamW's
states are never sent. The outer momentum is what makes it more than averaging: directions in which all
islands move again and again grow.

With H = 1, plain SGD within, and an outer SGD without momentum at rate 1 it *is* data parallelism; a test
says so.

**Streaming** (Douillard et al. 2025, arXiv 2501.18512): the parameters are dealt into fragments, and one
fragment at a time meets, every H / fragments steps. As many bytes in all, but the largest burst is smaller,
``fragments`` times. (The paper also hides the message behind steps and sends 4 bits; not here.)

`workshop.predict.diloco` says what H makes of the time of a step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.facts.checks import check_positive


class DiLoCo(torch.optim.Optimizer):
    """An optimizer around another: steps it, and every ``inner_steps`` steps meets the other islands.

    inner: the island's own optimizer (the paper: AdamW).
    inner_steps: H.
    outer_lr, outer_momentum: of the Nesterov SGD between islands.
    fragments: parts that meet in turn; 1 is DiLoCo, more is streaming. At most ``inner_steps``.
    group: one rank of each island; the islands begin alike (`begin_together`).

    Raises ValueError where the numbers cannot be.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        inner_steps: int = 100,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        fragments: int = 1,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        check_positive("inner_steps", inner_steps)
        check_positive("fragments", fragments)
        if inner_steps % fragments:
            raise ValueError(
                f"fragments = {fragments} do not divide inner_steps = {inner_steps}: a fragment meets every "
                "inner_steps / fragments steps"
            )
        super().__init__([p for entry in inner.param_groups for p in entry["params"]], {})
        self.inner, self.inner_steps, self.group, self.steps = inner, inner_steps, group, 0
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.fragments = deal(self.param_groups[0]["params"], fragments)
        self.anchors = [flat(fragment) for fragment in self.fragments]
        self.momenta = [torch.zeros_like(anchor) for anchor in self.anchors]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One inner step; after every H / fragments of them one fragment meets."""
        with torch.enable_grad():
            loss = self.inner.step(closure)
        self.steps += 1
        every = self.inner_steps // len(self.fragments)
        if self.steps % every == 0:
            self.meet((self.steps // every - 1) % len(self.fragments))
        return loss

    @torch.no_grad()
    def meet(self, number: int = 0) -> None:
        """The outer step of one fragment."""
        anchor, momentum = self.anchors[number], self.momenta[number]
        mean = flat(self.fragments[number])
        dist.all_reduce(mean, group=self.group)
        mean /= dist.get_world_size(self.group)
        moved = anchor - mean
        momentum.mul_(self.outer_momentum).add_(moved)
        anchor -= self.outer_lr * (moved + self.outer_momentum * momentum)  # Nesterov, as in torch.optim.SGD
        pieces = anchor.split([parameter.numel() for parameter in self.fragments[number]])
        for parameter, piece in zip(self.fragments[number], pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state (each island's own), anchors, momenta and the number of steps."""
        return {
            "inner": self.inner.state_dict(),
            "anchors": self.anchors,
            "momenta": self.momenta,
            "steps": self.steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`, with as many fragments."""
        self.inner.load_state_dict(state_dict["inner"])
        for name in ("anchors", "momenta"):
            for mine, saved in zip(getattr(self, name), state_dict[name], strict=True):
                mine.copy_(saved)
        self.steps = state_dict["steps"]


def deal(parameters: list[nn.Parameter], fragments: int) -> list[list[nn.Parameter]]:
    """Parameters in turn to the fragments, like cards: each gets some of every depth (their "strided" order).

    Raises ValueError where there are fewer parameters than fragments.
    """
    if fragments > len(parameters):
        raise ValueError(f"{len(parameters)} parameters cannot be dealt into {fragments} fragments")
    return [parameters[start::fragments] for start in range(fragments)]


def flat(parameters: list[nn.Parameter]) -> Tensor:
    """A copy of the parameters' values, end to end: (numbers,)."""
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
