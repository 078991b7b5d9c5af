"""Ranks on a host that is reached by ssh: Debian's own sshd, with keys of its own, in the second host's namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts as lab
from tests.cluster.hosts import Console, Host, HostError
from tests.cluster.test_two_hosts_ranks import run
from tools import cluster_packages

PURPOSE = "a host that is reached by ssh"
pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
]

# Root logs in by key alone, on this network alone; nothing of /etc/ssh is read.
SSHD = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
START = """
from workshop.launch.nodes.ranks import StayingNodes
from workshop.launch.nodes.start import Ssh
ranks = launch.Ranks(1, launch.Limits(timeout=20), StayingNodes(Ssh(("ws-b",), {options!r})))
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Host, Host]]:
    names = cluster_packages.missing({PURPOSE: cluster_packages.PACKAGES[PURPOSE]}).get(PURPOSE, [])
    if names and (why := cluster_packages.may_install() or cluster_packages.install(names)):
        pytest.skip(f"no {', '.join(names)}: {why}")
    with lab.hosts(("ws-a", "ws-b")) as (a, b):
        yield a, b


@pytest.fixture(scope="module")
def options(pair: tuple[Host, Host], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """An sshd on the second host; the options by which ssh on the first knows it, and is known."""
    b, folder = pair[1], tmp_path_factory.mktemp("ssh")
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=20)
    (folder / "known_hosts").write_text(f"ws-b {(folder / 'host_key.pub').read_text()}")
    (folder / "sshd_config").write_text(SSHD.format(address=b.address, folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants an empty folder to lock a part of itself into
    log = (folder / "sshd.log").open("w")
    with log:
        sshd = b.start(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    deadline = time.monotonic() + 20
    while "Server listening" not in (folder / "sshd.log").read_text():
        assert sshd.poll() is None, (folder / "sshd.log").read_text()
        assert time.monotonic() < deadline, "sshd does not listen"
        time.sleep(0.05)
    known = f"UserKnownHostsFile={folder / 'known_hosts'}"
    return ("-F", "/dev/null", "-o", known, "-o", "StrictHostKeyChecking=yes", "-i", str(folder / "user_key"))


def test_ranks_over_ssh_and_nothing_stays_when_the_line_breaks(pair, options) -> None:
    console, others = Console(pair[0]), {process.pid for process in pair[1].processes()}
    console(START.format(options=options))
    text = run(
        console,
        "import socket\nx = torch.ones(1) * rank; dist.all_reduce(x)\nprint(socket.gethostname(), x.item())",
    )
    assert text == "[rank 0] ws-a 1.0\n[rank 1] ws-b 1.0\n"
    ssh = console("answer = ranks.remote._processes[0].starter.pid")
    console.send("ranks.run('import time; time.sleep(1000)')")
    time.sleep(0.5)
    os.kill(ssh, signal.SIGKILL)
    with pytest.raises(HostError, match="rank 1.*its node ws-b is gone: its program has ended"):
        console.hear(60)
    deadline = time.monotonic() + 30
    while left := [p for p in pair[1].processes() if p.pid not in others]:
        assert time.monotonic() < deadline, [Path(f"/proc/{p.pid}/cmdline").read_bytes() for p in left]
        time.sleep(0.1)
    console.close()


def test_a_key_that_is_not_known_is_told(pair, options, tmp_path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "another")]
    subprocess.run(command, check=True, timeout=20)
    console = Console(pair[0])
    with pytest.raises(HostError, match=r"node ws-b did not answer .*Permission denied \(publickey"):
        console(START.format(options=(*options[:-1], str(tmp_path / "another"))))
    console.close()
