"""ZeRO by hand: what if nobody keeps everything?  (Rajbhandari et al. 2020, arXiv 1910.02054)

Data-parallel ranks all hold the same weights, gradients and optimizer state. ZeRO cuts these copies, one
after the other, into ``N`` parts, one for each rank. In mixed precision with Adam, with ``P`` parameters
(section 3.1: 2 bytes of weight, 2 of gradient, ``K`` = 12 of fp32 master copy and two moments)::

    stage 0   nothing is cut            (2 + 2 + K) P            figure 1, P = 7.5e9, N = 64:    120 GB
    stage 1   the optimizer's state     (2 + 2 + K/N) P                                         31.4 GB
    stage 2   and the gradients         (2 + (2 + K)/N) P                                       16.6 GB
    stage 3   and the weights           (2 + 2 + K)/N P                                          1.9 GB

What it costs (section 7), in multiples of the weights' bytes, each times (N - 1)/N in a ring::

    stage 0   all_reduce of gradients                                                              2
    stage 1   reduce_scatter of gradients, all_gather of weights: the two halves of an all_reduce  2
    stage 2   the same, only earlier: as soon as a unit's gradients are complete                   2
    stage 3   all_gather before forward, all_gather before backward, reduce_scatter                3

Four classes, each a few lines more than the one before. They are optimizers; the training loop stays::

    optimizer = zero(model, stage=2, lr=1e-3)
    loss_of(model).backward();  optimizer.step();  optimizer.zero_grad()

All ranks must use the same parameters in each step, as with DDP.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from workshop.facts.checks import check_choice
from workshop.parallel.flat import Unit, all_gather, reduce_scatter
from workshop.parallel.materialise import Initialise, begin_alike, held_by, materialise, not_trained
from workshop.parallel.wrapping import Wrap, units


def weakly(method: Callable[..., Any]) -> Callable[..., None]:
    """The method for as long as its object lives: a hook that held it would keep tensors alive for ever.

    Python's collector does not see a circle that goes through a tensor's hooks.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


class Replicated(torch.optim.Optimizer):
    """Stage 0: every rank holds everything; gradients are averaged by all_reduce.

    model: its trainable parameters become views of flat tensors, one for each unit (see `wrapping.units`).
    optimizer: a class of torch.optim; ``options`` are its arguments, such as ``lr``. It works on flat fp32
        tensors, so it must be one that treats every number alike (SGD, AdamW; not Muon, not Adafactor).
    initialise: for a model on the meta device, see `materialise`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        wrap: Wrap = "layers",
        initialise: Initialise | None = None,
        **options: Any,
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.units: list[Unit] = []
        self._model, self._stepped = model, False
        begin_alike(not_trained(model))
        modules = units(model, wrap)
        for position, module in enumerate(modules):
            held = held_by(module, outside=modules[:position])
            if held:
                materialise(held, initialise)
                self._take(Unit(module, [one.parameter for one in held]))
        masters = [unit.master for unit in self.units]
        self.inner = [optimizer([master], **options) for master in masters]
        super().__init__(masters, dict(self.inner[0].defaults))

    def _take(self, unit: Unit) -> None:
        """Begin alike, keep this rank's numbers for the optimizer, and listen for gradients."""
        begin_alike([unit.weights])
        mine = self.part(unit.weights)
        unit.master = nn.Parameter(mine if mine.dtype == torch.float32 else mine.float())
        collect = weakly(self._collect)
        for index, parameter in enumerate(unit.parameters):
            parameter.register_post_accumulate_grad_hook(partial(collect, len(self.units), index))
        self.units.append(unit)

    def part(self, flat: Tensor) -> Tensor:
        """The part of a unit's flat tensor whose optimizer state this rank keeps: here all of it."""
        return flat

    def _collect(self, position: int, index: int, parameter: nn.Parameter) -> None:
        """A gradient is complete: move it to its place in the unit's flat one."""
        if self._stepped:
            raise RuntimeError("backward after step() without zero_grad(): call it after every step")
        unit = self.units[position]
        if unit.gradient is None:
            unit.gradient = torch.zeros_like(unit.weights)
            unit.places = unit.pieces(unit.gradient)
        place, gradient = unit.places[index], parameter.grad
        if gradient is not None and gradient is not place:  # the next micro-batch autograd adds there itself
            place += gradient
            parameter.grad = place
        unit.missing -= 1
        if unit.missing == 0:
            unit.missing = len(unit.parameters)
            self.complete(unit)

    def complete(self, unit: Unit) -> None:
        """All gradients of a unit are there: nothing to do yet."""

    def reduce(self, unit: Unit) -> None:
        """The mean over ranks of a unit's gradient."""
        assert unit.gradient is not None
        dist.all_reduce(unit.gradient)
        unit.reduced = unit.gradient.div_(self.ranks)

    def publish(self, unit: Unit) -> None:
        """The master copy has been updated: so must be the weights."""
        if unit.master.dtype != unit.weights.dtype:
            self.part(unit.weights).copy_(unit.master)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Reduce what is not reduced, update the master copies unit by unit, publish."""
        if closure is not None:
            raise ValueError("step(closure): gradients are reduced once a step, so call backward yourself")
        for unit, inner in zip(self.units, self.inner, strict=True):
            if unit.gradient is not None:
                self.reduce(unit)
            if unit.reduced is None:  # no gradient: this unit was not used
                continue
            inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]  # a scheduler sets ours
            unit.master.grad = unit.reduced.to(unit.master.dtype)
            inner.step()
            unit.master.grad = None
            self.publish(unit)
        self._stepped = True

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 torch's signature
        """Let go of all gradients."""
        self._stepped = False
        for unit in self.units:
            unit.gradient = unit.reduced = None
            unit.places = []
            for parameter in unit.parameters:
                parameter.grad = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, the model's parameters are whole on every rank: to evaluate, or to save a state dict."""
        yield


