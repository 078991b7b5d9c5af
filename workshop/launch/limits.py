"""What a launch may take: seconds, bytes per rank, restarts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from workshop.facts.units import parse_bytes

DEFAULT_TIMEOUT = "WORKSHOP_TIMEOUT"
MOST_RANKS = 1024


@dataclass(frozen=True)
class Limits:
    """Limits of one launch.

    timeout: seconds until the ranks are asked where they are and ended; None: the environment's
        ``WORKSHOP_TIMEOUT``, else 300.
    device_memory: bytes that a rank may hold on its device, as a number or as ``"256MiB"``.
    max_restarts: how many times the whole group may start again after a failure, as torchrun's.
    """

    timeout: float | None = None
    device_memory: int | str | None = None
    max_restarts: int = 0

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < 1e7:
            raise ValueError(f"timeout {self.timeout} s: a launch needs a positive number of seconds")
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts {self.max_restarts}: zero or more")
        if self.device_memory is not None and parse_bytes(self.device_memory) <= 0:
            raise ValueError(f"device_memory {self.device_memory}: more than nothing, for example 256MiB")

    def seconds(self) -> float:
        """The time limit in force."""
        if self.timeout is not None:
            return self.timeout
        text = os.environ.get(DEFAULT_TIMEOUT, "300")
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{DEFAULT_TIMEOUT}={text!r}: a number of seconds, for example 300") from None

    def note(self) -> str:
        """For a launch whose time was up: how to allow it more, where nobody has set its limit."""
        if self.timeout is not None:
            return ""
        return (
            f"{self.seconds():g} s is the limit where none is named: `--timeout 3600` gives an hour, and the "
            f"variable {DEFAULT_TIMEOUT} sets the limit of all."
        )

    def memory_bytes(self) -> int | None:
        """The cap in bytes, or None."""
        return None if self.device_memory is None else parse_bytes(self.device_memory)


def check_rank_count(n: int) -> int:
    """``n`` itself; ValueError when no group of that size can be started."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_RANKS:
        raise ValueError(f"{n} ranks: a group has 1 to {MOST_RANKS} ranks, for example -n 4")
    return n
