"""In the sandbox: run an answer's cell, and call its functions when the grader asks.

    python -m workshop.classroom.grading.answering

Everything here shares a process with the learner's code, so nothing here decides anything: it can lie about
what a function returned, and then that is what the learner's function returned. Requests come pickled, from
the grader, who is trusted; answers go as data (`wire`). What the grader did not copy (a function of the
check, an object that the answer changes) is a stand-in here that asks the grader back.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from workshop.classroom.grading.sandbox import CONNECTION
from workshop.classroom.grading.wire import Ended, decode, encode, receive, receive_message, send_message
from workshop.exercises.engine import cell


class OfTheCheck(Exception):
    """An error of the check's own, on its way through the learner's code and back."""


class StandIn:
    """Something that stayed with the grader, by its number: it can be called, and asked for what it has."""

    def __init__(self, talk: Talk, number: int, name: str = ""):
        object.__setattr__(self, "_asked", (talk, number, name))
        object.__setattr__(self, "__name__", name or "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, where it is."""
        talk, number, name = self._asked
        given = {"args": encode(args), "kwargs": encode(kwargs)}
        return talk.ask({"ask": "call", "number": number, "name": name, **given})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        talk, number, inside = self._asked
        if inside:
            raise AttributeError(name)
        if talk.ask({"ask": "callable", "number": number, "name": name}):
            return StandIn(talk, number, name)
        return talk.ask({"ask": "value", "number": number, "name": name})


class Talk:
    """The connection to the grader."""

    def __init__(self, end: socket.socket):
        self.end = end

    def read(self, frame: bytes) -> Any:
        """A request: pickled by the grader, with stand-ins where it kept something."""
        reader = pickle.Unpickler(io.BytesIO(frame))
        reader.persistent_load = lambda number: StandIn(self, number)  # type: ignore[method-assign]
        return reader.load()

    def ask(self, message: dict[str, Any]) -> Any:
        """Ask the grader back in the middle of a call."""
        send_message(self.end, message)
        answer = receive_message(self.end)
        if "failed" in answer:
            raise OfTheCheck(answer["failed"])
        return decode(answer["value"])


def serve(end: socket.socket) -> None:
    """Answer requests until the grader is gone."""
    talk, names, graphs = Talk(end), dict[str, Any](), Graphs()
    while True:
        request = talk.read(receive(end))
        try:
            if request["do"] == "define":
                names = _defined(request)
                send_message(end, {"names": [name for name in request["wanted"] if name in names]})
            elif request["do"] == "gradients":
                send_message(end, {"value": encode(graphs.gradients(request["of"]))})
            else:
                given, keywords = request["args"], request["kwargs"]
                _give_gradients(given, request["gradients"])
                with _recording(request["recording"]):
                    value = names[request["name"]](*given, **keywords)
                encoded = encode(value)  # a generator runs here, before the arguments are looked at
                changed = [_changed(each) for each in given]
                send_message(end, {"value": encoded, "args": changed, "graph": graphs.keep(value, given)})
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the answer raises is told
            send_message(end, _told(error, request))


def _give_gradients(given: Sequence[Any], gradients: Sequence[list[Any] | None]) -> None:
    """To the parameters of each module, as they have them at the grader: a pickled one has lost them."""
    for each, those in zip(given, gradients, strict=True):
        if those is not None:
            for parameter, gradient in zip(each.parameters(), those, strict=True):
                parameter.grad = gradient


def _recording(as_there: bool) -> contextlib.AbstractContextManager[Any]:
    """Autograd records or not, as where the check calls; what the function switches ends with the call."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.set_grad_enabled(as_there)


def _changed(given: Any) -> Any:
    """An argument that a function may have changed in place, as it is now; None for what cannot change.

    Of a module these are its parameters' gradients.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.nn.Module):
        return encode([parameter.grad for parameter in given.parameters()])
    changes = isinstance(given, list | dict | set) or type(given).__module__ in ("numpy", "torch")
    return encode(given) if changes else None


class Graphs:
    """What a function returned with a gradient, and the arguments that the gradient is for, until it is
    asked.
    """

    def __init__(self) -> None:
        self.value: Any = None
        self.given: list[Any] = []

    def keep(self, value: Any, given: Any) -> bool:
        """Whether a gradient can be asked of this value."""
        torch = sys.modules.get("torch")
        self.value, self.given = value, []
        if torch is None or not isinstance(value, torch.Tensor) or not value.requires_grad:
            return False
        self.given = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]
        return True

    def gradients(self, of_value: Any) -> Any:
        """For each argument that wants one; None where there is none."""
        import torch

        return torch.autograd.grad(self.value, self.given, of_value, allow_unused=True, retain_graph=True)


def _defined(request: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    for name, source in request["before"]:
        cell.run(name, source, names)
    for name in request["wanted"]:
        names.pop(name, None)
    cell.run(request["exercise"], request["source"], names)
    return names


def _told(error: BaseException, request: dict[str, Any]) -> dict[str, Any]:
    """An exception of the answer: what, on which of its lines, and whether it ends the program."""
    file = cell.file_name(request["exercise"])
    lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == file]
    return {
        "raised": type(error).__name__,
        "words": str(error)[:2000],
        "line": lines[-1] if lines else None,
        "exit": isinstance(error, SystemExit),
        "of_the_check": isinstance(error, OfTheCheck),
    }


if __name__ == "__main__":
    if "--try" in sys.argv:
        sys.exit(0)
    try:
        serve(socket.socket(fileno=int(os.environ.pop(CONNECTION))))
    except Ended:
        sys.exit(0)
