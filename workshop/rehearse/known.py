"""Values that are known although tensors are fake.

A fake tensor has a shape and no bytes. But programs steer by small tensors of numbers: batch offsets drawn
at random, a grid of ranks, the keep rates of a drop path, a table of token ids. Where such a tensor comes
from a factory (`tensor`, `arange`, `randint` ...) or from numpy, its real values are kept beside it, and
every operator whose inputs are all known is computed on them too. So `item()`, `tolist()`, `nonzero()` and
a mask give what they would give in the real run.

The values hang on the *storage*: a known storage has a real one of the same size, and a tensor is known
through whatever view it looks at it. Writing something unknown into a storage makes all of it unknown.

Floats drawn at random stay unknown unless they are one single draw (`torch.rand(1) < rate`): noise should
not steer a rehearsal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

_MOST_INTEGERS = 2**20
_LONGEST_LIST = 2**22  # integers in one dimension: the order of a data set
_MOST_FLOATS = 2**16
_MOST_NEW_FLOATS = 2**12
_OF_A_SHAPE = frozenset(
    "zeros_like ones_like full_like randint_like rand_like randn_like new_zeros new_ones new_full".split()
)
"""Operators that look at a tensor's shape and dtype only."""
_OVERWRITING = frozenset("copy_ fill_ zero_ random_ uniform_ normal_ bernoulli_".split())
"""Operators that look at nothing of what they write over."""
_SHARING = frozenset(
    "_unsafe_view lift_fresh detach_ squeeze_ unsqueeze_ t_ transpose_ as_strided_ set_ resize_".split()
)
"""Operators that share or keep a storage though their schema does not say it of a view."""


class _Kind(NamedTuple):
    """What an operator does to values, read off its schema once."""

    view: bool
    computable: bool
    factory: bool
    of_a_shape: bool
    random: bool
    overwrites: bool
    written: tuple[int | str, ...]


class KnownValues:
    """Keeps what is known up to date, operator by operator."""

    def __init__(self) -> None:
        self._kinds: dict[Any, _Kind] = {}

    def learn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operator was executed on fake tensors: compute it on known values, or forget what it wrote."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if kind.view:
            if args and type(args[0]) is torch.Tensor:
                _share(args[0], out)
            return
        if kind.factory or kind.of_a_shape:
            _make(kind, func, args, kwargs, out)
            return
        if kind.overwrites:
            _begin_anew(kind, args, kwargs)
        tensors = list(tensors_in((args, kwargs)))
        if not any(map(is_known, tensors)):
            return
        if kind.computable and all(map(is_known, tensors)) and _may_be_known(kind, out):
            values = _compute(func, args, kwargs, None)
            if values is not None:
                if not kind.written:
                    _assign_all(out, values)
                return
        for tensor in tensors_in([args[w] if isinstance(w, int) else kwargs.get(w) for w in kind.written]):
            if is_known(tensor):
                forget(tensor)

    def evaluate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The real result of an operator whose tensors are all known, else None."""
        if func.namespace != "aten" or not all(is_known(tensor) for tensor in tensors_in((args, kwargs))):
            return None
        return _compute(func, args, kwargs, None)


def _make(kind: _Kind, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """A factory was called: if what it made is small, make it for real too."""
    if isinstance(out, torch.Tensor) and _is_small(out, new=True) and _may_draw(kind, out):
        first = (torch.Size(out.shape), args[0].dtype) if kind.of_a_shape else None
        assign(out, _compute(func, args, kwargs, first))


def _begin_anew(kind: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A small unknown tensor is about to be written over with something known: give it room for values."""
    target = args[0]
    if is_known(target) or not (_is_whole(target) and _is_small(target, new=True)):
        return
    if all(map(is_known, tensors_in((args[1:], kwargs)))) and _may_draw(kind, target):
        assign(target, _empty_like(target))


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the values behind a tensor are there to be read."""
    if not isinstance(tensor, FakeTensor):
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        return plain and not getattr(tensor.untyped_storage(), "_overwritten", False)
    return getattr(tensor.untyped_storage(), "_values", None) is not None


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A real tensor with the values of a fake one, sharing memory with all its views; None if unknown."""
    if not isinstance(tensor, FakeTensor):
        return tensor if is_known(tensor) else None
    storage = tensor.untyped_storage()
    values = getattr(storage, "_values", None)
    if values is None or values.nbytes() < storage.nbytes():
        return None
    with unset_fake_temporarily(), _disable_current_modes():
        bare = torch.empty(0, dtype=tensor.dtype)
        return bare.set_(values, tensor.storage_offset(), tensor.shape, tensor.stride())


