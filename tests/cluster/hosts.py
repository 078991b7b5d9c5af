"""Hosts on one machine: network namespaces with names and addresses of their own, cabled to one switch.

    with hosts() as (a, b, stranger):
        a.run(["hostname"])            # waits for the program's end
        b.start([...])                 # a Popen
        b.cable("down")                # pulled out

Each host, and the switch, is a process that sits in new network, UTS and mount namespaces and waits. Its hosts
file is mounted in its own mount namespace, so that nothing of the machine's is written and no name of the machine
is taken. When that process ends, its namespaces go, and the cables with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.launch.processes import ProcessId, die_with_parent, end_all

LIMIT_SECONDS = 10.0
INTERFACE = "wnet0"
_IN_HOST = """
set -e
hostname {name}
mount --make-rprivate /
mount --bind {hosts} /etc/hosts
ip link set lo up
echo ready
exec sleep infinity
"""


def why_not() -> str:
    """Why hosts cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"],
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return "" if tried.returncode == 0 else "this machine lets nobody make network namespaces"


@dataclass
class Host:
    """One host: its name, its address, and the process that keeps it."""

    name: str
    address: str
    keeper: ProcessId
    switch: ProcessId
    number: int
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def prefix(self) -> tuple[str, ...]:
        """What to put before a command so that it runs on this host."""
        return (
            "nsenter",
            f"--target={self.keeper.pid}",
            "--net",
            "--uts",
            "--mount",
            f"--wdns={Path.cwd()}",
            "--",
        )

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host; it is ended when the hosts go."""
        process = subprocess.Popen([*self.prefix(), *command], **options)
        self.started.append(process)
        return process

    def run(self, command: Sequence[str], timeout: float = LIMIT_SECONDS, **options: Any) -> Any:
        """Run a program on this host to its end."""
        return subprocess.run(
            [*self.prefix(), *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )

    def cable(self, state: str) -> None:
        """Plug this host's cable into the switch (``up``) or pull it (``down``)."""
        _in_net(self.switch, "ip", "link", "set", f"port{self.number}", state)

    def slow_down(self, bytes_per_second: float) -> None:
        """Shape what leaves this host to that rate, by a token bucket that lasts for 5 ms."""
        rate, burst = f"{round(bytes_per_second * 8)}bit", f"{max(65536, round(bytes_per_second * 0.005))}"
        shape = ("root", "tbf", "rate", rate, "burst", burst, "latency", "400ms")
        _in_net(self.keeper, "tc", "qdisc", "replace", "dev", INTERFACE, *shape)

    def full_speed(self) -> None:
        """Take the shaping away."""
        _in_net(self.keeper, "tc", "qdisc", "del", "dev", INTERFACE, "root")

    def processes(self) -> list[ProcessId]:
        """Everything that runs on this host now, but for its keeper."""
        mine = Path(f"/proc/{self.keeper.pid}/ns/net").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/net").readlink() == mine:
                    process = ProcessId.of(int(entry.name))
                    if process is not None and process != self.keeper and process.alive():
                        found.append(process)
        return found


def _in_net(keeper: ProcessId, *command: str) -> None:
    whole = ["nsenter", f"--target={keeper.pid}", "--net", "--", *command]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _keep(name: str, hosts_file: Path) -> ProcessId:
    """A process that holds the namespaces of one host."""
    script = _IN_HOST.format(name=name, hosts=hosts_file)
    process = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True,
        preexec_fn=die_with_parent,  # a killed pytest leaves no host
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"the host {name} did not come up"
    process.stdout.close()
    keeper = ProcessId.of(process.pid)
    assert keeper is not None
    _KEEPERS.append(process)
    return keeper


_KEEPERS: list[subprocess.Popen[str]] = []


