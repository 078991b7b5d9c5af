"""Install the Debian packages that some tests drive: Slurm, Grid Engine, hosts, containers, a browser.

`make test-cluster` calls it first. It asks dpkg what is there, and installs the rest where it may: as root on
a machine with apt. Elsewhere it says what is missing and ends well; the tests that need it are skipped, each
with that reason. Nothing is configured and no service is started: the tests bring up their own, in folders of
their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# What for, and the programs of each package by which the tests find it.
PACKAGES: dict[str, dict[str, str]] = {
    "a Slurm of two nodes": {
        "slurmctld": "slurmctld",
        "slurmd": "slurmd",
        "slurm-client": "sbatch",
        "munge": "munged",
    },
    "a Grid Engine of two execution hosts": {
        "dma": "sendmail",  # Grid Engine wants a mailer: the smallest, where there is none
        "gridengine-master": "sge_qmaster",
        "gridengine-exec": "sge_execd",
        "gridengine-client": "qsub",
    },
    "hosts as network namespaces": {"iproute2": "ip", "util-linux": "unshare"},
    "a host that is reached by ssh": {"openssh-server": "sshd", "openssh-client": "ssh"},
    "a container": {
        "mmdebstrap": "mmdebstrap",
        "patchelf": "patchelf",
        "squashfs-tools": "mksquashfs",
        "squashfuse": "squashfuse",
        "uidmap": "newuidmap",
        "fakeroot": "fakeroot",
        "charliecloud": "ch-run",
    },
    "a browser": {"chromium": "chromium"},
}
SECONDS = 300


def missing(packages: dict[str, dict[str, str]] = PACKAGES) -> dict[str, list[str]]:
    """Packages whose program is not found, by what they are for."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    absent = {
        purpose: [package for package, program in programs.items() if not shutil.which(program, path=path)]
        for purpose, programs in packages.items()
    }
    return {purpose: names for purpose, names in absent.items() if names}


def may_install() -> str:
    """Why packages cannot be installed here; nothing where they can."""
    if not shutil.which("apt-get"):
        return "there is no apt-get here"
    return "" if os.geteuid() == 0 else "that takes root"


def apt(*words: str) -> subprocess.CompletedProcess[str]:
    """One apt-get, which asks nothing, starts no service, and waits for another's lock for a while."""
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *words]
    # policy-rc.d is asked before a package starts its service; 101 means no.
    policy = Path("/usr/sbin/policy-rc.d")
    mine = not policy.exists()
    if mine:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    finally:
        if mine:
            policy.unlink(missing_ok=True)


def install(names: list[str]) -> str:
    """Install; nothing where that went well, else the last line of what apt said."""
    try:
        done = apt("install", "-y", "--no-install-recommends", *names)
        if done.returncode:  # a list of packages that was never fetched, or is old
            apt("update")
            done = apt("install", "-y", "--no-install-recommends", *names)
    except subprocess.TimeoutExpired:
        return f"apt-get took longer than {SECONDS} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]


def main() -> int:
    """Install what is missing, purpose by purpose: one that cannot be had does not cost the others."""
    for purpose, names in missing().items():
        why = may_install() or install(names)
        if why:
            print(f"cluster: for {purpose} {', '.join(names)} would be needed ({why}); its tests are skipped")
        else:
            print(f"cluster: installed {', '.join(names)} for {purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
