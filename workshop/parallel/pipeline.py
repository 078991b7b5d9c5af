r"""Pipeline parallelism by hand: cut the depth, and keep every rank busy with somebody's micro-batch.

A model is cut into stages of consecutive layers. A stage gets activations from the one before it and hands
its own on; in backward, gradients come the other way. With one batch, one rank works and all others wait. So
the batch is cut into micro-batches, and while stage 1 works on the first, stage 0 begins the second (GPipe,
Huang et al. 2019, arXiv 1811.06965).

**A schedule is an order.** For each rank a list such as ``F0 F1 B0 F2 B1 ...``: forward or backward of a
micro-batch. What a rank has to wait for follows. So there is one loop here, `run_order`, and the schedules of
`predict.pipeline.orders` are what it runs: naive, GPipe, 1F1B, interleaved, breadth-first. The lists that are
simulated in the predictor are those that are executed.

    F   take the activations in, keep them; run the stage; hand the result on
    B   take the gradient in; run backward from the kept result; hand the input's gradient on; forget both

What is kept between F and B of a micro-batch is the price: GPipe keeps all of them, 1F1B at most one for each
stage that follows (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1).

Messages of the two directions have groups of their own. Rank 0 may send an activation while rank 1 sends a
gradient: in one queue each would wait for the other.

A message takes longer than its bytes tell where both cores of a machine compute: gloo moves it in a thread,
and that thread waits for a core. So on CPU a rank asks for what its next action needs before it computes.
Not on GPUs: NCCL does what a group is asked in order, so two ranks that both receive first wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.predict.pipeline import pipeline_orders
from workshop.predict.pipeline.orders import CLASSIC
from workshop.predict.pipeline.simulate import Action, Event

Loss = Callable[[Tensor, Tensor], Tensor]
RUN_BY_HAND = CLASSIC


@dataclass(frozen=True)
class StageLinks:
    """What stages say to each other: tensors of one type, down the model and up again.

    ``shapes``, ``dtype``: of one micro-batch between stage s and s + 1; one shape where all cuts have the
    same. ``where`` gives the rank of a stage. Make it with `open_wire`; all ranks must.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device
    where: Callable[[int], int]
    down: dist.ProcessGroup
    up: dist.ProcessGroup

    def send(self, x: Tensor, to_stage: int, micro_batch: int, *, upward: bool) -> Any:
        """Begin to send; what to wait for before x may be freed."""
        group = self.up if upward else self.down
        return dist.isend(x.contiguous(), self.where(to_stage), group, tag=_tag(to_stage, micro_batch))

    def receive(self, from_stage: int, for_stage: int, micro_batch: int, *, upward: bool) -> Tensor:
        """Wait for what another stage sends."""
        return self.ask(from_stage, for_stage, micro_batch, upward=upward)()

    def ask(self, from_stage: int, for_stage: int, micro_batch: int, *, upward: bool) -> Callable[[], Tensor]:
        """Begin to receive what another stage sends; what comes back waits for it when called."""
        shape = self.shapes[min(from_stage, for_stage) if len(self.shapes) > 1 else 0]
        x = torch.empty(shape, dtype=self.dtype, device=self.device)
        group = self.up if upward else self.down
        under_way = dist.irecv(x, self.where(from_stage), group, tag=_tag(for_stage, micro_batch))

        def arrived() -> Tensor:
            if under_way is not None:  # torch says None to a rank that is not in the group
                under_way.wait()
            return x

        return arrived


def _tag(stage: int, micro_batch: int) -> int:
    """gloo tells messages apart by it; NCCL takes them in the order of sending, which is that of receiving
    too."""
    return 1_000 * micro_batch + stage


def open_wire(
    shape: Sequence[int] | Sequence[Sequence[int]],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    where: Callable[[int], int] | None = None,
) -> StageLinks:
    """Make the two groups; every rank must call it. ``where`` is ``stage % world_size`` unless given.

    shape: of a micro-batch between two stages; or a list of shapes, one for every cut from the first on.
    """
    ranks = dist.get_world_size()
    rank_of = where or (lambda stage: stage % ranks)
    one = all(isinstance(number, int) for number in shape)
    shapes: Any = (tuple(shape),) if one else tuple(map(tuple, shape))  # type: ignore[arg-type]
    return StageLinks(shapes, dtype, torch.device(device), rank_of, dist.new_group(), dist.new_group())


@dataclass
class Step:
    """What a rank did in one step: losses (on the last stage), its events in order, and what it kept at most.

    began: when it began, in seconds of `time.perf_counter` (on Linux all processes share that clock).
    events: `predict.pipeline.simulate.Event`, seconds from the start of the step; an event is computing
        alone, without waiting, receiving or sending.
    most_kept: the most micro-batches whose activations were alive at once, over this rank's stages.
    """

    began: float = field(default_factory=time.perf_counter)
    losses: list[Tensor] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    most_kept: int = 0