@contextlib.contextmanager
def hosts(names: Sequence[str] = ("ws-a", "ws-b", "ws-stranger")) -> Iterator[tuple[Host, ...]]:
    """Hosts of these names at 10.98.7.1, 10.98.7.2, ... on one switch; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="wshosts"))
    made: list[Host] = []
    begun = len(_KEEPERS)
    try:
        addresses = {name: f"10.98.7.{number}" for number, name in enumerate(names, 1)}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        switch = _keep("ws-switch", folder / "hosts")
        _in_net(switch, "ip", "link", "add", "bridge0", "type", "bridge")
        _in_net(switch, "ip", "link", "set", "bridge0", "up")
        for number, (name, address) in enumerate(addresses.items(), 1):
            keeper = _keep(name, folder / "hosts")
            port = f"port{number}"
            _in_net(
                switch,
                "ip",
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                INTERFACE,
                "netns",
                str(keeper.pid),
            )
            _in_net(switch, "ip", "link", "set", port, "master", "bridge0", "up")
            _in_net(keeper, "ip", "addr", "add", f"{address}/24", "dev", INTERFACE)
            _in_net(keeper, "ip", "link", "set", INTERFACE, "up")
            made.append(Host(name, address, keeper, switch, number))
        _wait_for_the_switch(made)
        yield tuple(made)
    finally:
        for host in made:
            end_all(host.processes(), patience=1.0)
            for process in host.started:
                process.wait(LIMIT_SECONDS)
                for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                    pipe.close()
        for process in _KEEPERS[begun:]:
            process.kill()
            process.wait(LIMIT_SECONDS)
        del _KEEPERS[begun:]
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_the_switch(made: Sequence[Host]) -> None:
    """A port that was just plugged in forwards a moment later."""
    deadline = time.monotonic() + LIMIT_SECONDS
    code = "import socket,sys; s=socket.socket(); s.settimeout(1); sys.exit(s.connect_ex((sys.argv[1], 9)) not in (0, 111))"
    for host in made[1:]:
        while host.run([sys.executable, "-S", "-c", code, made[0].address]).returncode:
            assert time.monotonic() < deadline, f"{host.name} does not reach {made[0].name}"
            time.sleep(0.05)


_CONSOLE = """
import json, signal, sys, time
from workshop import launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore it
names = {"launch": launch, "time": time}
for line in sys.stdin:
    began = time.monotonic()
    try:
        exec(json.loads(line), names)
        answer = {"value": names.pop("answer", None)}
    except BaseException as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    answer["seconds"] = time.monotonic() - began
    print(json.dumps(answer), flush=True)
"""


class HostError(Exception):
    """What a program on a host raised: ``kind`` is the exception's name."""

    def __init__(self, kind: str, text: str, seconds: float):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.seconds = kind, text, seconds


class Console:
    """A Python on a host, in place of a notebook: it runs what it is given and keeps its variables."""

    def __init__(self, host: Host):
        self.host = host
        command = [sys.executable, "-c", _CONSOLE]
        self.process = host.start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def send(self, code: str) -> None:
        """Have it run something, without waiting."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def hear(self, timeout: float = 150.0) -> Any:
        """The value of its variable ``answer``; raises `HostError` where what it ran has raised."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(timeout), f"no answer from {self.host.name} in {timeout:g} s"
        said = json.loads(self.process.stdout.readline())
        if "error" in said:
            raise HostError(said["error"], said["text"], said["seconds"])
        return said["value"]

    def __call__(self, code: str, timeout: float = 150.0) -> Any:
        """`send` and `hear`."""
        self.send(code)
        return self.hear(timeout)

    def close(self) -> None:
        """End it as a notebook is shut down."""
        self.process.stdin.close()
        self.process.wait(LIMIT_SECONDS)
        self.process.stdout.close()


def wait_until_gone(hosts: Sequence[Host], seconds: float) -> list[str]:
    """What still runs on these hosts after so many seconds, as command lines."""
    deadline = time.monotonic() + seconds
    while (left := [p for host in hosts for p in host.processes()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [Path(f"/proc/{p.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:150] for p in left]
