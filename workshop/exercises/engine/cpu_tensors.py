"""Would an answer run where its tensors are on a GPU? Asked here, on CPU tensors.

`torch.zeros(n)` makes its tensor on the CPU, whatever the function is given. Here everything is on the CPU
and nobody notices; on a GPU the first sum with an argument fails. So while a learner's function runs, each
tensor that it makes without a device is remembered, with what is computed from such tensors only. Everything
else stands for a tensor on the GPU. Where the two meet, torch would refuse.

torch's own rules are followed as far as a function goes: a tensor without dimensions may meet any other, an
index may lie on the CPU, `copy_` and an assignment to a part copy between devices. Not followed: hooks that
run inside backward, and the parameters of a module that the function makes.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from workshop.launch.report import report

MAKES = frozenset(
    "arange asarray as_tensor empty empty_strided eye frombuffer from_numpy full linspace logspace normal "
    "ones rand randint randn randperm scalar_tensor tensor tril_indices triu_indices zeros".split()
)
TAKES_DEVICE_OF_DATA = frozenset(("as_tensor", "asarray", "tensor"))  # where the data are a tensor
BETWEEN_DEVICES = frozenset("copy_ data.__set__ expand_as reshape_as tensor_split to type_as view_as".split())
MOVES = frozenset(("cpu", "to", "type_as"))
NEEDS_CPU = frozenset(("numpy", "__array__"))


def followed(function: Any) -> Any:
    """A learner's function as one that is followed while it runs; anything else as it is."""
    return Followed(function) if inspect.isfunction(function) else function


def on_gpu(functions: Iterable[Any]) -> dict[str, Any]:
    """After the check: ``words`` on the first function that would fail on a GPU, and is one ``here``?"""
    words = (one.words for one in functions if isinstance(one, Followed))
    return {"words": next(filter(None, words), ""), "here": torch.accelerator.is_available()}


def check_followed(check: Callable[..., None], *functions: Any) -> None:
    """On a rank: the check of a learner's functions, followed meanwhile; reports what a GPU would say."""
    each = [followed(function) for function in functions]
    check(*each)
    report(on_gpu=on_gpu(each))


