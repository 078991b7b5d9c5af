"""Which site is in force here, and what it tells the ranks. No notebook changes from site to site.

The first of these that is there:

1. ``WORKSHOP_SITE``: a file, or the name of an example in ``examples/sites``;
2. ``workshop-site.toml`` in the current folder;
3. ``~/.config/workshop/site.toml`` (``XDG_CONFIG_HOME``, if set);
4. ``/etc/workshop/site.toml``: for everyone on this machine;
5. none of them: what can be found on the machine (a scheduler's client on ``PATH``, GPUs).

A file holds ``$USER`` and the like, so that one file serves all people of a site; `current_site` has filled
them in. What a site means for ranks is `site_environment`: the network interface of launches over several
nodes, the cache, offline, the proxy. A variable that you set yourself always wins over the site's; all that a
rank then sees is `rank_environment`.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop.facts.checks import nearest
from workshop.facts.launcher_variables import OF_LAUNCHER
from workshop.facts.tree import ROOT
from workshop.site.cores import GPU_CPUS
from workshop.site.interfaces import interface_environment, resolved
from workshop.site.spec import SiteSpec, read_site

HERE = Path("workshop-site.toml")
EVERYONE = Path("/etc/workshop/site.toml")
EXAMPLES = ROOT / "examples" / "sites"
FOUND = "found on this machine"
CLIENT_SECONDS = 10
NVIDIA = Path("/proc/driver/nvidia/gpus")
AMD = Path("/sys/class/kfd/kfd/topology/nodes")
SLURM_CONF = Path("/etc/slurm/slurm.conf")

# What may hold $USER and the like.
_FILLED = (
    *("account", "partition", "reservation", "python", "container", "binds"),
    *("jobs", "data", "cache", "trusted", "environment"),
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def current_site(environment: Mapping[str, str] | None = None) -> SiteSpec:
    """The site in force, its variables filled in; ``source`` says where it comes from.

    Raises ValueError for an unknown name in WORKSHOP_SITE, a file that is no site, or a variable that is
    not set; FileNotFoundError for a WORKSHOP_SITE that is a path to nothing.
    """
    environment = os.environ if environment is None else environment
    return site_of_file(environment) or site_of_machine(environment)


def site_of_file(environment: Mapping[str, str] | None = None) -> SiteSpec | None:
    """The site that a file describes, or None where there is no file. Raises as `current_site`."""
    environment = os.environ if environment is None else environment
    path = site_file(environment)
    return None if path is None else expanded(read_site(path), environment)


def site_file(environment: Mapping[str, str]) -> Path | None:
    """The file in force, or None. Raises as `current_site`."""
    if chosen := environment.get("WORKSHOP_SITE"):
        return named_site(chosen)
    config = environment.get("XDG_CONFIG_HOME") or str(
        Path(environment.get("HOME") or Path.home()) / ".config"
    )
    places = (HERE, Path(config) / "workshop" / "site.toml", EVERYONE)
    return next((place for place in places if place.is_file()), None)


def named_site(name: str) -> Path:
    """The file that ``name`` means: a path, or the name of an example.

    Raises ValueError for an unknown name (listing the known), FileNotFoundError for a path to nothing.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = known_sites()
    if name in known:
        return known[name]
    if os.sep in name or name.endswith(".toml"):
        raise FileNotFoundError(f"there is no site file {path}: look at WORKSHOP_SITE")
    listed = ", ".join(known) or f"none: {EXAMPLES} is not there"
    raise ValueError(f"unknown site {name!r}{nearest(name, known)} (known: {listed}; or give a file's path)")


def known_sites() -> dict[str, Path]:
    """Names and files of the examples beside the package."""
    return {path.stem: path for path in sorted(EXAMPLES.glob("*.toml"))}


# ---------------------------------------------------------------------------- $USER and the like


