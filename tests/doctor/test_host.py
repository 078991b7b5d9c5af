"""Hosted notebooks: known by their variables, and told what they lack."""

from pathlib import Path

import pytest

from workshop.doctor import host
from workshop.doctor.host import check_host, current_host


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"COLAB_RELEASE_TAG": "x"}, "Colab"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "Kaggle"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch", "COLAB_RELEASE_TAG": "x"}, "Kaggle"),
        ({"BINDER_LAUNCH_HOST": "https://binder.example/"}, "Binder"),
        ({"BINDER_REPO_URL": "https://git.example/x"}, "Binder"),
        ({"HOME": "/content"}, None),
    ],
)
def test_a_host_is_known_by_its_variables(environment, name):
    found = current_host(environment)
    assert (found and found.name) == name


@pytest.fixture
def colab(monkeypatch):
    for known in host.HOSTS:
        for name in known.variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    monkeypatch.setattr(host, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(host, "ask_torch", lambda: {"gpus": []})
    monkeypatch.setattr(host.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(host.shutil, "which", lambda name: None)
    return monkeypatch


def test_what_it_lacks(colab):
    finding = check_host()
    assert finding.verdict == "note"
    assert finding.found.startswith("Colab: 2 cores, no GPU, no sudo: nothing of Debian's can be installed")
    assert ("/content is not here" in finding.found) != Path("/content").is_dir()
    assert "download what you wrote" in finding.do
    assert "ranks share the cores" in finding.do
    assert "ranks talk over gloo" in finding.do


def test_what_it_has(colab):
    colab.setattr(host, "usable_cores", lambda: 8.0)
    colab.setattr(host, "ask_torch", lambda: {"gpus": [["T4", 1], ["T4", 1]]})
    colab.setattr(host.shutil, "which", lambda name: f"/usr/bin/{name}")
    finding = check_host()
    assert finding.found.startswith("Colab: 8 cores, 2 GPUs, sudo")
    assert "ranks" not in finding.do


def test_a_machine_of_your_own(colab):
    colab.delenv("COLAB_RELEASE_TAG")
    assert check_host().verdict == "ok"
