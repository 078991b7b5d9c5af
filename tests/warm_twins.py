"""Forks of a kernel to be, which wait to become its engine and its server of rehearsals (`tests.warm_kernels`).

A lesson that calls ``accelerate launch`` has more of them, which become that (`tests.plain_accelerate`).

A module of its own: a kernel imports neither pytest nor jupyter_client's half of a notebook.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import warm_python
from tests.warm_python import ABOVE, READ_AT_IMPORT, Program, descriptor_of
from workshop.launch import processes

NUM_TWINS = 2
ACCELERATE = ["-m", "accelerate.commands.launch"]
_BECOME = (
    ("-P", "-c", "from workshop.launch.child.supervisor import main; main()"),
    ("-m", "workshop.rehearse.fork_server"),
)
_NO_CHOICE = ("PYTHONPATH", "PYTHONUNBUFFERED")  # a twin reads these when it becomes the program
_INLINE = "module://matplotlib_inline.backend_inline"


def prepare(kernel: dict[str, Any]) -> None:
    """In the fork that will be this kernel: its twins."""
    environment = kernel["environment"]
    # ipykernel ends with this one; it read the variable when it was imported.
    environment["JPY_PARENT_PID"] = str(os.getppid())
    kernel["words"].append(f"--IPKernelApp.parent_handle={os.getppid()}")
    environment.setdefault("MPLBACKEND", _INLINE)  # as ipykernel sets it, before matplotlib is imported
    import matplotlib

    matplotlib.rcParams["backend"] = environment["MPLBACKEND"]
    at_import = warm_python.environment_at_start()
    twins = [Twin() for _ in range(NUM_TWINS + kernel["launches"])]
    from workshop.launch import session
    from workshop.rehearse import process

    session.subprocess = process.subprocess = WithTwins(twins[:NUM_TWINS], at_import)  # type: ignore[assignment]
    subprocess.run = WithTwins(twins[NUM_TWINS:], at_import).run  # type: ignore[assignment]
    wires = [os.dup2(twin.wire.detach(), ABOVE + 50 + place) for place, twin in enumerate(twins)]
    for twin, number in zip(twins, wires, strict=True):
        twin.wire = socket.socket(fileno=number)


class Twin:
    """A fork of a kernel to be, which waits for its program; then, to the kernel, a ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        self.wire, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self.wire.detach()
            _wait_and_become(theirs.detach())
        theirs.close()

    def begin(self, words: Sequence[str], options: Mapping[str, Any]) -> Twin:
        """Be ``words``."""
        self.args = words
        with open(os.devnull, "r+b") as nothing:
            streams = [
                descriptor_of(options.get(name), nothing.fileno(), number)
                for number, name in enumerate(("stdin", "stdout", "stderr"))
            ]
            folder = str(options.get("cwd") or Path.cwd())
            passed = options.get("pass_fds", ())
            Program(words, options.get("env") or os.environ, folder, streams, passed).send(self.wire)
        self.wire.close()
        return self

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired where there is none in time."""
        if (code := self.poll()) is None:
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
            if (code := self.poll()) is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _wait_and_become(number: int) -> None:
    """In a twin: never returns but by the interpreter's end."""
    processes.die_with_parent()
    os.setsid()
    os.dup2(number, ABOVE)
    os.closerange(3, ABOVE)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    wire = socket.socket(fileno=ABOVE)
    message, descriptors, _, _ = socket.recv_fds(wire, 4096, 16)
    if not message:
        os._exit(0)  # the kernel has gone
    # As a new interpreter, it outlives the kernel: to clean up after it.
    processes._prctl(processes.PR_SET_PDEATHSIG, 0)
    wire.close()
    warm_python.become(warm_python.told(os.fsdecode(message)), descriptors)
    sys.exit()


class WithTwins:
    """The module `subprocess`, but ``Popen`` of what a twin can be takes one, while there is one."""

    def __init__(self, twins: list[Twin], at_import: Mapping[str, str]):
        self._twins = twins
        self._at_import = at_import
        self._usual_run = subprocess.run

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: list[str], **options: Any) -> Any:  # noqa: N802
        """A twin, or a new process."""
        words = command[1:]
        fits = any(tuple(words[: len(start)]) == start for start in _BECOME)
        if fits and self._free(options["env"]):
            return self._twins.pop().begin(words, options)
        return subprocess.Popen(command, **options)

    def run(self, command: Any, **options: Any) -> Any:
        """As `subprocess.run`; a twin, where a cell gives words to ``accelerate launch`` and wants what it says."""
        environment, seconds = options.get("env"), options.get("timeout")
        plain = {**options, "env": environment, "timeout": seconds} == {
            "capture_output": True,
            "text": True,
            "env": environment,
            "timeout": seconds,
        }
        fits = isinstance(command, list) and command[:3] == [sys.executable, *ACCELERATE]
        if not (fits and plain and self._free(environment or os.environ)):
            return self._usual_run(command, **options)
        words = ["-m", "tests.plain_accelerate", *(os.fspath(word) for word in command[3:])]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            twin = self._twins.pop().begin(words, {"stdout": out, "stderr": error, "env": environment})
            code = twin.wait(seconds)
            texts = [file.seek(0) or file.read() for file in (out, error)]
        return subprocess.CompletedProcess(command, code, *texts)

    def _free(self, environment: Mapping[str, str]) -> bool:
        """Whether a twin waits, and would have read what a new Python reads."""
        from workshop.facts.launcher_variables import READ_AT_IMPORT as AT_IMPORT

        def read(environment: Mapping[str, str]) -> dict[str, str]:
            known = {**READ_AT_IMPORT, **environment}
            return {n: v for n, v in known.items() if n.startswith(AT_IMPORT) and n not in _NO_CHOICE}

        return bool(self._twins) and read(environment) == read(self._at_import)
