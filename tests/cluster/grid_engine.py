"""A real Grid Engine on this machine: a qmaster and two execution hosts, each a network namespace of its own.

Debian's gridengine-master, -exec and -client. The cell lies in a folder of its own, no service of the system is
started, and nothing of ``/var/lib/gridengine`` is written. Grid Engine insists that a host's address gives back
its name, so the three are hosts with names and addresses (`hosts`); the notebook (this process) is none of them:
its ``qsub``, ``qstat`` ... are wrappers that step onto the master, the cell's submit host, and run there.

The daemons stay in the foreground (``SGE_ND``) and are ended with their hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts as namespaces
from tests.cluster.hosts import Host, hosts
from tools import cluster_packages
from workshop.launch.processes import die_with_parent

PURPOSE = "a Grid Engine of two execution hosts"
PROGRAMS = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
CLIENTS = ("qsub", "qstat", "qdel", "qmod", "qconf", "qhost", "qacct", "qalter", "qrsh")
MASTER, NODES = "ge-master", ("ge-node1", "ge-node2")

BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {common};{base}/spool/qmaster
binary_path /usr/lib/gridengine
qmaster_spool_dir {base}/spool/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

# The qmaster sends a signal again that no host has acknowledged, or that it was asked for again, after a minute.
RESENT_SECONDS = 75.0
# What differs from Debian's configuration: root may run jobs, and everything is told at once.
CONFIGURATION = {
    "execd_spool_dir": "{base}/spool/execd",
    "mailer": "/bin/true",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
}
SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "job_load_adjustments": "NONE",
}
# A busy machine must not close the queue (load_thresholds), and a job does not begin with what the account's
# profile takes a minute for (shell_start_mode: the script's own first line names its shell).
QUEUE = {
    "shell_start_mode": "unix_behavior",
    "qname": "lab.q",
    "hostlist": "@lab",
    "pe_list": "node",
    "slots": "2",
    "load_thresholds": "NONE",
}
ENVIRONMENT = """\
pe_name            node
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    1
control_slaves     TRUE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""

SITE = """\
name = "two execution hosts on one machine"
scheduler = "sge"

[job]
time = "00:02:00"
directives = ["-pe node {{nnodes}}"]

[node]
cpus = 2
interface = "{interface}"

[paths]
jobs = "{jobs}"
"""


def install() -> None:
    """Debian's packages, if they are not there; skips the test with the reason where they cannot be had."""
    if wrong := namespaces.why_not():
        pytest.skip(f"a Grid Engine of its own: {wrong}")
    missing = cluster_packages.missing({PURPOSE: cluster_packages.PACKAGES[PURPOSE]}).get(PURPOSE, [])
    if not missing:
        return
    if wrong := cluster_packages.may_install() or cluster_packages.install(missing):
        pytest.skip(f"Grid Engine needs {' '.join(missing)}: {wrong}")


