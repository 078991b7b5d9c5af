"""A Python with torch imported already: what would be a new ``python ...`` is a fork of it, in milliseconds.

One for each pytest process, started when first wanted. It imports torch, half of its compiler and what a kernel
imports, once, and then does nothing but fork. A fork is still a process of its own, in a session of its own: it may
abort, hang, print and change global state, and the next one is new. It ends as a new Python does, through the
interpreter's own end. It has no thread but its first, draws random numbers of its own, and has the environment,
folder, words and standard streams that it is given.

The warm Python leaves when its socket's other end closes, and every fork is told by the kernel to die with it: a
pytest that is killed leaves nothing behind. Kernels that are such forks: `tests.warm_kernels`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workshop.launch.processes import die_with_parent

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint.state_dict",
    "ipykernel.kernelapp",
    "ipykernel.zmqshell",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "workshop.jupyter",
    "workshop.show",
    "workshop.launch.child.rank_kernel",
    "workshop.launch.child.rank_script",
    "workshop.rehearse.stage",
    "workshop.train.on_rank",
    "workshop.parallel.ddp",
    "workshop.parallel.fsdp",
    "workshop.parallel.zero",
    "tests.warm_twins",
)
# Two to four seconds of a core, and more for each rank; imported when the first that wants them is forked.
LIBRARIES = (
    "torch._inductor.compile_fx",
    "torch.distributed.optim",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # what its engine imports in each rank
    "accelerate",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
    "peft",
    "bitsandbytes",
)
# What a library reads while it is imported: the engine's choice, which shows in no output that a test compares.
READ_AT_IMPORT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6", "DS_ACCELERATOR": "cpu"}
ABOVE = 600  # a fork closes every descriptor below, its own have been lifted
_LONGEST = 4096  # bytes of a message: a path, or a number


class Program:
    """What a fork is to be: the words after the interpreter's name, environment, folder, and descriptors.

    ``streams`` are the three standard ones; ``passed`` keep their numbers. ``preloaded`` are modules that the warm
    Python imports before it forks, if it has not.
    """

    preloaded: Sequence[str] = ()

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        streams: Sequence[int],
        passed: Sequence[int] = (),
    ):
        self.told = {
            "words": [*words],
            "environment": dict(environment),
            "folder": folder,
            "passed": [*passed],
        }
        self.descriptors = [*streams, *passed]

    def send(self, wire: socket.socket, *more: int) -> None:
        """Over a socket of datagrams; the words go by a file, which the receiver removes."""
        descriptor, path = tempfile.mkstemp(prefix="warm-")
        with open(descriptor, "w") as file:
            json.dump(self.told, file)
        message = "\0".join((path, *self.preloaded))
        socket.send_fds(wire, [os.fsencode(message)], [*more, *self.descriptors])


def become(program: dict[str, Any], descriptors: Sequence[int]) -> None:
    """In a fork with no descriptor that matters but these: be the program, up to its last line."""
    raised = [os.dup2(number, ABOVE + place) for place, number in enumerate(descriptors)]
    wanted = [0, 1, 2, *program["passed"]]
    os.closerange(0, ABOVE)
    for number, target in zip(raised, wanted, strict=True):
        os.dup2(number, target)
        os.close(number)
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    _usual_signals()
    _new_streams()
    _new_numbers()
    tempfile.tempdir = None
    words, safe = program["words"], program["words"][0] == "-P"
    kind, code, *arguments = words[safe:]
    ours = kind == "-m" and code.startswith("tests.")  # is found wherever it is to run
    first = [] if safe else [str(ROOT) if ours else program["folder"] if kind == "-m" else ""]
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*first, *paths, *_paths_at_start]
    sys.argv = [code if kind == "-m" else kind, *arguments]
    if kind == "-m":
        runpy.run_module(code, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(code, main.__dict__)


def _usual_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _new_streams() -> None:
    plain = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = open(number, "wb", 0 if plain else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(raw, "utf-8", errors, write_through=plain, line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _new_numbers() -> None:
    """A new Python draws anew, and a fork would draw what the last one drew."""
    random.seed()
    if "torch" in sys.modules:
        sys.modules["numpy"].random.seed()
        sys.modules["torch"].seed()


_paths_at_start: list[str] = []
_at_start: dict[str, str] = {}


def environment_at_start() -> dict[str, str]:
    """What the warm Python's libraries read while they were imported."""
    return _at_start


