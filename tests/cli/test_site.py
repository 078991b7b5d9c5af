"""`workshop site`: show, schema, and every entry of check both ways, on a machine of small fakes."""

import json
import os
import shutil
import socket
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest

from workshop.cli import main
from workshop.doctor import clients, diagnose
from workshop.doctor import site as checks_site
from workshop.doctor import site_jobs as checks_site_jobs
from workshop.doctor.clients import ask
from workshop.doctor.site import site_checks
from workshop.site import cores as cores_of
from workshop.site import current as sites
from workshop.site import interfaces as interfaces_of
from workshop.site.spec import SiteSpec

GIB = 2**30
Usage = namedtuple("Usage", "total used free")
SLURM = SiteSpec(scheduler="slurm", partition="gpu", account="ab1", gpus=4, cpus=64)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """PATH holds only fakes; `machine("sinfo", "echo gpu")` adds one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "sleep", "cat"):
        (folder / name).symlink_to(shutil.which(name))
    for name in [n for n in os.environ if n.startswith(("SLURM_", "WORKSHOP_", "SGE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setattr(sites, "NVIDIA", tmp_path / "no-driver")
    monkeypatch.setattr(sites, "EVERYONE", tmp_path / "no-file")
    monkeypatch.chdir(tmp_path)

    def fake(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return fake


def line(site, name):
    """The one finding of that name."""
    (check,) = [check for check in site_checks(site) if check.name == name]
    (found,) = diagnose([check])
    return found


def slurm(machine, **answers):
    """A Slurm that says: two partitions, 4 GPUs and 64 cores a node, a day at most, one account."""
    said = {"%R": "gpu\\nlong\\n", "%G": "gpu:4\\n", "%c": "64\\n", "%l": "1-00:00:00\\n"} | answers
    cases = "\n".join(f'*{key}*) printf "{text}";;' for key, text in said.items())
    machine("sbatch", "exit 0")
    machine("sinfo", f'case "$*" in\n{cases}\nesac')
    machine("sacctmgr", "echo ab1; echo ab2")
    machine("scontrol", 'echo "ReservationName=course StartTime=2026-12-01 State=ACTIVE"')


# ---------------------------------------------------------------------------- the command


def test_check_of_a_laptop_is_all_ok(machine, tmp_path, capsys):
    assert main(["site", "check", "laptop"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("laptop (")
    assert said.endswith("this machine fits the site\n")
    assert " 0 note, 0 no:" in said


def test_check_says_each_entry_and_ends_with_1(machine, tmp_path, capsys):
    site = tmp_path / "mine.toml"
    site.write_text('scheduler = "slurm"\n[paths]\ncache = "$SCRATCH/c"\n')
    assert main(["site", "check", str(site), "--json"]) == 1
    lines = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {"variables", "scheduler", "interface", "container", "cache", "proxy"} <= set(lines)
    assert lines["scheduler"]["found"] == "there is no sbatch on PATH"
    assert lines["variables"]["found"] == "$SCRATCH (in cache) is not set"
    assert "not set" in lines["cache"]["found"]
    assert all(entry["do"] for entry in lines.values() if entry["verdict"] == "no")


def test_without_a_file_the_machine_is_checked(machine, capsys):
    assert main(["site", "check"]) == 0
    assert "laptop (found on this machine)" in capsys.readouterr().out


def test_a_wrong_call(machine, tmp_path, capsys):
    assert main(["site", "check", "labtop"]) == 2
    assert "did you mean 'laptop'" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("x = [")
    assert main(["site", "check", str(tmp_path / "bad.toml")]) == 2
    assert "is not TOML" in capsys.readouterr().err


def test_show_and_schema(machine, capsys):
    assert main(["site", "show", "slurm-apptainer"]) == 0
    said = capsys.readouterr().out
    assert "  partition    gpu\n" in said
    assert "examples to start from: jean-zay, laptop, lumi, one-node" in said
    assert main(["site", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "found on this machine"
    assert main(["site", "schema"]) == 0
    said = capsys.readouterr().out
    assert "\n[software]\n" in said
    assert "runtime      none | apptainer | singularity | charliecloud; default 'none'\n" in said
    assert main(["site", "schema", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        *("", "job", "node", "software", "paths", "network", "environment")
    }


def test_every_check_says_what_it_looks_at():
    assert len(site_checks(SiteSpec())) >= 18


# ---------------------------------------------------------------------------- the scheduler


def test_a_slurm_that_fits(machine):
    slurm(machine)
    site = replace(SLURM, reservation="course")
    for name in (
        "scheduler",
        "partition",
        "account",
        "reservation",
        "time",
        "GPUs of a node",
        "CPUs of a node",
    ):
        assert line(site, name).verdict == "ok", line(site, name)
    assert line(site, "scheduler").found == "slurm: gpu, long"


def test_a_scheduler_that_hangs(machine, monkeypatch):
    slurm(machine)
    machine("sinfo", "exec sleep 600")
    monkeypatch.setattr(clients, "SECONDS", 0.3)
    monkeypatch.setattr(checks_site_jobs, "ask", lambda command: ask(command, 0.3))
    found = line(SLURM, "scheduler")
    assert (found.verdict, found.found) == ("no", "sinfo did not answer in 0.3 s")
    assert line(SLURM, "partition").verdict == "note"


def test_a_scheduler_that_refuses(machine):
    slurm(machine)
    machine("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert line(SLURM, "scheduler").found.endswith("Unable to contact slurm controller")


def test_partition_account_and_reservation_that_are_not_there(machine):
    slurm(machine)
    machine("scontrol", "echo 'Reservation old not found' >&2; exit 1")
    found = line(replace(SLURM, partition="gpus"), "partition")
    assert (found.verdict, found.do) == ("no", "partition in [job] is one of gpu, long")
    found = line(replace(SLURM, account="zz9"), "account")
    assert (found.verdict, found.do) == ("no", "account in [job] is one of ab1, ab2")
    found = line(replace(SLURM, reservation="old"), "reservation")
    assert (found.verdict, found.found) == ("no", "Reservation old not found")
    machine("scontrol", "echo 'ReservationName=old StartTime=2030-01-01 State=INACTIVE'")
    assert line(replace(SLURM, reservation="old"), "reservation").verdict == "note"


def test_accounts_that_nobody_keeps(machine):
    slurm(machine)
    machine("sacctmgr", "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1")
    found = line(SLURM, "account")
    assert (found.verdict, "not checked" in found.found) == ("note", True)


@pytest.mark.parametrize(
    ("time_limit", "partition", "verdict"),
    [
        ("00:10:00", "30:00", "ok"),
        ("01:00:00", "30:00", "no"),
        ("5-00:00:00", "infinite", "ok"),
        ("2-00:00:00", "1-00:00:00", "no"),
    ],
)
def test_a_job_longer_than_its_partition(machine, time_limit, partition, verdict):
    slurm(machine, **{"%l": partition + "\\n"})
    assert line(replace(SLURM, time=time_limit), "time").verdict == verdict


def test_sge(machine):
    site = SiteSpec(scheduler="sge", partition="all.q", account="grp")
    assert line(site, "scheduler").verdict == "no"
    machine("qsub", "exit 0")
    machine("qconf", "echo all.q; echo gpu.q")
    assert line(site, "scheduler").verdict == line(site, "partition").verdict == "ok"
    assert line(replace(site, partition="no.q"), "partition").verdict == "no"
    assert line(site, "account").verdict == "note"


def test_what_a_site_without_a_scheduler_does_not_use(machine):
    site = SiteSpec(partition="gpu", account="a", reservation="r")
    assert {line(site, name).verdict for name in ("partition", "account", "reservation")} == {"note"}


# ---------------------------------------------------------------------------- the node


@pytest.mark.parametrize(
    ("said", "there", "verdict"), [(2, 2, "ok"), (4, 2, "no"), (1, 2, "note"), (0, 0, "ok")]
)
def test_gpus(machine, said, there, verdict):
    machine("nvidia-smi", "\n".join(f"echo 'GPU {i}: X'" for i in range(there)) or "exit 9")
    assert line(SiteSpec(gpus=said), "GPUs of a node").verdict == verdict


@pytest.mark.parametrize(("said", "verdict"), [(4, "ok"), (8, "no"), (2, "note")])
def test_gpus_of_slurms_nodes(machine, said, verdict):
    slurm(machine)
    assert line(replace(SLURM, gpus=said), "GPUs of a node").verdict == verdict


def test_cpus(machine):
    assert line(SiteSpec(cpus=1), "CPUs of a node").verdict == "ok"
    assert line(SiteSpec(cpus=100_000), "CPUs of a node").verdict == "note"
    slurm(machine)
    assert line(replace(SLURM, cpus=128), "CPUs of a node").verdict == "no"


@pytest.mark.parametrize(
    ("interface", "up", "address", "verdict", "said"),
    [
        ("ib0", True, "10.0.0.1", "ok", "ib0 at 10.0.0.1"),
        ("ib1", True, "10.0.0.1", "no", "there is no interface ib1"),
        ("ib0", False, "", "no", "ib0 is down"),
        ("ib0", True, "", "no", "ib0 has no address"),
        ("hsn1,ib0", True, "10.0.0.1", "no", "there is no interface hsn1"),
        ("ib", True, "10.0.0.1", "ok", "ib0 at 10.0.0.1"),
        ("^lo", True, "10.0.0.1", "ok", "^lo: all but that leaves ib0"),
        ("^ib0,lo", True, "10.0.0.1", "no", "^ib0,lo: all but that leaves nothing"),
    ],
)
def test_the_interface(machine, monkeypatch, interface, up, address, verdict, said):
    names = [(1, "lo"), (2, "ib0")]
    monkeypatch.setattr(socket, "if_nameindex", lambda: names)
    for module in (checks_site, interfaces_of):
        monkeypatch.setattr(module, "interfaces", lambda: {"lo": True, "ib0": up})
    monkeypatch.setattr(checks_site, "address_of", lambda name: address)
    found = line(SiteSpec(interface=interface), "interface")
    assert (found.verdict, found.found) == (verdict, said)


def test_a_login_node_cannot_say_what_a_node_has(machine, monkeypatch):
    site = replace(SLURM, interface="ib77")
    found = line(site, "interface")
    assert (found.verdict, found.do) == ("note", "srun workshop site check says it there")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert line(site, "interface").verdict == "no"


def test_interfaces_of_this_machine():
    assert interfaces_of.interfaces()["lo"]
    assert interfaces_of.address_of("lo") == "127.0.0.1"
    assert interfaces_of.missing_interfaces("lo,none0") == ["none0"]
    assert interfaces_of.address_of("none0") == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hsn0,hsn1", ["hsn0", "hsn1"]),
        ("hsn1,hsn0,gone", ["hsn1", "hsn0"]),
        ("hsn", ["hsn0", "hsn1"]),
        ("eth0", ["eth0"]),  # and not eth0.5, which begins so
        ("=hsn", []),
        ("=hsn1", ["hsn1"]),
        ("^lo", ["hsn0", "hsn1", "eth0", "eth0.5"]),
        ("^hsn,eth0", []),
        ("^=eth0", ["hsn0", "hsn1", "eth0.5"]),
        ("lo", ["lo"]),
        ("", []),
    ],
)
def test_a_sites_networks_as_nccl_writes_them(monkeypatch, text, meant):
    names = ["lo", "hsn0", "hsn1", "eth0", "eth0.5", "down0"]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names)))
    monkeypatch.setattr(interfaces_of, "interfaces", lambda: {name: name != "down0" for name in names})
    assert interfaces_of.resolved(text) == meant


def test_the_maker_of_the_gpus(machine, tmp_path, monkeypatch):
    nodes = tmp_path / "kfd"
    for number, gpu in enumerate((0, 51234, 51235)):  # a CPU, and two GPUs
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu}\n")
    monkeypatch.setattr(sites, "AMD", nodes)
    assert (sites.gpus_here(), sites.maker_here()) == (2, "amd")
    found = line(SiteSpec(gpus=2), "GPUs of a node")
    assert (found.verdict, found.found) == ("no", "the file says nvidia, this machine has amd's")
    found = line(SiteSpec(gpus=2, gpu="amd"), "GPUs of a node")
    assert (found.verdict, found.found) == ("ok", "this machine has 2, amd")


def pci(tmp_path, monkeypatch, *gpus):
    """The kernel's view of GPUs: address, NUMA node, cores."""
    for address, node, cores in gpus:
        folder = tmp_path / "pci" / address
        folder.mkdir(parents=True)
        for name, text in {
            "vendor": "0x10de",
            "class": "0x030200",
            "numa_node": node,
            "local_cpulist": cores,
        }.items():
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(cores_of, "PCI", tmp_path / "pci")


