"""How far off rounding is, by the size of the number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import Picture, new_figure, rank_colour


def error_by_size(
    sizes: Sequence[float], errors: Mapping[str, Sequence[float]], what: str = "size of the number"
) -> Picture:
    """Relative error over the number's size, both logarithmic; a line for each format.

    An error of one is a number that became zero; where a line ends, numbers become infinite, or as wrong.
    """
    figure, axis = new_figure(7.4, 3.2)
    for index, (name, values) in enumerate(errors.items()):
        axis.plot(sizes, values, color=rank_colour(index), linewidth=1.2, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(min(value for values in errors.values() for value in values if value > 0) / 5, 2)
    axis.set_xlabel(what)
    axis.set_ylabel("relative error")
    axis.legend(fontsize=8, frameon=False, ncols=2)
    best = ", ".join(f"{name} {min(values):.1e}" for name, values in errors.items())
    return Picture(figure, f"relative error by {what}; at best {best}")
