"""A learner's function as the check sees it: it is called here, and runs in the sandbox.

The check cannot tell it from a function of this process: arguments that it changes in place are changed,
functions and objects that it is handed are asked back, an exception is raised with the line of the answer.
What comes back is data.
"""

from __future__ import annotations

import builtins
import io
import pickle
import sys
import time
import types
from typing import Any

from workshop.classroom.grading.sandbox import Bounds, Sandbox
from workshop.classroom.grading.wire import (
    Damaged,
    Ended,
    decode,
    encode,
    receive_message,
    send,
    send_message,
)
from workshop.exercises.engine.check import Wrong
from workshop.exercises.engine.exercise import Exercise

_BY_NAME = ("numpy", "torch", "math", "builtins", "operator", "_operator")  # functions that both sides have
_OF_WORDS = {kind.__init__ for kind in (Exception, ValueError, TypeError, RuntimeError, ArithmeticError)}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class Stopped(Wrong):
    """The sandbox came to an end before the answer did: too long, too much, or of itself."""


class Answer:
    """An exercise's functions, in a sandbox of their own."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        self.until = time.monotonic() + sandbox.bounds.seconds
        self.kept: dict[int, Any] = {}
        self.error: BaseException | None = None

    def define(self, exercise: Exercise, source: str, before: list[tuple[str, str]]) -> dict[str, Function]:
        """Run the cell there, after ``before``, (name, source) of what it stands on; its functions."""
        self.exercise = exercise.name
        request = {"do": "define", "exercise": exercise.name, "source": source, "before": before}
        answer = self._answer({**request, "wanted": exercise.defines})
        names = answer.get("names")
        known = [name for name in exercise.defines if isinstance(names, list) and name in names]
        return {name: Function(self, name) for name in known}

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call one of them."""
        request = {"do": "call", "exercise": self.exercise, "name": name, "args": args, "kwargs": kwargs}
        torch = sys.modules.get("torch")
        recording = torch is None or torch.is_grad_enabled()
        answer = self._answer({**request, "recording": recording, "gradients": list(map(_gradients, args))})
        changed = answer.get("args")
        for given, now in zip(args, changed if isinstance(changed, list) else [], strict=False):
            if now is not None:
                _change(given, decode(now))
        value = decode(answer.get("value"))
        if answer.get("graph") is True and type(value).__module__ == "torch":
            return _with_gradient(self, args, value)
        return value

    def gradients(self, of: Any, count: int) -> list[Any]:
        """The gradients of the last call's arguments, for a gradient of what it returned."""
        request = {"do": "gradients", "exercise": self.exercise, "of": of.detach()}
        gradients = decode(self._answer(request).get("value"))
        if not isinstance(gradients, tuple) or len(gradients) != count:
            raise Stopped("What came back is no gradient.")
        return list(gradients)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            send(self.sandbox.end, self._pickled(request))
            while True:
                answer = receive_message(self.sandbox.end, self.until)
                if "ask" not in answer:
                    break
                send_message(self.sandbox.end, self._asked(answer))
        except TimeoutError:
            self.sandbox.kill("")
            raise Stopped(f"It did not come to an end in {self.sandbox.bounds.seconds:g} seconds.") from None
        except Ended:
            raise Stopped(f"It came to no end: {self.sandbox.reason()}.") from None
        except Damaged as error:
            raise Stopped(f"What came back is no answer: {error}.") from None
        if "raised" in answer:
            raise self._raised(answer)
        return answer

    def _pickled(self, request: dict[str, Any]) -> bytes:
        written = io.BytesIO()
        writer = pickle.Pickler(written)
        writer.persistent_id = self._keeps  # type: ignore[method-assign]
        writer.dump(request)
        return written.getvalue()

    def _keeps(self, value: Any) -> int | None:
        """A number for what stays here: functions that only this side has, the workshop's own objects."""
        module = getattr(value, "__module__", None) or ""
        if isinstance(value, _FUNCTIONS):
            stays = module.partition(".")[0] not in _BY_NAME
        else:
            stays = type(value).__module__.startswith("workshop.") and not isinstance(value, type)
        if not stays:
            return None
        self.kept[id(value)] = value
        return id(value)

    def _asked(self, message: dict[str, Any]) -> dict[str, Any]:
        """A stand-in's question, as far as it may ask: what was handed over, its public names, with data."""
        try:
            number, name = message.get("number"), message.get("name")
            if not isinstance(number, int) or number not in self.kept or not isinstance(name, str):
                raise Damaged("a question about what was never handed over")
            if name.startswith("_"):
                raise Damaged(f"a question about {name[:40]!r}")
            attribute = getattr(self.kept[number], name) if name else self.kept[number]
            if message["ask"] == "callable":
                return {"value": encode(callable(attribute))}
            if message["ask"] == "value":
                return {"value": encode(attribute)}
            return {"value": encode(attribute(*decode(message["args"]), **decode(message["kwargs"])))}
        except Exception as error:  # noqa: BLE001 - the check's own, or the answer's misuse of it: raised again below
            self.error = error
            return {"failed": f"{type(error).__name__}: {error}"}

    def _raised(self, answer: dict[str, Any]) -> BaseException:
        if answer.get("of_the_check") is True and self.error is not None:
            error, self.error = self.error, None
            return error
        words = str(answer.get("words", ""))[:2000]
        error = (
            SystemExit(words) if answer.get("exit") is True else _error(str(answer["raised"])[:100], words)
        )
        line = answer.get("line")
        error.__dict__["line_of_answer"] = line if type(line) is int else None
        return error


