"""What the machine does while your code runs: a thread that looks, now and then, and writes it down.

    with Monitor(interval_seconds=0.5, log="run.jsonl") as watched:
        train()
    watched.summary()

A monitor *samples*: it sees what is there when it looks, or the mean since it last looked. A spike between
two looks is in the mean and not in the picture. For what a single step does, see `spans` and `trace`.

Its own cost is the CPU time of its thread, counted by the kernel and kept in ``cost_seconds`` (a mean of each
sample). On two cores and a machine of 84 processes a sample took 2.6 ms: at one a second, 0.3 % of one core.
It grows with the number of processes, for each is asked who its parent is. Nothing of it touches a GPU: NVML
asks the driver, which takes time of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from workshop.facts.tabular import Table
from workshop.launch.gpus.nvml import NoDriverError
from workshop.measure import monitor_record
from workshop.measure.monitor_cpu import CpuSampler
from workshop.measure.monitor_gpu import GpuSampler
from workshop.measure.monitor_record import FORMAT, Sample

_SHORTEST = 0.01


class Monitor:
    """Samples in a thread of its own between `start` and `stop`, or inside a ``with`` block.

    Args:
        interval_seconds: between two samples.
        keep: samples kept in memory; older ones are dropped (a log file has them all).
        log: a new file for JSON lines, read back by `read_log`.
        pid: the process to watch, with all below it; None: this one, and so all its ranks.
        pcie: PCIe traffic of GPUs too (40 ms for each sample and GPU).
        on_sample: called in the thread with each sample.

    ``notes``: what the monitor has to say, such as that there is no driver. ``cost_seconds``: CPU seconds
    of a sample, the mean.

    Raises:
        ValueError: an interval or a number to keep that cannot be, or a log that exists already.
        OSError: from `stop`, when the log could not be written.
    """

    def __init__(
        self,
        interval_seconds: float = 1.0,
        *,
        keep: int = 3600,
        log: str | Path | None = None,
        pid: int | None = None,
        pcie: bool = False,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        if not interval_seconds >= _SHORTEST:
            raise ValueError(f"interval_seconds {interval_seconds}: at least {_SHORTEST}")
        if keep < 1:
            raise ValueError(f"keep {keep}: at least one sample")
        self.interval_seconds = interval_seconds
        self.notes: list[str] = []
        self.cost_seconds = 0.0
        self._kept: deque[Sample] = deque(maxlen=keep)
        self._path = None if log is None else Path(log)
        self._pid, self._pcie = pid, pcie
        self._on_sample = on_sample
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    @property
    def samples(self) -> list[Sample]:
        """The samples kept so far, oldest first."""
        return list(self._kept)

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Monitor:
        """Begin; the first sample comes one interval later. ValueError when it was started before."""
        if self._thread is not None:
            raise ValueError("this monitor was started already; make another one")
        cpu = CpuSampler(self._pid)
        try:
            gpus = GpuSampler(self._pcie)
        except NoDriverError as error:
            gpus = None
            self.notes.append(f"no GPUs to watch: {error}. What follows is the CPU.")
        log = self._open_log()
        self._thread = threading.Thread(
            target=self._look, args=(cpu, gpus, log), name="workshop monitor", daemon=True
        )
        self._thread.start()
        return self

    def _open_log(self) -> TextIO | None:
        if self._path is None:
            return None
        try:
            log = self._path.open("x", encoding="utf-8")
        except FileExistsError:
            raise ValueError(f"log {self._path} exists already: name a new file, or remove it") from None
        head = {"format": FORMAT, "interval_seconds": self.interval_seconds, "notes": self.notes}
        log.write(json.dumps(head) + "\n")
        log.flush()
        return log

    def _look(self, cpu: CpuSampler, gpus: GpuSampler | None, log: TextIO | None) -> None:
        """The thread: sample, write, wait."""
        began, taken = time.perf_counter(), 0
        try:
            while True:
                ending = self._stop.wait(
                    max(began + (taken + 1) * self.interval_seconds - time.perf_counter(), 0)
                )
                since = time.perf_counter() - began - taken * self.interval_seconds
                if ending and taken and since < 0.2 * self.interval_seconds:
                    return  # too soon after the last one for rates to mean anything
                before = time.thread_time()
                sample = Sample(
                    time.perf_counter() - began, time.time(), cpu.sample(), gpus.sample() if gpus else ()
                )
                self._kept.append(sample)
                if gpus:
                    self.notes += [note for note in gpus.notes if note not in self.notes]
                if log:
                    log.write(sample.line() + "\n")
                    log.flush()
                taken += 1
                self.cost_seconds += (time.thread_time() - before - self.cost_seconds) / taken
                if self._on_sample:
                    self._on_sample(sample)
                if ending:
                    return
        except OSError as error:  # a full disk: said by stop()
            self._error = error
        finally:
            if gpus:
                gpus.close()
            if log:
                self._close(log)

    def _close(self, log: TextIO) -> None:
        try:
            log.close()
        except OSError as error:  # what was left could not be written either
            self._error = self._error or error

    def stop(self) -> None:
        """Take a last sample and end the thread; safe to call twice."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10 + self.interval_seconds)
        error, self._error = self._error, None
        if error is not None:
            raise OSError(f"the monitor ended early: {error}") from error

    def summary(self) -> Table:
        """Mean and largest of everything; ValueError before the first sample."""
        return monitor_record.summary(self.samples)

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, *error: Any) -> None:
        self.stop()
