"""Where a step's time goes: a stacked bar for each rank, or for each step."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.facts.units import format_seconds
from workshop.show.lanes import RANGES
from workshop.show.style import Picture, new_figure

_OTHER = ("#BBBBBB", "#F0E442", "#0072B2", "#888888")


def phase_bars(seconds: Mapping[str, Mapping[str, float]], title: str = "") -> Picture:
    """A bar for each name (a rank, a step, a version of the code), made of its seconds by phase.

    seconds: by name, then by phase, as `measure.StepTimer` gives them. ValueError where there is none.
    """
    if not seconds or not any(sum(phases.values()) > 0 for phases in seconds.values()):
        raise ValueError("no seconds to draw: give at least one bar, by name, with seconds by phase")
    present = [
        phase
        for phase in dict.fromkeys([*RANGES, *(p for phases in seconds.values() for p in phases)])
        if any(phases.get(phase, 0.0) > 0 for phases in seconds.values())
    ]
    others = iter(_OTHER * len(present))
    colours = {phase: RANGES.get(phase) or next(others) for phase in present}
    figure, axis = new_figure(7.4, 1.1 + 0.34 * len(seconds))
    for row, phases in enumerate(seconds.values()):
        left = 0.0
        for phase in present:
            width = 1e3 * phases.get(phase, 0.0)
            label = phase if row == 0 else None
            axis.barh(row, width, 0.72, left=left, color=colours[phase], label=label, edgecolor="white")
            left += width
        axis.text(left, row, f"  {format_seconds(left / 1e3)}", va="center", fontsize=8)
    axis.set_yticks(range(len(seconds)), list(seconds), fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.set_xlabel("milliseconds of a step", fontsize=8)
    axis.tick_params(labelsize=8, length=2)
    if title:
        axis.set_title(title, fontsize=9, loc="left")
    figure.legend(loc="outside lower center", ncols=min(len(present), 6), fontsize=8, frameon=False)
    said = "; ".join(f"{name}: {_most(phases)}" for name, phases in seconds.items())
    return Picture(figure, f"{title + ': ' if title else ''}seconds by phase; {said}")


def _most(phases: Mapping[str, float]) -> str:
    whole = sum(phases.values()) or 1.0
    first = max(phases, key=lambda phase: phases[phase])
    return f"{format_seconds(whole)}, most in {first} ({phases[first] / whole:.0%})"
