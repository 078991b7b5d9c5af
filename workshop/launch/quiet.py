"""An old name: these stand in `workshop.process.quiet`, since they launch nothing."""

from __future__ import annotations

import warnings
from typing import Any

from workshop.process import quiet


def __getattr__(name: str) -> Any:
    if name not in ("quietly", "without_loading_noise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"workshop.launch.quiet.{name} is workshop.process.quiet.{name} now", DeprecationWarning, stacklevel=2
    )
    return getattr(quiet, name)
