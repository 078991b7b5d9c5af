"""Two costs of the same choices side by side: what a rank holds, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.facts.units import format_bytes
from workshop.show.style import LIMIT, Picture, new_figure, rank_colour

Costs = Mapping[str, Mapping[str, float]]


def held_and_sent(held: Costs, sent: Costs, cap: float, title: str = "") -> Picture:
    """Two panels with a stacked bar for each case: bytes held, with the device's cap, and bytes sent.

    held, sent: case -> part -> bytes. A case over the cap has its total in the cap's colour. ValueError where
    the two do not name the same cases.
    """
    if list(held) != list(sent):
        raise ValueError(f"held is of {list(held)}, sent of {list(sent)}: name the same cases in one order")
    figure, axes = new_figure(8.4, 1.5 + 0.36 * len(held), columns=2)
    parts: dict[str, str] = {}
    for axis, costs, limit, label in (
        (axes[0], held, cap, "a rank holds"),
        (axes[1], sent, 0.0, "and sends"),
    ):
        _stack(axis, costs, parts)
        for place, each in enumerate(costs.values()):
            total = sum(each.values())
            colour = LIMIT if limit and total > limit else "black"
            words = f" {format_bytes(total, binary=False)}"
            axis.text(total / 1e9, place, words, va="center", fontsize=8, color=colour)
        largest = max([limit, *(sum(each.values()) for each in costs.values())])
        axis.set_xlim(0, 1.35 * largest / 1e9 or 1)
        axis.set_yticks(range(len(costs)), list(costs))
        axis.invert_yaxis()
        axis.set_xlabel(f"GB {label} in a step" if not limit else f"GB {label}")
    axes[0].axvline(cap / 1e9, color=LIMIT, linewidth=1.5)
    figure.suptitle(f"{title}\nred: room for {format_bytes(cap, binary=False)}".strip(), fontsize=9)
    handles = [axes[0].barh(0, 0, color=colour) for colour in parts.values()]
    figure.legend(handles, list(parts), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    cases = (
        f"{case} holds {format_bytes(sum(held[case].values()), binary=False)}, "
        f"sends {format_bytes(sum(sent[case].values()), binary=False)}"
        for case in held
    )
    return Picture(figure, "; ".join(cases))


def _stack(axis: Any, costs: Costs, parts: dict[str, str]) -> None:
    """A bar for each case; a part keeps the colour it first got."""
    for place, each in enumerate(costs.values()):
        left = 0.0
        for part, size in each.items():
            colour = parts.setdefault(part, rank_colour(len(parts)))
            axis.barh(place, size / 1e9, 0.65, left=left / 1e9, color=colour)
            left += size
