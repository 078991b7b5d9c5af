"""A network with nothing in it but loopback, which only those who are let in can reach (Linux).

torchft's servers ask nobody who they are: whoever reaches a replica's manager can end the replica, or name a
checkpoint that the others then load, which is to run a stranger's code. So the replicas of one launch, their
agents and their lighthouse live in a network namespace of their own. In it 127.0.0.1 is another 127.0.0.1:
other users of the machine, and the machine's own network, have no way in, and nothing has a way out.

Root may make one as it is; everybody else first makes a user namespace in which their own number stays what
it was. Where a site or a container allows neither, `refusal` says why, and the replicas share the machine's
loopback. Sources: network_namespaces(7), user_namespaces(7), setns(2), netdevice(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from workshop.launch.processes import die_with_parent

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_KINDS = (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET))
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_INTERFACE = "16sh22x"


def refusal() -> str:
    """Why this machine allows no such network, or "". Tried by a child: half a network cannot be undone."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            make()
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        why = answer.read()
    os.waitpid(child, 0)
    return why


def make() -> None:
    """Move this process (one thread, nothing open yet) into a new network; OSError where it may not."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", CLONE_NEWNET)
    except PermissionError:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")  # else nobody but root may say which group it is
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    die_with_parent()
    _loopback_up()


def join(pid: int) -> None:
    """Move this process (one thread, nothing open yet) into the network of process ``pid``, which made it."""
    theirs, mine = Path(f"/proc/{pid}/ns"), Path("/proc/self/ns")
    wanted = [
        (os.open(theirs / kind, os.O_RDONLY | os.O_CLOEXEC), flag)
        for kind, flag in _KINDS
        if (theirs / kind).readlink() != (mine / kind).readlink()
    ]
    for descriptor, flag in wanted:  # the user's first: it carries the right to enter the other
        _call("setns", descriptor, flag)
        os.close(descriptor)
    die_with_parent()  # the kernel may forget it with a change of rights


def _call(name: str, *arguments: int) -> None:
    """One of the two calls, which Python has from 3.12 on only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack(_INTERFACE, b"lo", 0)
        _, flags = struct.unpack(_INTERFACE, fcntl.ioctl(any_socket, _GET_FLAGS, request))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack(_INTERFACE, b"lo", flags | _UP))
