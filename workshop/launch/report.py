"""`report(loss=...)`: how a rank hands values to the notebook, as data that runs no code when it is read.

In a rank each call appends one record to a file of that rank; the notebook reads the files when the cell
ends. Where nobody listens (the same program under plain torchrun) `report` does nothing, so that a saved cell
runs anywhere.

A pickle is a program: who reads one runs whatever its writer put in. That is right between a notebook and its
own ranks, which write into a directory that only its user can open (`own_report`). It is wrong for what has
lain for days in a folder that several people may write to, as a job's does (`read_report`). So what ranks
report is written as data: numbers, texts, lists, tuples, sets, dictionaries, numpy's arrays, paths, and the
records of `workshop.facts`. A value that is none of these is pickled by itself, under its own name, so that
the reader can leave just that one unread.

One record is one call: a head of fixed length, the JSON, then the bytes of all arrays::

    "wsr1"  length of the JSON (8 bytes)  {"values": {...}, "sizes": [n, ...]}  n bytes, ...

In the JSON everything that JSON has not is a dictionary with the key ``$``: ``{"$": "array", "dtype": "<f4",
"shape": [2, 3], "at": 0}``, ``at`` counting the byte strings.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pickle
import re
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from workshop.site.owners import open_own

REPORT_FILE = "WORKSHOP_REPORT_FILE"
_writing = threading.Lock()
_MAGIC = b"wsr1"
_HEAD = struct.Struct("<4sQ")
_PLAIN = frozenset((bool, int, float, str, type(None)))
_DTYPES = frozenset("biufcSUMm")  # kinds of numpy's types that are bytes and nothing else
_RECORDS = "workshop.facts."
_RECORD_NAME = re.compile(r"workshop\.facts\.[a-z_]+:[A-Za-z_]+")
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def report(**values: Any) -> None:
    """Hand named values of this rank to the notebook: `report(loss=loss, step=3)`.

    Numbers, texts, lists, tuples, dictionaries and arrays arrive as they are, tensors as numpy arrays
    (bfloat16 as float32: numpy has no such type); anything else is pickled. A later value of the same
    name replaces the earlier one in ``results[rank]``; every call is kept in ``results[rank].calls``.
    """
    target = os.environ.get(REPORT_FILE)
    if target is None:
        return
    plain = {name: _without_torch(value) for name, value in values.items()}
    pieces = dumped(plain)
    with _writing, Path(target).open("ab") as file:
        file.writelines(pieces)


def _without_torch(value: Any) -> Any:
    """Tensors to arrays, also inside lists, tuples and dicts: the notebook need not import torch."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()  # a DTensor: every rank reports, so every rank is here
        value = value.cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    if isinstance(value, dict):
        return {key: _without_torch(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_torch(item) for item in value)
    return value


class Reported(dict):
    """What one rank reported: a dict by name, and `.calls`, the list of every call."""

    def __init__(self, calls: list[dict[str, Any]]):
        super().__init__()
        self.calls = calls
        for call in calls:
            self.update(call)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "nothing"
            raise AttributeError(f"this rank reported no {name!r}; it reported {known}") from None


def own_report(path: Path) -> Reported:
    """Every call that a rank of this notebook recorded, pickled values too: they are one's own writing.

    path: within the session's directory (`launch.session`), in which nobody else can lay a file. An absent
        file is a rank that reported nothing.
    """
    try:
        with path.open("rb") as file:
            return _calls(file, path, allow_pickle=True)
    except FileNotFoundError:
        return Reported([])


def read_report(path: Path, *, allow_pickle: bool) -> Reported:
    """Every call recorded in ``path``, wherever it lies (an absent file is a rank that reported nothing).

    allow_pickle: read values that had to be pickled too; else they come as `Pickled`.

    Raises ValueError for a file that is another's, or that others can write to, or that is no report.
    """
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return Reported([])
    with os.fdopen(descriptor, "rb") as file:
        return _calls(file, path, allow_pickle=allow_pickle)


def _calls(file: BinaryIO, path: Path, *, allow_pickle: bool) -> Reported:
    calls = []
    try:
        while (call := loaded(file, allow_pickle=allow_pickle)) is not None:
            calls.append(call)
    except Damaged as error:
        raise Damaged(f"{path} is no report: {error}") from None
    return Reported(calls)


# ---------------------------------------------------------------------------- writing


class Damaged(ValueError):
    """What was read is no record of `dumped`; the message says why."""


class Pickled:
    """A value that only a pickle could hold, and that was not read: reading one runs code.

    why: where it was allowed, and could not be: the ranks know a class that the reader does not.
    """

    def __init__(self, kind: str, why: str = ""):
        self.kind = kind
        self.why = why

    def __repr__(self) -> str:
        if self.why:
            return (
                f"<a {self.kind}, which only the ranks can read ({self.why}): report the numbers, texts or "
                "arrays in it, or define its class in a module that both import>"
            )
        return (
            f"<a {self.kind}, pickled and not read: reading a pickle runs what its writer put in. %%sbatch "
            "--allow-pickle reads it (job.allow_pickle = True); better, report numbers, texts or arrays>"
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self!r}")


def dumped(values: Mapping[str, Any]) -> list[bytes]:
    """One record, as pieces to be written one after the other.

    Raises TypeError for a value that cannot be kept in any way.
    """
    buffers: list[bytes] = []
    plain = {}
    for name, value in values.items():
        try:
            plain[str(name)] = _whole(value, buffers)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"report({name}=...): a {type(value).__name__} cannot be handed to the notebook ({error}): "
                "report the numbers, texts or arrays in it"
            ) from None
    text = json.dumps({"values": plain, "sizes": [len(buffer) for buffer in buffers]}).encode()
    return [_HEAD.pack(_MAGIC, len(text)), text, *buffers]


