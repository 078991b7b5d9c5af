"""Cutting a process group from outside: how a rank that is stuck in a collective gets its line back.

A rank inside a gloo collective waits in C++ on its TCP connections; neither destroying nor aborting
the group from another thread wakes it (seen with torch 2.13). Shutting the connections down does:
the call returns with "Connection closed by peer", Python goes on, and every variable is still there.
For NCCL the group's own abort does the same.

Which connections? Those that the group opened when it was made. `GroupSockets` notes the sockets
of this process before and after each group's creation, so that nothing else is ever touched: not
the notebook's channels (Unix sockets), not a logger's connection.

And who else may connect? gloo listens on its network and asks nobody for a key; a stray word to it ends the
rank ("exit code 255"). Once a group is made, every pair of its ranks is connected, and nobody has a reason to
come any more: `refuse_newcomers` puts a filter before the listening sockets, in the kernel, that drops what
arrives (SO_ATTACH_FILTER, socket(7)). The connections that there are do not pass it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from workshop.launch.child.descriptors import open_reserve

_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # struct sock_filter: BPF_RET | BPF_K, keep 0 bytes


def open_sockets() -> dict[int, int]:
    """Inode -> descriptor of every socket this process holds."""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone again
            target = str(Path("/proc/self/fd", name).readlink())
            if target.startswith("socket:["):
                descriptors[int(target[8:-1])] = int(name)
    return descriptors


class GroupSockets:
    """Knows the sockets that process groups opened in this process, and can shut them down."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()
        self._make = c10d._new_process_group_helper
        c10d._new_process_group_helper = self._noted  # every group of torch is made here

    def _noted(self, *args: Any, **kwargs: Any) -> Any:
        before = set(open_sockets())
        try:
            return self._make(*args, **kwargs)
        finally:
            made = {inode: fd for inode, fd in open_sockets().items() if inode not in before}
            self._inodes |= set(made)
            for inode, descriptor in made.items():
                refuse_newcomers(inode, descriptor)

    def cut(self) -> int:
        """Shut every group's connections down; returns how many. Each blocked call then raises."""
        count = 0
        for inode, descriptor in open_sockets().items():
            if inode in self._inodes:
                count += self._shut(inode, descriptor)
        if dist.is_initialized() and "nccl" in str(dist.get_backend_config()):
            c10d._get_default_group()._get_backend(_cuda()).abort()
        return count

    @staticmethod
    def _shut(inode: int, descriptor: int) -> bool:
        with held_socket(inode, descriptor) as connection:
            if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False  # gloo's listener: it ends the process if accept fails
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected any more: that is what we want
                return False
        return True

    def forget(self) -> None:
        """The groups are destroyed; their sockets are nobody's."""
        self._inodes.clear()


@contextlib.contextmanager
def held_socket(inode: int, descriptor: int) -> Iterator[socket.socket | None]:
    """The socket that ``descriptor`` leads to, held open by a duplicate; None when it is gone.

    Between the listing of the descriptors and this call, gloo's own threads may close the socket (a peer has
    shut its end), and the number may already lead to something else. Only the inode says which socket it is.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError:  # closed since
        yield None
        return
    if os.fstat(duplicate).st_ino != inode:  # closed since, and the number is another's
        os.close(duplicate)
        yield None
        return
    with socket.socket(fileno=duplicate) as connection:
        yield connection


def refuse_newcomers(inode: int, descriptor: int) -> bool:
    """Where this is a TCP socket that listens: let nobody connect to it from now on; False where not.

    A hardened kernel lets root alone put a filter before a socket. Then newcomers are not refused, as under
    torchrun; the group works all the same.
    """
    with held_socket(inode, descriptor) as listener:
        if listener is None or listener.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        whole = struct.pack(
            "HL", 1, ctypes.addressof(program)
        )  # struct sock_fprog: one instruction, and where
        try:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, whole)
        except PermissionError:
            return False
        return True


def _cuda() -> Any:
    import torch

    return torch.device("cuda")


def listen(path: Path, sockets: GroupSockets, before: Callable[[], None]) -> threading.Thread:
    """A daemon thread that cuts on request, also while the main thread sits in a collective.

    A request is any datagram on a Unix socket in the session's private directory; the answer is the
    number of connections that were shut. ``before`` is called before they are.
    """
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(str(path))

    def loop() -> None:
        while True:
            _request, sender = requests.recvfrom(64)
            try:
                open_reserve()
                before()
                answer = str(sockets.cut()).encode()
            except (OSError, RuntimeError, ValueError) as error:  # this thread is needed for the next cut
                answer = f"not cut: {error}".encode()
            with contextlib.suppress(OSError):  # who asked has not waited
                requests.sendto(answer, sender)

    thread = threading.Thread(target=loop, name="workshop-cut", daemon=True)
    thread.start()
    return thread
