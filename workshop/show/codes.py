"""A picture of number formats of few bits: where their numbers are, and how often each is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import Picture, new_figure, rank_colour


def codes_used(formats: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Picture:
    """A stem for each code, at its number, as high as the share of weights that use it.

    formats: by name, the numbers and how many weights use each. ValueError where the two differ in length.
    """
    figure, axes = new_figure(8.0, 2.6, columns=max(2, len(formats)))
    for index, (axis, (name, (values, counts))) in enumerate(zip(axes, formats.items(), strict=False)):
        if len(values) != len(counts):
            raise ValueError(f"{name}: {len(values)} numbers and {len(counts)} counts")
        total = sum(counts)
        shares = [count / total for count in counts]
        axis.vlines(values, 0, shares, color=rank_colour(index), linewidth=3)
        axis.axhline(1 / len(values), color="#666666", linestyle=":", linewidth=1)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("number")
        axis.set_ylim(0)
    axes[0].set_ylabel("share of the weights")
    words = ", ".join(f"{name}: {len(values)} numbers" for name, (values, _) in formats.items())
    return Picture(figure, f"how often each code is used; {words}")
