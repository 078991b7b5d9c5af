"""What a student learns from: softened probabilities, two ways to be near them, scores by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import MEASURED, PREDICTED, Picture, new_figure, rank_colour


def soft_targets(
    words: Sequence[str], probabilities: Mapping[str, Sequence[float]], came: str = ""
) -> Picture:
    """Probabilities of some words, a panel for each name (a temperature); the word that came in colour.

    ValueError where a panel does not have one number for each word.
    """
    for name, values in probabilities.items():
        if len(values) != len(words):
            raise ValueError(f"{name}: {len(values)} probabilities for {len(words)} words")
    figure, axes = new_figure(2.7 * len(probabilities), 2.6, columns=len(probabilities))
    panels = list(axes) if len(probabilities) > 1 else [axes]
    colours = [MEASURED if word == came else PREDICTED for word in words]
    for axis, (name, values) in zip(panels, probabilities.items(), strict=True):
        places = range(len(words))
        axis.barh(places, values, color=colours)
        axis.set_yticks(places, [repr(word) for word in words] if axis is panels[0] else [""] * len(words))
        axis.invert_yaxis()
        axis.set_title(name, fontsize=9)
    panels[0].set_xlabel("probability")
    highest = ", ".join(f"{name}: {max(values):.2f}" for name, values in probabilities.items())
    return Picture(figure, f"probabilities of {len(words)} words; the highest at {highest}")


def two_fits(grid: Sequence[float], teacher: Sequence[float], fits: Mapping[str, Sequence[float]]) -> Picture:
    """A density with several humps, and what a simpler one makes of it under each divergence."""
    figure, axis = new_figure(6.4, 2.6)
    axis.fill_between(grid, teacher, color=PREDICTED, label="teacher")
    for index, (name, density) in enumerate(fits.items()):
        axis.plot(grid, density, color=rank_colour(index), label=name)
    axis.set_yticks([])
    axis.legend(fontsize=8, frameon=False)
    return Picture(figure, "one density and its fits: " + ", ".join(fits))


def scores_by_step(
    scores: Mapping[str, Mapping[int, float]], label: str, level: tuple[str, float] | None = None
) -> Picture:
    """A line for each name through its scores by step, and a level to compare with."""
    figure, axis = new_figure(6.4, 2.8)
    for index, (name, values) in enumerate(scores.items()):
        axis.plot(
            list(values), list(values.values()), "o-", color=rank_colour(index), markersize=4, label=name
        )
    if level:
        axis.axhline(level[1], color="#666666", linewidth=0.8, linestyle=":", label=level[0])
    axis.set_xlabel("step")
    axis.set_ylabel(label)
    axis.legend(fontsize=8, frameon=False)
    ends = ", ".join(f"{name} {list(values.values())[-1]:.2f}" for name, values in scores.items())
    return Picture(figure, f"{label} by step; at the end: {ends}")
