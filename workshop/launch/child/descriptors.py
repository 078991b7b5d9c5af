"""A few descriptors kept back: a rank that has used all of its own must still be able to say so.

A cell that opens files in a loop takes every descriptor that the system allows (RLIMIT_NOFILE). Then the
record of its failure cannot be written, its group cannot be cut, and it cannot join a new one. So a rank
starts with a limit some way below the real one; the last stretch is opened when the engine itself finds
nothing left. A rank that stays keeps some back again from each cell: one that gives back what the last cell
took may take it all once more.
"""

from __future__ import annotations

import errno
import os
import resource

RESERVED = 128  # a record, a listing, and the sockets of a new group of a few dozen ranks
LEAST = 32  # the same for a few ranks, where the program holds on to all the others


def keep_reserve() -> None:
    """Lower this process's limit by `RESERVED`, where the system's own limit leaves room for that.

    Where the program holds so many that no more than the reserve is left, it gets half of that: the next cell
    has to be able to look what is open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or not 2 * RESERVED < hard < soft + RESERVED:
        return  # the limit can be raised by the reserve as it is
    used = _lowest_free(soft)
    reserve = RESERVED if used < hard - RESERVED else max(LEAST, (hard - used) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - reserve, hard))


def _lowest_free(soft: int) -> int:
    """The number of the next descriptor; the limit where there is none."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return soft
    os.close(descriptor)
    return descriptor


def open_reserve() -> None:
    """Where not one descriptor is left: allow the last `RESERVED`."""
    try:
        os.close(os.dup(0))
    except OSError as error:
        if error.errno != errno.EMFILE:
            return  # the program has closed descriptor 0; others can be had
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = soft + RESERVED if hard == resource.RLIM_INFINITY else min(soft + RESERVED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
