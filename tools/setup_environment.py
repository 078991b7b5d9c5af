"""Make `.venv` and install the workshop into it: the first step of `make lab` and `make test`.

It needs nothing but a Python 3.11 or newer, says what it does line by line, and does nothing the second time:
a stamp inside `.venv` records what was installed from which `pyproject.toml` and `constraints.txt`.

How torch is chosen, because a plain ``pip install torch`` on Linux pulls gigabytes of CUDA libraries:

* TORCH is set (``make lab TORCH="torch==2.12.*"``): that, from wherever pip is set up to look;
* a torch in the supported range is in `.venv` already: it stays;
* an NVIDIA GPU answers (``nvidia-smi -L``): the plain build, with CUDA;
* otherwise the CPU build: from pip's own index if that carries one, else through uv, which knows where
  PyTorch keeps its CPU builds.

pip compiles what it installs to bytecode, 20,000 files one after the other. It is told not to: torch and what
it needs are compiled while pip installs the rest, and the rest on all cores.

The file runs on Python 3.7 and later, so that an old one can be told apart from a broken one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

OLDEST_PYTHON = (3, 11)
TORCH_RANGE = "torch>=2.11,<2.14"
TORCH_CPU = "torch==2.13.0+cpu"
STAMP = "workshop-setup.json"
SECONDS_BETWEEN_SIGNS = 20
LINES_OF_A_FAILURE = 25


class SetupError(Exception):
    """Something the reader must do before the environment can be made."""


def say(text: str) -> None:
    """One line for the reader, at once."""
    print(text, flush=True)


# ----------------------------------------------------------------------------------------------- Python


def newer_python(version: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """Another Python on PATH that is new enough, or None where the running one already is."""
    if version >= OLDEST_PYTHON:
        return None
    for minor in range(20, OLDEST_PYTHON[1] - 1, -1):
        program = shutil.which(f"python3.{minor}")
        # A version manager puts names on PATH that lead nowhere: ask each one.
        if program and _answers(program, f"import sys; assert sys.version_info >= {OLDEST_PYTHON}"):
            return program
    raise SetupError(
        f"{sys.executable} is Python {version[0]}.{version[1]}, and the workshop needs "
        f"{OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer. Install one, or name it: "
        f"make lab PYTHON=/path/to/python3.{OLDEST_PYTHON[1]}"
    )


def _answers(python: str, code: str) -> bool:
    """Whether ``python -c code`` ends well."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def require_venv(python: str) -> None:
    """Raise SetupError where ``python`` cannot make virtual environments (Debian packages that apart)."""
    if not _answers(python, "import venv, ensurepip"):
        raise SetupError(
            f"{python} cannot make virtual environments: its venv module is missing. "
            "On Debian and Ubuntu: apt-get install python3-venv"
        )


def make_venv(venv: Path, python: str) -> bool:
    """Create ``venv`` unless a working one stands there. True where it was made."""
    inside = venv_python(venv)
    # A moved environment still starts, but its prefix is the old place and pip would install there.
    is_home = f"assert os.path.samefile(sys.prefix, {str(venv)!r}) and sys.version_info >= {OLDEST_PYTHON}"
    if inside.exists() and _answers(str(inside), f"import os, pip, sys; {is_home}"):
        return False
    require_venv(python)
    run_quietly([python, "-m", "venv", "--clear", str(venv)], "making the environment")
    # The pip that comes with Python 3.11 can search for an hour where a newer one needs seconds.
    pip_install(inside, ["--upgrade", "pip"], "bringing pip up to date")
    return True


def venv_python(venv: Path) -> Path:
    """The interpreter of ``venv``."""
    return venv / "bin" / "python"


# ------------------------------------------------------------------------------------- running pip quietly


class CommandFailed(SetupError):
    """A command of the setup failed; ``output`` is what it wrote."""

    def __init__(self, what: str, returncode: int, output: str) -> None:
        tail = "\n".join("    " + line for line in output.splitlines()[-LINES_OF_A_FAILURE:])
        super().__init__(f"{what} failed with exit code {returncode}; its last words:\n{tail}")
        self.output = output