def unset_variables(site: SiteSpec, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Variables that the site's texts name and ``environment`` leaves unset or empty: name to keys."""
    keys_of: dict[str, list[str]] = {}
    for key in _FILLED:
        for text in _texts(getattr(site, key)):
            for name in (a or b for a, b in _VARIABLE.findall(text)):
                if not _value(name, environment) and key not in keys_of.setdefault(name, []):
                    keys_of[name].append(key)
    return {name: keys for name, keys in keys_of.items() if keys}


def _texts(value: str | tuple[str, ...] | Mapping[str, str]) -> Iterable[str]:
    """All texts of an entry."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def _value(name: str, environment: Mapping[str, str]) -> str:
    """A variable; the system knows HOME and USER where a bare environment (cron, a container) does not."""
    if value := environment.get(name):
        return value
    try:
        known = pwd.getpwuid(os.getuid())
    except KeyError:
        return ""
    return {"HOME": known.pw_dir, "USER": known.pw_name}.get(name, "")


def expanded(site: SiteSpec, environment: Mapping[str, str], *, strict: bool = True) -> SiteSpec:
    """The site with ``$USER``, ``${SCRATCH}`` and a leading ``~`` filled in.

    Raises ValueError for a variable that is not set, unless ``strict`` is False: then it stays as it is.
    """
    unset = unset_variables(site, environment)
    if strict and unset:
        name, keys = next(iter(unset.items()))
        where = f" of {site.source}" if site.source else ""
        raise ValueError(
            f"{' and '.join(keys)}{where} needs ${name}, which is not set: export {name}=..., or write the "
            "path out in the site's file"
        )

    def filled(text: str) -> str:
        text = _VARIABLE.sub(lambda m: _value(m[1] or m[2], environment) or m[0], text)
        home = _value("HOME", environment)
        return home + text[1:] if home and (text == "~" or text.startswith("~/")) else text

    values: dict[str, Any] = {}
    for key in _FILLED:
        value = getattr(site, key)
        if isinstance(value, Mapping):
            values[key] = {name: filled(text) for name, text in value.items()}
        else:
            values[key] = tuple(map(filled, value)) if isinstance(value, tuple) else filled(value)
    return replace(site, **values)


# ---------------------------------------------------------------------------- without a file


def site_of_machine(environment: Mapping[str, str] | None = None) -> SiteSpec:
    """What can be found here: the scheduler whose client is on ``PATH``, GPUs and cores of this machine.

    On a machine with Slurm the GPUs are those of its nodes, as ``sinfo`` tells them.
    """
    environment = os.environ if environment is None else environment
    path, slurm_conf = environment.get("PATH", os.defpath), environment.get("SLURM_CONF", "")
    site = _found(path, slurm_conf, environment.get("SGE_ROOT", ""))
    return expanded(site, environment)


@functools.lru_cache(maxsize=8)
def _found(path: str, slurm_conf: str, sge_root: str) -> SiteSpec:
    # Debian's client may be there without a Slurm: it is set up, or it answers.
    has_client = shutil.which("sbatch", path=path) is not None
    if has_client and (slurm_conf or SLURM_CONF.is_file() or _ask(["sinfo", "--noheader"], path) is not None):
        gpus = max(gpus_of_slurm(path), gpus_here(path))
        return SiteSpec(
            name="a machine with Slurm", scheduler="slurm", gpus=gpus, gpu=maker_here(), source=FOUND
        )
    if sge_root and shutil.which("qsub", path=path):
        return SiteSpec(
            name="a machine with SGE", scheduler="sge", gpus=gpus_here(path), gpu=maker_here(), source=FOUND
        )
    gpus, cpus = gpus_here(path), len(os.sched_getaffinity(0))
    name = f"a machine with {gpus} GPU{'s' * (gpus > 1)}" if gpus else "laptop"
    return SiteSpec(name=name, gpus=gpus, gpu=maker_here(), cpus=cpus, source=FOUND)


def maker_here() -> str:
    """Who made this machine's GPUs, by the driver that is loaded; ``nvidia`` where there is none."""
    return "amd" if _amd_gpus() and not NVIDIA.is_dir() else "nvidia"


def _amd_gpus() -> int:
    """GPUs that AMD's kernel driver lists; a CPU is a node of its topology with gpu_id 0."""
    try:
        return sum(path.read_text().strip() != "0" for path in AMD.glob("*/gpu_id"))
    except OSError:  # the driver shows GPUs of others' containers without letting us read them
        return 0


def gpus_here(path: str | None = None) -> int:
    """GPUs of this machine: the driver's own list, else what ``nvidia-smi -L`` says within ten seconds."""
    if NVIDIA.is_dir():
        return sum(entry.is_dir() for entry in NVIDIA.iterdir())
    if amd_gpus := _amd_gpus():
        return amd_gpus
    listing = _ask(["nvidia-smi", "-L"], path) or ""
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def gpus_of_slurm(path: str | None = None) -> int:
    """The most GPUs that a node of this Slurm has (``sinfo -o %G``); 0 where it says none, or nothing."""
    listing = _ask(["sinfo", "--noheader", "--format=%G"], path) or ""
    counts = re.findall(r"gpu:(?:[^:,()\s]+:)?(\d+)", listing)
    return max(map(int, counts), default=0)


def _ask(command: list[str], path: str | None) -> str | None:
    """What a program prints; None where it is missing, fails, or takes longer than ten seconds."""
    program = shutil.which(command[0], path=path)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


# ---------------------------------------------------------------------------- what ranks are told


def in_allocation(environment: Mapping[str, str]) -> bool:
    """Whether this process runs on nodes that a scheduler gave out (Slurm, SGE)."""
    return "SLURM_JOB_ID" in environment or ("SGE_ROOT" in environment and "JOB_ID" in environment)


def is_offline(site: SiteSpec, environment: Mapping[str, str]) -> bool:
    """Whether this process reaches nothing outside: an offline site's nodes do not, its login node may."""
    return site.offline and (site.scheduler == "none" or in_allocation(environment))


def site_environment(site: SiteSpec, *, one_node: bool = True, offline: bool | None = None) -> dict[str, str]:
    """Variables by which ranks learn of the site: interface, cache, data, offline, proxy, and its own.

    one_node: ranks of one node talk over loopback and need no interface. offline: whether they run where
    nothing outside is reached (default: as the site says). An interface with ``^`` (all but) is NCCL's alone.
    """
    variables = {} if one_node else interface_environment(site.interface)
    if site.cache:
        variables["WORKSHOP_CACHE"] = site.cache
    if site.data:
        variables["WORKSHOP_DATA"] = site.data
    if site.offline if offline is None else offline:
        names = ("WORKSHOP_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
        variables |= dict.fromkeys(names, "1")
    if site.proxy:
        variables |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), site.proxy)
        variables |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return {**variables, **site.environment}


def python_of(site: SiteSpec) -> str:
    """The Python of the site's nodes: the site's, the container's, else this one."""
    return site.python or (sys.executable if site.runtime == "none" else "python3")


# ---------------------------------------------------------------------------- every variable of a rank

# What every rank sees: the notebook's variables, minus what another launcher left, plus what a rank needs.
#
# A notebook started inside a Slurm job, under mpirun, or from another torchrun carries RANK, WORLD_SIZE,
# SLURM_PROCID and their like. A program that reads them would believe them, so none of them reaches our
# ranks; the elastic agent sets its own. The site adds what its nodes need.


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
    if here := site_of_file(environment):
        offline = is_offline(here, environment)
        of_site = site_environment(here, one_node=one_node, offline=offline)
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
