"""Before a hand-in runs: a root of its own, no network but loopback, no other processes, no rights, bounded
means.

    python -I -m workshop.classroom.grading.isolate SPEC COMMAND...

runs as the grader, and none of the learner's code is here. It makes namespaces (mount, network, processes,
IPC), lays a root of tmpfs with the system's and Python's folders bound into it read-only, gives the rights
away, sets the limits and runs the command. Root makes the namespaces as it is and then becomes a user that
nobody else is; everybody else makes a user namespace first, in which their number is a plain user's, so that
the rights end with exec.

``SPEC`` is a file with a JSON object, read and removed: ``isolated``, ``limits`` (by their names in
`resource`), ``read_only`` (folders), ``files`` (name -> text, laid into the working folder), ``space`` (bytes
of each tmpfs). A namespace that cannot be had is said on stderr and ends with code 97: nothing of the hand-in
has run then.

Sources: mount_namespaces(7), user_namespaces(7), pid_namespaces(7), pivot_root(2), capabilities(7),
netdevice(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_ISOLATED = 97
INSIDE_HOME = "/learner"
_NEW = {"mount": 0x20000, "ipc": 0x8000000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000}
_NEW_USER = 0x10000000
_BIND, _REC, _PRIVATE, _REMOUNT, _READ_ONLY, _NO_SUID, _NO_DEV = 4096, 16384, 1 << 18, 32, 1, 2, 4
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "lib32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "alternatives", "nsswitch.conf", "fonts")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM_V = ("shmall", "msgmni")  # memory that no process holds: none of it in here
_PLAIN_USER = 1000
_FIRST_USER = 2_000_000_000  # numbers that no directory of users hands out

_WHY_NONE = {
    errno.ENOSPC: ": user.max_user_namespaces allows no more",
    errno.EPERM: ": user namespaces are switched off here, or this container may make none",
}

libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> int:
    """Isolate and run; the command's exit code, 128 + N for a signal, 97 where it could not be isolated."""
    written, command = Path(arguments[0]), list(arguments[1:])
    spec = json.loads(written.read_text(encoding="utf-8"))
    written.unlink()
    die_with_parent()
    if not spec["isolated"]:
        _limit(spec["limits"])
        os.execv(command[0], command)
    try:
        inside = _namespaces()
    except OSError as error:
        print(f"no namespaces: {error}{_WHY_NONE.get(error.errno or 0, '')}", file=sys.stderr)
        return NOT_ISOLATED
    child = os.fork()
    if child:
        return _code(os.waitpid(child, 0)[1])
    return _first_process(spec, command, inside)


def _first_process(spec: dict[str, Any], command: list[str], inside: int) -> int:
    """Process 1 of the new namespace: when it ends, all others there do."""
    die_with_parent()
    try:
        _lay_root(spec, inside)
        _loopback_up()
    except OSError as error:
        print(f"no root of its own: {error}", file=sys.stderr)
        os._exit(NOT_ISOLATED)
    child = os.fork()
    if child == 0:
        _give_rights_away(inside)
        _limit(spec["limits"])
        os.chdir(f"{INSIDE_HOME}/work")
        os.execv(command[0], command)
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(_code(status))


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent goes."""
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def _namespaces() -> int:
    """Make them; returns the number of the user that the hand-in will be, inside."""
    wanted = sum(_NEW.values())
    user, group = os.getuid(), os.getgid()
    if user == 0 and _has_all_numbers() and libc.unshare(wanted) == 0:
        return _FIRST_USER + os.getpid()
    _call("unshare", wanted | _NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_PLAIN_USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_PLAIN_USER} {group} 1")
    return _PLAIN_USER


def _has_all_numbers() -> bool:
    """Whether this root can become any user: not so in a container that is itself a user namespace."""
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    return first == 0 and count > _FIRST_USER + (1 << 22)  # the largest number of a process


def _lay_root(spec: dict[str, Any], user: int) -> None:
    """A tmpfs as root, with what a Python needs bound into it, and what is the hand-in's own."""
    _mount("none", "/", None, _REC | _PRIVATE)
    root = Path(spec["root"])
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEV, "mode=755,size=16m")
    space = f"mode=1777,size={spec['space']}"
    for name in ("tmp", "dev", "proc", "etc", INSIDE_HOME[1:]):
        (root / name).mkdir()
    for name in ("tmp", INSIDE_HOME[1:]):
        _mount("tmpfs", root / name, "tmpfs", _NO_SUID | _NO_DEV, space)
    for name in _SYSTEM:
        _system_folder(Path("/") / name, root)
    for each in (*(Path("/etc") / name for name in _ETC), *map(Path, spec["read_only"])):
        if each.exists():
            _bind_read_only(each, root)
    (root / "dev/shm").mkdir()
    _mount("tmpfs", root / "dev/shm", "tmpfs", _NO_SUID | _NO_DEV, space)
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _mount(f"/dev/{name}", root / "dev" / name, None, _BIND)
    _mount("proc", root / "proc", "proc", _NO_SUID | _NO_DEV)
    (root / "etc/passwd").write_text(f"learner:x:{user}:{user}::{INSIDE_HOME}:/bin/sh\n")
    (root / "etc/group").write_text(f"learner:x:{user}:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    work = root / INSIDE_HOME[1:] / "work"
    work.mkdir(parents=True)
    for name, text in spec["files"].items():
        (work / name).write_text(text, encoding="utf-8", errors="replace")
    for path in (work.parent, work, *work.iterdir()):
        os.chown(path, user, user)
    os.chdir(root)
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root has no known number on {platform.machine()}")
    _checked(libc.syscall(number, b".", b"."), "pivot_root")
    _call("umount2", b".", _DETACH)
    os.chdir("/")
    for limit in _SYSTEM_V:
        Path("/proc/sys/kernel", limit).write_text("0")
    _mount("none", "/", None, _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV, "mode=755,size=16m")
    socket.sethostname("sandbox")


def _system_folder(path: Path, root: Path) -> None:
    if path.is_symlink():  # /bin -> usr/bin
        (root / path.name).symlink_to(path.readlink())
    elif path.is_dir():
        _bind_read_only(path, root)


def _bind_read_only(path: Path, root: Path) -> None:
    """Bind, then remount: a bind's own flags are taken only the second time."""
    target = root / str(path)[1:]
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(path, target, None, _BIND | _REC)
    flags = os.statvfs(target).f_flag & (2 | 4 | 8)  # nosuid, nodev, noexec stay, or a user namespace refuses
    _mount("none", target, None, _BIND | _REMOUNT | _READ_ONLY | flags | _NO_SUID)


def _give_rights_away(user: int) -> None:
    if os.getuid() == 0:  # root, without a user namespace
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    die_with_parent()  # forgotten with the change of user
    _checked(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")


def _limit(limits: dict[str, int]) -> None:
    for name, most in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        within = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (within, within))


def _mount(source: Any, target: Any, kind: str | None, flags: int, data: str = "") -> None:
    arguments = (str(source).encode(), str(target).encode(), kind.encode() if kind else None)
    if libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def _call(name: str, *arguments: Any) -> None:
    _checked(getattr(libc, name)(*arguments), name)


def _checked(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        _, flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, 0x8913, request))
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", flags | 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
