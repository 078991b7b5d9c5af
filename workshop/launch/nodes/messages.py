"""What a notebook and the program on a further node say to each other: a frozen class for each message.

A message travels as its class's name, its fields as JSON, and frames of bytes beside it (`nodes.wire`). Who
receives one checks it against the class: an unknown name, a field too many, too few or of another kind is a
ValueError, and ends the connection. Nothing is unpickled.

    the starter's pipes        Hello                 node -> notebook, a line of its stdout
                               Invitation            notebook -> node, the one line of its stdin
    questions and answers      Clock Start Stop Sync Clear Pass Cut     ->  Answer, Time, Started
    without an answer          Signal Leave                             ->
                               Ready Alive Died File                    <-
    carried both ways          Shell Iopub Store     frames of Jupyter's protocol, and of the ranks' store
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# ---------------------------------------------------------------------------- by the starter's pipes


@dataclass(frozen=True)
class Hello:
    """A node's program is there: its public key, its host's name, and the workshop that it runs."""

    key: str
    host: str
    version: str


@dataclass(frozen=True)
class Invitation:
    """Where the notebook listens, its public key, and the network of the ranks as the site names it."""

    endpoint: str
    key: str
    interface: str


# ---------------------------------------------------------------------------- from the notebook


@dataclass(frozen=True)
class Start:
    """Start ranks ``first`` to ``first + n - 1``, of ``world_size`` in all.

    own_path: the ranks find packages where this node's Python does, after ``sys_path``; else there alone.
    """

    first: int
    n: int
    world_size: int
    device: str
    device_memory: int | None
    cwd: str
    sys_path: tuple[str, ...]
    own_path: bool
    env: dict[str, str]
    id: int = 0


@dataclass(frozen=True)
class Stop:
    """End the ranks; the program stays."""

    id: int = 0


@dataclass(frozen=True)
class Clock:
    """What time is it there? Its answer also says that all that was sent before has been done."""

    id: int = 0


@dataclass(frozen=True)
class Sync:
    """Send all that these ranks have written."""

    ranks: tuple[int, ...]
    id: int = 0


@dataclass(frozen=True)
class Clear:
    """Send it, then forget the last cell's failure, report and stacks."""

    ranks: tuple[int, ...]
    id: int = 0


@dataclass(frozen=True)
class Pass:
    """Write the one frame into a file of the ranks' directory."""

    name: str
    id: int = 0


@dataclass(frozen=True)
class Cut:
    """Have the ranks' cutting threads cut their group."""

    id: int = 0


@dataclass(frozen=True)
class Signal:
    """Send a rank a signal."""

    rank: int
    number: int


@dataclass(frozen=True)
class Leave:
    """End the ranks and yourself."""


# ---------------------------------------------------------------------------- from the node


@dataclass(frozen=True)
class Ready:
    """Its engine is up."""

    gpus: int
    host: str


@dataclass(frozen=True)
class Alive:
    """Twice a second, so that silence means something."""


@dataclass(frozen=True)
class Answer:
    """That question is dealt with. ``error``: a sentence, or the file that is gone."""

    id: int
    error: str = ""


@dataclass(frozen=True)
class Time:
    """Seconds of the node's monotonic clock."""

    id: int
    now: float


@dataclass(frozen=True)
class Started:
    """The ranks are there: their process numbers, and the key that signs their kernels' messages."""

    id: int
    pids: dict[int, int]
    key: str


@dataclass(frozen=True)
class Died:
    """A rank has ended."""

    rank: int
    exit_code: int | None


@dataclass(frozen=True)
class File:
    """The frame was added to a file of that rank."""

    rank: int
    name: str


# ---------------------------------------------------------------------------- both ways


@dataclass(frozen=True)
class Shell:
    """Frames of the kernel's shell channel: a request there, an answer here."""

    rank: int


@dataclass(frozen=True)
class Iopub:
    """Frames that the kernel has published."""

    rank: int


@dataclass(frozen=True)
class Store:
    """A question to the ranks' store, and its answer: who asks, then the frames."""


ToNode = Start | Stop | Clock | Sync | Clear | Pass | Cut | Signal | Leave | Shell | Store
ToNotebook = Ready | Alive | Answer | Time | Started | Died | File | Shell | Iopub | Store
Question = Start | Stop | Clock | Sync | Clear | Pass | Cut
Reply = Answer | Time | Started
Message = Hello | Invitation | ToNode | ToNotebook

TO_NODE: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(ToNode)}
TO_NOTEBOOK: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(ToNotebook)}


# ---------------------------------------------------------------------------- as text


def to_json(message: Message) -> str:
    """The fields of a message."""
    return json.dumps(asdict(message))


def from_json(kind: type, text: str | bytes) -> Any:
    """A message of a kind that is known.

    Raises:
        ValueError: the text is no JSON, or its fields are not those of ``kind``.
    """
    content, hints = json.loads(text), _hints(kind)
    if not isinstance(content, dict) or content.keys() != hints.keys():
        raise ValueError(
            f"a message {kind.__name__} has {', '.join(hints) or 'no fields'}, not {text!r:.200}"
        )
    return kind(
        **{name: _as(hints[name], value, f"{kind.__name__}.{name}") for name, value in content.items()}
    )


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def parsed(name: bytes, header: bytes, known: Mapping[str, type]) -> Any:
    """A message from the wire. Raises ValueError for a name that is not ``known``, and as `from_json`."""
    kind = known.get(name.decode("ascii", "replace"))
    if kind is None:
        raise ValueError(f"unknown message {name!r:.80} (known: {', '.join(known)})")
    return from_json(kind, header)


def _as(hint: Any, value: Any, where: str) -> Any:
    """``value`` as JSON tells it, as the field wants it; ValueError where it is of another kind."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _as(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_as(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        keys = (int(key) if inner[0] is int else key for key in value)
        return {key: _as(inner[1], item, where) for key, item in zip(keys, value.values(), strict=True)}
    if origin is None and (type(value) is hint or (hint is float and type(value) is int)):
        return value
    raise ValueError(f"{where} must be {getattr(hint, '__name__', hint)}, not {value!r:.80}")
