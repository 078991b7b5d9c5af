"""What a monitor saw: a strip for each quantity, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workshop.facts.units import format_bytes
from workshop.show.drawing import Drawing, area, box, sheet, text
from workshop.show.style import RANK_COLOURS

_LEFT, _WIDTH, _HEIGHT, _RIGHT = 190, 360, 34, 190


class Strip(NamedTuple):
    """A quantity over time; ``top`` is the height of the strip, ``said`` its words at the right."""

    name: str
    values: Sequence[float | None]
    top: float
    said: str


def monitor_strips(samples: Sequence[Any]) -> Drawing:
    """Strips of cores, memory, network and disk, and of each GPU's use, memory and power.

    samples: of `measure.monitor`, read by their fields. ValueError when there are none.
    """
    if not samples:
        raise ValueError("no samples to draw yet: the first comes one interval after the start")
    strips = [*_cpu_strips(samples), *_gpu_strips(samples)]
    times = [sample.seconds for sample in samples]
    parts = [part for row, strip in enumerate(strips) for part in _strip(row, strip, times)]
    bottom = len(strips) * (_HEIGHT + 6) + 6
    parts.append(text(_LEFT, bottom + 10, f"{times[0]:.1f} s", 9))
    parts.append(text(_LEFT + _WIDTH, bottom + 10, f"{times[-1]:.1f} s", 9, anchor="end"))
    words = f"{len(samples)} samples over {times[-1]:.1f} s: " + "; ".join(
        f"{strip.name} {strip.said}" for strip in strips
    )
    return Drawing(sheet(_LEFT + _WIDTH + _RIGHT, bottom + 16, parts), words)


def _cpu_strips(samples: Sequence[Any]) -> list[Strip]:
    cores = len(samples[-1].cpu.cores_busy)
    busy = [sum(sample.cpu.cores_busy) for sample in samples]
    watched = [float(sum(p.rss_bytes for p in sample.cpu.processes)) for sample in samples]
    wire = [sum(got + sent for got, sent in sample.cpu.network.values()) for sample in samples]
    disk = [sum(sample.cpu.disk) for sample in samples]
    return [
        Strip("cores busy", busy, cores, f"{busy[-1]:.2f} of {cores}, most {max(busy):.2f}"),
        _bytes_strip("memory, these processes", watched),
        _bytes_strip("network, all interfaces", wire, "/s"),
        _bytes_strip("disk", disk, "/s"),
    ]


def _bytes_strip(name: str, values: list[float], per: str = "") -> Strip:
    most = max(values)
    return Strip(
        name, values, most or 1.0, f"{format_bytes(values[-1])}{per}, most {format_bytes(most)}{per}"
    )


def _gpu_strips(samples: Sequence[Any]) -> list[Strip]:
    strips = []
    for index, gpu in enumerate(samples[-1].gpus):
        own = [sample.gpus[index] for sample in samples]
        for name, values, top, unit in (
            ("busy", [g.busy for g in own], 1.0, "{:.0%}"),
            ("memory", [g.memory_used_bytes for g in own], gpu.memory_total_bytes, ""),
            ("power", [g.power_watts for g in own], gpu.power_limit_watts, "{:.0f} W"),
        ):
            known = [value for value in values if value is not None]
            if not known:
                strips.append(Strip(f"GPU {gpu.index} {name}", values, 1.0, "not told"))
                continue
            last, most = (unit.format(v) if unit else format_bytes(v) for v in (known[-1], max(known)))
            strips.append(
                Strip(f"GPU {gpu.index} {name}", values, top or max(known) or 1.0, f"{last}, most {most}")
            )
    return strips


def _strip(row: int, strip: Strip, times: Sequence[float]) -> list[str]:
    top = row * (_HEIGHT + 6) + 4
    base, span = top + _HEIGHT, (times[-1] - times[0]) or 1.0
    points = [
        (_LEFT + _WIDTH * (at - times[0]) / span, base - _HEIGHT * min(value / strip.top, 1.0))
        for at, value in zip(times, strip.values, strict=True)
        if value is not None
    ]
    return [
        box((_LEFT, top, _WIDTH, _HEIGHT), "#f4f4f4", strip.name),
        area(points, base, RANK_COLOURS[row % len(RANK_COLOURS)]),
        text(_LEFT - 8, top + _HEIGHT / 2 + 4, strip.name, anchor="end"),
        text(_LEFT + _WIDTH + 8, top + _HEIGHT / 2 + 4, strip.said),
    ]
