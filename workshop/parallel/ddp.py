"""Data parallelism by hand: how do N copies stay one model?  (Li et al. 2020, arXiv 2006.15704)

Each rank has a full copy and its own part of the batch. The copies are one model if two things hold:

* they **begin** alike: one rank's parameters and buffers are broadcast (`workshop.parallel.materialise`);
* they **step** alike: gradients are averaged before the optimizer sees them. The mean of N mean losses over
  equal batches is the mean loss over the joined batch, so N ranks take the step of one process.

Then nothing ever needs to be compared again: same weights, same gradients, same optimizer, same result.

The plain version is two functions, `begin_together` and `average_gradients`. It sends one message for each
parameter, when backward is over. `BucketedDDP` is faster and does the same:

    order      last layer .............................. first layer      (backward brings gradients so)
    buckets    [   0   ][        1        ][        2        ][   3   ]   a message each, 25 MB
    wire              all_reduce 0   all_reduce 1       all_reduce 2 ...  while backward goes on

Gradients are packed into *buckets* in the reverse order of the parameters, so that the first bucket is full
soon after backward has begun. Its all_reduce runs while backward computes the next. Ranks must start their
all_reduces in one order, so bucket k waits for k - 1, whenever it became full.

`wrap_ddp` is PyTorch's DistributedDataParallel, which is this in C++; the hook that carries the gradients is
chosen by name (`workshop.parallel.hooks`). A test proves all of them equal to each other and to one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from workshop.facts.checks import check_choice, check_keys
from workshop.parallel.hooks import HOOKS
from workshop.parallel.materialise import begin_alike

MIB = 2**20
BUCKET_MB, FIRST_BUCKET_MB = 25, 1
"""PyTorch's choice. The first bucket is small, so that the wire has work early."""

Watch = Callable[[str, int, str], None]
"""Told what happens: ("ready", bucket, parameter), ("sent", bucket, ""), ("arrived", bucket, "")."""


