"""A site's file against this machine, entry by entry: what `workshop site check` goes through.

Entries that hold for the nodes (GPUs, interface) can only be seen on a node. Where this machine is the login
node of a scheduler, such an entry that is not found here is a note and not a no.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from workshop.doctor import binding
from workshop.doctor import site_jobs as jobs
from workshop.doctor.clients import Answer, ask
from workshop.doctor.findings import Check, Finding
from workshop.facts.secret_variables import is_secret
from workshop.facts.units import BINARY_UNITS, format_bytes
from workshop.site.apptainer_command import bind_parts
from workshop.site.current import (
    expanded,
    gpus_here,
    gpus_of_slurm,
    in_allocation,
    maker_here,
    unset_variables,
)
from workshop.site.interfaces import address_of, interfaces, missing_interfaces, resolved
from workshop.site.job import exported_by_prologue
from workshop.site.owners import ours
from workshop.site.spec import SiteSpec

GIB, MIB = BINARY_UNITS["GiB"], BINARY_UNITS["MiB"]
RUNTIME_PROGRAMS = {"apptainer": "apptainer", "singularity": "singularity", "charliecloud": "ch-run"}
MODULE_SECONDS = 30.0


def site_checks(site: SiteSpec) -> list[Check]:
    """The checks of a site as it was read, variables not yet filled in."""
    here = expanded(site, os.environ, strict=False)
    entries: list[tuple[str, Callable[[SiteSpec], Finding], float]] = [
        ("variables", lambda _: check_variables(site), 5),
        ("scheduler", jobs.check_scheduler, 15),
        ("partition", jobs.check_partition, 15),
        ("account", jobs.check_account, 15),
        ("reservation", jobs.check_reservation, 15),
        ("time", jobs.check_time_limit, 15),
        ("GPUs of a node", check_gpus, 25),
        ("CPUs of a node", check_cpus, 15),
        ("cores of GPUs", binding.check_gpu_cpus, 15),
        ("binding", binding.check_binding, 15),
        ("interface", check_interface, 10),
        ("environment", check_environment, 5),
        ("prologue", check_prologue, 15),
        ("modules", check_modules, MODULE_SECONDS + 5),
        ("Python of nodes", check_python, 10),
        ("container", check_container, 15),
        ("runtime", check_runtime, MODULE_SECONDS + 5),
        ("binds", check_binds, 15),
        ("jobs", check_jobs, 15),
        ("data", check_data, 15),
        ("cache", check_cache, 15),
        ("proxy", jobs.check_proxy, 10),
        ("offline", check_offline, 15),
    ]
    return [Check(name, functools.partial(examine, here), seconds) for name, examine, seconds in entries]


def check_variables(site: SiteSpec) -> Finding:
    """Every variable that the file names is set."""
    unset = unset_variables(site, os.environ)
    if not unset:
        return Finding("ok", "every $NAME in it is set")
    unset_names = "; ".join(f"${name} (in {' and '.join(keys)}) is not set" for name, keys in unset.items())
    return Finding("no", unset_names, f"export {' '.join(f'{n}=...' for n in unset)}, or write the paths out")


def on_node(site: SiteSpec) -> bool:
    """Whether this machine is one of the site's nodes, as far as one can see."""
    return site.scheduler == "none" or in_allocation(os.environ)


def _of_nodes(site: SiteSpec, what: str, do: str) -> Finding:
    """A no on a node; elsewhere a note, because only a node can say."""
    if on_node(site):
        return Finding("no", what, do)
    srun = "srun workshop site check" if site.scheduler == "slurm" else "workshop site check, in a job,"
    return Finding("note", f"{what}, but this is no node", f"{srun} says it there")


def check_gpus(site: SiteSpec) -> Finding:
    """As many GPUs as the file says."""
    known = site.scheduler == "slurm" and not in_allocation(os.environ)
    here = gpus_of_slurm() if known else gpus_here()
    where = "a node of this Slurm has" if known else "this machine has"
    maker = maker_here()
    if not known and here and maker != site.gpu:
        do = f'gpu = "{maker}" in [node]: containers and leases go by it'
        return _of_nodes(site, f"the file says {site.gpu}, {where} {maker}'s", do)
    if here == site.gpus:
        return Finding("ok", f"{where} {here}" + f", {site.gpu}" * (here > 0))
    counts = f"the file says {site.gpus}, {where} {here}"
    if here > site.gpus:
        return Finding("note", counts, f"gpus = {here} in [node], unless you leave some to others")
    do = f"gpus = {here} in [node]; if the GPUs are there: nvidia-smi, and the job's --gpus"
    return Finding("no", counts, do) if known else _of_nodes(site, counts, do)


