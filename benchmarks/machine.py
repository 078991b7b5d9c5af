"""What a benchmark was run on: written into its JSON beside the numbers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Cores, processor, load and versions now; None for a package that is not installed."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "?")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "load_average": load_average(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def load_average() -> list[float]:
    """Processes that wanted a core, averaged over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()]


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """The commit of this working tree, with a ``+`` where it has changes that are not in it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    return git("rev-parse", "--short=10", "HEAD").strip() + "+" * bool(git("status", "--porcelain", "-uno"))
