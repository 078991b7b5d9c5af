"""The doctor, each check both ways: on this machine, and where something is wrong."""

import json
import resource
import socket
import subprocess
import sys
import threading
from collections import namedtuple

import pytest

from tests.waiting import wait_until
from workshop.cli import main
from workshop.doctor import Check, Finding, diagnose, diagnosis
from workshop.doctor import machine as checks_machine
from workshop.doctor import ranks as checks_ranks
from workshop.doctor import software as checks_software

MIB, GIB = 2**20, 2**30
NO_LIMIT = resource.RLIM_INFINITY


@pytest.fixture(autouse=True)
def forget_torch():
    checks_software.ask_torch.cache_clear()
    yield
    checks_software.ask_torch.cache_clear()


def test_this_machine_can_run_the_workshop():
    diagnosis = diagnose()
    assert diagnosis.can_run, diagnosis
    assert [line.name for line in diagnosis][-3:] == ["two ranks", "over the network", "NCCL ranks"]
    assert len({line.name for line in diagnosis}) == len(diagnosis) >= 25


def test_every_check_has_a_name_a_limit_and_a_docstring():
    for check in diagnosis.all_checks():
        assert check.name
        assert check.seconds > 0
        assert check.examine.__doc__


# ------------------------------------------------------------------------------------------ the doctor


CHECKS = [
    Check("good", lambda: Finding("ok", "fine"), 1),
    Check("so so", lambda: Finding("note", "small", "get more"), 1),
    Check("bad", lambda: Finding("no", "gone", "fetch it"), 1),
]


def test_exit_code_and_lines(monkeypatch, capsys):
    monkeypatch.setattr(diagnosis, "all_checks", lambda: CHECKS)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok", "note", "do:", "no", "do:"]
    assert lines[-1] == "1 ok, 1 note, 1 no: not yet: see each no above"
    assert "\x1b" not in "".join(lines)  # it is no terminal


def test_a_no_is_red_on_a_terminal_that_has_not_said_no(monkeypatch, capsys):
    monkeypatch.setattr(diagnosis, "all_checks", lambda: CHECKS)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["doctor"])
    assert "\x1b[1;31mno  \x1b[0m  bad " in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["doctor"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(diagnosis, "all_checks", lambda: CHECKS[:2])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("this machine can run the workshop\n")


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(diagnosis, "all_checks", lambda: CHECKS)
    assert main(["doctor", "--json"]) == 1
    lines = json.loads(capsys.readouterr().out)
    assert lines[2] == {"name": "bad", "verdict": "no", "found": "gone", "do": "fetch it"}


def test_a_diagnosis_shows_itself():
    assert repr(diagnose(CHECKS)).splitlines()[0] == f"ok    {'good':<18}  fine"


def test_a_check_that_hangs_is_a_no():
    over = threading.Event()
    (line,) = diagnose([Check("slow", over.wait, 0.2)])  # would wait for ever
    over.set()
    assert (line.verdict, line.found) == ("no", "no answer in 0.2 s")


def test_a_refusal_of_the_system_is_a_no_and_a_bug_is_a_bug():
    def refused():
        raise PermissionError(13, "Permission denied", "/proc/secret")

    (line,) = diagnose([Check("locked", refused, 1)])
    assert line.verdict == "no"
    assert "Permission denied" in line.found
    with pytest.raises(ZeroDivisionError):
        diagnose([Check("buggy", lambda: 1 / 0, 1)])


# ------------------------------------------------------------------------------------------ software


def test_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert checks_software.check_python().verdict == "no"


def test_jupyterlab_missing_or_old(monkeypatch):
    monkeypatch.setattr(checks_software, "version", lambda name: "3.6.0")
    assert "3.6.0 is not in jupyterlab>=" in checks_software.check_jupyterlab().found

    def missing(name):
        raise checks_software.PackageNotFoundError(name)

    monkeypatch.setattr(checks_software, "version", missing)
    assert checks_software.check_jupyterlab().verdict == "no"


def test_a_kernel_of_another_python(monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": ["/opt/other/bin/python", "-m", "ipykernel"], "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    finding = checks_software.check_kernel()
    assert finding.verdict == "no"
    assert "/opt/other/bin/python" in finding.found


def test_torch_is_asked_once_in_a_process_of_its_own(monkeypatch):
    assert checks_software.check_torch().verdict == "ok"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("asked twice"))
    assert checks_software.check_torch().verdict == "ok"
    assert "torch" not in vars(checks_software)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import no_such_torch", "No module named 'no_such_torch'"),
        ("import os; os.kill(os.getpid(), 11)", "ended the process with signal 11"),
        ("import time; time.sleep(600)", "took longer than 1 s"),
        ("raise SystemExit(3)", "failed without a word"),
    ],
)
def test_a_torch_that_does_not_answer(monkeypatch, program, said):
    monkeypatch.setattr(checks_software, "_ASK_TORCH", program)
    monkeypatch.setattr(checks_software, "TORCH_SECONDS", 1 if "sleep" in program else 60)
    finding = checks_software.check_torch()
    assert finding.verdict == "no"
    assert said in finding.found
    assert "pip install" in finding.do


