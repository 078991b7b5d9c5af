"""A room's folder: who opened it, who can read what learners write, and whether it may be used.

``learners`` can be entered and added to by all, and listed by its owner alone (with a group, by the group
too). It has the sticky bit, so nobody takes another's folder away, and the group bit, so what a learner
writes there belongs to the room's group: on a usual system the instructor reads it, and no other learner does
(mkdir(2), inode(7) on S_ISGID). ``pushed`` can be entered, not listed.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workshop.classroom.files import opened_folder, read_json, write_json
from workshop.classroom.names import clean_text
from workshop.site.owners import check_folder_itself, user_name

ROOM = "WORKSHOP_ROOM"
SETTINGS, LEARNERS, PUSHED, STATE, CODE, EVERYBODY = (
    "room.json", "learners", "pushed", "state.json", "code", "all.json",
)  # fmt: skip
_ALONE, _WITH_GROUP = 0o3733, 0o3773
FOR_READERS, FOR_ALL = 0o640, 0o644
_MOST_NAMED = 8


@dataclass(frozen=True)
class Room:
    """A room that may be used: its folder, its title, whose it is, and the group that can read along."""

    folder: Path
    title: str
    owner: int
    group: int

    @property
    def learners(self) -> Path:
        """Where each learner has a folder."""
        return self.folder / LEARNERS

    @property
    def readers(self) -> str:
        """Who can read what is shared, in words."""
        owner = user_name(self.owner)
        try:
            group = grp.getgrgid(self.group)
        except KeyError:
            return f"{owner} and group {self.group}"
        named = set(group.gr_mem) | {user.pw_name for user in pwd.getpwall() if user.pw_gid == self.group}
        others = sorted(named - {owner})
        if not others:
            return owner
        members = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        return f"{owner} and the group {group.gr_name} ({members})"


def open_room(folder: Path, title: str = "", group: str = "") -> Room:
    """Make a room in a folder of one's own, new or there already; an open room is left as it is.

    Raises:
        ValueError: the folder is another's or others can write to it, or the group is not known.
    """
    try:
        gid = grp.getgrnam(group).gr_gid if group else os.getegid()
    except KeyError:
        raise ValueError(f"--group {group}: no group of that name is known here") from None
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    check_folder_itself(folder, "the room's folder")
    folder.chmod(folder.stat().st_mode | 0o755)
    for name, mode in ((LEARNERS, _WITH_GROUP if group else _ALONE), (PUSHED, 0o711)):
        inside = folder / name
        inside.mkdir(exist_ok=True)
        check_folder_itself(inside, "the folder") if name == PUSHED else None
        os.chown(inside, -1, gid)
        inside.chmod(mode)
    if not (folder / SETTINGS).exists():
        settings = {"format": 1, "title": clean_text(title, 100) or folder.name, "opened_at": time.time()}
        write_json(folder / SETTINGS, settings, FOR_ALL)
    return find_room(folder)


def find_room(folder: Path | str | None) -> Room:
    """The room in a folder, looked at as one looks at a stranger's.

    Raises:
        ValueError: there is none, or what is there may not be used; says why.
    """
    if not folder:
        raise ValueError(f"no room is named: %room join /shared/folder, or set {ROOM}=/shared/folder")
    path = Path(folder).expanduser().absolute()
    try:
        with opened_folder(path.resolve()) as inside:
            owner = os.fstat(inside).st_uid
            settings = read_json(inside, SETTINGS, owner)
            with opened_folder(LEARNERS, owner, inside) as learners:
                group = os.fstat(learners).st_gid
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is no room: there is no {error.filename}. An instructor opens one: "
            f"workshop room open {path}"
        ) from None
    except PermissionError as error:
        raise ValueError(f"the room {path} cannot be entered: {error.strerror} ({error.filename})") from None
    title = settings.get("title") if isinstance(settings, dict) else None
    return Room(path, clean_text(title, 100) if isinstance(title, str) else path.name, owner, group)


@contextlib.contextmanager
def made_for_readers() -> Iterator[None]:
    """Folders made inside are open to the room's group and to nobody else (the mask is this process's)."""
    before = os.umask(0o027)
    try:
        yield
    finally:
        os.umask(before)
