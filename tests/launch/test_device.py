"""Which device, which GPUs, and what the first line says; with a stand-in for the driver."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from workshop.launch import Limits, device, torchrun
from workshop.launch.gpus import leases, nvml
from workshop.launch.gpus.lease_files import FOLDER
from workshop.launch.processes import ProcessId
from workshop.launch.session import EngineError, Session

FAKE = Path(__file__).parents[1] / "measure" / "nvml"


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Two GPUs, as NVML would tell; leases in a folder of the test."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(importlib.sys.modules, "pynvml", raising=False)
    fake = importlib.import_module("pynvml")
    assert fake.__file__.startswith(str(FAKE))
    fake.reset()
    yield fake
    assert fake.STATE["open"] == 0, "nvmlInit without nvmlShutdown"
    leases._give_all_back()
    monkeypatch.delitem(importlib.sys.modules, "pynvml")


def session(gpus):
    return SimpleNamespace(gpus=gpus, process=ProcessId.of(os.getpid()))


def test_ranks_get_gpus_of_their_own_by_uuid(driver):
    first, second = device.take(1, session(2)), device.take(1, session(2))
    assert first.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa0000"}
    assert second.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb1111"}
    assert first.sentence == "1 rank on 1 of 2 GPUs, NCCL"
    first.release()
    assert [h.gpu for h in leases.holders()] == ["GPU-bbbb1111"]


def test_gpus_that_others_compute_on_come_last_and_are_said(driver):
    driver.STATE["processes"] = {0: [4711, 4712], 1: []}
    first = device.take(1, session(2))
    assert first.lease.gpus == ("GPU-bbbb1111",)
    first.release()
    both = device.take(2, session(2))
    assert both.sentence == "2 ranks on 2 of 2 GPUs, NCCL; GPU-aaaa0000 also runs process 4711, process 4712"
    again = device.take(2, session(2))  # our own GPUs: their processes are ours
    assert again.sentence == "2 ranks on 2 of 2 GPUs, NCCL"


def test_visible_gpus_are_named_as_cuda_would(driver):
    known = nvml.node_gpus()
    assert device.visible_gpus(2, known, {}) == ["GPU-aaaa0000", "GPU-bbbb1111"]
    assert device.visible_gpus(1, known, {"CUDA_VISIBLE_DEVICES": "1"}) == ["GPU-bbbb1111"]
    assert device.visible_gpus(2, known, {"CUDA_VISIBLE_DEVICES": "GPU-b, 0"}) == [
        "GPU-bbbb1111",
        "GPU-aaaa0000",
    ]
    assert device.visible_gpus(2, known, {"CUDA_VISIBLE_DEVICES": ""}) == []
    assert device.visible_gpus(2, [], {"CUDA_VISIBLE_DEVICES": "3,MIG-x"}) == ["3", "MIG-x"]


def test_more_ranks_than_gpus_and_no_gpus_take_nothing(driver, monkeypatch):
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert device.take(3, session(2)).environment() == hidden
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.take(2, session(2)).kind == "cpu"
    assert device.take(2, session(0)).sentence == "2 ranks on CPU, gloo"
    assert leases.holders() == []


@pytest.mark.parametrize(
    ("name", "why"),
    [("NVMLError_LibraryNotFound", "no NVIDIA driver"), ("NVMLError_DriverNotLoaded", "Driver Not Loaded")],
)
def test_without_a_driver(driver, name, why):
    driver.STATE["init_error"] = getattr(driver, name)
    assert nvml.node_gpus() == []
    with pytest.raises(nvml.NoDriverError, match=why), nvml.driver():
        pass
    assert device.take(1, session(2)).environment() == {"CUDA_VISIBLE_DEVICES": "0"}


def test_processes_that_nvml_does_not_tell(driver):
    driver.STATE["raises"] = {"nvmlDeviceGetComputeRunningProcesses": driver.NVMLError_NotSupported}
    assert [gpu.processes for gpu in nvml.node_gpus()] == [(), ()]


class Engine:
    """A launch engine that refuses every launch, and remembers what it was sent."""

    def __init__(self, directory):
        self.gpus, self.process, self.directory, self.sent = 2, ProcessId.of(os.getpid()), directory, None
        self.held = []

    def wait_ready(self):
        pass

    def tell(self, *_, **__):
        pass

    def usable(self):
        return False

    def forget(self, number):
        pass

    def send(self, command):
        self.sent, self.held = command, [holder.gpu for holder in leases.holders()]
        raise EngineError("refused")


def test_a_launch_hands_its_gpus_to_the_ranks_and_gives_them_back_whatever_happens(
    driver, monkeypatch, tmp_path
):
    engine = Engine(tmp_path)
    monkeypatch.setattr(Session, "get", classmethod(lambda _: engine))
    with pytest.raises(EngineError, match="refused"):
        torchrun("pass", 2, limits=Limits(timeout=5))
    assert engine.sent.env["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa0000,GPU-bbbb1111"
    assert engine.held == ["GPU-aaaa0000", "GPU-bbbb1111"]
    assert leases.holders() == []


def test_ranks_that_cannot_start_give_back_too(driver, monkeypatch, tmp_path):
    from workshop.launch import Ranks

    engine = Engine(tmp_path)
    monkeypatch.setattr(Session, "get", classmethod(lambda _: engine))
    with pytest.raises(EngineError, match="refused"):
        Ranks(2)
    assert engine.held == ["GPU-aaaa0000", "GPU-bbbb1111"]
    assert leases.holders() == []


@pytest.fixture
def amd(monkeypatch, tmp_path):
    """A site with four AMD GPUs: NVML knows none of them."""
    site = tmp_path / "site.toml"
    site.write_text('[node]\ngpus = 4\ngpu = "amd"\ngpu_cpus = ["0", "1", "2", "3"]\n')
    monkeypatch.setenv("WORKSHOP_SITE", str(site))
    monkeypatch.setenv(FOLDER, str(tmp_path / "leases"))
    monkeypatch.setattr(device, "node_gpus", list)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    leases._give_all_back()


@pytest.mark.parametrize(
    ("rocr", "hip", "names"),
    [
        (None, None, ["0", "1"]),
        ("4,5,6", None, ["4", "5"]),
        (None, "3,1", ["3", "1"]),
        ("4,5,6", "2,0", ["6", "4"]),
        ("4,5", "1,7", ["5"]),
        ("4", "", []),
    ],
)
def test_amd_gpus_have_the_nodes_numbers(rocr, hip, names):
    told = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip}
    assert device.amd_gpus(2, {k: v for k, v in told.items() if v is not None}) == names


def test_two_launches_on_amd_get_gpus_and_cores_of_their_own(amd):
    amd.setenv("ROCR_VISIBLE_DEVICES", "1,2,3")  # as Slurm says it in a job
    first, second = device.take(1, session(3)), device.take(2, session(3))
    assert first.environment() == {
        "ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0",
        "WORKSHOP_GPU_CPUS": "1",
    }  # fmt: skip
    assert second.environment() == {
        "ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1",
        "WORKSHOP_GPU_CPUS": "2 3",
    }  # fmt: skip


def test_leased_nvidia_gpus_bring_the_cores_next_to_them(driver, monkeypatch, tmp_path):
    site = tmp_path / "site.toml"
    site.write_text('[node]\ngpus = 2\ngpu_cpus = ["0-7", "8-15"]\n')
    monkeypatch.setenv("WORKSHOP_SITE", str(site))
    device.take(1, session(2))
    assert device.take(1, session(2)).environment() == {
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb1111",
        "WORKSHOP_GPU_CPUS": "8-15",
    }
