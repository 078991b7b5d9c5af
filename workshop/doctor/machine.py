"""The doctor's checks of the machine: cores, memory, shared memory, disk, ports, limits, leaked variables."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from workshop.doctor.findings import Check, Finding
from workshop.facts.units import BINARY_UNITS, format_bytes
from workshop.site.current import launcher_variables

MIB, GIB = BINARY_UNITS["MiB"], BINARY_UNITS["GiB"]
SHARED_MEMORY = Path("/dev/shm")
# JupyterLab sets these in every kernel; they are no launcher's.
_JUPYTER = ("JPY_PARENT_PID", "JPY_SESSION_NAME")


def check_cores() -> Finding:
    """At least two cores that this process may use."""
    cores = usable_cores()
    if cores < 2:
        return Finding(
            "note", f"{cores:g} core", "every lesson runs, but ranks take turns: expect twice the time"
        )
    return Finding("ok", f"{cores:g} cores")


def usable_cores(control_group: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores this process may use: its affinity, and a container's share if that is less."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (control_group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def check_memory() -> Finding:
    """Room for a few ranks."""
    free = free_memory()
    space = f"{format_bytes(free)} free"
    if free < 1 * GIB:
        return Finding(
            "no", space, "four ranks need about 2 GiB: close something, or ask for a larger container"
        )
    if free < 3 * GIB:
        return Finding("note", space, "enough for four ranks, tight for eight")
    return Finding("ok", space)


def free_memory(meminfo: Path = Path("/proc/meminfo"), control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still take: the machine's, or what a container's limit leaves."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit = (control_group / "memory.max").read_text().strip()
        used = int((control_group / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, max(int(limit) - used, 0))


def check_shared_memory() -> Finding:
    """/dev/shm is there, writable and roomy: data loaders and NCCL pass tensors through it."""
    cure = "docker and podman: --shm-size=2g; elsewhere ask who runs the machine"
    if not SHARED_MEMORY.is_dir() or not _writable(SHARED_MEMORY):
        return Finding("no", f"{SHARED_MEMORY} is missing or cannot be written to", cure)
    room = shutil.disk_usage(SHARED_MEMORY)
    space = f"{format_bytes(room.free)} of {format_bytes(room.total)} free"
    if room.free < 32 * MIB:
        return Finding("no", space, f"remove old files from {SHARED_MEMORY}{_largest(SHARED_MEMORY)}; {cure}")
    if room.free < 512 * MIB:
        return Finding("note", space, f"tight for data loaders and NCCL; {cure}")
    return Finding("ok", space)


def _largest(folder: Path) -> str:
    """The largest file of ``folder`` in words; "" where there is none that can be seen."""
    sizes = {}
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile
            sizes[path] = path.lstat().st_size
    if not sizes:
        return ""
    name = max(sizes, key=sizes.__getitem__)
    return f" (the largest: {name.name}, {format_bytes(sizes[name])}) that no program of yours still uses"


def check_temporary_folder() -> Finding:
    """The temporary folder can be written to and has room."""
    return _room(Path(tempfile.gettempdir()), "set TMPDIR to a folder with room")


def check_current_folder() -> Finding:
    """The current folder can be written to and has room."""
    return _room(Path.cwd(), "free some space, or work in another folder")


def _room(folder: Path, do: str) -> Finding:
    if not _writable(folder):
        return Finding("no", f"{folder} cannot be written to, or is full", do)
    free = shutil.disk_usage(folder).free
    space = f"{format_bytes(free)} free in {folder}"
    if free < 200 * MIB:
        return Finding("no", space, do)
    return Finding("note", space, do) if free < 2 * GIB else Finding("ok", space)


def _writable(folder: Path) -> bool:
    """Seen by writing: permissions alone say nothing about a full or read-only file system."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError:
        return False
    return True


def check_port() -> Finding:
    """A port on loopback can be had, and reached."""
    do = "the loopback interface is down or closed: `ip link set lo up`, or ask who runs the machine"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return Finding("no", f"no port on 127.0.0.1: {error}", do)
    return Finding("ok", f"127.0.0.1:{port} could be had and reached")


def check_variables() -> Finding:
    """No variables of another launcher."""
    names = [name for name in launcher_variables(os.environ) if name not in _JUPYTER]
    if not names:
        return Finding("ok", "none of another launcher")
    first_names = " ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    if "SLURM_JOB_ID" in os.environ:
        return Finding(
            "note", f"inside Slurm job {os.environ['SLURM_JOB_ID']}: {first_names}", "ranks do not see them"
        )
    return Finding("no", first_names, f"start from a fresh shell, or: unset {' '.join(names)}")


def check_limits() -> Finding:
    """Open files and processes: each rank needs some dozens of either."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = f"{_limit(files)} open files (ulimit -n), {_limit(processes)} processes (ulimit -u)"
    if 0 <= files < 256 or 0 <= processes < 128:
        return Finding("no", limits, "raise them: ulimit -n 4096; ulimit -u 4096")
    if 0 <= files < 1024 or 0 <= processes < 512:
        return Finding("note", limits, "enough for four ranks; for more: ulimit -n 4096; ulimit -u 4096")
    return Finding("ok", limits)


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else f"{number:,}"


CHECKS = [
    Check("cores", check_cores, 5),
    Check("memory", check_memory, 5),
    Check("shared memory", check_shared_memory, 10),
    Check("temporary folder", check_temporary_folder, 15),
    Check("this folder", check_current_folder, 15),
    Check("free port", check_port, 10),
    Check("leaked variables", check_variables, 5),
    Check("limits", check_limits, 5),
]
