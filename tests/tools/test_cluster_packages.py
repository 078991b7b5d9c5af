"""What the cluster tests need is found, installed where that may be, and else said; never a failure."""

import subprocess

import pytest

from tools import cluster_packages

WANTED = {"a shell": {"dash": "sh"}, "something else": {"no-such-package": "no-such-program-of-ours"}}


def test_what_is_there_is_not_missing():
    assert cluster_packages.missing(WANTED) == {"something else": ["no-such-package"]}


def test_without_root_it_is_said_and_ends_well(monkeypatch, capsys):
    monkeypatch.setattr(cluster_packages, "missing", lambda: {"a container": ["charliecloud"]})
    monkeypatch.setattr(cluster_packages, "may_install", lambda: "that takes root")
    assert cluster_packages.main() == 0
    assert "for a container charliecloud would be needed (that takes root)" in capsys.readouterr().out


@pytest.mark.parametrize(("root", "apt", "words"), [(0, True, ""), (7, True, "root"), (0, False, "apt-get")])
def test_who_may_install(monkeypatch, root, apt, words):
    monkeypatch.setattr("os.geteuid", lambda: root)
    monkeypatch.setattr("shutil.which", lambda name, **_: "/usr/bin/apt-get" if apt else None)
    why = cluster_packages.may_install()
    assert words in why
    assert bool(why) == bool(words)


def test_an_old_list_is_fetched_anew_and_a_failure_is_told_in_apts_words(monkeypatch):
    asked = []

    def apt(*words):
        asked.append(words[0])
        return subprocess.CompletedProcess(words, 100, "", "E: Unable to locate package x")

    monkeypatch.setattr(cluster_packages, "apt", apt)
    assert cluster_packages.install(["x"]) == "E: Unable to locate package x"
    assert asked == ["install", "update", "install"]


def test_an_apt_that_hangs_is_told(monkeypatch):
    def apt(*words):
        raise subprocess.TimeoutExpired(words, 1)

    monkeypatch.setattr(cluster_packages, "apt", apt)
    assert "took longer than" in cluster_packages.install(["x"])
