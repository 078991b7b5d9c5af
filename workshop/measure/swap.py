"""Replace a function of a library while we look, and put it back.

torch has no hook at some of the doors we must watch (the entry of the autograd engine, a storage's
`resize_`), so a function is exchanged for one that does the same and tells us. Every exchange goes through
here: one place to search for, and none without its way back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def swap(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Make `owner.name` the replacement; calling what is returned makes it the original again."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)