def begin_together(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Every rank takes the parameters and buffers of the group's first rank."""
    begin_alike([*model.parameters(), *model.buffers()], group)


def average_gradients(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """After backward, before the step: every gradient becomes the mean over ranks. One message each."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)


def fill_buckets(parameters: Iterable[nn.Parameter], cap_mb: float | None = None) -> list[list[nn.Parameter]]:
    """Parameters in the order given, cut into buckets; one is full when it *reaches* its cap.

    So a bucket may be larger than the cap, by less than one parameter. Parameters of different type or device
    never share a bucket. cap_mb: in MiB; None: `FIRST_BUCKET_MB` for the first, `BUCKET_MB` for the others.
    """
    buckets: list[list[nn.Parameter]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        bucket = open_buckets.setdefault(kind, [])
        bucket.append(parameter)
        limit = cap_mb or (BUCKET_MB if buckets else FIRST_BUCKET_MB)
        if sum(member.nbytes for member in bucket) >= int(limit * MIB):
            buckets.append(open_buckets.pop(kind))
    return buckets + list(open_buckets.values())


class BucketedDDP(nn.Module):
    """DDP by hand: hooks of autograd fill buckets and send each as soon as it is full.

    model: its parameters and buffers are taken from the group's first rank, buffers (running means) before
        every forward; its gradients become means during `backward()`.
    bucket_cap_mb: MiB at which a bucket is full, see `fill_buckets`.
    unused: what to do when backward brings no gradient for a parameter. ``"raise"`` says which;
        ``"zeros"`` sends zeros in its place. A parameter that no rank used keeps its gradient as it was.
    watch: told of every gradient and message, see `Watch`; to draw the overlap.

    Raises:
        ValueError: The model has nothing to train; ``unused`` is unknown.
        RuntimeError: In backward, with ``unused="raise"``: a parameter had no gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        bucket_cap_mb: float | None = None,
        unused: str = "raise",
        group: dist.ProcessGroup | None = None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__()
        check_choice("unused", unused, ("raise", "zeros"))
        names = {p: name for name, p in model.named_parameters() if p.requires_grad}  # a tied one once
        if not names:
            raise ValueError("no parameter of this model has requires_grad=True: there is nothing to average")
        self.module, self.names, self.unused, self.group = model, names, unused, group
        self.buckets = fill_buckets(reversed(list(names)), bucket_cap_mb)
        self._watch = watch
        self._synchronise = True
        self._touched: set[nn.Parameter] = set()  # have a gradient since ranks last spoke, no_sync included
        self._start_over()
        begin_together(model, group)
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda p, n=number: self._ready(n, p))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own; what an interrupted backward left is forgotten."""
        self._start_over()
        if self.training and self._synchronise:
            begin_alike(self.module.buffers(), self.group)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward only adds to this rank's gradients: for all micro-batches but the last."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def _start_over(self) -> None:
        self._missing = [set(bucket) for bucket in self.buckets]
        self._sent: list[tuple[Tensor, Any]] = []  # by bucket: flat gradients, the message that carries them
        self._is_listening = False

    def _ready(self, number: int, parameter: nn.Parameter) -> None:
        """Autograd's hook: this parameter's gradient is complete."""
        self._touched.add(parameter)
        if not self._synchronise:
            return
        if not self._is_listening:  # called once, by autograd itself, when this backward is over
            Variable._execution_engine.queue_callback(self._finish)
            self._is_listening = True
        self._tell("ready", number, self.names[parameter])
        self._missing[number].discard(parameter)
        while len(self._sent) < len(self.buckets) and not self._missing[len(self._sent)]:
            self._send(len(self._sent))

    def _send(self, number: int) -> None:
        flat = torch.cat([_gradient_or_zeros(parameter) for parameter in self.buckets[number]])
        self._tell("sent", number)
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        if self._watch is not None:
            work.get_future().add_done_callback(lambda _: self._tell("arrived", number))
        self._sent.append((flat, work))

    def _tell(self, what: str, number: int, name: str = "") -> None:
        if self._watch is not None:
            self._watch(what, number, name)

    def _finish(self) -> None:
        """Backward is over: send what is left, wait for all, put the means into the gradients."""
        unused = [p for missing in self._missing for p in missing if p not in self._touched]
        if unused and self.unused == "raise":
            raise RuntimeError(self._who_is_unused(unused))
        for number in range(len(self._sent), len(self.buckets)):
            self._send(number)
        used_somewhere = self._used_somewhere(set(unused)) if self.unused == "zeros" else set(self.names)
        for bucket, (flat, work) in zip(self.buckets, self._sent, strict=True):
            work.wait()
            flat /= dist.get_world_size(self.group)
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if parameter in used_somewhere:
                    parameter.grad = mean.view_as(parameter)
        self._touched.clear()
        self._start_over()

    def _used_somewhere(self, unused_here: set[nn.Parameter]) -> set[nn.Parameter]:
        """Parameters that some rank used: a word of one bit for each, combined over ranks."""
        device = next(iter(self.names)).device
        used = torch.tensor([p not in unused_here for p in self.names], dtype=torch.uint8, device=device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.group)
        return {parameter for parameter, bit in zip(self.names, used.tolist(), strict=True) if bit}

    def _who_is_unused(self, unused: list[nn.Parameter]) -> str:
        listed = sorted(self.names[parameter] for parameter in unused)
        shown = ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
        return (
            f"rank {dist.get_rank(self.group)}: backward brought no gradient for {shown}. The loss does not "
            "depend on them, so their bucket is never full and other ranks would wait for it. Leave them out "
            "of the model, set requires_grad=False, or pass unused='zeros' "
            "(find_unused_parameters=True in PyTorch)"
        )


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient.detach().flatten()


def wrap_ddp(
    model: nn.Module,
    *,
    bucket_cap_mb: float | None = None,
    hook: str = "none",
    unused: str = "raise",
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> DistributedDataParallel:
    """The model in PyTorch's DistributedDataParallel; gradients live in the buckets (no second copy).

    bucket_cap_mb: MiB at which a bucket is sent; None: 25, and 1 for the first (PyTorch's defaults).
    hook: a name of `workshop.parallel.hooks.HOOKS`: none, fp16, bf16, powersgd, sign ...
    unused: ``"raise"`` or ``"zeros"`` for parameters without a gradient, as in `BucketedDDP`.
    options: of the hook: ``rank`` and ``start`` (PowerSGD), ``start`` and ``error_feedback`` (sign).

    Raises:
        ValueError: An unknown hook, or an option that it does not take; the known ones are listed.
    """
    check_choice("hook", hook, HOOKS)
    check_choice("unused", unused, ("raise", "zeros"))
    chosen = HOOKS[hook]
    check_keys(f"the options of wrap_ddp(hook={hook!r})", options, chosen.options if chosen else ())
    wrapped = DistributedDataParallel(
        model,
        process_group=group,
        bucket_cap_mb=bucket_cap_mb,  # takes fractions of a MiB too
        find_unused_parameters=unused == "zeros",
        gradient_as_bucket_view=True,
    )
    if chosen:
        wrapped.register_comm_hook(chosen.make_state(group, **options), chosen.hook)
    return wrapped


def bucket_bytes(wrapped: DistributedDataParallel) -> list[int]:
    """Bytes of each bucket in the order in which they are sent.

    In its first step PyTorch sends one bucket with everything; then it knows the order of gradients.
    """
    logged = wrapped._get_ddp_logging_data()
    text = str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"])
    return [int(size) for size in text.split(",")]


def difference_between_ranks(model: nn.Module, group: dist.ProcessGroup | None = None) -> dict[str, float]:
    """For each parameter and buffer the largest difference between ranks: 0 where alike, inf where NaN."""
    differences = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        largest = tensor.detach().double().clone()
        smallest = largest.neg()
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        dist.all_reduce(smallest, dist.ReduceOp.MAX, group=group)
        apart = (largest + smallest).nan_to_num(nan=float("inf"))
        differences[name] = float(apart.max()) if tensor.numel() else 0.0
    return differences


def check_alike(model: nn.Module, tolerance: float = 0.0, group: dist.ProcessGroup | None = None) -> None:
    """Are the copies still one model? Costs two all_reduces of all weights: for tests and for doubts.

    Raises RuntimeError with the tensor that differs most, where one differs by more than ``tolerance``.
    """
    differences = difference_between_ranks(model, group)
    worst = max(differences, key=lambda name: differences[name])
    if not differences[worst] <= tolerance:
        apart = sum(not value <= tolerance for value in differences.values())
        raise RuntimeError(
            f"the ranks hold different models: {apart} of {len(differences)} tensors differ, {worst} by up "
            f"to {differences[worst]:.3g}. Did they begin alike (broadcast) and average every gradient?"
        )
