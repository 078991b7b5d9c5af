"""The doctor's checks of what is installed: Python, JupyterLab, its kernel, torch, models and data."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from packaging.requirements import Requirement

from workshop.doctor.findings import Check, Finding
from workshop.facts.tree import DISTRIBUTION, FROM_WHEEL
from workshop.facts.units import format_bytes, format_seconds
from workshop.site.current import scrubbed

OLDEST_PYTHON = (3, 11)
TORCH_SECONDS = 90
SLOW_IMPORT_SECONDS = 20

# In a process of its own: a torch that is broken, or that ends the process, is a finding and no accident.
_ASK_TORCH = """
import json, time
start = time.perf_counter()
import torch
import torch.distributed as dist
of_torch = {"version": torch.__version__, "seconds": time.perf_counter() - start, "cuda": torch.version.cuda}
of_torch["gloo"] = dist.is_available() and dist.is_gloo_available()
of_torch["nccl"] = dist.is_available() and dist.is_nccl_available()
of_torch["gpus"] = []
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        of_torch["gpus"].append([gpu.name, gpu.total_memory])
    if of_torch["nccl"]:
        of_torch["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(of_torch))
"""


def check_python() -> Finding:
    """Python is new enough."""
    present = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding(
            "no", f"{present} is too old", "install Python 3.11 or newer, then `make lab PYTHON=...`"
        )
    return Finding("ok", f"{present} at {sys.executable}")


def check_jupyterlab() -> Finding:
    """JupyterLab is there, in a version that the package asks for."""
    return _installed("jupyterlab")


def _installed(name: str) -> Finding:
    wanted = wanted_range(name)
    try:
        present = version(name)
    except PackageNotFoundError:
        return Finding("no", f"{name} is not installed", _install_again(wanted))
    if not Requirement(wanted).specifier.contains(present, prereleases=True):
        return Finding("no", f"{present} is not in {wanted}", _install_again(wanted))
    return Finding("ok", present)


def _install_again(wanted: str) -> str:
    """What brings back a package: from a clone the set-up does, for a wheel pip does."""
    by_pip = f'`{sys.executable} -m pip install "{wanted}"`'
    return f"run {by_pip}" if FROM_WHEEL else f"run `make lab` again, or {by_pip}"


def wanted_range(name: str) -> str:
    """The package's own requirement on ``name``, as pyproject.toml has it."""
    return next((text for text in _requirements() if Requirement(text).name == name), name)


def _requirements() -> list[str]:
    try:
        return [text for text in requires(DISTRIBUTION) or [] if "extra ==" not in text]
    except PackageNotFoundError:  # run from a clone that was never installed
        pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return list(tomllib.loads(pyproject.read_text())["project"]["dependencies"])


def check_kernel() -> Finding:
    """The kernel that notebooks ask for, python3, is this Python."""
    try:
        starts = Path(KernelSpecManager().get_kernel_spec("python3").argv[0])
    except NoSuchKernel:
        return Finding(
            "no", "no kernel called python3", f"{sys.executable} -m ipykernel install --sys-prefix"
        )
    # ipykernel's own description says just "python": that is this one.
    if starts == Path(starts.name) or starts.absolute() == Path(sys.executable).absolute():
        return Finding("ok", "python3 starts this Python")
    return Finding(
        "no",
        f"python3 starts {starts}, not {sys.executable}",
        f"{sys.executable} -m ipykernel install --sys-prefix, or remove the other (jupyter kernelspec list)",
    )


@functools.cache
def ask_torch() -> dict:
    """What torch says of itself, from a process of its own; under ``error`` why it could not."""
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TORCH_SECONDS,
            env=scrubbed(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"import torch took longer than {TORCH_SECONDS} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    if done.returncode < 0:
        return {"error": f"import torch ended the process with signal {-done.returncode}"}
    return {"error": (done.stderr.strip().splitlines() or ["import torch failed without a word"])[-1]}


def check_torch() -> Finding:
    """Torch can be imported and is in range."""
    torch, wanted = ask_torch(), wanted_range("torch")
    if "error" in torch:
        return Finding("no", torch["error"], _install_again(wanted))
    version = f"{torch['version']}, imported in {format_seconds(torch['seconds'])}"
    if not Requirement(wanted).specifier.contains(torch["version"], prereleases=True):
        return Finding("no", f"{version}; it is not in {wanted}", f'pip install "{wanted}"')
    if torch["seconds"] > SLOW_IMPORT_SECONDS:
        return Finding("note", version, "a slow disk or a busy machine: every launch will wait for this")
    return Finding("ok", version)


def check_devices() -> Finding:
    """GPUs, and whether this torch can use them."""
    torch, listed = ask_torch(), gpus_listed()
    if torch.get("gpus"):
        names = ", ".join(f"{name} ({format_bytes(memory)})" for name, memory in torch["gpus"])
        return Finding("ok", f"{len(torch['gpus'])} GPU: {names}")
    if not listed:
        return Finding("ok", "no GPU: ranks run on the CPU, with gloo")
    if "error" in torch:
        return Finding("note", f"{listed} GPU, but torch did not answer", "first see to torch")
    if not torch["cuda"]:
        fix = 'pip install --force-reinstall "torch>=2.11,<2.14" brings the CUDA build'
        return Finding("no", f"{listed} GPU, but this torch is a CPU build ({torch['version']})", fix)
    return Finding(
        "no",
        f"{listed} GPU, but torch (CUDA {torch['cuda']}) cannot use them",
        "compare with the CUDA version that nvidia-smi prints, and look at CUDA_VISIBLE_DEVICES",
    )


def gpus_listed() -> int:
    """How many GPUs nvidia-smi lists."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0


def check_nccl() -> Finding:
    """NCCL is there where a GPU is."""
    torch = ask_torch()
    if not torch.get("gpus"):
        return Finding("ok", "not needed: no GPU")
    if not torch["nccl"]:
        return Finding("no", "this torch has no NCCL", "install the CUDA build of torch for Linux")
    return Finding("ok", torch["nccl_version"])


def check_assets() -> Finding:
    """Models and data of the lessons are in the cache; if not, they are fetched on first use."""
    from workshop.assets import assets, cache, is_ready

    missing = [each for each in assets().values() if not is_ready(each.name)]
    if not missing:
        return Finding("ok", f"all {len(assets())} in {cache.root()}")
    size = format_bytes(sum(each.num_bytes for each in missing))
    names = ", ".join(each.name for each in missing)
    return Finding(
        "note", f"not here yet: {names}", f"before you are offline: workshop assets fetch --all ({size})"
    )


CHECKS = [
    Check("Python", check_python, 5),
    Check("JupyterLab", check_jupyterlab, 10),
    Check("kernel", check_kernel, 10),
    Check("torch", check_torch, TORCH_SECONDS + 5),
    Check("devices", check_devices, 40),
    Check("NCCL", check_nccl, 5),
    Check("models and data", check_assets, 15),
]
