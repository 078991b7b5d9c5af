"""Which modules of the package a call walks through: those of which it enters a function, on any thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import workshop

PACKAGE = Path(workshop.__file__).parent


def modules_crossed(call: Callable[..., Any], *arguments: Any) -> list[str]:
    """Files of the package, from its folder on, whose functions `call(*arguments)` enters.

    What is only imported on the way is not counted, and neither is what a cache answers: call once before.
    """
    files: set[str] = set()

    def enter(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = (Path(file) for file in files if Path(file).is_relative_to(PACKAGE))
    return sorted(path.relative_to(PACKAGE).as_posix() for path in inside)
