"""The doctor's check of a hosted notebook service: which one this is, and what it does not have.

Each is known by a variable that it sets in every session: Kaggle by KAGGLE_KERNEL_RUN_TYPE (wandb goes by
it too), Binder by BINDER_LAUNCH_HOST or BINDER_REPO_URL (BinderHub's spawner), Colab by COLAB_RELEASE_TAG.
Kaggle is asked for first: its image may carry Colab's variables. What becomes of files stands in their pages:
Colab's FAQ, "Where is my code executed?"; Kaggle's documentation of notebooks; Binder's user guide,
"About mybinder.org". Cores, GPUs and rights are this machine's, looked up when the doctor is asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workshop.doctor.findings import Check, Finding
from workshop.doctor.machine import usable_cores
from workshop.doctor.software import ask_torch


@dataclass(frozen=True)
class Host:
    """A service that lends a notebook on a machine of its own."""

    name: str
    variables: tuple[str, ...]
    folder: Path
    """Where its notebooks begin, and where working copies belong."""
    keep: str
    """How to keep what was written there."""


HOSTS = (
    Host(
        "Kaggle",
        ("KAGGLE_KERNEL_RUN_TYPE",),
        Path("/kaggle/working"),
        "Save Version keeps the files in /kaggle/working; everything else goes with the session",
    ),
    Host(
        "Binder",
        ("BINDER_LAUNCH_HOST", "BINDER_REPO_URL"),
        Path.home(),
        "nothing is kept, and an idle session ends: download what you wrote",
    ),
    Host(
        "Colab",
        ("COLAB_RELEASE_TAG",),
        Path("/content"),
        "/content goes with the machine: download what you wrote, or copy it to a mounted Drive",
    ),
)


def current_host(environment: Mapping[str, str] | None = None) -> Host | None:
    """The service that this process runs at, or None."""
    environment = os.environ if environment is None else environment
    return next((host for host in HOSTS if any(name in environment for name in host.variables)), None)


def check_host() -> Finding:
    """Which service lends this machine; what it lacks, and what becomes of your files."""
    host = current_host()
    if host is None:
        return Finding("ok", "no hosted notebook service")
    has = f"{usable_cores():g} cores, {_gpus()}, {_root()}"
    place = "" if host.folder.is_dir() else f"; {host.folder} is not here"
    words = [host.keep]
    if usable_cores() < 4:
        words.append("ranks share the cores: lessons run, times are no measure of a speed-up")
    if shutil.which("nvidia-smi") is None:
        words.append("no GPU: ranks talk over gloo; what says NCCL is read, not run")
    return Finding("note", f"{host.name}: {has}{place}", "; ".join(words))


def _gpus() -> str:
    count = len(ask_torch().get("gpus", ()))
    return f"{count} GPU" + "s" * (count > 1) if count else "no GPU"


def _root() -> str:
    if os.geteuid() == 0:
        return "you are root"
    return "sudo" if shutil.which("sudo") else "no sudo: nothing of Debian's can be installed"


CHECKS = [Check("hosted notebook", check_host, 100)]
