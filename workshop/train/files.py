"""A folder that is whole or not there: how a checkpoint survives whatever kills its writer.

A save is many files from many ranks, and a process can end between any two bytes of it. Three habits make
that harmless::

    write beside     into ``step-00000020.partial``; what is there already is not touched
    make sure        every file is flushed to the disk (fsync), and its SHA-256 written into manifest.json
    rename           to ``step-00000020``; then ``latest`` is replaced by one that names it

A rename within a file system happens or does not (POSIX rename(2)), so ``latest`` always names a whole
folder. And a disk may change a byte years later: `check_whole` compares every file with its sum and says
which one is not what was saved. (Sums against silent corruption in checkpoints: Llama 3, arXiv 2407.21783,
section 3.3.4, counts silent data corruption among the causes of interruptions.)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

MANIFEST, LATEST, PARTIAL = "manifest.json", "latest", ".partial"


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing or is not what was saved; the message names it."""


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """Return when the file, or the folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Replace a small file: a reader sees the old text or the new, never a part."""
    beside = path.with_name(path.name + PARTIAL)
    beside.write_text(text, "utf-8")
    flush_to_disk(beside)
    beside.replace(path)
    flush_to_disk(path.parent)


def sums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Flush the files of these names and take their sums."""
    digests = {}
    for name in names:
        flush_to_disk(folder / name)
        digests[name] = sha256(folder / name)
    return digests


def files_of(folder: Path) -> list[str]:
    """Names of all files below the folder but the manifest, in a fixed order."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    )


def publish(partial: Path, digests: dict[str, str]) -> Path:
    """Make a finished folder the latest one: manifest, rename, ``latest``. Returns its place."""
    write_whole(partial / MANIFEST, json.dumps(digests, indent=1, sort_keys=True) + "\n")
    for folder in {partial, *(path.parent for path in partial.rglob("*") if path.is_file())}:
        flush_to_disk(folder)
    whole = partial.with_name(partial.name.removesuffix(PARTIAL))
    partial.rename(whole)
    flush_to_disk(whole.parent)
    write_whole(whole.parent / LATEST, whole.name + "\n")
    return whole


def manifest(folder: Path) -> dict[str, str]:
    """The sums a checkpoint was saved with.

    Raises:
        DamagedCheckpointError: there is no manifest, or it cannot be read.
    """
    try:
        digests = json.loads((folder / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        raise DamagedCheckpointError(
            f"{folder} has no {MANIFEST}: it is no checkpoint, or a save that was never finished"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(f"{folder}: {MANIFEST} is damaged ({error}); {_other(folder)}") from None
    return digests


def check_whole(folder: Path, names: Iterable[str] | None = None) -> None:
    """Every file (or those of ``names``) is there and is what was saved.

    Raises:
        DamagedCheckpointError: naming each file that is not.
    """
    wanted = manifest(folder)
    wrong = []
    for name in wanted if names is None else names:
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif sha256(path) != wanted[name]:
            wrong.append(f"{name} is not the file that was saved (its SHA-256 differs)")
    if wrong:
        raise DamagedCheckpointError(f"checkpoint {folder.name}: {'; '.join(wrong)}. {_other(folder)}")


def _other(folder: Path) -> str:
    others = [path.name for path in whole_steps(folder.parent) if path != folder]
    if not others:
        return "There is no other checkpoint beside it"
    return f"Others beside it: {', '.join(others)} (write a name into {LATEST}, or give its step)"


def whole_steps(root: Path) -> list[Path]:
    """Finished checkpoints in the order in which they were made: by step, then by the number of the save."""
    folders = [p for p in root.glob("step-*") if p.is_dir() and not p.name.endswith(PARTIAL)]
    return sorted(folders, key=lambda path: [int(part) for part in path.name.split("-")[1:]])


def latest(root: Path) -> Path | None:
    """The checkpoint that ``latest`` names; None where nothing was ever saved.

    Raises:
        DamagedCheckpointError: it names one that is not there.
    """
    try:
        name = (root / LATEST).read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    if not name or not (root / name).is_dir():
        raise DamagedCheckpointError(
            f"{root / LATEST} names {name!r}, which is not there. {_other(root / 'none')}"
        )
    return root / name


def free_name(root: Path, step: int) -> str:
    """A name for a new checkpoint of a step; a second save of one step gets a number, for the first stays."""
    name, again = f"step-{step:08d}", 0
    while (root / name).exists():
        again += 1
        name = f"step-{step:08d}-{again}"
    return name


def prune(root: Path, keep: int) -> None:
    """Remove all but the ``keep`` newest, and what unfinished saves left. The latest always stays."""
    newest = latest(root)
    old = [path for path in whole_steps(root)[:-keep] if path != newest]
    for path in old:
        path.rename(path.with_name(path.name + PARTIAL))  # half removed, it must not pass for a checkpoint
    for leftover in root.glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
