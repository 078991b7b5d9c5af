"""The variables a rank sees: the notebook's, minus what another launcher left, plus what a rank needs.

A notebook started inside a Slurm job, under mpirun, or from another torchrun carries RANK,
WORLD_SIZE, SLURM_PROCID and their like. A program that reads them would believe them, so none of
them reaches our ranks; the elastic agent sets its own. The site adds what its nodes need (`site.current`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from workshop.facts.launcher_variables import OF_LAUNCHER
from workshop.site import current as site
from workshop.site.cores import GPU_CPUS
from workshop.site.interfaces import interface_environment, resolved


def launcher_variables(environment: Mapping[str, str]) -> list[str]:
    """Names in ``environment`` that another launcher left there, sorted."""
    return sorted(filter(OF_LAUNCHER.fullmatch, environment))


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``environment`` without the launchers' variables."""
    gone = set(launcher_variables(environment))
    return {name: value for name, value in environment.items() if name not in gone}


def rank_environment(
    environment: Mapping[str, str], *, one_node: bool = True, ranks: int = 1
) -> dict[str, str]:
    """What every rank of a launch gets, before the agent adds RANK and its like. ``ranks``: on this node.

    One thread per rank unless the user or the site chose (as torchrun does: ranks that each take all cores
    slow one another down). On one node gloo stays on the loopback interface: nothing listens beyond it.
    Over several nodes the site's interface is taken. What the user set goes before what the site says.

    Raises ValueError and FileNotFoundError for a site file that cannot be used.
    """
    env = scrubbed(environment)
    threads = 1
    if here := site.site_of_file(environment):
        offline = site.is_offline(here, environment)
        of_site = site.site_environment(here, one_node=one_node, offline=offline)
        if not one_node:
            of_site |= interface_environment(here.interface, resolved(here.interface)) | dict(
                here.environment
            )
        env = {**of_site, **env}
        if here.gpu_cpus:
            env.setdefault(GPU_CPUS, " ".join(here.gpu_cpus))
        threads = here.threads or max(1, len(os.sched_getaffinity(0)) // ranks)
    env.setdefault("OMP_NUM_THREADS", str(threads))
    env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # time stamps and thread numbers are not output
    env.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself else
    env["PYTHONUNBUFFERED"] = "1"
    if one_node:
        env["GLOO_SOCKET_IFNAME"] = env["TP_SOCKET_IFNAME"] = "lo"
    return env


def engine_environment() -> dict[str, str]:
    """Variables of the supervisor and its fork server: ours, and a path on which `workshop` is found."""
    env = rank_environment(os.environ)
    package_parent = str(Path(__file__).resolve().parents[2])
    known = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    env["PYTHONPATH"] = os.pathsep.join([*known, package_parent])
    return env