def _error(name: str, words: str) -> Exception:
    """An exception of that name; one of Python's own where it is made of words alone."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and known.__init__ in _OF_WORDS:
        return known(words)
    return type(name if name.isidentifier() else "Error", (Exception,), {})(words)


class Function:
    """A function of the learner's, to be called from the check."""

    def __init__(self, answer: Answer, name: str):
        self._answer, self.__name__, self.__qualname__ = answer, name, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the sandbox."""
        return self._answer.call(self.__name__, args, kwargs)

    def __repr__(self) -> str:
        return f"<function {self.__name__}>"


def _change(given: Any, now: Any) -> None:
    """Make an argument what the function made of its copy; of a module, the gradients."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.nn.Module):
        _set_gradients(list(given.parameters()), now)
    elif isinstance(given, list) and isinstance(now, list):
        given[:] = now
    elif any(isinstance(given, kind) and isinstance(now, kind) for kind in (dict, set)):
        given.clear()
        given.update(now)
    elif getattr(given, "shape", ()) and getattr(now, "shape", None) == given.shape:
        _overwrite(given, now)


def _gradients(given: Any) -> list[Any] | None:
    """Those of a module's parameters, which are not pickled with it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.nn.Module):
        return None
    return [parameter.grad for parameter in given.parameters()]


def _set_gradients(parameters: list[Any], gradients: Any) -> None:
    """What is no gradient of a parameter is left out: it comes from an answer."""
    if not isinstance(gradients, list) or len(gradients) != len(parameters):
        return
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            parameter.grad = None
        elif getattr(gradient, "shape", None) == parameter.shape and gradient.dtype == parameter.dtype:
            parameter.grad = gradient


def _overwrite(given: Any, now: Any) -> None:
    if type(given).__module__ != "torch":
        given[...] = now
        return
    import torch

    with torch.no_grad():
        given.copy_(now)


def _with_gradient(answer: Answer, args: tuple[Any, ...], value: Any) -> Any:
    """A tensor whose gradient is asked of the sandbox, where the function's own graph is."""
    import torch

    wanting = [each for each in args if isinstance(each, torch.Tensor) and each.requires_grad]

    class Remote(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, *__: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(_: Any, of: Any) -> Any:
            return tuple(answer.gradients(of, len(wanting)))

    return Remote.apply(*wanting) if wanting else value


def answering(bounds: Bounds, isolated: bool) -> Sandbox:
    """A sandbox that answers for one plain exercise."""
    return Sandbox(bounds, isolated, "workshop.classroom.grading.answering")