class _Stages:
    """The stages of this rank during one step, and what they keep."""

    def __init__(
        self, stages: Mapping[int, nn.Module], num_stages: int, wire: StageLinks, loss: Loss
    ) -> None:
        self.stages, self.last, self.wire, self.loss = stages, num_stages - 1, wire, loss
        self.kept: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        self.to_next: dict[tuple[int, int], Tensor] = {}  # between two stages of the same rank
        self.to_previous: dict[tuple[int, int], Tensor] = {}
        self.asked: dict[Action, Callable[[], Tensor]] = {}
        self.on_the_way: list[tuple[Any, Tensor]] = []  # a tensor must live until it has been sent
        self.computed = 0.0  # when the last action had its result, and began to hand it on

    def forward(self, stage: int, micro: int, inputs: Tensor, target: Tensor | None) -> None:
        """Run the stage and hand on."""
        x = None if stage == 0 else inputs.requires_grad_()
        y = self.stages[stage](inputs if x is None else x)
        if stage == self.last:
            assert target is not None
            y = self.loss(y, target)
        self.kept[stage, micro] = (x, y)
        self.computed = _now(self.wire.device)
        if stage != self.last:
            self.hand(y.detach(), stage + 1, micro, self.to_next, upward=False)

    def backward(self, stage: int, micro: int, gradient: Tensor | None) -> None:
        """From the kept output to the input's gradient; the weights' gradients add up on the way."""
        x, y = self.kept.pop((stage, micro))
        y.backward(gradient)
        self.computed = _now(self.wire.device)
        if x is not None:
            assert x.grad is not None
            self.hand(x.grad, stage - 1, micro, self.to_previous, upward=True)

    def hand(
        self, x: Tensor, to: int, micro: int, shelf: dict[tuple[int, int], Tensor], *, upward: bool
    ) -> None:
        """To another rank, or to the shelf where the stage lives here."""
        if to in self.stages:
            shelf[to, micro] = x
        else:
            self.on_the_way.append((self.wire.send(x, to, micro, upward=upward), x))

    def ask(self, action: Action) -> None:
        """Begin to receive what an action needs from another rank."""
        other = _neighbour(action)
        if 0 <= other <= self.last and other not in self.stages:
            upward = action.kind == "B"
            self.asked[action] = self.wire.ask(other, action.stage, action.micro_batch, upward=upward)

    def take(self, action: Action) -> Tensor | None:
        """What an action needs from a neighbour; None where it needs nothing."""
        if not 0 <= (other := _neighbour(action)) <= self.last:
            return None
        if other in self.stages:
            shelf = self.to_previous if action.kind == "B" else self.to_next
            return shelf.pop((action.stage, action.micro_batch))
        if action not in self.asked:
            self.ask(action)
        return self.asked.pop(action)()


def _now(device: torch.device) -> float:
    """Seconds of the clock when this rank's own work is done. On a GPU messages have streams of their own,
    and are not waited for: one that is still to come would hold the clock for ever."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter()


def _neighbour(action: Action) -> int:
    """The stage that an action needs something from; -1 and one past the last are nobody."""
    return action.stage + (1 if action.kind == "B" else -1)


def run_order(
    order: Sequence[Any],
    stages: Mapping[int, nn.Module],
    num_stages: int,
    batch: tuple[Sequence[Tensor], Sequence[Tensor]],
    loss: Loss,
    wire: StageLinks,
) -> Step:
    """One step of this rank: do what the order says, one action after the other.

    Args:
        order: this rank's actions, as `predict.pipeline.pipeline_orders` gives them.
        stages: this rank's stages by number.
        num_stages: of the whole model.
        batch: micro-batches of inputs (used by the first stage) and of targets (by the last).
        loss: ``loss(outputs, targets)``, a scalar for one micro-batch. Gradients are those of the mean over
            them.
        wire: from `open_wire`, on all ranks.

    Gradients are added to the stages' parameters. Raises ValueError for an order with other kinds than F and
    B.
    """
    inputs, targets = batch
    unknown = sorted({str(action) for action in order if getattr(action, "kind", "") not in ("F", "B")})
    if unknown:
        raise ValueError(
            f"run_order runs F and B, and this order has {unknown[0]}: schedules that take backward apart or "
            "run two micro-batches as one, are torch's (parallel.pipeline_torch)"
        )
    here = _Stages(stages, num_stages, wire, lambda y, target: loss(y, target) / len(targets))
    step = Step()
    for action, following in zip_longest(order, order[1:]):
        arrived, micro = here.take(action), action.micro_batch
        if following is not None and wire.device.type == "cpu":
            here.ask(following)
        start = _now(wire.device)
        if action.kind == "F":
            here.forward(action.stage, micro, inputs[micro] if arrived is None else arrived, targets[micro])
            step.most_kept = max(step.most_kept, len(here.kept))
            if action.stage == here.last:
                step.losses.append(here.kept[action.stage, micro][1].detach() * len(targets))
        else:
            here.backward(action.stage, micro, arrived)
        step.events.append(Event(dist.get_rank(), action, start - step.began, here.computed - step.began))
    for sent, _ in here.on_the_way:
        sent.wait()
    return step


def run_schedule(
    schedule: str,
    stages: Mapping[int, nn.Module],
    batch: tuple[Sequence[Tensor], Sequence[Tensor]],
    loss: Loss,
    wire: StageLinks,
) -> Step:
    """`run_order` with a schedule's name: "naive", "gpipe", "1f1b", and with several stages a rank
    "interleaved" and "breadth-first". The stages lie round-robin, stage s on rank s % world_size.

    batch: micro-batches of inputs and of targets, each (micro_batch, ...).

    Raises ValueError for another name, or micro-batches that the schedule cannot take.
    """
    if schedule not in RUN_BY_HAND:
        raise ValueError(
            f"run by hand: {', '.join(RUN_BY_HAND)}; {schedule!r} is not (see parallel.pipeline_torch)"
        )
    ranks = dist.get_world_size()
    orders = pipeline_orders(schedule, ranks, len(batch[1]), len(stages))
    return run_order(orders[dist.get_rank()], stages, ranks * len(stages), batch, loss, wire)