def assign(tensor: torch.Tensor, values: torch.Tensor | None) -> None:
    """From now on these are the values behind a fake tensor that fills its storage; None: unknown."""
    if not isinstance(tensor, FakeTensor) or not _is_small(tensor):
        return
    storage = tensor.untyped_storage()
    if values is None:
        forget(tensor)
        return
    with unset_fake_temporarily(), _disable_current_modes():
        if (
            values.stride() != tensor.stride()
            or values.storage_offset() != tensor.storage_offset()
            or values.dtype != tensor.dtype
            or values.untyped_storage().nbytes() < storage.nbytes()
        ):
            bytes_ = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            real = torch.empty(0, dtype=tensor.dtype)
            real.set_(bytes_, tensor.storage_offset(), tensor.shape, tensor.stride())
            values = real.copy_(values.reshape(tensor.shape))
    storage._values = values.untyped_storage()  # type: ignore[attr-defined]


def forget(tensor: torch.Tensor) -> None:
    """Something unknown was written into a tensor's storage."""
    storage = tensor.untyped_storage()
    if isinstance(tensor, FakeTensor):
        storage._values = None  # type: ignore[attr-defined]
    else:
        storage._overwritten = True  # type: ignore[attr-defined]


def copy_values(source: Any, target: Any) -> None:
    """The target storage gets values of its own: those of the source, if they are known."""
    values = getattr(source, "_values", None)
    if values is not None:
        with unset_fake_temporarily(), _disable_current_modes():
            target._values = values.clone()


def multiply(tensor: torch.Tensor, factor: int) -> None:
    """The values behind a tensor, if known, become `factor` times as large."""
    values = values_of(tensor)
    if values is not None:
        with unset_fake_temporarily(), _disable_current_modes():
            values.mul_(factor)


def _share(real: torch.Tensor, out: Any) -> None:
    """A real tensor (of numpy, or written as a literal) has entered the fake world: its bytes are known.

    Bytes of numpy's, or of a file mapped into memory, are none that torch allocated.
    """
    if real.device.type != "cpu":
        return
    inner = real.untyped_storage()
    for leaf in tensors_in(out):
        if isinstance(leaf, FakeTensor) and not is_known(leaf):
            storage: Any = leaf.untyped_storage()
            storage._values = inner
            storage._elsewhere = not inner.resizable()


def _kind_of(func: Any) -> _Kind:
    schema = func._schema
    name = schema.name.partition("::")[2]
    written = tuple(
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    shares = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    aten = func.namespace == "aten"
    return _Kind(
        view=aten and (shares or name in _SHARING),
        computable=aten,
        factory=aten and not takes_tensors and not name.startswith("empty"),
        of_a_shape=aten and name in _OF_A_SHAPE,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        overwrites=aten and name in _OVERWRITING,
        written=written,
    )


def tensors_in(nested: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    for item in nested if isinstance(nested, (tuple, list)) else (nested,):
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors_in(item)
        elif isinstance(item, dict):
            yield from tensors_in(list(item.values()))


def _is_small(tensor: torch.Tensor, new: bool = False) -> bool:
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        return False
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.numel() <= (_MOST_NEW_FLOATS if new else _MOST_FLOATS)
    return tensor.numel() <= (_LONGEST_LIST if tensor.dim() < 2 else _MOST_INTEGERS)


def _may_be_known(kind: _Kind, out: Any) -> bool:
    return all(_is_small(leaf) and _may_draw(kind, leaf) for leaf in tensors_in(out))


def _may_draw(kind: _Kind, out: torch.Tensor) -> bool:
    floats = out.dtype.is_floating_point or out.dtype.is_complex
    return not kind.random or not floats or out.numel() == 1


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily(), _disable_current_modes():
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def _compute(func: Any, args: Any, kwargs: Any, first: tuple[torch.Size, torch.dtype] | None) -> Any:
    """The operator on real tensors; None if the real kernel cannot do it (the fake one could)."""
    if any(values_of(tensor) is None for tensor in tensors_in((args[1:] if first else args, kwargs))):
        return None
    with unset_fake_temporarily(), _disable_current_modes():
        if first:
            args = (torch.empty(first[0], dtype=first[1]), *args[1:])
        args, kwargs = tree_map_only(FakeTensor, values_of, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        kwargs.pop("pin_memory", None)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return None


def _assign_all(out: Any, values: Any) -> None:
    for fake, real in zip(tree_leaves(out), tree_leaves(values), strict=True):
        if isinstance(fake, FakeTensor) and not is_known(fake) and real.shape == fake.shape:
            assign(fake, real)
