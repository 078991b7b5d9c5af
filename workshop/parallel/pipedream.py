r"""PipeDream: a pipeline that never empties, and what it must remember for that.

GPipe and 1F1B end each step with an empty pipeline: gradients are complete, the optimizer steps, the pipeline
fills again. That is the bubble. PipeDream (Narayanan et al. 2019, SOSP; arXiv 1806.03377) does without: a
stage updates its weights after *every* backward, and goes on. So the weights change between the forward of a
micro-batch and its backward. Then backward would be computed with weights that never saw this forward, and
what comes out is no gradient of anything.

**Weight stashing** keeps, for each micro-batch under way, the weights that its forward used; backward uses
them again. Now every stage's gradient is one of the function it computed. But a micro-batch sees *older*
weights in early stages than in late ones: stage s of p is p - 1 - s updates behind (with one micro-batch an
update). Its gradient is then that of

    f(w_0(t - p + 1), w_1(t - p + 2), ..., w_{p-1}(t))

**Vertical sync** makes all stages use the version that the first stage used: f(w(t - p + 1), ..., w(t - p +
1)), a gradient of one model, only delayed. It costs each later stage more stashed versions.

Here the stages are virtual ranks in one process: a clock ticks, and in each tick a stage does its next action
of the 1F1B order. So it is plain to see which version is used when, and nothing depends on timing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

MODES = ("none", "stashing", "vertical-sync")
Weights = dict[str, Tensor]


@dataclass
class Trace:
    """What happened: per stage and micro-batch, the version (updates made before) that forward and backward
    used.

    gradients: per stage and micro-batch, by parameter. most_versions: the most that a stage had to keep at
    once, its newest included.
    """

    forward_version: list[dict[int, int]] = field(default_factory=list)
    backward_version: list[dict[int, int]] = field(default_factory=list)
    gradients: list[dict[int, Weights]] = field(default_factory=list)
    most_versions: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)


class _Stage:
    """One virtual rank: its module, all versions of its weights that are still wanted, and what is under
    way."""

    def __init__(self, module: nn.Module, place: int, num_stages: int, learning_rate: float) -> None:
        self.module, self.place, self.learning_rate = module, place, learning_rate
        self.ahead = num_stages - place  # forwards before the first backward: 1F1B
        self.versions: list[Weights] = [{n: p.detach().clone() for n, p in module.named_parameters()}]
        self.inputs: dict[int, Tensor] = {}
        self.forwards = self.backwards = 0

    def next_kind(self, num_micro_batches: int) -> str:
        """F or B: as many forwards ahead as there are stages to come, then in turn."""
        started_all = self.forwards == num_micro_batches
        return "B" if started_all or self.forwards - self.backwards >= self.ahead else "F"

    def leaves(self, version: int) -> Weights:
        """A version's weights, to be differentiated by."""
        return {name: weight.clone().requires_grad_() for name, weight in self.versions[version].items()}

    def update(self, gradient: Weights) -> None:
        """SGD on the newest weights."""
        newest = self.versions[-1]
        self.versions.append({name: w - self.learning_rate * gradient[name] for name, w in newest.items()})


class PipeDream:
    """Train stages on a stream of micro-batches, one update after each.

    Args:
        stages: modules, from first to last; they are copied.
        loss: ``loss(outputs, target)``, a scalar.
        mode: "none" (backward with whatever weights are there), "stashing" or "vertical-sync".
        learning_rate: of plain SGD.

    Raises ValueError for an unknown mode.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        mode: str = "stashing",
        learning_rate: float = 0.1,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is not known; there are {', '.join(MODES)}")
        self.stages = [
            _Stage(copy.deepcopy(stage), place, len(stages), learning_rate)
            for place, stage in enumerate(stages)
        ]
        self.loss, self.mode = loss, mode

    def train(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Trace:
        """Send all micro-batches through and back."""
        num, trace = len(inputs), Trace()
        for lists in (trace.forward_version, trace.backward_version, trace.gradients):
            lists.extend({} for _ in self.stages)
        trace.most_versions = [1] * len(self.stages)
        down: list[dict[int, Tensor]] = [dict(enumerate(inputs)), *({} for _ in self.stages)]
        up: list[dict[int, Tensor]] = [{} for _ in range(len(self.stages) + 1)]
        while any(stage.backwards < num for stage in self.stages):
            # In one tick all stages act on what was there when it began.
            ready = [self._ready(stage, down, up, num) for stage in self.stages]
            for stage, kind in zip(self.stages, ready, strict=True):
                if kind == "F":
                    self._forward(stage, down, up, targets, trace)
                elif kind == "B":
                    self._backward(stage, up, trace)
                wanted = {trace.forward_version[stage.place][micro] for micro in stage.inputs}
                kept = len(wanted | {len(stage.versions) - 1})
                trace.most_versions[stage.place] = max(trace.most_versions[stage.place], kept)
        return trace

    def _ready(
        self, stage: _Stage, down: list[dict[int, Tensor]], up: list[dict[int, Tensor]], num: int
    ) -> str:
        """What a stage does in this tick; empty where it waits."""
        if stage.backwards == num:
            return ""
        kind = stage.next_kind(num)
        if kind == "F":
            return kind if stage.forwards in down[stage.place] else ""
        return kind if stage.backwards in up[stage.place + 1] else ""

    def _forward(
        self,
        stage: _Stage,
        down: list[dict[int, Tensor]],
        up: list[dict[int, Tensor]],
        targets: Sequence[Tensor],
        trace: Trace,
    ) -> None:
        micro = stage.forwards
        version = len(stage.versions) - 1
        if self.mode == "vertical-sync" and stage.place > 0:
            version = trace.forward_version[0][micro]
        x = down[stage.place].pop(micro)
        y = functional_call(stage.module, stage.versions[version], (x,))
        stage.inputs[micro] = x
        trace.forward_version[stage.place][micro] = version
        stage.forwards += 1
        if stage.place + 1 < len(self.stages):
            down[stage.place + 1][micro] = y.detach()
        else:
            y = y.detach().requires_grad_()
            loss = self.loss(y, targets[micro])
            (up[stage.place + 1][micro],) = torch.autograd.grad(loss, y)
            trace.losses[micro] = loss.item()

    def _backward(self, stage: _Stage, up: list[dict[int, Tensor]], trace: Trace) -> None:
        micro = stage.backwards
        newest = len(stage.versions) - 1
        version = newest if self.mode == "none" else trace.forward_version[stage.place][micro]
        weights = stage.leaves(version)
        x = stage.inputs.pop(micro)
        if stage.place:
            x = x.detach().requires_grad_()
        y = functional_call(
            stage.module, weights, (x,)
        )  # the forward again, with the version that is at hand
        wanted = [*weights.values(), *([x] if stage.place else [])]
        gradients = torch.autograd.grad(y, wanted, up[stage.place + 1].pop(micro))
        gradient = dict(zip(weights, gradients, strict=False))
        if stage.place:
            up[stage.place][micro] = gradients[-1]
        trace.backward_version[stage.place][micro] = version
        trace.gradients[stage.place][micro] = gradient
        stage.backwards += 1
        stage.update(gradient)
