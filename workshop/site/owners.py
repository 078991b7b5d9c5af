"""Whose a file is, and who could change it: nothing is read or run that a stranger can write.

A site's file names a Python to run; a job's directory holds programs and results. On a machine with many
users each of them can lay such a file where somebody else will look: into a shared folder, into ``/tmp``,
into the current folder. So before such a file is used, it and all folders above it must belong to people whom
this user trusts: the user, root, and the owner of this very package (whose code runs anyway). And nobody else
may be able to write there: a folder for all users is safe only with the sticky bit, as ``/tmp`` has it.

git does the same (``safe.directory``), and so does sshd (``StrictModes``). Whoever shares a file within a
course or a project says whom they trust, users by name and groups with an @::

    export WORKSHOP_TRUSTED_OWNERS=ada,@course

Between the check and the reading nobody can put another file in its place: only the trusted can write to any
folder on the way, and the file that was opened is looked at once more.

Sources: git-config(1), ``safe.directory``; sshd_config(5), ``StrictModes``; user_namespaces(7).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TRUSTED = "WORKSHOP_TRUSTED_OWNERS"
LONGEST = 1 << 20  # bytes of a file that a person writes
_LINKS = 40  # as the kernel follows, path_resolution(7)
_ALL_UIDS = (1 << 32) - 1  # what the outermost map has
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")


class NotOurs(ValueError):
    """Others can change what was to be used; the message says who, and how to allow it."""


@dataclass(frozen=True)
class Trusted:
    """Users and groups, by number, whose files are used."""

    users: frozenset[int]
    groups: frozenset[int] = frozenset()


def trusted(environment: Mapping[str, str] | None = None, also: Iterable[str] = ()) -> Trusted:
    """This user, root, the package's owner, and whom ``WORKSHOP_TRUSTED_OWNERS`` and ``also`` name.

    Raises ValueError for a name that is no user or group of this machine.
    """
    environment = os.environ if environment is None else environment
    users, groups = {os.geteuid(), 0, Path(__file__).stat().st_uid}, {0}
    named = [part.strip() for part in environment.get(TRUSTED, "").split(",")]
    for name in filter(None, [*named, *also]):
        try:
            if name.startswith("@"):
                groups.add(int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid)
            else:
                users.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            kind = "group" if name.startswith("@") else "user"
            raise ValueError(
                f"{TRUSTED} (or trusted in the site's file): no {kind} {name} is known here"
            ) from None
    return Trusted(frozenset(users), frozenset(groups))


def user_name(uid: int) -> str:
    """A user by name, where the machine knows one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def ours(
    path: str | Path, what: str, environment: Mapping[str, str] | None = None, also: Iterable[str] = ()
) -> Path:
    """The real path of ``path``, once it and every folder and link on the way are safe.

    what: begins the message: "the site's file". also: others to trust, as in ``WORKSHOP_TRUSTED_OWNERS``.

    Raises NotOurs where others can change one of them, FileNotFoundError where there is none.
    """
    allowed, whole = trusted(environment, also), Path(path).absolute()
    above_home = _above_home(whole)
    steps, real, links = list(whole.parts[1:]), Path("/"), 0
    while True:
        status = real.lstat()
        if real not in above_home and (why := _danger(real, status, allowed)):
            raise NotOurs(_refusal(what, whole, real, status, why))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _LINKS:
                raise NotOurs(f"{what} {whole} is not used: too many links on the way to it")
            target = real.readlink()
            real = Path("/") if target.is_absolute() else real.parent
            steps = [part for part in target.parts if part != "/"] + steps
        if not steps:
            return real
        real = real.parent if steps[0] == ".." else real / steps[0]
        steps = steps[1:]


def read_ours(
    path: str | Path, what: str, environment: Mapping[str, str] | None = None, most: int = LONGEST
) -> bytes:
    """The content of a file that only the trusted can change.

    Raises NotOurs as `ours`, and for what is no file or longer than ``most`` bytes; OSError where it cannot
    be read.
    """
    real = ours(path, what, environment)
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotOurs(f"{what} {path} is not used: it is no file")
        if why := _danger(real, status, trusted(environment)):
            raise NotOurs(_refusal(what, Path(path), real, status, why))
        content = file.read(most + 1)
    if len(content) > most:
        raise NotOurs(f"{what} {path} is not used: it has more than {most} bytes")
    return content


