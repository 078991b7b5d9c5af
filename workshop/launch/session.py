"""The notebook's end: one supervisor process per notebook kernel, started when first needed.

`Session.get()` is the kernel's only session. It owns a private directory (mode 0700) that holds
logs, stacks, Unix sockets and reports, and a socket pair to the supervisor. Closing the socket is
all it takes to end everything, so a notebook that is killed leaves nothing behind. Should a whole
machine go down hard enough that even the supervisor could not clean up, the next session removes
what it finds: directories whose owner, by number and start time, is no more.

``TMPDIR`` may be shared by many machines, and a process number of another machine says nothing here. So
the owner's `ProcessSpace` is recorded beside it, and a session of another machine is left alone. Of another
boot or another container of this machine the lock tells that the owner keeps on its record.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path

from workshop.launch.messages import (
    COMMANDS,
    EVENTS,
    Broken,
    Cancel,
    Command,
    Event,
    OfLaunch,
    OfRanks,
    Ready,
    packed,
    unpacked,
)
from workshop.launch.processes import ProcessId, ProcessSpace, boot_time, can_lock, descendants, end_all
from workshop.site.current import engine_environment
from workshop.site.owners import NotOurs, open_own, ours, own_folder

PREFIX = "workshop-"
OWNER = "owner.json"
READY_SECONDS = 90.0  # a cold import of torch from a busy network disk takes its time
_LONGEST_OWNER = 1 << 14  # bytes of its record
_LONGEST_SOCKET_DIR = 60  # a Unix socket's path must stay under 108 bytes, file name included


class EngineError(RuntimeError):
    """The launch engine itself could not do its work (not the learner's program)."""


class Session:
    """See the module's docstring."""

    _current: Session | None = None
    _creation = threading.Lock()

    def __init__(self) -> None:
        reap_abandoned()
        self.directory = _private_directory()
        self.gpus = 0
        self._ids = itertools.count(1)
        self._events: dict[int, list[OfLaunch | OfRanks]] = {}
        self._is_ready = False
        self._broken: str | None = None
        ours, theirs = socket.socketpair()
        self.log = self.directory / "supervisor.log"
        with self.log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *["-P", "-c", "from workshop.launch.child.supervisor import main; main()"],
                    *[str(theirs.fileno()), str(self.directory)],
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=engine_environment(),
                cwd=self.directory,
                start_new_session=True,  # the stop button's SIGINT is for the notebook; it tells us
            )
        self._wire = Connection(ours.detach())
        self._send_lock = threading.Lock()
        self.process = ProcessId.of(self._process.pid)  # the supervisor
        self._record = _record_owner(self.directory, self._process.pid)
        atexit.register(self.close)

    @classmethod
    def get(cls) -> Session:
        """The session of this process, started now if need be (it warms up in the background)."""
        with cls._creation:
            if cls._current is None or not cls._current.usable():
                if cls._current is not None:
                    cls._current.close()
                cls._current = cls()
            return cls._current

    def usable(self) -> bool:
        """False once the supervisor has gone, has said that it cannot go on, or has lost its directory."""
        return self._broken is None and self._process.poll() is None and self.directory.is_dir()

    def wait_ready(self) -> None:
        """Wait for torch to be imported; EngineError with the log's end if that fails."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready:
            self.pump(0.5)
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the launch engine was not ready after {READY_SECONDS:.0f} s. {self._why()}"
                )

    def send(self, command: Command) -> int:
        """Send a command; returns its number, under which its events arrive.

        Raises ValueError for a field of another kind than the command's, EngineError where nobody hears.
        """
        number = next(self._ids)
        data = _checked(replace(command, id=number))
        self._events[number] = []
        self._put(data)
        return number

    def tell(self, command: Cancel) -> None:
        """Send a command that has no events of its own."""
        self._put(_checked(command))

    def _put(self, data: bytes) -> None:
        try:
            with self._send_lock:
                self._wire.send_bytes(data)
        except OSError:
            raise EngineError(f"the launch engine is gone. {self._why()}") from None

    def pump(self, timeout: float) -> None:
        """Take in events that arrive within ``timeout`` seconds (returns after the first batch)."""
        try:
            while self._wire.poll(timeout):
                self._take(unpacked(self._wire.recv_bytes(), EVENTS))
                timeout = 0.0
        except (EOFError, OSError):
            self._broken = "its process ended"
        if self._broken:
            raise EngineError(f"the launch engine stopped ({self._broken}). {self._why()}")

    def _take(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._is_ready = True
            self.gpus = event.gpus
        elif isinstance(event, Broken):
            self._broken = event.why
        elif event.id in self._events:
            self._events[event.id].append(event)

    def events(self, number: int, timeout: float = 0.0) -> list[OfLaunch | OfRanks]:
        """New events of one command, waiting up to ``timeout`` seconds for the first."""
        if not self._events[number]:
            self.pump(timeout)
        taken, self._events[number] = self._events[number], []
        return taken

    def descriptor(self) -> int:
        """The wire's descriptor, for a poller."""
        return self._wire.fileno()

    def forget(self, number: int) -> None:
        """Nobody waits for this command's events any more."""
        self._events.pop(number, None)

    def _why(self) -> str:
        try:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-4:]
        except OSError:
            tail = []
        return (
            "Its log ends: " + " | ".join(tail) if tail else "Run `workshop doctor` to see what is missing."
        )

    def close(self) -> None:
        """End every rank and the supervisor; safe to call twice."""
        with contextlib.suppress(OSError):
            self._wire.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it is importing torch on a busy machine, say
            below = descendants(self._process.pid)
            self._process.kill()
            self._process.wait(timeout=5)
            end_all(below, patience=0.0)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._record >= 0:
            os.close(self._record)
            self._record = -1
        atexit.unregister(self.close)
        if Session._current is self:
            Session._current = None


