"""Cores, memory, network, disk and processes of this machine, read from /proc (proc(5)); Linux only.

The kernel counts; nobody measures. ``/proc/stat`` holds, for each core, the ticks it has spent at work and
idle since boot, so a share is the difference of two readings. Numbers are the machine's: in a container
cores and memory of the host are seen, whatever its limit.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from workshop.launch.processes import descendants
from workshop.measure.monitor_record import CpuSample, ProcessSample

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SECTOR = 512  # bytes, in /proc/diskstats whatever the disk's own sector (kernel, admin-guide/iostats)
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # read again as the disks below them


class CpuSampler:
    """Reads the counters and gives the differences.

    pid: watch this process and all below it. proc: where the kernel's files are.
    """

    def __init__(self, pid: int | None = None, proc: Path = Path("/proc")):
        self.pid = os.getpid() if pid is None else pid
        self.proc = proc
        self._at = time.perf_counter()
        self._cores = self._core_ticks()
        self._network, self._disk = self._network_bytes(), self._disk_bytes()
        self._ticks = {pid: ticks for pid, _, _, ticks in self._watched()}

    def sample(self) -> CpuSample:
        """What happened since the last call."""
        now = time.perf_counter()
        seconds, self._at = max(now - self._at, 1e-9), now
        used, total = self._memory()
        return CpuSample(
            cores_busy=self._busy(),
            memory_used_bytes=used,
            memory_total_bytes=total,
            load=float((self.proc / "loadavg").read_text().split()[0]),
            processes=self._processes(seconds),
            network=self._network_rates(seconds),
            disk=self._disk_rates(seconds),
        )

    def _core_ticks(self) -> list[tuple[int, int]]:
        """Ticks at work and in all, of each core; waiting for a disk is not work."""
        ticks_by_core = []
        for line in (self.proc / "stat").read_text().splitlines():
            name, *rest = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(word) for word in rest[:8]]  # guests are counted in user already
                ticks_by_core.append((sum(ticks) - ticks[3] - ticks[4], sum(ticks)))
        return ticks_by_core

    def _busy(self) -> tuple[float, ...]:
        before, self._cores = self._cores, self._core_ticks()
        shares = []
        for (work, total), (work_before, total_before) in zip(self._cores, before, strict=False):
            passed = total - total_before
            shares.append(min(max((work - work_before) / passed, 0.0), 1.0) if passed > 0 else 0.0)
        return tuple(shares)

    def _memory(self) -> tuple[int, int]:
        lines = (self.proc / "meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":", 1) for line in lines)}
        return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]

    def _network_bytes(self) -> dict[str, tuple[int, int]]:
        """Received and sent, by interface."""
        received_and_sent = {}
        for line in (self.proc / "net/dev").read_text().splitlines()[2:]:
            name, rest = line.split(":", 1)
            words = rest.split()
            received_and_sent[name.strip()] = (int(words[0]), int(words[8]))
        return received_and_sent

    def _network_rates(self, seconds: float) -> dict[str, tuple[float, float]]:
        before, self._network = self._network, self._network_bytes()
        rates = {}
        for name, (got, sent) in self._network.items():
            got_before, sent_before = before.get(name, (got, sent))
            rates[name] = (max(got - got_before, 0) / seconds, max(sent - sent_before, 0) / seconds)
        return rates

    def _disk_bytes(self) -> tuple[int, int]:
        """Read and written, whole disks: a partition's name is its disk's and a number more."""
        path = self.proc / "diskstats"
        if not path.exists():  # some containers hide it
            return 0, 0
        rows = [line.split() for line in path.read_text().splitlines()]
        names = {row[2] for row in rows}
        read = written = 0
        for row in rows:
            if row[2].startswith(_NO_DISKS) or _disk_of(row[2]) in names:
                continue
            read, written = read + int(row[5]) * _SECTOR, written + int(row[9]) * _SECTOR
        return read, written

    def _disk_rates(self, seconds: float) -> tuple[float, float]:
        before, self._disk = self._disk, self._disk_bytes()
        return (self._disk[0] - before[0]) / seconds, (self._disk[1] - before[1]) / seconds

    def _watched(self) -> list[tuple[int, str, int, int]]:
        """Number, name, resident bytes and ticks of the watched process and those below it."""
        processes = []
        for pid in (self.pid, *(process.pid for process in descendants(self.pid))):
            try:
                text = Path(f"/proc/{pid}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            processes.append((pid, name, int(fields[21]) * _PAGE, int(fields[11]) + int(fields[12])))
        return processes

    def _processes(self, seconds: float) -> tuple[ProcessSample, ...]:
        before, watched = self._ticks, self._watched()
        self._ticks = {pid: ticks for pid, _, _, ticks in watched}
        return tuple(
            ProcessSample(pid, name, rss, max(ticks - before.get(pid, ticks), 0) / _TICK / seconds)
            for pid, name, rss, ticks in watched
        )


def _disk_of(partition: str) -> str:
    """``sda`` of ``sda1``, ``nvme0n1`` of ``nvme0n1p2``; itself changed by nothing gives no name."""
    stem = partition.rstrip("0123456789")
    if stem == partition:
        return ""
    return stem[:-1] if stem.endswith("p") and stem[-2:-1].isdigit() else stem
