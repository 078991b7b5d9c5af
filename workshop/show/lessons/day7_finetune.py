"""Day 7: what a model has learned by fine-tuning, beside what it forgot (73)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import Picture, legend, name_axes, new_figure, rank_colour


def learned_and_forgotten(
    before: tuple[float, float], ways: Mapping[str, Sequence[tuple[float, float]]]
) -> Picture:
    """A point for each run: how unlikely right answers are to the model, and how unlikely its old ones.

    Args:
        before: perplexity of new right answers and of its old answers, before it was trained.
        ways: by name, both after each run; runs of a name share a colour.
    """
    figure, axis = new_figure(6.2, 3.0)
    axis.semilogx(*before, "s", color="#888888", markersize=8, label="before")
    for index, (name, runs) in enumerate(ways.items()):
        for place, (learned, forgotten) in enumerate(runs):
            style = {"color": rank_colour(index), "label": "" if place else name}
            axis.plot([before[0], learned], [before[1], forgotten], ":", color=style["color"], linewidth=1)
            axis.plot(learned, forgotten, "o", markersize=8, **style)
    axis.invert_xaxis()
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    name_axes(axis, "perplexity of right answers (learned: to the right)", "of old answers (forgotten: up)")
    legend(figure, 1 + len(ways))
    words = "; ".join(
        f"{name}: " + ", ".join(f"right answers {learned:.3g}, old {old:.3g}" for learned, old in runs)
        for name, runs in ways.items()
    )
    return Picture(figure, f"perplexity before: right answers {before[0]:.3g}, old {before[1]:.3g}; {words}")