def _checked(message: Command | Cancel) -> bytes:
    """A message as it travels. What the supervisor would refuse is refused here, where its sender hears."""
    data = packed(message)
    unpacked(data, COMMANDS)
    return data


def _private_directory() -> Path:
    """A new directory that only this user can enter; in a place short enough for Unix sockets."""
    bases = [Path(tempfile.gettempdir())]
    if len(str(bases[0])) > _LONGEST_SOCKET_DIR:
        bases = [Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp")), Path("/tmp")]
    errors = []
    for base in bases:
        try:
            directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=ours(base, "the folder")))
            (directory / OWNER).write_text("{}")
            return directory
        except NotOurs as error:
            errors.append(str(error))
        except OSError as error:
            errors.append(f"{base}: {error.strerror}")
    raise EngineError(
        f"no place for the ranks' sockets and logs ({'; '.join(errors)}). "
        "Set TMPDIR to a directory with room that you may write to."
    )


def _record_owner(directory: Path, supervisor_pid: int) -> int:
    """Write down whose the directory is; returns the descriptor that keeps the record locked."""
    by_role = {
        name: process and [process.pid, process.start_time]
        for name, process in (
            ("notebook", ProcessId.of(os.getpid())),
            ("supervisor", ProcessId.of(supervisor_pid)),
        )
    }
    descriptor = os.open(directory / OWNER, os.O_RDWR | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks: then processes alone tell
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    content = {**by_role, "place": asdict(ProcessSpace.here()), "since": round(time.time(), 3)}
    os.write(descriptor, json.dumps(content).encode())
    return descriptor


def reap_abandoned(base: Path | None = None) -> list[Path]:
    """Remove session directories of this user on this machine whose notebook and supervisor are both gone."""
    removed = []
    for directory in (base or Path(tempfile.gettempdir())).glob(PREFIX + "*"):
        if own_folder(directory) and _is_abandoned(directory):
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
    return removed


def _is_abandoned(directory: Path) -> bool:
    """Whether a session's owner is gone; its supervisor, should it still be there, is ended."""
    try:
        with os.fdopen(open_own(directory / OWNER), "rb") as file:
            recorded = json.loads(file.read(_LONGEST_OWNER))
            place = ProcessSpace(**recorded["place"])
            notebook, supervisor = (ProcessId(*recorded[name]) for name in ("notebook", "supervisor"))
            if not place.is_here:
                here = ProcessSpace.here()
                before = place.host == here.host and float(recorded["since"]) < boot_time()
                return (place.boot == here.boot or before) and can_lock(file.fileno())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # not ours, or being made this very moment
    if notebook.alive():
        return False
    if supervisor.alive():  # it should have left by itself: give it the time it needs, then end it
        supervisor.signal(signal.SIGTERM)
        end_all([supervisor], patience=3.0)
    return True
