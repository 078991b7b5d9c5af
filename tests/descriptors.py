"""What a process holds open, looked at from outside while it goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path


def leads_of(pid: int) -> set[str]:
    """Where its descriptors lead, as Linux writes it (``socket:[123]``, a path); those that were open just now."""
    leads = set()
    with contextlib.suppress(FileNotFoundError):  # the process has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                leads.add(str(link.readlink()))
    return leads
