"""The doctor's checks of what breaks between nodes, each seen failing, and with real ranks where it can be."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.own_shared_memory import run_with_own_shared_memory
from workshop.doctor import cluster as checks_cluster
from workshop.doctor import ranks as checks_ranks
from workshop.doctor.ranks import check_nccl_ranks, check_ranks_over_interface
from workshop.site import current as sites

GIB = 2**30
ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """`site('[node]...')` puts a site's file in force."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sites, "EVERYONE", tmp_path / "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [
        n for n in os.environ if n.startswith(("WORKSHOP_", "SLURM_", "NCCL_", "GLOO_", "APPTAINER_"))
    ]:
        monkeypatch.delenv(name)

    def write(text):
        (tmp_path / "workshop-site.toml").write_text(text)

    return write


def fake(monkeypatch, folder, name, script):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


# ---------------------------------------------------------------------------- site and container


def test_a_broken_site_file(site):
    assert checks_cluster.check_site().verdict == "ok"
    site("[node]\ngpuss = 1")
    finding = checks_cluster.check_site()
    assert finding.verdict == "no"
    assert "did you mean 'gpus'" in finding.found
    assert {check().verdict for check in (checks_cluster.check_interface, checks_cluster.check_cache)} == {
        "note"
    }
    assert check_ranks_over_interface().verdict == "note"


def test_a_missing_container(site, tmp_path, monkeypatch):
    assert checks_cluster.check_container().found == "the site has none"
    site(f'[software]\nruntime = "apptainer"\ncontainer = "{tmp_path}/w.sif"')
    finding = checks_cluster.check_container()
    assert (finding.verdict, finding.found) == ("no", f"there is no {tmp_path}/w.sif")
    (tmp_path / "w.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"\0" * 99)
    fake(monkeypatch, tmp_path, "apptainer", "echo no libc >&2; exit 1")
    assert checks_cluster.check_container().found == "apptainer: no libc"
    fake(monkeypatch, tmp_path, "apptainer", "echo apptainer version 1.4.5")
    assert checks_cluster.check_container().verdict == "ok"


def test_inside_the_container_none_is_looked_for(site, monkeypatch):
    site('[software]\nruntime = "apptainer"\ncontainer = "/gone/w.sif"')
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/w.sif")
    assert checks_cluster.check_container().found == "this runs inside /images/w.sif"


# ---------------------------------------------------------------------------- interface


def test_an_interface_that_is_not_there(site):
    site('[node]\ninterface = "ib77"')
    finding = checks_cluster.check_interface()
    assert (finding.verdict, finding.found) == ("no", "there is no interface ib77")
    assert "ip -brief address" in finding.do
    finding = check_ranks_over_interface()
    assert (finding.verdict, finding.found) == ("no", "there is no interface ib77")
    site('scheduler = "slurm"\n[node]\ninterface = "ib77"')  # where one logs in, nobody can say
    assert checks_cluster.check_interface().verdict == check_ranks_over_interface().verdict == "note"


@pytest.mark.parametrize(
    ("address", "verdict"),
    [("127.0.1.1", "no"), ("10.1.2.3", "ok"), (OSError("Name or service not known"), "no")],
)
def test_a_host_name_that_leads_to_loopback(site, monkeypatch, address, verdict):
    def resolve(name):
        if isinstance(address, OSError):
            raise address
        return address

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert checks_cluster.check_interface().verdict == "ok"  # one node
    site('scheduler = "slurm"')
    finding = checks_cluster.check_interface()
    assert finding.verdict == verdict
    assert verdict == "ok" or "/etc/hosts" in finding.do


# ---------------------------------------------------------------------------- shared memory


def test_shared_memory_that_is_full():
    """A /dev/shm of 64 MiB, and a file in it of 60."""
    ask = (
        "from workshop.doctor.machine import check_shared_memory as c; print(c().verdict, c().found, c().do)"
    )
    fill = "head -c 60M /dev/zero > /dev/shm/left-over"
    python = f"{sys.executable} -c '{ask}'"
    done = run_with_own_shared_memory(f"{python} && {fill} && {python}", 60)
    before, after = done.stdout.splitlines()
    assert before.startswith(
        "note 64.0 MiB of 64.0 MiB free tight for data loaders and NCCL; docker and podman"
    )
    assert after.startswith(
        "no 4.0 MiB of 64.0 MiB free remove old files from /dev/shm (the largest: left-over, 60.0 MiB)"
    )


# ---------------------------------------------------------------------------- cache and clock


def test_no_room_in_the_cache(site, monkeypatch, tmp_path):
    from workshop.doctor import site_jobs as checks_site_jobs

    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "cache"))
    usage = shutil._ntuple_diskusage(9 * GIB, 9 * GIB, 1000)
    monkeypatch.setattr(checks_site_jobs.shutil, "disk_usage", lambda path: usage)
    finding = checks_cluster.check_cache()
    assert finding.verdict == "no"
    assert "1000 B free" in finding.found or "1,000 B free" in finding.found
    assert finding.do == "set WORKSHOP_CACHE to a folder of yours with room"
    monkeypatch.setenv("WORKSHOP_CACHE", "/proc/none")
    assert checks_cluster.check_cache().verdict == "no"
    monkeypatch.setenv("WORKSHOP_CACHE", "/proc")  # an image's own cache is read-only, and offline
    monkeypatch.setenv("WORKSHOP_OFFLINE", "1")
    assert checks_cluster.check_cache().found == "/proc is read-only: what it has not, cannot be had"


