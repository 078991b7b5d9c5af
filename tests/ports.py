"""A port for a test's ranks to meet on, until they do.

A port that Linux hands out (32,768 and above) and that is free again may go to any connection of the machine
before the ranks listen on it. Nobody is given one of these by itself, and each worker begins elsewhere.
"""

from __future__ import annotations

import itertools
import os

from workshop.cli import server

_next = itertools.count(20_000 + os.getpid() * 97 % 10_000)


def free_port() -> int:
    """One that nobody listens on and that this process has not had yet."""
    first = next(_next)
    port = server.free_port(first)
    for _ in range(first, port):
        next(_next)
    return port