class Zero1(Replicated):
    """Stage 1: the optimizer's state is cut. Reduce-scatter, update your part, all-gather the weights."""

    def part(self, flat: Tensor) -> Tensor:
        """This rank's Nth of a flat tensor: (numbers,) to (numbers / ranks,), a view."""
        return flat.chunk(self.ranks)[self.rank]

    def reduce(self, unit: Unit) -> None:
        """The mean over ranks of this rank's part."""
        assert unit.gradient is not None
        mine = self.part(unit.gradient)
        reduce_scatter(mine, unit.gradient)
        unit.reduced = mine.div_(self.ranks)

    def publish(self, unit: Unit) -> None:
        """Everybody gets everybody's part."""
        super().publish(unit)
        all_gather(unit.weights, self.part(unit.weights))


class Zero2(Zero1):
    """Stage 2: gradients are cut too. A unit's are reduced as soon as they are complete, and dropped."""

    def complete(self, unit: Unit) -> None:
        """Reduce now, while backward goes on to the next unit."""
        with torch.no_grad():
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """As stage 1, but only this rank's part stays; with several micro-batches it adds up."""
        assert unit.gradient is not None
        mine = torch.empty_like(self.part(unit.gradient))
        reduce_scatter(mine, unit.gradient)
        unit.gradient, unit.places = None, []
        for parameter in unit.parameters:
            parameter.grad = None
        mine.div_(self.ranks)
        unit.reduced = mine if unit.reduced is None else unit.reduced.add_(mine)


class Zero3(Zero2):
    """Stage 3: weights are cut too. A unit is gathered before it computes and freed after.

    A freed parameter is the piece of this rank's shard that lies in it: one-dimensional, maybe empty.
    What autograd saved of the weights are views of `Unit.weights`, whose bytes go and come back.
    """

    _holding = False

    def _take(self, unit: Unit) -> None:
        super()._take(unit)
        unit.shard = self.part(unit.weights).clone()
        if unit.master.dtype == unit.shard.dtype:
            unit.master = nn.Parameter(unit.shard)
        self.free(unit)
        unit.module.register_forward_pre_hook(lambda *_: self.gather(unit))
        unit.module.register_forward_hook(lambda *call: self._leave(unit, call[-1]))

    def gather(self, unit: Unit) -> None:
        """All ranks' shards together: the parameters are whole."""
        if unit.is_whole:
            return
        unit.is_whole = True
        unit.weights.untyped_storage().resize_(unit.weights.numel() * unit.weights.element_size())
        all_gather(unit.weights, unit.shard)
        for parameter, piece in zip(unit.parameters, unit.pieces(unit.weights), strict=True):
            parameter.data = piece

    def free(self, unit: Unit) -> None:
        """Keep this rank's shard alone."""
        unit.is_whole = False
        first, length = self.rank * unit.shard.numel(), unit.shard.numel()
        for parameter, start, end in zip(unit.parameters, unit.starts, unit.ends, strict=True):
            begin, stop = (min(max(place - first, 0), length) for place in (start, end))
            parameter.data = unit.shard[begin:stop]
        unit.weights.untyped_storage().resize_(0)

    def _leave(self, unit: Unit, output: Any) -> None:
        """After forward: free the weights, and gather them again when backward brings the first gradient.

        Not freed are the root's, which backward needs at once, and those of a layer that recomputes.
        """
        outputs = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        if outputs:
            register_multi_grad_hook(outputs, lambda _: self._enter_backward(unit), mode="any")
        stays = unit.in_backward or self._holding or (unit.module is self._model and outputs)
        if not stays:
            self.free(unit)

    def _enter_backward(self, unit: Unit) -> None:
        unit.in_backward = True
        self.gather(unit)

    def reduce(self, unit: Unit) -> None:
        """As stage 2; the weights are not needed any more either."""
        super().reduce(unit)
        unit.in_backward = False
        self.free(unit)

    def publish(self, unit: Unit) -> None:
        """The next forward gathers what it needs."""
        if unit.master.dtype != unit.shard.dtype:
            unit.shard.copy_(unit.master)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, all weights are there: make sure that they fit."""
        self._holding = True
        for unit in self.units:
            self.gather(unit)
        try:
            yield
        finally:
            self._holding = False
            for unit in self.units:
                self.free(unit)


STAGES = (Replicated, Zero1, Zero2, Zero3)


def zero(model: nn.Module, stage: int, **options: Any) -> Replicated:
    """The optimizer of a ZeRO stage; ``options`` as `Replicated` takes them. ValueError for another stage."""
    check_choice("zero stage", stage, range(len(STAGES)))
    return STAGES[stage](model, **options)