def serve(descriptor: int, preloaded: Sequence[str]) -> Callable[[], None]:
    """The warm Python. Returns in forks only: the program that is then to be run at the interpreter's top."""
    requests = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stop button is for kernels
    own = {"", str(ROOT), str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    _paths_at_start[:] = [entry for entry in sys.path if entry not in own]
    _at_start.update(os.environ)  # imports change it
    _import(preloaded)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    askers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, _LONGEST)
            _tell_ends(askers)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, 16)
            if not message:
                os._exit(0)
            path, *more = os.fsdecode(message).split("\0")
            _import(more)
            pid = os.fork()
            if pid == 0:
                return lambda: _fork(path, descriptors)
            askers[pid] = socket.socket(fileno=descriptors[0])
            for number in descriptors[1:]:
                os.close(number)


def _import(names: Sequence[str]) -> None:
    if not all(name in sys.modules for name in names):
        gc.disable()
        for name in names:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # torch's objects: no fork need look through them again
        gc.enable()


def _tell_ends(askers: dict[int, socket.socket]) -> None:
    while askers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with askers.pop(pid) as asker, contextlib.suppress(OSError):  # nobody asks any more
            asker.send(b"ended %d" % os.waitstatus_to_exitcode(status))


def _fork(message: str, descriptors: list[int]) -> None:
    die_with_parent()
    os.setsid()
    program = told(message)
    asker = socket.socket(fileno=descriptors[0])
    asker.send(b"begun %d" % os.getpid())
    asker.detach()
    if program["words"][:2] == ["-m", "ipykernel_launcher"]:
        from tests import warm_twins

        warm_twins.prepare(program)
    become(program, descriptors[1:])


def told(message: str) -> dict[str, Any]:
    """What `Program.send` sent."""
    path = Path(message)
    program = json.loads(path.read_text())
    path.unlink()
    return program


def descriptor_of(end: Any, nothing: int, usual: int) -> int:
    """What `subprocess` makes of ``stdout`` and its like, pipes left out."""
    if end is None:
        return usual
    if end == subprocess.DEVNULL:
        return nothing
    return end if isinstance(end, int) else end.fileno()


class Forked:
    """A fork of the warm Python, as a ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, program: Program):
        self._wire, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.args = program.told["words"]
        self.returncode: int | None = None
        with theirs:
            program.send(_requests(), theirs.fileno())
        word, number = self._wire.recv(_LONGEST).split() or (b"ended", b"-9")
        assert word == b"begun", f"the warm Python could not begin {self.args}"
        self.pid = int(number)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired where there is none in time."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._wire], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                words = self._wire.recv(64).split()
                self.returncode = int(words[1]) if words else -signal.SIGKILL  # with the warm Python
                self._wire.close()
            return self.returncode

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        """To this one process, if it is there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


_start_with: dict[str, str] = {}
_starting = threading.Lock()
_running: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
_TOP = "import sys; sys.path.insert(0, {root!r}); from tests.warm_python import serve; serve({number}, {names!r})()"


def start_with(environment: Mapping[str, str]) -> None:
    """The warm Python, whenever it starts, has this environment, and no variable that one test has set."""
    _start_with.update(environment)


def _requests() -> socket.socket:
    """The socket to this process's warm Python, which is started now if need be."""
    with _starting:
        if _running and _running[0][1].poll() is not None:
            _running.pop()[0].close()
        if not _running:
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        _TOP.format(root=str(ROOT), number=theirs.fileno(), names=PRELOADED),
                    ],
                    env=READ_AT_IMPORT | (_start_with or os.environ),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            _running.append((ours, process))
        return _running[0][0]


@atexit.register
def end() -> None:
    """Let go of the warm Python, which leaves; its forks with it."""
    while _running:
        requests, process = _running.pop()
        requests.close()
        process.wait()


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
    **_options: Any,
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run(command, capture_output=True, text=True)`` for ``[python, ..., "-m", module, ...]``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        streams = [file.fileno() for file in (nothing, out, err)]
        words = [*command[command.index("-m") :]]
        folder = str(cwd or Path.cwd())
        process = Forked(Program(words, os.environ if env is None else env, folder, streams))
        try:
            process.wait(timeout)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, timeout or 0.0, *map(_read, (out, err))) from None
            raise
        said = (_read(end).decode(errors="replace") for end in (out, err))
        return subprocess.CompletedProcess(command, process.wait(), *said)


def _read(file: Any) -> bytes:
    file.seek(0)
    return file.read()
