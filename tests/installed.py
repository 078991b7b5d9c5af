"""Skips tests of a library that is not there, without importing it: the ranks of the test will, this process need not.

``pytest.importorskip`` imports. At the top of a file that is done by every worker, whichever of them runs the file:
seconds of a core for each.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_without(*names: str) -> None:
    """Skip the test, or the module where it stands at the top of one, unless all of these can be imported."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
