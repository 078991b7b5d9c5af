"""How long training stands still for a save, and how long the save goes on behind it."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.facts.units import format_seconds
from workshop.show.style import LIMIT, PREDICTED, Picture, new_figure


def saves_in_time(saves: Mapping[str, tuple[float, float]]) -> Picture:
    """A bar for each kind of save: (seconds that training stands still, seconds until it is written).

    ValueError where a save is written before training goes on.
    """
    for name, (still, written) in saves.items():
        if not 0 <= still <= written:
            raise ValueError(f"{name}: stands still for {still} s and is written after {written} s")
    figure, axis = new_figure(6.4, 1.1 + 0.4 * len(saves))
    places = range(len(saves))
    axis.barh(places, [1e3 * s for s, _ in saves.values()], 0.5, color=LIMIT, label="training stands still")
    axis.barh(
        places,
        [1e3 * (w - s) for s, w in saves.values()],
        0.5,
        left=[1e3 * s for s, _ in saves.values()],
        color=PREDICTED,
        label="written while it trains",
    )
    for place, (_, written) in enumerate(saves.values()):
        axis.text(1e3 * written, place, f" {format_seconds(written)}", va="center", fontsize=8)
    axis.set_yticks(list(places), list(saves))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2e3 * max(written for _, written in saves.values()))
    axis.set_xlabel("ms")
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    said = "; ".join(
        f"{name} stands still {format_seconds(still)} of {format_seconds(written)}"
        for name, (still, written) in saves.items()
    )
    return Picture(figure, said)
