"""A site: what differs from one place to another, in one TOML file, so that no notebook has to change.

A lesson does not know whether it runs on a laptop or in a centre with Slurm and containers. The site's file
does. Every key has a default, and the defaults are a laptop's: an empty file is a valid site.

```toml
name = "a centre"
scheduler = "slurm"              # none, slurm, sge

[job]                            # what a job asks for, unless a cell says otherwise
account = "ab123"
account_flag = ""                # how qsub takes the account, where -A in the script will not do: "-g", "-P"
partition = "gpu"                # the queue
reservation = "course"
time = "00:10:00"
directives = ["--constraint=a100"]     # handed on to the scheduler as they are; for Grid Engine
                                 # {nnodes}, {gpus} and {cpus} (of a node) are filled in: "-pe mpi {nnodes}"
lab_directives = []              # in their place for `workshop lab --in-job`: a part of a node
node_shell = ""                  # how a Grid Engine job reaches its other nodes; "" is "qrsh -inherit"
prologue = ["ulimit -c 0"]       # lines of bash in the batch script, before the program
epilogue = ["ls -l core* || true"]     # and after it, however it ended
export = "all"                   # all, none: which variables of your shell a job of Slurm begins with
keep = ["WANDB_API_KEY"]         # secrets that jobs may see; all others are left out

[node]
gpus = 4
gpu = "nvidia"                   # nvidia, amd
cpus = 32
interface = "ib0"                # the ranks' networks: ib0; hsn0,hsn1; ^docker0: all but that; "": any
cpu_bind = ""                    # srun --cpu-bind=, of the torchrun on each node
gpu_cpus = ["0-7", "8-15", "16-23", "24-31"]   # cores next to GPU 0, 1, ...: its rank is bound to them
threads = 1                      # OMP_NUM_THREADS of a rank; 0: as many as it has cores

[software]
purge = true                     # `module purge` before the modules
modules = ["cuda/12.8"]          # `module load`, in this order
python = "/shared/venv/bin/python"     # of the nodes; "" takes the notebook's own
runtime = "apptainer"            # none, apptainer, singularity, charliecloud
container = "/shared/workshop.sif"
binds = ["/scratch", "/data:/data:ro"]

[paths]                          # $USER, $HOME and the like are filled in on the machine that uses them
jobs = "$HOME/workshop-jobs"     # scripts and logs of jobs: every node must see it
data = "/data/workshop"
cache = "/scratch/$USER/workshop"
trusted = ["@ab123"]             # users and @groups that may write above `jobs` (`site.owners`)

[network]
offline = true                   # compute nodes reach no hub and no package index
proxy = ""                       # http://host:port, where they reach one through a proxy

[environment]                    # variables of every rank, in notebooks, jobs and containers
NCCL_CROSS_NIC = "1"
MIOPEN_USER_DB_PATH = "/tmp/$USER-miopen"
```

A variable that a line of the prologue sets by ``export NAME=`` comes along into the container too.

Which file is in force, and whether it fits this machine, is for `site.current` to find out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_choice, check_keys, check_not_negative, check_one_line
from workshop.facts.launcher_variables import OF_LAUNCHER
from workshop.facts.tables import check_kind
from workshop.site.owners import read_ours

SCHEDULERS = ("none", "slurm", "sge")
RUNTIMES = ("none", "apptainer", "singularity", "charliecloud")
GPU_MAKERS = ("nvidia", "amd")
EXPORTS = ("all", "none")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SECTIONS: dict[str, tuple[str, ...]] = {
    "job": (
        *(
            "account",
            "account_flag",
            "partition",
            "reservation",
            "time",
            "directives",
            "lab_directives",
            "node_shell",
        ),
        *("prologue", "epilogue", "export", "keep"),
    ),
    "node": ("gpus", "gpu", "cpus", "interface", "cpu_bind", "gpu_cpus", "threads"),
    "software": ("purge", "modules", "python", "runtime", "container", "binds"),
    "paths": ("jobs", "data", "cache", "trusted"),
    "network": ("offline", "proxy"),
}
_TOP = ("name", "scheduler")
_TABLE = "environment"
_CHOICES = {"scheduler": SCHEDULERS, "runtime": RUNTIMES, "gpu": GPU_MAKERS, "export": EXPORTS}
_DIRECTIVES = ("#SBATCH", "#$", "#PBS", "#BSUB", "#PJM")  # Grid Engine reads them wherever they stand
_TIME = re.compile(r"(\d+-)?\d{1,2}:[0-5]\d:[0-5]\d")
_INTERFACES = re.compile(r"(\^?=?[A-Za-z0-9_.:-]+(,[A-Za-z0-9_.:-]+)*)?")
_CPU_BIND = re.compile(r"[A-Za-z0-9_,:.-]*")
_CPU_LIST = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*")


@dataclass(frozen=True)
class SiteSpec:
    """One place to run: scheduler, what jobs ask for, the nodes, their software, paths and network.

    gpus, cpus: of one node; 0 is "none" for GPUs and "not given" for CPUs. time: HH:MM:SS or D-HH:MM:SS.
    interface: names as `ip link` tells them, in NCCL's notation: ``hsn0,hsn1``, ``^docker0``, ``=eth0``.
    gpu_cpus: of each GPU the cores next to it, as ``taskset --cpu-list`` takes them; for nodes that a job has
    to itself. binds: SOURCE[:TARGET[:ro]], as Apptainer's ``--bind``.

    Raises ValueError for a value that no site can have, or two that contradict each other.
    """

    name: str = "laptop"
    scheduler: str = "none"
    account: str = ""
    account_flag: str = ""
    partition: str = ""
    reservation: str = ""
    time: str = "00:10:00"
    directives: tuple[str, ...] = ()
    lab_directives: tuple[str, ...] = ()
    node_shell: str = ""
    prologue: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    export: str = "all"
    keep: tuple[str, ...] = ()
    gpus: int = 0
    gpu: str = "nvidia"
    cpus: int = 0
    interface: str = ""
    cpu_bind: str = ""
    gpu_cpus: tuple[str, ...] = ()
    threads: int = 1
    purge: bool = False
    modules: tuple[str, ...] = ()
    python: str = ""
    runtime: str = "none"
    container: str = ""
    binds: tuple[str, ...] = ()
    jobs: str = "$HOME/workshop-jobs"
    data: str = ""
    cache: str = ""
    trusted: tuple[str, ...] = ()
    offline: bool = False
    proxy: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for key, known in _CHOICES.items():
            check_choice(key, getattr(self, key), known)
        check_not_negative("gpus of a node", self.gpus)
        check_not_negative("cpus of a node", self.cpus)
        check_not_negative("threads of a rank", self.threads)
        check_time(self.time)
        self._check_lines()
        self._check_node()
        self._check_environment()
        if self.account_flag and not re.fullmatch(r"--?[A-Za-z][\w-]*", self.account_flag):
            raise ValueError(
                f"account_flag {self.account_flag!r} is no flag of the scheduler, for example '-g'"
            )
        if self.proxy and not re.fullmatch(r"https?://\S+", self.proxy):
            raise ValueError(f"proxy {self.proxy!r}: write it as http://host:port")
        if (self.runtime == "none") != (not self.container):
            raise ValueError(
                f"runtime {self.runtime!r} with container {self.container!r}: a container needs a runtime "
                "that runs it, and a runtime a container; give both or neither"
            )

    def _check_lines(self) -> None:
        """Texts end up in a batch script: none may begin a line of its own."""
        for f in fields(self):
            value = getattr(self, f.name)
            texts = value if isinstance(value, tuple) else value.values() if f.name == _TABLE else (value,)
            for text in texts:
                if isinstance(text, str):
                    check_one_line(f.name, text)
        for directive in (*self.directives, *self.lab_directives):
            if not directive.startswith("-"):
                raise ValueError(f"directive {directive!r} is no flag of the scheduler: no - before it")
        for line in (*self.prologue, *self.epilogue):
            if line.lstrip().startswith(_DIRECTIVES):
                raise ValueError(f"line {line!r} is a directive to the scheduler: write it in directives")

    def _check_node(self) -> None:
        """Networks and cores as the programs that take them write them."""
        if not _INTERFACES.fullmatch(self.interface):
            raise ValueError(
                f"interface {self.interface!r} is no name of a network, for example 'ib0', 'hsn0,hsn1' or "
                "'^docker0' (all but that one)"
            )
        if not _CPU_BIND.fullmatch(self.cpu_bind):
            raise ValueError(f"cpu_bind {self.cpu_bind!r}: a word of srun's --cpu-bind, for example 'cores'")
        for cpus in self.gpu_cpus:
            if not _CPU_LIST.fullmatch(cpus):
                raise ValueError(f"gpu_cpus {cpus!r}: write the cores of a GPU as '0-7' or '0-3,8-11'")
        if self.gpu_cpus and len(self.gpu_cpus) != self.gpus:
            raise ValueError(
                f"gpu_cpus has {len(self.gpu_cpus)} lists of cores for {self.gpus} GPUs: one for each"
            )

    def _check_environment(self) -> None:
        for name in (*self.environment, *self.keep):
            if not VARIABLE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable")
        for name in self.environment:
            if OF_LAUNCHER.fullmatch(name):
                raise ValueError(f"environment {name}: the launcher sets it for each rank; leave it out")


def check_time(time: str) -> str:
    """``time`` itself; ValueError where it is not HH:MM:SS or D-HH:MM:SS."""
    if not _TIME.fullmatch(time):
        raise ValueError(f"time {time!r}: write it as HH:MM:SS or D-HH:MM:SS")
    return time


def seconds_of(time: str) -> int:
    """``time`` in seconds. Raises as `check_time`."""
    days, _, clock = check_time(time).rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def site_from_table(entry: Mapping[str, Any], source: str = "") -> SiteSpec:
    """A site from a parsed TOML file.

    Raises ValueError for an unknown key or section (naming the nearest), or a value of a wrong kind.
    """
    where = source or "the site"
    check_keys(where, entry, [*_TOP, *_SECTIONS, _TABLE])
    values = {key: entry[key] for key in _TOP if key in entry}
    for section, keys in _SECTIONS.items():
        part = entry.get(section, {})
        if not isinstance(part, Mapping):
            raise ValueError(f"{where}: [{section}] is a section, not {part!r}")
        check_keys(f"[{section}] of {where}", part, keys)
        values |= part
    values |= _table(entry, where)
    kinds = {f.name: str(f.type) for f in fields(SiteSpec)}
    for key, value in values.items():
        if key == _TABLE:
            continue
        if kinds[key].startswith("tuple"):
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise ValueError(f"{where}: {key} must be a list of texts in quotes, not {value!r}")
            values[key] = tuple(value)
        else:
            check_kind(f"{where}: {key}", value, kinds[key])
    try:
        return SiteSpec(**values, source=source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _table(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """[environment], whose keys are the file's own."""
    table = entry.get(_TABLE, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: [{_TABLE}] is a section, not {table!r}")
    for name, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f'{where}: [{_TABLE}] {name}: a text in quotes ("1"), not {value!r}')
    return {_TABLE: dict(table)} if table else {}


def read_site(path: str | Path) -> SiteSpec:
    """The site of a TOML file.

    Raises ValueError for a file that is not TOML or not a site, and for one that others could change
    (`site.owners`); FileNotFoundError where there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no site file {path}")
    content = read_ours(path, "the site's file")
    try:
        entry = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    return site_from_table(entry, str(path))


def schema() -> dict[str, dict[str, str]]:
    """Section to key to kind and default, in words: what `workshop site schema` prints. "" is the top."""
    site, kinds = SiteSpec(), {f.name: str(f.type) for f in fields(SiteSpec)}
    words = {"str": "text", "int": "number", "bool": "true or false"}

    def told(key: str) -> str:
        kind = " | ".join(_CHOICES[key]) if key in _CHOICES else words.get(kinds[key], "list of texts")
        value = getattr(site, key)
        return f"{kind}; default {list(value) if isinstance(value, tuple) else value!r}"

    sections = {
        section: {key: told(key) for key in keys} for section, keys in {"": _TOP, **_SECTIONS}.items()
    }
    return {**sections, _TABLE: {"NAME": "text, for each variable that ranks shall have"}}
