"""The cache: folders that are whole or not there.

Two processes may want the same asset at the same moment (two ranks, two notebooks), and any of them may be
killed half way. Two things make that harmless:

* a folder is filled under a name of its own and gets its place by one ``rename``, which is atomic within a
  file system: whoever sees the folder sees all of it;
* a lock (``flock``) lets the second process wait for the first instead of doing the work again. It is a
  courtesy: where a file system has no locks, both do the work and the first rename stands.

Beside the files of a folder lies ``contents.json``, the SHA-256 of each, so that ``verify`` can say years
later which file a disk has changed. A folder without it was not made here, and does not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from workshop.site.current import site_of_file

CONTENTS = "contents.json"
UNFINISHED = ".unfinished-"
OLD_SECONDS = 24 * 3600.0
LOCK_SECONDS = 900.0


def root() -> Path:
    """The cache folder: ``WORKSHOP_CACHE``, else the site's, else ``workshop`` in the user's cache folder.

    It may not exist. Raises ValueError and FileNotFoundError for a site file that cannot be used.
    """
    chosen = os.environ.get("WORKSHOP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    here = site_of_file()
    if here and here.cache:
        return Path(here.cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workshop"


def is_whole(place: Path) -> bool:
    """Whether ``place`` is a finished folder with every file that it lists, by name and size."""
    contents = _contents(place)
    return contents is not None and all(
        (place / name).is_file() and (place / name).stat().st_size == size
        for name, (_, size) in contents.items()
    )


def damaged(place: Path) -> list[str]:
    """Names of files that are missing or whose SHA-256 is no longer what it was; reads every byte."""
    contents = _contents(place) or {}
    return [
        name
        for name, (digest, _) in contents.items()
        if not (place / name).is_file() or sha256(place / name) != digest
    ]


def _contents(place: Path) -> dict[str, tuple[str, int]] | None:
    try:
        listed = json.loads((place / CONTENTS).read_text("utf-8"))
        return {name: (entry["sha256"], entry["bytes"]) for name, entry in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def filling(place: Path) -> Iterator[Path]:
    """A new folder to fill; when the block ends well it becomes ``place``, otherwise it goes.

    If another process has put a whole folder there meanwhile, that one stays.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent)
    work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=place.parent))
    try:
        yield work
        listed = {
            str(path.relative_to(work)): {"sha256": sha256(path), "bytes": path.stat().st_size}
            for path in sorted(work.rglob("*"))
            if path.is_file()
        }
        (work / CONTENTS).write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
        # A cache may be shared. mkdtemp's folders are for their maker alone, and so are some writers' files.
        for path in (work, *work.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        _into_place(work, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _into_place(work: Path, place: Path) -> None:
    """Rename, over a folder that is broken but not over one that is whole."""
    for _ in range(3):
        try:
            work.rename(place)
        except OSError:
            if is_whole(place) or not place.exists():
                if place.exists():
                    return
                raise
            discard(place)
        else:
            return
    raise OSError(f"{place} keeps coming back broken: is another program writing there?")


def discard(place: Path) -> None:
    """Take a folder away in one step, so that nobody sees half of it, then delete it."""
    grave = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=place.parent))
    with contextlib.suppress(FileNotFoundError):
        place.rename(grave / "old")
    shutil.rmtree(grave, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what processes that were killed left behind: unfinished folders older than a day."""
    for left in folder.glob(UNFINISHED + "*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def lock(name: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One process at a time for ``name``; waits at most ``seconds``, then goes on without the lock."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{name}.lock").open("a") as file:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:  # a file system without locks: the rename alone keeps us safe
                break
            else:
                break
        yield  # closing the file gives the lock back