def run_quietly(command: list[str], what: str) -> str:
    """Run ``command`` with its output kept back, a sign of life every 20 s, and the tail of it on failure."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    process.wait(timeout=SECONDS_BETWEEN_SIGNS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"      ... {what}, {time.monotonic() - started:.0f} s")
        finally:
            if process.poll() is None:  # Ctrl-C: pip must not go on alone
                process.terminate()
                process.wait()
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if process.returncode:
        raise CommandFailed(what, process.returncode, text)
    return text


def pip_install(python: Path, arguments: list[str], what: str) -> None:
    """``pip install`` with ``arguments`` into the environment of ``python``."""
    quiet = ["--disable-pip-version-check", "--no-compile"]
    run_quietly([str(python), "-m", "pip", "install", *quiet, *arguments], what)


# --------------------------------------------------------------------------------------------- bytecode


def packages(python: Path) -> set[Path]:
    """What is installed in the environment of ``python`` by now."""
    return set(python.parents[1].glob("lib/python*/site-packages/*"))


@contextlib.contextmanager
def compiling(python: Path, some: set[Path], jobs: int) -> Iterator[None]:
    """Compile packages in ``jobs`` processes beside what is done meanwhile, then wait for it."""
    if not some:
        yield
        return
    program = Path(__file__).with_name("compile_packages.py")
    command = [str(python), str(program), str(jobs), *map(str, sorted(some))]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
        process.wait()
    finally:
        if process.poll() is None:  # what was done meanwhile has failed
            process.terminate()
            process.wait()


# ------------------------------------------------------------------------------------------------ torch


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers on this machine."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and b"GPU " in listed.stdout


def installed_torch(python: Path) -> str | None:
    """The version of torch in the environment, if it is one the workshop supports."""
    ask = (
        "from importlib.metadata import version\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "found = version('torch')\n"
        f"assert Requirement({TORCH_RANGE!r}).specifier.contains(found, prereleases=True)\n"
        "print(found)\n"
    )
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def install_torch(python: Path, constraints: list[str], wanted: str | None) -> str:
    """Install torch as the module's docstring says; returns a sentence on what was done."""
    if wanted:
        pip_install(python, [wanted, *constraints], f"installing {wanted}")
        return f"{wanted}, as TORCH asks"
    kept = installed_torch(python)
    if kept:
        return f"torch {kept} is there and stays"
    if has_gpu():
        pip_install(python, [TORCH_RANGE, *constraints], "installing torch with CUDA")
        return "the CUDA build, for the GPU that nvidia-smi lists"
    try:
        pip_install(python, [TORCH_CPU, *constraints], "installing torch, the CPU build")
        return "the CPU build, because no GPU was found"
    except CommandFailed as failure:
        if "No matching distribution found for torch" not in failure.output:
            raise
    say("      pip's index has no CPU build of torch; uv knows where PyTorch keeps them")
    pip_install(python, ["uv"], "installing uv")
    uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python), "--torch-backend=cpu"]
    run_quietly([*uv, TORCH_RANGE, *constraints], "installing torch, the CPU build, through uv")
    return "the CPU build through uv, because no GPU was found"


def torch_as_it_is(python: Path) -> list[str]:
    """The installed torch as a requirement: a conflict elsewhere must not make pip try other builds of it."""
    present = installed_torch(python)
    return [f"torch=={present}"] if present else []


# ------------------------------------------------------------------------------------------------ stamp


def fingerprint(root: Path, wanted_torch: str | None) -> str:
    """Changes when something changes that the environment is made from."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    digest.update((wanted_torch or "").encode() + b"\0" + str(root).encode())
    return digest.hexdigest()


def is_done(venv: Path, print_now: str, extras: set[str]) -> bool:
    """Whether the stamp in ``venv`` says that these extras were installed from the same files."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp.get("fingerprint") == print_now and extras <= set(stamp.get("extras", ())))


def write_stamp(venv: Path, print_now: str, extras: set[str]) -> None:
    """Record what was installed; extras of an earlier run with the same files still count."""
    earlier: set[str] = set()
    if is_done(venv, print_now, set()):
        earlier = set(json.loads((venv / STAMP).read_text())["extras"])
    text = json.dumps({"fingerprint": print_now, "extras": sorted(extras | earlier)}, indent=1)
    (venv / STAMP).write_text(text + "\n")


# ------------------------------------------------------------------------------------------------- main


def set_up(root: Path, extras: set[str], wanted_torch: str | None, python: str = sys.executable) -> None:
    """Bring ``root/.venv`` to the state that the files of ``root`` describe, saying each step."""
    venv, started = root / ".venv", time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    made = make_venv(venv, python)
    print_now = fingerprint(root, wanted_torch)
    if is_done(venv, print_now, extras):
        say("setup: .venv is ready (pyproject.toml and constraints.txt have not changed since)")
        return
    say(f"setup 1/3: {'made' if made else 'using'} .venv with Python {version}")
    inside = venv_python(venv)
    constraints = ["--constraint", str(root / "constraints.txt")]
    say("setup 2/3: torch (the largest part, some minutes on a slow line)")
    say(f"      {install_torch(inside, constraints, wanted_torch)}")
    names = f"[{','.join(sorted(extras))}]" if extras else ""
    say(f"setup 3/3: the workshop{names} and what it needs, JupyterLab among them")
    what = ["--editable", f"{root}{names}", *torch_as_it_is(inside), *constraints]
    first = packages(inside)
    with compiling(inside, first, jobs=1):
        pip_install(inside, what, "installing the workshop")
    with compiling(inside, packages(inside) - first, jobs=os.cpu_count() or 1):
        pass
    write_stamp(venv, print_now, extras)
    say(f"setup: done in {time.monotonic() - started:.0f} s")


def main(arguments: list[str] | None = None) -> int:
    """Set up; the exit code is 0, or 1 after a sentence on what went wrong."""
    parser = argparse.ArgumentParser(description="Make .venv and install the workshop into it.")
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, for example dev,bench")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    extras = {name for name in options.extras.split(",") if name}
    try:
        better = newer_python()
        if better:
            say(f"setup: {sys.executable} is too old; going on with {better}")
            return subprocess.call([better, __file__, *(sys.argv[1:] if arguments is None else arguments)])
        set_up(options.root.resolve(), extras, os.environ.get("TORCH") or None)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run the same command again to go on", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
