"""From a name to a folder with the asset's files: fetched if need be, whole, checked.

    folder("sotu")  ->  the cache has it: its place        (no network, microseconds)
                        it has not: fetch it, or say why it cannot be had and what to do

The ways to a file are tried in order: a file that somebody put into the cache's ``downloads`` folder by hand
(a cluster's node without a network), then the registry's client. Whatever came is compared with
the SHA-256 of the table, and another file is refused by its name.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from workshop.assets import cache, registries
from workshop.assets.registries import DownloadFailed
from workshop.assets.table import Asset, asset
from workshop.assets.unpack import unpack
from workshop.facts.units import format_bytes
from workshop.site.current import is_offline as site_is_offline
from workshop.site.current import site_of_file

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of it, and of how many."""


class Unavailable(RuntimeError):
    """An asset is not in the cache and could not be fetched; the text says why and what to do."""


def is_offline() -> bool:
    """Whether there is no network to use: ``WORKSHOP_OFFLINE`` is set and not to 0, or the site says so.

    With a scheduler that holds for the nodes, not for where one logs in. ``WORKSHOP_OFFLINE=0`` wins.
    """
    if setting := os.environ.get("WORKSHOP_OFFLINE"):
        return setting != "0"
    here = site_of_file()
    return here is not None and site_is_offline(here, os.environ)


def place(wanted: Asset) -> Path:
    """Where the asset's files lie, or would; the hash is in its name, so another version is another place."""
    return cache.root() / f"{wanted.name}-{wanted.version.replace('~', '-')}-{wanted.sha256[:8]}"


def is_ready(name: str) -> bool:
    """Whether the asset is in the cache, whole (conversion aside)."""
    return cache.is_whole(place(asset(name)))


def folder(name: str) -> Path:
    """The folder with the asset's files, fetched on first use.

    Raises:
        ValueError: there is no asset of that name.
        Unavailable: it is not here and cannot be fetched.
    """
    wanted = asset(name)
    if cache.is_whole(place(wanted)):
        return place(wanted)
    if not is_offline():
        size = format_bytes(wanted.num_bytes)
        print(f"fetching {wanted.name} ({size}, {wanted.origin}) into the cache, once", flush=True)
    return fetch(name)


def first_available(*names: str) -> str:
    """The first of these assets that is here or can be fetched; a warning says why an earlier one was not.

    Raises Unavailable: none of them can be had.
    """
    reasons = []
    for name in names:
        try:
            folder(name)
        except Unavailable as error:
            reasons.append(str(error))
            continue
        if reasons:
            warnings.warn(f"going on with {name}: {reasons[-1]}", stacklevel=2)
        return name
    raise Unavailable("\n".join(reasons))


def _no_progress(what: str, done: int, total: int) -> None: ...


def fetch(
    name: str,
    progress: Progress = _no_progress,
    sources: Iterable[Path] = (),
    seconds: float | None = None,
) -> Path:
    """Fetch an asset into the cache unless it is there, and return its folder.

    Args:
        name: of the table.
        progress: told about bytes that arrive.
        sources: folders that may hold the package's file already.
        seconds: limit of each way; by default a minute and the file at 200 kB/s.

    Raises:
        ValueError: there is no asset of that name.
        Unavailable: no way led to the right file.
    """
    wanted = asset(name)
    goal = place(wanted)
    if cache.is_whole(goal):
        return goal
    try:
        with cache.lock(wanted.name):
            if not cache.is_whole(goal):  # the process we waited for may have brought it
                _fetch(wanted, goal, progress, (*sources, cache.root() / "downloads"), seconds)
    except OSError as error:
        raise Unavailable(
            f"{wanted.name} cannot be kept in {cache.root()}: {error}. Set WORKSHOP_CACHE to a folder "
            f"that can be "
            f"written and has {format_bytes(wanted.ready_bytes + wanted.num_bytes)} free"
        ) from error
    return goal


def _fetch(
    wanted: Asset, goal: Path, progress: Progress, sources: Iterable[Path], seconds: float | None
) -> None:
    """Find the file, check it, unpack it into ``goal``."""
    with cache.filling(goal) as work:
        arriving = work / ".arriving"
        arriving.mkdir()
        archive = _from_folders(wanted, sources) or _from_ways(wanted, arriving, progress, seconds)
        try:
            unpack(archive, wanted.keep, work)
        except ValueError as error:
            raise Unavailable(
                f"{wanted.name}: {error}; please report it, the file's hash is right"
            ) from error
        shutil.rmtree(arriving)


def _from_folders(wanted: Asset, sources: Iterable[Path]) -> Path | None:
    """The package's file from a folder where somebody put it.

    Raises Unavailable: there is a file of that name, and it is another one.
    """
    for source in sources:
        there = source / wanted.file
        if there.is_file():
            if wrong := mismatch(wanted, there):
                raise Unavailable(f"{wanted.name}: {wrong}. Remove {there}, or put the right file there")
            return there
    return None


def _from_ways(wanted: Asset, arriving: Path, progress: Progress, seconds: float | None) -> Path:
    """The package's file from the first way that brings the right one."""
    if is_offline():
        raise Unavailable(
            _advice(wanted, ["WORKSHOP_OFFLINE is set or the site is offline: nothing is fetched"])
        )
    reasons = []
    for number, (way, bring) in enumerate(registries.ways(wanted)):
        into = arriving / str(number)
        into.mkdir()

        def on_bytes(done: int, way: str = way) -> None:
            progress(f"{wanted.name}: {way}", min(done, wanted.num_bytes), wanted.num_bytes)

        try:
            archive = bring(wanted, into, seconds or registries.limit_seconds(wanted), on_bytes)
        except DownloadFailed as error:
            reasons.append(f"{way}: {error}")
            continue
        on_bytes(wanted.num_bytes)
        wrong = mismatch(wanted, archive)
        if not wrong:
            return archive
        reasons.append(f"{way}: {wrong}")
    raise Unavailable(_advice(wanted, reasons))


def mismatch(wanted: Asset, file: Path) -> str:
    """What is wrong with a package's file, or nothing."""
    digest = cache.sha256(file)
    if digest == wanted.sha256:
        return ""
    return (
        f"{wanted.file} has SHA-256 {digest[:12]}..., and the table says {wanted.sha256[:12]}...: "
        f"refused ({file.stat().st_size:,} bytes, {wanted.num_bytes:,} expected)"
    )


def _advice(wanted: Asset, reasons: list[str]) -> str:
    """The sentence where neither the cache nor a registry has the asset."""
    tried = "\n".join(f"  - {reason}" for reason in reasons)
    return (
        f"{wanted.name} is not in {cache.root()} and could not be fetched from {wanted.origin}:\n{tried}\n"
        f"Where there is a network: `workshop assets fetch {wanted.name}`. Where there is none: put "
        f"{wanted.file} "
        f"into {cache.root() / 'downloads'} and say the same. Instead of it: {wanted.fallback}"
    )


def verify(name: str) -> list[str]:
    """What is wrong with an asset in the cache, reading every byte: nothing where all is well.

    What was converted from it (see `language_model`) is read too.
    """
    wanted = asset(name)
    if not cache.is_whole(place(wanted)):
        return ["not in the cache"]
    made = [place(wanted), *sorted(cache.root().glob(f"{place(wanted).name}.*"))]
    return [f"{there.name}/{file} has changed" for there in made for file in cache.damaged(there)]
