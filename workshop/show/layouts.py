"""Layouts side by side, predicted and measured; and what each piece of a model has of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.facts.units import format_seconds
from workshop.show.style import LIMIT, MEASURED, PREDICTED, Picture, new_figure, rank_colour


def layout_seconds(cases: Mapping[str, tuple[float, float | None]], title: str = "") -> Picture:
    """A grey bar (predicted) and a blue one (measured) for each layout, in the order given.

    cases: layout -> (predicted, measured) seconds of a step; measured None: it was not run. ValueError
    without a case.
    """
    if not cases:
        raise ValueError("no case to draw: give {'data parallel': (predicted, measured), ...}")
    figure, axis = new_figure(6.4, 0.9 + 0.5 * len(cases))
    milli = 1e3
    for place, (predicted, measured) in enumerate(cases.values()):
        first = "predicted" if place == 0 else None
        axis.barh(place - 0.2, predicted * milli, 0.38, color=PREDICTED, label=first)
        axis.text(predicted * milli, place - 0.2, " " + format_seconds(predicted), va="center", fontsize=8)
        text = " not run" if measured is None else " " + format_seconds(measured)
        label = "measured" if place == 0 else None
        axis.barh(place + 0.2, (measured or 0) * milli, 0.38, color=MEASURED, label=label)
        colour = LIMIT if measured is None else "black"
        axis.text((measured or 0) * milli, place + 0.2, text, va="center", fontsize=8, color=colour)
    axis.set_yticks(range(len(cases)), list(cases))
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds a step")
    axis.set_xlim(0, 1.2 * milli * max(max(a, b or 0) for a, b in cases.values()))
    axis.set_title(title, fontsize=9, loc="left")
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    words = (
        f"{name}, predicted {format_seconds(a)}, "
        + ("not run" if b is None else f"measured {format_seconds(b)}")
        for name, (a, b) in cases.items()
    )
    return Picture(figure, f"{title or 'seconds a step'}: " + "; ".join(words))


def piece_shares(names: Sequence[str], shares: Mapping[str, Sequence[float]], title: str = "") -> Picture:
    """One bar for each quantity, cut in the shares of the pieces, in order; a colour for a piece.

    names: of the pieces. shares: quantity -> a number for every piece, in any unit. ValueError where a
    quantity has not one number for each piece.
    """
    for quantity, numbers in shares.items():
        if len(numbers) != len(names):
            raise ValueError(f"{quantity} has {len(numbers)} numbers for {len(names)} pieces")
    figure, axis = new_figure(7.0, 1.1 + 0.42 * len(shares))
    for place, numbers in enumerate(shares.values()):
        left, total = 0.0, sum(numbers)
        for index, value in enumerate(numbers):
            width = 100 * value / total
            axis.barh(place, width, 0.7, left=left, color=rank_colour(index), edgecolor="white",
                      label=names[index] if place == 0 else None)  # fmt: skip
            left += width
    axis.set_yticks(range(len(shares)), list(shares))
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the whole model, from the first piece to the last")
    axis.set_title(title, fontsize=9, loc="left")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8,
                  frameon=False)  # fmt: skip
    most = (f"{quantity} most in {names[max(range(len(names)), key=lambda i: numbers[i])]}"
            for quantity, numbers in shares.items())  # fmt: skip
    return Picture(
        figure, f"{title + ': ' if title else ''}shares of {len(names)} pieces: " + "; ".join(most)
    )
