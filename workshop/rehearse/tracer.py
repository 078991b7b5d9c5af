"""One pass over everything a rank does: bytes, collectives, FLOPs and a roofline, in one dispatch mode.

A `TorchDispatchMode` is called for every operator below autograd and below DTensor: what it sees are this
rank's own tensors. Four things happen per operator: it runs (on fake tensors, so nothing is computed);
storages it made are written into the ledger, with a weak reference that writes again when they die; if it is
a collective it is recorded; if it is a product its FLOPs are added.

Four places where the fake world differs from the real one, each found by comparing with measured bytes:

* `wait_tensor` would invent a second tensor under fake tensors; really it returns the one it was given.
* FSDP frees and refills its buffers through `storage.resize_`, which is no operator.
* DTensor works out global shapes by running operators on global fake tensors. Those are thoughts, not memory.
* Some losses compute every element into their result and then shrink it to the mean. What they return is a
  number, but its storage stays as large as the input; a fake one has 4 bytes.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workshop.measure import comms, flops
from workshop.measure.ledger import Ledger
from workshop.measure.parts import PartFinder, storages_of
from workshop.measure.swap import swap
from workshop.rehearse.fakemode import told_to_cpp
from workshop.rehearse.gloo import count_copy, extra_copy
from workshop.rehearse.program import Program
from workshop.rehearse.propagation import ask_each_call_once
from workshop.rehearse.request import Roofline
from workshop.rehearse.roofline import RooflineClock
from workshop.rehearse.values import UNKNOWN_VALUE, Answers

_DEVICE = torch.ops.prim.device.default
# Found by asking every loss of torch.nn.functional for the bytes behind its mean; a test asks them again.
_ROOMY_MEANS = (
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.soft_margin_loss.default,
    torch.ops.aten.binary_cross_entropy.default,
)


class StopRehearsal(BaseException):
    """Enough steps were seen. Not an `Exception`, so that no program catches it by accident."""


@dataclass(slots=True)
class _Entry:
    """A storage in a ledger; the weak reference writes when it dies."""

    ledger: Ledger
    owner: int
    num_bytes: int
    alive: Any


class Tracer(TorchDispatchMode):
    """Sees every operator of this rank.

    Args:
        answers: what to say when a program reads a value.
        program: whose lines are named.
        steps: raise StopRehearsal when so many optimizer steps have ended.
        gloo: also count the copies that gloo makes (see `workshop.rehearse.gloo`).
        roofline: the device to time operators on.
    """

    def __init__(
        self,
        answers: Answers,
        program: Program,
        steps: int = 2,
        gloo: bool = False,
        roofline: Roofline | None = None,
    ) -> None:
        super().__init__()
        self._answers = answers
        self._program = program
        self._empty_products: dict[str, None] = {}
        self.host_ledger, self.device_ledger = Ledger(), Ledger()
        self.place: Callable[[Any, Any, dict[str, Any]], dict[str, Any]] | None = None
        self.parts = PartFinder(self.label)
        self.operators = 0
        self.finished_steps = 0
        self.calls: list[comms.Collective] = []
        self.flops = 0
        self.last_calls: list[comms.Collective] = []
        self.last_flops = 0
        self.last_roofline: dict[str, float] | None = None
        self._clock = RooflineClock(roofline) if roofline is not None else None
        self._steps = steps
        self._gloo = gloo
        self._owners: dict[int, _Entry] = {}  # by storage address
        self._thinking = 0
        self._elsewhere = False
        self._fake_mode: Any = None
        self._undo: list[Callable[[], None]] = []

    # What the step hooks tell (workshop.measure.phases.StepListener).

    def phase(self, name: str) -> None:
        """The step enters a phase."""
        self.host_ledger.phase(name)
        self.device_ledger.phase(name)

    def before_optimizer(self, optimizer: Any) -> None:
        """Gradients are complete."""
        self.parts.before_optimizer(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """The optimizer's state exists."""
        self.parts.after_optimizer(optimizer)

    def end_step(self) -> None:
        """A step is over: keep its counts, and stop if it was the last one asked for."""
        self.host_ledger.end_step()
        self.device_ledger.end_step()
        self.last_calls, self.calls = self.calls, []
        self.last_flops, self.flops = self.flops, 0
        if self._clock is not None:
            self.last_roofline = self._clock.take()
        self.finished_steps += 1
        if self.seen_enough:
            raise StopRehearsal

    @property
    def seen_enough(self) -> bool:
        """Whether the steps asked for are over. A framework may raise something else on the way out."""
        return self.finished_steps >= self._steps

    def alarms(self) -> list[str]:
        """Signs that what was rehearsed is not the training that was meant."""
        alarms = [f"nothing was multiplied: one side is empty, in {line}" for line in self._empty_products]
        if self.finished_steps and not self.last_flops and not alarms:
            alarms.append(
                "the last step did no product at all (0 FLOPs): whatever the program computed, it was no "
                "forward and backward pass of a layer"
            )
        return alarms[:3]

    # The ledger.

    @property
    def ledger(self) -> Ledger:
        """Of the memory that is trained in: the device's, if the program has put anything there."""
        return self.device_ledger if len(self.device_ledger) else self.host_ledger

    def label(self, storage: torch.UntypedStorage, part: str) -> None:
        """Say what a storage is for; one never seen before is entered."""
        entry = self._enter(storage)
        if entry is not None:
            entry.ledger.label(entry.owner, part)

    def note(self, tensor: torch.Tensor, part: str | None = None) -> None:
        """Enter a tensor that no operator made (drawn in C++, or real)."""
        for storage in storages_of(tensor):
            self._enter(storage, part)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is made meanwhile is none of this rank's memory: another process allocates it."""
        before, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = before

    def _enter(
        self, storage: torch.UntypedStorage, part: str | None = None, on_device: bool = False
    ) -> _Entry | None:
        key = storage._cdata
        entry = self._owners.get(key)
        num_bytes = storage.nbytes()
        if entry is None:
            if self._elsewhere:
                storage._elsewhere = True  # type: ignore[attr-defined]
            if not num_bytes or getattr(storage, "_elsewhere", False):
                return None
            ledger = self.device_ledger if on_device else self.host_ledger
            owner = ledger.open(num_bytes, part)
            alive = weakref.ref(storage, self._gone(key))
            entry = self._owners[key] = _Entry(ledger, owner, num_bytes, alive)
        elif num_bytes != entry.num_bytes:
            entry.ledger.change(entry.owner, num_bytes - entry.num_bytes)
            entry.num_bytes = num_bytes
        return entry

    def _gone(self, key: int) -> Callable[[Any], None]:
        def gone(_: Any, owners: dict[int, _Entry] = self._owners) -> None:
            entry = owners.pop(key, None)
            if entry is not None:
                entry.ledger.change(entry.owner, -entry.num_bytes)

        return gone

    # The mode.

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so no operator need pay for the guard against it."""
        return False

    def __enter__(self) -> Tracer:
        resize = torch.UntypedStorage.resize_
        tracer = self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in tracer._owners:
                tracer._enter(storage)
            return result

        self._undo.append(swap(torch.UntypedStorage, "resize_", resize_))
        propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def propagate_quietly(*args: Any, **kwargs: Any) -> Any:
            tracer._thinking += 1
            try:
                return propagate(*args, **kwargs)
            finally:
                tracer._thinking -= 1

        self._undo.append(swap(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate_quietly))
        self._undo.append(ask_each_call_once())
        self._fake_mode = active_fake_mode()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        while self._undo:
            self._undo.pop()()
        super().__exit__(*exc)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # asked more often than anything is computed
            first = args[0]
            return told_to_cpp(first) if isinstance(first, FakeTensor) else func(*args)
        for kind in types:
            if issubclass(kind, DTensor):
                return NotImplemented
        kwargs = (self.place(func, args, kwargs) if self.place else kwargs) if kwargs else {}
        if self._fake_mode is not None and func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        try:
            out = func(*args, **kwargs)
        except UNKNOWN_VALUE:
            out = self._answers.answer(func, args, kwargs)
            if out is NotImplemented:
                raise
        if self._thinking or active_fake_mode() is not self._fake_mode:
            return out
        self.operators += 1
        self._answers.learn(func, args, kwargs, out)
        if func.namespace in comms.NAMESPACES:
            self._communicate(func, args, kwargs, out)
        else:
            self._compute(func, args, kwargs, out)
        return out

    def _compute(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if func in _ROOMY_MEANS and self._fake_mode is not None and not out.dim():
            out.untyped_storage().resize_(args[0].numel() * args[0].element_size())
        self._write_down(out, "communication" if func.namespace == "fsdp" else None)
        work = flops.count(func, args, kwargs, out)
        if work == 0 and flops.is_product(func):
            self._empty_products.setdefault(self._program.quote(self._program.place(sys._getframe())).strip())
        self.flops += work
        if self._clock is not None:
            self._clock.add_operator(func, work, (args, kwargs), out)

    def _communicate(self, func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        self._write_down(out, None)
        call = comms.describe(func, args, kwargs)
        if call is None:
            return
        self.calls.append(call)
        if call.name == "recv":  # buffers a pipeline stage keeps: what arrives in them are activations
            for tensor in args[0]:
                entry = self._enter(tensor.untyped_storage())
                if entry is not None:
                    entry.ledger.label_if_unknown(entry.owner, "activations")
        if self._clock is not None:
            self._clock.add_call(call)
        if self._gloo:
            copy = extra_copy(func, args)
            if copy:
                count_copy(self.ledger, copy)

    def _write_down(self, out: Any, part: str | None) -> None:
        if isinstance(out, torch.Tensor):
            self._note_output(out, part)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self._note_output(leaf, part)

    def _note_output(self, tensor: torch.Tensor, part: str | None) -> None:
        device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
        if device.type == "meta" or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._owners:
            self._enter(storage, part, on_device=device.type != "cpu")
