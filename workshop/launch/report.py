"""`report(loss=...)`: how a rank hands values to the notebook.

In a rank each call appends one record to a file of that rank; the notebook reads the files when
the cell ends. The file lies in a directory that only its user can open, so reading it back is
reading one's own writing. Where nobody listens (the same program under plain torchrun) `report`
does nothing, so that a saved cell runs anywhere.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

REPORT_FILE = "WORKSHOP_REPORT_FILE"


def report(**values: Any) -> None:
    """Hand named values of this rank to the notebook: `report(loss=loss, step=3)`.

    Tensors arrive as numpy arrays (bfloat16 as float32: numpy has no such type); everything else is
    pickled as it is. A later value of the same name replaces the earlier one in ``results[rank]``;
    every call is kept in ``results[rank].calls``.
    """
    target = os.environ.get(REPORT_FILE)
    if target is None:
        return
    plain = {name: _without_torch(value) for name, value in values.items()}
    with Path(target).open("ab") as file:
        file.write(pickle.dumps(plain))


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


def read_report(path: Path) -> Reported:
    """Every call recorded in ``path`` (an absent file is a rank that reported nothing)."""
    calls = []
    if path.exists():
        with path.open("rb") as file:
            while True:
                try:
                    calls.append(pickle.load(file))
                except EOFError:
                    break
                except pickle.UnpicklingError:  # the rank was killed in the middle of a write
                    break
    return Reported(calls)
