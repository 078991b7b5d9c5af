"""What crosses from the sandbox: frames of JSON, and values that are data and nothing else.

``encode`` runs beside the learner's code and may be made to say anything; ``decode`` runs in the grader and
takes only numbers, texts, containers, arrays of plain numbers, tensors, and `Foreign` for everything else.
Nothing is unpickled.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

MOST_BYTES = 64 << 20  # of a frame
MOST_ITEMS = 100_000  # of what a generator yields
_HEAD = struct.Struct("<Q")
_KINDS = frozenset("biufcSU")  # of numpy's types that are bytes and nothing else
_PLAIN = frozenset((bool, int, float, str, type(None)))


class Damaged(ValueError):
    """A frame or a value that `encode` does not write."""


class Foreign:
    """An object of a kind that does not cross; shows itself as it would have there."""

    def __init__(self, kind: str, shown: str):
        self.kind, self.shown = kind, shown

    def __repr__(self) -> str:
        return self.shown


class Ended(Exception):
    """The other side is gone."""


def send(end: socket.socket, frame: bytes) -> None:
    """One frame; Ended where nobody reads."""
    try:
        end.sendall(_HEAD.pack(len(frame)) + frame)
    except OSError:
        raise Ended("nobody reads any more") from None


def receive(end: socket.socket, until: float | None = None) -> bytes:
    """One frame.

    Raises:
        TimeoutError: it has not come at ``until`` (as `time.monotonic` counts).
        Ended: the other side is gone.
        Damaged: it would be longer than any frame is.
    """
    (length,) = _HEAD.unpack(_exactly(end, _HEAD.size, until))
    if length > MOST_BYTES:
        raise Damaged(f"a frame of {length} bytes; at most {MOST_BYTES}")
    return _exactly(end, length, until)


def _exactly(end: socket.socket, size: int, until: float | None) -> bytes:
    got = bytearray()
    while len(got) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            end.settimeout(left)
        try:
            block = end.recv(min(size - len(got), 1 << 20))
        except TimeoutError:
            raise
        except OSError:
            block = b""
        if not block:
            raise Ended("the other side is gone")
        got += block
    return bytes(got)


def encode(value: Any) -> Any:
    """A value as JSON can hold it: a tag, and what belongs to it."""
    if type(value) in _PLAIN:
        return ["v", value]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _array("a" if isinstance(value, numpy.ndarray) else "n", value)
    if torch is not None and isinstance(value, torch.Tensor):
        whole = value.detach().cpu()
        kind = str(whole.dtype).removeprefix("torch.")
        plain = whole.float() if whole.dtype in (torch.bfloat16,) else whole
        return ["T", kind, _array("a", plain.contiguous().numpy())]
    if isinstance(value, list | tuple | set | frozenset):
        tag = "l" if isinstance(value, list) else "t" if isinstance(value, tuple) else "s"
        return ["z" if isinstance(value, frozenset) else tag, [encode(each) for each in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key), encode(each)] for key, each in value.items()]]
    if isinstance(value, int | float | str):  # a subclass: its number or text is what counts
        return ["v", next(kind(value) for kind in (int, float, str) if isinstance(value, kind))]
    if isinstance(value, Fraction):
        return ["q", value.numerator, value.denominator]
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(
        value, Iterator | range | type({}.keys()) | type({}.values()) | type({}.items()) | map | zip
    ):
        return ["g", [encode(each) for each, _ in zip(value, range(MOST_ITEMS), strict=False)]]
    return ["x", type(value).__name__, repr(value)[:300]]


def _array(tag: str, value: Any) -> Any:
    if value.dtype.kind not in _KINDS:
        return ["x", type(value).__name__, repr(value)[:300]]
    return [tag, value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]


def decode(written: Any) -> Any:
    """The value again.

    Raises:
        Damaged: `encode` did not write that.
    """
    try:
        return _decode(written)
    except Damaged:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise Damaged(f"no value: {type(error).__name__}") from None


def _decode(written: Any) -> Any:
    tag, *rest = written
    if tag == "v" and type(rest[0]) in _PLAIN:
        return rest[0]
    if tag in ("l", "t", "s", "z", "g"):
        items = [_decode(each) for each in rest[0]]
        return {"l": list, "t": tuple, "s": set, "z": frozenset, "g": iter}[tag](items)  # type: ignore[operator]
    if tag == "d":
        return {_decode(key): _decode(each) for key, each in rest[0]}
    if tag == "q":
        return Fraction(int(rest[0]), int(rest[1]))
    if tag == "c":
        return complex(float(rest[0]), float(rest[1]))
    if tag == "a":
        return _read_array(rest)
    if tag == "n":
        return _read_array(rest)[()]
    if tag == "T":
        import torch

        array = _read_array(rest[1][1:])
        return torch.from_numpy(array).to(getattr(torch, {"bool": "bool"}.get(rest[0], rest[0])))
    if tag == "x":
        return Foreign(str(rest[0])[:80], str(rest[1])[:300])
    raise Damaged(f"no value has the tag {str(tag)[:20]!r}")


def _read_array(rest: Any) -> Any:
    import numpy as np

    kind, shape, content = rest
    dtype = np.dtype(kind)
    if dtype.kind not in _KINDS:
        raise Damaged(f"arrays of {dtype} do not cross")
    return np.frombuffer(base64.b64decode(content), dtype).reshape([int(n) for n in shape]).copy()


def send_message(end: socket.socket, message: dict[str, Any]) -> None:
    """Send a message of JSON."""
    send(end, json.dumps(message).encode())


def receive_message(end: socket.socket, until: float | None = None) -> dict[str, Any]:
    """Receive a message of JSON; see `receive`."""
    try:
        message = json.loads(receive(end, until))
    except (ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged("a frame that is no JSON") from None
    if not isinstance(message, dict):
        raise Damaged("a frame that is no message")
    return message
