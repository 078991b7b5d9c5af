"""A site: what differs from one place to another, in one TOML file, so that no notebook has to change.

A lesson does not know whether it runs on a laptop or in a centre with Slurm and containers. The site's file
does. Every key has a default, and the defaults are a laptop's: an empty file is a valid site.

```toml
name = "a centre"
scheduler = "slurm"              # none, slurm, sge

[job]                            # what a job asks for, unless a cell says otherwise
account = "ab123"
partition = "gpu"                # the queue
reservation = "course"
time = "00:10:00"
directives = ["--constraint=a100"]     # handed on to the scheduler as they are

[node]
gpus = 4
cpus = 32
interface = "ib0"                # the network of the ranks, as `ip link` names it; "" leaves the choice

[software]
modules = ["cuda/12.8"]          # `module load`, in this order
python = "/shared/venv/bin/python"     # of the nodes; "" takes the notebook's own
runtime = "apptainer"            # none, apptainer, singularity, charliecloud
container = "/shared/workshop.sif"
binds = ["/scratch", "/data:/data:ro"]

[paths]                          # $USER, $HOME and the like are filled in on the machine that uses them
jobs = "$HOME/workshop-jobs"     # scripts and logs of jobs: every node must see it
data = "/data/workshop"
cache = "/scratch/$USER/workshop"

[network]
offline = true                   # compute nodes reach no hub and no package index
proxy = ""                       # http://host:port, where they reach one through a proxy
```

Which file is in force, and whether it fits this machine, is for `site.current` to find out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_choice, check_keys, check_not_negative
from workshop.facts.tables import check_kind

SCHEDULERS = ("none", "slurm", "sge")
RUNTIMES = ("none", "apptainer", "singularity", "charliecloud")

_SECTIONS: dict[str, tuple[str, ...]] = {
    "job": ("account", "partition", "reservation", "time", "directives"),
    "node": ("gpus", "cpus", "interface"),
    "software": ("modules", "python", "runtime", "container", "binds"),
    "paths": ("jobs", "data", "cache"),
    "network": ("offline", "proxy"),
}
_TOP = ("name", "scheduler")
_TIME = re.compile(r"(\d+-)?\d{1,2}:[0-5]\d:[0-5]\d")
_INTERFACE = re.compile(r"\^?[A-Za-z0-9_.:,-]*")


@dataclass(frozen=True)
class SiteSpec:
    """One place to run: scheduler, what jobs ask for, the nodes, their software, paths and network.

    gpus, cpus: of one node; 0 is "none" for GPUs and "not given" for CPUs. time: HH:MM:SS or D-HH:MM:SS.
    binds: SOURCE[:TARGET[:ro]], as Apptainer's ``--bind``.

    Raises ValueError for a value that no site can have, or two that contradict each other.
    """

    name: str = "laptop"
    scheduler: str = "none"
    account: str = ""
    partition: str = ""
    reservation: str = ""
    time: str = "00:10:00"
    directives: tuple[str, ...] = ()
    gpus: int = 0
    cpus: int = 0
    interface: str = ""
    modules: tuple[str, ...] = ()
    python: str = ""
    runtime: str = "none"
    container: str = ""
    binds: tuple[str, ...] = ()
    jobs: str = "$HOME/workshop-jobs"
    data: str = ""
    cache: str = ""
    offline: bool = False
    proxy: str = ""
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_choice("scheduler", self.scheduler, SCHEDULERS)
        check_choice("runtime", self.runtime, RUNTIMES)
        check_not_negative("gpus of a node", self.gpus)
        check_not_negative("cpus of a node", self.cpus)
        check_time(self.time)
        if not _INTERFACE.fullmatch(self.interface):
            raise ValueError(f"interface {self.interface!r} is no name of a network, for example 'ib0'")
        if self.proxy and not re.fullmatch(r"https?://\S+", self.proxy):
            raise ValueError(f"proxy {self.proxy!r}: write it as http://host:port")
        if (self.runtime == "none") != (not self.container):
            raise ValueError(
                f"runtime {self.runtime!r} with container {self.container!r}: a container needs a runtime "
                "that runs it, and a runtime a container; give both or neither"
            )
        self._check_lines()

    def _check_lines(self) -> None:
        """Texts end up in a batch script: none may begin a line of its own."""
        for f in fields(self):
            value = getattr(self, f.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and ("\n" in text or "\r" in text):
                    raise ValueError(f"{f.name} {text!r} has more than one line")
        for directive in self.directives:
            if not directive.startswith("-"):
                raise ValueError(f"directive {directive!r} is no flag of the scheduler: no - before it")


def check_time(time: str) -> str:
    """``time`` itself; ValueError where it is not HH:MM:SS or D-HH:MM:SS."""
    if not _TIME.fullmatch(time):
        raise ValueError(f"time {time!r}: write it as HH:MM:SS or D-HH:MM:SS")
    return time


def site_from_table(entry: Mapping[str, Any], source: str = "") -> SiteSpec:
    """A site from a parsed TOML file.

    Raises ValueError for an unknown key or section (naming the nearest), or a value of a wrong kind.
    """
    where = source or "the site"
    check_keys(where, entry, [*_TOP, *_SECTIONS])
    values = {key: entry[key] for key in _TOP if key in entry}
    for section, keys in _SECTIONS.items():
        part = entry.get(section, {})
        if not isinstance(part, Mapping):
            raise ValueError(f"{where}: [{section}] is a section, not {part!r}")
        check_keys(f"[{section}] of {where}", part, keys)
        values |= part
    kinds = {f.name: str(f.type) for f in fields(SiteSpec)}
    for key, value in values.items():
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


def read_site(path: str | Path) -> SiteSpec:
    """The site of a TOML file.

    Raises ValueError for a file that is not TOML or not a site, FileNotFoundError where there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no site file {path}")
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    return site_from_table(entry, str(path))


def schema() -> dict[str, dict[str, str]]:
    """Section to key to kind and default, in words: what `workshop site schema` prints. "" is the top."""
    site, kinds = SiteSpec(), {f.name: str(f.type) for f in fields(SiteSpec)}
    words = {"str": "text", "int": "number", "bool": "true or false"}
    choices = {"scheduler": SCHEDULERS, "runtime": RUNTIMES}

    def told(key: str) -> str:
        kind = " | ".join(choices[key]) if key in choices else words.get(kinds[key], "list of texts")
        value = getattr(site, key)
        return f"{kind}; default {list(value) if isinstance(value, tuple) else value!r}"

    return {section: {key: told(key) for key in keys} for section, keys in {"": _TOP, **_SECTIONS}.items()}
