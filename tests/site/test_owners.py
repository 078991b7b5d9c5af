"""Whose a file is: folders and links on the way, groups, sticky bits, people who are trusted."""

import grp
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from workshop.site import owners
from workshop.site.owners import (
    TRUSTED,
    NotOurs,
    check_folder,
    check_folder_itself,
    open_own,
    ours,
    own_folder,
    read_ours,
    trusted,
)

NOBODY = pwd.getpwnam("nobody").pw_uid
root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def place():
    """A folder that all can enter: /tmp/.../course/site.toml."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    (base / "course").mkdir()
    (base / "course" / "site.toml").write_text("name = 'x'")
    yield base
    shutil.rmtree(base)


def refused(path, **more):
    with pytest.raises(NotOurs) as caught:
        read_ours(path, "the site's file", **more)
    return str(caught.value)


def test_ones_own_file_is_read(place):
    assert read_ours(place / "course" / "site.toml", "x") == b"name = 'x'"
    assert ours(place / "course" / ".." / "course" / "site.toml", "x") == place / "course" / "site.toml"
    with pytest.raises(FileNotFoundError):
        ours(place / "none", "x")


@root_only
@pytest.mark.parametrize("at", ["course/site.toml", "course", "."])
def test_a_strangers_file_or_folder_is_refused_and_can_be_allowed(place, at):
    path, theirs = place / "course" / "site.toml", place / at
    os.chown(theirs, NOBODY, -1)
    where = "it" if at == "course/site.toml" else str(theirs)
    assert refused(path) == (
        f"the site's file {path} is not used, for others could change it: {where} belongs to nobody. If you "
        f"trust them: export {TRUSTED}=nobody; if not, take it away"
    )
    assert read_ours(path, "x", {TRUSTED: "daemon, nobody"})
    assert read_ours(path, "x", {TRUSTED: str(NOBODY)})


def test_what_all_can_write_to_is_refused_even_of_ones_own(place):
    path = place / "course" / "site.toml"
    path.chmod(0o666)
    assert f"it can be written to by all users. chmod o-w {path}" in refused(path)
    assert "can be written to by all users" in refused(path, environment={TRUSTED: "nobody"})
    path.chmod(0o644)
    path.parent.chmod(0o777)
    assert f"{path.parent} can be written to by all users" in refused(path)
    path.parent.chmod(0o1777)  # as /tmp: nobody can remove what is another's
    assert read_ours(path, "x")


@root_only
def test_a_group_is_trusted_by_name_or_when_it_is_the_users_own(place):
    path, group = place / "course" / "site.toml", grp.getgrnam("games")
    path.chmod(0o664)
    os.chown(path, -1, group.gr_gid)
    assert f"it can be written to by the group games. If you trust them: export {TRUSTED}=@games" in refused(
        path
    )
    assert read_ours(path, "x", {TRUSTED: "@games"})
    assert ours(path, "x", {}, also=("@games",))
    os.chown(
        path, pwd.getpwnam("games").pw_uid, -1
    )  # a group of one: on many systems each user has such a one
    assert read_ours(path, "x", {TRUSTED: "games"})


@root_only
def test_links_are_followed_through_safe_folders_only(place):
    path = place / "course" / "site.toml"
    link = place / "link.toml"
    link.symlink_to("course/../course/site.toml")
    assert ours(link, "x") == path
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    assert f"{link} is not used, for others could change it: it belongs to nobody" in refused(link)
    link.unlink()
    (place / "theirs").mkdir()
    os.chown(place / "theirs", NOBODY, -1)
    (place / "theirs" / "site.toml").symlink_to(path)
    link.symlink_to(place / "theirs" / "site.toml")
    assert f"{place / 'theirs'} belongs to nobody" in refused(link)
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert "too many links" in refused(place / "a")


def test_only_a_file_of_a_reasonable_size_is_read(place):
    fifo = place / "fifo"
    os.mkfifo(fifo, 0o600)
    assert "it is no file" in refused(fifo)
    path = place / "course" / "site.toml"
    path.write_text("x" * 100)
    assert "it has more than 99 bytes" in refused(path, most=99)


def test_an_unknown_name_among_the_trusted_is_said():
    with pytest.raises(ValueError, match="no user nobodyy is known here"):
        trusted({TRUSTED: "nobodyy"})
    with pytest.raises(ValueError, match="no group @nobodyy is known here"):
        trusted({TRUSTED: "@nobodyy"})


@root_only
def test_folders_above_ones_home_are_not_looked_at(place, monkeypatch):
    """As sshd: whoever can change those has the home already."""
    home = place / "course"
    os.chown(place, NOBODY, -1)
    assert "belongs to nobody" in refused(home / "site.toml")
    entry = pwd.struct_passwd(("x", "x", 0, 0, "", str(home), ""))
    monkeypatch.setattr(owners.pwd, "getpwuid", lambda _: entry)
    assert read_ours(home / "site.toml", "x")
    home.chmod(0o777)
    with pytest.raises(NotOurs, match="written to by all"):
        read_ours(home / "site.toml", "x")


@root_only
def test_in_a_container_without_root_the_systems_folders_are_nobodys(place, tmp_path, monkeypatch):
    (tmp_path / "uid_map").write_text("      1000       1000          1\n")
    os.chown(place, 65534, -1)
    (tmp_path / "overflow").write_text("65534\n")
    path = place / "course" / "site.toml"
    assert "belongs to nobody" in refused(path)
    monkeypatch.setattr(owners, "_UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(owners, "_OVERFLOW", tmp_path / "overflow")
    assert read_ours(path, "x")
    os.chown(path, 65534, -1)  # a file is another matter: whose it is cannot be told
    assert "it belongs to nobody" in refused(path)


def test_ones_own_folder(place):
    assert own_folder(place)
    assert not own_folder(place / "course" / "site.toml")
    assert not own_folder(place / "none")
    (place / "link").symlink_to(place / "course")
    assert not own_folder(place / "link")
    with pytest.raises(NotOurs, match="it is no folder"):
        check_folder_itself(place / "link", "the job's directory")
    place.chmod(0o775)
    assert not own_folder(place)
    with pytest.raises(NotOurs, match=r"^the job's directory .* is not used: others can write to it$"):
        check_folder_itself(place, "the job's directory")


@root_only
def test_everything_in_a_folder_must_be_ones_own(place):
    check_folder(place, "the checkpoint")
    (place / "course" / "link").symlink_to("site.toml")
    with pytest.raises(NotOurs, match="course/link is a link"):
        check_folder(place, "the checkpoint")
    (place / "course" / "link").unlink()
    os.chown(place / "course" / "site.toml", NOBODY, -1)
    with pytest.raises(
        NotOurs, match=r"the checkpoint .* others could change it: .*site.toml belongs to nobody"
    ):
        check_folder(place, "the checkpoint")


def test_a_file_is_opened_only_as_ones_own(place):
    path = place / "course" / "site.toml"
    descriptor = open_own(path)
    assert stat.S_ISREG(os.fstat(descriptor).st_mode)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    (place / "link").symlink_to(path)
    with pytest.raises(NotOurs, match="it is a link"):
        open_own(place / "link")
    with pytest.raises(NotOurs, match="it is no file"):
        open_own(place)
    with pytest.raises(FileNotFoundError):
        open_own(place / "none")
    path.chmod(0o622)
    with pytest.raises(NotOurs, match="written to by all users"):
        open_own(path)
