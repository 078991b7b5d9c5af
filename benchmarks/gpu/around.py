"""(i) What stands around a run on a GPU: NVML's numbers, leases, the profiler's trace, a cap, ranks that
share the device, the tests that need one, the nsys line, how quick the host is, and what the doctor says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.device import calibrated, doctor
from benchmarks.gpu.stage import NotHere, Row, Stage, row

LEASES = """
from workshop.launch.gpus import leases
from workshop.launch.gpus.nvml import node_gpus
first = leases.take(1, [gpu.uuid for gpu in node_gpus()] or ["0"])
print(first.gpus)
first.release()
"""
SHARED = """
import torch, torch.distributed as dist
from workshop import report
dist.init_process_group()
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
x = torch.full((1024,), float(dist.get_rank() + 1), device=device)
dist.all_reduce(x)
report(total=float(x[0]), device=str(x.device), backend=str(dist.get_backend_config()))
dist.destroy_process_group()
"""
# gloo looks at the device before it looks for others: a group of one tells what it takes, and waits for none.
GLOO = """
import json, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(8, device="cuda" if torch.cuda.is_available() else "cpu")
out, found = torch.zeros_like(x), {}
for name, arguments in {
    "all_reduce": (x,), "reduce": (x, 0), "broadcast": (x, 0), "all_gather": ([out], x), "gather": (x, [out]),
    "scatter": (out, [x]), "reduce_scatter": (out, [x]), "all_to_all": ([out], [x]),
    "all_to_all_single": (out, x), "all_gather_into_tensor": (out, x), "reduce_scatter_tensor": (out, x),
}.items():
    try:
        getattr(dist, name)(*arguments)
        torch.cuda.synchronize() if x.is_cuda else None
        found[name] = ""
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"[:200]
print(json.dumps(found))
"""
# What `pytest -v -n 6` says of each test. The summary at the end names tests too, and has no [gw0].
VERDICT = re.compile(
    r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS|RERUN) (\S.*)$", re.MULTILINE
)
WORKERS = len(list(Path("tests/gpu").glob("test_*.py")))  # whole files go to a worker


def run(stage: Stage) -> None:
    """Each part stands alone. The tests come first, for they try most of the rest too. They take what time
    there is, and the parts after them then wait for another start."""
    for name, work, needs in (
        ("gpu tests", gpu_tests, 40),
        ("nvml", monitored, 10),
        ("leases", leased, 10),
        ("profiler", profiled, 10),
        ("memory cap", capped, 10),
        ("one rank", lambda stage: ranks(stage, 1, False), 20),
        ("four ranks on one GPU", lambda stage: ranks(stage, 4, True), 30),
        ("gloo by itself", gloo_alone, 10),
        ("nsys", nsys, 20),
        ("calibrate", calibrated, 30),
        ("doctor", doctor, 90),
    ):
        stage.part(name, lambda work=work: work(stage), needs=needs)  # type: ignore[misc]


def monitored(stage: Stage) -> list[Row]:
    """`measure.Monitor` beside a loop of products."""
    from workshop.measure.monitor import Monitor

    a = torch.randn(stage.sized(8192, 64), stage.sized(8192, 64), device=stage.device)
    with Monitor(0.1) as monitor:
        until = time.monotonic() + stage.sized(4.0, 0.4)
        while time.monotonic() < until:
            a @ a
            if stage.on_gpu:
                torch.cuda.synchronize()
    return [row("samples", len(monitor.samples), "", text=str(monitor.summary()))]


def leased(stage: Stage) -> list[Row]:
    """A lease of the GPU by its UUID, taken and given back, in a process of its own."""
    if not stage.on_gpu:
        raise NotHere("no GPU to lease")
    done = subprocess.run([sys.executable, "-c", LEASES], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    return [row("lease", None, "", text=done.stdout.strip())]


def profiled(stage: Stage) -> list[Row]:
    """torch.profiler's trace through our reader: are kernels in it, and do their times add up?"""
    from torch.profiler import ProfilerActivity, profile

    from workshop.measure.trace import read_trace

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if stage.on_gpu else [])]
    a = torch.randn(stage.sized(4096, 64), stage.sized(4096, 64), device=stage.device)
    with profile(activities=activities) as seen:
        for _ in range(5):
            a @ a
        if stage.on_gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        trace = read_trace(path)
    return [row("seconds in the trace", trace.seconds, "s", lanes=trace.lanes)]


