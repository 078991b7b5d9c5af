"""A model that is cut inside, ready for the loop: who averages what, and whose numbers make up the norm.

Four things change once ranks hold different parts of one model.

* **The loss** is known on the last stage only. Its mean is over those ranks.
* **Gradients** of a norm under sequence parallelism come in parts, one for each tensor rank's positions;
  those of a tied embedding in two, from the first and the last stage. Both are sums.
* **Averages** are over the ranks that hold the same part and saw other tokens. FSDP2 makes its own; without
  it they are made here, in DDP's buckets, after the last micro-batch.
* **The norm** of the gradient is over all parts, each counted once, however many ranks hold it ::

      norm^2 = sum over ranks and parameters of  |gradient here|^2 / (ranks that hold the same numbers)

  which is one number to all_reduce. Cutting to the norm of a rank's own part would scale parts differently,
  and train another model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from workshop.parallel.context_gpt import cut_sequence
from workshop.parallel.ddp import fill_buckets
from workshop.train.cut_model import Axes, Pipelined
from workshop.train.ready import Contexts, Ready

_STAGE = re.compile(r"^stage\d+\.")


class ReadyCut(Ready):
    """A GPT cut by tensor, pipeline or context, alone or with data parallelism around it."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        axes: Axes,
        around_forward: Sequence[Contexts] = (),
    ) -> None:
        super().__init__(model, optimizers, around_forward=around_forward)
        self.axes = axes

    def gradients(self, micro_batches: Iterable[tuple[Tensor, Tensor]], number: int) -> Tensor:
        """As `Ready.gradients`; a pipeline takes all micro-batches at once."""
        cut = (self._own_positions(*pair) for pair in micro_batches)
        if not isinstance(self.model, Pipelined):
            return super().gradients(cut, number)
        inputs, targets = zip(*cut, strict=True)
        return self.model(inputs, targets)

    def _own_positions(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.axes.context is None:
            return tokens, targets
        tokens, targets = cut_sequence(
            tokens, targets, group=self.axes.context, method=self.axes.layout.context_method
        )
        return tokens, targets

    def clip(self, max_norm: float) -> None:
        """Finish the gradients: add what comes in parts, average; then cut to the whole model's norm."""
        gradients = dict(self._add_parts())
        if self.axes.data is not None:
            self._average(list(gradients.values()))
        if not max_norm:
            return
        self.gradient_norm = self._norm(gradients)
        scale = (max_norm / (self.gradient_norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for gradient in gradients.values():
            gradient.mul_(scale.to(gradient.dtype))

    def _add_parts(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole gradients of what this rank holds, as plain tensors."""
        for name, parameter in self.model.named_parameters():
            gradient: Any = parameter.grad
            if (
                isinstance(parameter, DTensor)
                and gradient is not None
                and gradient.placements != parameter.placements
            ):
                parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
            if gradient is None:
                continue
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if self.axes.ends is not None and self._is_tied(name):
                dist.all_reduce(local, group=self.axes.ends)
            yield name, local

    def _is_tied(self, name: str) -> bool:
        config: Any = self.model.config
        return config.tied and name.endswith(("embed_tokens.weight", "lm_head.weight"))

    def _average(self, gradients: list[Tensor]) -> None:
        ranks = dist.get_world_size(self.axes.data)
        for bucket in fill_buckets(reversed(gradients)):  # type: ignore[arg-type]
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self.axes.data)
            for gradient, mean in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_((mean / ranks).view_as(gradient))

    def _norm(self, gradients: dict[str, Tensor]) -> Tensor:
        parameters = dict(self.model.named_parameters())
        squares = torch.zeros((), device=self.device)
        for name, gradient in gradients.items():
            if self.axes.ends is not None and self._is_tied(name) and name.endswith("lm_head.weight"):
                continue  # the first stage counts it
            copies = self.axes.stage_ranks / _parts(parameters[name])
            squares += gradient.float().square().sum() / copies
        dist.all_reduce(squares)
        return squares.sqrt()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks that know a loss, in the order of ranks."""
        every = [torch.empty_like(values) for _ in range(self.num_ranks)]
        dist.all_gather(every, values.contiguous())
        return torch.stack([every[rank] for rank in self.axes.loss_ranks]).mean(0)

    def state(self) -> dict[str, Any]:
        """As `Ready.state`; a stage's parameters by their names in the whole model."""
        state, names = super().state(), self._names()
        return {part: {names[part][n]: value for n, value in held.items()} for part, held in state.items()}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        ours = {part: {whole: own for own, whole in names.items()} for part, names in self._names().items()}
        super().load({part: {ours[part][n]: v for n, v in held.items()} for part, held in state.items()})

    def _names(self) -> dict[str, dict[str, str]]:
        """For weights and for optimizer state: a parameter's name here, and in the whole model.

        The whole model has one state for a tied embedding; both stages that hold a copy keep the same.
        """
        own = [name for name, _ in self.model.named_parameters(remove_duplicate=False)]
        weights = {name: _STAGE.sub("", name) for name in own}
        tied = self.axes.ends is not None and self.model.config.tied  # type: ignore[union-attr]
        states = {
            name: "model.embed_tokens.weight" if tied and whole == "lm_head.weight" else whole
            for name, whole in weights.items()
        }
        return {"model": weights, "optimizer": states}


def _parts(parameter: nn.Parameter) -> int:
    """In how many parts a parameter is cut over the ranks of its stage."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return prod(mesh.size(i) for i, place in enumerate(parameter.placements) if not place.is_replicate())
