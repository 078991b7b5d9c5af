"""Constants of your own cluster: the file that WORKSHOP_RATES names, as `workshop calibrate` writes it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

SECTIONS = ("device", "memory")


def own_section(name: str) -> dict[str, Any]:
    """A section of the file; empty where WORKSHOP_RATES is unset, or the file does not have it.

    Raises ValueError where the file is not there, or is none that `workshop calibrate` wrote.
    """
    path = os.environ.get("WORKSHOP_RATES")
    if not path:
        return {}
    try:
        own = tomllib.loads(Path(path).read_text("utf-8"))
        if not any(section in own for section in SECTIONS):
            raise KeyError(" or ".join(SECTIONS))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise ValueError(
            f"WORKSHOP_RATES names {path!r}, which `workshop calibrate` did not write ({error})"
        ) from None
    section: dict[str, Any] = own.get(name, {})
    return section
