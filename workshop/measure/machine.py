"""What this machine can do, measured once: the three rates a prediction of time needs.

    from workshop.measure import calibrate

    calibrate()          # some ten seconds; from then on predict_step knows "this-machine"

- **Products**: the best rate of a square matrix product, for every format that the processor multiplies, on
  one thread, as one rank of several has it.
- **Memory**: a copy of a tensor that no cache holds reads and writes every byte once.
- **gloo**: an all-reduce of n ranks and B bytes takes t = a + 2 (n-1)/n B / b (Hockney 1994). Sizes from
  1 KiB to 4 MiB give a straight line; a is what it takes when there is nothing to send, b the rest.

Best of several, because whatever else runs can only make it slower.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from workshop.facts.this_machine import save_calibration
from workshop.predict.collectives import wire_bytes

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
COPIED_BYTES = 256 * 2**20
SIZES = tuple(2**power for power in range(10, 23, 2))


def calibrate(num_ranks: int = 2, *, repeats: int = 5, save: bool = True) -> dict[str, Any]:
    """Measure this machine and keep the result where `facts.this_machine` finds it.

    num_ranks: gloo ranks that talk to each other (at least 2). repeats: of how many the best counts. Returns
    `peak_flops` by format, `memory_bandwidth` and `bytes_per_second` in bytes/s, `latency_seconds`, and
    `source`. Raises ValueError for fewer than two ranks or no repeat, RuntimeError if the ranks fail.
    """
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks}; a collective needs at least 2")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; measure at least once")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        peak = {name: matmul_rate(dtype, repeats) for name, dtype in FORMATS.items()}
        bandwidth = memory_bandwidth(repeats)
    finally:
        torch.set_num_threads(threads)
    latency, rate = line_of(all_reduce_seconds(num_ranks, repeats), num_ranks)
    rates = {
        "peak_flops": peak,
        "memory_bandwidth": bandwidth,
        "bytes_per_second": rate,
        "latency_seconds": latency,
        "source": f"calibrated here: torch {torch.__version__}, {platform.machine()}, {num_ranks} gloo ranks",
    }
    if save:
        save_calibration(rates)
    return rates


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The shortest of some runs, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def matmul_rate(dtype: torch.dtype, repeats: int) -> float:
    """FLOP/s of the best square product."""
    rates = []
    for size in (256, 512, 1024):
        a, b = (torch.ones(size, size, dtype=dtype) for _ in range(2))
        rates.append(2 * size**3 / best_seconds(lambda a=a, b=b: a @ b, repeats))  # type: ignore[misc]
    return max(rates)


def memory_bandwidth(repeats: int) -> float:
    """Bytes/s of a copy, reads and writes together."""
    source = torch.ones(COPIED_BYTES // 8, dtype=torch.float32)
    target = torch.empty_like(source)
    return COPIED_BYTES / best_seconds(lambda: target.copy_(source), repeats)


def all_reduce_seconds(num_ranks: int, repeats: int) -> dict[int, float]:
    """Seconds of an all-reduce by bytes, between `num_ranks` gloo ranks started for it."""
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        command = [sys.executable, "-m", "workshop.measure.machine", folder, str(num_ranks), str(repeats)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [*command, str(rank)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]
        try:
            outputs = [rank.communicate(timeout=120) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{num_ranks} gloo ranks did not finish in 120 s") from None
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        if rank.returncode:
            raise RuntimeError(f"a gloo rank failed:\n{errors[-1000:]}")
    pairs = (line.split() for line in outputs[0][0].splitlines())
    return {int(size): float(seconds) for size, seconds in pairs}


def line_of(seconds: dict[int, float], num_ranks: int, collective: str = "all_reduce") -> tuple[float, float]:
    """(a, b) of t = a + wire bytes / b, by least squares on relative errors; both positive.

    seconds: by bytes of the whole tensor (the gathered or not yet scattered one).
    """
    wire = np.array([float(wire_bytes(collective, size, num_ranks)) for size in seconds])
    times = np.array(list(seconds.values()))
    columns = np.stack([np.ones_like(wire), wire], axis=1) / times[:, None]
    start, slope = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)[0]
    # Noise may tilt the line below nothing; the smallest message then is all start, the largest all bytes.
    start = start if start > 0 else float(times.min())
    slope = slope if slope > 0 else float(times[-1] / wire[-1])
    return float(start), float(1 / slope)


def _rank(folder: str, num_ranks: int, repeats: int, rank: int) -> None:
    """One gloo rank; the first prints bytes and seconds."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    for size in SIZES:
        tensor = torch.ones(size // 4)

        def work(tensor: torch.Tensor = tensor) -> None:
            dist.all_reduce(tensor)
            tensor.fill_(1.0)

        dist.barrier()
        seconds = best_seconds(work, 4 * repeats)
        if rank == 0:
            print(size, seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
