"""The doctor's checks of what breaks between nodes: interfaces, containers, clocks, ports."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

from workshop.doctor import site as checks_site
from workshop.doctor.clients import ask
from workshop.doctor.findings import Check, Finding
from workshop.doctor.site_jobs import check_written_to
from workshop.doctor.software import gpus_listed
from workshop.facts.units import BINARY_UNITS, format_seconds
from workshop.site.current import FOUND, current_site
from workshop.site.interfaces import interfaces, missing_interfaces, own_address
from workshop.site.spec import SiteSpec

TORCHRUN_PORT = 29500  # torchrun's, and init_process_group's, when nobody names another
TCP = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
SRUN_SECONDS = 20.0
# Between two nodes NTP keeps milliseconds; a second is already a broken clock for logs, locks and tokens.
SKEW_NOTE_SECONDS, SKEW_NO_SECONDS = 2.0, 30.0


_INSIDE = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CH_RUNNING")


def site_or_finding() -> SiteSpec | Finding:
    """The site in force, or what is wrong with its file."""
    try:
        return current_site()
    except (ValueError, FileNotFoundError) as error:
        return Finding(
            "no", str(error), "`workshop site check` goes through it; `unset WORKSHOP_SITE` drops it"
        )


def check_site() -> Finding:
    """The site in force can be read."""
    site = site_or_finding()
    if isinstance(site, Finding):
        return site
    return Finding("ok", f"{site.name} ({site.source}); `workshop site check` goes through its entries")


def check_interface() -> Finding:
    """Ranks of several nodes find each other: by the site's interface, or by this host's name."""
    site = site_or_finding()
    if isinstance(site, Finding):
        return Finding("note", "not checked", "first see to the site")
    if site.interface:
        return checks_site.check_interface(site)
    if site.scheduler == "none":
        return Finding("ok", "not needed on one node: ranks meet on loopback")
    do = "set interface in [node] of the site's file to the nodes' network (`ip -brief address` lists them)"
    try:
        address = own_address()
    except OSError as error:
        return Finding(
            "no", f"this host's name leads nowhere: {error}", f"{do}, or put the name into /etc/hosts"
        )
    if address.startswith("127."):
        lookup = f"this host's name leads to {address}, where no other node looks"
        # Without a file nobody said that several nodes are meant.
        verdict = "note" if site.source == FOUND else "no"
        return Finding(verdict, lookup, f"{do}, or correct the name's line in /etc/hosts")
    return Finding("ok", f"not given; this host's name leads to {address}")


def check_container() -> Finding:
    """The site's container and the program that runs it."""
    site = site_or_finding()
    if isinstance(site, Finding) or not site.container:
        return Finding("ok", "the site has none")
    if inside := next((os.environ[name] for name in _INSIDE if os.environ.get(name)), None):
        return Finding("ok", f"this runs inside {inside}")
    container = checks_site.check_container(site)
    return container if container.verdict == "no" else checks_site.check_runtime(site)


def check_cache() -> Finding:
    """The cache of models and data can be written to and has room, unless everything is in it."""
    from workshop.assets import assets, cache, is_ready
    from workshop.assets.store import is_offline

    if isinstance(site_or_finding(), Finding):
        return Finding("note", "not checked", "first see to the site")
    place = cache.root().absolute()
    if all(is_ready(name) for name in assets()):
        return Finding("ok", f"{place} has everything")
    space = check_written_to("cache", str(place), BINARY_UNITS["GiB"])
    do = "set WORKSHOP_CACHE to a folder of yours with room"
    if space.verdict == "no" and is_offline() and place.is_dir():
        return Finding("note", f"{place} is read-only: what it has not, cannot be had", do)
    return Finding(space.verdict, space.found, space.do and do)


def check_clock() -> Finding:
    """This machine's clock agrees with the file system's and, in an allocation, with the other nodes'."""
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
    skews = {f"the file system of {folder}": file_clock_skew(folder)}
    if "SLURM_JOB_ID" in os.environ:
        skews |= node_clock_skews()
    name, skew = max(skews.items(), key=lambda item: abs(item[1]))
    difference = f"{format_seconds(abs(skew))} {'behind' if skew > 0 else 'ahead of'} {name}"
    do = "`chronyc tracking` or `timedatectl` says why; who runs the machine sets it right"
    if abs(skew) > SKEW_NO_SECONDS:
        return Finding("no", difference, do)
    if abs(skew) > SKEW_NOTE_SECONDS:
        return Finding("note", f"{difference}: logs of nodes will not fit together", do)
    return Finding("ok", f"agrees with {', '.join(skews)} to {format_seconds(abs(skew))}")


