"""The options of ``workshop site``, ``workshop container`` and ``workshop lab --in-job``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_site(commands: argparse._SubParsersAction) -> None:
    """``workshop site check|show|schema``."""
    site = commands.add_parser(
        "site",
        help="say which site is in force, and whether its file fits this machine",
        description="A site is one TOML file: scheduler, account, container, network, paths. In force "
        "is WORKSHOP_SITE, else workshop-site.toml here, else ~/.config/workshop/site.toml, else "
        "/etc/workshop/site.toml, else what is found on the machine. `check` goes through each entry: exit "
        "code 0 when there is no no, 1 otherwise, 2 for a file that is none.",
    )
    site.add_argument("what", choices=("check", "show", "schema"), help="what to do")
    site.add_argument("file", nargs="?", metavar="FILE", help="a file, or the name of an example")
    site.add_argument("--json", action="store_true", help="print JSON")


def add_container(commands: argparse._SubParsersAction) -> None:
    """``workshop container command|build``."""
    container = commands.add_parser(
        "container",
        help="print the line that runs a command in the site's container, or builds it",
        description="`command -- CMD ...` prints the line for CMD in the site's container: GPUs, binds, "
        "and only the variables that ranks need. `build` prints the line that makes the image from "
        "apptainer.def; with --run it is run.",
    )
    container.add_argument("what", choices=("command", "build"), help="what to print")
    container.add_argument("words", nargs="*", metavar="CMD", help="the command, after -- (default: a shell)")
    container.add_argument(
        "--site", metavar="FILE", help="a site's file or example (default: the one in force)"
    )
    container.add_argument("--folder", type=Path, metavar="DIR", help="working folder (default: this one)")
    container.add_argument("--run", action="store_true", help="with build: run the line")
    container.add_argument("--assets", action="store_true", help="with build: models and data into the image")
    container.add_argument("--torch", default="", metavar="REQUIREMENT", help="with build: another torch")
    container.add_argument("--index", default="", metavar="URL", help="with build: where that torch is found")
    container.add_argument("--base", default="", metavar="IMAGE", help="with build: another base image")
    container.add_argument("--output", type=Path, metavar="FILE", help="with build: the image's file")


def add_lab_in_job(lab: argparse.ArgumentParser) -> None:
    """What ``workshop lab`` takes for a job."""
    job = lab.add_argument_group("in a job of the site's scheduler")
    job.add_argument(
        "--in-job", action="store_true", help="start JupyterLab on a node; print the tunnel to it"
    )
    job.add_argument("--dry-run", action="store_true", help="print the batch script, submit nothing")
    job.add_argument("--time", default="", metavar="HH:MM:SS", help="time limit (default: the site's)")
    job.add_argument("--gpus", type=int, metavar="G", help="GPUs (default: all of a node)")
    job.add_argument("--cpus", type=int, metavar="C", help="cores (default: the share of its GPUs)")
    job.add_argument("--memory", default="", metavar="32G", help="memory (default: the scheduler's)")
    job.add_argument("--wait", type=float, default=600.0, metavar="S", help="seconds to wait for it (600)")
    job.add_argument("--tunnel", metavar="USER@HOST", help="how you log in (default: you, at this host)")
    job.add_argument(
        "--network",
        action="store_true",
        help="listen on the node's network: for sites whose nodes take no ssh",
    )