CPU = {"version": "2.13.0+cpu", "seconds": 1.0, "cuda": None, "gloo": True, "nccl": False, "gpus": []}
CUDA = CPU | {"version": "2.13.0", "cuda": "13.0", "nccl": True, "nccl_version": "2.29.3"}
GPUS = CUDA | {"gpus": [["NVIDIA H200", 150_000_000_000], ["NVIDIA H200", 150_000_000_000]]}


@pytest.mark.parametrize(
    ("torch", "listed", "devices", "nccl"),
    [
        (CPU, 0, "ok", "ok"),
        (GPUS, 2, "ok", "ok"),
        (CPU, 2, "no", "ok"),  # a GPU is there and the CPU build was installed
        (CUDA, 2, "no", "ok"),  # the driver is too old
        (GPUS | {"nccl": False}, 2, "ok", "no"),
        ({"error": "broken"}, 1, "note", "ok"),
    ],
)
def test_devices_and_nccl(monkeypatch, torch, listed, devices, nccl):
    monkeypatch.setattr(checks_software, "ask_torch", lambda: torch)
    monkeypatch.setattr(checks_software, "gpus_listed", lambda: listed)
    assert checks_software.check_devices().verdict == devices
    assert checks_software.check_nccl().verdict == nccl


def test_gpus_are_named(monkeypatch):
    monkeypatch.setattr(checks_software, "ask_torch", lambda: GPUS)
    assert checks_software.check_devices().found.startswith("2 GPU: NVIDIA H200 (139.7 GiB), NVIDIA")


@pytest.mark.parametrize(
    ("torch", "verdict"),
    [
        (CPU | {"version": "2.10.1"}, "no"),
        (CPU | {"version": "2.14.0"}, "no"),
        (CPU | {"version": "2.11.0+cu128"}, "ok"),
        (CPU | {"seconds": 40.0}, "note"),
    ],
)
def test_torch_in_range(monkeypatch, torch, verdict):
    monkeypatch.setattr(checks_software, "ask_torch", lambda: torch)
    assert checks_software.check_torch().verdict == verdict


@pytest.mark.parametrize(("script", "num"), [("echo 'GPU 0: X'; echo 'GPU 1: X'", 2), ("exit 9", 0)])
def test_gpus_listed(monkeypatch, tmp_path, script, num):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert checks_software.gpus_listed() == num


# ------------------------------------------------------------------------------------------ the machine


def test_one_core(monkeypatch):
    monkeypatch.setattr(checks_machine, "usable_cores", lambda: 1.0)
    assert checks_machine.check_cores().verdict == "note"


@pytest.mark.parametrize(("text", "cores"), [("max 100000", 4), ("150000 100000", 1.5), ("900000 100000", 4)])
def test_a_containers_share_of_cores(monkeypatch, tmp_path, text, cores):
    monkeypatch.setattr(checks_machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(text)
    assert checks_machine.usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("free", "verdict"), [(8 * GIB, "ok"), (2 * GIB, "note"), (900 * MIB, "no")])
def test_memory(monkeypatch, free, verdict):
    monkeypatch.setattr(checks_machine, "free_memory", lambda: free)
    assert checks_machine.check_memory().verdict == verdict


