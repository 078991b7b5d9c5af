"""Answers to programs that read a value from a tensor that has none.

`loss.item()`, `counts.tolist()`, `if torch.isnan(loss)`: training code reads values for three reasons, and
each has an answer that keeps the program on the path it would take on a good day.

* To print or to check. A float is answered with 1.0, a comparison with True, "is it nan, is it infinite" with
  False.
* To index. A whole number is answered with 0.
* To size a message. In a mixture of experts the router's choices decide how many tokens go where; bytes
  depend on values. Here the router is taken to be *balanced*: a choice among `E` classes falls on each of
  them equally often. Small tensors of counts get *shadows*, real tensors with the balanced numbers, and every
  operation on shadows is really computed, so that sums, running sums, splits and `tolist()` agree with each
  other.

Each kind of answer is noted once in the rehearsal, with the line of code that asked.
"""

from __future__ import annotations

import traceback
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
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
UNKNOWN_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
_LARGEST_SHADOW = 65_536


class Answers:
    """Knows what is assumed about the values of fake tensors.

    Three things may be known of one: its shadow (a real tensor with its values), its mean (for masks: the
    share of
    ones), and its classes (for indices: how many values it ranges over).
    """

    def __init__(self, notes: dict[str, None]) -> None:
        self._notes = notes

    def learn(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Called after every operator that could be executed: carry over what is known of its inputs."""
        packet = func._overloadpacket
        rule = _RULES.get(packet)
        if packet in _EXCHANGES:
            _EXCHANGES[packet](args, kwargs, out)
        elif _has_shadow(args):
            self._compute_shadow(func, args, kwargs, out)
        elif rule is not None:
            rule(args, kwargs, out)

    def answer(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator that needs values, or NotImplemented if there is no honest answer."""
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

    def _scalar(self, tensor: torch.Tensor) -> Any:
        shadow = getattr(tensor, "_shadow", None)
        if shadow is not None:
            with _disable_current_modes():
                return shadow.item()
        kind = "whole number" if not tensor.dtype.is_floating_point else "number"
        value: Any = 1.0 if tensor.dtype.is_floating_point else 0
        if tensor.dtype == torch.bool:
            kind, value = "condition", getattr(tensor, "_mean", 1) != 0
        elif tensor.dtype.is_complex:
            value = complex(1)
        self._note(f"a {kind} was read from a tensor", f"{value} was answered")
        return value

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
        shadow = getattr(mask, "_shadow", None)
        if shadow is not None:
            with _disable_current_modes():
                return int(torch.count_nonzero(shadow))
        mean = getattr(mask, "_mean", None)
        if mean is None:
            raise ValueError(
                "how many elements a mask selects decides the size of what follows, and a rehearsal "
                "cannot see values. It knows the masks that come from choosing among classes (topk, argmax, "
                "one_hot, index == class); for others, give the number explicitly or rehearse with real "
                "tensors (real=True)"
            )
        self._note("a mask selected elements", "a balanced choice was assumed")
        return round(mean * mask.numel())

    def _compute_shadow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(hasattr(leaf, "_shadow") or not isinstance(leaf, FakeTensor) for leaf in leaves):
            return
        with unset_fake_temporarily(), _disable_current_modes():
            real_args, real_kwargs = tree_map_only(FakeTensor, lambda t: t._shadow, (args, kwargs))
            real = func(*real_args, **real_kwargs)
        for fake, value in zip(tree_leaves(out), tree_leaves(real), strict=True):
            if isinstance(fake, torch.Tensor) and value.shape == fake.shape:
                _set_shadow(fake, value)

    def _note(self, what: str, assumption: str) -> None:
        places = [
            f for f in traceback.extract_stack() if f.filename == "<rehearsed cell>" or f.name == "<module>"
        ]
        own = [
            frame
            for frame in places
            if "workshop/rehearse" not in frame.filename and "runpy" not in frame.filename
        ]
        line = f" (line {own[-1].lineno})" if own else ""
        self._notes.setdefault(f"{what}: {assumption}{line}")


def _set_shadow(tensor: torch.Tensor, values: torch.Tensor) -> None:
    if values.numel() <= _LARGEST_SHADOW:
        tensor._shadow = values  # type: ignore[attr-defined]


def _share_evenly(total: int, tensor: torch.Tensor) -> None:
    """The shadow of `tensor`: `total` things over its elements, as evenly as whole numbers allow."""
    if tensor.numel() > _LARGEST_SHADOW:
        return
    with unset_fake_temporarily(), _disable_current_modes():
        counts = torch.full((tensor.numel(),), total // tensor.numel(), dtype=torch.int64)
        counts[: total % tensor.numel()] += 1
        _set_shadow(tensor, counts.reshape(tensor.shape).to(tensor.dtype))


def _has_shadow(args: tuple[Any, ...]) -> bool:
    for arg in args:
        if hasattr(arg, "_shadow") or (type(arg) is list and arg and hasattr(arg[0], "_shadow")):
            return True
    return False


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
    ones = value == 1 if isinstance(value, (int, float)) else getattr(value, "_mean", None) == 1
    if ones:
        out._mean = index.numel() / out.numel()
        classes = getattr(index, "_classes", None)
        if out.dim() == 1 and classes == out.numel():  # counting with scatter_add
            _share_evenly(index.numel(), out)


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


def _exchange(args: Any, kwargs: Any, out: Any) -> None:
    """all_to_all of counts: what balanced ranks send me is what I send them."""
    target, source = args[0], args[1]
    if hasattr(source, "_shadow") and target.shape == source.shape:
        _set_shadow(target, source._shadow)


def _exchange_functional(args: Any, kwargs: Any, out: Any) -> None:
    """The functional all_to_all returns its result."""
    if hasattr(args[0], "_shadow") and out.shape == args[0].shape:
        _set_shadow(out, args[0]._shadow)


_EXCHANGES = {
    torch.ops.c10d.alltoall_base_: _exchange,
    torch.ops._c10d_functional.all_to_all_single: _exchange_functional,
}
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
