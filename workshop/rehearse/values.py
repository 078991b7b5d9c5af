"""Answers to programs that read a value from a tensor that has none.

`loss.item()`, `counts.tolist()`, `if torch.isnan(loss)`: training code reads values for three reasons, and
each has an answer that keeps the program on the path it would take on a good day.

* To steer: offsets, ranks, rates. Such values are known (see `workshop.rehearse.known`) and answered with the
  truth.
* To print or to check. A float is answered with 1.0, a whole number with 0, a comparison with True, "is it
  nan, is it infinite" with False.
* To size a message. In a mixture of experts the router's choices decide how many tokens go where; bytes
  depend on values. Here the router is taken to be *balanced*: a choice among `E` classes falls on each of
  them equally often. The balanced counts are then known, and so are their sums and splits.

Every answer that is not the truth is noted once in the rehearsal, with the line of code that asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from workshop.rehearse.known import KnownValues, assign, forget, is_known, tensors_in, values_of
from workshop.rehearse.program import Program
from workshop.rehearse.refusal import NotRehearsableError

aten = torch.ops.aten
UNKNOWN_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
_MOST_COUNTS = 65_536
_ENDLESS = 10_000


class Answers:
    """Knows what is assumed about the values of fake tensors.

    Besides its values two things may be known of one: its mean (for masks: the share of ones), and its
    classes (for indices: how many values it ranges over).
    """

    def __init__(self, notes: dict[str, None], program: Program) -> None:
        self._notes = notes
        self._program = program
        self._known = KnownValues()
        self._last_question: tuple[int, int] | None = None
        self._repeated = 0

    def learn(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Called after every operator that could be executed: carry over what is known of its inputs."""
        packet = func._overloadpacket
        if func.namespace in ("c10d", "_c10d_functional"):
            self._exchange(packet, args, out)
            return
        self._known.learn(func, args, kwargs, out)
        rule = _RULES.get(packet)
        if rule is not None and not (isinstance(out, torch.Tensor) and is_known(out)):
            rule(args, kwargs, out)

    def answer(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator that needs values, or NotImplemented if there is no honest answer."""
        truth = self._known.evaluate(func, args, kwargs)
        if truth is not None:
            return _into_the_fake_world(truth, args)
        packet = func._overloadpacket
        if packet is aten._local_scalar_dense:
            return self._scalar(args[0])
        if packet in (aten.equal, aten.allclose, aten.is_nonzero):
            self._note("two tensors were compared", "they are taken to be equal")
            return True
        if packet is aten.bincount:
            return self._bincount(*args, **kwargs)
        if packet is aten.nonzero:
            return self._nonzero(args[0])
        if packet is aten.masked_select:
            return args[0].new_empty(self._count(args[1]))
        if packet is aten.index:
            return self._index(*args)
        return NotImplemented

    def read(self, tensor: torch.Tensor, method: str) -> Any:
        """`tensor.numpy()` or `tensor.tolist()`: of its values, or of ones and zeros with a note."""
        values = values_of(tensor)
        good = tensor.dtype.is_floating_point or tensor.dtype is torch.bool
        if values is None:
            self._note(f"values were read by {method}()", f"{'ones' if good else 'zeros'} were answered")
        with unset_fake_temporarily(), _disable_current_modes():
            if values is None:
                values = torch.full(tensor.shape, int(good), dtype=tensor.dtype)
            return getattr(values, method)()

    def _scalar(self, tensor: torch.Tensor) -> Any:
        kind = "whole number" if not tensor.dtype.is_floating_point else "number"
        value: Any = 1.0 if tensor.dtype.is_floating_point else 0
        if tensor.dtype == torch.bool:
            kind, value = "condition", getattr(tensor, "_mean", 1) != 0
            self._refuse_an_endless_loop()
        elif tensor.dtype.is_complex:
            value = complex(1)
        self._note(f"a {kind} was read from a tensor", f"{value} was answered")
        return value

    def _refuse_an_endless_loop(self) -> None:
        """`while mask.any()`: the same place of the same call asks, and is told the same, for ever."""
        frame = self._program.frame(sys._getframe(1))
        question = (id(frame), frame.f_lasti) if frame else None
        self._repeated = self._repeated + 1 if question == self._last_question else 0
        self._last_question = question
        if self._repeated > _ENDLESS:
            raise NotRehearsableError(
                f"a condition on a tensor's values was asked {_ENDLESS:,} times in a row from this line, and "
                "a rehearsal, which cannot see values, gives the same answer every time. Draw without a "
                "loop, or bound it"
            )

    def _bincount(self, values: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
        if not minlength:
            raise ValueError(
                "a rehearsal needs torch.bincount(..., minlength=number_of_classes): it cannot see values"
            )
        counts = values.new_empty(minlength, dtype=torch.int64 if weights is None else weights.dtype)
        self._note("values were counted (bincount)", "a balanced router was assumed")
        _share_evenly(values.numel(), counts)
        return counts

    def _nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.new_empty((self._count(mask), mask.dim()), dtype=torch.int64)

    def _index(self, tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
        plain: list[torch.Tensor | None] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                plain += self._nonzero(index).unbind(1)
            else:
                plain.append(index)
        return aten.index.Tensor(tensor, plain)

    def _count(self, mask: torch.Tensor) -> int:
        values = values_of(mask)
        if values is not None:
            with unset_fake_temporarily(), _disable_current_modes():
                return int(torch.count_nonzero(values))
        mean = getattr(mask, "_mean", None)
        if mean is None:
            raise ValueError(
                "how many elements a mask selects decides the size of what follows, and a rehearsal "
                "cannot see values. It knows the masks that come from choosing among classes (topk, argmax, "
                "one_hot, index == class) and those of numbers the program wrote; for others, give the "
                "number explicitly or rehearse with real tensors (real=True)"
            )
        self._note("a mask selected elements", "a balanced choice was assumed")
        return round(mean * mask.numel())

    def _exchange(self, packet: Any, args: tuple[Any, ...], out: Any) -> None:
        """A collective on known values: other ranks say what this rank says."""
        if not any(map(is_known, tensors_in(args))):
            return
        exchange = _EXCHANGES.get(packet)
        if exchange is not None:
            exchange(args, out)
            if exchange in _TOLD_OF:
                self._note("known values were exchanged", "other ranks' are taken to be this rank's")
            return
        for tensor in tensors_in(args):
            forget(tensor)

    def _note(self, what: str, assumption: str) -> None:
        self._notes.setdefault(f"{what}: {assumption}{self._program.here()}")


def _into_the_fake_world(truth: Any, args: tuple[Any, ...]) -> Any:
    """Real results as fake tensors that know them."""
    fakes = [leaf for leaf in tensors_in(args) if isinstance(leaf, FakeTensor)]

    def enter(real: torch.Tensor) -> torch.Tensor:
        fake = fakes[0].new_empty(real.shape, dtype=real.dtype)
        assign(fake, real)
        return fake

    return tree_map_only(torch.Tensor, enter, truth) if fakes else truth


def _share_evenly(total: int, tensor: torch.Tensor) -> None:
    """Make `tensor` known: `total` things over its elements, as evenly as whole numbers allow."""
    if tensor.numel() > _MOST_COUNTS:
        return
    with unset_fake_temporarily(), _disable_current_modes():
        counts = torch.full((tensor.numel(),), total // tensor.numel(), dtype=torch.int64)
        counts[: total % tensor.numel()] += 1
        counts = counts.reshape(tensor.shape).to(tensor.dtype)
    assign(tensor, counts)


# What operators do to what is known.


def _histc(args: Any, kwargs: Any, out: Any) -> None:
    _share_evenly(args[0].numel(), out)


def _choice(args: Any, kwargs: Any, out: Any) -> None:
    """topk and argmax over a dimension choose among its classes."""
    dim = kwargs.get("dim", args[2] if len(args) > 2 and isinstance(args[1], int) else -1)
    indices = out[1] if isinstance(out, (tuple, list)) else out
    indices._classes = args[0].shape[dim]


def _argmax(args: Any, kwargs: Any, out: Any) -> None:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    out._classes = args[0].numel() if dim is None else args[0].shape[dim]


def _equal_to(args: Any, kwargs: Any, out: Any) -> None:
    classes = getattr(args[0], "_classes", None)
    if classes:
        out._mean = 1 / classes


def _scatter(args: Any, kwargs: Any, out: Any) -> None:
    """zeros.scatter(dim, index, 1), which is also one_hot: the share of ones."""
    _, _dim, index, value = args[:4]
    if _all_ones(value):
        out._mean = index.numel() / out.numel()
        classes = getattr(index, "_classes", None)
        if out.dim() == 1 and classes == out.numel():  # counting with scatter_add
            _share_evenly(index.numel(), out)


def _all_ones(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return bool(value == 1)
    values = values_of(value)
    if values is None:
        return getattr(value, "_mean", None) == 1
    with unset_fake_temporarily(), _disable_current_modes():
        return bool((values == 1).all())


def _sum(args: Any, kwargs: Any, out: Any) -> None:
    """Summing a mask over tokens counts the choices of every class."""
    mean = getattr(args[0], "_mean", None)
    if mean is not None and out.numel():
        _share_evenly(round(mean * args[0].numel()), out)


def _nothing_bad(args: Any, kwargs: Any, out: Any) -> None:
    out._mean = 0


def _ones(args: Any, kwargs: Any, out: Any) -> None:
    out._mean = 1


def _keep(args: Any, kwargs: Any, out: Any) -> None:
    """Views, copies and casts keep what is known."""
    for name in ("_mean", "_classes"):
        if hasattr(args[0], name) and isinstance(out, torch.Tensor):
            setattr(out, name, getattr(args[0], name))


# What a collective does to what is known. Other ranks are taken to be like this one.


def _trade(args: Any, out: Any) -> None:
    """all_to_all of counts: what balanced ranks send me is what I send them."""
    if args[0].shape == args[1].shape:
        assign(args[0], values_of(args[1]))
    else:
        forget(args[0])


def _trade_functional(args: Any, out: Any) -> None:
    """The functional all_to_all returns its result."""
    if out.shape == args[0].shape:
        assign(out, values_of(args[0]))


def _reduce_functional(args: Any, out: Any) -> None:
    times = torch.distributed.distributed_c10d._resolve_process_group(args[2]).size()
    values = values_of(args[0])
    if values is not None:
        with unset_fake_temporarily(), _disable_current_modes():
            values = values * (times if args[1] == "sum" else 1)
        assign(out, values)


def _gather(args: Any, out: Any) -> None:
    """allgather_: every rank's tensor is this rank's."""
    for targets, source in zip(args[0], args[1], strict=True):
        for target in targets:
            assign(target, values_of(source))


def _gather_flat(args: Any, out: Any) -> None:
    """_allgather_base_ writes all ranks' tensors into one."""
    _repeat(args[0], args[1])


def _gather_functional(args: Any, out: Any) -> None:
    _repeat(out, args[0])


def _repeat(target: torch.Tensor, source: torch.Tensor) -> None:
    values = values_of(source)
    if values is None or not source.numel():
        return
    with unset_fake_temporarily(), _disable_current_modes():
        values = values.reshape(-1).repeat(target.numel() // source.numel()).reshape(target.shape)
    assign(target, values)


def _same(args: Any, out: Any) -> None:
    """broadcast_: what this rank has is what the source had. allreduce_: `workshop.rehearse.world` knows
    whether it is a sum."""


_EXCHANGES: dict[Any, Callable[[Any, Any], None]] = {
    torch.ops.c10d.alltoall_base_: _trade,
    torch.ops._c10d_functional.all_to_all_single: _trade_functional,
    torch.ops.c10d.allreduce_: _same,
    torch.ops._c10d_functional.all_reduce: _reduce_functional,
    torch.ops.c10d.allgather_: _gather,
    torch.ops.c10d._allgather_base_: _gather_flat,
    torch.ops._c10d_functional.all_gather_into_tensor: _gather_functional,
    torch.ops.c10d.broadcast_: _same,
    torch.ops._c10d_functional.wait_tensor: _same,
}
_TOLD_OF = (_reduce_functional, _gather, _gather_flat, _gather_functional)
_Rule = Callable[[Any, Any, Any], None]
_RULES: dict[Any, _Rule] = {
    aten.histc: _histc,
    aten.topk: _choice,
    aten.argmax: _argmax,
    aten.scatter: _scatter,
    aten.scatter_: _scatter,
    aten.scatter_add: _scatter,
    aten.scatter_add_: _scatter,
    aten.isnan: _nothing_bad,
    aten.isinf: _nothing_bad,
    aten.ones: _ones,
    aten.ones_like: _ones,
    aten.eq: _equal_to,
    aten.sum: _sum,
}
_KEEPING = (
    "_to_copy clone detach view _unsafe_view alias unsqueeze squeeze reshape permute transpose "
    "t expand select slice any"
)
_RULES |= {getattr(aten, name): _keep for name in _KEEPING.split()}
