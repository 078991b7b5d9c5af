"""``workshop site``: which site is in force, what it says, and whether it fits this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from workshop.doctor import diagnose, render, summary
from workshop.doctor.site import site_checks
from workshop.facts.secret_variables import is_secret, is_secret_name, without_password
from workshop.site.current import current_site, known_sites, named_site, site_file, site_of_machine
from workshop.site.spec import SiteSpec, read_site, schema


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop site``."""
    parser.description = (
        "A site is one TOML file: scheduler, account, container, network, paths. In force is "
        "WORKSHOP_SITE, else workshop-site.toml here, else ~/.config/workshop/site.toml, else "
        "/etc/workshop/site.toml, else what is found on the machine. `check` goes through each entry: exit "
        "code 0 when there is no no, 1 otherwise, 2 for a file that is none."
    )
    parser.add_argument("what", choices=("check", "show", "schema"), help="what to do")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a file, or the name of an example")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """The command."""
    actions = {"check": _check, "show": _show, "schema": _schema}
    return actions[options.what](options)


def chosen(file: str | None) -> SiteSpec:
    """The site to look at, as it was read: the file or example named, else the one in force.

    Raises ValueError and FileNotFoundError for a name or file that is none.
    """
    path = named_site(file) if file else site_file(os.environ)
    return read_site(path) if path else site_of_machine()


def _check(options: argparse.Namespace) -> int:
    site = chosen(options.file)
    checks = site_checks(site)
    if options.json:
        diagnosis = diagnose(checks)
        print(json.dumps([dataclasses.asdict(line) for line in diagnosis], indent=1))
    else:
        print(f"{site.name} ({site.source})", flush=True)
        diagnosis = diagnose(checks, on_line=lambda line: print(render(line), flush=True))
        print(summary(diagnosis).replace("this machine can run the workshop", "this machine fits the site"))
    return 0 if diagnosis.can_run else 1


def _show(options: argparse.Namespace) -> int:
    site = chosen(options.file) if options.file else current_site()
    values = dataclasses.asdict(site)
    if options.json:
        values["environment"] = {
            name: "***" if is_secret(name, v) else v for name, v in site.environment.items()
        }
        print(json.dumps(values | {"proxy": without_password(site.proxy)}, indent=1))
        return 0
    print(f"{values.pop('name')} ({values.pop('source')})\n")
    for key, value in values.items():
        print(f"  {key:<12} {_in_words(value)}".rstrip())
    print(f"\nexamples to start from: {', '.join(known_sites()) or 'none beside the package'}")
    return 0


def _in_words(value: object) -> str:
    """A value on one line; no password within an address is shown."""
    if isinstance(value, dict):
        pairs = (f"{name}={'***' if is_secret_name(name) else text}" for name, text in value.items())
        return without_password(", ".join(pairs))
    return without_password(", ".join(value) if isinstance(value, tuple) else str(value))


def _schema(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(schema(), indent=1))
        return 0
    for section, keys in schema().items():
        if section:
            print(f"\n[{section}]")
        for key, meaning in keys.items():
            print(f"{key:<12} {meaning}")
    return 0
