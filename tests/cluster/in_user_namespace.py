"""Run a command in a user and mount namespace of its own, every number mapped to itself (needs real root outside).

A container's root often lacks capabilities that building an image asks for; in a namespace of its own it has all.

    python in_user_namespace.py COMMAND ...
"""

import ctypes
import os
import sys

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000


def main() -> int:
    asked, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: not without its parent
        os.write(asked[1], b"x")
        os.read(mapped[0], 1)
        os.setgid(0)
        os.setuid(0)
        os.execvp(sys.argv[1], sys.argv[1:])
    os.close(asked[1])  # a child that could not unshare leaves nothing to read
    if os.read(asked[0], 1):
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write("0 0 65536")
        os.write(mapped[1], b"x")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
