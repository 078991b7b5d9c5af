"""Which site is in force: files in their order, names, variables, what is found on a machine, what ranks hear."""

import os
import sys
from pathlib import Path

import pytest

from workshop.assets import cache, store
from workshop.site import current as sites
from workshop.site.current import (
    current_site,
    expanded,
    known_sites,
    python_of,
    rank_environment,
    site_environment,
    site_of_file,
    unset_variables,
)
from workshop.site.spec import SiteSpec


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A person's machine with no site file anywhere, and nothing on PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sites, "EVERYONE", tmp_path / "etc.toml")
    monkeypatch.setattr(sites, "NVIDIA", tmp_path / "no-driver")
    for name in (
        "WORKSHOP_SITE",
        "WORKSHOP_CACHE",
        "WORKSHOP_OFFLINE",
        "XDG_CONFIG_HOME",
        "SGE_ROOT",
        "SLURM_CONF",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(home, name, script):
    path = home / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_first_file_of_four_is_in_force(home, monkeypatch):
    assert site_of_file() is None
    assert current_site().source == sites.FOUND
    write(home / "etc.toml", 'name = "everyone"')
    assert current_site().name == "everyone"
    write(home / ".config/workshop/site.toml", 'name = "mine"')
    assert current_site().name == "mine"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert current_site().name == "everyone"
    write(home / "xdg/workshop/site.toml", 'name = "xdg"')
    assert current_site().name == "xdg"
    write(home / "here/workshop-site.toml", 'name = "here"')
    assert current_site().name == "here"
    monkeypatch.setenv("WORKSHOP_SITE", str(write(home / "told.toml", 'name = "told"')))
    assert (current_site().name, current_site().source) == ("told", str(home / "told.toml"))
    monkeypatch.setenv("WORKSHOP_SITE", "one-node")
    assert (current_site().gpus, current_site().cache) == (8, "/data/workshop/cache/ada")


def test_every_example_is_a_site_by_its_name(home, monkeypatch):
    centres = {"jean-zay", "lumi", "parallelcluster", "perlmutter", "tsubame4"}
    assert {"laptop", "one-node", "slurm-apptainer", *centres} == set(known_sites())
    for name in ("SCRATCH", "WORK", "SINGULARITY_ALLOWED_DIR"):  # what login nodes of such centres set
        monkeypatch.setenv(name, "/somewhere")
    for name in known_sites():
        monkeypatch.setenv("WORKSHOP_SITE", name)
        assert "$" not in repr(current_site())


def test_an_unknown_name_lists_the_known(home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SITE", "labtop")
    with pytest.raises(
        ValueError, match=r"unknown site 'labtop'; did you mean 'laptop'\? \(known: jean-zay, laptop"
    ):
        current_site()
    monkeypatch.setenv("WORKSHOP_SITE", "no/such.toml")
    with pytest.raises(FileNotFoundError, match="there is no site file no/such.toml: look at WORKSHOP_SITE"):
        current_site()


def test_a_broken_file_is_not_passed_over(home):
    write(home / "here/workshop-site.toml", "[node]\ngpuss = 2")
    with pytest.raises(ValueError, match="unknown key 'gpuss'"):
        site_of_file()
    with pytest.raises(ValueError, match="unknown key 'gpuss'"):
        rank_environment(os.environ)


# ---------------------------------------------------------------------------- variables


SITE = SiteSpec(
    scheduler="slurm",
    binds=("$SCRATCH/$USER", "~/x:/x"),
    jobs="${HOME}/jobs",
    cache="$SCRATCH",
    account="$PROJECT",
)


def test_variables_are_filled_in():
    given = expanded(SITE, {"SCRATCH": "/s", "USER": "ada", "HOME": "/h", "PROJECT": "p1"})
    assert given.binds == ("/s/ada", "/h/x:/x")
    assert (given.jobs, given.cache, given.account) == ("/h/jobs", "/s", "p1")


def test_an_unset_variable_is_said():
    environment = {"USER": "ada", "HOME": "/h", "SCRATCH": ""}
    assert unset_variables(SITE, environment) == {"PROJECT": ["account"], "SCRATCH": ["binds", "cache"]}
    with pytest.raises(ValueError, match=r"account needs \$PROJECT, which is not set: export PROJECT=\.\.\."):
        expanded(SITE, environment)
    assert expanded(SITE, environment, strict=False).cache == "$SCRATCH"


def test_home_and_user_are_known_without_variables():
    assert expanded(SiteSpec(cache="$HOME/$USER"), {}).cache.startswith("/")


# ---------------------------------------------------------------------------- without a file


def test_a_laptop_is_found(home):
    found = current_site()
    assert (found.scheduler, found.gpus, found.name) == ("none", 0, "laptop")
    assert found.cpus == len(os.sched_getaffinity(0))
    assert "torch" not in vars(sites)


def test_gpus_are_counted_by_the_driver_or_by_nvidia_smi(home, monkeypatch):
    program(home, "nvidia-smi", "echo 'GPU 0: A'; echo 'GPU 1: A'; echo 'GPU 2: A'")
    assert sites.gpus_here(str(home / "bin")) == 3
    monkeypatch.setattr(sites, "NVIDIA", home / "driver")
    for number in range(2):
        (home / "driver" / f"0000:{number}").mkdir(parents=True)
    assert sites.gpus_here(str(home / "bin")) == 2


def test_a_driver_that_hangs_is_no_gpu(home, monkeypatch):
    program(home, "nvidia-smi", "exec /bin/sleep 600")
    monkeypatch.setattr(sites, "CLIENT_SECONDS", 0.3)
    assert sites.gpus_here(str(home / "bin")) == 0


@pytest.mark.parametrize(
    ("said", "gpus"),
    [("(null)", 0), ("gpu:4", 4), ("gpu:a100:8(S:0-1)\\ngpu:a100:4", 8), ("gpu:h100:2,nvme:1", 2), ("", 0)],
)
def test_slurm_is_found_with_its_nodes_gpus(home, said, gpus):
    sites._found.cache_clear()
    program(home, "sbatch", "exit 1")
    program(home, "sinfo", f"printf '{said}\\n'")
    found = current_site()
    assert (found.scheduler, found.gpus, found.source) == ("slurm", gpus, "found on this machine")


def test_a_slurm_client_without_a_slurm_is_a_laptop(home, monkeypatch):
    sites._found.cache_clear()
    monkeypatch.setattr(sites, "SLURM_CONF", home / "slurm.conf")
    program(home, "sbatch", "exit 1")
    program(home, "sinfo", "echo 'could not establish a configuration source' >&2; exit 1")
    assert current_site().scheduler == "none"
    monkeypatch.setenv("SLURM_CONF", str(home / "other.conf"))  # set up, and down for the moment
    assert current_site().scheduler == "slurm"


def test_sge_is_found_by_qsub_and_its_root(home, monkeypatch):
    program(home, "qsub", "exit 1")
    assert current_site().scheduler == "none"
    monkeypatch.setenv("SGE_ROOT", "/opt/sge")
    assert current_site().scheduler == "sge"


# ---------------------------------------------------------------------------- what ranks are told


def test_ranks_of_several_nodes_get_the_interface(home, monkeypatch):
    write(home / "here/workshop-site.toml", '[node]\ninterface = "ib0"')
    one = rank_environment(os.environ)
    assert (one["GLOO_SOCKET_IFNAME"], "NCCL_SOCKET_IFNAME" in one) == ("lo", False)
    many = rank_environment(os.environ, one_node=False)
    assert many["GLOO_SOCKET_IFNAME"] == many["NCCL_SOCKET_IFNAME"] == many["TP_SOCKET_IFNAME"] == "ib0"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    assert rank_environment(os.environ, one_node=False)["NCCL_SOCKET_IFNAME"] == "eth1"


def test_all_but_an_interface_is_for_nccl_alone():
    assert site_environment(SiteSpec(interface="^docker0"), one_node=False) == {
        "NCCL_SOCKET_IFNAME": "^docker0"
    }


def test_without_a_file_ranks_hear_nothing_of_a_site(home, monkeypatch):
    heard = ("WORKSHOP_", "HF_", "NCCL_")
    for name in [name for name in os.environ if name.startswith(heard)]:
        monkeypatch.delenv(name)
    before = rank_environment(os.environ)
    assert not [name for name in before if name.startswith(heard)]


CENTRE = '\nscheduler = "slurm"\n[paths]\ncache = "/s/$USER"\ndata = "/d"\n[network]\noffline = true\nproxy = "http://p:1"'


def test_cache_data_proxy_and_offline_reach_ranks_and_assets(home, monkeypatch):
    write(home / "here/workshop-site.toml", CENTRE)
    assert cache.root() == Path("/s/ada")
    assert not store.is_offline()  # where one logs in
    env = rank_environment(os.environ)
    assert (env["WORKSHOP_CACHE"], env["WORKSHOP_DATA"], env["https_proxy"]) == ("/s/ada", "/d", "http://p:1")
    assert "HF_HUB_OFFLINE" not in env
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # on a node
    assert store.is_offline()
    assert rank_environment(os.environ)["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("WORKSHOP_OFFLINE", "0")
    monkeypatch.setenv("WORKSHOP_CACHE", "/mine")
    assert (cache.root(), store.is_offline()) == (Path("/mine"), False)
    assert rank_environment(os.environ)["WORKSHOP_CACHE"] == "/mine"
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.delenv("WORKSHOP_OFFLINE")
    assert site_environment(current_site())["HF_HUB_OFFLINE"] == "1"  # what a job's script says


def test_offline_without_a_scheduler_is_this_machine(home):
    write(home / "here/workshop-site.toml", "[network]\noffline = true")
    assert store.is_offline()


def test_the_python_of_the_nodes():
    assert python_of(SiteSpec()) == sys.executable
    assert python_of(SiteSpec(runtime="apptainer", container="/w.sif")) == "python3"
    assert python_of(SiteSpec(python="/shared/bin/python")) == "/shared/bin/python"
