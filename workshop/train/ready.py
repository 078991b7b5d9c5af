"""A model ready to train: the few things in which libraries differ, behind the few names the loop uses.

A step is always the same five lines: rate, forward, backward, clip, update. What differs is who averages the
gradients and when (DDP in backward, unless told to wait; FSDP in backward, into shards; DeepSpeed in its
engine), whose numbers make up the gradient's norm, and where the optimizer's state lies. `Ready` is plain
PyTorch, DDP and FSDP2; `ReadyZero` the optimizers written by hand in `parallel.zero`; `ReadyDeepSpeed` an
engine. `apply_layout` makes the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.parallel.materialise import local_device
from workshop.train.zero_state import load_whole_state, whole_state

Contexts = Callable[[], AbstractContextManager[Any]]


class Ready:
    """A model on its device, cut as the layout says, with its optimizers.

    Args:
        model: what is called, ``model(tokens, targets) -> loss``: wrapped or sharded.
        optimizers: over its parameters, built after it was cut.
        around_forward: makes the context each forward runs in (autocast, offloaded activations).
        waits: micro-batches but the last leave gradients where they are (DDP's no_sync).
        scaler: of fp16's gradients; None where none is needed.

    ``gradient_norm`` is that of the last step, before it was cut to ``clip_norm``; None where nobody asked.
    """

    kind = "torch"

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        around_forward: Sequence[Contexts] = (),
        waits: bool = False,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.model, self.optimizers = model, list(optimizers)
        self.device = local_device()  # of the arithmetic; offloaded parameters are elsewhere
        self.rank, self.num_ranks = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        )
        self.gradient_norm: Tensor | None = None
        self._around_forward, self._waits = tuple(around_forward), waits
        self._scaler = scaler or torch.amp.GradScaler(self.device.type, enabled=False)

    def set_learning_rate(self, rate: float) -> None:
        """The rate of the step that begins."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def gradients(self, micro_batches: Iterable[tuple[Tensor, Tensor]], number: int) -> Tensor:
        """Forward and backward of a step's micro-batches, ``number`` of them; gradients add up to those of
        their mean loss, which is returned."""
        total = torch.zeros((), device=self.device)
        for micro, (tokens, targets) in enumerate(micro_batches):
            with self.accumulating(last=micro == number - 1):
                loss = self.loss(tokens, targets) / number
                self.backward(loss)
            total += loss.detach()
        return total

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a micro-batch on this rank."""
        with ExitStack() as stack:
            for context in self._around_forward:
                stack.enter_context(context())
            return self.model(tokens, targets)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch; in the last, gradients are averaged over ranks."""
        if self._waits and not last:
            return self.model.no_sync()  # type: ignore[operator]
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Gradients of this micro-batch are added to those of the step."""
        self._scaler.scale(loss).backward()

    def clip(self, max_norm: float) -> None:
        """Cut the gradient to a norm of ``max_norm`` over all ranks' numbers; 0 leaves it alone."""
        if not max_norm:
            return
        for optimizer in self.optimizers:
            self._scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.gradient_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def step(self) -> None:
        """Update the weights and let go of the gradients."""
        for optimizer in self.optimizers:
            self._scaler.step(optimizer)
            optimizer.zero_grad()
        self._scaler.update()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks, whose micro-batches are of one size; added in the order of ranks.

        (An all_reduce adds in an order that depends on how many values there are: a restarted run, with fewer
        losses to tell, would tell them with another last bit.)
        """
        if self.num_ranks == 1:
            return values
        every = [torch.empty_like(values) for _ in range(self.num_ranks)]
        dist.all_gather(every, values)
        return torch.stack(every).mean(0)

    def state(self) -> dict[str, Any]:
        """Weights and optimizer state by parameter name, each rank's own part: for `checkpoint`."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, moments = get_state_dict(self.model, self.optimizers)
        # Groups (rates, decay) come from the settings, so that a run may go on under another engine.
        state: dict[str, Any] = {"model": weights, "optimizer": moments["state"]}
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        return state

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_state_dict

        groups = get_optimizer_state_dict(self.model, self.optimizers)["param_groups"]
        set_state_dict(
            self.model,
            self.optimizers,
            model_state_dict=state["model"],
            optim_state_dict={"state": state["optimizer"], "param_groups": groups},
        )
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


class ReadyDeepSpeed(Ready):
    """A DeepSpeed engine, which averages, clips and updates by itself."""

    kind = "deepspeed"

    def __init__(self, engine: Any, around_forward: Sequence[Contexts] = ()) -> None:
        super().__init__(engine, [engine.optimizer], around_forward=around_forward)
        self.engine = engine
        self.device = torch.device(engine.device)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """The engine asks whether a backward is the step's last: the loop knows."""
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """The engine's backward."""
        self.engine.backward(loss)

    def clip(self, max_norm: float) -> None:
        """The engine cuts in its step, to the ``gradient_clipping`` it was made with."""

    def step(self) -> None:
        """The engine's step; it lets go of the gradients."""
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        self.gradient_norm = None if norm is None else torch.as_tensor(norm)

    def state(self) -> dict[str, Any]:
        """DeepSpeed writes files of its own: see `checkpoint`."""
        raise ValueError("a DeepSpeed engine saves its own files: use Checkpoints, which knows how")


class ReadyZero(Ready):
    """ZeRO by hand: one optimizer of `parallel.zero` that averages gradients in its step or in backward."""

    kind = "zero"

    def __init__(self, model: nn.Module, optimizer: Any, around_forward: Sequence[Contexts] = ()) -> None:
        super().__init__(model, [optimizer], around_forward=around_forward)
        self.optimizer = optimizer

    def clip(self, max_norm: float) -> None:
        """Average first, for the norm is that of the mean gradient; then cut every rank's part."""
        if not max_norm:
            return
        units = self.optimizer.units
        for unit in units:
            if unit.gradient is not None:
                self.optimizer.reduce(unit)
                unit.gradient = None  # averaged: the step must not do it again
        parts = [unit.reduced for unit in units if unit.reduced is not None]
        squares = torch.stack([part.float().square().sum() for part in parts]).sum()
        if self.is_cut:
            dist.all_reduce(squares)
        self.gradient_norm = squares.sqrt()
        scale = (max_norm / (self.gradient_norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for part in parts:
            part.mul_(scale.to(part.dtype))

    @property
    def is_cut(self) -> bool:
        """Whether each rank updates a part of its own (stages 1 to 3)."""
        return any(unit.master.numel() < unit.weights.numel() for unit in self.optimizer.units)

    def state(self) -> dict[str, Any]:
        """Whole weights and moments on every rank, in the words of `Ready.state`."""
        return whole_state(self.model, self.optimizer)

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`: every rank takes its part."""
        load_whole_state(self.model, self.optimizer, state)
