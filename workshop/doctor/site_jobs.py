"""What a scheduler, a file system and a proxy say of a site's entries; each is asked with a time limit."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from workshop.doctor.clients import Answer, ask
from workshop.doctor.findings import Finding
from workshop.facts.units import format_bytes
from workshop.site.spec import SiteSpec

_CLIENT = {"slurm": "sbatch", "sge": "qsub"}
_ASK = {"slurm": ["sinfo", "--noheader", "--format=%R"], "sge": ["qconf", "-sql"]}
PROXY_SECONDS = 5.0


def check_scheduler(site: SiteSpec) -> Finding:
    """The scheduler's client is on PATH, and the scheduler answers."""
    if site.scheduler == "none":
        return Finding("ok", "none: ranks run on this machine")
    client = _CLIENT[site.scheduler]
    if shutil.which(client) is None:
        do = f'log in where {client} is, load its module first, or say scheduler = "none"'
        return Finding("no", f"there is no {client} on PATH", do)
    answer = queues(site)
    if not answer.came:
        return Finding("no", answer.why, f"`{' '.join(_ASK[site.scheduler])}` must answer; ask who runs it")
    return Finding("ok", f"{site.scheduler}: {', '.join(sorted(set(answer.text.split())))}")


def queues(site: SiteSpec) -> Answer:
    """The names of all partitions or queues."""
    return ask(_ASK[site.scheduler])


def check_partition(site: SiteSpec) -> Finding:
    """The partition (queue) is one of the scheduler's."""
    if not site.partition:
        return Finding("ok", "not given: the default")
    if site.scheduler == "none":
        return _unused("partition", site.partition)
    answer = queues(site)
    if not answer.came:
        return Finding("note", f"{site.partition}, not checked: {answer.why}", "first see to the scheduler")
    known = sorted(set(answer.text.split()))
    if site.partition in known:
        return Finding("ok", site.partition)
    do = f"partition in [job] is one of {', '.join(known)}"
    return Finding("no", f"there is no partition {site.partition}", do)


def check_account(site: SiteSpec) -> Finding:
    """The account is one that this user may charge."""
    if not site.account:
        return Finding("ok", "not given")
    if site.scheduler == "none":
        return _unused("account", site.account)
    if site.scheduler == "sge":
        return Finding("note", f"{site.account}, not checked", "SGE has no list of them: try a short job")
    answer = ask(["sacctmgr", "--noheader", "--parsable2", "--immediate", "show", "associations",
                  f"user={_user()}", "format=account"])  # fmt: skip
    known = sorted(set(answer.text.split()))
    if not answer.came or not known:
        why = answer.why or "Slurm keeps no accounts here"
        return Finding("note", f"{site.account}, not checked: {why}", "sbatch --test-only tells")
    if site.account in known:
        return Finding("ok", site.account)
    return Finding(
        "no", f"you have no account {site.account}", f"account in [job] is one of {', '.join(known)}"
    )


def _user() -> str:
    return os.environ.get("USER") or str(os.getuid())


def check_reservation(site: SiteSpec) -> Finding:
    """The reservation exists, and has begun."""
    if not site.reservation:
        return Finding("ok", "none")
    if site.scheduler != "slurm":
        return _unused("reservation", site.reservation)
    answer = ask(["scontrol", "--oneliner", "show", "reservation", site.reservation])
    do = "scontrol show reservation lists them; take it out of [job] when the course is over"
    if not answer.came or f"ReservationName={site.reservation}" not in answer.text:
        return Finding("no", answer.why or f"there is no reservation {site.reservation}", do)
    state = re.search(r"State=(\w+)", answer.text)
    if state and state[1] != "ACTIVE":
        when = re.search(r"StartTime=(\S+)", answer.text)
        return Finding(
            "note", f"{site.reservation} is {state[1]}", f"it starts {when[1] if when else 'later'}"
        )
    return Finding("ok", site.reservation)


def check_time_limit(site: SiteSpec) -> Finding:
    """The time of a job is within what the partition gives."""
    if site.scheduler != "slurm":
        return Finding("ok", site.time)
    options = ["--partition", site.partition] if site.partition else []
    answer = ask(["sinfo", "--noheader", "--format=%l", *options])
    limits = [minutes for text in answer.text.split() if (minutes := _seconds(text)) is not None]
    wanted = _seconds(site.time)
    if limits and wanted is not None and wanted > max(limits):
        longest = max(answer.text.split(), key=lambda text: _seconds(text) or 0)
        return Finding(
            "no", f"{site.time} is longer than the partition's {longest}", f"time in [job]: {longest}"
        )
    return Finding("ok", site.time)


def _seconds(text: str) -> int | None:
    """Of Slurm's [D-]HH:MM:SS or MM:SS; None for infinite."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def check_cpus(site: SiteSpec) -> Finding:
    """As many cores as a node of this Slurm has."""
    counts = [int(text) for text in re.findall(r"\d+", ask(["sinfo", "--noheader", "--format=%c"]).text)]
    if not counts or site.cpus <= max(counts):
        return Finding("ok", f"{site.cpus} of {max(counts)}" if counts else f"{site.cpus}")
    mismatch = f"the file says {site.cpus}, a node of this Slurm has {max(counts)}"
    return Finding("no", mismatch, f"cpus = {max(counts)} in [node]: Slurm refuses the job else")


def _unused(key: str, value: str) -> Finding:
    return Finding(
        "note", f"{key} {value} is not used", f"this site's scheduler takes no {key}: leave it out"
    )


def check_written_to(key: str, path: str, enough: int) -> Finding:
    """``path`` exists or can be made, can be written to, and has ``enough`` bytes free."""
    if not path:
        return Finding("ok", "not given")
    do = f"{key} in [paths] is a folder of yours with room, which every node sees"
    if "$" in path or not path.startswith("/"):
        return Finding("no", f"{path} is no full path, or holds a variable that is not set", do)
    there = Path(path)
    while not there.exists() and there != there.parent:
        there = there.parent
    made = "" if there == Path(path) else "; it will be made"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return Finding("no", f"{there} cannot be written to: {error.strerror}", do)
    free = shutil.disk_usage(there).free
    space = f"{path}, {format_bytes(free)} free{made}"
    if free < enough // 4:
        return Finding("no", space, f"free some room there, or: {do}")
    return Finding("note", space, f"that is little; {do}") if free < enough else Finding("ok", space)


def check_proxy(site: SiteSpec) -> Finding:
    """Somebody listens where the proxy should be."""
    if not site.proxy:
        return Finding("ok", "none")
    parts = urlsplit(site.proxy)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=PROXY_SECONDS).close()
    except (OSError, ValueError) as error:
        return Finding(
            "no", f"{parts.hostname} cannot be reached: {error}", "proxy in [network], as http://host:port"
        )
    return Finding("ok", f"{parts.hostname}:{port} answers")
