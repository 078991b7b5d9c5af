"""Files of a room: written whole by one user, read by others who do not trust the writer.

A reader opens folder by folder, follows no link, and looks at what was opened, not at what stood there a
moment ago. A file is used only if it belongs to the user whose folder it lies in, is a plain file with one
name, and is short. What cannot be read is a `Refused` with the reason; it is never guessed at.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workshop.site.owners import user_name

MOST_BYTES = 1 << 18  # of a file in a room: 65 exercises and 200 guesses are 20 kB
LEFT_OVER_SECONDS = 3600.0  # after which a half-written file is certainly nobody's any more
_UNFINISHED = ".new-"


class Refused(ValueError):
    """A file of a room that is not used; the message says why."""


@contextlib.contextmanager
def opened_folder(path: Path | str, owner: int | None = None, inside: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, which is no link and, where ``owner`` is given, that user's.

    Raises:
        Refused: it is a link, no folder, another's, or one that all can write to without the sticky bit.
        OSError: it cannot be opened, FileNotFoundError where there is none.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not os.access(path, os.R_OK, dir_fd=inside):  # may be entered, not listed: as `pushed` is
        flags |= os.O_PATH
    try:
        descriptor = os.open(path, flags, dir_fd=inside)
    except (NotADirectoryError, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise Refused(f"{path} is a link, or no folder") from None
    try:
        status = os.fstat(descriptor)
        if owner is not None and status.st_uid != owner:
            raise Refused(f"{path} belongs to {user_name(status.st_uid)}, not to {user_name(owner)}")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise Refused(f"all users can write to {path}")
        yield descriptor
    finally:
        os.close(descriptor)


def read_json(folder: int, name: str, owner: int, most: int = MOST_BYTES) -> Any:
    """The JSON in a plain file of ``owner``'s, in an open folder.

    Raises:
        Refused: it is a link, no plain file, another's, too long, or no JSON.
        OSError: it cannot be opened, FileNotFoundError where there is none.
    """
    text = read_bytes(folder, name, owner, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is no JSON ({type(error).__name__})") from None


def read_bytes(folder: int, name: str, owner: int, most: int = MOST_BYTES) -> bytes:
    """The content of a plain file of ``owner``'s; see `read_json`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise Refused(f"{name} is a link, or cannot be opened ({error.strerror})") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{name} is no plain file")
        if status.st_uid != owner:
            raise Refused(f"{name} belongs to {user_name(status.st_uid)}, not to {user_name(owner)}")
        if status.st_nlink > 1:
            raise Refused(f"{name} has a second name elsewhere (a hard link)")
        content = file.read(most + 1)
    if len(content) > most:
        raise Refused(f"{name} has more than {most} bytes")
    return content


def write_json(path: Path, value: Any, mode: int) -> None:
    """Write beside, then move: readers see the old whole or the new one; OSError where that cannot be."""
    write_text(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", mode)


def write_text(path: Path, text: str, mode: int) -> None:
    """As `write_json`, a text. The bytes are on the disk before the name is."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
        Path(beside).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise


def sweep(folder: Path) -> None:
    """Remove what a write that was killed has left in one's own folder."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > LEFT_OVER_SECONDS:
                path.unlink()
