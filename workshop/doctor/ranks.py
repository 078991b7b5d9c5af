"""The doctor's last checks: real ranks, started as torchrun starts them, add up a number.

First with gloo on loopback, as in every lesson; then over the site's interface, as on several nodes, so that
one that lets nothing through is found before a job waits in it; then with NCCL, where there are GPUs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workshop.doctor.findings import Check, Finding
from workshop.doctor.software import ask_torch
from workshop.facts.units import format_seconds
from workshop.launch.processes import die_with_parent
from workshop.site.current import in_allocation, rank_environment, site_environment, site_of_file
from workshop.site.interfaces import missing_interfaces

QUICK_SECONDS = 20
LIMIT_SECONDS = 60

_PROGRAM = """
import os, sys, torch, torch.distributed as dist
backend, world = sys.argv[1], int(os.environ["WORLD_SIZE"])
if backend == "nccl":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(backend)
total = torch.tensor([dist.get_rank() + 1.0], device="cuda" if backend == "nccl" else "cpu")
dist.all_reduce(total)
if total.item() != world * (world + 1) / 2:
    raise ArithmeticError(f"the sum of 1 to {world} came out as {total.item()}")
dist.destroy_process_group()
"""
_WHY_NOT = "see torch, free port and memory above; `hostname` must resolve (/etc/hosts); then try once more"
_WHY_NOT_OVER = (
    "a firewall or a wrong network: `ip -brief address`, then interface in [node] of the site's file (or "
    "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
)
_WHY_NOT_NCCL = "run it with NCCL_DEBUG=INFO; /dev/shm, the driver and NCCL_* variables are the usual causes"


def check_ranks(limit: float = LIMIT_SECONDS, program: str = _PROGRAM) -> Finding:
    """Two ranks start, meet and agree that 1 + 2 is 3."""
    environment = rank_environment(os.environ)
    return _tried(_Try("two gloo ranks", _WHY_NOT, environment), limit, program)


def check_ranks_over_interface(limit: float = LIMIT_SECONDS) -> Finding:
    """The same over the site's interface, as between nodes."""
    try:
        site = site_of_file()
    except (ValueError, FileNotFoundError):
        return Finding("note", "not tried", "first see to the site")
    variables = site_environment(site, one_node=False) if site else {}
    name = os.environ.get("GLOO_SOCKET_IFNAME") or variables.get("GLOO_SOCKET_IFNAME")
    if not name or name == "lo":
        return Finding("ok", "not tried: the site names no interface")
    if gone := missing_interfaces(name):
        if site and site.scheduler != "none" and not in_allocation(os.environ):
            return Finding(
                "note", f"not tried: {', '.join(gone)} is not here, and this is no node", "try in a job"
            )
        return Finding("no", f"there is no interface {', '.join(gone)}", _WHY_NOT_OVER)
    environment = rank_environment(os.environ, one_node=False) | {"GLOO_SOCKET_IFNAME": name}
    return _tried(_Try(f"two gloo ranks over {name}", _WHY_NOT_OVER, environment), limit)


def check_nccl_ranks(limit: float = LIMIT_SECONDS) -> Finding:
    """Two ranks with NCCL (one where there is one GPU)."""
    gpus = len(ask_torch().get("gpus", ()))
    if not gpus or not ask_torch().get("nccl"):
        return Finding("ok", "not tried: no GPU for NCCL")
    ranks = min(gpus, 2)
    name = "two NCCL ranks" if ranks == 2 else "one NCCL rank"
    attempt = _Try(name, _WHY_NOT_NCCL, rank_environment(os.environ), "nccl", ranks)
    return _tried(attempt, limit)


@dataclass(frozen=True)
class _Try:
    """Ranks to start, and what to do when they do not agree."""

    name: str
    do: str
    environment: Mapping[str, str]
    backend: str = "gloo"
    ranks: int = 2


def _tried(attempt: _Try, limit: float, program: str = _PROGRAM) -> Finding:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="workshop-doctor-") as folder:
        script = Path(folder) / "two_ranks.py"
        script.write_text(program)
        returncode, output = _torchrun(script, attempt, limit)
    took = time.monotonic() - started
    if returncode is None:
        return Finding("no", f"{attempt.name} did not finish an all_reduce in {limit:g} s", attempt.do)
    if returncode:
        return Finding("no", f"{attempt.name} failed: {_cause(output)}", attempt.do)
    agreement = f"{attempt.name} agree{'s' * (attempt.ranks == 1)}, after {format_seconds(took)}"
    if took > QUICK_SECONDS:
        return Finding("note", agreement, "the machine is slow or busy")
    return Finding("ok", agreement)


def _torchrun(script: Path, attempt: _Try, limit: float) -> tuple[int | None, str]:
    """Exit code (None after ``limit`` seconds) and output of the ranks."""
    logs = script.parent / "logs"  # a file for each rank: in one stream the lines of two ranks may mix
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--log-dir={logs}",
        "--redirects=3",
    ]
    process = subprocess.Popen(
        [*command, f"--nproc-per-node={attempt.ranks}", str(script), attempt.backend],
        env=dict(attempt.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        by_rank = "".join(log.read_text() for log in sorted(logs.rglob("std*.log")))
        return process.returncode, by_rank + output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            # SIGTERM lets the agent end its ranks, which sit in sessions of their own.
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


# "RuntimeError: no peer", with or without the "[rank0]:" that torch puts before it.
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


def _cause(output: str) -> str:
    """The error that the ranks met first; torchrun's own report comes after it and says less."""
    error = _ERROR.search(output)
    last = output.strip().splitlines() or ["no word from them"]
    return (error[1] if error else last[-1])[:200]


CHECKS = [
    Check("two ranks", check_ranks, LIMIT_SECONDS + 40),
    Check("over the network", check_ranks_over_interface, LIMIT_SECONDS + 40),
    Check("NCCL ranks", check_nccl_ranks, LIMIT_SECONDS + 40),
]
