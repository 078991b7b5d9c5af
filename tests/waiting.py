"""Waiting for what must come, as long as it takes: a busy machine makes a test slower, and never red."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 90.0  # far beyond what anything here takes, and within a test's own limit


def wait_until(condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Return once ``condition`` holds; AssertionError when it still does not after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {patience:g} s: {condition}"
        time.sleep(0.02)