def test_cores_next_to_gpus(machine, tmp_path, monkeypatch):
    pci(
        tmp_path,
        monkeypatch,
        ("0000:03:00.0", "0", "0-15"),
        ("0000:04:00.0", "0", "0-15"),
        ("0000:81:00.0", "1", "16-31"),
    )
    site = SiteSpec(gpus=3)
    found = line(site, "cores of GPUs")
    assert found.found.endswith("GPU 2 (NUMA node 1): 16-31")
    assert found.do == 'gpu_cpus = ["0-7", "8-15", "16-31"] in [node] binds the ranks'
    good = replace(site, gpu_cpus=("0-7", "8-15", "16-31"))
    assert line(good, "cores of GPUs").verdict == "ok"
    found = line(replace(site, gpu_cpus=("0-7", "16-23", "24-31")), "cores of GPUs")
    assert (found.verdict, found.found) == ("note", "GPU 1 is next to 0-15, the file says 16-23")
    assert line(replace(site, gpus=1, gpu_cpus=("0-7",)), "cores of GPUs").verdict == "note"


def test_the_binding_is_shown(machine, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    own = cores_of.core_list(os.sched_getaffinity(0))
    assert line(SiteSpec(), "binding").found.startswith(
        f"1 thread a rank; as the scheduler binds them; this process may use {own} ("
    )
    found = line(SiteSpec(cpu_bind="cores"), "binding")
    assert (found.verdict, found.found) == ("note", "cpu_bind cores is not used")
    assert "srun --cpu-bind=cores" in line(replace(SLURM, cpu_bind="cores", threads=0), "binding").found
    found = line(replace(SLURM, threads=32), "binding")
    assert (found.verdict, found.found) == ("note", "32 threads a rank, and a rank has 16 cores")


def test_the_sites_own_variables(machine, monkeypatch):
    assert line(SiteSpec(), "environment").found == "no variables of its own"
    assert line(SiteSpec(environment={"A": "1"}), "environment").found == "A"
    monkeypatch.setenv("A", "2")
    found = line(SiteSpec(environment={"A": "1"}), "environment")
    assert (found.verdict, found.found) == ("note", "A is set otherwise in this shell, which wins")
    found = line(SiteSpec(environment={"HF_TOKEN": "hf_x"}), "environment")
    assert (found.verdict, found.found) == ("note", "HF_TOKEN is a secret in a file for all")


def test_the_lines_before_and_after(machine):
    assert line(SiteSpec(), "prologue").verdict == "ok"
    site = SiteSpec(prologue=("export A=1; ulimit -c 0",), runtime="apptainer", container="/x.sif")
    assert (
        line(site, "prologue").found == "1 before and 0 after the program; A comes along into the container"
    )
    found = line(SiteSpec(epilogue=("if true",)), "prologue")
    assert (found.verdict, found.found.partition(":")[0]) == ("no", "epilogue")
    assert "syntax error" in found.found


def test_no_password_is_shown(machine, tmp_path, capsys):
    site = tmp_path / "mine.toml"
    site.write_text('[network]\nproxy = "http://ada:geheim@proxy:3128"\n[environment]\nMY_TOKEN = "geheim"\n')
    for words in (["show"], ["show", "--json"]):
        assert main(["site", words[0], str(site), *words[1:]]) == 0
        said = capsys.readouterr().out
        assert "http://ada:***@proxy:3128" in said
        assert "geheim" not in said


# ---------------------------------------------------------------------------- software


@pytest.fixture
def modules(machine, tmp_path):
    """A `module` command that knows cuda/12 and apptainer, and one old one that only prints."""
    (tmp_path / ".bash_profile").write_text(
        'module() { case "$2" in cuda/12) ;; apptainer) runtime=1;; '
        'old/*) echo "old(3):ERROR:105: Unable to locate a modulefile for $2" >&2; return 0;; '
        '*) echo "Lmod has detected the following error: $2 is unknown" >&2; return 1;; esac; }\n'
        f"PATH={os.environ['PATH']}\n"
        'apptainer() { [ -n "$runtime" ] && echo apptainer version 1.4.5; }\n'
    )


@pytest.mark.parametrize(
    ("names", "verdict", "said"),
    [
        ((), "ok", "none asked for"),
        (("cuda/12", "apptainer"), "ok", "cuda/12, apptainer can be loaded"),
        (("cuda/12", "cuda/99"), "no", "cuda/99 is unknown"),
        (("old/1",), "no", "Unable to locate a modulefile"),
    ],
)
def test_modules(modules, names, verdict, said):
    found = line(SiteSpec(modules=names), "modules")
    assert found.verdict == verdict, found
    assert said in found.found


def test_no_module_command(machine):
    found = line(SiteSpec(modules=("cuda",)), "modules")
    assert (found.verdict, found.found) == ("no", "there is no `module` command")


def test_the_runtime_may_come_from_a_module(modules):
    site = SiteSpec(runtime="apptainer", container="/w.sif", modules=("apptainer",))
    found = line(site, "runtime")
    assert (found.verdict, found.found) == ("ok", "apptainer version 1.4.5")


@pytest.mark.parametrize(("runtime", "program"), [("apptainer", "apptainer"), ("charliecloud", "ch-run")])
def test_the_runtime_on_path(machine, runtime, program):
    site = SiteSpec(runtime=runtime, container="/w.sif")
    assert line(site, "runtime").found == f"{program}: there is no {program} on PATH"
    assert line(site, "runtime").verdict == "no"
    machine(program, "echo 1.4.5")
    assert line(site, "runtime").verdict == "ok"
    machine(program, "echo 'GLIBC_2.38 not found' >&2; exit 1")
    assert "GLIBC_2.38 not found" in line(site, "runtime").found


def test_the_container(machine, tmp_path):
    image = tmp_path / "w.sif"
    site = SiteSpec(runtime="apptainer", container=str(image))
    found = line(site, "container")
    assert (found.verdict, found.found) == ("no", f"there is no {image}")
    assert "workshop container build" in found.do
    image.write_bytes(b"<html>not found</html>")
    assert "neither a SIF nor a squashfs file" in line(site, "container").found
    image.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x00" + b"\0" * 99)
    assert line(site, "container").verdict == "ok"
    image.unlink()
    image.mkdir()
    assert line(site, "container").verdict == "no"
    (image / "usr").mkdir()
    assert line(site, "container").verdict == "ok"
    assert line(replace(site, container="$PROJECT/w.sif"), "container").verdict == "no"


def test_binds(machine, tmp_path):
    assert line(SiteSpec(binds=(str(tmp_path), f"{tmp_path}:/data:ro")), "binds").verdict == "ok"
    found = line(SiteSpec(binds=(str(tmp_path / "gone"),)), "binds")
    assert (found.verdict, found.found) == ("no", f"not there: {tmp_path / 'gone'}")
    assert line(SiteSpec(binds=(f"{tmp_path}:data",)), "binds").verdict == "no"


def test_the_nodes_python(machine):
    machine("python9", "echo Python 3.12.1")
    assert line(SiteSpec(python="python9"), "Python of nodes").found == "python9: Python 3.12.1"
    assert line(SiteSpec(python="/gone/python"), "Python of nodes").verdict == "no"
    assert line(SiteSpec(), "Python of nodes").verdict == "ok"


# ---------------------------------------------------------------------------- paths and network


@pytest.mark.parametrize(("free", "verdict"), [(9 * GIB, "ok"), (GIB // 2, "note"), (GIB // 10, "no")])
def test_room_in_the_cache(machine, monkeypatch, tmp_path, free, verdict):
    monkeypatch.setattr(
        checks_site_jobs, "shutil", SimpleNamespace(disk_usage=lambda path: Usage(0, 0, free))
    )
    found = line(SiteSpec(cache=str(tmp_path / "new/cache")), "cache")
    assert found.verdict == verdict
    assert "it will be made" in found.found


@pytest.mark.parametrize("key", ["jobs", "cache"])
def test_a_folder_that_cannot_be_written_to(machine, key):
    found = line(SiteSpec(**{key: "/proc/workshop"}), key)
    assert found.verdict == "no"
    assert "cannot be written to" in found.found


def test_data_may_be_seen_through_a_bind(machine, tmp_path):
    (tmp_path / "set").mkdir()
    assert line(SiteSpec(data=str(tmp_path / "set")), "data").verdict == "ok"
    assert line(SiteSpec(data="/no/data"), "data").verdict == "no"
    found = line(SiteSpec(data="/no/data/set", binds=(f"{tmp_path}:/no/data",)), "data")
    assert (found.verdict, found.found) == ("ok", str(tmp_path / "set"))


def test_the_proxy(machine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert line(SiteSpec(proxy=proxy), "proxy").verdict == "ok"
    found = line(SiteSpec(proxy=proxy), "proxy")
    assert (found.verdict, "refused" in found.found) == ("no", True)


def test_offline_wants_the_assets_before(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "empty"))
    found = line(SiteSpec(offline=True), "offline")
    assert (found.verdict, "workshop assets fetch --all" in found.do) == ("note", True)
    assert line(SiteSpec(), "offline").verdict == "ok"


def test_a_centre_with_an_older_driver_builds_with_another_cuda(capsys, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SITE", "laptop")
    asked = [
        "--base",
        "nvidia/cuda:12.6.3-base-ubuntu24.04",
        "--torch",
        "torch==2.13.*",
        "--index",
        "https://x/cu126",
    ]
    assert main(["container", "build", *asked]) == 0
    said = capsys.readouterr().out
    for word in (
        "BASE=nvidia/cuda:12.6.3-base-ubuntu24.04",
        "'TORCH=torch==2.13.*'",
        "INDEX=https://x/cu126",
    ):
        assert f"--build-arg {word}" in said


@pytest.mark.parametrize("name", ["jean-zay", "lumi", "parallelcluster", "perlmutter", "tsubame4"])
def test_the_sites_of_centres_are_gone_through_to_their_end_where_they_are_not(
    name, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["site", "check", name, "--json"]) == 1
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    client = "qsub" if name == "tsubame4" else "sbatch"
    assert found["scheduler"]["found"] == f"there is no {client} on PATH"
    assert found["cores of GPUs"]["verdict"] != "no"
    assert found["environment"]["verdict"] == "ok"
    assert "offline" in found
