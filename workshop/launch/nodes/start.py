"""How a program is started on another node: by Slurm's `srun`, by `ssh`, or by other commands.

    Srun(("node2", "node3"))           steps of the allocation that the notebook is in
    Ssh(("node2", "ada@node3"))        hosts that let us in without a password
    Commands(("b",), (("nsenter", "--target=12", "--net", "--"),))

A starter is anything that can say which command runs a program on node K, and hands that program its stdin
and stdout. Over these two pipes the program and the notebook exchange their public keys (`nodes.wire`), and
the pipe's end tells the program that its starter has gone: then it ends its ranks and itself.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from workshop import __version__
from workshop.launch.messages import from_json, to_json
from workshop.launch.nodes.messages import Hello, Invitation
from workshop.launch.processes import ProcessId, end_all
from workshop.launch.session import EngineError
from workshop.site.apptainer_command import NODE_VARIABLES, container_line
from workshop.site.current import engine_environment, python_of, site_environment
from workshop.site.job import exported_by_prologue, opening_lines
from workshop.site.spec import SiteSpec

MARK = "workshop-node "  # begins the program's line among whatever a login shell may print
HANDSHAKE_SECONDS = 60.0
SLURM_SECONDS = 10.0
INSIDE = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CH_RUNNING")  # set for who is in a container
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

    def address(self, node: int) -> str:
        """The IPv4 address by which this machine reaches that node; "" where nobody knows."""
        ...


@dataclass(frozen=True)
class Commands:
    """One prefix for each node, which runs the words that follow it as they are: `nsenter`, `env`."""

    names: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.prefixes) or not self.names:
            raise ValueError(f"{len(self.names)} names for {len(self.prefixes)} commands: one for each node")
        for prefix in self.prefixes:
            if prefix and Path(prefix[0]).name in ("ssh", "rsh"):
                raise ValueError(
                    f"{shlex.join(prefix)}: ssh joins the words that follow it into one text for the shell "
                    "there; Ssh(names) quotes them for it"
                )

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """The prefix and the program."""
        return [*self.prefixes[node], *program]

    def address(self, node: int) -> str:
        """Where the node's name leads to."""
        return reached_at(self.names[node])


@dataclass(frozen=True)
class Ssh:
    """Nodes that are reached by ssh, without a password: names as ssh knows them, with USER@ or without.

    ssh does not hand words on: it joins them with blanks, and the login shell of the node takes that text
    apart again. So the program goes as one word, quoted for a shell.
    """

    names: tuple[str, ...]
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or any(not name or name.startswith("-") for name in self.names):
            raise ValueError(
                f"Ssh{self.names}: the names of one node or more, as in Ssh(('node2', 'ada@node3'))"
            )

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """No terminal, no question that nobody could answer, and the whole program as one word."""
        return ["ssh", "-T", "-o", "BatchMode=yes", *self.options, self.names[node], shlex.join(program)]

    def address(self, node: int) -> str:
        """Where the node's name leads to."""
        return reached_at(self.names[node].rpartition("@")[2])


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

    def address(self, node: int) -> str:
        """What Slurm knows as the node's address; it need not be what the name leads to."""
        match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", self.names[node], "--oneliner"))
        return reached_at(match[1] if match else self.names[node])


def reached_at(host: str) -> str:
    """The IPv4 address that a host's name leads to; "" for nowhere, and for a name that leads to loopback."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return ""
    return "" if address.startswith("127.") and host not in (address, "localhost") else address


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
    names = _scontrol("show", "hostnames", wanted).split()
    if not names:
        raise ValueError(f"scontrol knows no nodes of {wanted!r}")
    return names


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=SLURM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"scontrol gave no answer in {SLURM_SECONDS:.0f} s") from None
    if done.returncode:
        raise ValueError(f"scontrol {' '.join(words)} refused: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def this_node() -> str:
    """What Slurm calls this node, or its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


class NodeProcess:
    """A node's program as seen from here: the starter's process, and the words exchanged by its pipes."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ):
        self.name = name
        self.log = log
        try:
            with log.open("wb") as errors:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env={**os.environ, **(environment or {})}, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise EngineError(f"node {name}: cannot run {command[0]} ({error.strerror})") from None
        self.starter = ProcessId.of(self._process.pid)

    def hear_hello(self, seconds: float = HANDSHAKE_SECONDS) -> Hello:
        """The program's first line; EngineError with the end of its log when it does not come."""
        stdout: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        os.set_blocking(stdout.fileno(), False)
        deadline, received = time.monotonic() + seconds, b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(0.5):
                    continue
                block = stdout.read()
                if not block:
                    break
                received += block
                for line in received.split(b"\n")[:-1]:
                    if line.startswith(MARK.encode()):
                        return self._checked(line[len(MARK) :])
        raise EngineError(f"node {self.name} did not answer within {seconds:.0f} s. {self.last_words()}")

    def _checked(self, line: bytes) -> Hello:
        try:
            hello: Hello = from_json(Hello, line)
        except ValueError as error:
            raise EngineError(f"node {self.name} runs another workshop than this notebook: {error}") from None
        if hello.version != __version__:
            raise EngineError(
                f"node {self.name} runs workshop {hello.version} and this notebook {__version__}: install "
                "the same on both, or build the site's container anew"
            )
        return hello

    def invite(self, invitation: Invitation) -> None:
        """The notebook's one line."""
        stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        try:
            stdin.write(to_json(invitation).encode() + b"\n")
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


def runs_here(site: SiteSpec, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this very process runs in the software of the site's nodes: its container, or its Python."""
    if site.container:
        return any(environment.get(name) for name in INSIDE)
    return not site.python or Path(site.python).parent == Path(sys.executable).parent


def program(site: SiteSpec | None = None, folder: str = "") -> list[str]:
    """The command line of the program on a node: nothing in it is secret.

    Args:
        site: whose software it runs: modules, prologue and container, or Python. None: the notebook's own.
        folder: the working folder, which a container binds and enters.
    """
    if site is None:
        path = f"PYTHONPATH={engine_environment()['PYTHONPATH']}"
        return ["env", path, sys.executable, *_PROGRAM]
    words = [python_of(site), *_PROGRAM]
    opening = opening_lines(site)
    line = container_line(
        site,
        folder=folder,
        environment=site_environment(site, one_node=False),
        node_variables=(*NODE_VARIABLES[site.gpu], "OMP_NUM_THREADS", *exported_by_prologue(site)),
    )
    if not line and not opening:
        return words
    shell = ["bash", "-l"] if site.modules else ["bash"]
    return [*shell, "-c", "\n".join([*opening, 'eval "exec $0 \\"\\$@\\""']), line, *words]
