"""Pictures. Each function takes plain numbers and returns a `Picture`, which shows itself in a notebook.

matplotlib is imported when a picture is drawn, never before. One idea, one module:

* `bars`: predicted beside measured, with a cap if there is one;
* `collective`: what each rank holds before and after a collective;
* `curve`: seconds by message size, measured points and the alpha-beta line;
* `copies`: what N ranks hold together, and how much of it is copies.
"""

from __future__ import annotations

import importlib
from typing import Any

_PICTURES = {
    "predicted_and_measured": "workshop.show.bars",
    "before_and_after": "workshop.show.collective",
    "ring_steps": "workshop.show.ring",
    "message_curve": "workshop.show.curve",
    "replicas": "workshop.show.copies",
    "parallel_cell": "workshop.show.launching",
}

__all__ = list(_PICTURES)


def __getattr__(name: str) -> Any:
    """Load the module of a picture when it is first asked for."""
    if name not in _PICTURES:
        raise AttributeError(f"module 'workshop.show' has no picture {name!r}; it has {', '.join(_PICTURES)}")
    return getattr(importlib.import_module(_PICTURES[name]), name)
