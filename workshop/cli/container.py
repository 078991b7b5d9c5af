"""``workshop container``: the line for a command in the site's container, and the one that builds it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import workshop
from workshop.cli.site import chosen
from workshop.site.apptainer_command import container_command
from workshop.site.current import expanded, site_environment
from workshop.site.spec import SiteSpec

BUILD_SECONDS = 2 * 3600.0
CACHE_INSIDE = "/opt/cache-of-the-host"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop container``."""
    parser.description = (
        "`command -- CMD ...` prints the line for CMD in the site's container: GPUs, binds, and only the "
        "variables that ranks need. `build` prints the line that makes the image from apptainer.def; with "
        "--run it is run."
    )
    parser.add_argument("what", choices=("command", "build"), help="what to print")
    parser.add_argument("words", nargs="*", metavar="CMD", help="the command, after -- (default: a shell)")
    parser.add_argument("--site", metavar="FILE", help="a site's file or example (default: the one in force)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="working folder (default: this one)")
    parser.add_argument("--run", action="store_true", help="with build: run the line")
    parser.add_argument("--assets", action="store_true", help="with build: models and data into the image")
    parser.add_argument("--torch", default="", metavar="REQUIREMENT", help="with build: another torch")
    parser.add_argument("--index", default="", metavar="URL", help="with build: where that torch is found")
    parser.add_argument("--base", default="", metavar="IMAGE", help="with build: another base image")
    parser.add_argument("--output", type=Path, metavar="FILE", help="with build: the image's file")


def run(options: argparse.Namespace) -> int:
    """The command."""
    site = expanded(chosen(options.site), os.environ)
    if options.what == "build":
        return _build(site, options)
    if site.runtime == "none":
        raise ValueError(
            f"{site.name} ({site.source}) has no container: set runtime and container in [software]"
        )
    print(shlex.join(command_here(site, options.words or ["bash"], options.folder or Path.cwd())))
    return 0


def command_here(site: SiteSpec, words: list[str], folder: Path) -> list[str]:
    """The run line for ``words``, with the variables that the site has for ranks of several nodes."""
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    environment |= site_environment(site, one_node=False)
    return container_command(site, words, folder=str(folder.resolve()), environment=environment)


def _build(site: SiteSpec, options: argparse.Namespace) -> int:
    root = Path(workshop.__file__).resolve().parents[1]
    if not (root / "apptainer.def").is_file():
        raise FileNotFoundError(
            f"there is no apptainer.def in {root}: clone the repository and build from there"
        )
    if site.runtime == "charliecloud":
        raise ValueError("Charliecloud builds no image from a .def: build it where Apptainer is, as a folder "
                         "(--output NAME/ makes one), and give that to ch-run")  # fmt: skip
    runtime = "apptainer" if site.runtime == "none" else site.runtime
    line = build_command(runtime, site.container or "workshop.sif", options)
    print(f"cd {shlex.quote(str(root))} && {shlex.join(line)}", flush=True)
    if not options.run:
        return 0
    if shutil.which(runtime) is None:
        raise ValueError(f"there is no {runtime} on PATH: load its module, or run the line above where it is")
    return subprocess.run(line, cwd=root, timeout=BUILD_SECONDS, check=False).returncode


def build_command(runtime: str, usual: str, options: argparse.Namespace) -> list[str]:
    """``apptainer build ...``: a SIF file, or a folder where the output's name has no suffix."""
    output = str(options.output or usual)
    words = [runtime, "build", *(["--sandbox"] if options.output and not options.output.suffix else [])]
    for name, value in (("BASE", options.base), ("TORCH", options.torch), ("INDEX", options.index)):
        if value:
            words += ["--build-arg", f"{name}={value}"]
    if options.assets:
        words += ["--build-arg", "ASSETS=--all"]
        from workshop.assets import cache

        if cache.root().is_dir():
            words += ["--bind", f"{cache.root()}:{CACHE_INSIDE}", "--build-arg", f"CACHE={CACHE_INSIDE}"]
    return [*words, output, "apptainer.def"]
