"""The monitor against real load, a kernel's files laid by hand, and a stand-in for NVML."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until
from workshop.launch.gpus.nvml import NoDriverError
from workshop.measure.monitor import Monitor
from workshop.measure.monitor_cpu import CpuSampler, _disk_of
from workshop.measure.monitor_gpu import REASONS, GpuSampler
from workshop.measure.monitor_record import FORMAT, Sample, read_log, summary
from workshop.show import monitor_strips

FAKE = Path(__file__).parent / "nvml"


@pytest.fixture
def driver(monkeypatch):
    """Two GPUs, as NVML would tell."""
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    fake = importlib.import_module("pynvml")
    fake.reset()
    yield fake
    assert fake.STATE["open"] == 0, "nvmlInit without nvmlShutdown"
    monkeypatch.delitem(sys.modules, "pynvml")


@pytest.fixture
def no_driver(driver):
    driver.STATE["init_error"] = driver.NVMLError_LibraryNotFound
    return driver


def test_the_stand_in_has_the_real_modules_names_and_numbers():
    real = pytest.importorskip("pynvml")
    if real.__file__.startswith(str(FAKE)):
        pytest.fail("the real module was to be loaded")
    spec = importlib.util.spec_from_file_location("stand_in", FAKE / "pynvml.py")
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    for name in [name for name in vars(fake) if name.lower().startswith("nvml")]:
        ours, theirs = getattr(fake, name), getattr(real, name)
        if isinstance(ours, int):
            assert ours == theirs, name
        elif isinstance(ours, type):
            assert issubclass(theirs, real.NVMLError), name
    for bit in REASONS:
        assert bit in {v for k, v in vars(real).items() if k.startswith("nvmlClocksEventReason")}


# ------------------------------------------------------------------------------------------------ the CPU

STAT = "cpu  0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\ncpu1 0 0 {2} {3} 5 0 0 0 9 0\nintr 1\n"
DISKS = "   8 0 sda 1 0 {0} 0 1 0 {1} 0\n   8 1 sda1 1 0 999 0 1 0 999 0\n   7 0 loop0 1 0 999 0 1 0 999 0\n"
NET = "a|b\nc|d\n    lo: {0} 0 0 0 0 0 0 0 {1} 0\n  eth0: 5 0 0 0 0 0 0 0 7 0\n"


def lay(proc, stat, disks, net):
    (proc / "net").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(STAT.format(*stat))
    (proc / "diskstats").write_text(DISKS.format(*disks))
    (proc / "net/dev").write_text(NET.format(*net))
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (proc / "loadavg").write_text("1.5 1 1 1/1 1\n")


def test_differences_of_the_kernels_counters(tmp_path, monkeypatch):
    seconds = iter((100.0, 102.0))
    monkeypatch.setattr("workshop.measure.monitor_cpu.time.perf_counter", lambda: next(seconds))
    lay(tmp_path, (100, 100, 0, 0), (10, 20), (1000, 2000))
    sampler = CpuSampler(proc=tmp_path)
    lay(tmp_path, (175, 125, 0, 60), (14, 28), (3000, 6000))
    sample = sampler.sample()
    assert sample.cores_busy == (0.75, 0.0)
    assert sample.disk == (4 * 512 / 2, 8 * 512 / 2)
    assert sample.network["lo"] == (1000, 2000)
    assert sample.network["eth0"] == (0, 0)
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (600 * 1024, 1000 * 1024)
    assert sample.load == 1.5


def test_partitions_are_their_disks():
    names = {"sda1": "sda", "nvme0n1p2": "nvme0n1", "vda": "", "nvme0n1": "nvme0n"}
    assert {name: _disk_of(name) for name in names} == names


def test_a_busy_child_is_seen_with_its_memory():
    code = "x = bytearray(64 << 20)\nprint(flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        sampler = CpuSampler()
        time.sleep(0.5)
        found = {process.pid: process for process in sampler.sample().processes}
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert found[child.pid].rss_bytes > 64 << 20
    assert 0 < found[child.pid].cores < 1.2  # a busy machine may leave it little of a core
    assert found[os.getpid()].cores < 0.5
    assert child.pid not in {process.pid for process in sampler.sample().processes}


# ------------------------------------------------------------------------------------------------- NVML


def test_every_number_of_a_gpu(driver):
    sampler = GpuSampler(pcie=True)
    assert sampler.sample()[0].nvlink is None  # a rate needs two readings
    time.sleep(0.05)
    gpu = sampler.sample()[1]
    sampler.close()
    assert (gpu.index, gpu.name, gpu.busy, gpu.memory_busy) == (1, "Pretend GPU", 0.75, 0.4)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (20 * 2**30, 80 * 2**30)
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.temperature_celsius) == (350, 700, 61)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz) == (1980, 2619)
    assert gpu.slowed == ("power cap (software)", "temperature (software)")
    assert gpu.pcie == (1e6, 2e6)
    assert gpu.nvlink[1] == pytest.approx(2 * gpu.nvlink[0])
    assert 0 < gpu.nvlink[0] <= 2 * 1024 * 1024 / 0.05


def test_pcie_is_not_asked_for_unless_wanted(driver):
    sampler = GpuSampler()
    assert sampler.sample()[0].pcie is None
    sampler.close()
    assert "nvmlDeviceGetPcieThroughput" not in driver.STATE["calls"]


def test_what_a_device_does_not_tell_is_none_and_not_asked_again(driver):
    driver.STATE["raises"] = {
        "nvmlDeviceGetPowerUsage": driver.NVMLError_NotSupported,
        "nvmlDeviceGetFieldValues": driver.NVMLError_NotSupported,
        "nvmlDeviceGetTemperature": driver.NVMLError_GpuIsLost,
    }
    sampler = GpuSampler()
    for _ in range(3):
        gpus = sampler.sample()
    sampler.close()
    assert [(g.power_watts, g.nvlink, g.temperature_celsius) for g in gpus] == [(None, None, None)] * 2
    assert driver.STATE["calls"].count("nvmlDeviceGetPowerUsage") == 2  # once for each GPU
    assert sampler.notes == [f"GPU {i} does not tell its temperature: GPU is lost" for i in (0, 1)]
    assert gpus[0].busy == 0.75


def test_without_a_driver_it_says_so_once_and_shows_the_cpu(no_driver):
    with pytest.raises(NoDriverError, match="no NVIDIA driver"):
        GpuSampler()
    with Monitor(0.05) as watched:
        wait_until(lambda: len(watched.samples) >= 2)
    assert len(watched.notes) == 1
    assert "no NVIDIA driver on this machine" in watched.notes[0]
    assert watched.samples[-1].gpus == ()
    assert watched.samples[-1].cpu.cores_busy


# ------------------------------------------------------------------------------------------------ the thread


def test_a_log_is_read_back_whole(driver, tmp_path):
    log = tmp_path / "run.jsonl"
    with Monitor(0.05, log=log) as watched:
        wait_until(lambda: len(watched.samples) >= 4)
    recording = read_log(log)
    assert list(recording.samples) == watched.samples
    assert recording.samples[0].gpus[1].power_watts == 350
    with log.open("a") as file:
        file.write('{"seconds": 1, "ti')  # killed in the middle of a line
    assert read_log(log).samples == recording.samples
    with log.open("a") as file:
        file.write("\n" + recording.samples[0].line() + "\n")
    with pytest.raises(ValueError, match=r"line \d+ is no sample"):
        read_log(log)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "x", "notes": []}', "no json"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(ValueError, match=f"is no log of `workshop monitor`.*{FORMAT}"):
        read_log(tmp_path / "x")


def test_an_old_log_is_not_overwritten(no_driver, tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        Monitor(log=tmp_path / "x").start()
    assert (tmp_path / "x").read_text() == "mine"


def test_the_buffer_is_bounded_and_nothing_is_left_behind(no_driver):
    before = threading.active_count()
    with Monitor(0.02, keep=3) as watched:
        wait_until(lambda: watched.samples and watched.samples[0].seconds > 0.1)  # the first ones are gone
        assert watched.running
    assert len(watched.samples) == 3
    assert not watched.running
    assert threading.active_count() == before
    watched.stop()
    with pytest.raises(ValueError, match="started already"):
        watched.start()


def test_samples_come_at_the_interval_and_cost_little(no_driver):
    with Monitor(0.05) as watched:
        wait_until(lambda: len(watched.samples) >= 20)
    gaps = [b.seconds - a.seconds for a, b in zip(watched.samples, watched.samples[1:], strict=False)]
    assert sorted(gaps)[len(gaps) // 2] > 0.03  # late where the machine is busy, never early
    assert 0 < watched.cost_seconds < 0.05  # of CPU


def test_a_full_disk_ends_it_and_is_said(no_driver):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    watched = Monitor(0.02)
    watched._open_log = lambda: Path("/dev/full").open("w")  # noqa: SIM115
    watched.start()
    wait_until(lambda: not watched.running)
    with pytest.raises(OSError, match="the monitor ended early.*No space left"):
        watched.stop()
    watched.stop()


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_that_cannot_be(interval):
    with pytest.raises(ValueError, match="interval_seconds"):
        Monitor(interval)
    with pytest.raises(ValueError, match="keep 0"):
        Monitor(keep=0)


def test_summary_and_strips_say_the_numbers(driver):
    with Monitor(0.05) as watched:
        wait_until(lambda: len(watched.samples) >= 3)
    said = str(watched.summary())
    assert "GPU 0 busy" in said
    assert "350 W" in said
    assert "GPU 1 slowed by" in said
    drawing = monitor_strips(watched.samples)
    assert "GPU 1 power 350 W, most 350 W" in repr(drawing)
    assert drawing.svg.count("<polyline") == 4 + 2 * 3
    for empty in (summary, monitor_strips):
        with pytest.raises(ValueError, match="no samples"):
            empty([])


def test_the_command_prints_lines_and_a_log(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "workshop",
            "monitor",
            "--seconds",
            "0.5",
            "--interval",
            "0.1",
            "--log",
            str(tmp_path / "log"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{FAKE}{os.pathsep}{Path.cwd()}"},
    )
    assert done.returncode == 0, done.stderr
    assert "GPU 0 75% 20.0 GiB 350 W 61 °C 1980 MHz slowed by power cap" in done.stdout
    assert "ms of CPU for each sample" in done.stdout
    assert len(read_log(tmp_path / "log").samples) >= 3
    assert isinstance(read_log(tmp_path / "log").samples[0], Sample)
    assert json.loads((tmp_path / "log").read_text().splitlines()[0])["format"] == FORMAT
    wrong = subprocess.run(
        [sys.executable, "-m", "workshop", "monitor", "--seconds", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2
    assert "argument --seconds: '0' is not above zero" in wrong.stderr
