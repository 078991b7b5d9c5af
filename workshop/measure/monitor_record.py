"""What the monitor writes down: one `Sample` for each moment, in memory and as JSON lines.

Rates (bytes per second, shares of a core) are means since the sample before, so the first sample has none.
None means "not told": the driver of this device, or this machine, does not have the number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes

FORMAT = "workshop monitor 1"


@dataclass(frozen=True)
class ProcessSample:
    """One watched process: its resident memory, and how many cores it kept busy."""

    pid: int
    name: str
    rss_bytes: int
    cores: float


@dataclass(frozen=True)
class CpuSample:
    """The machine and the watched processes.

    cores_busy: share of each core, 0 to 1. network: by interface, bytes per second received and sent. disk:
    bytes per second read and written, all disks together.
    """

    cores_busy: tuple[float, ...]
    memory_used_bytes: int
    memory_total_bytes: int
    load: float
    processes: tuple[ProcessSample, ...] = ()
    network: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    disk: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class GpuSample:
    """One GPU, as NVML tells.

    busy: share of the last sampling period in which at least one kernel ran (that is all it means: one small
    kernel at a time also gives 1.0). memory_busy: share in which device memory was read or written. slowed:
    why the clocks are not higher. PCIe and NVLink: bytes per second, sent and received by the GPU.
    """

    index: int
    name: str
    busy: float | None = None
    memory_busy: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    slowed: tuple[str, ...] | None = None
    pcie: tuple[float, float] | None = None
    nvlink: tuple[float, float] | None = None


@dataclass(frozen=True)
class Sample:
    """One moment: ``seconds`` since the monitor began, ``time`` as Unix time."""

    seconds: float
    time: float
    cpu: CpuSample
    gpus: tuple[GpuSample, ...] = ()

    def line(self) -> str:
        """A line of the log file."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Recording:
    """A log read back: its samples in order, and what the monitor had to say."""

    samples: tuple[Sample, ...]
    notes: tuple[str, ...]


def read_log(path: str | Path) -> Recording:
    """Read a log file; a last line cut short by a kill is left out.

    ValueError when the file is no log of the monitor, or a line before the last cannot be read.
    """
    lines = Path(path).read_text("utf-8").splitlines()
    try:
        head = json.loads(lines[0])
        notes = tuple(head["notes"])
        known = head["format"] == FORMAT
    except (ValueError, KeyError, IndexError, TypeError):
        known, notes = False, ()
    if not known:
        raise ValueError(f"{path} is no log of `workshop monitor`: its first line does not say {FORMAT!r}")
    samples = []
    for number, line in enumerate(lines[1:], 2):
        try:
            samples.append(_sample(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise ValueError(f"{path} line {number} is no sample: {error}") from None
    return Recording(tuple(samples), notes)


def _sample(entry: dict[str, Any]) -> Sample:
    cpu = dict(entry["cpu"])
    cpu["cores_busy"] = tuple(cpu["cores_busy"])
    cpu["processes"] = tuple(ProcessSample(**process) for process in cpu["processes"])
    cpu["network"] = {name: (got, sent) for name, (got, sent) in cpu["network"].items()}
    cpu["disk"] = tuple(cpu["disk"])
    gpus = []
    for gpu in entry["gpus"]:
        pairs = {name: tuple(gpu[name]) for name in ("slowed", "pcie", "nvlink") if gpu[name] is not None}
        gpus.append(GpuSample(**{**gpu, **pairs}))
    return Sample(entry["seconds"], entry["time"], CpuSample(**cpu), tuple(gpus))


def summary(samples: Sequence[Sample]) -> Table:
    """Mean and largest of what was sampled. ValueError for no samples."""
    if not samples:
        raise ValueError("no samples yet: the first comes one interval after the start")
    rows = [_row("cores busy", [sum(s.cpu.cores_busy) for s in samples], "{:.2f}".format)]
    rows.append(_row("memory of the machine", [s.cpu.memory_used_bytes for s in samples], format_bytes))
    watched = [sum(p.rss_bytes for p in s.cpu.processes) for s in samples]
    rows.append(_row("memory of these processes", watched, format_bytes))
    for name in sorted({name for s in samples for name in s.cpu.network}):
        both = [sum(s.cpu.network.get(name, (0.0, 0.0))) for s in samples]
        if any(both):
            rows.append(_row(f"network {name}", both, _rate))
    rows.append(_row("disk", [sum(s.cpu.disk) for s in samples], _rate))
    for index in range(len(samples[-1].gpus)):
        rows += _gpu_rows([s.gpus[index] for s in samples])
    seconds = samples[-1].seconds
    of = f"{len(samples[-1].cpu.cores_busy)} cores, {format_bytes(samples[-1].cpu.memory_total_bytes)}"
    return Table(["", "mean", "largest"], rows, f"{len(samples)} samples in {seconds:.1f} s; {of}")


def _gpu_rows(gpus: Sequence[GpuSample]) -> list[list[str]]:
    kinds: dict[str, tuple[Sequence[float | None], Any]] = {
        "busy": ([g.busy for g in gpus], "{:.0%}".format),
        "memory": ([g.memory_used_bytes for g in gpus], format_bytes),
        "power": ([g.power_watts for g in gpus], "{:.0f} W".format),
        "temperature": ([g.temperature_celsius for g in gpus], "{:.0f} °C".format),
    }
    rows = [_row(f"GPU {gpus[0].index} {kind}", values, form) for kind, (values, form) in kinds.items()]
    slowed = sorted({why for gpu in gpus for why in gpu.slowed or ()})
    return rows + ([[f"GPU {gpus[0].index} slowed by", ", ".join(slowed), ""]] if slowed else [])


def _row(name: str, values: Sequence[float | None], form: Any) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return [name, "not told", "not told"]
    return [name, form(sum(known) / len(known)), form(max(known))]


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"