class CpuTensors(TorchFunctionMode):
    """Follows tensors that code in ``file`` makes on the CPU; ``words`` say where the first would fail."""

    def __init__(self, file: str):
        super().__init__()
        self.file = file
        self.words = ""
        self.made_here = True  # the first to fail is a tensor that the code itself made on the CPU
        self.paused = False
        self._lines: Any = WeakTensorKeyDictionary()  # a tensor on the CPU -> the line that made it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call, and see on which device its tensors would be."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = _name(func)
        given = list(_tensors((args, kwargs)))
        if name not in MAKES:
            self.meet(name, args, kwargs)
        result = func(*args, **kwargs)
        line = self._line_of_result(name, given, args, kwargs)
        if name in MOVES and result is args[0] and line != self._lines.get(result):
            result = result.view_as(result)  # here it is the same tensor, between devices another one
        for tensor in _tensors(result):
            if not any(tensor is one for one in given):  # what is changed in place stays where it is
                self._place(tensor, line)
        if name == "data.__set__":  # a module that moves keeps its parameters and changes their data
            self._place(args[0], self._lines.get(args[1]))
        return result

    def returned(self, value: Any) -> None:
        """What the function gives back goes on where the arguments came from."""
        lines = [self._lines[one] for one in _tensors(value) if one.ndim and one in self._lines]
        if lines and not self.words:
            self.words = f"{self._made(lines[0])}, and is returned like that"

    def _place(self, tensor: Any, line: int | None) -> None:
        if line is None:
            self._lines.pop(tensor, None)
        else:
            self._lines[tensor] = line

    def meet(self, name: str, args: Any, kwargs: Any) -> None:
        """Keep what to say, if a function would get tensors of two devices here that torch would refuse."""
        given = list(_tensors((args, kwargs)))
        if self.words or self.paused or not given:
            return
        if name in ("__getitem__", "__setitem__"):  # an index may lie on the CPU, and a value be copied
            given = [] if given[0] not in self._lines else [given[0], *_tensors(args[1])]
        here = [one for one in given if one in self._lines]
        there = [one for one in given if one not in self._lines]
        if name in NEEDS_CPU and there:
            where = f"line {self._line()} makes numpy of a tensor on the GPU"
            self.words = f"{where}. Take it to the CPU with `.cpu()`"
            self.made_here = False
        if name in BETWEEN_DEVICES or not there:
            return
        first = next((one for one in here if one.ndim), None)
        if first is not None:
            made = self._made(self._lines[first])
            self.words = f"{made}, and on line {self._line()} it meets one on the GPU"

    def _line_of_result(self, name: str, given: list[Any], args: Any, kwargs: Any) -> int | None:
        """The line that made the result on the CPU; None where it is on the device of the arguments."""
        device = kwargs.get("device")
        if name == "to" and device is None:
            device = next((one for one in args[1:] if isinstance(one, str | torch.device)), None)
        if device is not None:
            return self._line() if device == "cpu" else None
        if name == "cpu":
            return self._line()
        if name in MAKES and not (name in TAKES_DEVICE_OF_DATA and isinstance(args[0], torch.Tensor)):
            return self._line()
        if name == "type_as" or (name == "to" and len(given) > 1):
            return self._lines.get(given[1])
        deciding = given[:1] if name in ("__getitem__", *BETWEEN_DEVICES) else given
        lines = [self._lines.get(one) for one in deciding]
        return lines[0] if lines and None not in lines else None

    def _made(self, line: int) -> str:
        source = linecache.getline(self.file, line).strip()
        return f"line {line}" + (f", `{source}`," if source else "") + " makes a tensor on the CPU"

    def _line(self) -> int:
        """The line of the learner's that runs now."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0


class Followed:
    """The learner's function, followed in every call, but not inside functions that it is given."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self.function = function
        self.mode = CpuTensors(function.__code__.co_filename)
        self.given = ""  # the first parameter that was a tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The same call."""
        self.given = self.given or next(
            (name for name, value in self._named(args, kwargs) if isinstance(value, torch.Tensor)), ""
        )
        args = tuple(map(self._unfollowed, args))
        kwargs = {key: self._unfollowed(value) for key, value in kwargs.items()}
        with self.mode:
            result = self.function(*args, **kwargs)
        if any(one.ndim for one in _tensors((args, kwargs))):
            self.mode.returned(result)
        return result

    def _unfollowed(self, value: Any) -> Any:
        if not (inspect.isroutine(value) or isinstance(value, functools.partial)):
            return value

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.mode.meet("", args, kwargs)
            self.mode.paused, before = True, self.mode.paused
            try:
                return value(*args, **kwargs)
            finally:
                self.mode.paused = before

        return call

    @property
    def words(self) -> str:
        """Why it would fail on a GPU, as a sentence; empty where nothing speaks for that."""
        if not self.mode.words:
            return ""
        if not self.mode.made_here:
            return f"On a GPU it would fail: {self.mode.words}."
        like = f"`device={self.given}.device` or " if self.given else ""
        return (
            f"On a GPU it would fail: {self.mode.words}. Make the tensor on the device of those that you are "
            f"given, with {like}a call such as `torch.zeros_like`."
        )

    def _named(self, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Arguments by their parameters' names, as far as there is a name for each."""
        yield from zip(inspect.signature(self.function).parameters, args, strict=False)
        yield from kwargs.items()


def _name(func: Any) -> str:
    """``zeros``, ``__add__``; of an attribute ``data.__set__``."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return f"{getattr(func.__self__, '__name__', '')}.{name}"
    return name


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in a value: itself, or in its tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