def check_cpus(site: SiteSpec) -> Finding:
    """As many cores as the file says."""
    if not site.cpus:
        return Finding("ok", "not given")
    if not on_node(site):
        return (
            Finding("ok", f"{site.cpus}, for the nodes")
            if site.scheduler != "slurm"
            else jobs.check_cpus(site)
        )
    cores = os.cpu_count() or 1
    if site.cpus <= cores:
        return Finding("ok", f"{site.cpus} of {cores}")
    return Finding(
        "note", f"the file says {site.cpus}, this machine has {cores}", f"cpus = {cores} in [node]"
    )


def check_interface(site: SiteSpec) -> Finding:
    """The interface is there, up, and has an address."""
    if not site.interface:
        return Finding("ok", "not given: gloo and NCCL choose")
    there = interfaces()
    known = ", ".join(sorted(there)) or "none"
    meant = resolved(site.interface)
    if site.interface.startswith("^"):
        networks = f"{site.interface}: all but that leaves {', '.join(meant) or 'nothing'}"
        return Finding("ok", networks) if meant else _of_nodes(site, networks, "name the interface instead")
    do = f'ip -brief address lists them (here: {known}); set interface in [node], or "" to leave the choice'
    if gone := missing_interfaces(site.interface):
        return _of_nodes(site, f"there is no interface {', '.join(gone)}", do)
    for name in meant:
        if not there[name]:
            return _of_nodes(
                site, f"{name} is down", f"ip link set {name} up, or ask who runs the machine; {do}"
            )
        if not address_of(name):
            return _of_nodes(site, f"{name} has no address", do)
    return Finding("ok", ", ".join(f"{name} at {address_of(name)}" for name in meant))


def check_environment(site: SiteSpec) -> Finding:
    """The file's own variables: which are secret, and which this shell sets otherwise."""
    if not site.environment:
        return Finding("ok", "no variables of its own")
    names = ", ".join(site.environment)
    if secret := [name for name, value in site.environment.items() if is_secret(name, value)]:
        do = "take it out: whoever reads the site's file reads it; each user exports an own one"
        return Finding("note", f"{', '.join(secret)} is a secret in a file for all", do)
    other = [name for name, value in site.environment.items() if os.environ.get(name, value) != value]
    if other:
        overridden = f"{', '.join(other)} is set otherwise in this shell, which wins"
        return Finding(
            "note", overridden, f"unset {' '.join(other)}; of a PATH, write `export` in the prologue"
        )
    return Finding("ok", names)


def check_prologue(site: SiteSpec) -> Finding:
    """The lines before and after the program are good bash."""
    if not site.prologue and not site.epilogue:
        return Finding("ok", "no lines before or after the program")
    for key, lines in (("prologue", site.prologue), ("epilogue", site.epilogue)):
        answer = ask(["bash", "-n", "-c", "\n".join(lines)])
        if not answer.came:
            return Finding("no", f"{key}: {answer.why}", f"bash must be able to read {key} in [job]")
    exported = exported_by_prologue(site)
    along = f"; {', '.join(exported)} comes along into the container" if exported and site.container else ""
    return Finding("ok", f"{len(site.prologue)} before and {len(site.epilogue)} after the program{along}")


def check_modules(site: SiteSpec) -> Finding:
    """`module load` knows each module."""
    if not site.modules:
        return Finding("ok", "none asked for" + ", those there are taken away first" * site.purge)
    for number, name in enumerate(site.modules, 1):
        answer = after_modules(site, site.modules[:number], "true")
        if answer.why.endswith(_NO_MODULES):
            return _of_nodes(site, _NO_MODULES, "modules = [] in [software]")
        # Old versions of `module` print ERROR and end well.
        wrong = answer.why or next((line for line in answer.errors.splitlines() if _ERROR.search(line)), "")
        if wrong:
            do = f"`module avail {name.split('/')[0]}` lists what there is; modules in [software]"
            return _of_nodes(site, f"module load {name}: {wrong}", do)
    return Finding("ok", f"{', '.join(site.modules)} can be loaded")


_NO_MODULES = "there is no `module` command"
_ERROR = re.compile(r"ERROR|nable to locate")


def after_modules(site: SiteSpec, modules: Sequence[str], command: str) -> Answer:
    """What ``command`` answers in a login shell, which knows `module`, once ``modules`` are loaded."""
    known = f"command -v module >/dev/null || {{ echo {shlex.quote(_NO_MODULES)} >&2; exit 127; }}"
    purge = ["module purge"] if site.purge else []
    loads = " && ".join([*purge, *(f"module load {shlex.quote(name)}" for name in modules), command])
    return ask(["bash", "-lc", f"{known}\n{loads}"], MODULE_SECONDS)


