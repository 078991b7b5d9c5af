"""Who has no key: another user of the same host, and another host. Each tries everything; nothing comes of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host
from tests.cluster.test_two_hosts_ranks import run, start_code
from workshop.launch.session import OWNER, PREFIX

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
]

NOBODY = 65534

ATTACK = r"""
import encodings.idna, json, os, pickle, socket, sys, time
import zmq
targets, files, unix, public, mark = json.loads(sys.stdin.read())
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))

class Owned:
    def __reduce__(self):
        return os.system, (f"touch {mark}",)

payload, got, tried = pickle.dumps(Owned()), [], 0
for path in files:
    tried += 1
    try:
        open(path, "rb").read()
        got.append(f"read {path}")
    except OSError:
        continue
for path in unix:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        tried += 1
        with socket.socket(socket.AF_UNIX, kind) as wire:
            try:
                wire.connect(path)
                got.append(f"connected to {path}")
            except OSError:
                continue

context = zmq.Context()

asked = []
for host, port in targets:
    tried += 1
    try:
        with socket.create_connection((host, port), timeout=0.5) as wire:
            wire.settimeout(0.3)
            wire.sendall(len(payload).to_bytes(4, "big") + payload)
            wire.sendall(payload * 20)
            wire.recv(1000)
    except OSError:
        pass
    for kind in (zmq.DEALER, zmq.PAIR):
        for curve in (False, True):
            tried += 1
            s = context.socket(kind)
            s.linger = 0
            if curve:
                s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
                s.curve_serverkey = public.encode()
            s.connect(f"tcp://{host}:{port}")
            for frames in ([b"ready", b"{}"], [b"file", b'{"rank": 1, "name": "report.data"}', payload], [payload]):
                try:
                    s.send_multipart(frames, zmq.NOBLOCK)
                except zmq.ZMQError:
                    break
            asked.append((s, f"{host}:{port}, curve {curve}"))
time.sleep(1.5)
got += [f"an answer from {name}" for s, name in asked if s.poll(0)]
print(json.dumps({"got": got, "tried": tried}))
"""


@pytest.fixture(scope="module")
def lab_of_three() -> Iterator[tuple[Host, Host, Host, Console]]:
    with lab.hosts() as (a, b, stranger):
        console = Console(a)
        console(start_code(b, n=1))
        yield a, b, stranger, console
        console.close()


def listening(host: Host) -> list[tuple[str, int]]:
    """(address, port) of every TCP socket that listens on a host."""
    lines = host.run(["ss", "-Htln"]).stdout.splitlines()
    found = [line.split()[3].rpartition(":") for line in lines]
    return [(address, int(port)) for address, _, port in found]


def session_files(*hosts: Host) -> tuple[list[str], list[str]]:
    """What the engines of these hosts (and of no other) have on disk: files, and Unix sockets."""
    here = {process.pid for host in hosts for process in host.processes()}
    paths: list[Path] = []
    for directory in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it is being made, or removed
            if json.loads((directory / OWNER).read_text())["notebook"][0] in here:
                paths += directory.rglob("*")
    assert len(paths) > 10
    return [str(p) for p in paths if p.is_file()], [str(p) for p in paths if p.is_socket()]


def attack(
    host: Host, console: Console, targets: list[tuple[str, int]], uid: int, mark: Path
) -> dict[str, Any]:
    files, unix = session_files(host) if host is console.host else ([], [])
    public = console("answer = ranks.remote.relay.keys[0].decode()")
    told = json.dumps([targets, files, unix, public, str(mark)])
    done = host.run([sys.executable, "-c", ATTACK, str(uid)], timeout=60, input=told)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Where the attack leaves its mark if anything runs it: any user may write there."""
    folder = Path("/tmp") / f"ws-mark-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder / "owned"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_nothing_listens_beyond_the_networks_own_address(lab_of_three) -> None:
    a, b, _stranger, _console = lab_of_three
    for host in (a, b):
        assert {address for address, _port in listening(host)} <= {
            host.address,
            "127.0.0.1",
        }  # a kernel's own
    assert len(listening(a)) >= 2  # the notebook for its node, and gloo


def test_another_user_of_the_same_host_reads_nothing_and_runs_nothing(lab_of_three, mark: Path) -> None:
    a, _b, _stranger, console = lab_of_three
    before = console("answer = ranks.remote.relay.gate.refused")
    done = attack(a, console, listening(a), NOBODY, mark)
    assert done["tried"] > 20
    assert done["got"] == []
    assert not mark.exists()
    assert console("answer = ranks.remote.relay.gate.refused") > before  # it was asked, and it refused
    assert run(console, "x = torch.ones(1); dist.all_reduce(x); print(x.item())") == "[ranks 0-1] 2.0\n"


def test_another_host_connects_to_nothing_and_runs_nothing(lab_of_three, mark: Path) -> None:
    a, b, stranger, console = lab_of_three
    before = console("answer = ranks.remote.relay.gate.refused")
    done = attack(stranger, console, [*listening(a), *listening(b)], 0, mark)
    assert done["tried"] >= 20
    assert done["got"] == []
    assert not mark.exists()
    assert console("answer = ranks.remote.relay.gate.refused") > before
    assert run(console, "x = torch.ones(1); dist.all_reduce(x); print(x.item())") == "[ranks 0-1] 2.0\n"


def test_no_secret_is_on_a_command_line_in_an_environment_or_in_a_file(lab_of_three) -> None:
    a, b, _stranger, console = lab_of_three
    secret = console("answer = ranks.remote.relay.keys[1].decode()").encode()
    assert len(secret) == 40
    seen = []
    for process in (*a.processes(), *b.processes()):
        here = Path(f"/proc/{process.pid}")
        seen += [(here / "cmdline").read_bytes(), (here / "environ").read_bytes()]
    files, _unix = session_files(a, b)
    seen += [Path(path).read_bytes() for path in files]
    assert len(seen) > 20
    assert not any(secret in text for text in seen)
    for path in files:
        assert Path(path).parent.stat().st_uid == os.getuid()


def test_the_attack_works_for_who_may(lab_of_three, mark: Path) -> None:
    """Else the tests above would show nothing. It comes last: who may, has now broken the engine."""
    a, _b, _stranger, console = lab_of_three
    done = attack(a, console, [], uid=0, mark=mark)
    assert any("connection_0.json" in line for line in done["got"])
    assert any(line.startswith("connected to") for line in done["got"])