def with_values(text: str, values: dict[str, str]) -> str:
    """Grid Engine's ``name value`` lines with some of the values changed. KeyError for a name not there."""
    for name, value in values.items():
        text, count = re.subn(rf"^{name}\s.*(?:\\\n.*)*$", f"{name} {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise KeyError(f"{name} stands {count} times in:\n{text}")
    return text


class TwoExecutionHosts:
    """Start, look, stop. ``base``: the folder of everything; ``site``: the site's file."""

    def __init__(self, base: Path):
        self.base = base
        self.cell = base / "root" / "lab" / "common"
        self.jobs = base / "jobs"
        self.site = base / "site.toml"
        self.clients = base / "bin"
        self.nodes: dict[str, Host] = {}
        self._stack = contextlib.ExitStack()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}  # by host

    def start(self) -> None:
        """Bring it up and wait until both hosts have told their load (about three seconds)."""
        for folder in (
            self.cell,
            self.base / "spool/qmaster",
            self.base / "spool/execd",
            self.clients,
            self.base / "log",
        ):
            folder.mkdir(parents=True)
        self.jobs.mkdir(mode=0o700)
        for name in ("bin", "lib", "utilbin", "util"):
            (self.base / "root" / name).symlink_to(Path("/var/lib/gridengine") / name)
        (self.cell / "act_qmaster").write_text(f"{MASTER}\n")
        (self.cell / "bootstrap").write_text(BOOTSTRAP.format(common=self.cell, base=self.base))
        self.site.write_text(SITE.format(interface=namespaces.INTERFACE, jobs=self.jobs))
        master, *nodes = self._stack.enter_context(hosts((MASTER, *NODES)))
        self.nodes = {node.name: node for node in nodes}
        self._make_clients(master)
        self._start_master(master)
        for node in nodes:
            self.ask("qconf", "-ah", node.name)
            self._daemon(node, "sge_execd")
        self._make_queue()
        self._wait(lambda: self.loads() == len(nodes), "the execution hosts did not report")

    def _start_master(self, master: Host) -> None:
        text = (SHARED / "default-configuration").read_text()
        values = {name: value.format(base=self.base) for name, value in CONFIGURATION.items()}
        configuration = self._file("configuration", with_values(text, values))
        spool = f"{self.cell};{self.base}/spool/qmaster"
        self._on(master, PROGRAMS / "spoolinit", "classic", "libspoolc", spool, "init")
        defaults = (
            ("configuration", configuration),
            ("complexes", SHARED / "util/resources/centry"),
            ("usersets", SHARED / "util/resources/usersets"),
            ("managers", "root"),
        )
        for kind, source in defaults:
            self._on(master, PROGRAMS / "spooldefaults", kind, source)
        self._daemon(master, "sge_qmaster")
        self._wait(lambda: "execd_spool_dir" in self.ask("qconf", "-sconf"), "the qmaster does not answer")
        self.ask("qconf", "-as", MASTER)

    def _make_queue(self) -> None:
        self.ask("qconf", "-Ahgrp", self._file("group", f"group_name @lab\nhostlist {' '.join(NODES)}\n"))
        self.ask("qconf", "-Ap", self._file("environment", ENVIRONMENT))
        self.ask("qconf", "-Aq", self._file("queue", with_values(self.ask("qconf", "-sq"), QUEUE)))
        self.ask(
            "qconf", "-Msconf", self._file("scheduler", with_values(self.ask("qconf", "-ssconf"), SCHEDULER))
        )

    def _file(self, name: str, text: str) -> str:
        path = self.base / name
        path.write_text(text)
        return str(path)

    def _make_clients(self, master: Host) -> None:
        """``qsub`` and the others, as they are on a login node: they run on the master."""
        prefix = f"nsenter --target={master.keeper.pid} --net --uts --mount"
        for name in CLIENTS:
            path = self.clients / name
            path.write_text(f'#!/bin/sh\nexec {prefix} --wdns="$PWD" -- {PROGRAMS}/{name} "$@"\n')
            path.chmod(0o755)

    def variables(self) -> dict[str, str]:
        """What a login node's profile sets: where the cell is, and its clients on PATH."""
        return {
            "SGE_ROOT": str(self.base / "root"),
            "SGE_CELL": "lab",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "PATH": f"{self.clients}:{os.environ['PATH']}",
            "WORKSHOP_SITE": str(self.site),
        }

    def _daemon(self, host: Host, program: str) -> None:
        # Jobs inherit what the daemon has: nothing of pytest's environment may come along.
        environment = {
            **self.variables(),
            "PATH": "/usr/bin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "SGE_ND": "1",
        }
        del environment["WORKSHOP_SITE"]
        with (self.base / "log" / f"{program}-{host.name}").open("wb") as log:
            self._daemons[host.name] = host.start(
                [str(PROGRAMS / program)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                preexec_fn=die_with_parent,  # a killed pytest leaves no daemon
            )  # fmt: skip

    @contextlib.contextmanager
    def frozen(self, host: str) -> Iterator[None]:
        """Within the block this host's daemon hears nothing; its jobs run on."""
        self._daemons[host].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemons[host].send_signal(signal.SIGCONT)

    def _on(self, host: Host, *words: object) -> str:
        done = host.run([str(word) for word in words], timeout=20, env={**os.environ, **self.variables()})
        if done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def ask(self, *command: str) -> str:
        """What a client prints."""
        environment = {**os.environ, **self.variables()}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment)
        return done.stdout

    def loads(self) -> int:
        """How many execution hosts have told their load."""
        return sum(bool(re.match(r"ge-node\d\s+lx\S*\s+\d", line)) for line in self.ask("qhost").splitlines())

    def queue(self) -> list[str]:
        """Numbers of the jobs that wait or run, in order."""
        return sorted(
            set(re.findall(r"<JB_job_number>(\d+)<", self.ask("qstat", "-xml", "-u", "*"))), key=int
        )

    def clear(self) -> None:
        """End every job and wait until the hosts are free again: each test begins alike.

        What does not go by itself is forced out of the queue: the next test need not suffer for it.
        """
        if jobs := self.queue():
            self.ask("qdel", *jobs)
        try:
            self._wait(lambda: not self.queue(), "jobs would not end", RESENT_SECONDS)
        except RuntimeError:
            self.ask("qdel", "-f", *self.queue())
            self._wait(lambda: not self.queue(), "jobs would not end, not even by force")

    def _wait(self, happened: Callable[[], bool], otherwise: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                logs = [*(self.base / "log").iterdir(), *(self.base / "spool").rglob("messages")]
                raise RuntimeError(
                    "\n".join([otherwise, *(path.read_text(errors="replace")[-1500:] for path in logs)])
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """Take everything down: what still runs on a host ends with it."""
        for daemon in self._daemons.values():
            daemon.kill()
        self._stack.close()
