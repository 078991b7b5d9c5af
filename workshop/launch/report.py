"""`report(loss=...)`: how a rank hands values to the notebook.

In a rank each call appends one record to a file of that rank (`plain_values`: data, which runs no code when
it is read); the notebook reads the files when the cell ends. Ranks of this notebook write into a directory
that only its user can open, so there a value that must be pickled is read back too: it is one's own writing.
From a job's directory such a value is read only for those who ask for it. Where nobody listens (the same
program under plain torchrun) `report` does nothing, so that a saved cell runs anywhere.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from workshop.launch.plain_values import Damaged, dumped, loaded
from workshop.site.owners import open_own

REPORT_FILE = "WORKSHOP_REPORT_FILE"
_writing = threading.Lock()


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


def read_report(path: Path, *, allow_pickle: bool) -> Reported:
    """Every call recorded in ``path`` (an absent file is a rank that reported nothing).

    allow_pickle: read values that had to be pickled too; else they come as `plain_values.Pickled`.

    Raises ValueError for a file that is another's, or that others can write to, or that is no report.
    """
    calls = []
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return Reported([])
    with os.fdopen(descriptor, "rb") as file:
        try:
            while (call := loaded(file, allow_pickle=allow_pickle)) is not None:
                calls.append(call)
        except Damaged as error:
            raise Damaged(f"{path} is no report: {error}") from None
    return Reported(calls)