@pytest.mark.parametrize(
    ("limit", "free"), [(None, 8 * GIB), ("max", 8 * GIB), (str(3 * GIB), 2 * GIB), ("5", 0)]
)
def test_free_memory_knows_a_containers_limit(tmp_path, limit, free):
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {8 * 2**20} kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert checks_machine.free_memory(tmp_path / "meminfo", tmp_path) == free


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free", "verdict"), [(4 * GIB, "ok"), (63 * MIB, "note"), (5 * MIB, "no")])
def test_shared_memory(monkeypatch, free, verdict):
    monkeypatch.setattr(checks_machine.shutil, "disk_usage", lambda path: Usage(8 * GIB, 0, free))
    assert checks_machine.check_shared_memory().verdict == verdict


def test_no_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(checks_machine, "SHARED_MEMORY", tmp_path / "gone")
    finding = checks_machine.check_shared_memory()
    assert finding.verdict == "no"
    assert "--shm-size" in finding.do


@pytest.mark.parametrize(("free", "verdict"), [(9 * GIB, "ok"), (GIB, "note"), (50 * MIB, "no")])
def test_disk(monkeypatch, tmp_path, free, verdict):
    monkeypatch.setattr(checks_machine.shutil, "disk_usage", lambda path: Usage(8 * GIB, 0, free))
    monkeypatch.chdir(tmp_path)
    assert checks_machine.check_current_folder().verdict == verdict
    assert checks_machine.check_temporary_folder().verdict == verdict


def test_a_folder_that_cannot_be_written_to(monkeypatch):
    monkeypatch.setattr(checks_machine.tempfile, "gettempdir", lambda: "/proc")  # read-only for root too
    finding = checks_machine.check_temporary_folder()
    assert finding.verdict == "no"
    assert "TMPDIR" in finding.do


def test_no_loopback(monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    finding = checks_machine.check_port()
    assert finding.verdict == "no"
    assert "Cannot assign" in finding.found


def test_leaked_variables(monkeypatch):
    assert checks_machine.check_variables().verdict == "ok"
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert checks_machine.check_variables().verdict == "ok"
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")
    finding = checks_machine.check_variables()
    assert (finding.verdict, finding.found) == ("no", "OMPI_COMM_WORLD_RANK RANK")
    assert finding.do.endswith("unset OMPI_COMM_WORLD_RANK RANK")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert checks_machine.check_variables().verdict == "note"


@pytest.mark.parametrize(
    ("files", "processes", "verdict"),
    [
        (4096, 4096, "ok"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok"),
        (512, 4096, "note"),
        (4096, 64, "no"),
    ],
)
def test_limits(monkeypatch, files, processes, verdict):
    soft = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: processes}
    monkeypatch.setattr(checks_machine.resource, "getrlimit", lambda which: (soft[which], soft[which]))
    assert checks_machine.check_limits().verdict == verdict


# ------------------------------------------------------------------------------------------ two ranks


def test_ranks_that_fail():
    finding = checks_ranks.check_ranks(program="raise RuntimeError('no peer')")
    assert finding.verdict == "no"
    assert finding.found == "two gloo ranks failed: RuntimeError: no peer"


def test_ranks_that_hang_are_ended(tmp_path, monkeypatch):
    """The time is up at the moment when both ranks hang, however long this machine takes to start them."""
    program = (
        "import os, sys, time\n"
        f"open(os.path.join({str(tmp_path)!r}, os.environ['RANK'] + '.part'), 'w').write(str(os.getpid()))\n"
        f"os.rename(*(os.path.join({str(tmp_path)!r}, os.environ['RANK'] + end) for end in ('.part', '.pid')))\n"
        "time.sleep(600)"
    )

    class UpWhenTheyHang(subprocess.Popen):
        def communicate(self, timeout):
            wait_until(lambda: self.poll() is not None or len(list(tmp_path.glob("*.pid"))) == 2)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", UpWhenTheyHang)
    finding = checks_ranks.check_ranks(limit=7, program=program)
    assert finding.verdict == "no"
    assert finding.found == "two gloo ranks did not finish an all_reduce in 7 s"
    pids = [path.read_text() for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    wait_until(lambda: not any(_alive(pid) for pid in pids))


def test_the_clock_ends_ranks_too():
    assert "did not finish" in checks_ranks.check_ranks(limit=0.1).found


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_leaked_variables_do_not_reach_the_ranks(monkeypatch):
    for name, value in {"RANK": "5", "WORLD_SIZE": "9", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert checks_ranks.check_ranks().verdict in ("ok", "note")
