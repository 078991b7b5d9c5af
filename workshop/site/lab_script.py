"""The batch script that starts JupyterLab on a node of the cluster.

A notebook belongs where the GPUs are, and nobody can reach a node from outside. So JupyterLab listens on the
node's loopback, behind its token, and prints the tunnel that leads there from your own machine::

    ssh -N -L 8888:127.0.0.1:8888 -J LOGIN NODE        through the login node, into the node
    ssh -N -L 8888:NODE:8888 LOGIN                     where nodes take no ssh: JupyterLab then listens on
                                                       the node's network, for all who are on it; its token
                                                       is what keeps them out

The log holds the token: script and log are for you alone (umask 077).

Sources: Slurm, ``sbatch(1)``; Grid Engine, ``qsub(1)``; OpenSSH, ``ssh(1)``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from workshop.facts.checks import check_one_line
from workshop.site.apptainer_command import NODE_VARIABLES, container_line, hidden_environment
from workshop.site.job import exported_by_prologue, opening_lines
from workshop.site.sge_script import clock, filled, one_word
from workshop.site.slurm_script import output_path, sbatch_line
from workshop.site.spec import SiteSpec

NAME = "workshop-lab"
# So that a notebook in the container knows that it is in a job, and in which.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_CONF")


@dataclass(frozen=True)
class Lab:
    """What the job serves: ``folder`` with the working copies, first ``port`` to try, how people log in.

    login: USER@HOST as one says to ssh. network: listen on the node's network and not on its loopback alone.
    python: of the node, or of the container. time: HH:MM:SS; "" takes the site's. gpus, cpus: a part of a
    node; None: all GPUs, and the cores that go with them. memory: as the scheduler writes it, "32G".
    """

    folder: str
    login: str
    python: str = "python3"
    port: int = 8888
    network: bool = False
    time: str = ""
    gpus: int | None = None
    cpus: int | None = None
    memory: str = ""

    def __post_init__(self) -> None:
        for what in ("folder", "login", "python", "time"):
            check_one_line(f"the lab's {what}", getattr(self, what))
        if self.memory and not re.fullmatch(r"\d+[KMGT]?", self.memory):
            raise ValueError(f"memory {self.memory!r}: write it as 32G")
        for what, number in (("gpus", self.gpus), ("cpus", self.cpus)):
            if number is not None and number < 0:
                raise ValueError(f"{what} {number}: zero or more")

    def part_of(self, site: SiteSpec) -> tuple[int, int]:
        """GPUs and cores to ask for. Raises ValueError where a node of the site has fewer."""
        gpus = site.gpus if self.gpus is None else self.gpus
        share = site.cpus * gpus // site.gpus if site.gpus and gpus else site.cpus
        cpus = share if self.cpus is None else self.cpus
        for what, wanted, there in (("GPUs", gpus, site.gpus), ("cores", cpus, site.cpus)):
            if wanted > there > 0:
                raise ValueError(f"{wanted} {what} are wanted and a node of {site.name} has {there}")
        return gpus, cpus


def lab_script(site: SiteSpec, lab: Lab, environment: Mapping[str, str]) -> str:
    """The script, for Slurm or a Grid Engine.

    environment: what ranks of this site are told (`site.current.site_environment`).

    Raises ValueError for a site without a scheduler, or one whose paths still hold variables.
    """
    words = [
        lab.python,
        "-m",
        "workshop",
        "lab",
        "--dir",
        lab.folder,
        "--port",
        str(lab.port),
        "--no-browser",
    ]
    words += ["--tunnel", lab.login, *(["--network"] if lab.network else [])]
    inside = container_line(
        site,
        folder=lab.folder,
        environment=environment,
        node_variables=(*NODE_VARIABLES[site.gpu], *JOB_VARIABLES, *exported_by_prologue(site)),
    )
    for name, value in environment.items():
        check_one_line(name, value)
    variables = {**environment, **hidden_environment(site, environment)}
    made = [path for path in (lab.folder, site.cache) if path]
    lines = [
        "#!/bin/bash -l" if site.modules or site.purge or site.export == "none" else "#!/bin/bash",
        *_header(site, lab),
        "",
        "# JupyterLab on a node; what it prints, the tunnel and the address among it, goes to the log.",
        "umask 077",
        *_own_log(site),
        *opening_lines(site),
        "set -euo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        f"mkdir -p {shlex.join(made)}",
        f"cd {shlex.quote(lab.folder)}",
        f"exec {inside + ' ' if inside else ''}{shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def log_path(site: SiteSpec, job: str) -> str:
    """The log of that job."""
    return f"{site.jobs}/{NAME}-{job}.log"


def _header(site: SiteSpec, lab: Lab) -> list[str]:
    time = lab.time or site.time
    gpus, cpus = lab.part_of(site)
    if site.scheduler == "slurm":
        options: list[tuple[str, object]] = [
            ("job-name", NAME),
            ("nodes", 1),
            ("ntasks-per-node", 1),
            ("cpus-per-task", cpus or ""),
            ("gpus-per-node", gpus or ""),
            ("mem", lab.memory),
            ("time", time),
            ("account", site.account),
            ("partition", site.partition),
            ("reservation", site.reservation),
            ("export", "NONE" if site.export == "none" else ""),
        ]
        lines = [sbatch_line(flag, value) for flag, value in options if value != ""]
        own = [f"#SBATCH {directive}" for directive in site.lab_directives or site.directives]
        return [*lines, *own, sbatch_line("output", output_path(site.jobs, f"{NAME}-%j.log"))]
    if site.scheduler == "sge":
        flags = [
            ("-N", NAME),
            ("-S", "/bin/bash"),
            ("-j", "y"),
            ("-o", "/dev/null"),
            ("-l", f"h_rt={clock(time)}"),
        ]
        flags += [("-A", "" if site.account_flag else site.account), ("-q", site.partition)]
        counts = {"nnodes": 1, "gpus": gpus, "cpus": cpus, "memory": lab.memory}
        wanted = site.lab_directives or site.directives
        if lab.memory and not any("{memory}" in directive for directive in wanted):
            raise ValueError(f"memory {lab.memory}: no directive of {site.name} says {{memory}}")
        head = [f"#$ {flag} {one_word(flag, value)}" for flag, value in flags if value]
        return [*head, *(f"#$ {filled(directive, counts)}" for directive in wanted)]
    raise ValueError(f"{site.name} has no scheduler: `workshop lab` starts JupyterLab here")


def _own_log(site: SiteSpec) -> list[str]:
    """Grid Engine makes its log before a script can say for whom: so the script opens its own."""
    if site.scheduler != "sge":
        return []
    lines = [f'exec >> {shlex.quote(site.jobs)}"/{NAME}-$JOB_ID.log" 2>&1']
    if site.modules or site.purge:
        lines.append("command -v module > /dev/null || . /etc/profile")
    return lines