def _whole(value: Any, buffers: list[bytes]) -> Any:
    """One value; as a whole a pickle where it holds itself or a number too long to be written."""
    before = len(buffers)
    try:
        encoded = _encoded(value, buffers)
        json.dumps(encoded)
    except (RecursionError, ValueError):
        del buffers[before:]
        return _as_pickle(value, buffers)
    return encoded


def _encoded(value: Any, buffers: list[bytes]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return value if all(type(item) in _PLAIN for item in value) else [_encoded(v, buffers) for v in value]
    if kind is dict:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: _encoded(item, buffers) for key, item in value.items()}
        return {
            "$": "dict",
            "items": [[_encoded(k, buffers), _encoded(v, buffers)] for k, v in value.items()],
        }
    if kind.__name__ in _SEQUENCES and kind.__module__ == "builtins":
        return {"$": kind.__name__, "items": [_encoded(item, buffers) for item in value]}
    if kind is complex:
        return {"$": "complex", "items": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {"$": kind.__name__, "at": _kept(bytes(value), buffers)}
    if isinstance(value, PurePath):
        return {"$": "path", "text": str(value)}
    if kind.__module__ == "numpy":
        return _encoded_array(value, buffers)
    if dataclasses.is_dataclass(value) and kind.__module__.startswith(_RECORDS):
        own = {f.name: _encoded(getattr(value, f.name), buffers) for f in dataclasses.fields(value) if f.init}
        return {"$": "record", "class": f"{kind.__module__}:{kind.__qualname__}", "fields": own}
    return _as_pickle(value, buffers)


def _encoded_array(value: Any, buffers: list[bytes]) -> Any:
    import numpy

    if not isinstance(value, numpy.ndarray | numpy.generic) or value.dtype.kind not in _DTYPES:
        return _as_pickle(value, buffers)
    entry = {"dtype": value.dtype.str, "shape": list(value.shape), "at": _kept(value.tobytes(), buffers)}
    return {"$": "array" if isinstance(value, numpy.ndarray) else "scalar", **entry}


def _as_pickle(value: Any, buffers: list[bytes]) -> dict[str, Any]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"$": "pickle", "class": kind, "at": _kept(pickle.dumps(value), buffers)}


def _kept(data: bytes, buffers: list[bytes]) -> int:
    buffers.append(data)
    return len(buffers) - 1


# ---------------------------------------------------------------------------- reading


def loaded(file: BinaryIO, *, allow_pickle: bool) -> dict[str, Any] | None:
    """The next record of ``file``; None at its end, or where the last one was cut short.

    allow_pickle: without it a pickled value comes as a `Pickled`, which says what it was.

    Raises Damaged for anything that `dumped` does not write.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise Damaged("it does not begin as a report does")
    if length > _left(file):
        return None
    text = file.read(length)
    try:
        content = json.loads(text)
        buffers = []
        for size in content["sizes"]:
            if type(size) is not int or size < 0:
                raise Damaged(f"{size!r} is no length")
            if size > _left(file):
                return None
            buffers.append(bytearray(file.read(size)))
        return {name: _decoded(value, buffers, allow_pickle) for name, value in content["values"].items()}
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None


def _left(file: BinaryIO) -> int:
    """Bytes from here to the end: a length is another's word, and memory is not taken on it."""
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end - here


def _decoded(value: Any, buffers: list[bytearray], allow_pickle: bool) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_decoded(item, buffers, allow_pickle) for item in value]
    kind = value.get("$")
    if kind is None:
        return {key: _decoded(item, buffers, allow_pickle) for key, item in value.items()}
    if kind == "dict":
        pairs = ([_decoded(half, buffers, allow_pickle) for half in pair] for pair in value["items"])
        return {key: item for key, item in pairs}  # noqa: C416 - a pair that is none shall be told
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_decoded(item, buffers, allow_pickle) for item in value["items"])
    if kind == "complex":
        return complex(*value["items"])
    if kind == "path":
        return Path(value["text"])
    if kind == "record":
        own = {name: _decoded(item, buffers, allow_pickle) for name, item in value["fields"].items()}
        return _record_class(value["class"])(**own)
    data = buffers[value["at"]]
    if kind in ("bytes", "bytearray"):
        return bytes(data) if kind == "bytes" else data
    if kind in ("array", "scalar"):
        return _decoded_array(value, data)
    if kind == "pickle":
        named = str(value["class"])[:200]
        return _unpickled(data, named) if allow_pickle else Pickled(named)
    raise Damaged(f"it holds a {kind!r}, which no report has")


def _unpickled(data: bytearray, kind: str) -> Any:
    """The value; a `Pickled` that says why, where its class is the ranks' and not the reader's."""
    try:
        return pickle.loads(data)
    except (AttributeError, ImportError) as error:
        return Pickled(kind, f"{type(error).__name__}: {error}")


def _decoded_array(value: dict[str, Any], data: bytearray) -> Any:
    import numpy

    dtype = numpy.dtype(value["dtype"])
    if dtype.kind not in _DTYPES or dtype.hasobject:
        raise Damaged(f"an array of {dtype}, which is no plain number or text")
    array = numpy.frombuffer(data, dtype).reshape(value["shape"])
    return array if value["$"] == "array" else array[()]


def _record_class(name: str) -> type:
    """A dataclass of `workshop.facts`, by module and name, and nothing else of it."""
    module, _, qualname = name.partition(":")
    kind = None
    if _RECORD_NAME.fullmatch(name) and importlib.util.find_spec(module):
        kind = getattr(importlib.import_module(module), qualname, None)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or kind.__module__ != module:
        raise Damaged(f"{name[:200]!r} is no record of {_RECORDS[:-1]}")
    return kind
