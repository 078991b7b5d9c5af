"""A real Slurm of two "nodes" on this machine: its own folder, its own ports, no systemd, loopback only.

Debian's slurmctld, slurmd, slurm-client and munge. The daemons are children of this process, in the foreground,
so that what is ended is what was started. Jobs and their steps carry SLURM_CONF with the path of this very
configuration, by which those that are left, if any, are found.

Two things are quicker than in a centre: the scheduler looks at every submission at once, and a job that was
queued again waits six seconds and not two minutes (``cred_expire``: its old credentials must have expired).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from workshop.launch.processes import ProcessId, die_with_parent, end_all

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={controller}
SrunPortRange={first}-{last}
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmdLogFile={base}/log/slurmd-%n.log
SlurmdSpoolDir={base}/spool-%n
StateSaveLocation={base}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node1} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={node2} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=lab Nodes=node1,node2 Default=YES MaxTime=00:30:00 PriorityTier=1 State=UP
PartitionName=urgent Nodes=node1,node2 MaxTime=00:30:00 PriorityTier=9 State=UP
"""

SITE = """\
name = "two nodes on one machine"
scheduler = "slurm"

[job]
partition = "lab"
time = "00:02:00"

[node]
cpus = 2
interface = "lo"

[paths]
jobs = "{jobs}"
"""


def install() -> None:
    """Debian's packages, if they are not there; skips the test with the reason where they cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm of its own needs root (slurmd, munged)")
    if all(shutil.which(program) for program in PROGRAMS):
        return
    if shutil.which("apt-get") is None:
        pytest.skip(f"Slurm is not installed and there is no apt-get to install {' '.join(PACKAGES)}")
    lock = ["-o", "DPkg::Lock::Timeout=120"]
    command = ["apt-get", "install", "-y", "--no-install-recommends", *lock, *PACKAGES]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    except subprocess.TimeoutExpired:
        pytest.skip("apt-get install did not end within 300 s")
    if done.returncode or not all(shutil.which(program) for program in PROGRAMS):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"apt-get could not install {' '.join(PACKAGES)}: {said}")


class TwoNodes:
    """Start, look, stop. ``base``: the folder of everything; ``site``: the site's file."""

    def __init__(self, base: Path):
        self.base = base
        self.configuration = base / "slurm.conf"
        self.jobs = base / "jobs"
        self.site = base / "site.toml"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._began = False

    def start(self) -> None:
        """Bring it up and wait until both nodes are idle (about a second)."""
        for name in ("state", "log", "run", "spool-node1", "spool-node2", "munge", "jobs"):
            (self.base / name).mkdir(mode=0o755)
        self.jobs.chmod(0o700)
        (self.base / "munge" / "key").write_bytes(os.urandom(1024))
        (self.base / "munge" / "key").chmod(0o600)
        self._configure()
        munge = self.base / "munge"
        self._run(
            "munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--num-threads=2",
        )  # fmt: skip
        self._wait((munge / "socket").exists, "munged made no socket")
        self._run("slurmctld", "-D", "-c", "-f", str(self.configuration))
        for node in ("node1", "node2"):
            self._run("slurmd", "-D", "-N", node, "-f", str(self.configuration))
        self._wait(lambda: self.idle() == 2, "the nodes did not become idle")
        self._began = True

    def _configure(self) -> None:
        controller = free_range(3 + 40)
        node1, node2, first = (controller + offset for offset in (1, 2, 3))
        host = socket.gethostname().split(".")[0]
        self.configuration.write_text(
            CONFIGURATION.format(
                base=self.base, host=host, user="root", controller=controller, node1=node1, node2=node2,
                first=first, last=first + 39,
            )
        )  # fmt: skip
        self.site.write_text(SITE.format(jobs=self.jobs))

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.configuration), "WORKSHOP_SITE": str(self.site)}

    def _run(self, *command: str) -> None:
        log = (self.base / "log" / f"{Path(command[0]).name}-{len(self._daemons)}.out").open("wb")
        with log:
            self._daemons.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
                    start_new_session=True, preexec_fn=die_with_parent,  # a killed pytest leaves no daemon
                )
            )  # fmt: skip

    def ask(self, *command: str) -> str:
        """What a client prints."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=self.environment())
        return done.stdout

    def idle(self) -> int:
        return self.ask("sinfo", "-h", "-N", "-p", "lab", "-o", "%T").split().count("idle")

    def queue(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.ask("squeue", "-h", "-o", "%A").split()

    def clear(self) -> None:
        """End every job and wait until the nodes are free again: each test begins alike."""
        for job in self.queue():
            self.ask("scancel", job)
        self._wait(lambda: not self.queue() and self.idle() == 2, "jobs would not end", 30.0)

    def _wait(self, happened, otherwise: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            gone = [d.args[0] for d in self._daemons if d.poll() is not None]
            if gone or time.monotonic() > deadline:
                logs = "\n".join(
                    path.read_text(errors="replace")[-1500:] for path in sorted((self.base / "log").iterdir())
                )
                raise RuntimeError(f"{otherwise}; ended: {gone}\n{logs}")
            time.sleep(0.05)

    def stop(self) -> list[str]:
        """Take everything down, in order; returns command lines of what had to be ended by force."""
        if self._began:
            with contextlib.suppress(RuntimeError):
                self.clear()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(timeout=5)
        deadline = time.monotonic() + 5
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        end_all([process for process, _ in left], patience=1.0)
        return [command for _, command in left]

    def left(self) -> list[tuple[ProcessId, str]]:
        """Processes that carry this very SLURM_CONF, this one and those that it runs in apart."""
        found = []
        mark = f"SLURM_CONF={self.configuration}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
            except OSError:  # it has ended
                continue
            process = ProcessId.of(int(entry.name))
            if process is not None and process.alive():
                found.append((process, command))
        return found


def free_range(count: int) -> int:
    """The first of ``count`` free ports in a row, below those that the system hands out: other tests take these."""
    for first in range(21000, 31000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError(f"no {count} free ports in a row between 21000 and 31000")
