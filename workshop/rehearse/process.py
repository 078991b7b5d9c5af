"""The process of one rehearsal: a new Python, or a fork of one that has torch already.

`new_python` is the plain one. `fork` does the same, and from the second rehearsal of a notebook on nobody
imports torch again (`workshop.rehearse.fork_server`). `child` forks where that can be, which is on Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workshop.facts.launcher_variables import READ_AT_IMPORT

CHILD = "workshop.rehearse.child"
REHEARSING = "WORKSHOP_REHEARSING"
"""Set in the environment of a program that is being rehearsed."""
_SERVER = "workshop.rehearse.fork_server"
_ROOT = str(Path(__file__).resolve().parents[2])


def child(words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """``python -m workshop.rehearse.child WORDS`` to its end, with what it wrote.

    Raises:
        subprocess.TimeoutExpired: It had not ended after ``timeout`` seconds, and was ended.
    """
    if not (hasattr(os, "pidfd_open") and hasattr(socket, "send_fds")):
        return new_python(words, timeout)
    try:
        return fork(words, timeout)
    except NoServer:
        return new_python(words, timeout)


def environment() -> dict[str, str]:
    """The rehearsal's environment: one thread, no GPU, and this very package on its path.

    No GPU, for it needs none. Its forks could not use one either, should a module ask CUDA anything while the
    fork server imports.
    """
    paths = [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", REHEARSING: "1"}
    return {**os.environ, **own, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def new_python(words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`child` as an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-u", "-m", CHILD, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def fork(words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`child` as a fork of this process's fork server, which the first call starts.

    Raises:
        NoServer: The fork server did not come up, or went before it answered.
    """
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        start, out, err = (Path(folder, name) for name in ("start.json", "stdout", "stderr"))
        variables = environment()
        start.write_text(
            json.dumps({"words": list(words), "environment": variables, "folder": str(Path.cwd())})
        )
        try:
            code = _ask(start, out, err, variables, timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired([CHILD, *words], timeout, _bytes(out), _bytes(err)) from None
        written = (_bytes(file).decode(errors="replace") for file in (out, err))
        return subprocess.CompletedProcess([CHILD, *words], code, *written)


class NoServer(RuntimeError):
    """There is no fork server to ask."""


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _ask(start: Path, out: Path, err: Path, variables: Mapping[str, str], timeout: float) -> int:
    """The exit code of a fork with these files."""
    ours, theirs = socket.socketpair()
    with ours, contextlib.ExitStack() as handed_over:
        handed_over.enter_context(theirs)
        outputs = [handed_over.enter_context(file.open("ab")) for file in (out, err)]
        descriptors = [theirs.fileno(), *(output.fileno() for output in outputs)]
        try:
            socket.send_fds(_server(variables), [os.fsencode(start)], descriptors)
        except OSError as error:
            raise NoServer(str(error)) from error
        handed_over.close()  # the other side's copies are the ones that count
        ours.settimeout(timeout)
        try:
            answer = ours.recv(64)
        except ConnectionError as error:
            raise NoServer(str(error)) from error
    if not answer:
        raise NoServer("it went without an exit code")
    return int(answer)


@dataclass(frozen=True)
class _Server:
    variables: Mapping[str, str]
    requests: socket.socket
    process: subprocess.Popen[bytes] | None  # None: not ours to end

    def serves(self, read: Mapping[str, str]) -> bool:
        """Whether it is there, and read at import what is to be read now."""
        return self.process is None or (self.variables == read and self.process.poll() is None)


_starting = threading.Lock()
_running: list[_Server] = []  # one at most: each holds some hundred megabytes


def _server(variables: Mapping[str, str]) -> socket.socket:
    """The socket of the fork server, which is started anew where torch would now read other variables."""
    read = {name: value for name, value in variables.items() if name.startswith(READ_AT_IMPORT)}
    with _starting:
        if not _running or not _running[0].serves(read):
            end_server()
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", _SERVER, str(theirs.fileno())],
                    env=dict(variables),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            _running.append(_Server(read, ours, process))
        return _running[0].requests


@atexit.register
def end_server() -> None:
    """Let go of the fork server: it leaves when it has forked what it was asked for."""
    while _running:
        server = _running.pop()
        server.requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if server.process:
                server.process.wait(5.0)


def use_server(requests: socket.socket) -> None:
    """Ask the fork server at this socket, which is another process's; a rehearsal does that."""
    _running[:] = [_Server({}, requests, None)]