def file_clock_skew(folder: Path) -> float:
    """Seconds by which the file system's clock is ahead of this machine's; 0 within its resolution."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        before = time.time()
        file.write(b"\0")
        file.flush()
        os.fsync(file.fileno())
        written, after = Path(file.name).stat().st_mtime, time.time()
    # Kernels stamp files with the time of their last tick, up to 10 ms ago.
    return max(written - after, 0.0) or min(written - before + 0.01, 0.0)


def node_clock_skews() -> dict[str, float]:
    """Seconds by which each node of this job is ahead, as far as the time that asking took allows."""
    before = time.time()
    command = ["srun", "--overlap", "--ntasks-per-node=1", "bash", "-c", 'echo "$(hostname) $(date +%s.%N)"']
    answer = ask(command, SRUN_SECONDS)
    after = time.time()
    skews = {}
    for host, stamp in re.findall(r"^(\S+) (\d+\.\d+)$", answer.text, re.MULTILINE):
        skews[f"node {host}"] = max(float(stamp) - after, 0.0) or min(float(stamp) - before, 0.0)
    return skews


_SLOW = {
    "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "TRACE",
}  # fmt: skip


def check_transport_variables() -> Finding:
    """Variables by which somebody once steered gloo, NCCL or CUDA, and which now lead astray."""
    wrong = {
        name: f"{name}={os.environ[name]}: there is no such interface"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        if _leads_nowhere(name)
    }
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles") and gpus_listed():
        wrong["CUDA_VISIBLE_DEVICES"] = "CUDA_VISIBLE_DEVICES is empty: it hides every GPU"
    if wrong:
        return Finding("no", "; ".join(wrong.values()), f"unset {' '.join(wrong)}")
    slow = [f"{name}={value}" for name, value in _SLOW.items() if os.environ.get(name, "").upper() == value]
    if slow:
        names = " ".join(entry.split("=")[0] for entry in slow)
        return Finding("note", f"{' '.join(slow)}: made for a search, slow for all else", f"unset {names}")
    return Finding("ok", "none that steers gloo, NCCL or CUDA astray")


def _leads_nowhere(name: str) -> bool:
    """gloo takes exact names; NCCL how names begin, = before exact ones and ^ before those to leave out."""
    value = os.environ.get(name, "")
    if not value or value.startswith("^"):
        return False
    if value.startswith("=") or not name.startswith("NCCL_"):
        return bool(missing_interfaces("=" + value.removeprefix("=")))
    return not any(known.startswith(start) for start in value.split(",") for known in interfaces())


def check_default_port() -> Finding:
    """The port that a plain torchrun takes is free; in a job, also the one our scripts take."""
    ports = [TORCHRUN_PORT]
    if os.environ.get("MASTER_PORT", "").isdecimal():
        ports.append(int(os.environ["MASTER_PORT"]))
    for port in ports:
        if (holder := listener(port)) is not None:
            taken = f"port {port} is taken{holder}"
            do = "a plain torchrun meets there: give it --standalone, or another --rdzv-endpoint HOST:PORT"
            if str(port) == os.environ.get("MASTER_PORT"):
                return Finding("no", f"{taken}, and MASTER_PORT names it", f"unset MASTER_PORT, or: {do}")
            return Finding("note", taken, f"{do}; the workshop's cells choose a free one")
    free = ", ".join(map(str, ports))
    return Finding("ok", f"{free} free, where a plain torchrun meets")


def listener(port: int) -> str | None:
    """Who listens on ``port``: " by NAME (process N)", "" when that cannot be seen, None when nobody does."""
    inodes = set()
    for path in TCP:
        rows = path.read_text().splitlines()[1:] if path.exists() else []
        for row in map(str.split, rows):
            if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{row[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f" by {(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # another user's, or gone
            continue
    return ""


CHECKS = [
    Check("site", check_site, 30),
    Check("interface", check_interface, 30),
    Check("container", check_container, checks_site.MODULE_SECONDS + 30),
    Check("cache", check_cache, 30),
    Check("clock", check_clock, SRUN_SECONDS + 15),
    Check("gloo, NCCL, CUDA", check_transport_variables, 40),
    Check("torchrun's port", check_default_port, 10),
]