def capped(stage: Stage) -> list[Row]:
    """A cap on the allocator: what fits under it, what does not, and in whose words."""
    if not stage.on_gpu:
        raise NotHere("the CPU's cap is tested elsewhere")
    cap = 2 * 2**30
    from workshop.launch.child.device_cap import cap_device_memory

    cap_device_memory(cap, "cuda")
    try:
        held = torch.empty(cap // 2, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(cap, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            return [row("held under the cap", held.nbytes, "B", message=str(error)[:400])]
        raise RuntimeError("a cap of 2 GiB let 3 GiB through")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def ranks(stage: Stage, n: int, share: bool) -> list[Row]:
    """An all-reduce of ranks as a notebook starts them."""
    from workshop import launch

    if stage.size == "ci" and n > 1:
        raise NotHere("the smallest walk starts one rank")
    limits = launch.Limits(timeout=80, share_gpu=share and stage.on_gpu)
    began = time.perf_counter()
    result = launch.torchrun(SHARED, n, limits=limits)
    wanted = n * (n + 1) / 2
    if result[0]["total"] != wanted:
        raise ValueError(f"the sum over {n} ranks is {result[0]['total']}, not {wanted}")
    return [row("start to end", time.perf_counter() - began, "s", device=result.device, rank=dict(result[0]))]


def gloo_alone(stage: Stage) -> list[Row]:
    """Which collectives gloo takes CUDA tensors for. Ranks that share a GPU stage all through the host."""
    done = subprocess.run([sys.executable, "-c", GLOO], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    why_not = json.loads(done.stdout.strip().splitlines()[-1])
    return [row(name, float(not why), "(1: runs)", why=why) for name, why in why_not.items()]


def nsys(stage: Stage) -> list[Row]:
    """The line that `%%torchrun --nsys` starts, where Nsight Systems is installed."""
    if not (stage.on_gpu and shutil.which("nsys")):
        raise NotHere("nsys is not on the PATH")
    from workshop.configs.nsys_command import nsys_command

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "product.py")
        script.write_text("import torch\na = torch.randn(512, 512, device='cuda')\n(a @ a).sum().item()\n")
        command = nsys_command(str(script), 1, str(Path(folder, "report")), python=sys.executable)
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
        made = [path.name for path in Path(folder).glob("*.nsys-rep")]
    return [row("exit status", done.returncode, "", made=made, text=done.stderr[-600:])]


def gpu_tests(stage: Stage) -> list[Row]:
    """Every test with the marker gpu: passed, failed, skipped, and the names of those that failed."""
    if stage.size == "ci":
        raise NotHere("the smallest walk is itself a test")
    command = [
        *[sys.executable, "-m", "pytest", "tests/gpu", "-v", "--no-header", "-p", "no:cacheprovider"],
        *["--timeout", "120", "-n", str(stage.sized(WORKERS, 2)), "--dist", "loadfile"],
    ]
    rows = counted(command, max(20.0, stage.left() - 20), whole=stage.folder / "gpu_tests.txt")
    if stage.on_gpu and len(rows) == 1:
        raise RuntimeError(rows[0]["text"][-800:])
    return rows


def counted(command: list[str], limit: float, patience: float = 8.0, whole: Path | None = None) -> list[Row]:
    """Run pytest, and count what it said of each test by then: all, or those that the limit left time for.

    After the limit it is interrupted, as by a person, and so it still says why tests failed, if it can within
    its ``patience`` seconds. Then its process group is ended. whole: a file for all that it said.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        with subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        ) as child:
            try:
                child.wait(limit)
                late = False
            except subprocess.TimeoutExpired:
                late = True
                child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(patience)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read()
    if whole:
        whole.write_text(text, "utf-8")
    verdicts = {test: word for word, test in VERDICT.findall(text)}  # the last of those that ran again
    rows = [
        row(word.lower(), sum(verdict == word for verdict in verdicts.values()), "tests")
        for word in sorted({"PASSED", "FAILED", *verdicts.values()} if verdicts else ())
    ]
    failed = [test for test, word in verdicts.items() if word in ("FAILED", "ERROR")]
    ended = (
        f"ended after {limit:.0f} s; more tests would have come"
        if late
        else f"exit status {child.returncode}"
    )
    return [*rows, row(f"last words, {ended}", None, "", failed=failed, text=text[-6000:])]