def check_python(site: SiteSpec) -> Finding:
    """The nodes' Python can be run."""
    if not site.python:
        return Finding("ok", "the container's" if site.container else "this notebook's own")
    if site.container:
        return Finding("ok", f"{site.python}, inside the container")
    answer = ask([site.python, "--version"])
    if answer.came:
        return Finding("ok", f"{site.python}: {answer.text.strip()}")
    return _of_nodes(
        site, f"{site.python}: {answer.why}", "python in [software] is a path that every node sees"
    )


def check_container(site: SiteSpec) -> Finding:
    """The container's file is there and is an image."""
    if not site.container:
        return Finding("ok", "none: ranks run in the nodes' own Python")
    path = Path(site.container)
    build = "workshop container build prints the line that makes it; or set container in [software]"
    if "$" in site.container:
        return Finding("no", f"{path} holds a variable that is not set", "see variables above")
    if path.is_dir():
        whole = (path / "bin").exists() or (path / "usr").is_dir()
        return (
            Finding("ok", f"{path}, a folder") if whole else Finding("no", f"{path} is no root folder", build)
        )
    if not path.is_file():
        return Finding("no", f"there is no {path}", build)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except PermissionError:
        return Finding("no", f"{path} cannot be read", f"chmod a+r {path}")
    if b"SIF_MAGIC" not in head and not head.startswith(b"hsqs"):
        return Finding("no", f"{path} is neither a SIF nor a squashfs file", build)
    return Finding("ok", f"{path}, {format_bytes(path.stat().st_size)}")


def check_runtime(site: SiteSpec) -> Finding:
    """The program that runs the container."""
    if site.runtime == "none":
        return Finding("ok", "none needed")
    program = RUNTIME_PROGRAMS[site.runtime]
    version = [program, "--version"]
    answer = after_modules(site, site.modules, shlex.join(version)) if site.modules else ask(version)
    if answer.came:
        return Finding("ok", (answer.text.strip().splitlines() or [program])[-1])
    do = f"module avail {site.runtime} (then modules in [software]), or ask who runs the machine"
    return _of_nodes(site, f"{program}: {answer.why}", do)


def check_binds(site: SiteSpec) -> Finding:
    """The folders to bind exist."""
    gone = [bind_parts(bind)[0] for bind in site.binds if not Path(bind_parts(bind)[0]).exists()]
    bad = [bind for bind in site.binds if not bind_parts(bind)[1].startswith("/")]
    if bad:
        return Finding(
            "no", f"{', '.join(bad)}: what a bind becomes begins with /", "write it as SOURCE:/TARGET"
        )
    if gone:
        return _of_nodes(site, f"not there: {', '.join(gone)}", "make them, or take them out of binds")
    return Finding("ok", ", ".join(site.binds) or "none but the working folder, jobs and cache")


def outside(site: SiteSpec, path: str) -> Path:
    """Where ``path`` lies on this machine when it is meant inside the container."""
    for bind in site.binds:
        source, target, _ = bind_parts(bind)
        if Path(path) == Path(target) or Path(target) in Path(path).parents:
            return Path(source) / Path(path).relative_to(target)
    return Path(path)


def check_jobs(site: SiteSpec) -> Finding:
    """The folder of jobs can be written to, and by nobody who could put their script in place of ours."""
    path = Path(site.jobs)
    if path.is_dir():
        try:
            ours(path, "the folder of jobs", also=site.trusted)
        except ValueError as error:
            return Finding("no", str(error), 'trusted in [paths] names those who may, as ["@group"]')
    return _written_to("jobs", site.jobs, 100 * MIB)


def check_data(site: SiteSpec) -> Finding:
    """The data folder can be read."""
    if not site.data:
        return Finding("ok", "not given")
    path = outside(site, site.data)
    if not path.is_dir():
        return _of_nodes(site, f"there is no folder {path}", "data in [paths], or the bind it comes through")
    if not os.access(path, os.R_OK | os.X_OK):
        return Finding("no", f"{path} cannot be read", f"ask its owner for: chmod a+rX {path}")
    return Finding("ok", str(path))


def check_cache(site: SiteSpec) -> Finding:
    """The cache can be written to and its disk is not full."""
    if not site.cache:
        return Finding("ok", "not given: ~/.cache/workshop")
    return _written_to("cache", str(outside(site, site.cache)), 1 * GIB)


def _written_to(key: str, path: str, enough: int) -> Finding:
    return jobs.check_written_to(key, path, enough)


def check_offline(site: SiteSpec) -> Finding:
    """At an offline site the models and data are in the cache before a job starts."""
    from workshop.doctor.software import check_assets

    if not site.offline:
        return Finding("ok", "no: nodes reach the network")
    assets = check_assets()
    return Finding("ok", "yes, and " + assets.found) if assets.verdict == "ok" else assets