def own_folder(path: Path) -> bool:
    """Whether ``path`` itself, no link, is a folder of this user's that nobody else can write to.

    What lies in such a folder is this user's doing, whoever can write to the folders above it: they can put
    another folder in its place, but none that belongs to this user.
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def check_folder_itself(path: Path, what: str) -> None:
    """Raise NotOurs unless `own_folder` holds for ``path``, and say why."""
    if own_folder(path):
        return
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotOurs(f"{what} {path} is not used: it is no folder")
    why = (
        f"it belongs to {user_name(status.st_uid)}"
        if status.st_uid != os.geteuid()
        else "others can write to it"
    )
    raise NotOurs(f"{what} {path} is not used: {why}")


def open_own(path: Path) -> int:
    """A descriptor for reading a file that only the trusted can change, wherever it lies.

    Raises NotOurs for another's file, one that others can write to, a link, and what is no file; OSError
    where it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise NotOurs(
                f"the file {path} is not used: it is a link, where there should be a file"
            ) from None
        raise error
    status = os.fstat(descriptor)
    why = _danger(path, status, trusted())
    if stat.S_ISREG(status.st_mode) and not why:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise NotOurs(f"the file {path} is not used: it is no file")
    raise NotOurs(_refusal("the file", path, path, status, why))


def check_folder(folder: Path, what: str) -> None:
    """Raise NotOurs unless only the trusted can change the folder and everything in it.

    What lies above it may be anybody's: who moves it away can put nothing there that belongs to the trusted.
    """
    allowed = trusted()
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise NotOurs(f"{what} {folder} is not used: {path} is a link, where there should be a file")
        if why := _danger(path, status, allowed):
            raise NotOurs(_refusal(what, folder, path, status, why))


def _above_home(path: Path) -> set[Path]:
    """Folders above this user's home, for a path within it: who can change those has the home already."""
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return set()
    homes = {home, home.resolve()}
    if not any(each in path.parents for each in homes):
        return set()
    return {parent for each in homes for parent in each.parents}


def _danger(path: Path, status: os.stat_result, allowed: Trusted) -> str:
    """Why others could change what lies at ``path``; "" where they cannot."""
    if status.st_uid not in allowed.users and not _of_outer_root(path, status):
        return f"belongs to {user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return ""  # a link has no mode; under a sticky bit each entry is its owner's
    if status.st_mode & 0o002:
        return "can be written to by all users"
    if status.st_mode & 0o020 and status.st_gid not in allowed.groups and not _private_group(status):
        return f"can be written to by the group {_group_name(status.st_gid)}"
    return ""


def _private_group(status: os.stat_result) -> bool:
    """The group that many systems make for each user, with nobody else in it."""
    try:
        group, owner = grp.getgrgid(status.st_gid), user_name(status.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


def _of_outer_root(path: Path, status: os.stat_result) -> bool:
    """In a container without root's rights the outer root's files show as nobody's: the system's folders, and
    what lies in /etc.
    """
    try:
        mapped = sum(int(line.split()[2]) for line in _UID_MAP.read_text().splitlines())
        nobody = int(_OVERFLOW.read_text())
    except (OSError, ValueError):
        return False
    inside = mapped < _ALL_UIDS and status.st_uid == nobody
    return inside and (stat.S_ISDIR(status.st_mode) or Path("/etc") in path.parents)


def _refusal(what: str, wanted: Path, at: Path, status: os.stat_result, why: str) -> str:
    place = "it" if at == wanted else str(at)
    if why.startswith("belongs"):
        do = f"export {TRUSTED}={user_name(status.st_uid)}"
    elif "group" in why:
        do = f"export {TRUSTED}=@{_group_name(status.st_gid)}, or: chmod g-w {at}"
    else:
        return f"{what} {wanted} is not used, for anybody could change it: {place} {why}. chmod o-w {at}"
    return (
        f"{what} {wanted} is not used, for others could change it: {place} {why}. If you trust them: {do}; "
        "if not, take it away"
    )
