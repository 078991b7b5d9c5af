"""How a program is started on another node: by Slurm's `srun`, or by commands that the caller gives.

A starter is anything that can say which command runs a program on node K, and hands that program its stdin
and stdout. Over these two pipes the program and the notebook exchange their public keys (`nodes.wire`), and
the pipe's end tells the program that its starter has gone: then it ends its ranks and itself.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from workshop.launch.environment import engine_environment
from workshop.launch.processes import ProcessId, end_all
from workshop.launch.session import EngineError

MARK = "workshop-node "  # begins the program's line among whatever a login shell may print
HANDSHAKE_SECONDS = 60.0
SLURM_SECONDS = 10.0
_PROGRAM = ("-P", "-c", "from workshop.launch.nodes.program import main; main()")


class Starter(Protocol):
    """See the module's docstring. ``names``: the further nodes, in the order of their ranks."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the nodes are called."""
        ...

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """The command that runs ``program`` on node ``node`` of `names`."""
        ...


@dataclass(frozen=True)
class Commands:
    """One prefix for each node: ``(("ssh", "-T", "b"),)``, or `nsenter` into a network of one's own."""

    names: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.prefixes) or not self.names:
            raise ValueError(f"{len(self.names)} names for {len(self.prefixes)} commands: one for each node")

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """The prefix and the program."""
        return [*self.prefixes[node], *program]


@dataclass(frozen=True)
class Srun:
    """Nodes of the Slurm allocation that this process is in; each program is a job step of its own."""

    names: tuple[str, ...]

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """One task on that node, beside whatever else the job runs there, with all of its cores."""
        return [
            *("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={self.names[node]}"),
            *("--cpu-bind=none", "--export=ALL", "--unbuffered", "--quiet", "--kill-on-bad-exit=1"),
            *program,
        ]


def allocated_nodes() -> list[str]:
    """The nodes of the Slurm allocation that this process is in; ValueError where it is in none."""
    wanted = os.environ.get("SLURM_JOB_NODELIST", "")
    if not wanted:
        raise ValueError(
            "several nodes need an allocation, and this notebook is in none (no SLURM_JOB_NODELIST). "
            "Start it inside one: salloc --nodes 2, then workshop lab"
        )
    if shutil.which("scontrol") is None or shutil.which("srun") is None:
        raise ValueError("Slurm's srun and scontrol are not on the PATH of this notebook")
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", wanted],
            capture_output=True, text=True, timeout=SLURM_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(f"scontrol gave no answer in {SLURM_SECONDS:.0f} s") from None
    if done.returncode or not done.stdout.split():
        raise ValueError(f"scontrol cannot read the nodes {wanted!r}: {done.stderr.strip()}")
    return done.stdout.split()


def this_node() -> str:
    """What Slurm calls this node, or its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


class NodeProcess:
    """A node's program as seen from here: the starter's process, and the words exchanged by its pipes."""

    def __init__(self, name: str, command: Sequence[str], log: Path):
        self.name = name
        self.log = log
        path = os.pathsep.join(filter(None, [engine_environment()["PYTHONPATH"]]))
        try:
            with log.open("wb") as errors:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise EngineError(f"node {name}: cannot run {command[0]} ({error.strerror})") from None
        self.starter = ProcessId.of(self._process.pid)

    def hear_key(self, seconds: float = HANDSHAKE_SECONDS) -> dict[str, Any]:
        """The program's first line; EngineError with the end of its log when it does not come."""
        stdout: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        os.set_blocking(stdout.fileno(), False)
        deadline, heard = time.monotonic() + seconds, b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(0.5):
                    continue
                block = stdout.read()
                if not block:
                    break
                heard += block
                for line in heard.split(b"\n")[:-1]:
                    if line.startswith(MARK.encode()):
                        return json.loads(line[len(MARK) :])
        raise EngineError(f"node {self.name} did not answer within {seconds:.0f} s. {self.last_words()}")

    def tell(self, **message: Any) -> None:
        """The notebook's one line."""
        stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise EngineError(f"node {self.name} ended while it started. {self.last_words()}") from None

    def ended(self) -> bool:
        """Has the starter ended, and the program with it?"""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The end of what the starter and the program wrote to stderr."""
        tail = self.log.read_text(errors="replace").strip().splitlines()[-4:] if self.log.exists() else []
        return f"It wrote: {' | '.join(tail)}" if tail else "It wrote nothing."

    def close(self, patience: float = 5.0) -> None:
        """Close the pipes, which ends the program; end the starter itself if it stays."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # a last line that nobody read
                    continue
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            end_all([self.starter] if self.starter else [], patience=1.0)
            self._process.wait(patience)


def program(python: str = "") -> list[str]:
    """The command line of the program on a node: nothing in it is secret."""
    return [python or sys.executable, *_PROGRAM]