def test_the_clock_of_this_machine(site):
    assert checks_cluster.check_clock().verdict == "ok"


@pytest.mark.parametrize(("ahead", "verdict"), [(3600.0, "no"), (-3600.0, "no"), (5.0, "note"), (0.0, "ok")])
def test_a_clock_that_is_off(site, monkeypatch, ahead, verdict):
    real = time.time
    monkeypatch.setattr(checks_cluster.time, "time", lambda: real() + ahead)
    finding = checks_cluster.check_clock()
    assert finding.verdict == verdict
    if verdict == "no":
        assert ("ahead of" if ahead > 0 else "behind") in finding.found


@pytest.mark.parametrize(("offset", "verdict"), [(0, "ok"), (9, "note"), (-90, "no"), (90, "no")])
def test_a_node_whose_clock_is_off(site, monkeypatch, tmp_path, offset, verdict):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    script = f'echo "node1 $(date +%s.%N)"; echo "node2 $(date -d "{offset:+d} seconds" +%s.%N)"'
    fake(monkeypatch, tmp_path, "srun", script)
    finding = checks_cluster.check_clock()
    assert finding.verdict == verdict
    assert "node2" in finding.found


# ---------------------------------------------------------------------------- variables and ports


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", "ok"),
        ("GLOO_SOCKET_IFNAME", "l", "no"),
        ("NCCL_SOCKET_IFNAME", "l", "ok"),
        ("NCCL_SOCKET_IFNAME", "=l", "no"),
        ("NCCL_SOCKET_IFNAME", "ib", "no"),
        ("NCCL_SOCKET_IFNAME", "^docker0", "ok"),
        ("NCCL_P2P_DISABLE", "1", "note"),
        ("CUDA_LAUNCH_BLOCKING", "1", "note"),
    ],
)
def test_variables_that_steer_the_transport(site, monkeypatch, name, value, verdict):
    monkeypatch.setattr(checks_cluster, "interfaces", lambda: {"lo": True, "eth0": True})
    monkeypatch.setenv(name, value)
    finding = checks_cluster.check_transport_variables()
    assert finding.verdict == verdict
    assert verdict == "ok" or finding.do == f"unset {name}"


def test_gpus_that_a_variable_hides(site, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(checks_cluster, "gpus_listed", lambda: 0)
    assert checks_cluster.check_transport_variables().verdict == "ok"
    monkeypatch.setattr(checks_cluster, "gpus_listed", lambda: 4)
    finding = checks_cluster.check_transport_variables()
    assert (finding.verdict, finding.do) == ("no", "unset CUDA_VISIBLE_DEVICES")


def test_a_port_that_is_taken(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(checks_cluster, "TORCHRUN_PORT", port)
        finding = checks_cluster.check_default_port()
        assert finding.verdict == "note"
        assert f"port {port} is taken by " in finding.found
        assert f"(process {os.getpid()})" in finding.found
        monkeypatch.setenv("MASTER_PORT", str(port))
        assert checks_cluster.check_default_port().verdict == "no"
    assert checks_cluster.check_default_port().verdict == "ok"


# ---------------------------------------------------------------------------- real ranks


def test_ranks_over_an_interface(site, monkeypatch):
    assert check_ranks_over_interface().found == "not tried: the site names no interface"
    name = next((n for n in checks_ranks_interfaces() if n != "lo"), None)
    if name is None:
        pytest.skip("this machine has no network but loopback")
    site(f'[node]\ninterface = "{name}"')
    finding = check_ranks_over_interface()
    assert finding.verdict in ("ok", "note"), finding
    assert finding.found.startswith(f"two gloo ranks over {name} agree")


def checks_ranks_interfaces():
    from workshop.site.interfaces import address_of, interfaces

    return [name for name, up in interfaces().items() if up and address_of(name)]


def test_gloo_that_cannot_connect(tmp_path):
    """An interface with an address that nothing reaches: its own address goes through loopback, which is down."""
    program = tmp_path / "check.py"
    program.write_text(
        "import subprocess\n"
        "run = lambda line: subprocess.run(line.split(), check=True, timeout=20)\n"
        "run('ip link add dead0 type veth peer name dead1'); run('ip addr add 10.77.0.1/24 dev dead0')\n"
        "run('ip link set dead0 up'); run('ip link set dead1 up')\n"
        "from workshop.doctor.ranks import check_ranks_over_interface\n"
        "print(check_ranks_over_interface(limit=12))\n"
    )
    (tmp_path / "workshop-site.toml").write_text('[node]\ninterface = "dead0"')
    alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run(
        [*alone, "true"], capture_output=True, timeout=20, check=False
    ).returncode or not shutil.which("ip"):
        pytest.skip("no network namespace of one's own here (unshare --net, iproute2)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*alone, sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    if "Unknown device type" in done.stderr or "Operation not supported" in done.stderr:
        pytest.skip("this kernel has no veth interfaces")
    assert done.stdout.startswith("Finding(verdict='no', found='two gloo ranks over dead0"), (
        done.stdout + done.stderr
    )
    assert "a firewall or a wrong network" in done.stdout


def test_nccl_that_cannot_connect(monkeypatch):
    assert check_nccl_ranks().verdict in ("ok", "note")
    monkeypatch.setattr(checks_ranks, "ask_torch", lambda: {"gpus": [["X", 1], ["X", 1]], "nccl": True})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # GPUs are promised, and the ranks find none
    finding = check_nccl_ranks()
    assert finding.verdict == "no"
    assert finding.found.startswith("two NCCL ranks failed: ")
    assert "NCCL_DEBUG=INFO" in finding.do
